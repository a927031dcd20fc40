"""The promise about cost, for archives: opened, listed, described, verified, loaded and appended to."""

from __future__ import annotations

import contextlib
import gc
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxexp import Archive, DeserializationError
from kit import costs, hostile_archives
from kit.archives import blob

pytestmark = pytest.mark.once(reason="an index is read without JAX")

SMALL, LARGE = 50_000, 2_000_000


def described(path: Path) -> None:
    for handle in Archive.open(path).values():
        assert repr(handle)
        assert handle.metadata is not None
        assert handle.summary.fun_name


def appended(path: Path) -> None:
    with Archive.append(path) as archive:
        archive.add("new", blob(factor=3.0))


WAYS: dict[str, Callable[[Path], object]] = {
    "list": lambda path: list(Archive.open(path)),
    "verify": lambda path: Archive.open(path).verify(workers=1),
    "load_all": lambda path: Archive.open(path).load_all(workers=1, on_error="return"),
    "load_all of a file object": lambda path: Archive.open(io.BytesIO(path.read_bytes())).load_all(
        workers=1, on_error="return"
    ),
    "describe": described,
    "append": appended,
}


def check(family: str, size: int, way: str, path: Path) -> None:
    path.write_bytes(hostile_archives.FAMILIES[family](size))
    size = path.stat().st_size
    gc.collect()

    def read() -> None:
        with contextlib.suppress(DeserializationError):
            WAYS[way](path)

    _, seconds, memory = costs.measured(read)
    assert seconds <= costs.allowed_seconds(size, 1) or seconds <= costs.allowed_seconds(size, costs.slowness())
    assert memory <= costs.allowed_memory(size)


@pytest.mark.sampled(one_in=7, reason="many cases go the same way")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", hostile_archives.FAMILIES)
def test_small_archives(family: str, way: str, path: Path) -> None:
    check(family, SMALL, way, path)


@pytest.mark.slow(reason="archives of megabytes")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", hostile_archives.FAMILIES)
def test_large_archives(family: str, way: str, path: Path) -> None:
    check(family, LARGE, way, path)


@pytest.mark.parametrize("family", hostile_archives.FAMILIES)
def test_families_have_the_sizes_that_are_asked_for(family: str) -> None:
    for size in (SMALL, 4 * SMALL):
        assert size / 4 < len(hostile_archives.FAMILIES[family](size)) < 4 * size
