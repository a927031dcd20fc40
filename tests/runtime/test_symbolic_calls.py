"""Functions with symbolic dimensions run for the sizes of their arguments, as they do when Python fixes the sizes; or
padded to sizes that were listed, along dimensions that the artifact declares, and along no others.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxexp
from jaxexp._executables.file import ExecutablesFile
from jaxexp._kernel.function.data import note
from jaxexp.runtime import Session
from kit import goldens, own_goldens, weighted
from kit import runtime as built
from kit.run_c import Handle, Library, Reason, RunError, pointer
from kit.symbolic_functions import FUNCTIONS

pytestmark = [pytest.mark.cpp, pytest.mark.usefixtures("plugin")]

Call = Callable[..., list[np.ndarray]]
Load = Callable[..., Handle]

W = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
ANY: dict[str, Any] = {"pad": 0, "only_sizes": 0}  # compiled for whatever sizes


@pytest.fixture
def load(library: Library, runtime: Handle, tmp_path: Path) -> Load:
    """Loads an artifact, or what was exported, that may only run for these sizes, with padding."""

    def load(function: Any, *sizes: str, pad: int = 1, only_sizes: int = 1) -> Handle:
        blob = function if isinstance(function, (bytes, bytearray)) else function.serialize(compatibility=built.READER)
        (tmp_path / "f.jaxexp").write_bytes(blob)
        texts = (ctypes.c_char_p * len(sizes))(*(text.encode() for text in sizes))
        pointer_to_texts = ctypes.cast(texts, ctypes.c_void_p)
        options = {"sizes": pointer_to_texts, "size_count": len(sizes), "pad": pad, "only_sizes": only_sizes}
        return library.load_with(runtime, tmp_path / "f.jaxexp", **options)

    return load


def exported(function: Callable[..., Any], shape: str = "b, 4", pad: Any = None, **options: Any) -> bytes:
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape(shape, **options), "float32")
    return jaxexp.export(jax.jit(function))(spec).serialize(compatibility=built.READER, pad=pad)


def numbers(shape: Sequence[int]) -> np.ndarray:
    return (3 * np.random.default_rng(0).normal(size=shape)).astype(np.float32)


def attended(x: Any) -> Any:
    return jax.nn.dot_product_attention(x, x, x)


def causal(x: Any) -> Any:
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    scores = jnp.where(mask, jnp.einsum("bqd,bkd->bqk", x, x), -1e9)
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores, -1), x)


# Functions, the shapes of their arguments, what is declared, the sizes that have code, and shapes of calls.
PADDED: dict[str, tuple[Callable[..., Any], str, Any, str, list[tuple[int, ...]]]] = {
    "rows": (
        lambda x: (jnp.tanh(x @ W) @ W.T, jax.nn.softmax(x, -1), x.T * 2, x @ x.T, x[: x.shape[0] // 2]), "b, 4",
        "b", "b=8", [(5, 4), (8, 4), (1, 4)],
    ),
    "recurrence": (
        lambda x: jax.lax.scan(lambda h, y: (jnp.tanh(y @ W + h), h), jnp.zeros((x.shape[0], 3)), x.swapaxes(0, 1)),
        "b, t, 4", ["b"], "b=8,t=6", [(5, 6, 4)],
    ),
    "a causal sequence": (causal, "b, t, 4", ("b", "t"), "b=4,t=8", [(3, 8, 4), (4, 5, 4), (2, 3, 4)]),
    "twice a size": (lambda x: (x.reshape(-1, 2), x + 1), "2*b, 4", "b", "b=4", [(6, 4), (2, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", PADDED)
def test_declared_dimensions_are_padded(name: str, load: Load, call: Call) -> None:
    function, shape, pad, sizes, shapes = PADDED[name]
    blob = exported(function, shape, pad)
    runs_one, runs_any = load(blob, sizes), load(blob, **ANY)
    for given in shapes:
        x = numbers(given)
        for ours, theirs in zip(call(runs_one, x), call(runs_any, x), strict=True):
            assert ours.shape == theirs.shape
            # XLA vectorizes sums of products and transcendental functions by the number of rows.
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_other_dimensions_are_never_padded(load: Load, call: Call) -> None:
    """Not even where it would change nothing. Without `only_sizes`, code is compiled for the call."""
    x = numbers((5, 4))
    with pytest.raises(
        RunError,
        match=r"runs for b=8 only, and not for b=5, which cannot be padded to b=8: the artifact does not declare that "
        r'b may be padded: save the function with pad=\["b"\], which checks that it may$',
    ) as refused:
        call(load(exported(lambda x: x + 1), "b=8"), x)
    assert refused.value.reason == Reason.ARGUMENT
    blob = exported(lambda x: x - x.max())
    np.testing.assert_allclose(call(load(blob, "b=8", only_sizes=0), x)[0], x - x.max(), rtol=1e-6)


def test_each_variable_by_itself(load: Load, call: Call) -> None:
    function = load(exported(attended, "b, t, 2, 3", "b"), "b=4,t=8", "b=4,t=16", "b=8,t=8")
    assert call(function, numbers((3, 8, 2, 3)))[0].shape == (3, 8, 2, 3)
    assert call(function, numbers((5, 8, 2, 3)))[0].shape == (5, 8, 2, 3)
    for shape in ((3, 7, 2, 3), (4, 9, 2, 3)):
        with pytest.raises(RunError, match=r"b=8,t=8 only, and not for .* t may be padded: .* pad=\[\"b\", \"t\"\]"):
            call(function, numbers(shape))
    with pytest.raises(RunError, match="and not for b=9,t=8, which is larger"):
        call(function, numbers((9, 8, 2, 3)))


def test_expressions_and_constraints(load: Load, call: Call) -> None:
    """Constraints hold for the sizes of calls, and for listed ones. No array is cut to pad it."""
    x = numbers((6, 4))
    blob = exported(lambda x: x + 1, pad="b", constraints=["mod(b, 2) == 0"])
    assert call(load(blob, "b=8"), x)[0].shape == (6, 4)
    with pytest.raises(RunError, match="must be a multiple of 2, found 5"):
        call(load(blob, "b=8"), x[:5])
    with pytest.raises(RunError, match=r"the larger sizes do not fit: .*must be a multiple of 2, found 7"):
        call(load(blob, "b=7"), x)
    b, _ = jaxexp.symbolic_shape("b, 4", constraints=["b <= 9"])
    specs = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((b,), (10 - b,))]
    shrinks = note(jaxexp.export(jax.jit(lambda x, y: (x + 1, y + 1)))(*specs), padded=("b",))
    with pytest.raises(RunError, match=r"to b=8: args\[1\] has the shape \[?5\]?, and would have \[?2"):
        call(load(shrinks, "b=8"), numbers((5,)), numbers((5,)))


def test_sizes_that_are_no_sizes(load: Load) -> None:
    blob = exported(lambda x: x + 1)
    takes = "<lambda> takes a size of at least 1 for each of b"
    for sizes, message in (
        *((sizes, takes) for sizes in (["c=8"], ["b=0"], ["b=8,c=3"], [""])),
        (["b"], "sizes are given as in batch=8,seq=128, and not 'b'"),
        ([], "must run for listed sizes only, but no sizes are listed"),
        ([f"b={i}" for i in range(1, 66)], "at most 64 sets of sizes, and not 65"),
    ):
        with pytest.raises(RunError, match=message):
            load(blob, *sizes)
    static = jaxexp.export(jax.jit(lambda x: x + 1))(jax.ShapeDtypeStruct((2,), "float32"))
    with pytest.raises(RunError, match="takes no sizes, because it has no symbolic dimensions, found"):
        load(static.serialize(compatibility=built.READER), "b=8")


@pytest.mark.parametrize("folder", [folder for folder, cases in own_goldens.CASES.items() if "sized" in cases])
def test_golden_artifacts_with_sizes(folder: str, plugin: Path) -> None:
    """Only newer ones declare that they may be padded."""
    blob = own_goldens.blob_of(folder, "sized")
    session = Session(blob, plugin=plugin, pad=True, only_sizes=True)
    arguments = own_goldens.stored(folder, "sized", "in")  # 3 rows, padded to 4
    if jaxexp.inspect(blob).padded != ("batch",):
        with pytest.raises(jaxexp.errors.RunError, match="the artifact does not declare that batch may be padded"):
            session(*arguments)
        return
    for ours, theirs in zip(session(*arguments).values(), own_goldens.stored(folder, "sized", "out"), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    with pytest.raises(
        jaxexp.errors.RunError, match="runs for batch=4,n=8 or batch=16,n=8 only, and not for batch=17,n=8"
    ):
        session(np.ones((17, 8), np.float32))


def test_vjps_are_padded_too(library: Library, runtime: Handle, call: Call, tmp_path: Path) -> None:
    """Zeros behind the cotangents, too: what the gradient of a weight sums over gets nothing of it."""
    x, w = (jax.ShapeDtypeStruct(shape, "float32") for shape in (jaxexp.symbolic_shape("b, 4"), W.shape))
    function, artifact = jax.jit(lambda x, w: jnp.tanh(x @ w)), tmp_path / "f.jaxexp"
    exported = jaxexp.export(function)(x, w)
    exported.save(artifact, vjp_order=1, compatibility=built.READER, sizes=[{"b": 8}], pad="b")
    vjp = library.changed("vjp", library.load_with(runtime, artifact, pad=1, only_sizes=1))
    given, ct = numbers((5, 4)), np.ones((5, 3), np.float32)
    for ours, theirs in zip(call(vjp, given, W, ct), jax.vjp(function, given, W)[1](ct), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


# --- any sizes ------------------------------------------------------------------------------------------------------


def specialized(exported: jaxexp.Exported, *arguments: np.ndarray) -> jaxexp.Exported:
    specs = [jax.ShapeDtypeStruct(x.shape, aval.dtype) for x, aval in zip(arguments, exported.in_avals, strict=True)]
    args, kwargs = exported.in_tree.unflatten(specs)
    return exported.specialize(*args, **kwargs)


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.wide(one_in=2, promise="each operation with open sizes computes what it does when the sizes are fixed")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations(name: str, load: Any, call: Call) -> None:
    exported = FUNCTIONS[name].exported()
    function = load(exported, **ANY)
    for argument in FUNCTIONS[name].arguments()[:4:3]:
        assert_same(call(function, argument), call(load(specialized(exported, argument), **ANY), argument))


VERSIONS = [version for version, name in goldens.ARTIFACTS if name == "poly"]


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[len(VERSIONS) // 2], VERSIONS[-1]])
def test_golden_artifacts_of_five_sizes(version: str, load: Any, call: Call) -> None:
    blob = goldens.blob_of(version, "poly")
    function = load(blob, **ANY)
    w = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
    for size in (1, 2, 5, 8, 33):
        x = np.random.default_rng(size).normal(size=(size, 8)).astype(np.float32)
        np.testing.assert_allclose(call(function, x, w)[0], np.tanh(x @ w), rtol=1e-5)


def test_all_sizes_share_the_weights(library: Library, runtime: Handle, call: Call, tmp_path: Path) -> None:
    given = weighted.params()
    (b,) = jaxexp.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct((b, weighted.SIZE), "float32")
    exported = jaxexp.export(jax.jit(weighted.closed(given)), weights=given)(spec)
    exported.save(tmp_path / "model.jaxexp", compatibility=built.READER, vjp_order=1)
    function = library.load(runtime, tmp_path / "model.jaxexp")
    vjp = library.changed("vjp", function)
    for size in (1, 4, 9):
        x = np.ones((size, weighted.SIZE), np.float32)
        expected, pullback = jax.vjp(lambda x: weighted.apply(given, x), x)
        np.testing.assert_allclose(call(function, x)[0], expected, rtol=1e-4, atol=1e-5)
        cotangents = call(vjp, x, np.ones_like(expected))
        np.testing.assert_allclose(cotangents[-1], pullback(jnp.ones_like(expected))[0], rtol=1e-4, atol=1e-5)


def test_a_static_function_calls_a_symbolic_one(load: Any, call: Call) -> None:
    inner = FUNCTIONS["reductions"].exported()
    x = FUNCTIONS["reductions"].arguments()[0]
    outer = jaxexp.export(jax.jit(lambda x: inner.call(x)[0]))(jax.ShapeDtypeStruct(x.shape, x.dtype))
    np.testing.assert_allclose(call(load(outer, **ANY), x)[0], x.sum(0), rtol=1e-5)


def test_shapes_that_do_not_fit(load: Any, call: Call) -> None:
    a, b = jaxexp.symbolic_shape("a, b", constraints=["a >= b + 1", "mod(b, 2) == 0"])
    specs = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((a, b), (a + b,))]
    exported = jaxexp.export(jax.jit(lambda x, y: x.sum() + y.sum()))(*specs)
    function = load(exported, **ANY)
    assert call(function, np.ones((3, 2), np.float32), np.ones(5, np.float32))[0] == 11

    def message(*shapes: tuple[int, ...]) -> str:
        with pytest.raises(RunError) as error:
            call(function, *(np.ones(shape, np.float32) for shape in shapes))
        assert error.value.reason == Reason.ARGUMENT
        return str(error.value)

    assert "args[1].shape[0] must have size b + a, found size 6, where a = 3, b = 2" in message((3, 2), (6,))
    # What was refused stays refused, and harms no other sizes. The words are those of Python.
    for shapes, words in (
        (((2, 2), (4,)), "the sizes of the arguments must satisfy a >= b + 1, found a = 2 (args[0].shape[0]), b = 2 "),
        (((4, 3), (7,)), "args[0].shape[1] must be a multiple of 2, found 3 (exported with the constraint "),
    ) * 2:
        assert message(*shapes).startswith("calling <lambda>: " + words)
        with pytest.raises(jaxexp.errors.ExportError) as refused:
            exported.call(*(np.ones(shape, np.float32) for shape in shapes))
        assert str(refused.value) == message(*shapes)
    assert call(function, np.ones((3, 2), np.float32), np.ones(5, np.float32))[0] == 11


def test_threads_with_the_same_and_other_sizes(load: Any, call: Call) -> None:
    symbolic = FUNCTIONS["products"]
    function = load(symbolic.exported(), **ANY)
    arguments = symbolic.arguments()
    expected = [call(function, x) for x in arguments]
    function = load(symbolic.exported(), **ANY)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: call(function, arguments[i % len(arguments)]), range(40)))
    for i, results in enumerate(found):
        assert_same(results, expected[i % len(arguments)])


def test_more_sizes_than_are_kept(load: Any, call: Call) -> None:
    (b,) = jaxexp.symbolic_shape("b")
    exported = jaxexp.export(jax.jit(lambda x: x + 1))(jax.ShapeDtypeStruct((b,), "float32"))
    function = load(exported, **ANY)
    for size in [*range(1, 70), *range(1, 5)]:
        assert_same(call(function, np.zeros(size, np.float32)), [np.ones(size, np.float32)])


def test_code_of_several_sizes_is_kept(
    library: Library, runtime: Handle, load: Any, call: Call, tmp_path: Path
) -> None:
    file = tmp_path / "f.exe"
    function = load(FUNCTIONS["products"].exported(), **ANY)
    with pytest.raises(RunError, match=r"has symbolic dimensions \(b\): it is compiled when it is first called"):
        library.checked("compile", pointer(function))
    with pytest.raises(RunError, match="is compiled for no sizes yet: call it first"):
        library.checked("save_executable", pointer(function), str(file).encode())
    arguments = FUNCTIONS["products"].arguments()
    expected = [call(function, x) for x in arguments[:2]]
    library.checked("save_executable", pointer(function), str(file).encode())
    library.checked("save_executable", pointer(function), str(file).encode())
    records = ExecutablesFile(file).records
    assert len(records) == 2
    again = library.load_with(runtime, tmp_path / "f.jaxexp", executables=str(file).encode())
    for x, results in zip(arguments, expected, strict=False):
        assert_same(call(again, x), results)
        assert why_compiled(library, again) == ""
    again = library.load_with(runtime, tmp_path / "f.jaxexp", executables=str(file).encode())
    said = [why_compiled_at(library, again)]
    for x in (arguments[2], arguments[0], arguments[2][:7]):
        call(again, x)
        said.append(why_compiled_at(library, again))
    # Each is about the sizes of the last call, and stays as it was.
    begin = "it has code of this function for b=5, and not for b="
    found = [ctypes.string_at(text).decode() for text in said]
    assert [text.count(begin) for text in found] == [0, 1, 0, 1]
    assert (found[0], found[2]) == ("", "") and f"{begin}8" in found[1] and f"{begin}7" in found[3]


def test_what_is_not_known_is_refused_by_name(load: Any, call: Call) -> None:
    (b,) = jaxexp.symbolic_shape("b", constraints=["b >= 2"])
    nearly = jax.jit(lambda x: lax.approx_max_k(x, x.shape[0] // 2))
    exported = jaxexp.export(nearly)(jax.ShapeDtypeStruct((b,), "float32"))
    function = load(exported, **ANY)
    message = (
        r"^<lambda> has symbolic dimensions, and the sizes that its operation vhlo.custom_call_v1 of "
        r"stablehlo.dynamic_approx_top_k computes are not known here: fix them with 'jaxexp specialize OLD "
    )
    with pytest.raises(RunError, match=message) as error:
        call(function, np.ones(4, np.float32))
    assert error.value.reason == Reason.UNSUPPORTED


def why_compiled_at(library: Library, function: Handle) -> int:
    library.c.jaxexp_why_compiled.restype = ctypes.c_void_p
    return library.c.jaxexp_why_compiled(pointer(function))


def why_compiled(library: Library, function: Handle) -> str:
    return ctypes.string_at(why_compiled_at(library, function)).decode()


# --- from Python and from the command line --------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A function that is saved with two sizes."""
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 4"), "float32")
    exported = jaxexp.export(jax.jit(lambda x: {"tanh": jnp.tanh(x @ W), "rows": x * 2}))(spec)
    exported.save(tmp_path / "f.jaxexp", sizes=[{"b": 8}, {"b": 2}], pad="b", compatibility=built.READER)
    return tmp_path / "f.jaxexp"


def test_from_the_command_line(saved: Path, tmp_path: Path) -> None:
    x, code, any_size = tmp_path / "x.npy", tmp_path / "f.exe", tmp_path / "any.exe"
    np.save(x, numbers((5, 4)))
    done = built.run(saved, "--save-executable", code, "--sizes", "b=16")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(ExecutablesFile(code).records) == 3
    out = tmp_path / "out.npz"
    done = built.run(saved, x, "--pad", "--only-sizes", "--executables", code, "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    with np.load(out) as found:
        shapes = {name: array.shape for name, array in found.items()}
    assert shapes == {"result['rows']": (5, 4), "result['tanh']": (5, 3)}
    refused = built.run(saved, x, "--only-sizes")
    assert refused.returncode == 1
    assert "<lambda> runs for b=2 or b=8 only, and not for b=5" in refused.stderr
    artifact = tmp_path / "any.jaxexp"
    artifact.write_bytes(FUNCTIONS["products"].exported().serialize(compatibility=built.READER))
    done = built.run(artifact, x, "--repeat", 3, "--save-executable", any_size)
    assert done.returncode == 0, done.stderr
    assert "first call: " in done.stdout and "compiled in" not in done.stdout
    again = built.run(artifact, x, "--executables", any_size)
    assert (again.returncode, again.stderr) == (0, "")
    without = built.run(artifact, "--save-executable", tmp_path / "none.exe")
    assert without.returncode == 1
    assert "is compiled for no sizes yet: call it first" in without.stderr


def test_sessions(saved: Path, plugin: Path) -> None:
    x = numbers((5, 4))
    session = Session(saved, plugin=plugin, pad=True, only_sizes=True)
    session.compile()
    found = session(x)
    assert found["rows"].tobytes() == (2 * x).tobytes()
    np.testing.assert_allclose(found["tanh"], np.tanh(x @ W), rtol=1e-5, atol=1e-5)
    again = session.on_device(session.on_device(x)["rows"])["rows"]  # what was cut is on the device
    assert np.asarray(again).tobytes() == (4 * x).tobytes()
    with pytest.raises(
        jaxexp.errors.RunError, match="runs for b=2 or b=8 only, and not for b=9, which is larger"
    ) as error:
        session(numbers((9, 4)))
    assert error.value.reason == "argument"
    more = Session(saved, plugin=plugin, sizes=[{"b": 16}], only_sizes=True)
    assert more(numbers((16, 4)))["rows"].shape == (16, 4)
    with pytest.raises(jaxexp.errors.RunError, match=r"runs for b=2 or b=8 or b=16 only, and not for b=9$"):
        more(numbers((9, 4)))
    with pytest.raises(jaxexp.errors.RunError, match="takes a size of at least 1 for each of b"):
        Session(saved, plugin=plugin, sizes=[{"n": 16}])


def test_typed_random_keys(tmp_path: Path, plugin: Path) -> None:
    """The module constrains their data, between casts to types of another dialect."""
    (b,) = jaxexp.symbolic_shape("b")
    keys, x = jax.random.split(jax.random.key(3), 3), numbers((3,))
    drawn = jax.jit(lambda keys, x: (jax.vmap(jax.random.uniform)(keys) + x, jax.random.split(keys[0], x.shape[0])))
    exported = jaxexp.export(drawn)(jax.ShapeDtypeStruct((b,), keys.dtype), jax.ShapeDtypeStruct((b,), "float32"))
    exported.save(tmp_path / "f.jaxexp", cases=[(keys, x)], compatibility=built.READER)
    assert Session(tmp_path / "f.jaxexp", plugin=plugin).check().ok
