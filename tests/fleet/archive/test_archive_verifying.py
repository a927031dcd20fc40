"""Verifying the members of a file: read in pieces, into memory that is used again."""

from __future__ import annotations

import dataclasses
import functools
import io
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import Archive, DeserializationError
from kit.archive_files import make

pytestmark = pytest.mark.once(reason="verifying does not use JAX")

PIECE = 1 << 17  # of bytes, at most, that are read at once, unless a member is larger


@functools.cache
def with_constant(kilobytes: int) -> jaxexp.Exported:
    baked = np.random.default_rng(kilobytes).standard_normal(256 * kilobytes, np.float32)
    jitted = jax.jit(lambda x: x + jnp.asarray(baked).sum())
    return jaxexp.export(jitted)(jax.ShapeDtypeStruct((3,), np.float32))


@functools.cache
def blob(kilobytes: int, function: int, version: int) -> bytes:
    """Functions differ in their metadata, versions only in their modules' bytes."""
    exported = with_constant(kilobytes)
    module = exported.mlir_module_serialized
    constant = np.random.default_rng(kilobytes).standard_normal(256 * kilobytes, np.float32).tobytes()
    other = np.random.default_rng((kilobytes, function, version)).standard_normal(256 * kilobytes, np.float32)
    assert module.count(constant) == 1
    return bytes(
        dataclasses.replace(
            exported,
            fun_name=f"function_{function:03}",
            mlir_module_serialized=module.replace(constant, other.tobytes()),
        ).serialize()
    )


def fleet() -> dict[str, bytes]:
    """Small members of more functions than one thread keeps in memory, versions among them, and large members."""
    members = {f"small/{i:03}": blob(8, i % 150, i // 150) for i in range(300)}
    members |= {f"small/{i:03}-large": blob(size, i, 0) for i, size in ((20, 127), (21, 300), (90, 3_000), (91, 300))}
    return members | {f"versions/{i:02}": blob(40, 0, i) for i in range(20)}


@pytest.mark.parametrize("workers", [1, 3])
def test_damage_is_found_wherever_a_member_lies(path: Path, workers: int) -> None:
    make(path, fleet())
    data = bytearray(path.read_bytes())
    damaged = {"small/000", "small/021-large", "small/090-large", "small/091", "small/299", "versions/19"}
    with Archive.open(path) as archive:
        assert archive.verify(workers=workers) == {}
        index = archive._opened.index
        for name in damaged:
            position, size, _ = index.extent(index.find(name))
            data[position + size // 2] ^= 1
    path.write_bytes(data)
    in_memory = Archive.open(io.BytesIO(data)).verify(workers=workers)
    found = Archive.open(path).verify(workers=workers)
    assert set(found) == damaged
    assert {name: (error.path, error.expected, error.found) for name, error in found.items()} == {
        name: (error.path, error.expected, error.found) for name, error in in_memory.items()
    }


def test_members_in_another_order_than_their_names(path: Path) -> None:
    members = fleet()
    make(path, dict(sorted(members.items(), key=lambda item: item[0][::-1])))
    assert Archive.open(path).verify(workers=2) == {}
    assert Archive.open(path).glob("small/1*").verify(workers=2) == {}


def test_a_file_that_is_cut_while_it_is_verified(path: Path) -> None:
    make(path, fleet())
    assert path.stat().st_size > 8 * PIECE
    with Archive.open(path) as archive:
        archive._opened.check()  # the index is in memory from now on
        with open(path, "r+b") as file:
            file.truncate(PIECE)
        with pytest.raises(DeserializationError, match=r"fleet.zip"):
            archive.verify(workers=2)
