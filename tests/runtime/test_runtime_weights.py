"""Weights beside an artifact, or in its archive, as the C++ runtime finds them: values, memory, and what is refused."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import jaxexp
from jaxexp._errors import WeightsError
from jaxexp._weights.files import reading
from kit import runtime as built
from kit.corpus import mesh
from kit.places import TESTS
from kit.run_c import Handle, Library, Reason, RunError, pointer
from kit.safetensors_files import NO_PLAIN_NAMES, WRONG
from kit.weighted import X, apply, bound, close, named, params
from tools import tensors_fuzz

pytestmark = [pytest.mark.cpp, pytest.mark.usefixtures("plugin")]

Call = Callable[..., list[np.ndarray]]


def saved(exported: Any, path: Path, **options: Any) -> Path:
    exported.save(path, compatibility=built.READER, **options)
    return path


def save_weights(tree: Any, path: Path) -> bytes:
    """A file of these weights, and its name as C takes it."""
    safetensors.numpy.save_file({name: np.asarray(array) for name, array in named(tree).items()}, path)
    return os.fsencode(path)


def flat(cotangents: tuple[dict[str, Any], Any]) -> list[Any]:
    of_weights, of_x = cotangents
    return [*(array for _, array in sorted(named(of_weights).items())), of_x]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(bound()[0], tmp_path / "model.jaxexp", vjp_order=2)


def result(artifact: Path, *more: object) -> np.ndarray:
    """Of jaxexp-run."""
    np.save(artifact.parent / "x.npy", X)
    done = built.run(artifact, artifact.parent / "x.npy", "--out", artifact.parent / "y.npy", *more)
    assert done.returncode == 0, done.stderr
    return np.load(artifact.parent / "y.npy")


def test_from_the_command_line(model: Path, tmp_path: Path) -> None:
    """Arguments are counted as in Python, and the files are found."""
    with jaxexp.Archive.create(tmp_path / "all.zip") as archive:
        archive.add_file("model", model)
    for artifact, place in ((model, "model.safetensors"), (f"{tmp_path}/all.zip::model", "the archive")):
        for order in (0, 1, 2):
            inspected = built.run("--inspect", artifact, "--vjp", order).stdout
            assert f"weights: the first 7 arguments, 13696 bytes in {place}\n" in inspected
    inspected = built.run("--inspect", model).stdout
    paths = [value.path for value in jaxexp.inspect(model).arguments]
    assert paths[-1] == "args[0]"
    listed = inspected.split("arguments:\n")[1].split("\nresults")[0].split("\n")
    assert [line.split(": ")[0].strip() for line in listed] == paths
    x, wrong = tmp_path / "x.npy", tmp_path / "wrong.npy"
    np.save(x, X)
    np.save(wrong, X[:, :-1])
    done = built.run(model, f"args[0]={x}", "--out", tmp_path / "y.npy")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), result(model))
    assert "the function has no argument args[1]" in built.run(model, f"args[1]={x}").stderr
    assert "no file gives args[0], float32[4,32]" in built.run(model).stderr
    said = "args[0].shape[1] must have size 32, found size 31 (exported with float32[4,32], called with float32[4,31])"
    assert built.run(model, wrong).stderr == f"jaxexp-run: calling <lambda>: {said}\n"
    assert "the function takes 1 argument;" in built.run(model, x, x).stderr
    close(result(model), apply(params(), X))
    save_weights(params(seed=7), tmp_path / "other.safetensors")
    close(result(model, "--weights", tmp_path / "other.safetensors"), apply(params(seed=7), X))
    close(result(tmp_path / "all.zip", "--member", "model"), apply(params(), X))
    member = (tmp_path / "all.zip", "--member", "model", "--weights", tmp_path / "other.safetensors")
    close(result(*member), apply(params(seed=7), X))
    sharded = saved(bound()[0], tmp_path / "sharded.jaxexp", max_weights_file_size=4096)
    assert len(list(tmp_path.glob("sharded-0*.safetensors"))) > 2
    close(result(sharded), apply(params(), X))
    (tmp_path / "model.safetensors").unlink()
    close(result(model, "--weights", tmp_path / "sharded.safetensors.index.json"), apply(params(), X))


def test_values_and_derivatives(library: Library, runtime: Handle, call: Call, model: Path) -> None:
    given = params()
    function = library.load(runtime, model)
    assert library.c.jaxexp_argument_count(pointer(function)) == 1
    expected, pullback = jax.vjp(apply, given, X)
    for _ in range(2):
        close(call(function, X), [expected])
    model.with_suffix(".safetensors").unlink()  # the VJP uses what the function has
    cotangent = np.ones_like(expected)
    close(call(library.changed("vjp", function), X, cotangent), flat(pullback(cotangent)))


def test_other_weights_and_none(library: Library, runtime: Handle, call: Call, model: Path, tmp_path: Path) -> None:
    other = named(params(seed=7))
    file = save_weights(other, tmp_path / "other.safetensors")
    function = library.load(runtime, model)
    expected = [apply(params(seed=7), X)]
    close(call(library.changed("with_weights", function, file), X), expected)
    close(call(library.load_with(runtime, model, weights=file), X), expected)
    close(call(function, X), [apply(params(), X)])
    unbound = library.changed("unbound", function)
    assert library.c.jaxexp_argument_count(pointer(unbound)) == 8
    close(call(unbound, *(other[name] for name in sorted(other)), X), expected)
    with pytest.raises(RunError, match=r": args\[0\].shape\[1\] must have size 32, found size 31"):
        call(function, X[:, :-1])
    with pytest.raises(RunError, match=r": args\[1\].shape\[1\] must have size 32, found size 31"):  # weights count
        call(unbound, *(other[name] for name in sorted(other)), X[:, :-1])
    with pytest.raises(RunError, match="takes 1 argument beside its weights, and not 2"):
        call(function, X, X)


def test_a_program_gets_weights_that_it_does_not_name(
    library: Library, runtime: Handle, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "f.jaxexp").write_bytes(bound()[0].unbound.serialize(compatibility=built.READER))
    file = save_weights(params(), tmp_path / "w.safetensors")
    close(call(library.load_with(runtime, tmp_path / "f.jaxexp", weights=file), X), [apply(params(), X)])
    plain = jaxexp.export(jax.jit(jnp.sin))(X)
    (tmp_path / "g.jaxexp").write_bytes(plain.serialize(vjp_order=1, compatibility=built.READER))
    with pytest.raises(RunError, match="takes no weights: its first argument is no dict of arrays"):
        library.load_with(runtime, tmp_path / "g.jaxexp", weights=file)
    vjp = library.changed("vjp", library.load(runtime, tmp_path / "g.jaxexp"))
    with pytest.raises(RunError, match="takes no weights: its first argument is no dict of arrays"):
        library.changed("with_weights", vjp, file)


def test_a_vjp_of_any_order_gets_other_weights(
    library: Library, runtime: Handle, call: Call, model: Path, tmp_path: Path
) -> None:
    other = params(seed=7)
    file = save_weights(other, tmp_path / "other.safetensors")
    expected, pullback = jax.vjp(apply, other, X)
    cotangent = jnp.ones_like(expected)
    first, pullback_of_pullback = jax.vjp(lambda p, x, ct: jax.vjp(apply, p, x)[1](ct), other, X, cotangent)
    vjp = library.changed("vjp", library.load(runtime, model))
    close(call(library.changed("with_weights", vjp, file), X, cotangent), flat(pullback(cotangent)))
    *second, of_cotangent = pullback_of_pullback(jax.tree.map(jnp.ones_like, first))
    vjp_of_vjp = library.changed("with_weights", library.changed("vjp", vjp), file)
    close(
        call(vjp_of_vjp, X, cotangent, *map(np.ones_like, flat(first))), [*flat((second[0], second[1])), of_cotangent]
    )


DTYPES = "bool int4 int8 int16 int32 uint4 uint8 uint16 uint32 float16 bfloat16 float32 complex64".split()
DTYPES += "float8_e4m3fn float8_e5m2 float8_e4m3b11fnuz float8_e4m3fnuz float8_e5m2fnuz".split()


def test_dtypes(library: Library, runtime: Handle, call: Call, tmp_path: Path) -> None:
    """Also wide ones: complex128 is in the file as another dtype of another rank."""
    wrong = {}
    with jax.enable_x64(True):
        for name in (*DTYPES, "complex128", "float64", "int64"):
            dtype = np.dtype(getattr(ml_dtypes, name, name))
            numbers = np.arange(8).reshape(2, 4) % 2 if name == "bool" else np.arange(8).reshape(2, 4)
            w = jnp.asarray(numbers, dtype)
            exported = jaxexp.export(jax.jit(lambda p, n: jnp.roll(p["w"], 1, 1)))({"w": w}, np.int32(1)).bind({"w": w})
            (found,) = call(library.load(runtime, saved(exported, tmp_path / "f.jaxexp")), np.int32(1))
            if found.dtype != dtype or not np.array_equal(found, np.roll(np.asarray(w), 1, 1)):
                wrong[name] = found
    assert not wrong


def test_dtypes_that_files_have_no_names_for(library: Library, runtime: Handle, call: Call, tmp_path: Path) -> None:
    """A file that the caller names says them; if it does not, it has int8 or uint8."""

    def bound_to(name: str) -> Any:
        w = jnp.asarray([1, 0, 1], getattr(ml_dtypes, name, name))
        exported = jaxexp.export(jax.jit(lambda p, n: jnp.roll(p["w"], n)))({"w": w}, np.int32(1)).bind({"w": w})
        return saved(exported, tmp_path / f"{name}.jaxexp"), exported

    names = ["int4", "uint4", "int8", "uint8", "float8_e4m3b11fnuz"]
    artifacts = {name: bound_to(name)[0] for name in names}
    for name, artifact in artifacts.items():
        for other in names:
            file = str(tmp_path / f"{other}.safetensors").encode()
            function = library.load_with(runtime, artifact, weights=file)
            if other == name:
                (found,) = call(function, np.int32(1))
                np.testing.assert_array_equal(found.astype(np.float32), [1, 1, 0])
            else:
                held = "I8" if name.startswith("int") else "U8"
                others = "I8" if other.startswith("int") else "U8"
                expected = rf"{held}\[3\] of {name}, found {others}\[3\] of {other}" if held == others else held
                with pytest.raises(RunError, match=f"expected {expected}"):
                    call(function, np.int32(1))


def test_four_bits_without_the_plugin(tmp_path: Path) -> None:
    """This plugin has no float4; that the file is read is seen by the plugin's own words."""
    w = jnp.asarray([[0.5, 1, 2, 6]], ml_dtypes.float4_e2m1fn)
    program = jax.jit(lambda p, x: (p["w"] * x).astype(jnp.float32))
    exported = jaxexp.export(program)({"w": w}, jax.ShapeDtypeStruct((), w.dtype)).bind({"w": w})
    artifact = saved(exported, tmp_path / "f.jaxexp")
    done = built.run("--inspect", artifact)
    assert "weights: the first 1 arguments, 2 bytes in f.safetensors" in done.stdout


def test_divided_among_devices(library: Library, runtime: Handle, call: Call, tmp_path: Path) -> None:
    rows, whole = (jax.NamedSharding(mesh((4,), ("d",)), spec) for spec in (jax.P("d"), jax.P()))
    w = jnp.arange(32.0).reshape(8, 4)
    program = jax.jit(lambda p, x: p["w"] @ x, in_shardings=({"w": rows}, whole), out_shardings=rows)
    exported = jaxexp.export(program)({"w": w}, jax.ShapeDtypeStruct((4,), np.float32)).bind({"w": np.asarray(w)})
    function = library.load(runtime, saved(exported, tmp_path / "f.jaxexp", vjp_order=1))
    x = np.ones(4, np.float32)
    for _ in range(2):
        close(call(function, x), [w @ x])
    close(call(library.changed("vjp", function), x, np.ones(8, np.float32))[1], np.asarray(w).sum(0))


def test_weights_are_not_donated(library: Library, runtime: Handle, call: Call, tmp_path: Path) -> None:
    """Nor does anything write to their file."""
    w = jnp.arange(64.0)
    step = jaxexp.export(jax.jit(lambda p, g: {"w": p["w"] - g}, donate_argnums=0))({"w": w}, w).bind({"w": w})
    function = library.load(runtime, saved(step, tmp_path / "f.jaxexp"))
    before = (tmp_path / "f.safetensors").read_bytes()
    for _ in range(3):
        close(call(function, np.ones(64, np.float32)), [w - 1])
    assert (tmp_path / "f.safetensors").read_bytes() == before


def test_tied_weights(library: Library, runtime: Handle, call: Call, tmp_path: Path) -> None:
    w, tokens = jnp.arange(12.0).reshape(4, 3), np.array([[3, 1, 0]], np.int32)
    given = {"embed": w, "head": w}
    function = jax.jit(lambda tokens: jnp.tanh(given["embed"][tokens]) @ given["head"].T)
    exported = jaxexp.export(function, weights=given)(tokens)
    loaded = library.load(runtime, saved(exported, tmp_path / "f.jaxexp", vjp_order=1))
    close(call(loaded, tokens), [function(tokens)])
    file = save_weights(given, tmp_path / "tied.safetensors")  # with both names
    close(call(library.changed("with_weights", loaded, file), tokens), [function(tokens)])
    save_weights({"embed": w, "head": w + 1}, tmp_path / "tied.safetensors")
    with pytest.raises(RunError, match="tensor 'head': expected the same as 'embed', with which it is one weight"):
        call(library.changed("with_weights", loaded, file), tokens)


MEMORY = """
import sys
from pathlib import Path
import numpy as np
from kit.run_c import Library
library, plugin, artifact = Library(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3])
def kib(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
runtime = library.runtime(plugin)
functions = [library.load(runtime, artifact) for _ in range(2)]
x = library.array(np.ones((1, 4096), np.float32))
before = kib("RssAnon")
for function in functions * 2:
    library.read(library.call(function, x)[0])
print(kib("RssAnon") - before, kib("RssFile"))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads what Linux says of memory")
def test_nothing_is_copied(installed: Path, plugin: Path, tmp_path: Path) -> None:
    """192 MiB of weights are pages of the file, however often it is loaded."""
    random = np.random.default_rng(0)
    given = [jnp.asarray(random.standard_normal((4096, 4096), np.float32)) for _ in range(3)]
    function = jax.jit(lambda x: x @ given[0] @ given[1] @ given[2])
    exported = jaxexp.export(function, weights=given)(jax.ShapeDtypeStruct((1, 4096), np.float32))
    artifact = saved(exported, tmp_path / "f.jaxexp")
    library = next(installed.glob("lib*/libjaxexp-c.*"))
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", MEMORY, library, plugin, artifact]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    anonymous, of_files = map(int, done.stdout.split())
    assert anonymous < 60 << 10, "the plugin and its threads take some"
    assert of_files > 190 << 10, "all of the file was used"


class TestRefused:
    """One error that names the file and the tensor, what was expected, and what was found."""

    def message(self, call: Call, function: Handle) -> str:
        with pytest.raises(RunError) as error:
            call(function, X)
        assert error.value.reason is Reason.DAMAGED
        assert str(error.value).startswith("cannot read the weights '")
        return str(error.value)

    def test_missing(self, library: Library, runtime: Handle, call: Call, model: Path) -> None:
        function = library.load(runtime, model)  # looks for no weights
        weights = model.with_suffix(".safetensors")
        weights.rename(weights.with_name("elsewhere"))
        expected = f"'{weights}': expected a file that 'model.jaxexp' names, found none of this name"
        assert expected in self.message(call, function)
        weights.with_name("elsewhere").rename(weights)
        close(call(function, X), [apply(params(), X)])  # what failed once can be done again

    def test_shortened(self, library: Library, runtime: Handle, call: Call, model: Path) -> None:
        weights = model.with_suffix(".safetensors")
        blob = weights.read_bytes()
        weights.write_bytes(blob[:-1])
        message = self.message(call, library.load(runtime, model))
        assert (
            f"'{weights}': expected {len(blob):,} bytes, as its header says, found {len(blob) - 1:,} bytes" in message
        )

    def test_replaced(self, library: Library, runtime: Handle, call: Call, model: Path) -> None:
        other = saved(bound(layers=2)[0], model.with_name("other.jaxexp"))
        shutil.copy(other.with_suffix(".safetensors"), model.with_suffix(".safetensors"))
        message = self.message(call, library.load(runtime, model))
        assert "expected the file that 'model.jaxexp' was saved with" in message
        assert "found another one" in message

    def test_other_types(self, library: Library, runtime: Handle, call: Call, model: Path, tmp_path: Path) -> None:
        given = {name: np.asarray(array) for name, array in named(params()).items()}
        for name, array, message in [
            ("head", given["head"].T.copy(), r"tensor 'head': expected F32\[32,8\], found F32\[8,32\]"),
            ("head", given["head"].astype(np.float16), r"tensor 'head': expected F32\[32,8\], found F16\[32,8\]"),
            ("layers/1/b", None, "tensor 'layers/1/b': expected a tensor of this name, found none"),
        ]:
            changed = {**given, name: array} if array is not None else {k: v for k, v in given.items() if k != name}
            file = save_weights(changed, tmp_path / "w.safetensors")
            with pytest.raises(RunError, match=message):
                call(library.load_with(runtime, model, weights=file), X)

    def test_half_way_through_saving(self, library: Library, runtime: Handle, call: Call, model: Path) -> None:
        """The file has its second name only, and others may have the plain one."""
        weights = model.with_suffix(".safetensors")
        content = reading.open_tensors(weights).files[0].content
        weights.rename(weights.with_name(f".model.{content}.safetensors"))
        close(call(library.load(runtime, model), X), [apply(params(), X)])
        weights.write_bytes(b"other bytes")
        close(call(library.load(runtime, model), X), [apply(params(), X)])

    def test_in_an_archive_that_lacks_a_tensor(self, tmp_path: Path, model: Path) -> None:
        """A member that was added as bytes has no weights, and takes them as arguments."""
        exported, given = bound()
        with jaxexp.Archive.create(tmp_path / "a.zip") as archive:
            archive.add("model", model.read_bytes())
        np.save(tmp_path / "x.npy", X)
        command = (tmp_path / "a.zip", tmp_path / "x.npy", "--member", "model")
        done = built.run(*command)
        assert done.returncode == 2
        assert "no file gives args[0]['layers/0/b'], float32[32]" in done.stderr
        tuned = exported.with_weights({**given, "head": given["head"] + 1})
        with jaxexp.Archive.append(tmp_path / "a.zip") as archive:
            archive.add("tuned", tuned)
        done = built.run(*command)
        assert "weights 'the archive': tensor 'head': expected a tensor of 1024 bytes with the digest" in done.stderr


class TestHostileFiles:
    """Every file is refused in C++ that is refused in Python, and no other one."""

    @pytest.fixture
    def refuses(self, library: Library, runtime: Handle, call: Call, model: Path) -> Callable[[Path], bool]:
        function = library.load(runtime, model)

        def refuses(path: Path) -> bool:
            with pytest.raises(RunError) as error:
                call(library.changed("with_weights", function, str(path).encode()), X)
            assert error.value.reason is Reason.DAMAGED
            assert len(str(error.value)) < 4000
            return "expected a tensor of this name, found none" not in str(error.value)

        return refuses

    def test_headers(self, refuses: Callable[[Path], bool], tmp_path: Path) -> None:
        read = []
        for name, (content, _) in WRONG.items():
            (tmp_path / "x.safetensors").write_bytes(content)
            if not refuses(tmp_path / "x.safetensors"):
                read.append(name)
        assert not read

    @pytest.mark.parametrize(
        "count",
        [
            100,
            pytest.param(
                1500,
                marks=pytest.mark.long(
                    promise="a changed file of weights is refused in C++ where it is in Python",
                    sibling="test_runtime_weights.py::test_headers",
                ),
            ),
        ],
    )
    def test_changed_headers(self, count: int, refuses: Callable[[Path], bool], tmp_path: Path) -> None:
        source, path = random.Random(17), tmp_path / "x.safetensors"
        verdicts = []
        for _ in range(count):
            path.write_bytes(tensors_fuzz.changed_file(source))
            try:
                reading.open_tensors(path)
                verdict = False
            except WeightsError:
                verdict = True
            assert refuses(path) == verdict, path.read_bytes()
            verdicts.append(verdict)
        assert count / 5 < sum(verdicts) < count * 0.97, "some are read"

    def test_names_in_an_index(self, refuses: Callable[[Path], bool], tmp_path: Path) -> None:
        here = tmp_path / "here"
        (here / "folder").mkdir(parents=True)
        for place in (tmp_path, here, here / "folder"):
            safetensors.numpy.save_file({"head": np.ones(1, np.float32)}, place / "x.safetensors")
        index = here / "x.safetensors.index.json"
        for name in NO_PLAIN_NAMES:
            index.write_text(json.dumps({"weight_map": {"head": name}}))
            assert refuses(index), name

    @pytest.mark.skipif(os.name == "nt", reason="makes links, and POSIX's kinds of files")
    def test_links_and_other_kinds(self, refuses: Callable[[Path], bool], tmp_path: Path) -> None:
        here = tmp_path / "here"
        here.mkdir()
        safetensors.numpy.save_file({"y": np.ones(1, np.float32)}, tmp_path / "secret.safetensors")
        index = here / "x.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"y": "1.safetensors"}, "metadata": {"total_size": 4.0}}))
        link = here / "1.safetensors"
        for target in (tmp_path / "secret.safetensors", link, Path("/dev/null"), Path("nowhere")):
            link.symlink_to(target)
            assert refuses(index), target
            link.unlink()
        os.mkfifo(link)
        assert refuses(index)
        link.unlink()
        shutil.copy(tmp_path / "secret.safetensors", here / "real.safetensors")
        link.symlink_to("real.safetensors")
        assert not refuses(index), "a link inside of the folder leads nowhere else"

    def test_indices(self, refuses: Callable[[Path], bool], tmp_path: Path) -> None:
        for name, tensors in (("1", "ab"), ("2", "bc")):
            safetensors.numpy.save_file({t: np.ones(1, np.float32) for t in tensors}, tmp_path / f"{name}.safetensors")
        index = tmp_path / "x.safetensors.index.json"
        both = {"a": "1.safetensors", "b": "1.safetensors"}
        index.write_text(json.dumps({"weight_map": both, "metadata": {"x": [1e3, None, {"y": "z"}]}}))
        assert not refuses(index)
        for wrong in (
            {"a": "1.safetensors"},
            {**both, "d": "1.safetensors"},
            {**both, "c": "2.safetensors"},
            {"a": "0.safetensors"},
            {"a": 1},
            [],
        ):
            index.write_text(json.dumps({"weight_map": wrong}))
            assert refuses(index), wrong
        for text in ('{"weight_map":{"a":"1.safetensors","a":"1.safetensors"}}', "{}", "", "[" * 100_000):
            index.write_text(text)
            assert refuses(index), text[:80]
