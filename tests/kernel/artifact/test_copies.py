"""What `jax.export` writes for each argument again: damage to any of the copies is found, wherever it is."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import jax
import jax.export
import jax.numpy as jnp
import pytest

import jaxexp

BLOCKS = 80
SIZE, KEY = b"4711", b"kernel_of_it"


@functools.cache
def artifact() -> bytes:
    shapes = {"bias": (3,), KEY.decode(): (int(SIZE), 2)}
    block = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    params = {f"block_{i:03}": block for i in range(BLOCKS)}
    exported = jax.export.export(jax.jit(lambda params: jax.tree.map(jnp.sin, params)))(params)
    return bytes(exported.serialize())


def damaged(text: bytes, other: bytes) -> Iterator[str]:
    """For each place of a text, the error of an artifact that has another text there."""
    written = len(text).to_bytes(4, "little") + text + b"\0"
    other = written[:4] + other
    assert len(other) == len(written)
    for found in re.finditer(re.escape(written), artifact()):
        blob = artifact()[: found.start()] + other + artifact()[found.end() :]
        with pytest.raises(jaxexp.DeserializationError) as caught:
            jaxexp.deserialize(blob)
        yield str(caught.value)


def indices(errors: list[str], place: str) -> list[int]:
    found = [re.match(place.replace("#", r"(\d+)"), error) for error in errors]
    return sorted(int(match[1]) for match in found if match)


def test_it_is_read_as_it_was_written() -> None:
    assert jaxexp.deserialize(artifact()).in_avals == jax.export.deserialize(bytearray(artifact())).in_avals


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (SIZE + b"!", "a zero-terminated string inside the buffer"),
        (b"47\xff1\0", "expected UTF-8"),
        (b"4712\0", "the aval that its index stands for"),
        (b"47 1\0", "a dimension as JAX prints it"),
    ],
)
def test_every_aval(other: bytes, message: str) -> None:
    errors = list(damaged(SIZE, other))
    assert len(errors) == 2 * BLOCKS + 1  # and the one that both lists have indices of
    for name in ("in_avals", "out_avals"):
        of_list = [error for error in errors if f" {name}[" in error or error.startswith(f"{name}[")]
        assert all(message in error for error in of_list)
        expected = [2 * i + 1 for i in range(BLOCKS)]
        if message.startswith("the aval"):  # where the distinct one is changed, the first copy is not its copy any more
            expected = sorted(expected + [1] * (name == "in_avals"))
        assert indices(of_list, rf".*?\b{name}\[#\]") == expected


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (KEY + b"!", "a zero-terminated string inside the buffer"),
        (KEY[:-1] + b"\xff\0", "expected UTF-8"),
        (b"a" + KEY[1:] + b"\0", "keys in ascending order"),
    ],
)
def test_every_layer_of_a_tree(other: bytes, message: str) -> None:
    errors = list(damaged(KEY, other))
    for tree in ("in_tree.children[0].children[0]", "out_tree"):
        of_tree = [error for error in errors if tree in error]
        assert all(message in error for error in of_tree)
        assert indices(of_tree, rf".*?\b{re.escape(tree)}\.children\[#\]") == list(range(BLOCKS))
    assert len(errors) == 2 * BLOCKS
