"""`jaxexp archive`: members are removed, and their bytes freed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import jaxexp
from jaxexp._kernel.io import lock
from kit.command_line import NAMES


@pytest.fixture
def archive(fleet, tmp_path) -> Path:
    """An archive to change."""
    return Path(shutil.copy(fleet, tmp_path / "fleet.zip"))


def test_rm(archive, good) -> None:
    assert good("archive", "rm", archive, "h").startswith(f"{archive}: 1 member removed, 3 left")
    assert list(jaxexp.Archive.open(archive)) == ["b8", "inner/again", "inner/b16"]
    assert "2 members removed, 1 left" in good("archive", "rm", archive, "inner/*", "inner/b16")
    with jaxexp.Archive.open(archive) as opened:
        assert list(opened) == ["b8"]
        assert opened["b8"].load(verify=True).fun_name == "scores"
    assert "0 left" in good("archive", "rm", archive, "*")
    assert list(jaxexp.Archive.open(archive)) == []


def test_rm_removes_all_or_nothing(archive, run) -> None:
    before = archive.read_bytes()
    for patterns in (["b8", "nothing"], ["nothing*"], ["B8"]):
        status, out, err = run("archive", "rm", archive, *patterns)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert f"no member {patterns[-1]!r}" in err
        assert archive.read_bytes() == before


def test_a_name_stands_for_itself(folder, tmp_path, good) -> None:
    archive = tmp_path / "odd.zip"
    with jaxexp.Archive.create(archive) as writer:
        for name in ("[ab]", "a", "b"):
            writer.add(name, (folder / "scores.jaxexp").read_bytes())
    good("archive", "rm", archive, "[ab]")
    assert list(jaxexp.Archive.open(archive)) == ["a", "b"]


def test_what_nobody_uses_any_more_is_not_moved(folder, tmp_path, good) -> None:
    """Equal members have their bytes in common: removing all of them writes an index, and no artifact."""
    archive = tmp_path / "equal.zip"
    data = (folder / "scores.jaxexp").read_bytes()
    with jaxexp.Archive.create(archive) as writer:
        for i in range(50):
            writer.add(f"{i:02}", data)
    before = archive.stat().st_size
    good("archive", "rm", archive, "*")
    assert archive.stat().st_size - before < len(data)


def test_compact(archive, good) -> None:
    good("archive", "rm", archive, "inner/*", "h")
    before = archive.stat().st_size
    assert good("archive", "compact", archive) == f"{archive}: {before:,} bytes -> {archive.stat().st_size:,} bytes\n"
    assert archive.stat().st_size < 0.8 * before
    assert list(jaxexp.Archive.open(archive)) == ["b8"]
    assert "1 of 1 artifact whole" in good("verify", archive)
    assert [path.name for path in archive.parent.iterdir()] == ["fleet.zip"]


def test_compact_whole(folder, tmp_path, good) -> None:
    archive = tmp_path / "apart.zip"
    exported = jaxexp.load(folder / "scores.jaxexp")
    with jaxexp.Archive.create(archive) as writer:
        for version in range(3):
            writer.add(str(version), exported.serialize(metadata={"version": version}))
    assert any(handle.shares_modules for handle in jaxexp.Archive.open(archive).values())
    good("archive", "compact", "--whole", archive)
    assert not any(handle.shares_modules for handle in jaxexp.Archive.open(archive).values())


def test_damage_stops_a_compaction(archive, run) -> None:
    blob = bytearray(archive.read_bytes())
    with jaxexp.Archive.open(archive) as opened:
        blob[blob.index(opened["b8"].read()) + 300] ^= 1
    archive.write_bytes(blob)
    status, out, err = run("archive", "compact", archive)
    assert (status, out) == (1, "")
    assert f"{archive}::b8" in err
    assert archive.read_bytes() == blob


def test_one_at_a_time(archive, run) -> None:
    before = archive.read_bytes()
    with lock.locked(archive):
        for arguments in (["rm", archive, "b8"], ["compact", archive]):
            status, _, err = run("archive", *arguments)
            assert status == 75
            assert "being changed by another writer" in err
    assert archive.read_bytes() == before


def test_readers_keep_what_they_opened(archive, good) -> None:
    opened = jaxexp.Archive.open(archive)
    good("archive", "rm", archive, "*")
    good("archive", "compact", archive)
    assert list(opened) == NAMES
    assert opened["b8"].load().fun_name == "scores"


def test_without_a_command(good) -> None:
    assert good("archive") == good("archive", "--help")
