"""jaxexp/run.h: values, errors, donation, devices, threads and memory."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit import runtime as built
from kit.run_c import Handle, Library, Options, Reason, RunError, declared, pointer
from kit.weighted import X as WEIGHTED_X
from kit.weighted import apply, bound, close, named

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
]

SPEC = jax.ShapeDtypeStruct((3,), np.float32)
X = np.array([1, 2, 3], np.float32)


def saved(folder: Path, function: Any, *specs: Any, vjp_order: int = 0, **options: Any) -> Path:
    path = folder / "f.jaxexp"
    exported = jaxexp.export(jax.jit(function, **options))(*specs)
    path.write_bytes(exported.serialize(vjp_order=vjp_order, compatibility=built.READER))
    return path


def in_memory(blob: bytes) -> Any:
    return ctypes.create_string_buffer(blob, len(blob))


def test_a_call(library: Library, runtime: Handle, tmp_path: Path) -> None:
    function = library.load(runtime, saved(tmp_path, lambda x: {"sum": x.sum(), "twice": 2 * x}, SPEC))
    total, twice = library.call(function, library.array(X))
    assert library.read(total) == 6
    np.testing.assert_array_equal(library.read(twice), 2 * X)


def test_more_than_there_is_room_for_without_the_heap(library: Library, runtime: Handle, tmp_path: Path) -> None:
    numbers = [X + i for i in range(40)]
    function = library.load(runtime, saved(tmp_path, lambda *x: [2 * one for one in x], *[SPEC] * 40))
    on_device = [library.put(runtime, library.array(one)) for one in numbers]
    for given in (on_device, list(map(library.array, numbers))):
        for one, found in zip(numbers, library.call(function, *given), strict=True):
            np.testing.assert_array_equal(library.read(found), 2 * one)


def test_handles_are_independent(library: Library, runtime: Handle, plugin: Path, tmp_path: Path) -> None:
    """What is freed early stays as long as something needs it."""
    own = library.runtime(plugin)
    function = library.load(own, saved(tmp_path, lambda x: x + 1, SPEC))
    own.free()
    (tmp_path / "f.jaxexp").unlink()
    argument = library.array(X)
    results = library.call(function, argument)
    function.free()
    argument.free()
    np.testing.assert_array_equal(library.read(results[0]), X + 1)
    library.c.jaxexp_array_free(None)


def test_vjp(library: Library, runtime: Handle, tmp_path: Path) -> None:
    function = library.load(runtime, saved(tmp_path, jnp.sin, SPEC, vjp_order=1))
    vjp = Handle(library, "function", library.checked("vjp", pointer(function)))
    function.free()
    (cotangent,) = library.call(vjp, library.array(X), library.array(np.ones(3, np.float32)))
    np.testing.assert_allclose(library.read(cotangent), np.cos(X), rtol=1e-6)
    assert library.checked("vjp", pointer(vjp)) is None


def test_vjp_of_a_function_with_integers(library: Library, runtime: Handle, tmp_path: Path) -> None:
    """Results that are integers have cotangents too, of bool."""
    specs = (SPEC, jax.ShapeDtypeStruct((), np.int32))
    path = saved(tmp_path, lambda x, n: (x.sum() * n, jnp.full(2, n)), *specs, vjp_order=1)
    function = library.load(runtime, path)
    vjp = Handle(library, "function", library.checked("vjp", pointer(function)))
    given = (X, np.int32(3), np.float32(2), np.zeros(2, bool))
    of_x, of_n = library.call(vjp, *(library.array(np.asarray(array)) for array in given))
    np.testing.assert_array_equal(library.read(of_x), [6, 6, 6])
    assert not library.read(of_n).any()


def test_errors(library: Library, runtime: Handle, tmp_path: Path) -> None:
    """Each has its reason and one sentence."""
    function = library.load(runtime, path := saved(tmp_path, lambda x: x + 1, SPEC))

    def fails(reason: Reason, message: str, call: Any, *arguments: Any) -> None:
        with pytest.raises(RunError, match=message) as error:
            call(*arguments)
        assert error.value.reason == reason
        assert "\n" not in str(error.value)

    fails(Reason.ARGUMENT, "takes 1 argument, and not 2", library.call, function, *[library.array(X)] * 2)
    wrong = (
        r"^calling <lambda>: args\[0\] must have rank 1, found rank 2 \(exported with float32\[3\], called with float"
    )
    fails(Reason.ARGUMENT, wrong, library.call, function, library.array(X[None]))
    wrong = r": args\[0\] must have dtype float32, found dtype int32 \(exported with float32\[3\], called with"
    fails(Reason.ARGUMENT, wrong, library.call, function, library.array(X.astype(np.int32)))
    fails(Reason.ARGUMENT, "no arrays of dtype 'float31'", library.array, X, "float31")
    fails(Reason.ARGUMENT, "there is no device 4", library.put, runtime, library.array(X), 4)
    fails(Reason.ARGUMENT, "different numbers below 4", library.load, runtime, path, [4])
    fails(Reason.ARGUMENT, "for 1 devices, and 2 were chosen", library.load, runtime, path, [0, 1])
    fails(Reason.ARGUMENT, "cannot be loaded", library.runtime, tmp_path / "no_plugin.so")
    fails(Reason.ARGUMENT, "no PJRT plugin", library.runtime, next(built.INSTALLED.glob("lib*/libjaxexp-c.*")))
    fails(Reason.SYSTEM, "nothing.jaxexp", library.load, runtime, tmp_path / "nothing.jaxexp")
    (tmp_path / "damaged.jaxexp").write_bytes(path.read_bytes()[:-10])
    damaged = rf"^cannot read the artifact '{tmp_path / 'damaged.jaxexp'}': at .*expected"
    fails(Reason.DAMAGED, damaged, library.load, runtime, tmp_path / "damaged.jaxexp")
    fails(Reason.ARGUMENT, "the runtime is NULL", library.load, Handle(library, "runtime", 0), path)
    many = jax.sharding.NamedSharding(jax.make_mesh((8,), ("a",)), jax.sharding.PartitionSpec("a"))
    wide = jax.ShapeDtypeStruct((8,), np.float32)
    path = saved(tmp_path, lambda x: x, wide, in_shardings=many)
    fails(
        Reason.UNSUPPORTED, "f.jaxexp: .* was exported for 8 devices, and the plugin has 4", library.load, runtime, path
    )


def test_arguments_by_path(library: Library, runtime: Handle, tmp_path: Path) -> None:
    def scaled(tree: dict[str, jax.Array], *, scale: jax.Array) -> dict[str, jax.Array]:
        return {"all": tree["x"] * scale - tree["y\n"]}

    exported = jaxexp.export(jax.jit(scaled))({"x": SPEC, "y\n": SPEC}, scale=SPEC)
    (tmp_path / "f.jaxexp").write_bytes(exported.serialize(compatibility=built.READER))
    function = library.load(runtime, tmp_path / "f.jaxexp")
    paths = library.texts("argument_path", "argument_count", function)
    assert paths == ["args[0]['x']", "args[0]['y\\n']", "kwargs['scale']"]
    assert library.texts("result_path", "result_count", function) == ["result['all']"]
    x, y, scale = paths
    listed = re.escape(", ".join(paths))
    given = {scale: library.array(2 * X), y: library.array(X), x: library.array(X + 1)}
    (found,) = library.call_by_path(function, given)
    np.testing.assert_array_equal(library.read(found), (X + 1) * 2 * X - X)
    for change, message in (
        ({x: None}, r"the argument args\[0\]\['x'\], float32\[3\], is missing"),
        ({"args[1]": library.array(X)}, rf"scaled has no argument args\[1\]; it has {listed}$"),
        ({x: None, "args[0]['z']": library.array(X)}, rf"has no argument args\[0\]\['z'\]; it has {listed}$"),
        ({x: library.array(X[:2])}, r"^calling scaled: args\[0\]\['x'\].shape\[0\] must have size 3, found size 2"),
    ):
        wrong = {path: array for path, array in {**given, **change}.items() if array is not None}
        with pytest.raises(RunError, match=message) as error:
            library.call_by_path(function, wrong)
        assert error.value.reason is Reason.ARGUMENT
    twice = (ctypes.c_char_p * 2)(x.encode(), x.encode())
    arrays = (ctypes.c_void_p * 2)(given[x].pointer, given[x].pointer)
    with pytest.raises(RunError, match=r"the argument args\[0\]\['x'\] is given twice"):
        library.checked("call_by_path", pointer(function), twice, arrays, ctypes.c_size_t(2), None)


def test_members_of_archives(library: Library, runtime: Handle, tmp_path: Path) -> None:
    """They have their weights in the archive, which stays as long as something needs it."""
    exported, given = bound()
    exported.save(tmp_path / "model.jaxexp", compatibility=built.READER, vjp_order=1)
    plain = saved(tmp_path, lambda x: x + 1, SPEC)
    file = tmp_path / "all.zip"
    with jaxexp.Archive.create(file) as archive:
        archive.add_file("nets/model", tmp_path / "model.jaxexp")
        archive.add("plain", plain.read_bytes())
    blob = in_memory(file.read_bytes())
    (tmp_path / "model.safetensors").unlink()
    expected, pullback = jax.vjp(apply, given, WEIGHTED_X)
    weights = named(given)
    x, cotangent = library.array(WEIGHTED_X), library.array(np.ones_like(expected))
    for load in (
        lambda name: library.load_with(runtime, file, member=name),
        lambda name: library.load_with(runtime, file, member=name, stable=1),
        lambda name: library.load_bytes(runtime, blob, member=name),
    ):
        (y,) = library.call(load(b"plain"), library.array(X))
        np.testing.assert_array_equal(library.read(y), X + 1)
        function = load(b"nets/model")
        assert library.texts("argument_path", "argument_count", function) == ["args[0]"]
        assert library.texts("weight_name", "weight_count", function) == sorted(weights)
        vjp = library.changed("vjp", function)
        head = Handle(library, "array", library.checked("weight", pointer(function), b"head"))
        with pytest.raises(RunError, match="has no weight 'tail': jaxexp_weight_name"):
            library.checked("weight", pointer(function), b"tail")
        close(library.read(library.call(function, x)[0]), expected)
        function.free()
        close(library.read(library.call(vjp, x, cotangent)[-1]), pullback(np.ones_like(expected))[1])
        vjp.free()
        np.testing.assert_array_equal(library.read(head), weights["head"])
        with pytest.raises(RunError, match="the archive has no member 'f'; it has 'nets/model', 'plain'") as error:
            load(b"f")
        assert error.value.reason is Reason.ARGUMENT
    with pytest.raises(RunError, match=f"{plain}: it is an artifact, which has no members: .* 'f'") as error:
        library.load_with(runtime, plain, member=b"f")
    assert error.value.reason is Reason.ARGUMENT
    (text := tmp_path / "text").write_text("no archive")
    with pytest.raises(RunError, match=f"{text}': expected .*archive") as error:
        library.load_with(runtime, text, member=b"f")
    assert error.value.reason is Reason.DAMAGED
    how = "by LoadOptions::member, in C by jaxexp_load_options.member"
    for load, message in (
        (lambda: library.load(runtime, file), f"^{file}: it is an archive: name a member {how}$"),
        (lambda: library.load_bytes(runtime, blob), f"^it is an archive: name a member {how}$"),
    ):
        with pytest.raises(RunError, match=message) as error:
            load()
        assert error.value.reason is Reason.ARGUMENT
    with pytest.raises(RunError, match=rf"{file}::plain \(name a member of an archive {how}\): No such file"):
        library.load(runtime, Path(f"{file}::plain"))


def test_files_of_other_kinds(library: Library, runtime: Handle, tmp_path: Path) -> None:
    exported, _ = bound()
    exported.save(tmp_path / "model.jaxexp", compatibility=built.READER)
    function = library.load(runtime, tmp_path / "model.jaxexp")
    what = r"model.safetensors': expected a serialized Exported, found what looks like a safetensors file, which has "
    with pytest.raises(RunError, match=what + "only weights: load the artifact that it is beside$"):
        library.load(runtime, tmp_path / "model.safetensors")
    np.save(tmp_path / "w.npy", X)
    np.savez(tmp_path / "w.npz", X)
    for file, kind in (("model.jaxexp", "an artifact"), ("w.npy", "a NumPy array"), ("w.npz", "a zip archive")):
        other = library.changed("with_weights", function, str(tmp_path / file).encode())
        message = f"{file}': expected a safetensors file, found what looks like {kind}: name the file that"
        with pytest.raises(RunError, match=message):
            library.call(other, library.array(WEIGHTED_X))


def test_functions_in_memory(library: Library, runtime: Handle, tmp_path: Path) -> None:
    """And options that are not there, or those of an older header."""
    path = saved(tmp_path, lambda x: x + 1, SPEC, vjp_order=1)
    blob = in_memory(path.read_bytes())
    older = Options.member.offset
    nothing = (pointer(runtime), blob, ctypes.c_size_t(len(blob)), None)
    for function in (
        library.load_bytes(runtime, blob),
        library.load_bytes(runtime, blob, size=older, member=b"not read"),
        library.load_with(runtime, path, size=older, member=b"not read"),
        Handle(library, "function", library.checked("load_bytes", *nothing)),
        Handle(library, "function", library.checked("load_with", pointer(runtime), str(path).encode(), None)),
    ):
        np.testing.assert_array_equal(library.read(library.call(function, library.array(X))[0]), X + 1)
        assert library.texts("weight_name", "weight_count", function) == []
    with pytest.raises(RunError) as error:
        library.load_bytes(runtime, in_memory(path.read_bytes()[:100]))
    assert error.value.reason is Reason.DAMAGED
    with pytest.raises(RunError, match="the bytes are NULL"):
        library.checked("load_bytes", pointer(runtime), None, ctypes.c_size_t(3), None)


def test_symbolic_dimensions(library: Library, runtime: Handle, tmp_path: Path) -> None:
    """They are solved from the shapes."""
    a, b = jaxexp.symbolic_shape("a, b")
    specs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((2 * a + b, 3), (a,), (a * b, 3))]
    path = saved(tmp_path, lambda x, y, z: x.sum() + y.sum() + z.sum(), *specs)
    function = library.load(runtime, path)

    def message(*shapes: tuple[int, ...]) -> str:
        with pytest.raises(RunError) as error:
            library.call(function, *(library.array(np.zeros(shape, np.float32)) for shape in shapes))
        return str(error.value)

    ones = [library.array(np.ones(shape, np.float32)) for shape in ((7, 3), (2,), (6, 3))]
    assert library.read(library.call(function, *ones)[0]) == 41
    expected = "args[2].shape[0] must have size a*b, found size 7, where a = 2, b = 3"
    assert expected in message((7, 3), (2,), (7, 3))
    assert "dimension variable 'b' -1, which has to be at least 1" in message((3, 3), (2,), (6, 3))
    assert "args[0].shape[1] must have size 3, found size 4 (exported with float32[b + 2*a,3], called" in message(
        (7, 4), (2,), (6, 3)
    )


def test_compiling_for_sizes(library: Library, runtime: Handle, tmp_path: Path) -> None:
    a, b = jaxexp.symbolic_shape("a, b")
    function = library.load(runtime, saved(tmp_path, lambda x: x + 1, jax.ShapeDtypeStruct((a, b), np.float32)))
    lines: list[bytes] = []
    log = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)(lambda _, line: lines.append(line))

    def compile_for(**sizes: int) -> None:
        names = (ctypes.c_char_p * len(sizes))(*(name.encode() for name in sizes))
        numbers = (ctypes.c_int64 * len(sizes))(*sizes.values())
        library.checked("compile_sizes", pointer(function), names, numbers, ctypes.c_size_t(len(sizes)))

    library.checked("set_log", pointer(runtime), log, None)
    compile_for(b=3, a=2)
    library.call(function, library.array(np.zeros((2, 3), np.float32)))
    library.checked("set_log", pointer(runtime), None, None)
    assert len(lines) == 1 and b" for a=2,b=3: compiled in " in lines[0]
    sizes = "is compiled for sizes of at least 1 of a, b, and not for"
    for given, found in (({"a": 2}, "a=2"), ({"a": 0, "b": 1}, "a=0,b=1"), ({"a": 2, "c": 3}, "a=2,c=3"), ({}, "none")):
        with pytest.raises(RunError, match=f"{sizes} {found}$") as error:
            compile_for(**given)
        assert error.value.reason is Reason.ARGUMENT
    with pytest.raises(RunError, match="the variables or their sizes are NULL"):
        library.checked("compile_sizes", pointer(function), None, None, ctypes.c_size_t(1))


def test_donation(library: Library, runtime: Handle, tmp_path: Path) -> None:
    """As in JAX: the memory of a device array is reused; that of the host never is."""
    function = library.load(runtime, saved(tmp_path, lambda x: x + 1, SPEC, donate_argnums=0))
    numbers = library.array(X)
    there = library.put(runtime, numbers)
    (once,) = library.call(function, there)
    with pytest.raises(RunError, match=r"args\[0\] is gone: an earlier call donated its memory"):
        library.call(function, there)
    (twice,) = library.call(function, once)
    np.testing.assert_array_equal(library.read(twice), X + 2)
    for _ in range(3):
        np.testing.assert_array_equal(library.read(library.call(function, numbers)[0]), X + 1)


def test_other_devices(library: Library, runtime: Handle, tmp_path: Path) -> None:
    """A function runs where it was loaded; arrays that lie elsewhere are copied."""
    path = saved(tmp_path, lambda x: x + 1, SPEC)
    on_three, on_one = library.load(runtime, path, [3]), library.load(runtime, path, [1])
    (result,) = library.call(on_one, library.call(on_three, library.put(runtime, library.array(X), 2))[0])
    np.testing.assert_array_equal(library.read(result), X + 2)


def test_divided_arrays_are_passed_on(library: Library, runtime: Handle, tmp_path: Path) -> None:
    """Between functions that divide them alike, and otherwise."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def sharding(*spec: Any) -> Any:
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))

    spec = jax.ShapeDtypeStruct((4, 6), np.float32)
    rows = saved(tmp_path, lambda x: 2 * x, spec, in_shardings=sharding("a"), out_shardings=sharding("a", "b"))
    first = library.load(runtime, rows)
    tiles = saved(tmp_path, lambda x: x + 1, spec, in_shardings=sharding("b", "a"), out_shardings=sharding(("b", "a")))
    second = library.load(runtime, tiles)
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    (y,) = library.call(first, library.array(x))
    np.testing.assert_array_equal(library.read(y), 2 * x)
    (z,) = library.call(second, y)
    np.testing.assert_array_equal(library.read(z), 2 * x + 1)
    odd = saved(tmp_path, lambda x: x, jax.ShapeDtypeStruct((4, 6), np.float32), in_shardings=sharding(None, "a"))
    np.testing.assert_array_equal(library.read(library.call(library.load(runtime, odd), z)[0]), 2 * x + 1)


def test_threads(library: Library, runtime: Handle, tmp_path: Path) -> None:
    """The first call of all compiles; ctypes leaves the threads alone."""
    function = library.load(runtime, saved(tmp_path, lambda x: jnp.cumsum(x) * x, SPEC))
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            for i in range(100):
                x = X * number + i
                (result,) = library.call(function, library.array(x))
                if not np.allclose(library.read(result), np.cumsum(x) * x):
                    wrong.append((number, i))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_does_not_grow(library: Library, runtime: Handle, tmp_path: Path) -> None:
    """Over 100,000 calls whose results are the next arguments, and calls that fail."""
    function = library.load(runtime, saved(tmp_path, lambda x: x + 1, SPEC))
    wrong = library.array(X[:2])
    x = library.array(np.zeros(3, np.float32))

    def calls(count: int) -> None:
        nonlocal x
        for i in range(count):
            (x,) = library.call(function, x)
            if i % 100 == 0:
                with pytest.raises(RunError):
                    library.call(function, wrong)
                library.read(x)

    calls(5_000)
    before = resident()
    calls(100_000)
    assert resident() - before < 8 << 20
    np.testing.assert_array_equal(library.read(x), np.full(3, 105_000, np.float32))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="asks Linux for the peak of memory")
@pytest.mark.parametrize("donated", [True, False])
def test_weights_in_a_loop(donated: bool, library: Library, runtime: Handle, tmp_path: Path) -> None:
    """A step whose result is its next argument: the array is in memory once where it is donated, twice where not."""
    size = 64 << 20
    spec = jax.ShapeDtypeStruct((size // 4,), np.float32)
    options = {"donate_argnums": 0} if donated else {}
    function = library.load(runtime, saved(tmp_path, lambda w: w + 1, spec, **options))
    library.checked("compile", pointer(function))
    before = resident()
    weights = library.put(runtime, library.array(np.zeros(size // 4, np.float32)))
    for i in range(20):
        (weights,) = library.call(function, weights)
        library.checked("array_wait", pointer(weights))
        if i == 2:  # JAX's way, too: what came from the host is not written to
            Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    assert (peak() - before < 3 * size // 2) == donated
    np.testing.assert_array_equal(library.read(weights)[::1000], 20)


def peak() -> int:
    (line,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) << 10


def resident() -> int:
    if not Path("/proc/self/statm").exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("nm") is None, reason="needs nm for ELF")
def test_the_library_exports_its_header_and_nothing_else(installed: Path) -> None:
    library = next(installed.glob("lib*/libjaxexp-c.so"))
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    found = {line.split()[2] for line in symbols.splitlines()}
    assert found == declared(installed / "include" / "jaxexp" / "run.h")
