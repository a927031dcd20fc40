"""The table of cases in a trailer: kept as it is, and checked before it is believed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _native
from jaxexp._errors import DeserializationError
from jaxexp._kernel.artifact.cases import Case
from jaxexp._kernel.artifact.chain import chain
from jaxexp._kernel.codec import binding
from kit.layout import with_cases

F32, I32, U32 = 10, 3, 7
X = np.ones((2, 3), np.float32).tobytes()
VALUE = (F32, [2, 3], X, None, None, None)
RESULT = (I32, [], bytes(4), None, None, (0.0, 1.0))
TRACE = (U32, [2, 3], X, None, None, None)
CASE = ("first", 0, [VALUE], [RESULT], 0, TRACE)
RECORDINGS = [[("device", "ünï"), ("jax", "0.10.2")], []]
FILES = [("f.cases.safetensors", 1 << 40, bytes(16))]
TENSORS = [("first/arguments/0", 0, 24, bytes(range(16)))]
ALL = ([CASE, ("of a VJP", 1, [VALUE, (22, [], b"", None, None, None)], [VALUE], 1, None)], RECORDINGS, FILES, TENSORS)


@pytest.fixture(scope="module")
def function() -> jaxexp.Exported:
    return jaxexp.export(jax.jit(lambda x: x.argmax()))(jax.ShapeDtypeStruct((2, 3), jnp.float32))


def encoded(function: jaxexp.Exported, cases: Any) -> bytes:
    binding.bind()
    notes = _native.Notes("a test", {"key": "1"}, None, cases)
    return bytes(_native.encode([function, function.vjp()], jax.__version__, _native.Form(), notes))


def test_they_are_kept(function: jaxexp.Exported) -> None:
    blob = encoded(function, ALL)
    assert _native.Artifact(blob).cases() == ALL
    assert _native.Artifact(bytes(function.serialize())).cases() is None
    without = _native.with_cases(blob, None)
    assert without == encoded(function, None)
    assert _native.with_cases(without + b"behind the end", ALL) == blob
    modules = [link.module() for link in chain(_native.Artifact(blob))]
    assert _native.join(_native.cut(blob), modules) == blob


def test_the_function_is_as_without(function: jaxexp.Exported) -> None:
    """jax.export reads and calls it."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for read in (jaxexp.deserialize, jax.export.deserialize):
        assert read(bytearray(encoded(function, ALL))).call(x) == 5


def value(**changes: Any) -> tuple[Any, ...]:
    names = ("dtype", "shape", "data", "tensor", "drawn", "tolerance")
    return tuple({**dict(zip(names, VALUE, strict=True)), **changes}[name] for name in names)


def traced(**changes: Any) -> tuple[Any, ...]:
    return ("", 0, [VALUE], [RESULT], 0, value(**{"dtype": U32, **changes}))


def drawn(dtype: int, *how: Any) -> tuple[Any, ...]:
    return value(dtype=dtype, data=None, drawn=how)


ONE = "trailer.cases.cases[0]"
ARGUMENT = f"{ONE}.arguments[0]"
INFINITE, NAN = math.inf, math.nan
REFUSED: list[tuple[str, Callable[[], Any], str, str]] = [
    ("order", lambda: ("", 2, [VALUE], [RESULT], 0, None), f"{ONE}.order", "a number below 2, found 2"),
    ("recording", lambda: ("", 0, [VALUE], [RESULT], 2, None), f"{ONE}.recording", "an index below 2, found 2"),
    ("arguments", lambda: ("", 0, [], [RESULT], 0, None), f"{ONE}.arguments", "1 arrays, as the function has, found 0"),
    ("results", lambda: ("", 0, [VALUE], [RESULT] * 2, 0, None), f"{ONE}.results", "1 arrays, as the function has"),
    ("drawn result", lambda: ("", 0, [VALUE], [(I32, [], None, None, (2, 0, 0.0, 1.0), None)], 0, None),
     f"{ONE}.results[0]", "the numbers of a result, found how to draw some"),
    ("dtype", lambda: value(dtype=I32), f"{ARGUMENT}.dtype", "expected float32, found int32"),
    ("no dtype", lambda: value(dtype=99), f"{ARGUMENT}.dtype", "a dtype of JAX, found dtype 99"),
    ("rank", lambda: value(shape=[6]), f"{ARGUMENT}.shape", "2 dimensions, found 1"),
    ("size", lambda: value(shape=[3, 2]), f"{ARGUMENT}.shape", "expected 2 at axis 0, found 3"),
    ("much rank", lambda: value(shape=[1] * 65), f"{ARGUMENT}.shape", "at most 64 dimensions, found 65"),
    ("overflow", lambda: value(shape=[1 << 62, 4]), f"{ARGUMENT}.shape", "an array of less than 2^63 bytes"),
    ("bytes", lambda: value(data=X[1:]), f"{ARGUMENT}.data", "24 bytes for its dtype and shape, found 23"),
    ("nothing", lambda: value(data=None), ARGUMENT, "one of data, tensor and drawn, found none or several"),
    ("both", lambda: value(tensor=0), ARGUMENT, "one of data, tensor and drawn, found none or several"),
    ("tensor", lambda: value(data=None, tensor=1), f"{ARGUMENT}.tensor", "an index below 1, found 1"),
    ("tensor's size", lambda: value(data=None, tensor=0, shape=[2, 4]), f"{ARGUMENT}.tensor", "of 32 bytes"),
    ("negative tolerance", lambda: value(tolerance=(-1.0, 0.0)), f"{ARGUMENT}.tolerance", "not negative"),
    ("NaN tolerance", lambda: value(tolerance=(0.0, NAN)), f"{ARGUMENT}.tolerance", "finite numbers"),
    ("infinite tolerance", lambda: value(tolerance=(INFINITE, 0.0)), f"{ARGUMENT}.tolerance", "finite numbers"),
    ("distribution", lambda: drawn(F32, 3, 0, 0.0, 1.0), f"{ARGUMENT}.drawn.distribution", "a number below 3, found 3"),
    ("normal integers", lambda: drawn(I32, 0, 0, 0.0, 1.0), f"{ARGUMENT}.drawn.distribution", "integers, found 0"),
    ("NaN drawn", lambda: drawn(F32, 0, 0, NAN, 1.0), f"{ARGUMENT}.drawn", "finite numbers"),
    ("deviation", lambda: drawn(F32, 0, 0, 0.0, -1.0), f"{ARGUMENT}.drawn", "a deviation that is not negative"),
    ("uniform", lambda: drawn(F32, 1, 0, 2.0, 1.0), f"{ARGUMENT}.drawn", "a lower end below the upper one"),
    ("empty range", lambda: drawn(F32, 2, 0, 1.0, 1.0), f"{ARGUMENT}.drawn", "whole numbers that the dtype has"),
    ("fraction", lambda: drawn(F32, 2, 0, 0.5, 2.0), f"{ARGUMENT}.drawn", "whole numbers that the dtype has"),
    ("beyond int32", lambda: drawn(I32, 2, 0, 0.0, 2.0**31 + 1), f"{ARGUMENT}.drawn", "whole numbers"),
    ("trace of floats", lambda: traced(dtype=F32), f"{ONE}.trace", "a table of uint32 numbers, found another array"),
    ("trace's rank", lambda: traced(shape=[6]), f"{ONE}.trace", "a table of uint32 numbers, found another array"),
    ("trace's bytes", lambda: traced(data=X[1:]), f"{ONE}.trace.data", "24 bytes for its dtype and shape, found 23"),
    ("trace's tensor", lambda: traced(data=None, tensor=1), f"{ONE}.trace.tensor", "an index below 1, found 1"),
    ("drawn trace", lambda: traced(data=None, drawn=(2, 0, 0.0, 1.0)), f"{ONE}.trace", "found how to draw some"),
    ("below bool", lambda: drawn(0, 2, 0, -1.0, 1.0), f"{ARGUMENT}.drawn", "whole numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "where", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_is_refused(function: jaxexp.Exported, make: Callable[[], Any], where: str, message: str) -> None:
    made = make()
    case = made if isinstance(made[0], str) else ("", 0, [made], [RESULT], 0, None)
    blob = encoded(function, ([case], RECORDINGS, FILES, TENSORS))
    added = [case], RECORDINGS, FILES, TENSORS
    for read in (lambda: _native.Artifact(blob), lambda: _native.with_cases(encoded(function, None), added)):
        with pytest.raises(DeserializationError) as error:
            read()
        assert error.value.path == where
        assert message in str(error.value)


@pytest.mark.parametrize(
    ("rest", "where", "message"),
    [
        (([[("b", ""), ("a", "")]], [], []), "recordings[0].facts[1].key", "keys in ascending order, found 'a'"),
        (([[]], FILES, TENSORS * 2), "tensors", "names that are different"),
        (([[]], [], TENSORS), "tensors[0].file", "an index below 0"),
        (([[]], FILES * 2, TENSORS), "files", "names that are different, found 'f.cases.safetensors' twice"),
        (([[]], [("f" * 1025, 1, bytes(16))], []), "files[0].name", "at most 1024 bytes, found 1025"),
    ],
)
def test_what_is_refused_beside(function: jaxexp.Exported, rest: Any, where: str, message: str) -> None:
    with pytest.raises(DeserializationError) as error:
        _native.Artifact(encoded(function, ([], *rest)))
    assert error.value.path == f"trailer.cases.{where}"
    assert message in str(error.value)


@pytest.mark.parametrize("orders", [(0, 0), (0, 1)])
def test_names_are_different(function: jaxexp.Exported, orders: tuple[int, int]) -> None:
    """Also those of calls of VJPs: reports and tensors are named by them."""
    cases = [("n", order, [RESULT], [RESULT], 0, None) for order in orders]
    for read in (
        lambda: _native.Artifact(encoded(function, (cases, RECORDINGS, FILES, TENSORS))),
        lambda: _native.with_cases(encoded(function, None), (cases, RECORDINGS, FILES, TENSORS)),
    ):
        with pytest.raises(DeserializationError, match="names that are different, found 'n' twice") as error:
            read()
        assert error.value.path == "trailer.cases.cases"


def test_texts_of_recordings_count_for_each_case(function: jaxexp.Exported) -> None:
    """A report shows them with each."""

    def artifact(count: int, facts: list[tuple[str, str]]) -> _native.Artifact:
        cases = [(str(i), 0, [VALUE], [RESULT], 0, None) for i in range(count)]
        return _native.Artifact(encoded(function, (cases, [facts], [], [])))

    for facts in ([("jax", "1" * 10_000)], [(f"{i:03}", "") for i in range(150)]):
        assert artifact(100, facts).cases() is not None
        with pytest.raises(DeserializationError, match="recordings that are not much longer than the trailer"):
            artifact(3_000, facts)


def test_indices_that_are_no_numbers() -> None:
    words = "1 \u0663 02 x " + "9" * 5_000
    assert Case("", 0, (), (), {"measured": words}).measured == {1, 2}


def test_what_is_shared_is_refused() -> None:
    """Flat buffers may say one thing many times, which readers would copy as often."""
    assert "expected float32, found bool" in _error(with_cases(1, 1))
    assert "tables inside the trailer" in _error(with_cases(1_000, 1_000))
    assert "no more bytes than the trailer has, found the same arrays several times" in _error(with_cases(1, 20, 1_000))


def _error(blob: bytes) -> str:
    with pytest.raises(DeserializationError) as error:
        _native.Artifact(blob)
    return str(error.value)


def test_every_damaged_byte_is_noticed(function: jaxexp.Exported) -> None:
    blob = encoded(function, ALL)
    start = blob.index("ünï".encode())
    for at in range(start - 300, min(start + 300, len(blob))):
        damaged = bytearray(blob)
        damaged[at] ^= 1
        with pytest.raises(DeserializationError):
            _native.Artifact(bytes(damaged)).module()
