"""Archives by somebody who makes every digest right: names, numbers and places in an index are not believed."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from jaxexp import Archive, DeserializationError, _native
from kit.archive_files import of_one_section
from kit.archives import blob

pytestmark = pytest.mark.once(reason="an index is read without JAX")

NAMES = [f"model/{i:02}aaaa" for i in range(70)]  # two blocks
LENGTH = len(NAMES[0])


class Forged:
    """An archive's bytes, and where the numbers of its index are (schema/archive.fbs has the layout)."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        end = _native.ArchiveEnd.read(data[-_native.ARCHIVE_END_SIZE :])
        assert end is not None
        self.end = end
        self.root = end.index_position + end.root_position
        self.blocks, self.block_count = self._vector(3)
        self.names, _ = self._vector(4)

    def _table(self) -> int:
        return self.root + self.u32(self.root)

    def u32(self, at: int) -> int:
        number: int = struct.unpack_from("<I", self.data, at)[0]
        return number

    def field(self, slot: int, table: int | None = None) -> int:
        """Where a field of a table is, of the root unless another one is named."""
        table = self._table() if table is None else table
        vtable = table - struct.unpack_from("<i", self.data, table)[0]
        offset: int = struct.unpack_from("<H", self.data, vtable + 4 + 2 * slot)[0]
        return table + offset

    def _vector(self, slot: int) -> tuple[int, int]:
        at = self.field(slot)
        length = at + self.u32(at)
        return length + 4, self.u32(length)

    def put(self, at: int, number: int, code: str = "I") -> None:
        struct.pack_into(f"<{code}", self.data, at, number)

    def block_field(self, block: int, field: int) -> int:
        """Where position, size, first_member, name_position or name_size of a block is."""
        return self.blocks + 36 * block + 16 + 4 * field

    def block(self, number: int) -> slice:
        start = self.end.index_position + self.u32(self.block_field(number, 0))
        return slice(start, start + self.u32(self.block_field(number, 1)))

    def sealed(self, **end: int) -> bytes:
        """With the digests that the bytes have now; `end` are other numbers for the comment."""
        for number in range(self.block_count):
            place = self.blocks + 36 * number
            self.data[place : place + 16] = xxhash.xxh3_128(bytes(self.data[self.block(number)])).digest()
        old = self.end
        root = bytes(self.data[self.root : self.root + old.root_size])
        numbers = {
            name: end.get(name, getattr(old, name))
            for name in ("index_position", "index_size", "root_position", "root_size")
        }
        comment = _native.ArchiveEnd(*numbers.values(), xxhash.xxh3_128(root).digest()).comment()
        return of_one_section(bytes(self.data[: -len(comment)]) + comment)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("attacks") / "fleet.zip"
    with Archive.create(path) as archive:
        for i, name in enumerate(NAMES):
            archive.add(name, blob(factor=1.0 + i % 3))
    return path.read_bytes()


@pytest.fixture
def forged(honest: bytes) -> Forged:
    return Forged(honest)


def everything(data: bytes) -> Iterator[Callable[[], Any]]:
    """What one can ask of an archive as a whole."""
    yield lambda: list(Archive.open(io.BytesIO(data)))
    yield lambda: Archive.open(io.BytesIO(data)).load_all()
    yield lambda: Archive.open(io.BytesIO(data)).verify()


def assert_refused(data: bytes, match: str) -> None:
    for use in everything(data):
        with pytest.raises(DeserializationError, match=match):
            use()
    # Single members are found or refused, and nothing else happens.
    for name in (NAMES[0], NAMES[1], NAMES[63], NAMES[64], NAMES[-1], "absent", "zzz"):
        try:
            handle = Archive.open(io.BytesIO(data))[name]
            assert handle.name == name
            handle.load()
        except (DeserializationError, KeyError):
            pass


def test_what_is_forged_to_the_truth_is_read(honest: bytes, forged: Forged) -> None:
    assert forged.block_count == 2
    assert forged.sealed() == honest
    assert len(Archive.open(io.BytesIO(honest)).load_all()) == len(NAMES)


@pytest.mark.parametrize("name", [
    b"../../../etc", b"/etc/passwd.", b"C:/windows..", b"model\\01aaaa", b"model//1aaaa", b"model/./aaaa",
    b"model/../aaa", b"model/01aaa/", b"model/\x0001aaa", b"model/\n01aaa", b"model/\x1b[31m", b"model/\x7f01aa",
    b"model/\xff\xfeaaaa", b"model/\xe2\x80\xaeaaa", b"model/\xc2\x85aaaa", b".jaxexp/inde", b"\x00" * 12,
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("member", [0, 5])
def test_names(name: bytes, member: int, forged: Forged) -> None:
    old = NAMES[member].encode()
    place = forged.block(0)
    block = bytes(forged.data[place])
    assert block.count(old) == 1
    forged.data[place] = block.replace(old, name[:LENGTH].ljust(LENGTH, b"a"))
    if member == 0:
        forged.data[forged.names : forged.names + LENGTH] = name[:LENGTH].ljust(LENGTH, b"a")
    assert_refused(forged.sealed(), r"index\.(members\[\d+\]\.name|blocks)")


@pytest.mark.parametrize("changed", [(1, 0), (0, 1), (3, 9), (63, 64)])
def test_names_that_are_twice_there_or_in_another_order(changed: tuple[int, int], forged: Forged) -> None:
    one, other = (NAMES[i].encode() for i in changed)
    place = forged.block(0)
    forged.data[place] = bytes(forged.data[place]).replace(one, other)
    assert_refused(forged.sealed(), "in ascending order")


@pytest.mark.parametrize("count", [0, 1, 69, 71, 129, 1 << 24, (1 << 24) + 1, 1 << 31, (1 << 32) - 1])
def test_counts_of_members(count: int, forged: Forged) -> None:
    forged.put(forged.field(1), count)
    assert_refused(forged.sealed(), "index")


@pytest.mark.parametrize("count", [0, 1, 3, 1 << 20, 1 << 31, (1 << 32) - 1])
def test_counts_of_blocks(count: int, forged: Forged) -> None:
    forged.put(forged.blocks - 4, count)
    assert_refused(forged.sealed(), "index")


@pytest.mark.parametrize("field", range(5))
@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("number", [0, 1, 4, 63, 65, 1 << 20, (1 << 31) - 8, (1 << 32) - 8, (1 << 32) - 1])
def test_places_of_blocks(field: int, block: int, number: int, forged: Forged) -> None:
    """Any number but the true one, for where a block is, how large, its first member and that one's name."""
    at = forged.block_field(block, field)
    if forged.u32(at) == number:
        return
    forged.put(at, number)
    assert_refused(forged.sealed(), "index")


def test_one_block_in_two_places(forged: Forged) -> None:
    first = bytes(forged.data[forged.block_field(0, 0) : forged.block_field(0, 0) + 8])
    forged.data[forged.block_field(1, 0) : forged.block_field(1, 0) + 8] = first
    assert_refused(forged.sealed(), "index.blocks")


@pytest.mark.parametrize("end", [0, 1, 1 << 40, (1 << 64) - 1])
def test_where_members_end(end: int, forged: Forged) -> None:
    forged.put(forged.field(2), end, "Q")
    assert_refused(forged.sealed(), "index.end: expected members that end at byte")


def test_an_index_from_the_first_byte(forged: Forged) -> None:
    """Its members have no bytes. Positions from byte 0 on are those of another kind of blocks, which are larger."""
    old = forged.end
    forged.put(forged.field(2), 0, "Q")
    data = forged.sealed(index_position=0, index_size=old.index_position + old.index_size, root_position=forged.root)
    assert_refused(data, r"index\.end: expected members before the index, found none")


@pytest.mark.parametrize("name", ["index_position", "index_size", "root_position", "root_size"])
@pytest.mark.parametrize("number", [0, 1, 7, 8, 1 << 20, (1 << 31) - 1, (1 << 32) - 1, (1 << 63) + 8, (1 << 64) - 1])
def test_the_comment(name: str, number: int, forged: Forged) -> None:
    if name == "index_position" or number < 1 << 32:
        assert_refused(forged.sealed(**{name: number}), "cannot read")


def test_every_place_in_every_member(forged: Forged) -> None:
    """Each aligned word of a block becomes something else: whatever it was, what is read is consistent or refused."""
    source = np.random.default_rng(0)
    place = forged.block(1)
    honest = bytes(forged.data)
    read = refused = 0
    for at in range(place.start, place.stop, 4):
        for number in (0, 1, int(source.integers(1 << 16)), (1 << 32) - 1):
            forged.data[:] = honest
            forged.put(at, number)
            data = forged.sealed()
            try:
                archive = Archive.open(io.BytesIO(data))
                for name in archive:
                    assert archive[name].size >= 0
                archive._opened.index.check()
                read += 1
            except DeserializationError:
                refused += 1
    assert read > 100
    assert refused > 100


def test_modules_at_an_odd_place(forged: Forged) -> None:
    """Numbers of eight bytes at a multiple of four: a vector that begins four bytes too early."""
    start = forged.block(0).start
    block = start + forged.u32(start)
    vector = forged.field(0, block)
    vector += forged.u32(vector)
    table = vector + 4
    table += forged.u32(table)
    modules = forged.field(4, table)
    length = modules + forged.u32(modules)
    assert (length + 4 - start) % 8 == 0
    forged.put(length - 4, forged.u32(length))
    forged.put(modules, forged.u32(modules) - 4)
    with pytest.raises(DeserializationError, match=r"modules: expected a vector at a multiple of eight bytes"):
        list(Archive.open(io.BytesIO(forged.sealed())))


def test_every_length(honest: bytes, tmp_path: Path) -> None:
    """A file that was cut anywhere, or has something behind it."""
    start = _native.ArchiveEnd.read(honest[-_native.ARCHIVE_END_SIZE :]).index_position
    for length in [*range(0, start, 997), *range(start, len(honest), 41), len(honest) - 1]:
        with pytest.raises(DeserializationError):
            Archive.open(io.BytesIO(honest[:length])).load_all()
