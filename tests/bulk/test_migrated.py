"""`migrate_many`: what each artifact becomes, and where it is written."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jaxexp
from kit.archives import blob

SPAWN = multiprocessing.get_context("spawn")


def of_today() -> bytes:
    """A function that old releases cannot read."""
    spec = jax.ShapeDtypeStruct((2,), jnp.float8_e8m0fnu)
    return bytes(jaxexp.export(jax.jit(lambda x: x))(spec).serialize())


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.processes(reason="starts a worker"))])
def test_what_a_reader_cannot_read_is_the_outcome_of_one_artifact(workers: int, tmp_path: Path) -> None:
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as archive:
        archive.add("a", blob())
        archive.add("b", of_today())
        archive.add("c", blob())
    journal = tmp_path / "journal"
    executor = concurrent.futures.ProcessPoolExecutor(workers, SPAWN) if workers else None
    for _ in range(2):  # from the worker, and from the journal
        found = jaxexp.migrate_many(
            [tmp_path / "fleet.zip"], tmp_path / "new", "0.4.30", executor=executor, journal=journal
        )
        ((name, error),) = found.items()
        assert name == f"{tmp_path / 'fleet.zip'}::b"
        assert isinstance(error, jaxexp.TooOldReaderError)
        assert error.since == (0, 5, 1)
        assert "float8_e8m0fnu" in str(error)
        assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.jaxexp", "c.jaxexp"]
    if executor:
        executor.shutdown()
