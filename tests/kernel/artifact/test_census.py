"""A census of damage: every single-bit flip of three artifacts, and changes of two bytes, are noticed before use."""

from __future__ import annotations

import itertools
import random

import jax.numpy as jnp
import pytest

import jaxexp
from kit import wire
from kit.census import artifact, census, every_artifact, flipped, read_bytes, read_everything, with_two

pytestmark = pytest.mark.once(reason="read and refused by the codec, before JAX sees anything")


@every_artifact
def test_undamaged(name: str) -> None:
    """What the census calls refused is not refused for another reason."""
    blob = artifact(name)
    assert wire.has_trailer(blob)
    assert read_everything(blob).metadata == {"made": "for the census"}
    for look in (read_bytes, read_everything):
        assert census([blob, blob + b"behind the end"], look) == {"silent": 2}


@pytest.mark.sampled(one_in=3, reason="many cases go the same way")
@every_artifact
def test_every_single_bit(name: str) -> None:
    blob = artifact(name)
    bits = 8 * len(blob)
    assert census(flipped(blob, range(bits))) == {"refused": bits}
    some = random.Random(name).sample(range(bits), 500)
    assert census(flipped(blob, some), read_everything) == {"refused": 500}


@every_artifact
def test_two_bytes(name: str) -> None:
    """All pairs of places that say where the trailer is; of other pairs, thousands by chance."""
    blob = artifact(name)
    source = random.Random(name)
    head, footer = range(16), range(len(blob) - 48, len(blob))
    framing = list(itertools.combinations([*head, *footer], 2))
    assert census(with_two(blob, framing, source)) == {"refused": len(framing)}
    anywhere = [tuple(source.sample(range(len(blob)), 2)) for _ in range(3000)]
    one_in_the_frame = [(source.choice([*head, *footer]), source.randrange(16, len(blob) - 48)) for _ in range(2000)]
    assert census(with_two(blob, anywhere + one_in_the_frame, source)) == {"refused": 5000}
    neighbours = [(i, i + 1) for i in range(len(blob) - 1)]
    assert census(with_two(blob, neighbours, source)) == {"refused": len(neighbours)}


@every_artifact
def test_every_truncation(name: str) -> None:
    blob = artifact(name)
    assert census(blob[:end] for end in range(len(blob))) == {"refused": len(blob)}


@every_artifact
def test_every_byte_left_out(name: str) -> None:
    """What follows moves up by one; so does what a byte put in moves down."""
    blob = artifact(name)
    assert census(blob[:at] + blob[at + 1 :] for at in range(len(blob))) == {"refused": len(blob)}
    assert census(blob[:at] + b"\0" + blob[at:] for at in range(1, len(blob))) == {"refused": len(blob) - 1}


def test_metadata_are_checked_before_the_module_is_touched() -> None:
    """Damage to the signature shows on reading; damage to a module when its bytes are asked for, not when they run."""
    blob = artifact("tiny")
    _, _, metadata_size = wire.trailer_of(blob)
    assert census(flipped(blob, range(8 * metadata_size)), jaxexp.deserialize) == {"refused": 8 * metadata_size}
    damaged = next(iter(flipped(blob, [8 * (metadata_size + 40)])))
    loaded = jaxexp.deserialize(damaged)
    for use in (lambda: loaded.mlir_module_serialized, loaded.mlir_module, lambda: loaded.call(jnp.float32(1))):
        with pytest.raises(jaxexp.DeserializationError, match="mlir_module_serialized"):
            use()
