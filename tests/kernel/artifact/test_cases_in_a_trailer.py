"""Cases and weights in a trailer are kept as they are, and checked before they are believed; numbers that are drawn.

These are Philox, as its authors publish it, and never change.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import Drawn, _native
from jaxexp._errors import DeserializationError
from jaxexp._kernel.artifact.cases import _AT_ONCE, DISTRIBUTIONS, Case, _some, draw, philox
from jaxexp._kernel.artifact.chain import chain
from jaxexp._kernel.codec import binding
from kit import wire
from kit.census import census, flipped
from kit.each import each
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


def encoded(function: jaxexp.Exported, cases: Any, weights: Any = None) -> bytes:
    binding.bind()
    notes = _native.Notes("a test", {"key": "1"}, weights, cases)
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
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for read in (jaxexp.deserialize, jax.export.deserialize):
        assert read(bytearray(blob)).call(x) == 5
    at = blob.index("ünï".encode())
    assert set(census(flipped(blob, [8 * i for i in range(at - 300, min(at + 300, len(blob)))]))) == {"refused"}


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
    ("trace of floats", lambda: traced(dtype=F32), f"{ONE}.trace", "a table of uint32 numbers, found float32"),
    ("trace's rank", lambda: traced(shape=[6]), f"{ONE}.trace", "a table of uint32 numbers, found uint32 of rank 1"),
    ("trace's bytes", lambda: traced(data=X[1:]), f"{ONE}.trace.data", "24 bytes for its dtype and shape, found 23"),
    ("trace's tensor", lambda: traced(data=None, tensor=1), f"{ONE}.trace.tensor", "an index below 1, found 1"),
    ("drawn trace", lambda: traced(data=None, drawn=(2, 0, 0.0, 1.0)), f"{ONE}.trace", "found how to draw some"),
    ("below bool", lambda: drawn(0, 2, 0, -1.0, 1.0), f"{ARGUMENT}.drawn", "whole numbers"),
]  # fmt: skip


@each("what, make, where, message", REFUSED)
def test_what_is_refused(
    function: jaxexp.Exported, what: str, make: Callable[[], Any], where: str, message: str
) -> None:
    made = make()
    case = made if isinstance(made[0], str) else ("", 0, [made], [RESULT], 0, None)
    added = [case], RECORDINGS, FILES, TENSORS
    refused(encoded(function, added), where, message)
    refused(lambda: _native.with_cases(encoded(function, None), added), where, message)


def refused(blob: Any, where: str, message: str) -> None:
    with pytest.raises(DeserializationError) as error:
        blob() if callable(blob) else _native.Artifact(blob)
    assert error.value.path == where
    assert message in str(error.value)


@each("text", ["a test", "key", "first", "device", "f.cases.safetensors", "first/arguments/0"])
def test_texts_are_utf8(function: jaxexp.Exported, text: str) -> None:
    blob = bytearray(encoded(function, ALL))
    blob[blob.rindex(b"\0" + text.encode() + b"\0") + 1] = 0xFF
    with pytest.raises(DeserializationError, match="expected UTF-8, found bytes that are not"):
        _native.Artifact(bytes(wire.seal(blob)))


def names(*orders: int) -> list[Any]:
    return [("n", order, [RESULT], [RESULT], 0, None) for order in orders]


@each(
    "added, where, message",
    [
        (([], [[("b", ""), ("a", "")]], [], []), "recordings[0].facts[1].key", "keys in ascending order, found 'a'"),
        (([], [[]], FILES, TENSORS * 2), "tensors", "names that are different"),
        (([], [[]], [], TENSORS), "tensors[0].file", "an index below 0"),
        (([], [[]], FILES * 2, TENSORS), "files", "names that are different, found 'f.cases.safetensors' twice"),
        (([], [[]], [("f" * 1025, 1, bytes(16))], []), "files[0].name", "at most 1024 bytes, found 1025"),
        # Reports and tensors are named by cases, also by those of VJPs.
        ((names(0, 0), RECORDINGS, FILES, TENSORS), "cases", "names that are different, found 'n' twice"),
        ((names(0, 1), RECORDINGS, FILES, TENSORS), "cases", "names that are different, found 'n' twice"),
    ],
)
def test_what_is_refused_beside(function: jaxexp.Exported, added: Any, where: str, message: str) -> None:
    for blob in (encoded(function, added), lambda: _native.with_cases(encoded(function, None), added)):
        refused(blob, f"trailer.cases.{where}", message)


def test_texts_of_recordings_count_for_each_case(function: jaxexp.Exported) -> None:
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
    for sizes, message in {
        (1, 1): "expected float32, found bool",
        (1_000, 1_000): "tables inside the trailer",
        (1, 20, 1_000): "no more bytes than the trailer has, found the same arrays several times",
    }.items():
        with pytest.raises(DeserializationError, match=message):
            _native.Artifact(with_cases(*sizes))


WEIGHT_FILES = [("model-1.safetensors", 1 << 40, bytes(range(16))), ("ünï.safetensors", 8, bytes(16))]
WEIGHTS = [("layers/0/w", 1, 1 << 33, bytes(range(16, 32))), ("", 0, 0, bytes(16))]
ALL_WEIGHTS = (WEIGHT_FILES, WEIGHTS, [("tied", 1), ("ünï", 0)])


@pytest.fixture(scope="module")
def layer() -> jaxexp.Exported:
    shapes = ((3, 4), (4,), (2, 3))
    return jaxexp.export(jax.jit(lambda w, b, x: x @ w + b))(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes))


def test_weights_are_kept(layer: jaxexp.Exported) -> None:
    blob = encoded(layer, None, ALL_WEIGHTS)
    artifact = _native.Artifact(blob)
    assert artifact.weights() == artifact.vjp().weights() == ALL_WEIGHTS
    assert artifact.metadata() == {"key": "1"}
    assert _native.Artifact(bytes(layer.serialize())).weights() is None
    arguments = np.ones((3, 4), np.float32), np.ones(4, np.float32), np.ones((2, 3), np.float32)
    for read in (jaxexp.deserialize, jax.export.deserialize):
        np.testing.assert_array_equal(read(bytearray(blob)).call(*arguments), np.full((2, 4), 4))


@each(
    "weights, where, message",
    [
        ((WEIGHT_FILES, [("x", 2, 0, bytes(16))], []), ".tensors[0].file", "expected an index below 2, found 2"),
        ((WEIGHT_FILES, [WEIGHTS[0]] * 2, []), ".tensors", "names that are different, found 'layers/0/w' twice"),
        ((WEIGHT_FILES, [(str(i), 0, 0, bytes(16)) for i in range(4)], []), "", "at most 3 tensors, one for each argu"),
        ((WEIGHT_FILES, WEIGHTS, [("x", 2)]), ".other_names[0].tensor", "expected an index below 2, found 2"),
        ((WEIGHT_FILES, WEIGHTS, [("layers/0/w", 1)]), ".tensors", "names that are different, found 'layers/0/w' twi"),
    ],
)
def test_weights_that_are_refused(layer: jaxexp.Exported, weights: Any, where: str, message: str) -> None:
    refused(encoded(layer, None, weights), f"trailer.weights{where}", message)


ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)


def test_philox() -> None:
    """The known answers of Random123."""
    for (counter, key), words in {
        ((0, 0, 0, 0), (0, 0)): "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ((ONES, ONES, ONES, ONES), (ONES, ONES)): "408f276d 41c83b0e a20bc7c6 6d5451fd",
        PI: "d16cfe09 94fdcceb 5001e420 24126ea1",
    }.items():
        found = philox([np.array([word], np.uint64) for word in counter], key)
        assert " ".join(f"{int(word[0]):08x}" for word in found) == words


PROMISED = {
    Drawn((300,), "float32"): "218ec0466f84558a",
    Drawn((3, 5), "float64", seed=7, first=1, second=2): "2cd9732c152ca03e",
    Drawn((40,), "float32", "uniform", 1 << 63, -1, 1): "6d4b7ad29fb86b72",
    Drawn((40,), "bfloat16", seed=2): "55bedd833eb043a6",
    Drawn((40,), "float16", "uniform", 3, 0, 1e5): "d2818f3367e0dd72",
    Drawn((40,), "float8_e4m3fn", seed=4): "d21e54b854a45103",
    Drawn((7,), "complex64", seed=5): "8fb1e2565801a06f",
    Drawn((40,), "int8", first=-128, second=128): "1aec4c35e906a83d",
    Drawn((40,), "int64", first=-(2.0**53), second=2.0**53): "85cf629a79274a8e",
    Drawn((40,), "int4"): "5713f23ce7543849",
    Drawn((40,), "bool"): "faf0fa8318d20163",
    Drawn((2,), "key<fry>"): "a8fd1957531541d0",
}


@each("drawn", PROMISED)
def test_the_same_in_every_release(drawn: Drawn) -> None:
    array = drawn.array()
    assert hashlib.sha256(array.tobytes()).hexdigest()[:16] == PROMISED[drawn]
    assert array.nbytes == drawn.nbytes


def test_each_number_by_itself() -> None:
    whole, start = Drawn((600_000,), "float32").array(), Drawn((5,), "float32").array()
    np.testing.assert_array_equal(whole[:5], start)
    for distribution in DISTRIBUTIONS:
        whole = draw(distribution, 5, 0, 9, (40_001,), np.float64)
        for start in (0, 1, 7, _AT_ONCE - 1, _AT_ONCE, 39_999):
            some = _some(distribution, 5, 0, 9, start, min(3, 40_001 - start))
            np.testing.assert_array_equal(whole[start:][:3], some)
