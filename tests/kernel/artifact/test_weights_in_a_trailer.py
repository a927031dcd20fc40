"""The table of weights in a trailer: kept as it is, and checked before it is believed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _native
from jaxexp._errors import DeserializationError
from jaxexp._kernel.codec import binding

FILES = [("model-1.safetensors", 1 << 40, bytes(range(16))), ("ünï.safetensors", 8, bytes(16))]
TENSORS = [("layers/0/w", 1, 1 << 33, bytes(range(16, 32))), ("", 0, 0, bytes(16))]
OTHERS = [("tied", 1), ("ünï", 0)]


@pytest.fixture(scope="module")
def function() -> jaxexp.Exported:
    return jaxexp.export(jax.jit(lambda w, b, x: x @ w + b))(
        *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3, 4), (4,), (2, 3)))
    )


def encoded(function: jaxexp.Exported, files: list, tensors: list, others: list, orders: int = 0) -> bytes:
    binding.bind()
    chain = [function]
    for _ in range(orders):
        chain.append(chain[-1].vjp())
    notes = _native.Notes("a test", {"key": "1"}, (files, tensors, others))
    return bytes(_native.encode(chain, jax.__version__, _native.Form(), notes))


def test_they_are_kept(function: jaxexp.Exported) -> None:
    artifact = _native.Artifact(encoded(function, FILES, TENSORS, OTHERS, orders=1))
    assert artifact.weights() == (FILES, TENSORS, OTHERS)
    assert artifact.vjp().weights() == (FILES, TENSORS, OTHERS)
    assert artifact.metadata() == {"key": "1"}
    assert _native.Artifact(bytes(function.serialize())).weights() is None


def test_the_program_is_as_without(function: jaxexp.Exported) -> None:
    """jax.export reads and calls it; so does jaxexp, from bytes that are in no folder."""
    blob = encoded(function, FILES, TENSORS, OTHERS)
    arguments = np.ones((3, 4), np.float32), np.ones(4, np.float32), np.ones((2, 3), np.float32)
    for read in (jaxexp.deserialize, jax.export.deserialize):
        np.testing.assert_array_equal(read(bytearray(blob)).call(*arguments), np.full((2, 4), 4))


@pytest.mark.parametrize(
    ("files", "tensors", "others", "where", "message"),
    [
        (FILES, [("x", 2, 0, bytes(16))], [], "tensors[0].file", "expected an index below 2, found 2"),
        ([], [("x", 0, 0, bytes(16))], [], "tensors[0].file", "expected an index below 0"),
        (FILES, [TENSORS[0]] * 2, [], "tensors", "expected names that are different, found 'layers/0/w' twice"),
        (FILES, [(str(i), 0, 0, bytes(16)) for i in range(4)], [], "", "at most 3 tensors, one for each argument"),
        (FILES, TENSORS, [("x", 2)], "other_names[0].tensor", "expected an index below 2, found 2"),
        (FILES, TENSORS, [("layers/0/w", 1)], "tensors", "names that are different, found 'layers/0/w' twice"),
    ],
)
def test_what_is_refused(
    function: jaxexp.Exported, files: list, tensors: list, others: list, where: str, message: str
) -> None:
    blob = encoded(function, files, tensors, others)
    with pytest.raises(DeserializationError) as error:
        _native.Artifact(blob)
    assert error.value.path == f"trailer.weights.{where}".strip(".")
    assert message in str(error.value)


def test_every_damaged_byte_is_noticed(function: jaxexp.Exported) -> None:
    blob = encoded(function, FILES, TENSORS, OTHERS)
    start = blob.index(b"layers/0/w")
    for at in range(start - 200, start + 100):
        damaged = bytearray(blob)
        damaged[at] ^= 1
        with pytest.raises(DeserializationError):
            _native.Artifact(bytes(damaged)).module()
