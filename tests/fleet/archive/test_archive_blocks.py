"""An archive is written in a `with` block: elsewhere there is an error or a warning, and no file."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxexp import Archive, ExportError
from kit.archive_files import assert_sound, make
from kit.archives import blob


@pytest.fixture
def old(path: Path) -> Path:
    return make(path, {"a": blob()})


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("begin", [Archive.create, Archive.append])
@pytest.mark.parametrize(
    "change",
    [
        lambda archive: archive.add("b", blob()),
        lambda archive: archive.add_file("b", "missing.jaxexp"),
        lambda archive: archive.remove("a"),
    ],
)
def test_changes_without_a_block_are_refused(old: Path, begin: Callable, change: Callable) -> None:
    before = old.read_bytes()
    with pytest.raises(ExportError, match=rf"with Archive\.{begin.__name__}\('.*fleet.zip'\) as archive:"):
        change(begin(old))
    gc.collect()
    assert old.read_bytes() == before
    assert [file.name for file in old.parent.iterdir()] == [old.name]


@pytest.mark.parametrize("begin", [Archive.create, Archive.append])
def test_changes_after_the_block_are_refused(old: Path, begin: Callable) -> None:
    with begin(old) as archive:
        archive.add("b", blob(factor=2.0))
    with pytest.raises(ExportError, match="is written in a block"):
        archive.add("c", blob())
    with pytest.raises(ExportError, match="is written in a block"):
        archive.remove("b")
    with Archive.open(old) as opened:
        assert "b" in opened
        assert "c" not in opened


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="others drop objects later")
@pytest.mark.parametrize("begin", [Archive.create, Archive.append])
@pytest.mark.parametrize("is_entered", [False, True])
def test_a_writer_that_is_dropped(old: Path, begin: Callable, is_entered: bool) -> None:
    """At once, and not only when the garbage collector comes: others want to write."""
    before = old.read_bytes()
    gc.disable()
    try:
        writer = begin(old)
        if is_entered:
            writer.__enter__().add("b", blob(factor=2.0))
        with pytest.warns(ResourceWarning, match=r"nothing was written to '.*fleet.zip': .* without a `with` block"):
            del writer
        assert old.read_bytes() == before
        assert [file.name for file in old.parent.iterdir()] == [old.name]
        with Archive.append(old) as archive:  # nobody has the lock
            archive.add("c", blob(factor=3.0))
    finally:
        gc.enable()
    assert_sound(old, {"a": blob(), "c": blob(factor=3.0)})


@pytest.mark.parametrize("ends", [RuntimeError, KeyboardInterrupt, None])
def test_a_block_that_has_ended_warns_of_nothing(
    path: Path, recwarn: pytest.WarningsRecorder, ends: type | None
) -> None:
    writer = Archive.create(path)
    try:
        with writer as archive:
            archive.add("a", blob())
            if ends is not None:
                raise ends
    except BaseException as error:
        assert type(error) is ends
    del writer, archive
    gc.collect()
    assert not recwarn.list
    assert path.exists() == (ends is None)


def test_several_are_removed_or_none(old: Path) -> None:
    with Archive.append(old) as archive:
        archive.add("b", blob())
        archive.add("c", blob(factor=2.0))
        with pytest.raises(KeyError, match="d"):
            archive.remove("a", "b", "d")
        assert archive.names() == ["a", "b", "c"]
        archive.remove("a", "c")
    assert_sound(old, {"b": blob()})
