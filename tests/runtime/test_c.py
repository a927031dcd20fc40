"""jaxexp/run.h: values, errors, arrays, donation, devices, memory, ordered effects and handlers of custom calls."""

from __future__ import annotations

import concurrent.futures
import ctypes
import dataclasses
import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxexp
from kit import runtime as built
from kit.archive_files import make
from kit.corpus import CASES, FirstOrderedEffect, export_with, mesh
from kit.places import GOLDEN, ROOT
from kit.run_c import Handle, Library, Options, Reason, RunError, declared, pointer, size
from kit.runtime_values import flat_arguments, flat_results
from kit.saved import saved
from kit.weighted import X as WEIGHTED_X
from kit.weighted import apply, bound, close, named

pytestmark = pytest.mark.cpp

SPEC = jax.ShapeDtypeStruct((3,), np.float32)
X = np.array([1, 2, 3], np.float32)
READER = {"reader": built.READER}


def in_memory(blob: bytes) -> Any:
    return ctypes.create_string_buffer(blob, len(blob))


def test_a_call(library: Library, runtime: Handle, plugin: Path, tmp_path: Path) -> None:
    """Of more than there is room for without the heap; and what is freed early stays as long as something needs it."""
    numbers = [X + i for i in range(40)]
    path = saved(tmp_path, lambda *x: {"sum": x[0].sum(), "twice": [2 * one for one in x]}, *[SPEC] * 40, **READER)
    own = library.runtime(plugin)
    function = library.load(own, path)
    own.free()
    path.unlink()
    on_device = [library.put(runtime, library.array(one)) for one in numbers]
    for given in (on_device, list(map(library.array, numbers))):
        total, *twice = library.call(function, *given)
        assert library.read(total) == 6
        for argument in given:
            argument.free()
        for one, found in zip(numbers, twice, strict=True):
            np.testing.assert_array_equal(library.read(found), 2 * one)
    results = library.call(function, *map(library.array, numbers))
    function.free()
    assert library.read(results[0]) == 6
    library.c.jaxexp_array_free(None)


def test_errors(library: Library, runtime: Handle, tmp_path: Path) -> None:
    """Each has its reason and one sentence."""
    function = library.load(runtime, path := saved(tmp_path, lambda x: x + 1, SPEC, **READER))
    (damaged := tmp_path / "damaged.jaxexp").write_bytes(path.read_bytes()[:-10])
    many = NamedSharding(mesh((8,), ("a",)), PartitionSpec("a"))
    of_many = jax.jit(lambda x: x, in_shardings=many)
    eight = saved(tmp_path / "many.jaxexp", of_many, jax.ShapeDtypeStruct((8,), np.float32), **READER)
    called, load = functools.partial(library.call, function), functools.partial(library.load, runtime)
    rank = r"^calling <lambda>: args\[0\] must have rank 1, found rank 2 \(exported with float32\[3\], called"
    dtype = r": args\[0\] must have dtype float32, found dtype int32 \(exported with float32\[3\], called with"
    c_library = next(built.INSTALLED.glob("lib*/libjaxexp-c.*"))
    for call, reason, message in (
        (lambda: called(*[library.array(X)] * 2), Reason.ARGUMENT, "takes 1 argument, and not 2"),
        (lambda: called(library.array(X[None])), Reason.ARGUMENT, rank),
        (lambda: called(library.array(X.astype(np.int32))), Reason.ARGUMENT, dtype),
        (lambda: library.array(X, "float31"), Reason.ARGUMENT, "no arrays of dtype 'float31'"),
        (lambda: library.put(runtime, library.array(X), 4), Reason.ARGUMENT, "there is no device 4"),
        (lambda: load(path, [4]), Reason.ARGUMENT, "different numbers below 4"),
        (lambda: load(path, [0, 1]), Reason.ARGUMENT, "for 1 devices, and 2 were chosen"),
        (lambda: library.runtime(tmp_path / "no_plugin.so"), Reason.ARGUMENT, "cannot be loaded"),
        (lambda: library.runtime(c_library), Reason.ARGUMENT, "is not a PJRT plugin"),
        (lambda: load(tmp_path / "nothing.jaxexp"), Reason.SYSTEM, "nothing.jaxexp"),
        (lambda: load(damaged), Reason.DAMAGED, rf"^cannot read the artifact '{damaged}': at .*expected"),
        (lambda: library.load(Handle(library, "runtime", 0), path), Reason.ARGUMENT, "the runtime is NULL"),
        (lambda: load(eight), Reason.UNSUPPORTED, "many.jaxexp: .* was exported for 8 devices, and the plugin has 4"),
        (lambda: library.checked("array_from_dlpack", None), Reason.ARGUMENT, "the DLPack tensor is null"),
    ):
        with pytest.raises(RunError, match=message) as error:
            call()
        assert error.value.reason == reason
        assert "\n" not in str(error.value)


def test_arguments_by_path(library: Library, runtime: Handle, tmp_path: Path) -> None:
    def scaled(tree: dict[str, jax.Array], *, scale: jax.Array) -> dict[str, jax.Array]:
        return {"all": tree["x"] * scale - tree["y\n"]}

    function = library.load(runtime, saved(tmp_path, scaled, {"x": SPEC, "y\n": SPEC}, scale=SPEC, **READER))
    paths = library.texts("argument_path", "argument_count", function)
    assert paths == ["args[0]['x']", "args[0]['y\\n']", "kwargs['scale']"]
    assert library.texts("result_path", "result_count", function) == ["result['all']"]
    x, y, scale = paths
    given = {scale: library.array(2 * X), y: library.array(X), x: library.array(X + 1)}
    (found,) = library.call_by_path(function, given)
    np.testing.assert_array_equal(library.read(found), (X + 1) * 2 * X - X)
    with pytest.raises(RunError, match=r"scaled has no argument args\[1\]; it has args\[0\]\['x'\], "):
        library.call_by_path(function, {**given, "args[1]": given[x]})
    del given[scale]
    with pytest.raises(RunError, match=r"the argument kwargs\['scale'\], float32\[3\], is missing"):
        library.call_by_path(function, given)
    twice, arrays = (ctypes.c_char_p * 2)(*[x.encode()] * 2), (ctypes.c_void_p * 2)(*[given[x].pointer] * 2)
    with pytest.raises(RunError, match=r"the argument args\[0\]\['x'\] is given twice"):
        library.checked("call_by_path", pointer(function), twice, arrays, ctypes.c_size_t(2), None)


def test_members_of_archives(library: Library, runtime: Handle, tmp_path: Path) -> None:
    """They have their weights in the archive, which stays as long as something needs it."""
    exported, given = bound()
    exported.save(tmp_path / "model.jaxexp", compatibility=built.READER, vjp_order=1)
    plain = saved(tmp_path, lambda x: x + 1, SPEC, **READER)
    file = make(tmp_path / "all.zip", {"nets/model": tmp_path / "model.jaxexp", "plain": plain})
    blob = in_memory(file.read_bytes())
    (tmp_path / "model.safetensors").unlink()
    expected, pullback = jax.vjp(apply, given, WEIGHTED_X)
    weights, x, cotangent = named(given), library.array(WEIGHTED_X), library.array(np.ones_like(expected))
    for load in (
        lambda name: library.load_with(runtime, file, member=name),
        lambda name: library.load_with(runtime, file, member=name, stable=1),
        lambda name: library.load_bytes(runtime, blob, member=name),
    ):
        np.testing.assert_array_equal(library.read(library.call(load(b"plain"), library.array(X))[0]), X + 1)
        function = load(b"nets/model")
        assert library.texts("argument_path", "argument_count", function) == ["args[0]"]
        assert library.texts("weight_name", "weight_count", function) == sorted(weights)
        vjp, unbound = (library.changed(how, function) for how in ("vjp", "unbound"))
        assert library.c.jaxexp_argument_count(pointer(unbound)) == 1 + len(weights)
        assert library.checked("vjp", pointer(vjp)) is None
        head = Handle(library, "array", library.checked("weight", pointer(function), b"head"))
        with pytest.raises(RunError, match="has no weight 'tail': jaxexp_weight_name"):
            library.checked("weight", pointer(function), b"tail")
        close(library.read(library.call(function, x)[0]), expected)
        function.free()
        close(library.read(library.call(vjp, x, cotangent)[-1]), pullback(np.ones_like(expected))[1])
        vjp.free()
        np.testing.assert_array_equal(library.read(head), weights["head"])
        with pytest.raises(RunError, match="the archive has no member 'f'; it has 'nets/model', 'plain'"):
            load(b"f")
    (text := tmp_path / "text").write_text("no archive")
    how = "by LoadOptions::member, in C by jaxexp_load_options.member"
    for wrong, message in (
        (lambda: library.load_with(runtime, plain, member=b"f"), f"{plain}: it is an artifact, which has no members"),
        (lambda: library.load_with(runtime, text, member=b"f"), f"{text}': expected .*archive"),
        (lambda: library.load(runtime, file), f"^{file}: it is an archive: name a member {how}$"),
        (lambda: library.load_bytes(runtime, blob), f"^it is an archive: name a member {how}$"),
        (
            lambda: library.load(runtime, Path(f"{file}::plain")),
            rf"{file}::plain \(name a member of an archive {how}\): No such file",
        ),
    ):
        with pytest.raises(RunError, match=message):
            wrong()


def test_functions_in_memory(library: Library, runtime: Handle, tmp_path: Path) -> None:
    """And options that are not there, or those of an older header."""
    path = saved(tmp_path, lambda x: x + 1, SPEC, vjp_order=1, **READER)
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


def test_compiling_for_sizes(library: Library, runtime: Handle, tmp_path: Path) -> None:
    a, b = jaxexp.symbolic_shape("a, b")
    function = library.load(
        runtime, saved(tmp_path, lambda x: x + 1, jax.ShapeDtypeStruct((a, b), np.float32), **READER)
    )

    def compile_for(**sizes: int) -> None:
        names = (ctypes.c_char_p * len(sizes))(*(name.encode() for name in sizes))
        numbers = (ctypes.c_int64 * len(sizes))(*sizes.values())
        library.checked("compile_sizes", pointer(function), names, numbers, ctypes.c_size_t(len(sizes)))

    lines = logged(library, runtime)
    compile_for(b=3, a=2)
    library.call(function, library.array(np.zeros((2, 3), np.float32)))
    library.checked("set_log", pointer(runtime), None, None)
    assert len(lines) == 2 and b" for a=2,b=3: compiled in " in lines[0]
    sizes = "takes a size of at least 1 for each of a, b, found"
    for given, found in (
        ({"a": 2}, "a=2"),
        ({"a": 0, "b": 1}, "a=0,b=1"),
        ({"a": 2, "c": 3}, "a=2,c=3"),
        ({}, "no sizes"),
    ):
        with pytest.raises(RunError, match=f"{sizes} {found}$") as error:
            compile_for(**given)
        assert error.value.reason is Reason.ARGUMENT
    with pytest.raises(RunError, match="the variables or their sizes are NULL"):
        library.checked("compile_sizes", pointer(function), None, None, ctypes.c_size_t(1))


def counted(x: Any) -> Any:
    """Loops that end whatever the numbers are."""
    x = jax.lax.fori_loop(0, 3, lambda i, x: jax.lax.scan(lambda c, y: (c + y, c), 0.0, x)[1], x)
    return jax.lax.map(jnp.sin, x)


TRIED: dict[str, tuple[Any, bytes]] = {
    "one size": (lambda x: x + 1, b"called once with zeros"),
    "loops that count": (counted, b"called once with zeros"),
    "a loop that never ends for zeros": (
        lambda x: jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: 2 * x, x), b"not called with zeros: it may"
    ),
    "a loop to a number": (
        lambda x: jax.lax.fori_loop(0, x[0].astype(int), lambda _, x: 2 * x, x), b"not called with zeros: it may"
    ),
    "a loop that may take other steps": (
        lambda x: jax.lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] + c[1][0].astype(int), 2 * c[1]), (0, x))[1],
        b"not called with zeros: it may",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRIED)
def test_compiling_calls_once(name: str, library: Library, runtime: Handle, tmp_path: Path) -> None:
    function, said = TRIED[name]
    (b,) = jaxexp.symbolic_shape("b")
    sizes = (ctypes.c_char_p * 2)(b"b=2", b"b=3")
    address = {"sizes": ctypes.cast(sizes, ctypes.c_void_p), "size_count": 2}
    open_, fixed = (saved(tmp_path / str(size), function, jax.ShapeDtypeStruct((size,), np.float32), **READER)
                    for size in (b, 3))  # fmt: skip
    for path, options, count in ((fixed, {}, 1), (open_, address, 2), (fixed, {"no_warm_up": 1}, 1)):
        lines = logged(library, runtime)
        loaded = library.load_with(runtime, path, **options)
        library.checked("compile", pointer(loaded))
        expected = [b": compiled in "] * count
        if path == open_ and name == "loops that count":  # to numbers that the call says
            expected += [b"not called with zeros: it may"]
        elif "no_warm_up" not in options:
            expected += [said] * (count if said.startswith(b"called") else 1)
        assert len(lines) == len(expected), lines
        assert all(part in line for part, line in zip(expected, lines, strict=True)), lines
    library.checked("set_log", pointer(runtime), None, None)


def test_compiling_calls_nothing_that_has_effects(library: Library, runtime: Handle, tmp_path: Path) -> None:
    """Weights that are missing are an error at once."""
    exported = export_with(jaxexp, CASES["several_effects"].build())
    exported.save(tmp_path / "effects.jaxexp", compatibility=built.READER)
    weights = {"a": np.ones(3, np.float32)}
    exported = jaxexp.export(jax.jit(lambda w, x: w["a"] * x))(weights, SPEC)
    exported.bind(weights).save(tmp_path / "bound.jaxexp", compatibility=built.READER)
    for gone in tmp_path.glob("*.safetensors"):
        gone.unlink()
    lines = logged(library, runtime)
    effects, bound = (library.load(runtime, tmp_path / f"{name}.jaxexp") for name in ("effects", "bound"))
    library.checked("compile", pointer(effects))
    assert b": not called with zeros: it may" in lines[-1]
    with pytest.raises(RunError, match=r"bound\.safetensors': expected a file that 'bound\.jaxexp' names, found none"):
        library.checked("compile", pointer(bound))
    library.checked("set_log", pointer(runtime), None, None)


@pytest.mark.parametrize("device", [0, 3])
def test_donation(device: int, library: Library, runtime: Handle, tmp_path: Path) -> None:
    """As in JAX: the memory of a device array is reused; that of the host never is, nor that of another device."""
    path = saved(tmp_path, jax.jit(lambda x: x + 1, donate_argnums=0), SPEC, **READER)
    function, numbers = library.load(runtime, path, [device]), library.array(X)
    there, elsewhere = library.put(runtime, numbers, device), library.put(runtime, numbers, 2)
    (once,) = library.call(function, there)
    with pytest.raises(RunError, match=r"args\[0\] is gone: an earlier call donated its memory"):
        library.call(function, there)
    (twice,) = library.call(function, once)
    np.testing.assert_array_equal(library.read(twice), X + 2)
    for _ in range(2):
        for given in (numbers, elsewhere):
            np.testing.assert_array_equal(library.read(library.call(function, given)[0]), X + 1)


def test_divided_arrays_are_passed_on(library: Library, runtime: Handle, tmp_path: Path) -> None:
    """Between functions that divide them alike, and otherwise."""
    devices = mesh((2, 2), ("a", "b"))

    def load(function: Any, *specs: Any) -> Handle:
        """Each dimension of the argument, and then of the result, by these axes."""
        given, found = (NamedSharding(devices, PartitionSpec(*spec)) for spec in specs)
        jitted = jax.jit(function, in_shardings=given, out_shardings=found)
        return library.load(runtime, saved(tmp_path, jitted, jax.ShapeDtypeStruct((4, 6), np.float32), **READER))

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    (y,) = library.call(load(lambda x: 2 * x, ("a",), ("a", "b")), library.array(x))
    np.testing.assert_array_equal(library.read(y), 2 * x)
    (z,) = library.call(load(lambda x: x + 1, ("b", "a"), (("b", "a"),)), y)
    np.testing.assert_array_equal(library.read(z), 2 * x + 1)
    (odd,) = library.call(load(lambda x: x, (None, "a"), ()), z)
    np.testing.assert_array_equal(library.read(odd), 2 * x + 1)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="asks Linux for the peak of memory")
@pytest.mark.parametrize("donated", [True, False])
def test_memory_in_a_loop(donated: bool, library: Library, runtime: Handle, tmp_path: Path) -> None:
    """A step whose result is its next argument: the array is in memory once where it is donated, twice where not; and
    what a call takes does not stay.
    """

    def memory(name: str) -> int:
        (kib,) = re.findall(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())
        return int(kib) << 10

    size = 64 << 20
    step = jax.jit(lambda w: w + 1, donate_argnums=(0,) if donated else ())
    large, small = (
        library.load_with(
            runtime,
            saved(tmp_path / str(count), step, jax.ShapeDtypeStruct((count,), np.float32), **READER),
            no_warm_up=1,
        )
        for count in (size // 4, 3)
    )
    library.checked("compile", pointer(large))
    before = memory("VmRSS")
    weights = library.put(runtime, library.array(np.zeros(size // 4, np.float32)))
    for i in range(20):
        (weights,) = library.call(large, weights)
        library.checked("array_wait", pointer(weights))
        if i == 2:  # JAX's way, too: what came from the host is not written to
            Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    assert (memory("VmHWM") - before < 3 * size // 2) == donated
    np.testing.assert_array_equal(library.read(weights)[::1000], 20)
    x, wrong = library.array(np.zeros(3, np.float32)), library.array(X[:2])
    for i in range(12_000):
        if i == 2_000:
            before = memory("VmRSS")
        (x,) = library.call(small, x)
        if i % 100 == 0:
            library.read(x)
            with pytest.raises(RunError):
                library.call(small, wrong)
    assert memory("VmRSS") - before < 4 << 20
    np.testing.assert_array_equal(library.read(x), np.full(3, 12_000, np.float32))


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("nm") is None, reason="needs nm for ELF")
def test_the_library_exports_its_header_and_nothing_else(installed: Path) -> None:
    library = next(installed.glob("lib*/libjaxexp-c.so"))
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    found = {line.split()[2] for line in symbols.splitlines()}
    assert found == declared(installed / "include" / "jaxexp" / "run.h")


# --- arrays ---------------------------------------------------------------------------------------------------------


def logged(library: Library, runtime: Handle) -> list[bytes]:
    """The lines that a runtime logs from now on."""
    lines: list[bytes] = []
    log = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)(lambda _, line: lines.append(line))
    runtime.log = log  # type: ignore[attr-defined]
    library.checked("set_log", pointer(runtime), log, None)
    return lines


def test_arrays_of_cpp(installed: Path, plugin: Path, tmp_path: Path) -> None:
    """tests/cpp/arrays.cpp says what holds."""
    divided = NamedSharding(mesh((4,), ("a",)), PartitionSpec("a"))
    functions = {
        "add": (jax.jit(lambda x: x + 1, donate_argnums=0), 3),
        "divided": (jax.jit(lambda x: 2 * x, in_shardings=divided, out_shardings=divided), 8),
        "slow": (lambda x: jax.lax.fori_loop(0, 4, lambda _, y: jnp.tanh(y @ x), x), 300, 300),
        "int4": (lambda x: x.astype(jnp.int4), 5),
    }
    files = [
        saved(tmp_path / name, function, jax.ShapeDtypeStruct(shape, np.float32), **READER)
        for name, (function, *shape) in functions.items()
    ]
    command = [built.program("arrays", tmp_path), plugin, *files, tmp_path / "executables"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "all alike\n"), done.stderr


@pytest.fixture
def result(library: Library, runtime: Handle, tmp_path: Path) -> Handle:
    """X + 1, on a device."""
    function = library.load(runtime, saved(tmp_path, lambda x: x + 1, SPEC, **READER))
    return library.call(function, library.array(X))[0]


def test_a_pointer_and_a_callback(library: Library, result: Handle) -> None:
    data = library.checked("array_data", pointer(result))
    assert data == library.checked("array_data", pointer(result))
    assert [*ctypes.cast(data, ctypes.POINTER(ctypes.c_float * 3)).contents] == [2, 3, 4]
    assert library.checked("array_is_ready", pointer(result)) == 1
    with pytest.raises(RunError, match="the array is NULL"):
        library.checked("array_data", None)
    called: list[tuple[int, bytes | None]] = []
    done = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)(lambda *arguments: called.append(arguments))
    library.checked("array_wait", pointer(result))
    library.checked("array_on_ready", pointer(result), done, ctypes.c_void_p(7))
    while not called:
        pass
    assert called == [(7, None)]
    with pytest.raises(RunError, match="the callback is NULL"):
        library.checked("array_on_ready", pointer(result), None, None)


def test_times_and_room_for_results(library: Library, runtime: Handle, tmp_path: Path) -> None:
    function = library.load(runtime, saved(tmp_path, lambda x: (x + 1, x.sum()), SPEC, **READER))
    x = library.array(X)
    given, found, times = (ctypes.c_void_p * 1)(x.pointer), (ctypes.c_void_p * 2)(), (ctypes.c_int64 * 3)()
    library.checked("call_timed", pointer(function), given, size(1), found, times)
    assert min(times) > 0
    assert [library.read(Handle(library, "array", array)).tolist() for array in found] == [[2, 3, 4], 6]
    room = np.zeros(4, np.float32)
    targets = (ctypes.c_void_p * 2)(room[1:].ctypes.data, room.ctypes.data)
    library.checked("call_into", pointer(function), given, size(1), targets, (ctypes.c_size_t * 2)(12, 4))
    np.testing.assert_array_equal(room, [6, 2, 3, 4])
    with pytest.raises(RunError, match=r"result 1, float32\[\], takes 4 bytes, and there is room for 8"):
        library.checked("call_into", pointer(function), given, size(1), targets, (ctypes.c_size_t * 2)(12, 8))


def test_options_devices_and_a_log_in_c(library: Library, plugin: Path, tmp_path: Path) -> None:
    own = library.runtime(plugin, cpu_device_count=2)
    lines = logged(library, own)
    assert [library.c.jaxexp_device_kind(pointer(own), size(i)) for i in range(3)] == [b"cpu", b"cpu", None]
    assert [library.c.jaxexp_device_id(pointer(own), size(i)) for i in range(3)] == [0, 1, -1]
    assert library.c.jaxexp_device_description(pointer(own), size(0))
    assert library.c.jaxexp_device_memory_limit(pointer(own), size(2)) == -1
    path = saved(tmp_path, lambda x: x + 1, SPEC, **READER)

    def load(name: bytes, path: Path = path) -> Handle:
        options = (ctypes.c_char_p * 2)(name, b"true")
        address = ctypes.cast(options, ctypes.c_void_p)
        return library.load_with(own, path, compile_options=address, compile_option_count=1)

    function = load(b"xla_cpu_enable_fast_math")
    np.testing.assert_array_equal(library.read(library.call(function, library.array(X))[0]), X + 1)
    assert len(lines) == 1 and b": compiled in " in lines[0]
    # Not that the module is newer than the plugin, which it is, and which is not why.
    newer = saved(tmp_path / "newer.jaxexp", lambda x: x + 1, SPEC)
    for file in (path, newer):
        refused = load(b"xla_no_such_option", file)
        with pytest.raises(
            RunError, match=r"does not take the compile option xla_no_such_option \(.*: leave it"
        ) as error:
            library.call(refused, library.array(X))
        assert error.value.reason is Reason.ARGUMENT
    library.checked("set_log", pointer(own), None, None)


class Tensor:
    """What NumPy takes by DLPack, which calls the deleter."""

    def __init__(self, library: Library, array: Handle, kind: str) -> None:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        self.capsule = new(library.checked(f"array_to_{kind}", pointer(array)), CAPSULES[kind], None)

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


CAPSULES = {"dlpack": b"dltensor_versioned", "unversioned_dlpack": b"dltensor"}


@pytest.mark.parametrize("kind", CAPSULES)
def test_tensors_of_dlpack_are_used_where_they_are(
    library: Library, runtime: Handle, result: Handle, kind: str
) -> None:
    data = library.checked("array_data", pointer(result))
    found = np.from_dlpack(Tensor(library, result, kind))
    result.free()
    np.testing.assert_array_equal(found, X + 1)
    assert found.ctypes.data == data
    assert found.flags.writeable is False
    for name, arguments in ((f"array_from_{kind}", ()), (f"from_{kind}", (pointer(runtime),))):
        numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
        capsule = numbers.__dlpack__(max_version=(1, 0) if kind == "dlpack" else None)
        of = ctypes.pythonapi.PyCapsule_GetPointer
        of.restype, of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        tensor = ctypes.c_void_p(of(capsule, CAPSULES[kind]))
        array = Handle(library, "array", library.checked(name, *arguments, tensor))
        ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), used := b"used_" + CAPSULES[kind])
        assert library.checked("array_data", pointer(array)) == numbers.ctypes.data, used
        np.testing.assert_array_equal(library.read(array), numbers)


# --- ordered effects ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["several_effects", "effects_and_symbolic_shapes"])
def test_results_are_there_when_a_call_returns(name: str, library: Library, runtime: Handle, tmp_path: Path) -> None:
    """The effects have happened, and no two calls are under way at once."""
    program = CASES[name].build()
    exported = export_with(jaxexp, program)
    exported.save(tmp_path / "f.jaxexp", compatibility=built.READER)
    function = library.load(runtime, tmp_path / "f.jaxexp")
    expected = flat_results(exported, program.live(*program.args, **program.kwargs))

    def call(_: int) -> list[Any]:
        given = [library.array(x) for x in flat_arguments(exported, program.args, program.kwargs)]
        results = library.call(function, *given)
        assert all(library.c.jaxexp_array_is_ready(pointer(result)) for result in results)
        return [library.read(result) for result in results]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(call, range(20)):
            np.testing.assert_array_equal(found, expected)


def test_conventions_without_tokens_are_refused(library: Library, runtime: Handle, tmp_path: Path) -> None:
    exported = jaxexp.load(GOLDEN / "conventions" / "jax-0.4.23" / "dropped_8.bin")
    effectful = dataclasses.replace(exported, ordered_effects=(FirstOrderedEffect(),))
    (tmp_path / "f.jaxexp").write_bytes(effectful.serialize(compatibility=built.READER))
    message = (
        r"has ordered effects \(.*FirstOrderedEffect.*\), and its main function takes 0 tokens and returns 0 for 1"
    )
    with pytest.raises(RunError, match=message) as refused:
        library.load(runtime, tmp_path / "f.jaxexp")
    assert refused.value.reason == Reason.UNSUPPORTED


# --- handlers of custom calls ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def handlers(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    file = tmp_path_factory.mktemp("handlers") / "handlers.so"
    source, headers = ROOT / "tests" / "cpp" / "ffi_handlers.c", ROOT / "cpp" / "third_party"
    subprocess.run([compiler, "-shared", "-fPIC", f"-I{headers}", source, "-o", file], check=True)
    return ctypes.CDLL(str(file))


def register(library: Library, runtime: Handle, target: str, handler: Any) -> None:
    address = ctypes.cast(handler, ctypes.c_void_p)
    library.checked("register_ffi", pointer(runtime), target.encode(), address)


def test_a_handler_runs(library: Library, runtime: Handle, handlers: ctypes.CDLL, call: Any, tmp_path: Path) -> None:
    for target in ("jaxexp_twice", 'jaxexp "twice" \\ é'):  # a name may have any characters
        calls = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(X.shape, X.dtype))
        allowed = [jaxexp.DisabledSafetyCheck.custom_call(target)]
        jitted = jax.jit(lambda x: calls(x) + 1)  # noqa: B023
        exported = jaxexp.export(jitted, platforms=["cpu"], disabled_checks=allowed)(X)
        exported.save(tmp_path / "f.jaxexp", compatibility=built.READER)
        function = library.load(runtime, tmp_path / "f.jaxexp")
        lacks = r"that the plugin does not compile: .* gives the plugin handlers .* by register_ffi"
        with pytest.raises(RunError, match=lacks):
            call(function, X)
        register(library, runtime, target, handlers.twice)
        register(library, runtime, target, handlers.twice)  # again, which changes nothing
        np.testing.assert_array_equal(call(function, X)[0], 2 * X + 1)
        with pytest.raises(RunError, match="has another handler already") as raised:
            register(library, runtime, target, handlers.of_another_version)
        assert raised.value.reason == Reason.ARGUMENT


def test_handlers_that_are_refused(library: Library, runtime: Handle, handlers: ctypes.CDLL) -> None:
    """Plugins take a handler that is built for a newer version of XLA's FFI, and miss it when they compile. Then the
    name is free for another one."""
    for _ in range(2):
        with pytest.raises(RunError, match=r"newer version of XLA's FFI than the plugin .* a jaxlib that is not newer"):
            register(library, runtime, "jaxexp_other", handlers.of_another_version)
    register(library, runtime, "jaxexp_other", handlers.twice)
    for name, handler in (("", handlers.twice), ("jaxexp_none", None)):
        with pytest.raises(RunError, match="a custom call has a name, and a handler"):
            register(library, runtime, name, handler)
