"""The promise about cost: at most 1 s + 2 µs a byte of CPU and 64 MB + 64 bytes a byte, whatever the bytes are."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jaxexp
from jaxexp import _native
from kit import costs, hostile
from kit.each import each
from kit.layout import aval, of_values

SMALL, LARGE = 30_000, 300_000
sys.setrecursionlimit(max(sys.getrecursionlimit(), 30_000))  # nested trees are written by recursion


def outcome(action: Callable[[], object]) -> str:
    """ "read", or the error that refuses it."""
    try:
        action()
    except jaxexp.errors.DeserializationError as error:
        return str(error)
    except jaxexp.errors.ExportError as error:
        assert "cannot be stored in the archive" in str(error)
        return str(error)
    return "read"


def readings(blob: bytes, folder: Path) -> dict[str, Callable[[], object]]:
    path, archive = folder / "f.jaxexp", folder / "a.zip"
    path.write_bytes(blob)

    def archived() -> None:
        archive.unlink(missing_ok=True)
        with jaxexp.Archive.create(archive) as writer:
            writer.add("f", blob)
        with jaxexp.Archive.open(archive) as opened:
            list(map(vars, opened.load_all()))

    # `vars` of a function decodes its fields.
    return {
        "deserialize": lambda: vars(jaxexp.deserialize(blob)),
        "inspect": lambda: jaxexp.inspect(blob),
        "verify": lambda: _native.verify_files([str(path)], 1),
        "compatibility": lambda: jaxexp.compatibility(blob),
        "load_many": lambda: list(map(vars, jaxexp.load_many([path], workers=1))),
        "archive": archived,
    }


@pytest.fixture(scope="module", autouse=True)
def _loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is loaded once is loaded, and no collection has to look at it."""
    for action in readings(hostile.FAMILIES["ordered_dicts"](1000), tmp_path_factory.mktemp("first")).values():
        outcome(action)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def check(family: str, size: int, folder: Path) -> None:
    blob = hostile.FAMILIES[family](size)
    spent: dict[str, float] = {}

    def read() -> None:
        for way, action in readings(blob, folder).items():
            start = time.process_time()
            assert len(outcome(action)) < 1000, "an error is a sentence"
            spent[way] = time.process_time() - start

    gc.collect()
    assert costs.measured(read)[2] <= costs.allowed_memory(len(blob))
    if max(spent.values()) > costs.allowed_seconds(len(blob), 1):  # measured only where it matters
        assert max(spent.values()) <= costs.allowed_seconds(len(blob), costs.slowness()), spent


@each("family", hostile.FAMILIES)
def test_cost_of_small_artifacts(family: str, tmp_path: Path) -> None:
    check(family, SMALL, tmp_path)


@pytest.mark.long(
    promise="large hostile artifacts cost no more than the bound, in all ways of reading",
    sibling="test_costs.py::test_cost_of_small_artifacts",
)
@pytest.mark.parametrize("family", hostile.FAMILIES)
def test_cost_of_large_artifacts(family: str, tmp_path: Path) -> None:
    check(family, LARGE, tmp_path)


def test_families_have_the_sizes_that_are_asked_for() -> None:
    """Cost is judged by growth, so families have to grow; some end at what a trailer holds, or share all they have."""
    ends = ("constraints_", "equalities_", "inequalities", "division_", "nested_", "shared_tuples", "ordered_dicts")
    for family, make in hostile.FAMILIES.items():
        if not family.startswith((*ends, "vjps_that_share_trees")):
            assert SMALL / 4 < len(make(SMALL)) < 4 * SMALL, family


def test_trees_that_differ_are_not_kept_for_ever() -> None:
    """Sixty trees of 20,000 leaves have 75 MB as they are read and written; each cache of trees has 16 MB."""
    blobs = [of_values([aval("1")], [0] * (20_000 + i)) for i in range(60)]

    def many() -> None:
        for blob in blobs:
            jaxexp.deserialize(blob).serialize()

    jaxexp.deserialize(blobs[0]).serialize()
    assert costs.measured(many)[2] < 48 << 20
