"""Archives: what is put into one comes out again, for jaxexp, for any unzip and for jax.export, and is verified."""

from __future__ import annotations

import dataclasses
import gc
import io
import pickle
import random
import shutil
import weakref
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp import Archive
from jaxexp.errors import DeserializationError, ExportError
from kit.archive_files import X, assert_sound, make, metadata_in_the_index
from kit.archives import blob, exported, plain, unzip
from kit.wire import trailer_of

W = {"kernel": np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3), "bias": np.ones(3, np.float32)}


def test_is_a_mapping(path: Path) -> None:
    members = {"b/two": blob(factor=2.0), "a": blob(), "b/one": blob(factor=3.0)}
    archive = Archive.open(make(path, members))
    assert list(archive) == ["a", "b/one", "b/two"] == list(archive.keys())
    assert len(archive) == 3
    assert "a" in archive
    assert all(name not in archive for name in ("b", "c", "", "a/", 7, "\ud800"))
    assert {name: bytes(handle.read()) for name, handle in archive.items()} == members
    with pytest.raises(KeyError, match=r"'c' is not in Archive\(.*fleet.zip': 3 artifacts, [\d.]+ kB\)"):
        archive["c"]
    assert archive.get("c") is archive.glob("a").get("b/one") is None and archive.get("c", 3) == 3
    assert archive["a"] == archive["a"] != archive["b/one"]
    assert len({archive["a"], archive["a"], archive["b/one"]}) == 2


def test_loaded_functions_are_those_that_were_added(path: Path) -> None:
    with Archive.create(path) as archive:
        archive.add("model", exported(), vjp_order=1)
        archive.add("bytes", blob(factor=2.0, vjp_order=2))
        archive.add("jax", plain())
    archive = Archive.open(path)
    assert archive["model"].load() == jaxexp.deserialize(exported().serialize(1))
    loaded = archive["bytes"].load()
    assert loaded == jaxexp.deserialize(blob(factor=2.0, vjp_order=2))
    np.testing.assert_allclose(loaded.call(X, W), exported(factor=2.0).call(X, W))
    np.testing.assert_allclose(loaded.vjp().call(X, W["bias"], W["kernel"], np.ones((2, 3), np.float32))[1], [4, 4, 4])
    np.testing.assert_allclose(archive["jax"].load().call(X), np.cos(X), rtol=1e-6)


def test_names_of_all_scripts(path: Path) -> None:
    names = ["модель/один", "模型", "é", "z", "~", "a b", "v1:8", "\N{MATHEMATICAL ITALIC SMALL ALPHA}", "0"]
    archive = Archive.open(make(path, {name: blob(version=i) for i, name in enumerate(names)}))
    assert list(archive) == sorted(names, key=str.encode)
    assert [archive[name].metadata["version"] for name in names] == list(range(len(names)))
    assert all(name + "0" not in archive and name[:-1] not in archive for name in names)
    empty = Archive.open(make(path, {}))
    assert list(empty) == empty.load_all() == []
    assert len(empty) == 0 and "a" not in empty
    assert_sound(path, {})


def test_glob_makes_slices(path: Path) -> None:
    names = ["resnet/b8", "resnet/b16", "resnet/tpu/b8", "vit/b8", "vit/b9"]
    archive = Archive.open(make(path, {name: blob(version=i) for i, name in enumerate(names)}))
    assert list(archive.glob("resnet/*")) == ["resnet/b16", "resnet/b8", "resnet/tpu/b8"]
    assert list(archive.glob(Path("resnet/*"))) == list(archive.glob("resnet/*"))
    small = archive.glob("*b8")
    assert list(small) == ["resnet/b8", "resnet/tpu/b8", "vit/b8"]
    assert list(small.glob("vit*")) == ["vit/b8"]
    assert len(small) == 3
    assert "vit/b9" not in small
    with pytest.raises(KeyError):
        small["vit/b9"]
    assert small["vit/b8"].read() == blob(version=3)
    assert small.load_all() == [small[name].load() for name in small]
    assert list(archive.glob("vit/b[!8]")) == ["vit/b9"]
    assert not archive.glob("nothing")


def test_summary_is_what_inspect_says(path: Path) -> None:
    many = jaxexp.export(jax.jit(lambda *xs: xs))(*[jax.ShapeDtypeStruct((i, 2), np.int8) for i in range(100)])
    make(path, {"model": exported().serialize(2), "jax": plain(), "many": many})
    for handle in Archive.open(path).values():
        summary, told = handle.summary, handle.inspect()
        for field in ("fun_name", "jax_version", "writer", "platforms", "nr_devices", "vjp_order", "module_bytes"):
            assert getattr(summary, field) == getattr(told, field)
        assert (summary.argument_count, summary.result_count) == (len(told.arguments), len(told.results))
        assert summary.arguments == tuple(map(str, told.arguments[:32]))
        assert summary.results == tuple(map(str, told.results[:32]))
        assert handle.size == told.total_bytes
    assert str(Archive.open(path)["many"].summary).count("...") == 2


def test_metadata(path: Path) -> None:
    long = {"text": "x" * 100_000}
    members: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "artifact's own": (blob(version=7), None, {"version": 7}),
        "archive's": (blob(version=7), {"owner": "me", "π": [3.14, None]}, {"owner": "me", "π": [3.14, None]}),
        "none": (blob(), None, {}),
        "emptied": (blob(version=7), {}, {}),
        "of jax.export": (plain(), {"owner": "me"}, {"owner": "me"}),
        "long": (exported().serialize(metadata=long), None, long),
    }
    with Archive.create(path) as archive:
        for name, (artifact, metadata, _) in members.items():
            archive.add(name, artifact, metadata=metadata)
    archive = Archive.open(path)
    expected = {name: said for name, (_, _, said) in members.items()}
    assert {name: handle.metadata for name, handle in archive.items()} == expected
    assert {name: handle.load().metadata for name, handle in archive.items()} == expected
    assert [dict(e.metadata) for e in archive.load_all()] == [expected[name] for name in archive]
    assert archive["of jax.export"].read() == plain()  # which has no place for it
    for name in set(archive) - {"of jax.export"}:
        assert jaxexp.deserialize(archive[name].read()).metadata == expected[name]
    # Saved on, it keeps what the archive said.
    for name in ("archive's", "of jax.export"):
        assert jaxexp.deserialize(archive[name].load().serialize()).metadata == expected[name]
        assert jaxexp.deserialize(jaxexp.migrate(archive[name])).metadata == expected[name]


def test_metadata_for_an_artifact_changes_nothing_else(path: Path, tmp_path: Path) -> None:
    """Of all that its trailer has, and of what `jax.export` reads."""
    b = jaxexp.symbolic_shape("b, 3", constraints=["b >= 2"])
    exported = jaxexp.export(jax.jit(lambda x: x * 2))(jax.ShapeDtypeStruct(b, np.float32))
    file = tmp_path / "f.jaxexp"
    cases = [(np.ones((size, 3), np.float32),) for size in (2, 3)]
    exported.save(file, vjp_order=1, sizes=[{"b": 2}, {"b": 3}], cases=cases, metadata={"old": 1})
    with Archive.create(path) as archive:
        archive.add_file("file", file, metadata={"new": 2})
        archive.add("buffer", file.read_bytes() + b"behind it", metadata={"new": 2})
        with pytest.raises(ExportError, match="at most 65536 bytes"):
            archive.add_file("long", file, metadata={"x": "y" * 65536})
    archive = Archive.open(path)
    assert archive["buffer"]._member.place.shared or archive["file"]._member.place.shared
    changed, original = archive["file"].read(), file.read_bytes()
    end = trailer_of(original)[0]
    assert changed[16:end] == original[16:end]
    told = [dataclasses.replace(jaxexp.inspect(one), metadata=None, total_bytes=0) for one in (changed, original)]
    assert told[0] == told[1] and len(told[0].cases) == len(told[0].sizes) == 2 and told[0].constraints
    assert archive["file"].own_metadata() is None
    assert archive.verify() == {}
    assert jaxexp.check(archive["file"]).verdict == "equal"


def test_what_differs_in_metadata_shares_its_modules(path: Path) -> None:
    """And what does not is stored once, as it is if it has the metadata already."""
    with Archive.create(path) as archive:
        archive.add("a", blob(version=7))
        archive.add("b", blob(version=7), metadata={"version": 7})
        archive.add("c", blob(version=7), metadata={"version": 8})
        archive.add("d", blob(), metadata={"version": 8})
    places = {name: handle._member.place for name, handle in Archive.open(path).items()}
    assert [name for name in places if places[name].shared] == ["b", "d"]
    assert [name for name in places if places[name].apart] == ["c", "d"]
    assert Archive.open(path)["b"].read() == blob(version=7)
    assert Archive.open(path)["d"].read() == blob(version=8)
    Archive.compact(path, share_modules=False)
    assert Archive.open(path)["c"].read() == blob(version=8)


def test_metadata_that_only_an_index_has(path: Path) -> None:
    """Compacting changes no artifact."""
    with metadata_in_the_index(), Archive.create(path) as archive:
        archive.add("a", blob(version=7), metadata={"version": 8})
    Archive.compact(path)
    handle = Archive.open(path)["a"]
    assert handle.read() == blob(version=7)
    assert handle.metadata == handle.own_metadata() == handle.load().metadata == {"version": 8}


def test_a_function_that_is_kept_is_loaded_once(path: Path) -> None:
    archive = Archive.open(make(path, {"a": blob(), "b": blob("tpu")}))
    kept = archive["a"].load()
    assert archive.glob("*")["a"].load() is kept
    assert archive["a"].load(policy=jaxexp.Policy()) is not kept
    assert Archive.open(path)["a"].load() is not kept
    gone = weakref.ref(archive["b"].load())
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_the_collector_is_as_it_was(path: Path, is_on: bool) -> None:
    before, archive = gc.isenabled(), Archive.open(make(path, {"a": blob(), "b": blob(factor=2.0)}))
    try:
        (gc.enable if is_on else gc.disable)()
        archive.load_all()
        assert gc.isenabled() == is_on
        with pytest.raises(KeyError):
            archive.load_all(["absent"])
        assert gc.isenabled() == is_on
    finally:
        (gc.enable if before else gc.disable)()


def test_load_all(path: Path) -> None:
    members = {f"m{i}": blob(factor=1.0 + i % 3, version=i) for i in range(20)} | {"jax": plain()}
    archive = Archive.open(make(path, members))
    assert archive.load_all() == [jaxexp.deserialize(members[name]) for name in archive]
    some = ["m3", "jax", "m3", "m17"]
    for workers in (None, 1, 2, 8):
        assert archive.load_all(some, workers=workers) == [jaxexp.deserialize(members[name]) for name in some]
    with pytest.raises(KeyError, match=r"'absent' is not in .*fleet.zip"):
        archive.load_all(["m3", "absent"])
    assert bytes(archive["m3"].load(policy=jaxexp.Policy()).serialize()) == members["m3"]
    errors = archive.load_all(policy=jaxexp.Policy(max_artifact_bytes=10), on_error="return")
    assert {type(error) for error in errors} == {jaxexp.errors.PolicyError}


def test_file_objects(path: Path) -> None:
    make(path, {"a": blob(), "b": blob("tpu"), "c": blob(factor=2.0, vjp_order=1)})
    data = path.read_bytes()
    with open(path, "rb") as file, open(path, "rb", buffering=0) as raw:
        for source in (io.BytesIO(data), file, raw):
            archive = Archive.open(source)
            assert archive.load_all() == Archive.open(path).load_all()
            assert bytes(archive["b"].read()) == blob("tpu")
            assert archive.verify() == {}
    with pytest.raises(ExportError, match="file object cannot be pickled"):
        pickle.dumps(Archive.open(io.BytesIO(data)))


def closed_by_close(path: Path) -> tuple[Archive, Any]:
    archive = Archive.open(path)
    assert list(archive) == ["a"]  # which it remembers
    handle = archive["a"]
    archive.close()
    return archive, handle


def closed_in_memory(path: Path) -> tuple[Archive, Any]:
    with Archive.open(io.BytesIO(path.read_bytes())) as archive:
        return archive, archive["a"]


def with_a_closed_file(path: Path) -> tuple[Archive, Any]:
    with open(path, "rb") as file:
        archive = Archive.open(file)
        return archive, archive["a"]


USES: dict[str, Callable[[Archive, Any], Any]] = {
    "with": lambda archive, _: archive.__enter__(),
    "[]": lambda archive, _: archive["a"],
    "len": lambda archive, _: len(archive),
    "list": lambda archive, _: list(archive),
    "in": lambda archive, _: "a" in archive,
    "glob": lambda archive, _: archive.glob("*"),
    "load_all": lambda archive, _: archive.load_all(),
    "load_all of names": lambda archive, _: archive.load_all(["a"]),
    "verify": lambda archive, _: archive.verify(),
    "handle.load": lambda _, handle: handle.load(),
    "handle.read": lambda _, handle: handle.read(),
    "handle.summary": lambda _, handle: handle.summary,
    "handle.metadata": lambda _, handle: handle.metadata,
    "handle.inspect": lambda _, handle: handle.inspect(),
    "jaxexp.load": lambda _, handle: jaxexp.load(handle),
}


@pytest.mark.parametrize("closed", [closed_by_close, closed_in_memory, with_a_closed_file])
def test_a_closed_archive(closed: Callable[[Path], tuple[Archive, Any]], path: Path) -> None:
    archive, handle = closed(make(path, {"a": blob()}))
    for use in USES.values():
        with pytest.raises(
            ExportError, match=r"^the archive '.*' is closed: open it again, with jaxexp\.Archive\.open"
        ):
            use(archive, handle)
    assert "closed" in repr(archive)
    assert "'a'" in repr(handle)
    archive.close()


def test_other_sources_are_refused(path: Path) -> None:
    for source in (7, None, b"fleet.zip", ["fleet.zip"]):
        with pytest.raises(TypeError, match="a path, a URL or a binary file object"):
            Archive.open(source)
    with open(make(path, {"a": blob()}), "rb") as file:
        pass
    with pytest.raises(ExportError, match="is closed: open it again"):
        Archive.open(file)


def test_a_member_that_came_later_and_a_file_that_is_called_like_one(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make(path, {"a": blob()}).parent)
    archive = Archive.open(path.name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    make(Path(path.name), {"another": blob(), "and": blob("tpu")})
    with pytest.raises(KeyError, match=r"it has 'a'\W$"):  # which is another file of the name
        archive["b"]
    with Archive.append(path) as writer:
        writer.add("b", blob())
    with pytest.raises(KeyError, match="the file has changed since it was opened: open it again to see what was added"):
        archive["b"]
    called = make(path.with_name(f"{path.name}::b"), {"c": blob()})
    assert list(Archive.open(called)) == ["c"]


def test_pickled_by_its_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(path, {"a": blob(), "b": blob(factor=2.0)})
    monkeypatch.chdir(path.parent)
    archive = Archive.open("fleet.zip")
    pickled = [pickle.dumps(o) for o in (archive, archive.glob("b"), archive["b"])]
    monkeypatch.chdir("/")
    whole, part, handle = map(pickle.loads, pickled)
    assert (list(whole), list(part), handle.name) == (["a", "b"], ["b"], "b")
    assert handle.load() == archive["b"].load()


def test_equal_artifacts_are_stored_once(path: Path, tmp_path: Path) -> None:
    members = {"a": blob(), "b": blob(), "c": plain(), "d": plain()}
    assert make(path, members).read_bytes() == make(tmp_path / "other.zip", members).read_bytes()
    assert_sound(path, members)
    with zipfile.ZipFile(path) as zipped:
        assert zipped.namelist() == ["a", "c", ".jaxexp/index"]
    archive = Archive.open(path)
    assert archive["a"].digest == archive["b"].digest != archive["c"].digest
    of_platforms = {p: blob(p) for p in ("cpu", "cuda", "tpu")}
    assert_sound(make(path, of_platforms, share_modules=False), of_platforms)
    with zipfile.ZipFile(path) as zipped:
        assert zipped.namelist() == ["cpu", "cuda", "tpu", ".jaxexp/index"]


def test_equal_modules_are_stored_once(path: Path) -> None:
    members = {p: blob(p, vjp_order=1) for p in ("cpu", "cuda", "tpu")} | {"again": blob("tpu", vjp_order=1)}
    make(path, members)
    assert_sound(path, members)
    archive = Archive.open(path)
    assert [archive[name].shares_modules for name in ("cpu", "cuda", "tpu", "again")] == [False, True, True, True]
    with zipfile.ZipFile(path) as zipped:
        assert zipped.namelist() == ["cpu", ".jaxexp/apart/cuda", ".jaxexp/apart/tpu", ".jaxexp/index"]
        image = zipped.read(".jaxexp/apart/tpu")
    assert len(image) < len(members["tpu"]) - sum(archive["tpu"].summary.module_bytes) + 64
    with pytest.raises(DeserializationError, match="archive"):
        jaxexp.deserialize(image)
    loaded = archive["again"].load()
    assert loaded == jaxexp.deserialize(members["tpu"])
    assert bytes(loaded.serialize(1)) == members["tpu"]
    assert pickle.loads(pickle.dumps(loaded)) == loaded
    assert archive.load_all() == [jaxexp.deserialize(members[name]) for name in archive]


def test_modules_are_shared_with_what_jax_export_wrote(path: Path) -> None:
    function = jaxexp.deserialize(plain())
    own = bytes(function.serialize())
    make(path, {"own": own, "jax": plain()})
    assert not any(handle.shares_modules for handle in Archive.open(path).values()), "without a trailer it is whole"
    make(path, {"jax": plain(), "own": own})
    assert [handle.shares_modules for handle in Archive.open(path).values()] == [False, True]
    assert_sound(path, {"jax": plain(), "own": own})


@pytest.mark.skipif(shutil.which("unzip") is None, reason="needs unzip")
def test_unzip(path: Path, tmp_path: Path) -> None:
    members = {"b/a": blob(), "b/tpu": blob("tpu"), "é": plain(), "c": blob(factor=2.0)}
    make(path, members)
    listed = unzip("-l", path)
    assert all(name in listed for name in ("b/a", ".jaxexp/apart/b/tpu", "c", ".jaxexp/index"))
    assert "No errors detected" in unzip("-t", path)
    unzip("-q", path, "-d", tmp_path / "out")
    for name in ("b/a", "é", "c"):
        data = (tmp_path / "out" / name).read_bytes()
        assert data == members[name]
        assert jax.export.deserialize(bytearray(data)).mlir_module() == jaxexp.deserialize(data).mlir_module()


def test_members_are_aligned_plain_artifacts(path: Path) -> None:
    members = {f"{'n' * i}": blob(version=i) for i in range(1, 70)}
    make(path, members, share_modules=False)
    data = path.read_bytes()
    with zipfile.ZipFile(path) as zipped:
        for info in zipped.infolist():
            name, extra = (int.from_bytes(data[info.header_offset + at :][:2], "little") for at in (26, 28))
            start = info.header_offset + 30 + name + extra
            assert start % 64 == 0
            if info.filename in members:
                assert data[start : start + info.file_size] == members[info.filename]


def test_other_files_are_refused(path: Path) -> None:
    with zipfile.ZipFile(path.with_name("other.zip"), "w") as zipped:
        zipped.writestr("a", blob())
    for content, found in (
        (b"", "an empty file"),
        (blob(), "an artifact, which is one function"),
        (b"PK\5\6" + bytes(18), "a ZIP file"),
        (
            path.with_name("other.zip").read_bytes(),
            r"fleet.zip.*a ZIP file without one: `jaxexp pack` makes an archive",
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(DeserializationError, match=found):
            Archive.open(path)
    path.unlink()  # an archive does not replace it
    make(path, {"a": blob(), "b": plain()})
    with zipfile.ZipFile(path, "a") as zipped:
        zipped.writestr("c", blob(factor=2.0))
    with pytest.raises(DeserializationError, match="archive"):
        Archive.open(path).verify()
    with pytest.raises(FileNotFoundError):
        Archive.open(path.with_name("absent.zip"))


def test_many_threads(path: Path) -> None:
    members = {f"m{i:03}": blob(factor=1.0 + i % 4, version=i) for i in range(200)}
    archive = Archive.open(make(path, members))
    expected = {name: jaxexp.deserialize(member) for name, member in members.items()}

    def read(seed: int) -> None:
        names = random.Random(seed).sample(sorted(members), 50)
        assert all(archive[name].load() == expected[name] for name in names)
        assert archive.load_all(names, workers=2) == [expected[name] for name in names]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


PIECE = 1 << 17  # of bytes, at most, that are read at once, unless a member is larger


def fleet() -> dict[str, bytes]:
    """Small members of more functions than one thread keeps in memory, versions among them, and large members."""

    def noisy(kilobytes: int, number: int, **changes: Any) -> bytes:
        noise = np.random.default_rng((kilobytes, number)).bytes(500 * kilobytes).hex()
        named = dataclasses.replace(exported(), fun_name=f"function_{number:03}")
        return bytes(named.serialize(metadata={"noise": noise, **changes}))

    members = {f"small/{i:03}": noisy(8, i % 150, version=i // 150) for i in range(300)}
    sizes = {20: 127, 21: 300, 90: 3_000, 91: 300}
    members |= {f"small/{i:03}-large": noisy(size, i) for i, size in sizes.items()}
    return members | {f"versions/{i:02}": blob(factor=1.0 + i, version=i) for i in range(5)}


def test_damage_is_found_wherever_a_member_lies(path: Path) -> None:
    make(path, dict(sorted(fleet().items(), key=lambda item: item[0][::-1])), share_modules=False)
    data = bytearray(path.read_bytes())
    damaged = {"small/000", "small/021-large", "small/090-large", "small/091", "small/299", "versions/04"}
    with Archive.open(path) as archive:
        assert archive.verify(workers=1) == archive.glob("small/1*").verify(workers=3) == {}
        index = archive._opened.index
        for name in damaged:
            position, size, _ = index.extent(index.find(name))
            data[position + size // 2] ^= 1
    path.write_bytes(data)
    all_found = [
        {name: (e.path, e.expected, e.found) for name, e in Archive.open(source).verify(workers=workers).items()}
        for source, workers in ((path, 1), (path, 3), (io.BytesIO(data), 1), (io.BytesIO(data), 3))
    ]
    assert set(all_found[0]) == damaged
    assert all(found == all_found[0] for found in all_found)


def test_a_file_that_is_cut_while_it_is_verified(path: Path) -> None:
    make(path, fleet())
    assert path.stat().st_size > 8 * PIECE
    with Archive.open(path) as archive:
        archive._opened.check()  # the index is in memory from now on
        with open(path, "r+b") as file:
            file.truncate(PIECE)
        with pytest.raises(DeserializationError, match=r"fleet.zip"):
            archive.verify(workers=2)
