"""Archives that are damaged, or made to do harm: noticed when they are used, or before."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from jaxexp import Archive, DeserializationError, _native
from kit.archive_files import make, of_one_section, with_index
from kit.archives import blob, plain

pytestmark = pytest.mark.once(reason="an index is read without JAX")


class TestDamage:
    def test_only_what_is_read_is_checked(self, path: Path) -> None:
        """Opening looks at the root alone, finding a member at one block more."""
        members = {f"m{i:03}": blob(version=i % 5) for i in range(200)}
        make(path, members)
        pointer = Archive.open(path)._opened.pointer
        data = bytearray(path.read_bytes())
        data[pointer.index_position + pointer.root_position // 2] ^= 1  # in the second block of four
        path.write_bytes(data)
        archive = Archive.open(path)
        assert len(archive) == 200
        assert archive["m000"].load() == archive["m199"].load() if 0 == 199 % 5 else archive["m000"].load()
        assert bytes(archive["m199"].read()) == members["m199"]
        with pytest.raises(DeserializationError, match=r"fleet.zip'.*index.blocks\[1\].*get another copy"):
            archive["m100"]
        for whole in (archive.load_all, archive.verify, lambda: list(archive), lambda: Archive.compact(path)):
            with pytest.raises(DeserializationError, match=r"index.blocks\[1\]"):
                whole()

    def test_every_bit_of_the_index_and_the_end(self, path: Path) -> None:
        make(path, {"a": blob(), "b": blob("tpu"), "c": plain()})
        pointer = Archive.open(path)._opened.pointer
        data = path.read_bytes()
        unnoticed = []
        for position in range(pointer.index_position - 80, len(data)):
            for bit in range(8):
                damaged = bytearray(data)
                damaged[position] ^= 1 << bit
                try:
                    if not Archive.open(io.BytesIO(damaged)).verify():
                        unnoticed.append((position, bit))
                except DeserializationError:
                    pass
        # In front of the index is the last member, with up to 63 bytes of its own padding behind it.
        assert not [place for place in unnoticed if place[0] >= pointer.index_position - 50]

    def test_every_byte_of_members_and_their_headers(self, path: Path) -> None:
        make(path, {"a": blob(), "b": blob("tpu"), "c": plain(), "d": plain()})
        archive = Archive.open(path)
        data = path.read_bytes()
        extents = archive._opened.index.zip_extents(list(range(4)))
        owners = {0: {"a"}, 1: {"b"}, 2: {"c", "d"}}
        for number, names in owners.items():
            position, size, *_ = extents[number]
            for at in range(position, position + size, 7):
                damaged = bytearray(data)
                damaged[at] ^= 0x10
                errors = Archive.open(io.BytesIO(damaged)).verify()
                in_header = at < archive._opened.index.extent(number)[0]  # of one of those who share bytes
                assert ({min(names)} if in_header else names) <= set(errors), at
                if number == 0:
                    assert set(errors) <= {"a", "b"}, "b has a's module"
                else:
                    assert set(errors) <= names

    def test_damage_is_found_when_the_module_is_first_used(self, path: Path) -> None:
        make(path, {"a": blob(), "b": blob("tpu")})
        data = bytearray(path.read_bytes())
        module = jaxexp.deserialize(blob()).mlir_module_serialized
        data[data.index(module) + 100] ^= 1
        path.write_bytes(data)
        archive = Archive.open(path)
        for loaded in [*archive.load_all(), archive["b"].load()]:
            assert loaded.fun_name == "model"
            with pytest.raises(DeserializationError, match="the bytes of the module"):
                loaded.mlir_module_serialized  # noqa: B018
        assert set(archive.verify()) == {"a", "b"}

    def test_load_all_reports_each(self, path: Path) -> None:
        make(path, {f"m{i}": blob(factor=1.0 + i) for i in range(6)})
        data = bytearray(path.read_bytes())
        index = Archive.open(path)._opened.index
        for i in (1, 4):
            data[index.extent(i)[0] + 100] ^= 1
        path.write_bytes(data)
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
    records.build_on(reader.index, 0)
    members = {name: records.get(name) for name in records.names()}
    data = path.read_bytes()[: max(member.place.position + member.place.size for member in members.values())]
    change(members)
    lying = _native.ArchiveRecords()
    for name, member in members.items():
        lying.put(name, member)
    return io.BytesIO(of_one_section(with_index(data, lying, "liar 1.0")))


class TestHostileIndex:
    @pytest.fixture
    def three(self, path: Path) -> Iterator[Path]:
        make(path, {"a": blob(), "b": blob("tpu"), "c": plain()})
        yield path

    def test_the_truth_is_read(self, three: Path) -> None:
        assert len(Archive.open(rebuilt(three, lambda members: None)).load_all()) == 3

    def test_overlapping_members(self, three: Path) -> None:
        def overlap(members: dict[str, Any]) -> None:
            forge(members, "c", position=members["a"].place.position + 64, stored_size=128, size=128)

        with pytest.raises(
            DeserializationError, match=r"index.members\[.\]: expected bytes of its own, found some that"
        ):
            Archive.open(rebuilt(three, overlap)).load_all()

    @pytest.mark.parametrize("change", [
        {"position": 1 << 40}, {"position": 1 << 63}, {"stored_size": 1 << 30, "size": 1 << 30}, {"position": 65},
        {"header": 65535}, {"size": 5},
    ], ids=str)  # fmt: skip
    def test_members_out_of_range(self, change: dict[str, int], three: Path) -> None:
        archive = Archive.open(rebuilt(three, lambda members: forge(members, "c", **change)))
        for use in (lambda: archive["c"], archive.load_all, archive.verify, lambda: list(archive)):
            with pytest.raises(DeserializationError, match=r"index.members\[2\]"):
                use()

    def test_modules_out_of_range(self, three: Path) -> None:
        def far(members: dict[str, Any]) -> None:
            forge(members, "b", modules=[(1 << 40, 10, bytes(16))])

        with pytest.raises(DeserializationError, match=r"index.members\[1\].modules\[0\]"):
            Archive.open(rebuilt(three, far))["b"].load()

    def test_modules_that_are_no_members_bytes(self, three: Path) -> None:
        def other(members: dict[str, Any]) -> None:
            forge(members, "b", modules=[(0, size, digest) for _, size, digest in members["b"].modules])

        archive = Archive.open(rebuilt(three, other))
        with pytest.raises(DeserializationError, match=r"modules\[0\]"):
            archive.load_all()
        with pytest.raises(DeserializationError, match="module"):
            archive["b"].load().mlir_module()

    def test_modules_of_the_wrong_number(self, three: Path) -> None:
        archive = Archive.open(rebuilt(three, lambda m: forge(m, "b", modules=2 * m["b"].modules)))
        for use in (archive["b"].load, archive["b"].read, archive.load_all):
            with pytest.raises(DeserializationError, match="modules"):
                use()

    def test_shared_bytes_that_nobody_owns(self, three: Path) -> None:
        archive = Archive.open(rebuilt(three, lambda members: forge(members, "c", shared=True)))
        with pytest.raises(DeserializationError, match="the bytes of another member"):
            archive.load_all()

    def test_metadata_that_is_no_json(self, three: Path) -> None:
        for wrong in ("{", "[1]", "null"):
            archive = Archive.open(rebuilt(three, lambda m, w=wrong: forge(m, "a", metadata=w, own_metadata=True)))
            for use in (lambda archive=archive: archive["a"].metadata, archive["a"].load):
                with pytest.raises(DeserializationError, match="JSON"):
                    use()

    def test_another_artifact_than_the_digest_says(self, three: Path) -> None:
        archive = Archive.open(rebuilt(three, lambda members: forge(members, "c", digest=bytes(16))))
        assert set(archive.verify()) == {"c"}

    @pytest.mark.parametrize("names", [("a", "a/b"), ("x/y", "x/y/z/w"), ("d", "d!", "d-/e", "d/e"), ("é", "é/é")])
    def test_names_that_are_files_and_folders(self, names: tuple[str, ...], three: Path) -> None:
        """Whoever asks for all names is told; so is whoever asks for anything that needs the whole index."""

        def rename(members: dict[str, Any]) -> None:
            one = members["a"]
            members.clear()
            members.update((name, one.at(one.place.as_shared() if i else one.place, one.modules))
                           for i, name in enumerate(names))  # fmt: skip

        archive = Archive.open(rebuilt(three, rename))
        for use in (archive.load_all, archive.verify, lambda: list(archive), lambda: archive.glob("*")):
            with pytest.raises(DeserializationError, match=r"files or folders, found '.*', which is both"):
                use()

    def test_names_that_only_begin_alike(self, path: Path) -> None:
        names = ["a", "a!b", "a!c/b", "a-b", "aa", "aaa/b", "ab/c", "b/a", "b/aa", "b/ab", "é"]
        make(path, dict.fromkeys(names, blob()))
        assert sorted(Archive.open(path)) == sorted(names)
        assert Archive.open(path).verify() == {}

    def test_modules_that_overlap_those_of_a_member(self, three: Path) -> None:
        """A module that is apart is one that a member has, and not any bytes: so none is read twice."""

        def shifted(members: dict[str, Any]) -> None:
            forge(members, "b", modules=[(position + 4, size - 4, d) for position, size, d in members["b"].modules])

        archive = Archive.open(rebuilt(three, shifted))
        for use in (archive.load_all, archive.verify):
            with pytest.raises(DeserializationError, match=r"modules\[0\]: expected a module of a member that has its"):
                use()

    def test_members_without_a_header(self, three: Path) -> None:
        archive = Archive.open(rebuilt(three, lambda members: forge(members, "c", header=30)))
        with pytest.raises(DeserializationError, match=r"members\[2\].place: expected a ZIP header"):
            archive["c"]

    def test_lists_that_are_too_long(self, three: Path) -> None:
        long = "\n".join(["x"] * 3000)
        for field in ("platforms", "arguments", "results", "writer", "jax_version"):
            with pytest.raises(ValueError, match="at most 4096 bytes, found 5999"):
                rebuilt(
                    three, lambda members, f=field: forge(members, "a", summary=summary_with(members["a"], f, long))
                )


def summary_with(member: Any, field: str, value: str) -> Any:
    texts = ("fun_name", "jax_version", "writer", "platforms", "arguments", "results")
    said = {name: getattr(member.summary, name) for name in (*texts, "nr_devices", "argument_count", "result_count")}
    return _native.MemberSummary(**said | {field: value})
