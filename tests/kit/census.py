"""Damage to artifacts, and what becomes of it: flipped bits and changed bytes, counted by how reading ends."""

from __future__ import annotations

import collections
import functools
import random
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp._kernel.artifact.chain import chain
from jaxexp._kernel.read.decode import verified

from .corpus import CASES, export_with


def _symbolic_sharded() -> jaxexp.Exported:
    mesh = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))
    (batch,) = jaxexp.symbolic_shape("b", constraints=["mod(b, 4) == 0", "b >= 4"])
    shape = jax.ShapeDtypeStruct((batch, 6), jnp.float32, sharding=NamedSharding(mesh, P("x", "y")))
    return jaxexp.export(jax.jit(lambda x: jnp.sin(x) * 2))(shape)


# How each is made, and its order of VJPs.
MAKERS: dict[str, tuple[Callable[[], Any], int]] = {
    "tiny": (lambda: jaxexp.export(jax.jit(lambda x: x + 1))(jax.ShapeDtypeStruct((), jnp.float32)), 0),
    "dicts_with_vjp": (lambda: export_with(jaxexp, CASES["nested_containers"].build()), 1),
    "symbolic_sharded": (_symbolic_sharded, 0),
}


@functools.cache
def artifact(name: str) -> bytes:
    make, order = MAKERS[name]
    return bytes(make().serialize(vjp_order=order, metadata={"made": "for the census"}))


def read_everything(blob: bytes) -> jaxexp.Exported:
    """Reads an artifact, its fields, and each module in it, which is when the modules' digests are looked at."""
    exported = function = jaxexp.deserialize(blob)
    while True:
        assert vars(function)
        assert isinstance(function.mlir_module_serialized, bytes)
        if not function.has_vjp():
            return exported
        function = function.vjp()


def read_bytes(blob: bytes, *modules: list[bytes]) -> None:
    """What reading does before it makes anything of the bytes: a hundred times as quick, so there can be all flips."""
    for part in chain(verified(blob, *modules)):
        part.module()


def census(blobs: Iterable[bytes], look: Callable[[bytes], Any] = read_bytes) -> dict[str, int]:
    """How many are refused, how many are not; and any exception that is no DeserializationError, by its type."""
    found: collections.Counter[str] = collections.Counter()
    for blob in blobs:
        try:
            look(blob)
            found["silent"] += 1
        except jaxexp.errors.DeserializationError:
            found["refused"] += 1
        except Exception as error:
            found[type(error).__name__] += 1
    return dict(found)


def flipped(blob: bytes, bits: Iterable[int]) -> Iterable[bytes]:
    for bit in bits:
        changed = bytearray(blob)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


def with_two(blob: bytes, places: Iterable[tuple[int, int]], source: random.Random) -> Iterable[bytes]:
    """Two bytes, each changed to any of its other values."""
    for i, j in places:
        changed = bytearray(blob)
        for at in (i, j):
            changed[at] ^= source.randrange(1, 256)
        yield bytes(changed)


every_artifact = pytest.mark.parametrize("name", MAKERS)
