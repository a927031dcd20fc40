"""Writing archives: anew, behind what is there, without what was removed; and what is refused."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import os
import random
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import Archive, DeserializationError, ExportError, _native
from jaxexp._fleet.archive.output import Output
from kit import forged
from kit.archive_files import X, assert_sound, exported_again, make
from kit.archives import blob, plain


def test_strict_adds_only_what_plain_jax_export_reads(path: Path) -> None:
    Pair = collections.namedtuple("Pair", "a b")
    unregistered = jaxexp.export(jax.jit(lambda pair: pair.a))(Pair(X, X))
    plain_function = jaxexp.export(jax.jit(jnp.sin))(X)
    with Archive.create(path) as archive:
        with pytest.raises(ExportError, match=r"strict=True: .* not registered"):
            archive.add("pair", unregistered, strict=True)
        assert len(archive) == 0
        archive.add("pair", unregistered)
        archive.add("plain", plain_function, strict=True)
    assert_sound(path, {"pair": bytes(unregistered.serialize()), "plain": bytes(plain_function.serialize())})


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
            assert name not in archive
            with pytest.raises((KeyError, TypeError)):
                archive.remove(name)
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
            with pytest.raises(ExportError, match="vjp_order=1 is for an Exported"):
                archive.add("a", blob(), vjp_order=1)
            with pytest.raises(ExportError, match="strict=True is for an Exported"):
                archive.add("a", blob(), strict=True)
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
                with pytest.raises(ExportError, match="being changed by another writer"):
                    other(path)
        assert_sound(path, {"a": blob(), "b": blob()})

    def test_a_full_disk_undoes_an_append(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make(path, {"a": blob()})
        old = path.read_bytes()

        def write(self: Output, position: int, *parts: Any) -> None:
            self._file.seek(position)
            self._file.write(bytes(parts[0])[:10])
            raise OSError(28, "No space left on device")

        archive = Archive.append(path)
        with pytest.raises(OSError, match="No space left"), archive:
            archive.add("b", blob(factor=2.0))
            monkeypatch.setattr(Output, "write_at", write)
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

    def test_modules_of_one_digest_are_told_apart(self, path: Path) -> None:
        """Somebody else's module must not take the place of the one that is removed."""

        def exported(constant: np.ndarray, name: str) -> jaxexp.Exported:
            function = jax.jit(lambda x: x + constant)
            made = jaxexp.export(function, reproducible=True)(jax.ShapeDtypeStruct((2048,), np.uint32))
            return dataclasses.replace(made, fun_name=name)

        somewhere = np.arange(2048, dtype=np.uint32)
        position = exported(somewhere, "f").mlir_module_serialized.index(somewhere.tobytes())
        ours, theirs = forged.pair(2048, position)
        assert not np.array_equal(ours, theirs)
        modules = [exported(constant, "f").mlir_module_serialized for constant in (ours, theirs)]
        assert modules[0] != modules[1]
        assert len({_native.digest(module) for module in modules}) == 1
        with Archive.create(path) as archive:
            archive.add("first", exported(ours, "first"))
            archive.add("second", exported(ours, "second"))
        with Archive.open(path) as opened:
            assert opened["second"].shares_modules
        with Archive.append(path) as archive:
            archive.add("other", exported(theirs, "other"))
            archive.remove("first")
        with Archive.open(path) as opened:
            for name, constant in (("second", ours), ("other", theirs)):
                np.testing.assert_array_equal(opened[name].load().call(np.zeros(2048, np.uint32)), constant)

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
            archive._output.end = 5 << 30
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
            archive._opened.check()
        finally:
            path.unlink()


@pytest.mark.parametrize("how", ["create", "append"])
def test_threads_add_at_once(how: str, path: Path) -> None:
    artifacts = {f"m/{i:03}": blob(factor=float(i % 7)) for i in range(200)}
    if how == "append":
        make(path, {"old": blob()})
    taken = []

    def add(name: str) -> None:
        try:
            archive.add(name, artifacts[name], metadata={"name": name})
        except ExportError as error:
            taken.append(str(error))

    with getattr(Archive, how)(path) as archive, ThreadPoolExecutor(8) as threads:
        list(threads.map(add, [*artifacts, *artifacts]))
        threads.submit(archive.remove, "m/000")
    del artifacts["m/000"]
    assert len(taken) == 200
    assert all("remove it first" in error for error in taken)
    assert_sound(path, artifacts | ({"old": blob()} if how == "append" else {}))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
@pytest.mark.parametrize("ending", ["exit", "error", "end"])
@pytest.mark.parametrize("how", ["create", "append"])
def test_a_forked_process_has_no_part_in_it(how: str, ending: str, path: Path) -> None:
    make(path, {"old": blob()})
    with contextlib.suppress(SystemExit), getattr(Archive, how)(path) as archive:
        archive.add("a", blob())
        process = os.getpid()
        child = os.fork()
        if child == 0:
            refused = False
            try:
                with archive:
                    with contextlib.suppress(ExportError):
                        archive.add("b", blob())
                        os._exit(1)
                    refused = True
                    if ending != "end":
                        raise SystemExit if ending == "exit" else ValueError
            except BaseException:
                refused = refused and ending != "end"
            del archive
            gc.collect()
            os._exit(0 if refused else 2)
        assert os.waitpid(child, 0)[1] == 0
        archive.add("c", blob(factor=2.0))
    assert os.getpid() == process
    assert_sound(path, {"a": blob(), "c": blob(factor=2.0)} | ({"old": blob()} if how == "append" else {}))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_not_replaced(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file, so nothing takes its place"), Archive.create(path):
        pass
    assert path.is_fifo()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:os.fork:RuntimeWarning")
def test_a_forked_process_does_not_keep_the_lock(path: Path) -> None:
    """It may live for long, such as one that loads data."""
    told, tell = os.pipe()
    ended, end = os.pipe()
    with Archive.create(path) as archive:
        archive.add("a", blob())
    with Archive.append(path) as archive:
        child = os.fork()
        if not child:
            os.close(end)
            os.write(tell, b".")
            os.read(ended, 1)  # until the parent has added something
            os._exit(0)
        os.read(told, 1)
        archive.add("b", blob(version=1))
    with Archive.append(path) as archive:
        archive.add("c", blob(version=2))
    os.close(end)
    os.waitpid(child, 0)
    for descriptor in (told, tell, ended):
        os.close(descriptor)
    with Archive.open(path) as opened:
        assert list(opened) == ["a", "b", "c"]
