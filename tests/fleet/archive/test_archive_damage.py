"""Archives that are damaged, or made to do harm: noticed when they are used, or before, and never expensive."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import itertools
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import jaxexp
from jaxexp import Archive, _native
from jaxexp.errors import DeserializationError
from kit import costs, hostile_archives
from kit.archive_files import make, of_one_section, with_index
from kit.archives import blob, plain
from kit.each import each
from kit.flips import flip, flipped


def test_only_what_is_read_is_checked(path: Path) -> None:
    """Opening looks at the root alone, finding a member at one block more."""
    members = {f"m{i:03}": blob(version=i % 5) for i in range(200)}
    make(path, members)
    pointer = Archive.open(path)._opened.pointer
    flip(path, pointer.index_position + pointer.root_position // 2)  # in the second block of four
    archive = Archive.open(path)
    assert len(archive) == 200
    assert archive["m000"].load()
    assert bytes(archive["m199"].read()) == members["m199"]
    with pytest.raises(DeserializationError, match=r"fleet.zip'.*index.blocks\[1\].*get another copy"):
        archive["m100"]
    for use in (archive.load_all, archive.verify, lambda: list(archive), lambda: Archive.compact(path)):
        with pytest.raises(DeserializationError, match=r"index.blocks\[1\]"):
            use()


def test_every_bit_of_the_index_and_the_end(path: Path) -> None:
    make(path, {"a": blob(), "b": blob("tpu"), "c": plain()})
    pointer = Archive.open(path)._opened.pointer
    data = path.read_bytes()
    unnoticed = []
    for position in range(pointer.index_position - 80, len(data)):
        for bit in range(8):
            try:
                if not Archive.open(io.BytesIO(flipped(data, position, bit))).verify():
                    unnoticed.append((position, bit))
            except DeserializationError:
                pass
    # In front of the index is the last member, with up to 63 bytes of its own padding behind it.
    assert not [place for place in unnoticed if place[0] >= pointer.index_position - 50]


def test_every_byte_of_members_and_their_headers(path: Path) -> None:
    make(path, {"a": blob(), "b": blob("tpu"), "c": plain(), "d": plain()})
    archive = Archive.open(path)
    data = path.read_bytes()
    owners = {0: {"a"}, 1: {"b"}, 2: {"c", "d"}}
    for number, names in owners.items():
        place = archive._opened.index.member(number).place
        for at in range(place.position - place.header, place.position + place.size, 7):
            errors = Archive.open(io.BytesIO(flipped(data, at, 4))).verify()
            in_header = at < place.position  # of one of those who share bytes
            assert ({min(names)} if in_header else names) <= set(errors), at
            if number == 0:
                assert set(errors) <= {"a", "b"}, "b has a's module"
            else:
                assert set(errors) <= names


def test_damage_is_found_when_the_module_is_first_used(path: Path) -> None:
    make(path, {"a": blob(), "b": blob("tpu")})
    flip(path, jaxexp.deserialize(blob()).mlir_module_serialized, 100)
    archive = Archive.open(path)
    for loaded in [*archive.load_all(), archive["b"].load()]:
        assert loaded.fun_name == "model"
        with pytest.raises(DeserializationError, match="the bytes of the module"):
            loaded.mlir_module_serialized  # noqa: B018
    assert set(archive.verify()) == {"a", "b"}


def test_load_all_reports_each(path: Path) -> None:
    make(path, {f"m{i}": blob(version=i) for i in range(6)}, share_modules=False)
    index = Archive.open(path)._opened.index
    for i in (1, 4):
        flip(path, index.extent(i)[0] + 100)
    archive = Archive.open(path)
    results = archive.load_all(on_error="return")
    assert [isinstance(result, DeserializationError) for result in results] == [i in (1, 4) for i in range(6)]
    assert results[4].file == f"{path}::m4"
    with pytest.raises(DeserializationError, match=r"fleet.zip::m1'"):
        archive.load_all()
    with pytest.raises(DeserializationError, match=r"fleet.zip::m4'"):
        archive["m4"].load()
    assert archive["m3"].load() == results[3]
    assert set(archive.verify(workers=2)) == {"m1", "m4"}


def forge(members: dict[str, Any], name: str, **changes: Any) -> None:
    """Says something else of a member: of its place (`stored_size` for its size), or of its artifact."""
    true = members[name]
    place = {key: getattr(true.place, key) for key in ("position", "size", "crc32", "header", "shared", "apart")}
    said = {key: getattr(true, key) for key in ("summary", "digest", "size", "metadata", "own_metadata")}
    modules = changes.pop("modules", true.modules)
    for key, value in changes.items():
        if key in said:
            said[key] = value
        else:
            place[key.removeprefix("stored_")] = value
    members[name] = _native.Member(**said).at(_native.MemberPlace(**place), modules)


def rebuilt(path: Path, change: Any) -> io.BytesIO:
    """An archive whose index was written by somebody who lies."""
    reader = Archive.open(path)._opened
    records = _native.ArchiveRecords()
    records.build_on(reader.index)
    members = {name: records.get(name) for name in records.names()}
    data = path.read_bytes()[: max(member.place.position + member.place.size for member in members.values())]
    change(members)
    lying = _native.ArchiveRecords()
    for name, member in members.items():
        lying.put(name, member)
    return io.BytesIO(of_one_section(with_index(data, lying, "liar 1.0")))


@pytest.fixture
def three(path: Path) -> Path:
    return make(path, {"a": blob(), "b": blob("tpu"), "c": plain()})


def test_the_truth_is_read_and_another_artifact_than_the_digest_says_is_not(three: Path) -> None:
    assert len(Archive.open(rebuilt(three, lambda members: None)).load_all()) == 3
    archive = Archive.open(rebuilt(three, lambda members: forge(members, "c", digest=bytes(16))))
    assert set(archive.verify()) == {"c"}


LIES: list[tuple[str, dict[str, Any], str]] = [
    ("a", {"metadata": "{", "own_metadata": True}, "JSON"),
    ("a", {"metadata": "[1]", "own_metadata": True}, "JSON"),
    ("a", {"metadata": "null", "own_metadata": True}, "JSON"),
    ("c", {"position": 1 << 40}, r"index.members\[2\]"),
    ("c", {"position": 1 << 63}, r"index.members\[2\]"),
    ("c", {"position": 65}, r"index.members\[2\]"),
    ("c", {"stored_size": 1 << 30, "size": 1 << 30}, r"index.members\[2\]"),
    ("c", {"size": 5}, r"index.members\[2\]"),
    ("c", {"header": 65535}, r"index.members\[2\]"),
    ("c", {"header": 30}, r"members\[2\].place: expected a ZIP header"),
    ("c", {"shared": True}, "the bytes of another member"),
]


@each("name, changes, said", LIES)
def test_an_index_that_lies(name: str, changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = make(tmp_path / "fleet.zip", {"a": blob(), "b": blob("tpu"), "c": plain()})
    archive = Archive.open(rebuilt(path, lambda members: forge(members, name, **changes)))
    uses: list[Callable[[Archive], object]] = [Archive.load_all]
    if "metadata" in changes:
        uses += [lambda archive: archive["a"].metadata, lambda archive: archive["a"].load()]
    elif "shared" not in changes:
        uses += [lambda archive: archive["c"], Archive.verify, list]
    for use in uses:
        with pytest.raises(DeserializationError, match=said):
            use(archive)


def test_overlapping_members(three: Path) -> None:
    def overlap(members: dict[str, Any]) -> None:
        forge(members, "c", position=members["a"].place.position + 64, stored_size=128, size=128)

    with pytest.raises(DeserializationError, match=r"index.members\[.\]: expected bytes of its own, found bytes"):
        Archive.open(rebuilt(three, overlap)).load_all()


def test_modules_that_are_not_there(three: Path) -> None:
    """A module that is apart is one that a member has, and not any bytes: so none is read twice."""
    (true,) = Archive.open(three)["b"]._member.modules
    position, size, digest = true
    for wrong, said in (
        ([(1 << 40, 10, bytes(16))], r"index.members\[1\].modules\[0\]"),
        ([(0, size, digest)], r"modules\[0\]"),
        ([(position + 4, size - 4, digest)], r"modules\[0\]: expected a module of a member that has its"),
        ([true, true], "modules"),
    ):
        archive = Archive.open(rebuilt(three, lambda members, wrong=wrong: forge(members, "b", modules=wrong)))
        for use in (archive.load_all, lambda archive=archive: archive["b"].load().mlir_module()):
            with pytest.raises(DeserializationError, match=f"{said}|module"):
                use()


def test_names_that_are_files_and_folders(three: Path) -> None:
    """Whoever asks for all names is told; so is whoever asks for anything that needs the whole index."""
    for names in (("a", "a/b"), ("x/y", "x/y/z/w"), ("d", "d!", "d-/e", "d/e"), ("é", "é/é")):

        def rename(members: dict[str, Any], names: tuple[str, ...] = names) -> None:
            one = members["a"]
            members.clear()
            members.update((name, one.at(one.place.as_shared() if i else one.place, one.modules))
                           for i, name in enumerate(names))  # fmt: skip

        archive = Archive.open(rebuilt(three, rename))
        for use in (Archive.load_all, Archive.verify, list, lambda archive: archive.glob("*")):
            with pytest.raises(DeserializationError, match=r"files or folders, found '.*', which is both"):
                use(archive)


def test_names_that_only_begin_alike(path: Path) -> None:
    names = ["a", "a!b", "a!c/b", "a-b", "aa", "aaa/b", "ab/c", "b/a", "b/aa", "b/ab", "é"]
    make(path, dict.fromkeys(names, blob()))
    assert sorted(Archive.open(path)) == sorted(names)
    assert Archive.open(path).verify() == {}


NAMES = [f"model/{i:02}aaaa" for i in range(70)]  # two blocks
LENGTH = len(NAMES[0])


class Forged:
    """An archive's bytes, and where the numbers of its index are (schema/archive.fbs has the layout)."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.end: Any = _native.ArchiveEnd.read(data[-_native.ARCHIVE_END_SIZE :])
        self.root = self.end.index_position + self.end.root_position
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
    members = {name: blob(factor=1.0 + i % 3) for i, name in enumerate(NAMES)}
    data = make(tmp_path_factory.mktemp("attacks") / "fleet.zip", members).read_bytes()
    assert Forged(data).block_count == 2
    assert Forged(data).sealed() == data, "what is forged to the truth is the truth"
    return data


def assert_refused(data: bytes, match: str) -> None:
    for use in (list, Archive.load_all, Archive.verify):
        with pytest.raises(DeserializationError, match=match):
            use(Archive.open(io.BytesIO(data)))
    # Single members are found or refused, and nothing else happens.
    for name in (NAMES[0], NAMES[1], NAMES[63], NAMES[64], NAMES[-1], "absent", "zzz"):
        try:
            handle = Archive.open(io.BytesIO(data))[name]
            assert handle.name == name
            handle.load()
        except (DeserializationError, KeyError):
            pass


BAD_NAMES = [
    b"../../../etc", b"/etc/passwd.", b"C:/windows..", b"model\\01aaaa", b"model//1aaaa", b"model/./aaaa",
    b"model/../aaa", b"model/01aaa/", b"model/\x0001aaa", b"model/\n01aaa", b"model/\x1b[31m", b"model/\x7f01aa",
    b"model/\xff\xfeaaaa", b"model/\xe2\x80\xaeaaa", b"model/\xc2\x85aaaa", b".jaxexp/inde", b"\x00" * 12,
]  # fmt: skip


@each("name", BAD_NAMES)
def test_names(name: bytes, honest: bytes) -> None:
    for member in (0, 5):
        forged, old = Forged(honest), NAMES[member].encode()
        place = forged.block(0)
        block = bytes(forged.data[place])
        assert block.count(old) == 1
        forged.data[place] = block.replace(old, name[:LENGTH].ljust(LENGTH, b"a"))
        if member == 0:
            forged.data[forged.names : forged.names + LENGTH] = name[:LENGTH].ljust(LENGTH, b"a")
        assert_refused(forged.sealed(), r"index\.(members\[\d+\]\.name|blocks)")


@each("changed", [(1, 0), (0, 1), (3, 9), (63, 64)])
def test_names_that_are_twice_there_or_in_another_order(changed: tuple[int, int], honest: bytes) -> None:
    one, other = (NAMES[i].encode() for i in changed)
    forged = Forged(honest)
    place = forged.block(0)
    forged.data[place] = bytes(forged.data[place]).replace(one, other)
    assert_refused(forged.sealed(), "in ascending order")


def one_block_twice(forged: Forged) -> bytes:
    first = bytes(forged.data[forged.block_field(0, 0) : forged.block_field(0, 0) + 8])
    forged.data[forged.block_field(1, 0) : forged.block_field(1, 0) + 8] = first
    return forged.sealed()


def from_the_first_byte(forged: Forged) -> bytes:
    """Its members have no bytes."""
    old = forged.end
    forged.put(forged.field(2), 0, "Q")
    return forged.sealed(index_position=0, index_size=old.index_position + old.index_size, root_position=forged.root)


def forgeries() -> Iterator[tuple[str, Callable[[Forged], bytes], str]]:
    def put(place: Callable[[Forged], int], number: int, code: str = "I") -> Callable[[Forged], bytes]:
        def forge(forged: Forged) -> bytes:
            forged.put(place(forged), number, code)
            return forged.sealed()

        return forge

    for count in (0, 1, 3, 69, 71, 129, 1 << 20, (1 << 24) + 1, 1 << 31, (1 << 32) - 1):
        yield f"{count} members", put(lambda f: f.field(1), count), "index"
        yield f"{count} blocks", put(lambda f: f.blocks - 4, count), "index"
    for number in (0, 1, 4, 63, 65, 1 << 20, (1 << 31) - 8, (1 << 32) - 8, (1 << 32) - 1):
        for field, block in itertools.product(range(5), range(2)):
            place = functools.partial(Forged.block_field, block=block, field=field)
            yield f"{number} as number {field} of block {block}", put(place, number), "index"
    for end in (0, 1, 1 << 40, (1 << 64) - 1):
        yield f"members until {end}", put(lambda f: f.field(2), end, "Q"), "index.end: expected members that end at"
    for number in (0, 1, 7, 8, 1 << 20, (1 << 31) - 1, (1 << 32) - 1, (1 << 63) + 8, (1 << 64) - 1):
        for name in ("index_position", "index_size", "root_position", "root_size")[: None if number < 1 << 32 else 1]:
            yield f"{name} {number}", lambda f, said={name: number}: f.sealed(**said), "cannot read"
    yield "one block twice", one_block_twice, "index.blocks"
    yield "from the first byte", from_the_first_byte, r"index\."


@each("what, forge, said", list(forgeries()))
def test_forged_numbers(what: str, forge: Callable[[Forged], bytes], said: str, honest: bytes) -> None:
    data = forge(Forged(honest))
    if data != honest:
        assert_refused(data, said)


def test_every_place_in_every_member(honest: bytes) -> None:
    """Each aligned word of a block becomes something else: whatever it was, what is read is consistent or refused."""
    forged = Forged(honest)
    source = np.random.default_rng(0)
    place = forged.block(1)
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


def test_modules_at_an_odd_place(honest: bytes) -> None:
    """Numbers of eight bytes at a multiple of four: a vector that begins four bytes too early."""
    forged = Forged(honest)
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


def check(family: str, size: int, ways: list[str], path: Path) -> None:
    path.write_bytes(hostile_archives.FAMILIES[family](size))
    assert size / 4 < path.stat().st_size < 4 * size
    size = path.stat().st_size
    for way in ways:
        gc.collect()

        def read(way: str = way) -> None:
            with contextlib.suppress(DeserializationError):
                WAYS[way](path)

        _, seconds, memory = costs.measured(read)
        allowed = costs.allowed_seconds(size, 1)
        assert seconds <= allowed or seconds <= allowed * costs.slowness(), way
        assert memory <= costs.allowed_memory(size), way


@each("number, family", enumerate(hostile_archives.FAMILIES))
def test_costs_of_small_archives(number: int, family: str, tmp_path: Path) -> None:
    check(family, 50_000, [way for i, way in enumerate(WAYS) if (number + i) % 6 == 0], tmp_path / "fleet.zip")


@pytest.mark.long(
    promise="what an archive costs to read is at most in proportion to its size, whatever it says",
    sibling="test_archive_damage.py::test_costs_of_small_archives",
)
@pytest.mark.parametrize("size", [50_000, 2_000_000])
@pytest.mark.parametrize("family", hostile_archives.FAMILIES)
def test_costs(family: str, size: int, path: Path) -> None:
    check(family, size, list(WAYS), path)
