"""Appends to archives with many members: they write what they change, and everything else is as with few members."""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
import random
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import flatbuffers
import pytest

from jaxexp import Archive, _native, _runtime
from jaxexp.errors import DeserializationError, ExportError
from kit.archive_files import assert_sound, metadata_in_the_index
from kit.archives import blob, exported, unzip
from kit.flips import flip
from kit.served import serving
from kit.weighted import X, apply, bound, close, params

COUNT = 10_000
NAMES = [f"m{i // 1000}/p{i // 100 % 10}/b{i % 100:02}" for i in range(COUNT)]


@functools.cache
def versions() -> tuple[bytes, ...]:
    """The first has the module of all."""
    return tuple(bytes(exported().serialize(metadata={"version": i})) for i in range(40))


@pytest.fixture(scope="module")
def created(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archives") / "large.zip"
    with metadata_in_the_index(), Archive.create(path) as archive:
        for i, name in enumerate(NAMES):
            archive.add(name, versions()[i % 40], metadata={"number": i})
    return path


@pytest.fixture
def large(created: Path, path: Path) -> Path:
    return Path(shutil.copy(created, path))


def add(path: Path, **members: Any) -> int:
    before = path.stat().st_size
    with Archive.append(path) as archive:
        for name, member in members.items():
            archive.add(name, member)
    return path.stat().st_size - before


def test_one_append_writes_little(large: Path) -> None:
    new = blob(factor=3.0)
    assert add(large, new=new) - len(new) < 40_000
    for i in range(3):
        assert add(large, **{f"n{i}": new}) < 40_000  # and so does each after it
    archive = Archive.open(large)
    assert list(archive) == sorted([*NAMES, "new", "n0", "n1", "n2"])
    assert archive["new"].read() == archive["n1"].read() == new
    assert archive["new"].size == len(new)
    assert archive["m3/p1/b04"].metadata == {"number": 3104}
    assert archive.verify() == {}
    assert len(archive.load_all()) == len(archive) == COUNT + 4


def test_every_way_to_read(large: Path) -> None:
    add(large, **{"m0/p0/new": blob(factor=3.0), "zz": blob("tpu", factor=3.0)})
    expected = list(Archive.open(large))
    assert len(expected) == COUNT + 2
    data = io.BytesIO(large.read_bytes())
    for archive in (Archive.open(large), Archive.open(data), Archive.open(large, stable=True)):
        assert "zz" in archive
        assert "zzz" not in archive and "m0/p0" not in archive
        assert list(archive) == expected
        assert archive["m0/p0/new"].read() == blob(factor=3.0)
        assert archive.verify() == {}
        assert list(archive.glob("m0/p0/n*")) == ["m0/p0/new"]
    assert pickle.loads(pickle.dumps(Archive.open(large)["zz"])).read() == blob("tpu", factor=3.0)
    for name, platform in (("m0/p0/new", "cpu"), ("zz", "tpu"), ("m7/p5/b08", "cpu")):
        for stable in (False, True):
            assert list(_runtime.Program.of_archive(large, name, stable).platforms) == [platform]
    with pytest.raises(IndexError, match="'m0/p0/b00', 'm0/p0/b01'"):
        _runtime.Program.of_archive(large, "missing", False)


def test_weights(large: Path) -> None:
    model, _ = bound()
    tuned = {**params(), "head": params(seed=1)["head"]}
    first = add(large, **{"m5/model": model})
    size = Archive.open(large).weight_bytes
    assert first > size > 0
    assert add(large, **{"m1/new": blob(factor=3.0)}) < 40_000
    assert add(large, **{"m5/tuned": model.with_weights(tuned)}) < first
    add(large, **{"m8/again": model})
    for archive in (Archive.open(large), Archive.open(io.BytesIO(large.read_bytes()))):
        assert archive.weight_bytes == size + tuned["head"].nbytes
        assert archive.verify() == {}
        for name, weights in {"m5/model": params(), "m5/tuned": tuned, "m8/again": params()}.items():
            close(archive[name].load().call(X), apply(weights, X))
    with zipfile.ZipFile(large) as zipped:
        assert zipped.namelist() == ["m8/again", ".jaxexp/index"]
    Archive.compact(large)
    close(Archive.open(large)["m5/tuned"].load().call(X), apply(tuned, X))
    assert Archive.open(large).verify() == {}


def test_any_changes(large: Path) -> None:
    source = random.Random(1)
    artifacts = [*versions()[:8], *(blob(factor=2.0 + i % 3, version=i) for i in range(12))]
    expected = {name: versions()[i % 40] for i, name in enumerate(NAMES)}
    for step in range(3):
        with Archive.append(large) as archive:
            for _ in range(source.choice([1, 3, 200])):
                name = f"{source.choice('amz')}{source.randrange(10)}/p3/x{source.randrange(500)}"
                if name in expected:
                    archive.remove(name)
                expected[name] = source.choice(artifacts)
                archive.add(name, expected[name])
            if step % 2:
                gone = source.sample(sorted(expected), 300)
                archive.remove(*gone)
                for name in gone:
                    del expected[name]
            assert len(archive) == len(expected)
            assert archive.names() == sorted(expected)
        with Archive.open(large) as opened:
            assert list(opened) == sorted(expected)
            assert opened.verify() == {}
            chosen = source.sample(sorted(expected), 500)
            assert [opened[name].read() for name in chosen] == [expected[name] for name in chosen]
    Archive.compact(large)
    assert_sound(large, expected)


def test_an_archive_that_becomes_small(large: Path) -> None:
    add(large, new=blob())
    with Archive.append(large) as archive:
        archive.remove(*NAMES[10:])
    assert_sound(large, {"new": blob(), **{name: versions()[i] for i, name in enumerate(NAMES[:10])}})
    with Archive.append(large) as archive:
        archive.remove("new", *NAMES[:10])
    assert list(Archive.open(large)) == []


def test_names_that_are_files_and_folders(large: Path) -> None:
    for name in ("m5", "m5/p1", "m0", "m9/p9/b99/x", "m0/p0/b00/x/y"):
        with pytest.raises(ExportError, match="folder"):
            add(large, **{name: blob()})
    with pytest.raises(ExportError, match="remove it first"):
        add(large, **{NAMES[777]: blob()})
    with Archive.append(large) as archive:
        archive.remove(*(name for name in NAMES if name.startswith("m5/")))
        with pytest.raises(ExportError, match="folder"):
            archive.add("m4", blob())
        archive.add("m5", blob())
    assert Archive.open(large)["m5"].read() == blob()
    assert Archive.open(large).verify() == {}


def test_neighbours_share_and_others_are_stored_again(large: Path) -> None:
    """Only `compact` compares with all."""
    other = blob(factor=2.0)
    add(large, **{"m3/p3/x": versions()[3], "m3/p3/y": blob(version=100), "m3/p3/z": other})
    add(large, **{"m3/p3/zz": other})
    add(large, **{"m7/p7/x": other})

    def places() -> dict[str, _native.MemberPlace]:
        archive = Archive.open(large)
        assert archive.verify() == {}
        return {name: archive[name]._member.place for name in ("m3/p3/x", "m3/p3/y", "m3/p3/zz", "m7/p7/x")}

    found = places()
    assert [place.shared for place in found.values()] == [True, False, True, False]
    assert [place.apart for place in found.values()] == [True, True, False, False]
    Archive.compact(large)
    assert places()["m7/p7/x"].shared


def test_zip_tools_see_the_last_append(large: Path) -> None:
    """Until `compact` writes the directory of all."""
    add(large, first=blob())
    add(large, second=blob(factor=2.0))
    with zipfile.ZipFile(large) as zipped:
        assert zipped.testzip() is None
        assert zipped.namelist() == ["second", ".jaxexp/index"]
        assert zipped.read("second") == blob(factor=2.0)
    Archive.compact(large)
    with zipfile.ZipFile(large) as zipped:
        assert {"first", "second"} <= set(zipped.namelist())
    if shutil.which("unzip"):
        assert "No errors" in unzip("-tq", large)


def test_few_requests(large: Path) -> None:
    pytest.importorskip("aiohttp")
    for i in range(3):
        add(large, **{f"m{i}/p5/new": blob(factor=2.0, version=5)})
    with serving(large.read_bytes()) as server:
        archive = Archive.open(server.url)
        assert len(server.requests) <= 16
        assert sum(size for command, size in server.requests if command == "GET") < large.stat().st_size
        del server.requests[:]
        assert archive["m1/p5/new"].read() == blob(factor=2.0, version=5)
        assert archive["m7/p5/b08"].read() == versions()[7508 % 40]
        assert len(server.requests) <= 3
        assert list(archive) == list(Archive.open(large))
        assert archive.verify() == {}


def test_damage_in_an_earlier_index(large: Path) -> None:
    """Its parts are still those of the archive."""
    pointer = Archive.open(large)._opened.pointer
    add(large, **{"m5/p5/new": blob(factor=2.0, version=5)})
    data = flip(large, pointer.index_position + 1000)
    archive = Archive.open(large)
    assert archive["m5/p5/new"].read() == blob(factor=2.0, version=5)
    with pytest.raises(DeserializationError, match=r"index\.blocks\[0\]"):
        archive["m0/p0/b00"]
    with pytest.raises(DeserializationError, match=r"index\.blocks\[0\]"):
        archive.verify()
    for use in (Archive.compact, lambda path: add(path, **{"m0/p0/new": blob()})):
        with pytest.raises(DeserializationError, match=r"fleet\.zip"):
            use(large)
    with pytest.raises(DeserializationError, match=r"fleet\.zip"), Archive.append(large) as writer:
        writer.remove("m0/p0/b00")
    with pytest.raises(DeserializationError), Archive.append(large) as writer:
        with contextlib.suppress(DeserializationError):
            writer.add("m0/p0/new", blob())
        writer.add("m0/p0/new", blob())  # whoever goes on loses no members of the block
    assert large.read_bytes() == data
    add(large, **{"m9/p0/new": blob()})


def test_blocks_that_are_larger_than_all_of_them(created: Path) -> None:
    """Each says that it reaches to the end, with a digest that is right."""
    pointer = Archive.open(created)._opened.pointer
    index = bytearray(created.read_bytes()[pointer.index_position :][: pointer.index_size])
    root = slice(pointer.root_position, pointer.root_position + pointer.root_size)
    table = root.start + struct.unpack_from("<I", index, root.start)[0]
    vtable = table - struct.unpack_from("<i", index, table)[0]
    field = table + struct.unpack_from("<H", index, vtable + 4 + 2 * 3)[0]
    vector = field + struct.unpack_from("<I", index, field)[0]
    (count,) = struct.unpack_from("<I", index, vector)
    places = range(vector + 4, vector + 4 + 36 * count, 36)
    behind = struct.unpack_from("<I", index, places[-1] + 16)[0]
    for place in places[:-1]:
        (position,) = struct.unpack_from("<I", index, place + 16)
        struct.pack_into("<I", index, place + 20, behind - position)
        index[place : place + 16] = _native.digest(bytes(index[position:behind]))
    known = bytes(index[root])
    lying = _native.ArchiveIndex(bytes(index), known, _native.digest(known), pointer.index_position)
    assert lying.find(NAMES[0]) == 0
    with pytest.raises(DeserializationError, match="blocks that fit into the file together"):
        lying.check()


def test_a_root_that_says_another_number_of_members(large: Path) -> None:
    """An append would add up what it says."""
    add(large, **{"m9/p5/new": blob(factor=2.0, version=5)})
    pointer = Archive.open(large)._opened.pointer
    data = large.read_bytes()
    start = pointer.index_position + pointer.root_position
    root = data[start : start + pointer.root_size]
    count = len(Archive.open(large))
    whole = struct.pack("<I", count)
    assert root.count(whole) == 1
    for members in (0, count - 64, count + 64, 1 << 25):
        lying = root.replace(whole, struct.pack("<I", members))
        with pytest.raises(DeserializationError, match=r"index\.(blocks|member)"):
            _native.ArchiveIndex.of_parts(
                lambda places: [data[position : position + size] for position, size in places],
                *(pointer.index_position, pointer.index_size, lying, _native.digest(lying)),
            ).check()


def test_an_index_of_three_levels_is_refused() -> None:
    """As appends wrote it up to 2026-11-28."""
    index = flatbuffers.Builder()
    writer, names = index.CreateString("jaxexp 0.1.0"), index.CreateByteVector(b"/an append of a newer jaxexp")
    blocks, pages = index.CreateByteVector(b""), index.CreateByteVector(b"")
    index.StartObject(8)
    index.PrependUint32Slot(1, 1, 0)
    for slot, offset in ((0, writer), (3, blocks), (4, names), (6, pages)):
        index.PrependUOffsetTRelativeSlot(slot, offset, 0)
    index.Finish(index.EndObject())
    root = bytes(index.Output())
    with pytest.raises(DeserializationError, match="let the jaxexp that wrote the archive compact it"):
        _native.ArchiveIndex(root, root, _native.digest(root), 0)
