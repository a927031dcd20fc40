"""Where an archive ends: heads of sections lead there, whatever a killed process left, or a member has in it."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import zipfile
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import Archive, _native
from jaxexp._fleet.archive.writer import refuse_unknown_rest
from jaxexp.errors import DeserializationError, ExportError
from kit.archive_files import assert_sound, make, of_one_section, with_index
from kit.archives import blob
from kit.flips import flipped
from kit.places import TESTS


class Interrupted(BaseException): ...


OLD = {"prod/model": lambda: blob(), "prod/other": lambda: blob("tpu")}
GOLDEN = TESTS / "golden" / "archives"


def with_module(module: bytes) -> bytes:
    """An artifact whose module has any bytes."""
    function = jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((2,), np.float32))
    return bytes(dataclasses.replace(function, mlir_module_serialized=module).serialize())


def other_archive(position: int) -> bytes:
    """What would be an archive, if it were believed: a section at a position of a file, with a member and an index."""
    head = _native.archive_section_head(position)
    artifact, name = blob(factor=2.0), "prod/model"
    at = position + len(head)
    header = _native.zip_local_header(name, len(artifact), zlib.crc32(artifact), at)
    place = _native.MemberPlace(at + len(header), len(artifact), zlib.crc32(artifact), len(header))
    summary = _native.MemberSummary(
        fun_name="evil", jax_version=None, writer="", platforms="cpu", nr_devices=1, arguments="", argument_count=0,
        results="", result_count=0,
    )  # fmt: skip
    member = _native.Member(
        summary=summary, digest=_native.digest(artifact), size=len(artifact), metadata=None, own_metadata=False
    ).at(place, [])
    records = _native.ArchiveRecords()
    records.put(name, member)
    data = with_index(head + header + artifact, records, "evil", position)
    end = data[-_native.ARCHIVE_END_SIZE :]
    return _native.archive_section_head(position, position + len(data), end) + data[len(head) :]


def hostile(path: Path) -> bytes:
    """An artifact that is one, and has whole archives in its module, for where it will be in the file: each is followed
    by its own end again and again, so that the file ends with one wherever it is cut.
    """
    size = path.stat().st_size
    start = size + len(_native.archive_section_head(size))
    start += len(_native.zip_local_header("uploads/mine", 0, 0, start))
    probe = b"ML\xefR" + bytes(60)
    inside = start + with_module(probe).index(probe) + len(probe)
    module = probe
    for _ in range(2):
        evil = other_archive(inside + len(module) - len(probe))
        module += evil + evil[-_native.ARCHIVE_END_SIZE :] * 8
    return with_module(module)


def interrupted(path: Path, member: bytes) -> bytes:
    """The bytes of an archive while a member is appended to it."""
    writer = Archive.append(path)
    with pytest.raises(RuntimeError), writer:
        writer.add("uploads/mine", member)
        unfinished = path.read_bytes()
        raise RuntimeError
    return unfinished


def test_cut_anywhere(path: Path) -> None:
    old = make(path, {name: member() for name, member in OLD.items()}).read_bytes()
    torn = interrupted(path, hostile(path))
    assert path.read_bytes() == old
    with Archive.append(path) as archive:
        archive.add("uploads/mine", hostile(path))
    whole = path.read_bytes()
    ends = 0
    for data in (torn, whole):
        for size in range(len(old), len(data)):
            archive = Archive.open(io.BytesIO(data[:size]))
            assert list(archive) == sorted(OLD), size
            assert archive.unfinished_bytes == size - len(old)
            ends += _native.ArchiveEnd.read(data[size - _native.ARCHIVE_END_SIZE : size]) is not None
    assert ends > 30, "the attack ends files as archives end"
    assert list(Archive.open(io.BytesIO(whole))) == [*sorted(OLD), "uploads/mine"]
    for size in range(len(old)):
        with pytest.raises(DeserializationError):
            Archive.open(io.BytesIO(whole[:size]))


def test_at_the_next_append(path: Path) -> None:
    make(path, {name: member() for name, member in OLD.items()})
    member = hostile(path)
    unfinished = interrupted(path, member)
    with Archive.append(path) as archive:
        archive.add("uploads/mine", member)
    for data in (unfinished, path.read_bytes()[: len(unfinished)]):
        end = data.rindex(b"jaxexp archive ") + _native.ARCHIVE_END_SIZE - 22
        for size in (end, len(data), len(data) - 1):
            path.write_bytes(data[:size])
            with Archive.append(path) as archive:
                archive.add("new", blob(factor=3.0))
            assert_sound(path, {"new": blob(factor=3.0)} | {name: member() for name, member in OLD.items()})


@pytest.mark.parametrize("of_earlier_version", [False, True])
def test_every_beginning(of_earlier_version: bool, path: Path) -> None:
    if of_earlier_version:
        old, whole = ((GOLDEN / f"{name}.zip").read_bytes() for name in ("created", "appended"))
        left = [whole]
    else:
        old = make(path, {"a": blob()}).read_bytes()
        torn = interrupted(path, blob("tpu"))
        with Archive.append(path) as archive:
            archive.add("b", blob("tpu"))
        left = [torn, path.read_bytes()]
    for data in left:
        assert data.startswith(old)
        for size in {*range(len(old), len(data), 23), *range(len(data) - 9, len(data))}:
            if size < len(data) - _native.ARCHIVE_END_SIZE:  # what looks like an end may be a damaged one
                assert list(Archive.open(io.BytesIO(data[:size] + bytes(50)))) == list(Archive.open(io.BytesIO(old)))
            path.write_bytes(data[:size])
            with pytest.raises(Interrupted), Archive.append(path):
                raise Interrupted
            assert path.read_bytes() == old, size


def test_beginnings_of_others(path: Path) -> None:
    old = make(path, {"a": blob()}).read_bytes()
    elsewhere = _native.zip_local_header("a/name", 5, 0, len(old) + 1)
    with zipfile.ZipFile(other := io.BytesIO(), "w") as zipped:
        zipped.writestr("a/name", b"1" * 50)
    for rest in (elsewhere, other.getvalue(), b"PK\3\5" + elsewhere[4:]):
        for size in range(30, len(rest)):
            assert not rest_is_known(old + rest[:size]), (rest, size)


def rest_is_known(data: bytes) -> bool:
    try:
        refuse_unknown_rest(Archive.open(io.BytesIO(data))._opened)
    except DeserializationError:
        return False
    return True


def test_what_no_append_left_is_not_cut(path: Path) -> None:
    data = make(path, {"a": blob()}).read_bytes()
    for rest in (b"x", os.urandom(1000), other_archive(0)[200:], b"\0" * 99 + b"x"):
        path.write_bytes(data + rest)
        assert list(Archive.open(path)) == ["a"]
        for use in (Archive.append, Archive.compact):
            with pytest.raises(DeserializationError, match=r"bytes of other data after it; cut them off"):
                use(path)
        assert path.read_bytes() == data + rest


def test_zeros_are_nobody_s(path: Path) -> None:
    data = make(path, {"a": blob()}).read_bytes()
    path.write_bytes(data + bytes(100_000))
    with Archive.append(path) as archive:
        archive.add("b", blob("tpu"))
    assert_sound(path, {"a": blob(), "b": blob("tpu")})


def appended(path: Path) -> tuple[bytes, int]:
    """An archive of "a", to which "b" was appended; and how large it was before."""
    make(path, {"a": blob()})
    first = path.stat().st_size
    with Archive.append(path) as archive:
        archive.add("b", blob("tpu"))
    return path.read_bytes(), first


def test_every_bit_of_heads(path: Path) -> None:
    data, first = appended(path)
    for position in (0, first):
        before = _native.archive_section_head(position)
        for at in range(position, position + len(before)):
            damaged = flipped(data, at, at % 8)
            # With the byte from before, it is a head that was half written when the append was interrupted.
            unfinished = position == first and damaged[at] == before[at - position]
            try:
                assert list(Archive.open(io.BytesIO(damaged))) == (["a"] if unfinished else ["a", "b"])
            except DeserializationError as error:
                assert "damaged" in str(error)


def test_a_head_that_was_half_written(path: Path) -> None:
    """By somebody who was interrupted just then: each part of it is from before or from after."""
    data, first = appended(path)
    before, after = (_native.archive_section_head(first), data[first:])
    after = after[: len(before)]
    for size in range(len(before)):
        for half in (before[:size] + after[size:], after[:size] + before[size:]):
            archive = Archive.open(io.BytesIO(data[:first] + half + data[first + len(half) :]))
            assert list(archive) == (["a", "b"] if half == after else ["a"])
        for beginning in (size, 1 + size // 2):  # an append that found it begins again
            assert rest_is_known(data[:first] + half[:beginning]), (half, beginning)


def test_heads_and_ends_that_lie(path: Path) -> None:
    data = make(path, {"a": blob()}).read_bytes()
    for end in (0, 1, 191, 10_000, 1 << 40, (1 << 64) - 1):
        head = _native.archive_section_head(0, end, data[-_native.ARCHIVE_END_SIZE :])
        with pytest.raises(DeserializationError):
            Archive.open(io.BytesIO(head + data[len(head) :]))
    data = data[: -_native.ARCHIVE_END_SIZE] + other_archive(0)[-_native.ARCHIVE_END_SIZE :]
    with pytest.raises(DeserializationError, match="an archive's end, found a damaged one"):
        Archive.open(io.BytesIO(data))
    with pytest.raises(DeserializationError):
        Archive.open(io.BytesIO(of_one_section(data)))


MEMBERS = {"created": ["a/cpu", "a/tpu", "again", "twice"], "appended": ["a/cpu", "a/tpu", "later", "twice"]}


@pytest.mark.parametrize("name", ["created", "appended", "interrupted"])
def test_archives_of_earlier_versions(name: str, path: Path) -> None:
    shutil.copy(GOLDEN / f"{name}.zip", path)
    for source in (path, io.BytesIO(path.read_bytes())):
        archive = Archive.open(source)
        assert list(archive) == MEMBERS.get(name, MEMBERS["appended"])
        assert archive.verify() == {}
        assert archive.unfinished_bytes == 500 * (name == "interrupted")
        assert [float(f.call(np.float32(2))) for f in archive.glob("twice").load_all()] == [4.0]
    expected = {name: bytes(handle.read()) for name, handle in Archive.open(path).items()}
    for i in range(2):
        with Archive.append(path) as archive:
            archive.add(f"new/{i}", blob(version=i))
        assert_sound(path, expected := expected | {f"new/{i}": blob(version=i)})
    torn = interrupted(path, hostile(path))
    for size in range(path.stat().st_size, len(torn), 7):
        assert list(Archive.open(io.BytesIO(torn[:size]))) == sorted(expected)
    Archive.compact(path)
    assert_sound(path, expected)
    assert path.read_bytes().startswith(_native.archive_section_head(0)[:14])


def test_archives_of_earlier_versions_cut_anywhere() -> None:
    data = (GOLDEN / "appended.zip").read_bytes()
    first = (GOLDEN / "created.zip").stat().st_size
    for size in range(len(data)):
        if size < first:
            with pytest.raises(DeserializationError):
                Archive.open(io.BytesIO(data[:size]))
        else:
            assert list(Archive.open(io.BytesIO(data[:size]))) == MEMBERS["created"]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_interrupted_while_it_syncs(which: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its end was published, an append stays; before that, it never was."""
    old = make(path, {"a": blob()}).read_bytes()
    real, calls = os.fsync, []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == which + 1:
            raise Interrupted
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(Interrupted), Archive.append(path) as archive:
        archive.add("b", blob("tpu"))
    if which < 2:
        assert path.read_bytes() == old
    assert_sound(path, {"a": blob(), "b": blob("tpu")} if which == 2 else {"a": blob()})


def test_one_writer_at_a_time(path: Path) -> None:
    make(path, {"a": blob()})
    for begin, stays in ((Archive.append, {"a": blob()}), (Archive.create, {})):
        with begin(path) as writer:
            writer.add("b", blob("tpu"))
            for use in (Archive.append, Archive.compact, Archive.create):
                with pytest.raises(ExportError, match="being changed by another writer"):
                    use(path)
        assert_sound(path, {**stays, "b": blob("tpu")})


def test_whoever_comes_first_creates(path: Path) -> None:
    with pytest.raises(ExportError, match="was made by another writer meanwhile"), Archive.create(path) as slow:
        slow.add("slow", blob())
        make(path, {"quick": blob("tpu")})
    assert_sound(path, {"quick": blob("tpu")})
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_that_cannot_be_written_is_replaced(path: Path) -> None:
    make(path, {"a": blob()}).chmod(0o444)
    make(path, {"b": blob()})
    assert_sound(path, {"b": blob()})
