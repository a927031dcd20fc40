"""Functions with symbolic dimensions run for the sizes of their arguments, as they do when Python fixes the sizes; or
padded to sizes that were listed, where what is added cannot change what is kept, and nowhere else.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import random
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
from jaxexp.runtime import Session
from kit import goldens, native, own_goldens, weighted
from kit import runtime as built
from kit.run_c import Handle, Library, Reason, RunError, pointer
from kit.symbolic_functions import FUNCTIONS

pytestmark = [pytest.mark.cpp, pytest.mark.usefixtures("plugin")]

Call = Callable[..., list[np.ndarray]]
Load = Callable[..., Handle]

W = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
IMAGES = "b, 6, 6, 3"
POSITIVE = {"allow_negative_indices": False}  # otherwise, JAX computes them with the number of rows

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


def exported(function: Callable[..., Any], shape: str = "b, 4", dtype: str = "float32", **options: Any) -> bytes:
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape(shape, **options), dtype)
    return jaxexp.export(jax.jit(function))(spec).serialize(compatibility=built.READER)


def numbers(shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
    return (3 * np.random.default_rng(0).normal(size=shape)).astype(dtype)


def padded(x: np.ndarray, shape: Sequence[int], garbage: Any) -> np.ndarray:
    """An array that begins with `x`, with garbage in what is added."""
    made = np.empty(shape, x.dtype)
    made[...] = garbage
    made[tuple(map(slice, x.shape))] = x
    return made


def assert_begins(found: list[np.ndarray], kept: list[np.ndarray]) -> None:
    """Every bit of what is kept is as it was."""
    for larger, smaller in zip(found, kept, strict=True):
        assert larger[tuple(map(slice, smaller.shape))].tobytes() == smaller.tobytes()


def garbage_of(dtype: np.dtype) -> tuple[Any, ...]:
    return (np.nan, np.inf, -np.inf, 1e30, -7) if dtype.kind == "f" else (np.iinfo(dtype).max, np.iinfo(dtype).min, -7)


def pooled(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def convolved(x: Any) -> Any:
    kernel = jnp.ones((3, 3, 3, 2))
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def row_of(x: Any) -> Any:
    return jnp.abs(x[0, 0]).astype(int), 0


def every_round(x: Any) -> Any:
    return lax.scan(lambda c, y: (c + y, c * y), x[:, 0], x.T)


def history(x: Any, **how: Any) -> Any:
    """What a scan over the rows carries into each round."""
    return lax.scan(lambda c, y: (jnp.clip(c + y, -9, 9), c), jnp.zeros(x.shape[1:]), x, **how)[1]


def recurrent(x: Any) -> Any:
    state = jnp.zeros((x.shape[0], 3))
    return lax.scan(lambda h, y: (jnp.tanh(y @ W + h), h), state, jnp.swapaxes(x, 0, 1))


def until_large(row: Any) -> Any:
    """Ends, unless all numbers of the row are 0."""
    return lax.while_loop(lambda c: c.sum() < 9, lambda c: 2 * jnp.abs(c), row)


def counted(x: Any, step: Callable[[Any, Any], Any], rows: Any) -> Any:
    """A loop that makes as many rounds as `x` has rows, and changes an array of as many as `rows`."""
    made = jnp.zeros((rows, 4))
    return lax.while_loop(lambda c: c[0] < x.shape[0], lambda c: (c[0] + 1, step(c[1], c[0])), (0, made))[1]


def written(c: Any, at: Any, rows: int = 1) -> Any:
    return lax.dynamic_update_slice(c, jnp.ones((rows, 4)) + c[:1], (at, 0), **POSITIVE)


def attended(x: Any) -> Any:
    return jax.nn.dot_product_attention(x, x, x)


# Functions whose rows are apart, and the shapes of their arguments.
APART: dict[str, tuple[Callable[..., Any], str]] = {
    "products": (lambda x: (jnp.tanh(x @ W) @ W.T, jax.nn.softmax(x, -1), x.T * 2, x @ x.T), "b, 4"),
    "leading dimensions are merged": (lambda x: (jnp.tanh(x.reshape(-1, 2)).reshape(x.shape), x[0]), "b, 4"),
    "begins later": (lambda x: x[1:] - x[:-1], "b, 4"),
    "half of the rows": (lambda x: x[: x.shape[0] // 2], "b, 4"),
    "sorted rows": (lambda x: (jnp.sort(x, -1), jnp.argsort(x, -1), lax.top_k(x, 2)), "b, 4"),
    "numbers of rows": (lambda x: (x + jnp.arange(x.shape[0])[:, None], jnp.zeros(x.shape)), "b, 4"),
    "row in front": (lambda x: (jnp.concatenate([jnp.ones((1, 4)), x]), jnp.pad(x, ((2, 0), (1, 1)))), "b, 4"),
    "repeated": (lambda x: (jnp.repeat(x, 2, 0), jnp.tile(x, (1, 2)), every_round(x)), "b, 4"),
    "recurrence": (recurrent, "b, 5, 4"),
    "history of rows": (history, "b, 4"),
    "history of a recurrence": (lambda x: lax.scan(lambda h, y: (jnp.tanh(y @ W.T + h), h), x[0], x @ W)[1], "b, 4"),
    "map over rows": (lambda x: lax.map(lambda y: (jnp.tanh(y @ W), y.sum()), x), "b, 4"),
    "rows that a loop writes": (lambda x: counted(x, written, x.shape[0]), "b, 4"),
    "branch by the first row": (lambda x: lax.cond(x[0, 0] > 0, lambda y: y * 2, lambda y: y - 1, x), "b, 4"),
    "random numbers": (lambda x: x + jax.random.normal(jax.random.key(0), x.shape), "b, 4"),
    "mask of rows": (lambda x: (jnp.where(jnp.arange(x.shape[0])[:, None] < 3, x, 0), lax.cummax(x, 1)), "b, 4"),
    "products of matrices": (lambda x: jnp.einsum("bij,bjk->bik", x, x), "b, 4, 4"),
    "an element of each row": (lambda x: (x[jnp.arange(x.shape[0]), jnp.argmax(x, -1)], jnp.fft.fft(x)), "b, 4"),
    "cache of each row": (
        lambda x: jax.vmap(lambda y, i: lax.dynamic_update_slice(y, y[:1] * 2, (i,)))(x, jnp.argmin(x, -1)),
        "b, 4",
    ),
    "update of a column": (lambda x: (x.at[:, 1].set(0.0), x.at[0].add(1.0)), "b, 4"),
    "update of each row": (lambda x: jax.vmap(lambda y, i: y.at[i].set(9.0))(x, jnp.argmin(x, -1)), "b, 4"),
    "gradient of a sum": (jax.grad(lambda x: (jnp.tanh(x @ W) ** 2).sum()), "b, 4"),
    "convolution": (lambda x: (convolved(x), pooled(x)), IMAGES),
    "gradient of pooling": (jax.grad(lambda x: (pooled(x) ** 2).sum()), IMAGES),
    "attention": (attended, "b, 4, 2, 3"),
    "integers": (lambda x: (x // 3, x % 3, x.sum(1), x << 1), "b, 4"),
}


@pytest.mark.parametrize("name", APART)
def test_nothing_that_is_added_changes_what_is_kept(name: str, load: Load, call: Call) -> None:
    function, shape = APART[name]
    dtype = "int32" if name == "integers" else "float32"
    blob = exported(function, shape, dtype)
    runs_eight, runs_any = load(blob, "b=8"), load(blob, **ANY)
    for rows in (5, 8):
        x = numbers((rows, *map(int, shape.split(", ")[1:])), dtype)
        kept = call(runs_eight, x)
        for ours, theirs in zip(kept, call(runs_any, x), strict=True):
            assert ours.shape == theirs.shape
            # XLA vectorizes sums of products and transcendental functions by the number of rows.
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        for garbage in garbage_of(x.dtype):
            assert_begins(call(runs_eight, padded(x, (8, *x.shape[1:]), garbage)), kept)


# The operation that is refused, and a function that has it.
MIXING: dict[str, tuple[str, Callable[..., Any]]] = {
    "distance from the largest": ("reduce", lambda x: x - x.max()),
    "product over rows": ("dot_general", lambda x: x.T @ x),
    "sort": ("sort", lambda x: jnp.sort(x, 0)),
    "reversed": ("reverse", lambda x: lax.rev(x, (0,))),
    "last row": ("dynamic_slice", lambda x: x[-1]),
    "last rows": ("slice", lambda x: jnp.roll(x, 1, 0)),
    "row by number": ("dynamic_slice", lambda x: lax.dynamic_slice(x, row_of(x), (1, 4), **POSITIVE)),
    "update by number": ("dynamic_update_slice", lambda x: lax.dynamic_update_slice(x, x[:1], row_of(x), **POSITIVE)),
    "updates that grow": ("dynamic_update_slice", lambda x: lax.dynamic_update_slice(jnp.ones((9, 4)), x, (0, 0))),
    "cumulative sum": ("reduce_window", lambda x: jnp.cumsum(x, 0)),
    "windows over rows": ("convolution", convolved),
    "rows behind": ("pad", lambda x: jnp.pad(x, ((0, 1), (0, 0)))),
    "concatenated": ("concatenate", lambda x: jnp.concatenate([x, x])),
    "trailing dimensions are merged": ("reshape", lambda x: x.T.reshape(-1)),
    "segments": ("scatter", lambda x: jax.ops.segment_sum(x, jnp.zeros(x.shape[0], int), 3)),
    "loop while a row is small": ("while", lambda x: lax.while_loop(lambda c: (c < 9).any(), lambda c: c + 1, x)),
    "loop of as many rounds": ("while", lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c + x[i], x[0])),
    "scan over rows": ("compare", lambda x: lax.scan(lambda c, y: (c + y, c), x[0], x)),
    "scan from the last row": ("subtract", lambda x: history(x, reverse=True)),
    "rows that a loop writes later": (
        "dynamic_update_slice",
        lambda x: counted(x, lambda c, i: written(c, i - 1), x.shape[0]),
    ),
    "rows that a loop writes twice": ("compare", lambda x: counted(x, lambda c, i: written(c, i, 2), x.shape[0] + 1)),
    "rows that a longer loop writes": ("compare", lambda x: counted(x, written, 2 * x.shape[0])),
    "rows that a loop leaves": ("compare", lambda x: counted(x, lambda c, i: c + 1, x.shape[0])),
    "each loop of a row": (
        "while",
        jax.vmap(lambda row: lax.while_loop(lambda c: c.sum() < 9, lambda c: jnp.abs(c) + 1, row)),
    ),
    "loop of each row in a loop": ("while", lambda x: lax.map(until_large, x)),
    "loop of each row in a function": ("while", lambda x: lax.map(jax.jit(lambda row: 2 * until_large(row)), x)),
    "loop of each row in two loops": (
        "while",
        lambda x: lax.map(lambda row: lax.fori_loop(0, 3, lambda _, row: until_large(row), row), x),
    ),
    "loop of a row in a branch": (
        "while",
        lambda x: lax.map(lambda row: lax.cond(row[1] > 0, until_large, lambda row: row, row), x),
    ),
    "number of rows": ("return", lambda x: jnp.array(x.shape[0])),
    "gradient of a mean": ("convert", jax.grad(lambda x: jnp.tanh(x @ W).mean())),
    "generator of random bits": (
        "rng_bit_generator",
        lambda x: x + jax.random.normal(jax.random.key(0, impl="rbg"), x.shape),
    ),
}


def test_what_mixes_is_refused_by_its_name(load: Load, call: Call) -> None:
    wrong = {}
    for name, (operation, function) in MIXING.items():
        shape = "2, b, 6, 3" if function is convolved else "b, 4"
        blob = exported(function, shape, constraints=["b <= 9"])
        x = numbers([5 if size == "b" else int(size) for size in shape.split(", ")])
        try:
            wrong[name] = str(call(load(blob, "b=8"), x))
        except RunError as error:
            said = f" runs for b=8 only, and not for b=5, which cannot be padded to b=8: its operation {operation} "
            if said not in str(error) or error.reason != Reason.ARGUMENT:
                wrong[name] = str(error)
    assert not wrong


def test_the_error_says_where(load: Load, call: Call) -> None:
    """Without the option, a function is compiled for what it was called with."""
    blob, x = exported(lambda x: x - x.max()), numbers((5, 4))
    with pytest.raises(
        RunError, match=r"at 'jit\(<lambda>\)/reduce_max' \(\S*test_symbolic_calls\.py:[0-9]+\) mixes what is"
    ):
        call(load(blob, "b=8"), x)
    np.testing.assert_allclose(call(load(blob, "b=8", only_sizes=0), x)[0], x - x.max(), rtol=1e-6)


def until_all_are_one(x: Any) -> Any:
    return lax.while_loop(lambda s: jnp.any(s != 1), lambda s: jnp.where(s == 1, 1.0, s / 2), x)


def test_a_loop_may_never_end_for_what_is_added(load: Load, call: Call) -> None:
    """Also one whose result is dropped."""

    def dropped(x: Any) -> Any:
        return jnp.where(lax.iota(jnp.int32, x.shape[0])[:, None] < 100, x + 1, until_all_are_one(x))

    def branch(x: Any) -> Any:
        found = lax.cond(jnp.any(x == 0), lambda: lax.while_loop(lambda s: s[0, 0] < 1, lambda s: s - 1, x), lambda: x)
        return jnp.where(lax.iota(jnp.int32, x.shape[0])[:, None] < 100, x + 1, found)

    for function in (lambda x: lax.map(until_large, x), dropped, branch):
        with pytest.raises(RunError, match=r"its operation while at .* may never end for what is padded"):
            call(load(exported(function), "b=8"), numbers((5, 4)))


def test_each_variable_by_itself(load: Load, call: Call) -> None:
    function = load(exported(attended, "b, t, 2, 3"), "b=4,t=8", "b=4,t=16", "b=8,t=8")
    assert call(function, numbers((3, 8, 2, 3)))[0].shape == (3, 8, 2, 3)
    assert call(function, numbers((5, 8, 2, 3)))[0].shape == (5, 8, 2, 3)
    for shape in ((3, 7, 2, 3), (4, 9, 2, 3)):
        with pytest.raises(RunError, match=r"runs for b=4,t=8; b=4,t=16; b=8,t=8 only, and not for .* its operation"):
            call(function, numbers(shape))
    with pytest.raises(RunError, match="and not for b=9,t=8, which is larger"):
        call(function, numbers((9, 8, 2, 3)))


def test_expressions_and_constraints(load: Load, call: Call) -> None:
    """Constraints hold for the sizes of calls, and for listed ones."""
    x = numbers((6, 4))
    found = call(load(exported(lambda x: (x.reshape(-1, 2), x[: x.shape[0] // 2]), "2*b, 4"), "b=4"), x)
    assert [one.tobytes() for one in found] == [x.tobytes(), x[:3].tobytes()]
    blob = exported(lambda x: x + 1, constraints=["mod(b, 2) == 0"])
    assert call(load(blob, "b=8"), x)[0].shape == (6, 4)
    with pytest.raises(RunError, match="must be a multiple of 2, found 5"):
        call(load(blob, "b=8"), x[:5])
    with pytest.raises(RunError, match=r"the larger sizes do not fit: .*must be a multiple of 2, found 7"):
        call(load(blob, "b=7"), x)


def test_sizes_that_are_no_sizes(load: Load) -> None:
    blob = exported(lambda x: x + 1)
    takes = "<lambda> takes sets of sizes of at least 1 of b"
    for sizes, message in (
        *((sizes, takes) for sizes in (["c=8"], ["b=0"], ["b=8,c=3"], [""])),
        (["b"], "sizes are given as in batch=8,seq=128, and not 'b'"),
        ([], "is to run for listed sizes only, and none are listed"),
        ([f"b={i}" for i in range(1, 66)], "at most 64 sets of sizes, and not 65"),
    ):
        with pytest.raises(RunError, match=message):
            load(blob, *sizes)
    static = jaxexp.export(jax.jit(lambda x: x + 1))(jax.ShapeDtypeStruct((2,), "float32"))
    with pytest.raises(RunError, match="of at least 1 of no dimension variable"):
        load(static.serialize(compatibility=built.READER), "b=8")


@pytest.mark.parametrize("folder", [folder for folder, cases in own_goldens.CASES.items() if "sized" in cases])
def test_golden_artifacts_with_sizes(folder: str, plugin: Path) -> None:
    session = Session(own_goldens.blob_of(folder, "sized"), plugin=plugin, pad=True, only_sizes=True)
    found = session(*own_goldens.stored(folder, "sized", "in"))  # 3 rows, padded to 4
    for ours, theirs in zip(found.values(), own_goldens.stored(folder, "sized", "out"), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    with pytest.raises(jaxexp.RunError, match="runs for batch=4,n=8; batch=16,n=8 only, and not for batch=17,n=8"):
        session(np.ones((17, 8), np.float32))


@pytest.mark.wide(one_in=2, promise="padding changes nothing that is kept, or is refused, for all operations")
@pytest.mark.parametrize("name", [*FUNCTIONS][1:] + [*FUNCTIONS][:1])
def test_operations_are_apart_or_refused(name: str, load: Load, call: Call) -> None:
    """Functions of all operations with open sizes: padded arguments change nothing, or they are refused."""
    symbolic = FUNCTIONS[name]
    blob = symbolic.exported().serialize(compatibility=built.READER)
    variables = sorted({name for name in "abhtw" if name in symbolic.shape.replace("2*b", "b")})
    factor = 2 if "2*b" in symbolic.shape else 1
    given = symbolic.arguments()[0]
    sizes = dict(zip([s.strip() for s in symbolic.shape.split(",")], given.shape, strict=True))
    listed = ",".join(
        f"{v}={sizes.get(v, sizes.get(f'2*{v}', 0)) // (factor if v == 'b' else 1) + 3}" for v in variables
    )
    function = load(blob, listed)
    try:
        kept = call(function, given)
    except RunError as error:
        assert "cannot be padded to" in str(error)
        return
    larger = [size + 3 * (factor if "b" in key else 1) * (not key.isdigit()) for key, size in sizes.items()]
    for garbage in garbage_of(given.dtype):
        assert_begins(call(function, padded(given, larger, garbage)), kept)


def test_linear_algebra_of_each_matrix(library: Library, load: Load, call: Call) -> None:
    try:
        library.checked("use_lapack", str(built.lapack()).encode())
    except native.UnavailableError as missing:
        pytest.skip(str(missing))
    one_size = load(exported(lambda x: (*jnp.linalg.qr(x), jnp.linalg.inv(x)), "b, 4, 4"), "b=8")
    x = numbers((5, 4, 4))
    assert_begins(call(one_size, padded(x, (8, 4, 4), 7)), call(one_size, x))


def test_vjps_are_padded_too(library: Library, runtime: Handle, call: Call, tmp_path: Path) -> None:
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 4"), "float32")
    function = jax.jit(lambda x: jnp.tanh(x @ W))
    artifact = tmp_path / "f.jaxexp"
    jaxexp.export(function)(spec).save(artifact, vjp_order=1, compatibility=built.READER, sizes=[{"b": 8}])
    vjp = library.changed("vjp", library.load_with(runtime, artifact, pad=1, only_sizes=1))
    x, ct = numbers((5, 4)), np.ones((5, 3), np.float32)
    np.testing.assert_allclose(call(vjp, x, ct)[0], jax.vjp(function, x)[1](ct)[0], rtol=1e-4, atol=1e-5)


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
@pytest.mark.parametrize("name", FUNCTIONS)  # the test above begins with the second one
def test_operations(name: str, load: Any, call: Call) -> None:
    exported = FUNCTIONS[name].exported()
    function = load(exported, **ANY)
    for argument in FUNCTIONS[name].arguments()[:4:3]:
        assert_same(call(function, argument), call(load(specialized(exported, argument), **ANY), argument))


VERSIONS = [version for version, name in goldens.ARTIFACTS if name == "poly"]


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[len(VERSIONS) // 2], VERSIONS[-1]])
def test_golden_artifacts_of_five_sizes(version: str, load: Any, call: Call) -> None:
    """And padded to one size."""
    blob = goldens.blob_of(version, "poly")
    function, one_size = load(blob, **ANY), load(blob, "b=40")
    w = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
    for size in (1, 2, 5, 8, 33):
        x = np.random.default_rng(size).normal(size=(size, 8)).astype(np.float32)
        for found in (call(function, x, w), call(one_size, x, w)):
            np.testing.assert_allclose(found[0], np.tanh(x @ w), rtol=1e-5)


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
        with pytest.raises(jaxexp.ExportError) as refused:
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
        r"^<lambda> has symbolic dimensions, and of its operation vhlo.custom_call_v1 of "
        r"stablehlo.dynamic_approx_top_k it is not known what sizes it computes: fix them with 'jaxexp specialize OLD "
    )
    with pytest.raises(RunError, match=message) as error:
        call(function, np.ones(4, np.float32))
    assert error.value.reason == Reason.UNSUPPORTED


def why_compiled_at(library: Library, function: Handle) -> int:
    library.c.jaxexp_why_compiled.restype = ctypes.c_void_p
    return library.c.jaxexp_why_compiled(pointer(function))


def why_compiled(library: Library, function: Handle) -> str:
    return ctypes.string_at(why_compiled_at(library, function)).decode()


# --- random programs ------------------------------------------------------------------------------------------------

# Numbers stay small integers, which are computed without rounding: so results for all sizes have the same bits.
STEPS: dict[str, Callable[[Any, Any, random.Random], Any]] = {
    "add": lambda x, y, r: x + y if x.shape == y.shape else x + y[:1],
    "not a number": lambda x, y, r: jnp.where(jnp.isnan(x), 0.0, x),
    "numbers of rows": lambda x, y, r: x + jnp.arange(x.shape[0])[:, None],
    "rows turned": lambda x, y, r: jnp.roll(x, 1, r.randrange(2)),
    "without the first": lambda x, y, r: jnp.concatenate([x[1:], x[:1]]) if r.random() < 0.3 else x.at[0].set(1.0),
    "in front": lambda x, y, r: jnp.concatenate([y[:1], x] if r.random() < 0.5 else [x, y[:1]]),
    "pairs": lambda x, y, r: (x.reshape(-1, 2) * jnp.array([1.0, -1.0])).reshape(-1, 4),
    "product of rows": lambda x, y, r: jnp.clip((x @ y.T) @ y if r.random() < 0.5 else x @ y[:4].T, -5, 5),
    "scatter": lambda x, y, r: x.at[x[:, 0].astype(int) ** 2].add(1.0, wrap_negative_indices=False),
    "row by data": lambda x, y, r: x + lax.dynamic_slice(y, row_of(y), (1, 4), **POSITIVE),
    "loop by data": lambda x, y, r: lax.while_loop(lambda c: c[0, 0] < 5, lambda c: c + 1, jnp.clip(x, -5, 9)),
    "branch": lambda x, y, r: lax.cond(y[0, 0] > 0, lambda z: z + 1, lambda z: -z, x),
    "each row by a loop": lambda x, y, r: lax.map(lambda row: jnp.clip(row + row.max(), -9, 9), x),
    "history": lambda x, y, r: history(x, reverse=r.random() < 0.3),
    "written": lambda x, y, r: x + counted(y, lambda c, i: written(c, i + r.randrange(-1, 2), 1), x.shape[0]),
    "gaps": lambda x, y, r: lax.pad(x, 1.0, ((r.randrange(-1, 2), r.randrange(-1, 2), r.randrange(2)), (0, 0, 0))),
    "steps": lambda x, y, r: x[r.randrange(2) :: 2],
}


def program(seed: int) -> Callable[[Any], Any]:
    chosen = random.Random(seed)
    steps = [(chosen.choice([*STEPS]), chosen.random(), chosen.random()) for _ in range(chosen.randint(2, 5))]

    def run(x: Any) -> Any:
        made = [x]
        for name, which, state in steps:
            made.append(STEPS[name](made[-1], made[int(which * len(made))], random.Random(state)))
        return tuple(made[-2:])

    return run


@pytest.mark.long(
    promise="whatever a program does, padding changes nothing that is kept, or is refused",
    sibling="test_symbolic_calls.py::test_operations_are_apart_or_refused",
)
def test_random_programs(load: Load, call: Call) -> None:
    outcomes = {"padded": 0, "refused": 0}
    for seed in range(120):
        try:
            blob = exported(program(seed), constraints=["b >= 3", "b <= 9"])
        except Exception:  # JAX decides nothing about some sizes
            continue
        x = np.random.default_rng(seed).integers(-3, 4, (5, 4)).astype(np.float32)
        one_size = load(blob, "b=8")
        try:
            kept = call(one_size, x)
        except RunError as error:
            assert "cannot be padded" in str(error)
            outcomes["refused"] += 1
            continue
        outcomes["padded"] += 1
        for ours, theirs in zip(kept, call(load(blob, **ANY), x), strict=True):
            np.testing.assert_array_equal(ours, theirs, str(seed))
        for garbage in (np.nan, np.inf, -np.inf, 8, -100):
            assert_begins(call(one_size, padded(x, (8, 4), garbage)), kept)
    assert min(outcomes.values()) > 15, outcomes


# --- from Python and from the command line --------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A function that is saved with two sizes."""
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 4"), "float32")
    exported = jaxexp.export(jax.jit(lambda x: {"tanh": jnp.tanh(x @ W), "rows": x * 2}))(spec)
    exported.save(tmp_path / "f.jaxexp", sizes=[{"b": 8}, {"b": 2}], compatibility=built.READER)
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
    assert "<lambda> runs for b=2; b=8 only, and not for b=5" in refused.stderr
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
    with pytest.raises(jaxexp.RunError, match="runs for b=2; b=8 only, and not for b=9, which is larger") as error:
        session(numbers((9, 4)))
    assert error.value.reason == "argument"
    more = Session(saved, plugin=plugin, sizes=[{"b": 16}], only_sizes=True)
    assert more(numbers((16, 4)))["rows"].shape == (16, 4)
    with pytest.raises(jaxexp.RunError, match=r"runs for b=2; b=8; b=16 only, and not for b=9$"):
        more(numbers((9, 4)))
    with pytest.raises(jaxexp.RunError, match="takes sets of sizes of at least 1 of b"):
        Session(saved, plugin=plugin, sizes=[{"n": 16}])
