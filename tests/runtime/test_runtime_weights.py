"""Weights beside an artifact, or in its archive, as the C++ runtime finds them: values, memory, and what is refused."""

from __future__ import annotations

import json
import os
import random
import shutil
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
from kit.archive_files import make
from kit.command_line import started
from kit.corpus import mesh
from kit.run_c import Handle, Library, Reason, RunError
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
    archive = make(tmp_path / "all.zip", {"model": model})
    for artifact, place in ((model, "model.safetensors"), (f"{archive}::model", "the archive")):
        for order in (0, 1, 2):
            inspected = built.run("--inspect", artifact, "--vjp", order).stdout
            assert f"weights: the first 7 arguments, 13696 bytes in {place}\n" in inspected
    listed = built.run("--inspect", model).stdout.split("arguments:\n")[1].split("\nresults")[0].split("\n")
    assert [line.split(": ")[0].strip() for line in listed] == [v.path for v in jaxexp.inspect(model).arguments]
    x, wrong = tmp_path / "x.npy", tmp_path / "wrong.npy"
    np.save(x, X)
    np.save(wrong, X[:, :-1])
    said = "args[0].shape[1] must have size 32, found size 31 (exported with float32[4,32], called with float32[4,31])"
    for given, message in (
        ((f"args[1]={x}",), "the function has no argument args[1]"),
        ((), "no file gives args[0], float32[4,32]"),
        ((wrong,), f"jaxexp-run: calling <lambda>: {said}\n"),
        ((x, x), "the function takes 1 argument;"),
    ):
        assert message in built.run(model, *given).stderr
    other, index = tmp_path / "other.safetensors", tmp_path / "sharded.safetensors.index.json"
    save_weights(params(seed=7), other)
    sharded = saved(bound()[0], tmp_path / "sharded.jaxexp", max_weights_file_size=4096)
    assert len(list(tmp_path.glob("sharded-0*.safetensors"))) > 2
    for artifact, options, seed in (
        (model, (), 0),
        (model, ("--weights", other), 7),
        (archive, ("--member", "model"), 0),
        (archive, ("--member", "model", "--weights", other), 7),
        (sharded, (), 0),
        (model, ("--weights", index), 0),
    ):
        close(result(artifact, *options), apply(params(seed=seed), X))


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


def test_dtypes(library: Library, runtime: Handle, call: Call, tmp_path: Path) -> None:
    """Also wide ones: complex128 is in the file as another dtype of another rank. The plugin has no float4."""
    names = "bool int4 int8 int16 int32 int64 uint4 uint8 uint16 uint32 float16 bfloat16 float32 float64 complex64"
    names += " complex128 float8_e4m3fn float8_e5m2 float8_e4m3b11fnuz float8_e4m3fnuz float8_e5m2fnuz float4_e2m1fn"
    wrong = {}
    with jax.enable_x64(True):
        for name in names.split():
            dtype = np.dtype(getattr(ml_dtypes, name, name))
            w = jnp.asarray(np.arange(8).reshape(2, 4) % 2, dtype)
            exported = jaxexp.export(jax.jit(lambda p, n: jnp.roll(p["w"], 1, 1)))({"w": w}, np.int32(1)).bind({"w": w})
            artifact = saved(exported, tmp_path / "f.jaxexp")
            if name == "float4_e2m1fn":
                assert "weights: the first 1 arguments, 4 bytes in " in built.run("--inspect", artifact).stdout
                continue
            (found,) = call(library.load(runtime, artifact), np.int32(1))
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


def test_weights_that_are_divided_and_donated(library: Library, runtime: Handle, call: Call, tmp_path: Path) -> None:
    """Their file stays as it is."""
    rows, whole = (jax.NamedSharding(mesh((4,), ("d",)), spec) for spec in (jax.P("d"), jax.P()))
    w, x = jnp.arange(32.0).reshape(8, 4), np.ones(4, np.float32)
    program = jax.jit(lambda p, x: p["w"] @ x, in_shardings=({"w": rows}, whole), out_shardings=rows)
    exported = jaxexp.export(program)({"w": w}, jax.ShapeDtypeStruct((4,), np.float32)).bind({"w": np.asarray(w)})
    divided = library.load(runtime, saved(exported, tmp_path / "f.jaxexp", vjp_order=1))
    step = jaxexp.export(jax.jit(lambda p, g: {"w": p["w"] - g}, donate_argnums=0))({"w": x}, x).bind({"w": x})
    donated = library.load(runtime, saved(step, tmp_path / "g.jaxexp"))
    before = (tmp_path / "g.safetensors").read_bytes()
    for _ in range(3):
        close(call(divided, x), [w @ x])
        close(call(donated, x), [x - x])
    assert (tmp_path / "g.safetensors").read_bytes() == before
    close(call(library.changed("vjp", divided), x, np.ones(8, np.float32))[1], np.asarray(w).sum(0))


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
def test_nothing_is_copied(installed: Path, plugin: Path, tmp_path: Path, subprocess_env: Any) -> None:
    """192 MiB of weights are pages of the file, however often it is loaded."""
    random = np.random.default_rng(0)
    given = [jnp.asarray(random.standard_normal((4096, 4096), np.float32)) for _ in range(3)]
    function = jax.jit(lambda x: x @ given[0] @ given[1] @ given[2])
    exported = jaxexp.export(function, weights=given)(jax.ShapeDtypeStruct((1, 4096), np.float32))
    artifact = saved(exported, tmp_path / "f.jaxexp")
    done = started(MEMORY, next(installed.glob("lib*/libjaxexp-c.*")), plugin, artifact, env=subprocess_env())
    assert done.returncode == 0, done.stderr
    anonymous, of_files = map(int, done.stdout.split())
    assert anonymous < 60 << 10, "the plugin and its threads take some"
    assert of_files > 190 << 10, "all of the file was used"


# --- what is refused, by one error that names the file and the tensor -----------------------------------------------


def refusal(call: Call, function: Handle) -> str:
    with pytest.raises(RunError) as error:
        call(function, X)
    assert error.value.reason is Reason.DAMAGED
    assert str(error.value).startswith("cannot read the weights '")
    assert len(str(error.value)) < 4000
    return str(error.value)


def test_other_files(library: Library, runtime: Handle, call: Call, model: Path) -> None:
    function = library.load(runtime, model)  # looks for no weights
    weights = model.with_suffix(".safetensors")
    blob = weights.read_bytes()
    weights.unlink()
    missing = f"'{weights}': expected a file that 'model.jaxexp' names, found none of this name"
    assert missing in refusal(call, function)
    weights.write_bytes(blob[:-1])
    sizes = f"'{weights}': expected {len(blob):,} bytes, as its header says, found {len(blob) - 1:,} bytes"
    assert sizes in refusal(call, library.load(runtime, model))
    other = saved(bound(layers=2)[0], model.with_name("other.jaxexp"))
    shutil.copy(other.with_suffix(".safetensors"), weights)
    said = refusal(call, library.load(runtime, model))
    assert "expected the file that 'model.jaxexp' was saved with" in said and "found another one" in said
    weights.write_bytes(blob)
    close(call(function, X), [apply(params(), X)])  # what failed once can be done again
    # Half-way through saving, the file has its second name only, and others may have the plain one.
    content = reading.open_tensors(weights).files[0].content
    weights.rename(weights.with_name(f".model.{content}.safetensors"))
    for _ in range(2):
        close(call(library.load(runtime, model), X), [apply(params(), X)])
        weights.write_bytes(b"other bytes")


def test_files_of_other_kinds(library: Library, runtime: Handle, call: Call, model: Path, tmp_path: Path) -> None:
    what = "expected a serialized Exported, found what looks like a safetensors file, which has only weights: load the"
    with pytest.raises(RunError, match=what):
        library.load(runtime, model.with_suffix(".safetensors"))
    np.savez(tmp_path / "w.npz", X)
    given = {name: np.asarray(array) for name, array in named(params()).items()}
    changed = {
        "head": {**given, "head": given["head"].T.copy()},
        "dtype": {**given, "head": given["head"].astype(np.float16)},
        "less": {name: array for name, array in given.items() if name != "layers/1/b"},
    }
    for name, arrays in changed.items():
        safetensors.numpy.save_file(arrays, tmp_path / name)
    for name, message in (
        ("model.jaxexp", "expected a safetensors file, found what looks like an artifact: name the file that"),
        ("w.npz", "expected a safetensors file, found what looks like a zip archive"),
        ("head", "tensor 'head': expected F32[32,8], found F32[8,32]"),
        ("dtype", "tensor 'head': expected F32[32,8], found F16[32,8]"),
        ("less", "tensor 'layers/1/b': expected a tensor of this name, found none"),
    ):
        function = library.load_with(runtime, model, weights=os.fsencode(tmp_path / name))
        assert message in refusal(call, function)


def test_in_an_archive_that_lacks_a_tensor(tmp_path: Path, model: Path) -> None:
    """A member that was added as bytes has no weights, and takes them as arguments."""
    exported, given = bound()
    make(tmp_path / "a.zip", {"model": model.read_bytes()})
    np.save(tmp_path / "x.npy", X)
    command = (tmp_path / "a.zip", tmp_path / "x.npy", "--member", "model")
    done = built.run(*command)
    assert done.returncode == 2
    assert "no file gives args[0]['layers/0/b'], float32[32]" in done.stderr
    with jaxexp.Archive.append(tmp_path / "a.zip") as archive:
        archive.add("tuned", exported.with_weights({**given, "head": given["head"] + 1}))
    done = built.run(*command)
    assert "weights 'the archive': tensor 'head': expected a tensor of 1024 bytes with the digest" in done.stderr


@pytest.fixture
def refuses(library: Library, runtime: Handle, call: Call, model: Path) -> Callable[[Path], bool]:
    """Whether a file is refused for another reason than that it lacks the tensors of the model."""
    function = library.load(runtime, model)

    def refuses(path: Path) -> bool:
        said = refusal(call, library.changed("with_weights", function, str(path).encode()))
        return "expected a tensor of this name, found none" not in said

    return refuses


def test_headers(refuses: Callable[[Path], bool], tmp_path: Path) -> None:
    read = []
    for name, (content, _) in WRONG.items():
        (tmp_path / "x.safetensors").write_bytes(content)
        if not refuses(tmp_path / "x.safetensors"):
            read.append(name)
    assert not read


MANY = pytest.mark.long(
    promise="a changed file of weights is refused in C++ where it is in Python",
    sibling="test_runtime_weights.py::test_headers",
)


@pytest.mark.parametrize("count", [100, pytest.param(1500, marks=MANY)])
def test_changed_headers(count: int, refuses: Callable[[Path], bool], tmp_path: Path) -> None:
    """Every file is refused in C++ that is refused in Python, and no other one."""
    source, path = random.Random(17), tmp_path / "x.safetensors"
    verdicts = []
    for _ in range(count):
        path.write_bytes(tensors_fuzz.changed_file(source))
        try:
            reading.open_tensors(path)
            verdicts.append(False)
        except WeightsError:
            verdicts.append(True)
        assert refuses(path) == verdicts[-1], path.read_bytes()
    assert count / 5 < sum(verdicts) < count * 0.97, "some are read"


@pytest.mark.skipif(os.name == "nt", reason="makes links, and POSIX's kinds of files")
def test_names_links_and_other_kinds(refuses: Callable[[Path], bool], tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "folder").mkdir(parents=True)
    for place in (tmp_path, here, here / "folder"):
        safetensors.numpy.save_file({"y": np.ones(1, np.float32)}, place / "x.safetensors")
    index, link = here / "x.safetensors.index.json", here / "1.safetensors"
    for name in NO_PLAIN_NAMES:
        index.write_text(json.dumps({"weight_map": {"y": name}}))
        assert refuses(index), name
    index.write_text(json.dumps({"weight_map": {"y": "1.safetensors"}, "metadata": {"total_size": 4.0}}))
    for target in (tmp_path / "x.safetensors", link, Path("/dev/null"), Path("nowhere")):
        link.symlink_to(target)
        assert refuses(index), target
        link.unlink()
    os.mkfifo(link)
    assert refuses(index)
    link.unlink()
    link.symlink_to("x.safetensors")
    assert not refuses(index), "a link inside of the folder leads nowhere else"


def test_indices(refuses: Callable[[Path], bool], tmp_path: Path) -> None:
    for name, tensors in (("1", "ab"), ("2", "bc")):
        safetensors.numpy.save_file({t: np.ones(1, np.float32) for t in tensors}, tmp_path / f"{name}.safetensors")
    index = tmp_path / "x.safetensors.index.json"
    both = {"a": "1.safetensors", "b": "1.safetensors"}
    index.write_text(json.dumps({"weight_map": both, "metadata": {"x": [1e3, None, {"y": "z"}]}}))
    assert not refuses(index)
    wrong = ({"a": "1.safetensors"}, {**both, "d": "1.safetensors"}, {**both, "c": "2.safetensors"})
    texts = [json.dumps({"weight_map": one}) for one in (*wrong, {"a": "0.safetensors"}, {"a": 1}, [])]
    for text in (*texts, '{"weight_map":{"a":"1.safetensors","a":"1.safetensors"}}', "{}", "", "[" * 100_000):
        index.write_text(text)
        assert refuses(index), text[:80]
