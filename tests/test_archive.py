"""Archives: what is put into one comes out again, for jaxexp, for any unzip and for jax.export."""

from __future__ import annotations

import gc
import io
import pickle
import random
import re
import shutil
import subprocess
import sys
import weakref
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from archives import blob, exported, plain, unzip
from jaxexp import Archive, ArchiveWriter, DeserializationError, ExportError, _native

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
W = {"kernel": np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3), "bias": np.ones(3, np.float32)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet.zip"


def make(path: Path, members: dict[str, Any], **options: Any) -> Path:
    with Archive.create(path, **options) as archive:
        for name, member in members.items():
            archive.add(name, member)
    return path


def assert_sound(path: Path, expected: dict[str, bytes]) -> None:
    """The archive has these artifacts, nothing in it is damaged, and ZIP tools agree."""
    with Archive.open(path) as archive:
        assert {name: bytes(handle.read()) for name, handle in archive.items()} == expected
        assert archive.verify() == {}
        assert archive.unfinished_bytes == 0
        own = [name for name in archive if not archive[name].shares_modules]
    with zipfile.ZipFile(path) as zipped:
        assert zipped.testzip() is None
        names = zipped.namelist()
        assert len(names) == len(set(names))
        assert names[-1] == ".jaxexp/index"
        stored = [name for name in names if not name.startswith(".jaxexp/")]
        assert set(stored) <= set(own)
        for name in stored:
            assert zipped.read(name) == expected[name]
            assert zipped.getinfo(name).compress_type == zipfile.ZIP_STORED
        # Whoever is not there under its own name has the bytes, or the modules, of somebody who is.
        for name in set(expected) - set(stored):
            assert f".jaxexp/apart/{name}" in names or expected[name] in (expected[other] for other in expected)


class TestReading:
    def test_is_a_mapping(self, path: Path) -> None:
        members = {"b/two": blob(factor=2.0), "a": blob(), "b/one": blob(factor=3.0)}
        archive = Archive.open(make(path, members))
        assert list(archive) == ["a", "b/one", "b/two"] == list(archive.keys())
        assert len(archive) == 3
        assert "a" in archive
        assert all(name not in archive for name in ("b", "c", "", "a/", 7, "\ud800"))
        assert {name: bytes(handle.read()) for name, handle in archive.items()} == members
        with pytest.raises(KeyError, match=r"'c' is not in Archive\(.*fleet.zip': 3 artifacts\)"):
            archive["c"]
        assert archive.get("c") is None
        assert archive["a"] == archive["a"] != archive["b/one"]
        assert len({archive["a"], archive["a"], archive["b/one"]}) == 2

    def test_loaded_functions_are_those_that_were_added(self, path: Path) -> None:
        with Archive.create(path) as archive:
            archive.add("model", exported(), vjp_order=1)
            archive.add("bytes", blob(factor=2.0, vjp_order=2))
            archive.add("jax", plain())
        archive = Archive.open(path)
        assert archive["model"].load() == jaxexp.deserialize(exported().serialize(1))
        loaded = archive["bytes"].load()
        assert loaded == jaxexp.deserialize(blob(factor=2.0, vjp_order=2))
        np.testing.assert_allclose(loaded.call(X, W), exported(factor=2.0).call(X, W))
        np.testing.assert_allclose(
            loaded.vjp().call(X, W["bias"], W["kernel"], np.ones((2, 3), np.float32))[1], [4, 4, 4]
        )
        np.testing.assert_allclose(archive["jax"].load().call(X), np.cos(X), rtol=1e-6)

    def test_empty(self, path: Path) -> None:
        archive = Archive.open(make(path, {}))
        assert list(archive) == archive.load_all() == []
        assert len(archive) == 0
        assert "a" not in archive
        assert_sound(path, {})

    def test_hundreds_of_members_are_found(self, path: Path) -> None:
        members = {f"{'x' * (i % 7)}/{i:04}": blob(version=i % 9) for i in range(500)} | {"0": blob()}
        members = {name.lstrip("/"): member for name, member in members.items()}
        archive = Archive.open(make(path, members))
        assert list(archive) == sorted(members, key=str.encode)
        assert all(bytes(archive[name].read()) == member for name, member in members.items())
        assert all(name + "0" not in archive and name[:-1] not in archive for name in members)

    def test_names_of_all_scripts(self, path: Path) -> None:
        names = ["модель/один", "模型", "é", "z", "~", "a b", "v1:8", "\N{MATHEMATICAL ITALIC SMALL ALPHA}"]
        make(path, dict.fromkeys(names, blob()))
        assert list(Archive.open(path)) == sorted(names, key=str.encode)
        assert all(name in Archive.open(path) for name in names)

    def test_glob_makes_slices(self, path: Path) -> None:
        names = ["resnet/b8", "resnet/b16", "resnet/tpu/b8", "vit/b8", "vit/b9"]
        archive = Archive.open(make(path, {name: blob(version=i) for i, name in enumerate(names)}))
        assert list(archive.glob("resnet/*")) == ["resnet/b16", "resnet/b8", "resnet/tpu/b8"]
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

    def test_summary_is_what_inspect_says(self, path: Path) -> None:
        with Archive.create(path) as archive:
            archive.add("model", exported(), vjp_order=2)
            archive.add("jax", plain())
            many = jaxexp.export(jax.jit(lambda *xs: xs))(*[jax.ShapeDtypeStruct((i, 2), np.int8) for i in range(100)])
            archive.add("many", many)
        for handle in Archive.open(path).values():
            summary, told = handle.summary, handle.inspect()
            for field in ("fun_name", "jax_version", "writer", "platforms", "nr_devices", "vjp_order", "module_bytes"):
                assert getattr(summary, field) == getattr(told, field)
            assert summary.argument_count == len(told.arguments)
            assert summary.result_count == len(told.results)
            assert summary.arguments == tuple(map(str, told.arguments[:32]))
            assert summary.results == tuple(map(str, told.results[:32]))
            assert handle.size == told.total_bytes
        assert str(Archive.open(path)["many"].summary).count("...") == 2

    def test_metadata(self, path: Path) -> None:
        with Archive.create(path) as archive:
            archive.add("artifact's own", blob(version=7))
            archive.add("archive's", blob(version=7), metadata={"owner": "me", "π": [3.14, None]})
            archive.add("none", blob())
            archive.add("emptied", blob(version=7), metadata={})
            archive.add("long", exported().serialize(metadata={"text": "x" * 100_000}))
        archive = Archive.open(path)
        expected = {
            "artifact's own": {"version": 7},
            "archive's": {"owner": "me", "π": [3.14, None]},
            "none": {},
            "emptied": {},
            "long": {"text": "x" * 100_000},
        }
        assert {name: handle.metadata for name, handle in archive.items()} == expected
        assert {name: handle.load().metadata for name, handle in archive.items()} == expected
        assert [dict(e.metadata) for e in archive.load_all()] == [expected[name] for name in archive]
        # Saved on, it keeps what the archive said.
        assert jaxexp.deserialize(archive["archive's"].load().serialize()).metadata == expected["archive's"]

    def test_a_function_that_is_kept_is_loaded_once(self, path: Path) -> None:
        archive = Archive.open(make(path, {"a": blob(), "b": blob("tpu")}))
        kept = archive["a"].load()
        assert archive.glob("*")["a"].load() is kept
        assert archive["a"].load(policy=jaxexp.Policy()) is not kept
        assert Archive.open(path)["a"].load() is not kept
        gone = weakref.ref(archive["b"].load())
        gc.collect()
        assert gone() is None

    def test_policy(self, path: Path) -> None:
        make(path, {"model": blob()})
        small = jaxexp.Policy(max_artifact_bytes=10)
        with pytest.raises(jaxexp.PolicyError, match=r"fleet.zip::model"):
            Archive.open(path)["model"].load(policy=small)
        errors = Archive.open(path).load_all(policy=small, on_error="return")
        assert [type(error) for error in errors] == [jaxexp.PolicyError]
        assert Archive.open(path)["model"].load(policy=jaxexp.Policy()) == exported_again()

    def test_load_all(self, path: Path) -> None:
        members = {f"m{i}": blob(factor=1.0 + i % 3, version=i) for i in range(20)} | {"jax": plain()}
        archive = Archive.open(make(path, members))
        assert archive.load_all() == [jaxexp.deserialize(members[name]) for name in archive]
        some = ["m3", "jax", "m3", "m17"]
        for workers in (None, 1, 2, 8):
            assert archive.load_all(some, workers=workers) == [jaxexp.deserialize(members[name]) for name in some]
        with pytest.raises(KeyError, match="absent"):
            archive.load_all(["m3", "absent"])

    def test_file_objects(self, path: Path) -> None:
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

    @pytest.mark.parametrize("source", [7, None, b"fleet.zip", ["fleet.zip"]])
    def test_other_sources_are_refused(self, source: Any) -> None:
        with pytest.raises(TypeError, match="a path, a URL or a binary file object"):
            Archive.open(source)

    def test_pickled_by_its_path(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make(path, {"a": blob(), "b": blob(factor=2.0)})
        monkeypatch.chdir(path.parent)
        archive = Archive.open("fleet.zip")
        pickled = [pickle.dumps(o) for o in (archive, archive.glob("b"), archive["b"])]
        monkeypatch.chdir("/")
        whole, part, handle = map(pickle.loads, pickled)
        assert list(whole) == ["a", "b"]
        assert list(part) == ["b"]
        assert handle.name == "b"
        assert handle.load() == archive["b"].load()

    def test_closing_leaves_functions_alone(self, path: Path) -> None:
        with Archive.open(make(path, {"a": blob("cpu"), "b": blob("tpu")})) as archive:
            loaded = archive["a"].load()
        np.testing.assert_allclose(loaded.call(X, W), exported().call(X, W))

    def test_needs_no_jax(self, path: Path, subprocess_env) -> None:
        make(path, {"a": blob(), "b": blob("tpu")})
        code = """if True:
            import sys, jaxexp
            archive = jaxexp.Archive.open(sys.argv[1])
            print([archive[name].summary.platforms for name in archive], archive.verify())
            with jaxexp.Archive.append(sys.argv[1]) as writer:
                writer.add("c", archive["b"].read(), metadata={"x": 1})
            assert "jax" not in sys.modules
        """
        done = subprocess.run(
            [sys.executable, "-c", code, path], env=subprocess_env(), capture_output=True, text=True, check=False
        )
        assert done.stdout == "[('cpu',), ('tpu',)] {}\n", done.stderr
        assert Archive.open(path)["c"].load().platforms == ("tpu",)

    def test_many_threads_and_processes(self, path: Path, subprocess_env) -> None:
        members = {f"m{i:03}": blob(factor=1.0 + i % 4, version=i) for i in range(200)}
        archive = Archive.open(make(path, members))
        expected = {name: jaxexp.deserialize(member) for name, member in members.items()}

        def read(seed: int) -> None:
            names = random.Random(seed).sample(sorted(members), 50)
            assert all(archive[name].load() == expected[name] for name in names)
            assert archive.load_all(names, workers=2) == [expected[name] for name in names]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(8)))
        code = "import sys, jaxexp; a = jaxexp.Archive.open(sys.argv[1]); print(len(a.load_all()), len(a.verify()))"
        python = [sys.executable, "-c", code, path]
        children = [subprocess.Popen(python, env=subprocess_env(), stdout=subprocess.PIPE, text=True) for _ in range(3)]
        assert [child.communicate()[0] for child in children] == ["200 0\n"] * 3


def exported_again() -> jaxexp.Exported:
    return jaxexp.deserialize(blob())


class TestSharing:
    def test_equal_artifacts_are_stored_once(self, path: Path) -> None:
        members = {"a": blob(), "b": blob(), "c": plain(), "d": plain()}
        make(path, members)
        assert_sound(path, members)
        with zipfile.ZipFile(path) as zipped:
            assert zipped.namelist() == ["a", "c", ".jaxexp/index"]
        archive = Archive.open(path)
        assert archive["a"].digest == archive["b"].digest != archive["c"].digest

    def test_equal_modules_are_stored_once(self, path: Path) -> None:
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

    def test_modules_are_shared_with_what_jax_export_wrote(self, path: Path) -> None:
        function = jaxexp.deserialize(plain())
        own = bytes(function.serialize())
        make(path, {"own": own, "jax": plain()})
        assert not any(handle.shares_modules for handle in Archive.open(path).values()), "without a trailer it is whole"
        make(path, {"jax": plain(), "own": own})
        assert [handle.shares_modules for handle in Archive.open(path).values()] == [False, True]
        assert_sound(path, {"jax": plain(), "own": own})

    def test_only_if_wanted(self, path: Path) -> None:
        members = {p: blob(p) for p in ("cpu", "cuda", "tpu")}
        make(path, members, share_modules=False)
        assert_sound(path, members)
        with zipfile.ZipFile(path) as zipped:
            assert zipped.namelist() == ["cpu", "cuda", "tpu", ".jaxexp/index"]

    def test_artifacts_that_share_some_modules_are_whole(self, path: Path) -> None:
        members = {"without": blob(), "with": blob(vjp_order=1), "tpu": blob("tpu", vjp_order=1), "last": blob("cuda")}
        make(path, members)
        assert_sound(path, members)
        shared = {name: handle.shares_modules for name, handle in Archive.open(path).items()}
        assert shared == {"without": False, "with": False, "tpu": True, "last": True}


class TestTools:
    @pytest.mark.skipif(shutil.which("unzip") is None, reason="needs unzip")
    def test_unzip(self, path: Path, tmp_path: Path) -> None:
        members = {"b/a": blob(), "b/tpu": blob("tpu"), "é": plain(), "c": blob(factor=2.0)}
        make(path, members)
        listed = unzip("-l", path)
        assert all(name in listed for name in ("b/a", ".jaxexp/apart/b/tpu", "c", ".jaxexp/index"))
        assert "No errors detected" in unzip("-t", path)
        unzip("-q", path, "-d", tmp_path / "out")
        for name in ("b/a", "é", "c"):
            data = (tmp_path / "out" / name).read_bytes()
            assert data == members[name]
            ours, theirs = jaxexp.deserialize(data), jax.export.deserialize(bytearray(data))
            assert theirs.in_avals == ours.in_avals
            assert theirs.mlir_module() == ours.mlir_module()

    def test_members_are_aligned_plain_artifacts(self, path: Path) -> None:
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

    def test_equal_members_make_equal_files(self, path: Path, tmp_path: Path) -> None:
        members = {"b": blob(), "a": blob("tpu"), "c": plain()}
        assert make(path, members).read_bytes() == make(tmp_path / "other.zip", members).read_bytes()

    def test_a_zip_file_of_others_is_no_archive(self, path: Path) -> None:
        with zipfile.ZipFile(path, "w") as zipped:
            zipped.writestr("a", blob())
        with pytest.raises(DeserializationError, match=r"fleet.zip.*a ZIP file without, which `jaxexp pack` makes"):
            Archive.open(path)

    def test_changed_by_a_zip_tool_it_is_refused(self, path: Path) -> None:
        make(path, {"a": blob(), "b": plain()})
        with zipfile.ZipFile(path, "a") as zipped:
            zipped.writestr("c", blob(factor=2.0))
        with pytest.raises(DeserializationError, match="archive"):
            Archive.open(path).verify()

    def test_other_files_are_refused(self, path: Path) -> None:
        for content, found in (
            (b"", "an empty file"),
            (blob(), "something else"),
            (b"PK\5\6" + bytes(18), "a ZIP file"),
        ):
            path.write_bytes(content)
            with pytest.raises(DeserializationError, match=found):
                Archive.open(path)
        with pytest.raises(FileNotFoundError):
            Archive.open(path.with_name("absent.zip"))


class TestWriting:
    HOSTILE = (
        "", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\\b", "C:/a", "c:a", "a\0", "a\n", "\x1b[2Ja",
        "a\x7f", "\x85", "\u202ea", "\u2066a", "a\u2028", "\ufeffa", ".jaxexp", ".jaxexp/index", "x" * 1025, "\ud800",
    )  # fmt: skip

    @pytest.mark.parametrize("name", [*HOSTILE, 7, None, b"a"], ids=repr)
    def test_names_that_cannot_be(self, name: Any, path: Path) -> None:
        with Archive.create(path) as archive:
            with pytest.raises(ExportError, match="cannot be the name of an archive's member"):
                archive.add(name, blob())
            archive.add("a", blob())
        assert_sound(path, {"a": blob()})

    def test_names_that_are_taken(self, path: Path) -> None:
        with Archive.create(path) as archive:
            archive.add("a/b", blob())
            for name, reason in (("a/b", "remove it first"), ("a", "whose folder"), ("a/b/c", "cannot be a folder")):
                with pytest.raises(ExportError, match=reason):
                    archive.add(name, blob())
            archive.add("a.", blob())
            archive.add("a-/b", blob())
            assert archive.names() == ["a-/b", "a.", "a/b"]
            assert "a." in archive
            assert "a" not in archive
            assert len(archive) == 3

    def test_what_cannot_be_added(self, path: Path) -> None:
        damaged = bytearray(blob())
        damaged[-60] ^= 1
        module = bytearray(blob())
        module[len(module) // 2] ^= 1
        with Archive.create(path) as archive:
            for wrong in (damaged, module, b"", b"PK\3\4", blob()[:-1]):
                with pytest.raises(DeserializationError):
                    archive.add("a", wrong)
            with pytest.raises(TypeError, match="a buffer with an artifact"):
                archive.add("a", "model.jaxexp")
            with pytest.raises(TypeError, match="from_jax"):
                archive.add("a", jax.export.export(jax.jit(jnp.sin))(X))
            with pytest.raises(ExportError, match="vjp_order=1 is for an Exported"):
                archive.add("a", blob(), vjp_order=1)
            with pytest.raises(ExportError, match="at most 65536 bytes"):
                archive.add("a", blob(), metadata={"x": "y" * 65536})
            with pytest.raises(ExportError, match="JSON"):
                archive.add("a", blob(), metadata={"x": X})
            assert len(archive) == 0
            archive.add("a", blob())
        assert_sound(path, {"a": blob()})

    def test_buffers_of_all_kinds(self, path: Path) -> None:
        data = blob(vjp_order=1)
        kinds = {"bytearray": bytearray(data), "view": memoryview(data), "array": np.frombuffer(data, np.uint8)}
        make(path, kinds)
        assert_sound(path, dict.fromkeys(kinds, data))

    def test_what_follows_an_artifact_is_left_out(self, path: Path) -> None:
        make(path, {"cpu": blob() + b"more", "tpu": blob("tpu") + bytes(1000), "again": blob() + b"other"})
        assert_sound(path, {"cpu": blob(), "tpu": blob("tpu"), "again": blob()})
        with zipfile.ZipFile(path) as zipped:
            assert zipped.namelist() == ["cpu", ".jaxexp/apart/tpu", ".jaxexp/index"]

    def test_create_is_atomic(self, path: Path) -> None:
        make(path, {"old": blob()})
        with pytest.raises(RuntimeError, match="enough"), Archive.create(path) as archive:
            archive.add("new", blob(factor=2.0))
            assert list(Archive.open(path)) == ["old"]
            raise RuntimeError("enough")
        assert_sound(path, {"old": blob()})
        assert [p.name for p in path.parent.iterdir()] == ["fleet.zip"]
        with Archive.create(path) as archive:
            archive.add("new", blob(factor=2.0))
        assert_sound(path, {"new": blob(factor=2.0)})

    def test_append(self, path: Path) -> None:
        make(path, {"b": blob()})
        old = path.read_bytes()
        before = Archive.open(path)
        with Archive.append(path) as archive:
            archive.add("a", blob("tpu"))
            archive.add("c", blob())
            assert list(Archive.open(path)) == ["b"], "seen only when it is complete"
        assert path.read_bytes().startswith(old), "nothing is overwritten"
        assert_sound(path, {"a": blob("tpu"), "b": blob(), "c": blob()})
        assert list(before) == ["b"]
        assert before["b"].load() == exported_again()
        with pytest.raises(RuntimeError), Archive.append(path) as archive:
            archive.add("d", blob(factor=2.0))
            raise RuntimeError
        assert_sound(path, {"a": blob("tpu"), "b": blob(), "c": blob()})

    def test_append_wherever_it_was_cut(self, path: Path, tmp_path: Path) -> None:
        make(path, {"a": blob(), "b": blob("tpu")})
        old = path.read_bytes()
        with Archive.append(path) as archive:
            archive.add("c", blob(factor=2.0))
            archive.remove("a")
        new = path.read_bytes()
        torn = tmp_path / "torn.zip"
        for size in {*range(len(old), len(new), 101), *range(len(new) - 200, len(new))}:
            for rest in (b"", bytes(50)):
                torn.write_bytes(new[:size] + rest)
                try:
                    archive = Archive.open(torn)
                except DeserializationError:
                    # Of the last bytes, which look like an end, more than half are there.
                    assert (
                        len(new) - _native.ARCHIVE_END_SIZE // 2
                        < size + len(rest)
                        < len(new) + _native.ARCHIVE_END_SIZE // 2
                    )
                    continue
                assert list(archive) == ["a", "b"]
                assert archive.unfinished_bytes == size + len(rest) - len(old)
                assert archive.verify() == {}
        torn.write_bytes(new[: len(new) - 300])
        with Archive.append(torn) as archive:
            archive.add("d", blob(factor=3.0))
        assert_sound(torn, {"a": blob(), "b": blob("tpu"), "d": blob(factor=3.0)})

    def test_one_writer_at_a_time(self, path: Path) -> None:
        make(path, {"a": blob()})
        with Archive.append(path) as archive:
            archive.add("b", blob())
            for other in (Archive.append, Archive.compact):
                with pytest.raises(ExportError, match="being changed by somebody else"):
                    other(path)
        assert_sound(path, {"a": blob(), "b": blob()})

    def test_a_full_disk_undoes_an_append(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make(path, {"a": blob()})
        old = path.read_bytes()

        def write(self: ArchiveWriter, position: int, *parts: Any) -> None:
            self._file.seek(position)
            self._file.write(bytes(parts[0])[:10])
            raise OSError(28, "No space left on device")

        archive = Archive.append(path)
        with pytest.raises(OSError, match="No space left"), archive:
            archive.add("b", blob(factor=2.0))
            monkeypatch.setattr(ArchiveWriter, "_write_at", write)
        assert path.read_bytes() == old

    def test_remove_and_compact(self, path: Path) -> None:
        make(path, {"a": blob(), "b": blob(factor=2.0), "c": blob(factor=3.0)})
        with Archive.append(path) as archive:
            archive.remove("b")
            with pytest.raises(KeyError):
                archive.remove("b")
            archive.add("b", blob(factor=4.0))
            archive.remove("a")
        assert_sound(path, {"b": blob(factor=4.0), "c": blob(factor=3.0)})
        large = path.stat().st_size
        Archive.compact(path)
        assert_sound(path, {"b": blob(factor=4.0), "c": blob(factor=3.0)})
        assert path.stat().st_size < 0.7 * large
        assert path.read_bytes() == make(path, {"b": blob(factor=4.0), "c": blob(factor=3.0)}).read_bytes()

    def test_what_others_have_in_common_with_the_removed_stays(self, path: Path) -> None:
        members = {"a": blob(), "b": blob(), "c": blob("tpu"), "d": blob("tpu"), "e": blob("cuda")}
        for removed in members:
            make(path, members)
            with Archive.append(path) as archive:
                archive.remove(removed)
            left = {name: member for name, member in members.items() if name != removed}
            assert_sound(path, left)
            for second in left:
                shutil.copy(path, path.with_name("two.zip"))
                with Archive.append(path.with_name("two.zip")) as archive:
                    archive.remove(second)
                assert_sound(path.with_name("two.zip"), {n: m for n, m in left.items() if n != second})

    @pytest.mark.parametrize("seed", range(6))
    def test_like_a_dict(self, seed: int, path: Path) -> None:
        source = random.Random(seed)
        pool = [
            blob(platform, factor, order)
            for platform in ("cpu", "tpu", "cuda")
            for factor in (1.0, 2.0)
            for order in (0, 1)
        ] + [plain(), plain(2.0)]
        expected: dict[str, bytes] = {}
        make(path, {})
        for _ in range(12):
            with Archive.append(path, share_modules=source.random() < 0.8) as archive:
                for _ in range(source.randrange(8)):
                    if expected and source.random() < 0.4:
                        archive.remove(gone := source.choice(sorted(expected)))
                        del expected[gone]
                    else:
                        name = f"m{source.randrange(100)}"
                        if name not in expected:
                            expected[name] = source.choice(pool)
                            archive.add(name, expected[name])
                assert archive.names() == sorted(expected)
            assert_sound(path, expected)
            if source.random() < 0.3:
                Archive.compact(path)
                assert_sound(path, expected)
        archive = Archive.open(path)
        assert archive.load_all() == [jaxexp.deserialize(expected[name]) for name in archive]

    def test_compact_refuses_damage_and_loses_nothing(self, path: Path) -> None:
        make(path, {"a": blob(), "b": plain()})
        data = bytearray(path.read_bytes())
        data[data.index(plain()) + len(plain()) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(DeserializationError, match=r"fleet.zip::b"):
            Archive.compact(path)
        assert path.read_bytes() == data
        assert [p.name for p in path.parent.iterdir()] == ["fleet.zip"]

    def test_more_members_than_fit_16_bits_and_places_beyond_32(self, path: Path) -> None:
        """As the index and the directory see them; the bytes are no artifacts."""
        count = 66_000
        with Archive.create(path) as archive:
            archive.add("m", blob())
            m = archive._records.get("m")
            member = _native.Member(summary=m.summary, digest=m.digest, size=8, metadata=None, own_metadata=False)
            archive._end = 5 << 30
            for i in range(count):
                data = b"%08d" % i
                place = archive._write(f"far/{i}", data)
                archive._records.put(f"far/{i}", member.at(place, []))
        try:
            archive = Archive.open(path)
            assert len(archive) == count + 1
            assert archive["m"].load() == exported_again()
            assert bytes(archive["far/65999"].read()) == b"00065999"
            with zipfile.ZipFile(path) as zipped:
                assert len(zipped.namelist()) == count + 2
                assert zipped.read("far/65999") == b"00065999"
                assert zipped.read("m") == blob()
            assert archive.glob("m").verify() == {}
            archive._reader.check()
        finally:
            path.unlink()


class TestDamage:
    def test_only_what_is_read_is_checked(self, path: Path) -> None:
        """Opening looks at the root alone, finding a member at one block more."""
        members = {f"m{i:03}": blob(version=i % 5) for i in range(200)}
        make(path, members)
        pointer = Archive.open(path)._reader.pointer
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
        pointer = Archive.open(path)._reader.pointer
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
        extents = archive._reader.index.zip_extents(list(range(4)))
        owners = {0: {"a"}, 1: {"b"}, 2: {"c", "d"}}
        for number, names in owners.items():
            position, size, *_ = extents[number]
            for at in range(position, position + size, 7):
                damaged = bytearray(data)
                damaged[at] ^= 0x10
                errors = Archive.open(io.BytesIO(damaged)).verify()
                in_header = at < archive._reader.index.extent(number)[0]  # of one of those who share bytes
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
        index = Archive.open(path)._reader.index
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


def rebuilt(path: Path, change: Any) -> io.BytesIO:
    """An archive whose index was written by somebody who lies."""
    reader = Archive.open(path)._reader
    records = _native.ArchiveRecords()
    records.take(reader.index)
    members = {name: records.get(name) for name in records.names()}
    data = path.read_bytes()[: max(member.place.position + member.place.size for member in members.values())]
    change(members)
    lying = _native.ArchiveRecords()
    for name, member in members.items():
        lying.put(name, member)
    header = len(_native.zip_local_header(_native.ARCHIVE_INDEX_NAME, 0, 0, len(data)))
    start = len(data) + header
    index, root_position, root_size, digest = lying.write("liar 1.0", start)
    place = _native.MemberPlace(start, len(index), zlib.crc32(index), header)
    data += _native.zip_local_header(_native.ARCHIVE_INDEX_NAME, len(index), place.crc32, len(data)) + index
    pointer = _native.ArchiveEnd(start, len(index), root_position, root_size, digest)
    return io.BytesIO(data + lying.last_bytes(place, len(data), pointer.comment()))


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


def test_the_example_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "archive.md").read_text()
    (code,) = re.findall(r"<!-- example: archive -->\n```python\n(.*?)```", page, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("scores/cpu/b1: scores(float32[1,8], float32[8,3]) -> float32[1,3] on cpu, {'rows': 1}")
    assert lines[3].startswith("[0.333")
