"""`jaxexp.runtime.Session` beside `Exported.call`: the same trees, and the same numbers."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import gc
import os
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

import jaxexp
from jaxexp import _jax, _native, _runtime
from jaxexp._kernel.module import mlir
from jaxexp.errors import DeserializationError, ExecutablesError, ExportError, RunError
from jaxexp.runtime import Array, Session, Value
from jaxexp.runtime.arrays import dtype_of
from kit import costs, layout, starving, without_jax
from kit.archive_files import make
from kit.each import each
from kit.runtime import READER, numpy_dtype
from kit.saved import saved

without_jax.skip_without_plugin()
pytestmark = pytest.mark.jax

X = np.arange(6, dtype=np.float32).reshape(2, 3)
D = {"w": np.ones((3, 4), np.float32), "b": np.arange(4, dtype=np.float32)}


class Pair(NamedTuple):
    a: Any
    b: Any


class Wrapper:
    """A registered node whose children have no names."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner


jax.tree_util.register_pytree_node(Wrapper, lambda node: ((node.inner,), None), lambda _, children: Wrapper(*children))
jaxexp.register_pytree_node_serialization(
    Wrapper,
    serialized_name="test_runtime_sessions.Wrapper",
    serialize_auxdata=lambda _: b"",
    deserialize_auxdata=lambda _: None,
)


def same(found: Any, expected: Any) -> None:
    """Equal trees, of arrays of NumPy with equal dtypes and shapes."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(one) is np.ndarray
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(np.asarray(one, float), np.asarray(other, float), rtol=1e-5)


def function(x: Any, d: Any, *, k: Any) -> Any:
    return {"y": x @ d["w"] + d["b"], "z": (k["n"], [x.sum(), None])}, d["b"].astype(jnp.bfloat16)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("session"), function, X, D, k={"n": np.int32(1)})


@pytest.fixture(scope="module")
def session(path: Path) -> Session:
    return Session(path, plugin="cpu")


# --- trees ----------------------------------------------------------------------------------------------------------


def test_a_call_takes_and_returns_the_trees_of_the_function(path: Path, session: Session) -> None:
    same(session(X, D, k={"n": 3}), function(X, D, k={"n": np.int32(3)}))
    assert session.name == "function"
    assert session.platform == "cpu"
    assert session.arguments[1] == Value("args[1]['b']", "float32", (4,))
    assert session.results[-1] == Value("result[1]", "bfloat16", (4,))
    assert repr(session) == f"<Session function of {str(path)!r} on cpu, 4 arguments>"
    assert repr(Session(path.read_bytes(), plugin="cpu")) == "<Session function on cpu, 4 arguments>"


def test_a_call_by_paths(session: Session) -> None:
    given = {"args[0]": X, "args[1]['b']": D["b"], "args[1]['w']": D["w"], "kwargs['k']['n']": 3}
    same(session.call_by_path(given), function(X, D, k={"n": np.int32(3)}))
    del given["args[0]"]
    with pytest.raises(RunError, match=r"^function lacks the argument args\[0\]$"):
        session.call_by_path(given)
    with pytest.raises(RunError, match=r"^function has no argument nobody; it has args\[0\], args\[1\]\['b'\]"):
        session.call_by_path({**given, "nobody": X})


def test_nodes_of_other_classes(tmp_path: Path) -> None:
    def swapped(pair: Pair, x: Any) -> Any:
        return Pair(pair.b, pair.a + x), {1: x, 2: pair.a}, collections.OrderedDict(z=x, a=pair.b)

    session = Session(saved(tmp_path, swapped, Pair(X, X), X), plugin="cpu")
    other = collections.namedtuple("other", "a b")
    node, by_number, ordered = session(other(X, 2 * X), X)
    assert isinstance(node, jaxexp.GenericNode)
    assert node._class_name.endswith(".Pair")
    same([node.a, node["b"], node[1]], [2 * X, 2 * X, 2 * X])
    same([by_number, ordered], [{1: X, 2: X}, collections.OrderedDict(z=X, a=2 * X)])
    again, *_ = session(node, X)
    same(again.a, 2 * X)
    for wrong, found in ((D, "a dict"), ((X, X), "a tuple"), (None, "None")):
        with pytest.raises(RunError, match=rf"^calling swapped: args\[0\] must be a .*\.Pair, found {found}"):
            session(wrong, X)
    with pytest.raises(RunError, match=r"args\[0\] must have the fields 'a', 'b', found 'a'$"):
        session(collections.namedtuple("short", "a")(X), X)
    session = Session(saved(tmp_path, lambda w: w.inner + 1, Wrapper(X)), plugin="cpu")
    with pytest.raises(RunError, match=r"give arrays by their paths \(Session\.call_by_path\)"):
        session(Wrapper(X))
    same(session.call_by_path({session.arguments[0].path: X}), X + 1)


def test_what_does_not_fit(session: Session) -> None:
    one = {"k": {"n": 1}}
    of_n = "kwargs['k']['n'] must have dtype int32, found the number"
    for args, kwargs, message in (
        ((X,), one, "function takes 2 positional arguments, and not 1"),
        ((X, D), {}, "kwargs must have the keys 'k', found none"),
        ((X, {"w": X}), one, "args[1] must have the keys 'b', 'w', found 'w'"),
        ((X, [X, X]), one, "args[1] must be a dict, found a list"),
        ((X[:1], D), one, "args[0].shape[0] must have size 2, found size 1 (exported with float32[2,3], called with "
         "float32[1,3])"),
        ((X.astype(float), D), one, "args[0] must have dtype float32, found dtype float64 (exported with "
         "float32[2,3], called with float64[2,3])"),
        (("x", D), one, "args[0] must be an array, found a str (exported with float32[2,3])"),
        ((X, D), {"k": {"n": 1.5}}, f"{of_n} 1.5 (exported with int32[])"),
        ((X, D), {"k": {"n": 1 << 40}}, f"{of_n} 1099511627776 (exported with int32[])"),
    ):  # fmt: skip
        with pytest.raises(RunError) as caught:
            session(*args, **kwargs)
        assert str(caught.value).removeprefix("calling function: ") == message
        assert caught.value.reason == "argument"


# --- arrays ---------------------------------------------------------------------------------------------------------


def test_every_dtype() -> None:
    """Of others, the plugin has no arrays."""
    names = "bool int4 int8 int16 int32 uint4 uint8 uint16 uint32 float16 float32 bfloat16 float8_e4m3fn complex64"
    others = """int64 uint64 float64 complex128 float8_e4m3b11fnuz float8_e5m2fnuz float8_e4m3fnuz float8_e4m3
        float8_e3m4 float8_e8m0fnu float4_e2m1fn"""
    sessions = []
    for group in (names + " float8_e5m2", others):
        given = [np.array([[0, 1, 1], [1, 0, 1]]).astype(numpy_dtype(name)) for name in group.split()]
        with jax.enable_x64(True):
            function = jax.jit(lambda *arrays: [(x[::-1], x[:, :0]) for x in arrays])
            sessions.append((Session(jaxexp.export(function)(*given).serialize(), plugin="cpu"), given))
    session, given = sessions[0]
    for array, (turned, empty) in zip(given, session(*given), strict=True):
        assert (turned.dtype, turned.tobytes()) == (array.dtype, array[::-1].tobytes())
        assert (empty.dtype, empty.shape) == (array.dtype, (2, 0))


def test_keys_are_their_data_and_bfloat16_of_jax_is_taken(tmp_path: Path) -> None:
    key, numbers = jax.random.key(3), jnp.arange(4, dtype=jnp.bfloat16)
    session = Session(saved(tmp_path, lambda k, x: (jax.random.split(k), x + x), key, numbers), plugin="cpu")
    halves, twice = session(np.asarray(jax.random.key_data(key)), numbers)
    same(halves, np.asarray(jax.random.key_data(jax.random.split(key))))
    same(twice, np.arange(4).astype(ml_dtypes.bfloat16) * 2)


class Foreign:
    """An array of a library that NumPy does not know."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.array


class Negative(Foreign):
    """A view of PyTorch's, which says by DLPack what it is a view of."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        return self.array.__dlpack__()

    def is_neg(self) -> bool:
        return True

    def resolve_neg(self) -> np.ndarray:
        return -self.array


class OnDevice(Foreign):
    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0  # CUDA


def from_line(line: int, file: str, code: str) -> Any:
    space = {"jax": jax, "jnp": jnp}
    exec(compile("\n" * line + f"def f(x): return {code}", file, "exec"), space)
    return space["f"]


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_errors_show_no_file_that_a_location_names(kind: str, tmp_path: Path) -> None:
    """XLA would open it. Its plugin does not know the operation."""
    for line in (2, 1_000_000):
        source = tmp_path / f"{line}.py"
        blob = jaxexp.export(jax.jit(from_line(line, str(source), "jax.lax.top_k(x, 2)")))(X).serialize(trailer=False)
        if kind == "file":
            source.write_text("secret\n" * (line + 9))
        else:
            os.mkfifo(source)
        # Not newer than the plugin, so that all that it says is shown.
        blob = re.sub(rb"StableHLO_v1\.\d\d", b"StableHLO_v1.13", blob)
        with pytest.raises(RunError) as error:
            Session(blob, plugin="cpu").compile()
        assert "secret" not in str(error.value)


def test_files_that_are_called_as_parts_of_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules have each text once."""
    monkeypatch.chdir(tmp_path)
    for line, name in ((2, "main"), (1_000_000, "public"), (2, "lapack_spotrf_ffi")):
        function = from_line(line, name, "jnp.linalg.cholesky(x @ x.T + jnp.eye(2))")
        blob = jaxexp.export(jax.jit(function))(X).serialize(compatibility=READER)
        Path(name).touch()
        same(Session(blob, plugin="cpu")(X), function(X))


B = jaxexp.symbolic_shape("b")[0]


def test_modules_of_other_functions() -> None:
    """The plugin compares nothing but the number of bytes."""

    def exported(types: list[str]) -> jaxexp.Exported:
        specs = []
        for text in types:
            dtype, _, shape = text.removesuffix("]").partition("[")
            sizes = [B if size == "b" else int(size) for size in shape.split(",")]
            specs.append(jax.ShapeDtypeStruct(sizes, dtype))
        return jaxexp.export(jax.jit(lambda *args: args))(*specs)

    for said, taken, message in (
        (["float32[3]"], ["int32[3]"], r"takes float32\[3\] as args\[0\], found int32\[3\]"),
        (["float32[2,3]"], ["float32[3,2]"], r"takes float32\[2,3\] as args\[0\], found float32\[3,2\]"),
        (["float32[6]"], ["float16[12]"], r"found float16\[12\]"),
        (["bool[4]"], ["int8[4]"], r"takes bool\[4\] .* found int8\[4\]"),
        (["complex64[2]"], ["complex128[1]"], r"found complex128\[1\]"),
        (["float32[b]"], ["float32[4]"], r"takes float32\[b\] .* found float32\[4\]"),
        (["float32[4]"], ["float32[4]"] * 2, "takes 1 values, as the signature says, found one that takes 2"),
    ):
        with jax.enable_x64(True):
            module = exported(taken).mlir_module_serialized
            blob = dataclasses.replace(exported(said), mlir_module_serialized=module).serialize()
        with pytest.raises(DeserializationError, match=message):
            Session(blob, plugin="cpu")


def test_arrays_of_others(session: Session, tmp_path: Path) -> None:
    expected = session(X, D, k={"n": 3})
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=X.shape)
    mapped[:] = X
    fortran, big = np.asfortranarray(X), X.astype(">f4")
    for x in (Foreign(X), Negative(-X), jnp.asarray(X), mapped, fortran, big, np.stack([X, X], -1)[..., 1]):
        same(session(x, D, k={"n": np.int32(3)}), expected)
    for x in (jnp.asarray(X), fortran, big):
        same(session(session.put(x), D, k={"n": 3}), expected)
    with pytest.raises(
        RunError,
        match="must be an array, found a OnDevice: a DLPack tensor has to be in host memory or on a device of",
    ):
        session(OnDevice(X), D, k={"n": 3})
    with pytest.raises(RunError, match="must have dtype int32, found dtype int64"):
        session(X, D, k={"n": np.int64(3)})
    with pytest.raises(RunError, match="must be an array, found a masked array, whose mask would be lost"):
        session(np.ma.array(X, mask=X > 2), D, k={"n": 3})


def run_text(arguments: dict[str, np.ndarray], lines: list[str], results: list[tuple[str, str]]) -> Any:
    """What a function in StableHLO computes, of which these are parts."""
    names, types = (", ".join(parts) for parts in zip(*results, strict=True))
    text = "\n".join([*lines, f"return {names} : {types}"])
    text = f"func.func @main({', '.join(arguments)}) -> ({types}) {{ {text} }}"
    blob = jaxexp.from_stablehlo(text).serialize(compatibility=READER)
    return Session(blob, plugin="cpu")(*arguments.values())


ELEMENTS = {"i32": np.int32, "ui8": np.uint8, "f32": np.float32}

# Of constants, as XLA's specification says: compilers of plugins get some of these wrong, as JAX's did before 0.11.
CONSTANTS: dict[str, tuple[str, str, str, list[Any]]] = {
    "quotient": ("i32", "[7, -7]", "stablehlo.divide %a, %zero", [-1, -1]),
    "quotient without sign": ("ui8", "[7, 200]", "stablehlo.divide %a, %zero", [255, 255]),
    "remainder": ("i32", "[7, -7]", "stablehlo.remainder %a, %zero", [7, -7]),
    "leading zeros": ("i32", "[-1, 1]", "stablehlo.count_leading_zeros %a", [0, 31]),
    "maximum": ("f32", "[0x7FC00000, 1.0]", "stablehlo.maximum %a, %zero", [np.nan, 1]),
    "maximum of a sum": ("f32", "[0x7FC00000, 1.0]", "stablehlo.maximum %sum, %a", [np.nan, 1]),
    "minimum": ("f32", "[0x7FC00000, 1.0]", "stablehlo.minimum %zero, %a", [np.nan, 0]),
}


def test_operations_that_plugins_compute_wrong() -> None:
    """Also comparisons that leave the sign to the type."""
    lines, results, arguments = [], [], {}
    for i, (element, dtype) in enumerate(ELEMENTS.items()):
        type_, zero = f"tensor<2x{element}>", "0.0" if element == "f32" else "0"
        arguments[f"%x{i}: {type_}"] = np.zeros(2, dtype)
        lines += [f"%zero{i} = stablehlo.constant dense<{zero}> : {type_}"]
        lines += [f"%sum{i} = stablehlo.add %zero{i}, %zero{i} : {type_}"]
    for n, (element, numbers, operation, _) in enumerate(CONSTANTS.values()):
        type_, i = f"tensor<2x{element}>", list(ELEMENTS).index(element)
        operation = operation.replace("%zero", f"%zero{i}").replace("%sum", f"%sum{i}").replace("%a", f"%a{n}")
        lines += [f"%a{n} = stablehlo.constant dense<{numbers}> : {type_}", f"%r{n} = {operation} : {type_}"]
        lines += [f"%y{n} = stablehlo.add %r{n}, %x{i} : {type_}"]
        results.append((f"%y{n}", type_))
    expected = {name: np.array(last, ELEMENTS[element]) for name, (element, *_, last) in CONSTANTS.items()}
    for element, dtype in {**ELEMENTS, "i1": np.bool_}.items():
        type_, x, y = f"tensor<2x{element}>", np.array([-5, 1]).astype(dtype), np.array([3, 0]).astype(dtype)
        arguments |= {f"%x_{element}: {type_}": x, f"%y_{element}: {type_}": y}
        operation = f"stablehlo.compare LT, %x_{element}, %y_{element} : ({type_}, {type_}) -> tensor<2xi1>"
        lines.append(f"%r_{element} = {operation}")
        results.append((f"%r_{element}", "tensor<2xi1>"))
        expected[f"comparison of {element}"] = x < y
    for result, (name, wanted) in zip(run_text(arguments, lines, results), expected.items(), strict=True):
        np.testing.assert_array_equal(result, wanted, err_msg=name)


def test_nan_is_kept(tmp_path: Path) -> None:
    """XLA's plugins lose it by default in maxima and minima."""

    def maxima(x: Any) -> Any:
        window = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (1, 1), "SAME")
        each = jnp.maximum(x, 0.5), jnp.minimum(x, 0.5), jax.nn.relu(x), jnp.clip(x, -1, 0.5)
        return x.max(0), x.min(0), x.max(), jax.lax.cummax(x, 0), window, each, jax.nn.softmax(x, 0)

    x = np.ones((3, 4), np.float32)
    x[0] = x[1, 1] = np.nan
    found = Session(saved(tmp_path, maxima, x, reader=READER), plugin="cpu")(x)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-6), found, jax.jit(maxima)(x))


def test_functions_with_layouts_of_their_own() -> None:
    """A plugin would lay arguments and results out as the module says; here they are row-major."""
    columns = Format(Layout((1, 0)), SingleDeviceSharding(jax.devices()[0]))
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    function = jax.jit(lambda x: (x * 2, x + 1), in_shardings=columns, out_shardings=(columns, None))
    exported = jaxexp.export(function)(jax.device_put(x, columns))
    assert "layout_mode" in exported.mlir_module()
    same(Session(exported.serialize(compatibility=READER), plugin="cpu")(x), (2 * x, x + 1))


def test_scatters_with_narrow_indices(tmp_path: Path) -> None:
    """XLA before JAX 0.12 writes nothing to an array that is longer than the type of the indices can say."""
    numbers = jax.lax.ScatterDimensionNumbers((0,), (), (0,))
    mode = jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
    indices = [
        np.array([index], dtype) for dtype, index in (("int8", 50), ("int8", 127), ("uint8", 255), ("int16", 50))
    ]

    def scattered(x: Any, *indices: Any) -> Any:
        return [jax.lax.scatter(x, i, jnp.full(3, -1.0), numbers, mode=mode) for i in indices]

    x = np.arange(300, dtype=np.float32)
    for size in ((300,), jaxexp.symbolic_shape("b", constraints=["b >= 3"])):
        path = saved(tmp_path, scattered, jax.ShapeDtypeStruct(size, np.float32), *indices)
        for index, found in zip(indices, Session(path, plugin="cpu")(x, *indices), strict=True):
            expected = x.copy()
            expected[index[0] : int(index[0]) + 3] = -1
            np.testing.assert_array_equal(found, expected, err_msg=index.dtype.name)


def test_convolutions_that_xla_counts_wrong(tmp_path: Path) -> None:
    """From 2^24 places on, with those between the elements, it reads outside of the array."""

    def convolved(x: Any, k: Any) -> Any:
        numbers = "NHWC", "HWIO", "NHWC"
        return jax.lax.conv_general_dilated(x, k, (2, 1), [(0, 0)] * 2, (4096, 1), dimension_numbers=numbers)

    k, x = np.ones((3, 1, 1, 1), np.float32), np.ones((1, 4097, 1, 1), np.float32)
    for rows in (4097, B):
        path = saved(tmp_path, convolved, jax.ShapeDtypeStruct((1, rows, 1, 1), np.float32), k)
        named = r"convolution at 'jit\(convolved\)/conv.*test_runtime_sessions.py:\d+\) has 16777217 places in a dimen"
        with pytest.raises(RunError, match=named):
            Session(path, plugin="cpu")(x, k)
    found = Session(saved(tmp_path, convolved, x[:, :4096], k), plugin="cpu")(x[:, :4096], k)
    assert found.sum() == 2 * 4094 + 1 + 1  # the first and the last row are in one window, the others in two


def one_dimensional(x: Any, k: Any, padding: tuple[int, int], dilation: int = 1, stride: int = 1) -> Any:
    numbers = "NWC", "WIO", "NWC"
    return jax.lax.conv_general_dilated(x, k, (stride,), (padding,), (dilation,), dimension_numbers=numbers)


@each(
    "padding, dilation",
    [((-1, 2), 1), ((-3, 4), 1), ((-9, 4), 1), ((-4, 2), 3), ((-25, 3), 3), ((-2, -1), 2), ((-3, 0), 2)],
)
def test_paddings_that_take_away_in_front(padding: tuple[int, int], dilation: int, tmp_path: Path) -> None:
    """Also all there is, or what is between elements; in a loop; and for sizes that the call says."""
    x, k = np.random.default_rng(0).normal(size=(2, 9, 2)), np.arange(6).reshape(1, 2, 3) + 1
    x, k = x.astype(np.float32), np.concatenate([k, -k, 2 * k]).astype(np.float32)
    places = np.zeros((2, 8 * dilation + 1, 2), np.float32)
    places[:, ::dilation] = x
    low, high = padding
    kept = np.pad(places[:, -low : min(high, 0) or None], ((0, 0), (0, max(high, 0)), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(kept, 3, axis=1)
    expected = np.einsum("bwik,kio->bwo", windows, k)

    def convolved(x: Any, k: Any, other: Any) -> Any:
        _, in_loop = jax.lax.scan(lambda _, x: (0, one_dimensional(x[None], k, padding, dilation)[0]), 0, x)
        return one_dimensional(x, k, padding, dilation), in_loop, jnp.pad(other, 1)

    (width,) = jaxexp.symbolic_shape("w", constraints=["w >= 9"])
    for shape in (x.shape, (B, 9, 2), (2, width, 2)):
        path = saved(tmp_path, convolved, jax.ShapeDtypeStruct(shape, np.float32), k, np.ones(3, np.float32))
        for found in Session(path, plugin="cpu")(x, k, np.ones(3, np.float32))[:2]:
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_paddings_that_take_away_too_much(tmp_path: Path) -> None:
    x, k = np.ones((1, 9, 2), np.float32), np.ones((3, 2, 2), np.float32)
    for size in (9, B):
        shape = jax.ShapeDtypeStruct((1, size, 2), np.float32)
        path = saved(tmp_path, lambda x, k: one_dimensional(x, k, (-10, 14)), shape, k)
        with pytest.raises(RunError, match="has padding that takes away 10 places of 9: on CPUs"):
            Session(path, plugin="cpu")(x, k)


@each("kernel, stride, padding", [(1, 3, (1, 1)), (1, 2, (1, 0)), (2, 3, (2, 1)), (1, 4, (3, 2))])
def test_the_vjp_of_a_strided_convolution(kernel: int, stride: int, padding: tuple[int, int], tmp_path: Path) -> None:
    """Its padding takes away in front."""
    x, k = np.arange(14, dtype=np.float32).reshape(1, 7, 2), np.ones((kernel, 2, 3), np.float32)
    path = saved(tmp_path, lambda x, k: one_dimensional(x, k, padding, stride=stride), x, k, vjp_order=1)
    y, pulled = jax.vjp(jaxexp.load(path).call, x, k)
    for found, expected in zip(
        Session(path, plugin="cpu").vjp()(x, k, np.ones_like(y)), pulled(jnp.ones_like(y)), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


COMPOSITES = {
    "erf": jax.scipy.special.erf,
    "acosh": lambda x: jnp.arccosh(x + 1),
    "top_k": lambda x: jax.lax.top_k(x, 2),
    "in a reduction": lambda x: jax.lax.reduce(x, np.float32(0), lambda a, b: a + jax.lax.erf(b), (0,)),
}


@each("name", COMPOSITES)
def test_composites_of_a_newer_stablehlo(name: str, tmp_path: Path) -> None:
    """JAX writes operations of CHLO so. An older plugin has no `composite_v2`."""
    x = np.linspace(0.1, 0.9, 6, dtype=np.float32).reshape(2, 3)
    for size in (2, B):
        path = saved(tmp_path, COMPOSITES[name], jax.ShapeDtypeStruct((size, 3), np.float32))
        found = Session(path, plugin="cpu")(x)
        jax.tree.map(lambda *ab: np.testing.assert_allclose(*ab, rtol=1e-5), list(found), list(COMPOSITES[name](x)))


def test_custom_calls_in_a_newer_stablehlo(tmp_path: Path) -> None:
    """A plugin that lacks both names one of them, so the other one is said, too."""
    target = "jaxexp_no_such_target"
    fun = jax.jit(lambda x: jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(X.shape, X.dtype))(x))
    exported = jaxexp.export(fun, disabled_checks=[jaxexp.DisabledSafetyCheck.custom_call(target)])(X)
    for reader, is_newer in ((None, True), (READER, False)):
        exported.save(tmp_path / "f.jaxexp", compatibility=reader)
        with pytest.raises(RunError, match=f"the plugin does not compile: {target} .*register_ffi") as refused:
            Session(tmp_path / "f.jaxexp", plugin="cpu")(X)
        assert ("or export the function with compatibility=" in str(refused.value)) == is_newer


def test_without_ml_dtypes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function runs all the same, and results that NumPy cannot show stay where they are."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    dtype_of.cache_clear()
    try:
        fresh = Session(path, plugin="cpu")
        with pytest.raises(ImportError, match="arrays of dtype bfloat16 need the package ml_dtypes, which is not inst"):
            fresh(X, D, k={"n": 3})
        _, small = fresh.on_device(X, D, k={"n": 3})
        assert small.dtype == "bfloat16"
    finally:
        dtype_of.cache_clear()


def test_numbers_of_python(tmp_path: Path) -> None:
    names = "float32 bool int8 bfloat16 complex64 int4 uint4 float16 float8_e4m3fn".split()
    specs = [jax.ShapeDtypeStruct((), jnp.dtype(name)) for name in names]
    session = Session(saved(tmp_path, lambda *values: values, *specs), plugin="cpu")
    for right in (
        [2, False, -3, 1.5, 1 + 2j, 3, 3, 65504, 448],
        [float("inf"), True, 0, 1e38, 0, 0, 0, float("-inf"), 0.5],
    ):
        np.testing.assert_allclose([complex(array.item()) for array in session(*right)], right, rtol=1e-2)
    of_four_bits: list[Any] = [300, 1.5, float("nan"), 1 << 70, -9]
    for name, numbers in {
        "float32": [True, 2j, 1e300],
        "bool": [0],
        "int8": [300, 1.5, float("nan")],
        "bfloat16": [1e39],
        "complex64": [1e300, 1e300j],
        "float16": [1e6, 70_000, 1 << 2000],
        "float8_e4m3fn": [1e3],
        "int4": of_four_bits,
        "uint4": of_four_bits,
    }.items():
        for number in numbers:
            wrong = [number if other == name else one for other, one in zip(names, right, strict=True)]
            with pytest.raises(RunError, match=rf"must have dtype {name}, found the number "):
                session(*wrong)


def test_arrays_on_the_device(session: Session) -> None:
    expected = function(X, D, k={"n": np.int32(3)})
    tree, small = session.on_device(session.put(X), D, k={"n": 3})
    y = tree["y"]
    assert isinstance(y, Array)
    assert (y.dtype, y.shape, repr(y)) == ("float32", (2, 4), "Array(float32[2,4])")
    assert y.block_until_ready().is_ready()
    same([np.asarray(y), np.asarray(small)], [expected[0]["y"], expected[1]])
    shared = np.from_dlpack(y)
    assert shared.__array_interface__["data"][0] == np.asarray(y).__array_interface__["data"][0]
    same(shared, expected[0]["y"])
    assert np.asarray(y, np.float64).dtype == np.float64
    assert np.array(y).flags.writeable
    with pytest.raises(ValueError, match="takes a copy"):
        np.asarray(y, np.float64, copy=False)
    with pytest.raises(BufferError, match="shared through DLPack without a copy"):
        y.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="not on"):
        y.__dlpack__(dl_device=(2, 0))
    same(session(X, D, k={"n": tree["z"][0]}), expected)
    with pytest.raises(RunError, match="there is no device 99"):
        session.put(X, 99)


# --- derivatives ----------------------------------------------------------------------------------------------------


def test_vjps(tmp_path: Path, cache: Path) -> None:
    """Of any order; in the compile cache, too, as the code of each size."""

    def g(x: Any, n: Any, unused: Any) -> Any:
        return jnp.sin(x).sum() * n, n

    n, of_n = np.int32(2), np.zeros((), np.bool_)
    path = saved(tmp_path, g, jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 3"), np.float32), n, X[0], vjp_order=2)
    for _ in range(2):
        whole = Session(path, plugin="cpu")
        for rows in (1, 2):
            same(whole(X[:rows], n, X[0]), g(X[:rows], n, X[0]))
        session = whole.vjp()
        of_x, nothing, of_unused = session(X, n, X[0], np.float32(1), of_n)
        np.testing.assert_allclose(of_x, 2 * np.cos(X), rtol=1e-5)
        assert (nothing.dtype, nothing.shape) == (np.bool_, ())
        np.testing.assert_array_equal(of_unused, 0 * X[0])
        assert len(list(cache.glob("*.exe"))) == 3
    second = session.vjp()
    assert len(second.arguments) == 8
    with pytest.raises(RunError, match=r"has no VJP of order 3: it was saved with vjp_order=2$"):
        second.vjp()


# --- errors ---------------------------------------------------------------------------------------------------------


def test_errors_are_those_of_jaxexp(tmp_path: Path, path: Path) -> None:
    damaged, none, tpu = (str(tmp_path / f"{name}.jaxexp") for name in ("damaged", "none", "tpu"))
    Path(damaged).write_bytes(path.read_bytes()[:300])
    jaxexp.export(jax.jit(jnp.sin), platforms=["tpu"])(X).save(tpu)
    devices, variables = "devices are chosen by their numbers, from 0 on, and not by", "sizes are given by the names of"
    sized = [
        ({"sizes": [{"b": size}]}, RunError, rf"the size of b is a number from 1 to 2\^63 - 1, not {size}")
        for size in (0, -1, 1 << 63)
    ]
    for given, options, kind, message in (
        (none, {}, FileNotFoundError, "none"),
        (damaged, {}, DeserializationError, "expected"),
        (3, {}, TypeError, "Session takes an artifact as a path"),
        (path, {"policy": jaxexp.Policy(), "executables": "f.exe"}, ExportError, "executables are native code"),
        (path, {"devices": [-1]}, RunError, devices),
        (path, {"devices": [1 << 40]}, RunError, devices),
        *((path, *case) for case in sized),
    ):
        with pytest.raises(kind, match=message) as error:
            Session(given, plugin="cpu", **options)  # type: ignore[arg-type]
        named = getattr(error.value, "filename", None) or getattr(error.value, "file", None)
        assert named == (given if given in (none, damaged) else None)
    for name in (1, "\ud800"):
        with pytest.raises(RunError, match=f"{variables} dimension variables, not by"):
            Session(path, plugin="cpu").compile({name: 2})  # type: ignore[dict-item]
    with pytest.raises(RunError, match=r"tpu\.jaxexp: .* was exported for tpu, and the plugin is for cpu") as of:
        Session(tpu, plugin="cpu")
    assert of.value.reason == "unsupported"
    again = pickle.loads(pickle.dumps(of.value))
    assert (str(again), again.reason) == (str(of.value), "unsupported")
    assert isinstance(again, (RuntimeError, ValueError))


def test_bytes_and_file_objects(path: Path) -> None:
    """Results stay when all else is gone."""
    expected = function(X, D, k={"n": np.int32(3)})
    with path.open("rb") as file:
        for given in (path.read_bytes(), bytearray(path.read_bytes()), str(path), file):
            tree, small = Session(given, plugin="cpu")(X, D, k={"n": 3})
            gc.collect()
            assert not tree["y"].flags.writeable
            same((tree, small), expected)


@pytest.mark.processes(reason="it ends while its threads are in C++")
def test_threads_that_nobody_waits_for(tmp_path: Path) -> None:
    """They are in C++ when the interpreter ends."""
    path = saved(tmp_path, lambda x: x + 1, np.ones(4, np.float32), vjp_order=1)
    code = """
import os, sys, threading
import numpy as np
from jaxexp.runtime import Session
path, exe = sys.argv[1], os.path.dirname(sys.argv[1]) + "/f.exe"
blob = open(path, "rb").read()
def again(run):
    run()
    ready.release()
    while True:
        run()
x, ready = np.ones(4, np.float32), threading.Semaphore(0)
session = Session(blob, plugin="cpu")
on_device = session.on_device(x)
work = [
    lambda: session(x), lambda: session.on_device(x), lambda: session(on_device), lambda: session.put(x),
    lambda: session.call_by_path({"args[0]": x}), lambda: np.asarray(on_device), lambda: np.from_dlpack(on_device),
    lambda: session.vjp()(x, x), lambda: session.why_compiled, lambda: session.weights, lambda: session.compile(),
    lambda: session.save_executable(exe), lambda: Session(path, plugin="cpu"), lambda: Session(blob, plugin="cpu")]
for run in work:
    threading.Thread(target=again, args=(run,), daemon=True).start()
for _ in work:
    ready.acquire()
"""
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)


# --- Python's lock --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="locks a file as the compile cache does")
@pytest.mark.parametrize("symbolic", [False, True])
def test_what_is_asked_while_another_thread_compiles(tmp_path: Path, cache: Path, symbolic: bool) -> None:
    """What has to wait lets other threads run, and what only asks does not wait."""
    import fcntl

    shape = jaxexp.symbolic_shape("b, 3") if symbolic else X.shape
    path = saved(tmp_path, jnp.sin, jax.ShapeDtypeStruct(shape, np.float32))
    Session(path, plugin="cpu")(X)
    (entry,) = cache.iterdir()
    entry.unlink()
    turn = entry.with_name(f"{entry.name}.lock").open("wb")
    fcntl.flock(turn, fcntl.LOCK_EX)  # as another process that compiles
    session = Session(path, plugin="cpu")
    waiting = [
        lambda: session(X),
        lambda: session.on_device(X),
        lambda: session.compile({"b": 2} if symbolic else None),
    ]
    if not symbolic:  # otherwise, it saves what is there
        waiting.append(lambda: session.save_executable(tmp_path / "f.exe"))
    with concurrent.futures.ThreadPoolExecutor(len(waiting)) as pool:
        compiled = [pool.submit(one) for one in waiting]
        while len(inside(session)) < len(waiting):
            time.sleep(0.01)
        time.sleep(0.1)  # all are in C++ now
        assert session.why_compiled == "" and repr(session) and session.put(X).shape == X.shape
        assert Session(path, plugin="cpu").why_compiled == ""
        assert not any(one.done() for one in compiled)
        Path(turn.name).unlink()
        turn.close()
        for one in compiled:
            one.result()
    assert session.why_compiled == "the compile cache has no code of it"


def inside(session: Session) -> list[Any]:
    """The threads whose innermost frame is a method of this session."""
    return [frame for frame in sys._current_frames().values() if frame.f_locals.get("self") is session]


def test_large_artifacts_and_arrays_let_other_threads_run(tmp_path: Path) -> None:
    large = np.random.default_rng(0).integers(0, 255, 64 << 20, np.uint8)
    path = saved(tmp_path, lambda i: jnp.asarray(large)[i], np.int32(3))
    session = Session(path, plugin="cpu")
    program = session._program
    columns = large.reshape(1024, -1).T
    for call in (
        lambda: Session(path, plugin="cpu"),
        lambda: session(3),
        lambda: session.put(large),
        lambda: _runtime.Program.of_file(path).facts(0),
        lambda: (program.facts(0), program.inventory(0), program.calls_lapack(), program.trees(0)),
        lambda: _native.FileBytes(path, at_once=True),
        lambda: session._plugin.from_dlpack(columns.__dlpack__()),
    ):
        assert not starving.starves(call)


def test_memory_that_is_shown_to_whoever_checks_files(tmp_path: Path) -> None:
    """It is gone when the file is refused, so the view of it is, too."""
    w = {"w": np.ones(3, np.float32)}
    jaxexp.export(jax.jit(lambda w, x: w["w"] + x))(w, w["w"]).bind(w).save(tmp_path / "f.jaxexp")
    session = Session(tmp_path / "f.jaxexp", plugin="cpu")
    session.save_executable(tmp_path / "f.exe")
    weights = str(tmp_path / "f.safetensors")
    views: list[memoryview] = []

    def refuse(file: str, view: memoryview) -> None:
        views.append(view)
        raise PermissionError(file)

    def load(executables: str, weights: str) -> Any:
        rest = (False, [], False, False, False, "", 0, refuse)
        return session._plugin.load(session._program, [0], executables, weights, *rest)

    for given, refused in (
        (lambda: load(str(tmp_path / "f.exe"), ""), "f.exe"),
        (lambda: load("", weights), weights),
        (lambda: load("", ""), weights),
        (lambda: session._function.with_weights(weights, refuse), weights),
    ):
        with pytest.raises(PermissionError, match=refused):
            given()
        with pytest.raises(ValueError, match="released memoryview"):
            len(views.pop())


# --- the compile cache ----------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path) -> Any:
    jaxexp.compile_cache(tmp_path / "cache")
    yield tmp_path / "cache"
    jaxexp.compile_cache(None)


def test_code_that_is_kept(tmp_path: Path, cache: Path) -> None:
    """In the cache, which Python uses, too, for its own code; and in a file."""
    sine = saved(tmp_path, jnp.sin, X)
    jax.clear_caches()
    expected = np.asarray(jaxexp.load(sine).call(X))
    (of_python,) = cache.iterdir()
    exe, none = tmp_path / "f.exe", tmp_path / "none" / "f.exe"

    def why(**options: Any) -> str:
        session = Session(sine, plugin="cpu", **options)
        same(session(X), expected)
        return session.why_compiled

    assert why() == "the compile cache has no code of it"
    (entry,) = set(cache.iterdir()) - {of_python}
    session = Session(sine, plugin="cpu")
    same(session(X), expected)
    assert session.why_compiled == ""
    session.save_executable(exe)  # of code that was compiled anew
    assert why(executables=exe) == ""
    good = entry.read_bytes()
    for bad in (b"", good[:-100], good[:100], bytes([*good[:-1000], good[-1000] ^ 1, *good[-999:]])):
        entry.write_bytes(bad)
        assert why().startswith("expected ")
        assert why() == ""
    jaxexp.compile_cache(None)
    other = Session(saved(tmp_path / "other", lambda x: x + 1, X), plugin="cpu", executables=exe)
    other.compile()
    assert other.why_compiled
    with pytest.raises(FileNotFoundError) as missing:
        why(executables=none)
    assert missing.value.filename == str(none)
    with pytest.raises(FileNotFoundError) as missing:
        session.save_executable(none)
    assert missing.value.filename == str(none)
    with pytest.raises(ExecutablesError) as wrong:
        session.save_executable(sine)
    assert wrong.value.file == str(sine)


@each("name", ["garbage", "empty", "an artifact", "cut head", "other head"])
def test_no_file_of_executables(name: str, tmp_path: Path) -> None:
    """A session refuses it as `load` does, instead of compiling."""
    sine, file = saved(tmp_path, jnp.sin, X), tmp_path / "f.exe"
    jaxexp.load(sine).precompile(into=file)
    code = file.read_bytes()
    other = bytes([*code[:100], code[100] ^ 1, *code[101:]])
    contents = {"garbage": b"garbage" * 99, "empty": b"", "an artifact": sine.read_bytes(), "cut head": code[:20]}
    file.write_bytes(contents.get(name, other))
    said = []
    for use in (jaxexp.load, lambda path, executables: Session(path, plugin="cpu", executables=executables)):
        with pytest.raises(ExecutablesError) as error:
            use(sine, executables=file)
        said.append((str(error.value), error.value.file))
    assert said[0] == said[1]


@each("wrong", [True, np.True_, 8.0, "8"])
def test_numbers_that_are_no_integers(wrong: Any, tmp_path: Path) -> None:
    session = Session(sine := saved(tmp_path, jnp.sin, X), plugin="cpu")
    for use in (lambda: Session(sine, plugin="cpu", sizes=[{"b": wrong}]), lambda: session.compile({"b": wrong})):
        with pytest.raises(TypeError, match="a set of sizes is a dict of integers"):
            use()
    with pytest.raises(TypeError):
        Session(sine, plugin="cpu", devices=[wrong])


def test_a_program_in_an_archive_is_copied(tmp_path: Path) -> None:
    """Whoever cuts the archive, or writes to it, changes nothing, and ends no process."""
    x = np.arange(3, dtype=np.float32)
    path = tmp_path / "f.zip"
    for change in (lambda: os.truncate(path, 10), lambda: path.write_bytes(bytes(path.stat().st_size))):
        path.unlink(missing_ok=True)
        make(path, dict.fromkeys(("one", "two"), jaxexp.export(jax.jit(lambda x: x + 1))(x)))
        session = Session(f"{path}::two", plugin="cpu")
        change()
        np.testing.assert_array_equal(session(x), x + 1)


def test_dimensions_of_one_text_are_parsed_once(tmp_path: Path) -> None:
    """And a variable may be called like a number, by digits of other scripts."""
    assert Session(of_dimensions(tmp_path, "\u0663"), plugin="cpu").arguments[0].shape == ("\u0663",)
    path = of_dimensions(tmp_path, *[" + ".join(f"v{i}" for i in range(1_800))] * 250, count=8)
    _, _, memory = costs.measured(lambda: Session(path, plugin="cpu"))
    assert memory < costs.allowed_memory(path.stat().st_size)


def of_dimensions(folder: Path, *dims: str, count: int = 1) -> Path:
    """An artifact with arguments of these dimensions."""
    path = folder / f"{len(dims)}.jaxexp"
    with _jax.make_ir_context():
        arguments = ", ".join(f"%x{i}: tensor<{'?x' * len(dims)}f32>" for i in range(count))
        module = mlir.serialize(_jax.ir.Module.parse(f"func.func @main({arguments}) {{ return }}"))
    said = {"module_kept_var_idx": [*range(count)], "mlir_module_serialized": bytes(module)}
    path.write_bytes(layout.of_values([layout.aval(*dims)], [0] * count, **said))
    return path
