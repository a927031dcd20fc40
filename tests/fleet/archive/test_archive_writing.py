"""Writing archives: in a `with` block, anew, behind what is there, without what was removed; and what is refused."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import Archive, _native
from jaxexp._fleet.archive.writer import Output
from jaxexp.errors import DeserializationError, ExportError
from kit import forged
from kit.archive_files import X, assert_sound, make
from kit.archives import blob, plain
from kit.each import each
from kit.flips import flip, flipped


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Garbage is looked for in what the test made only."""
    gc.freeze()
    yield
    gc.unfreeze()


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


HOSTILE: tuple[Any, ...] = (
    7, None, b"a", "", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\\b", "C:/a", "c:a", "a\0", "a\n",
    "\x1b[2Ja", "a\x7f", "\x85", "\u202ea", "\u2066a", "a\u2028", "\ufeffa", ".jaxexp", ".jaxexp/index", "x" * 1025,
    "\ud800",
)  # fmt: skip


def test_names_that_cannot_be(path: Path) -> None:
    with Archive.create(path) as archive:
        for name in HOSTILE:
            with pytest.raises(ExportError, match="cannot be the name of an archive's member"):
                archive.add(name, blob())
            assert name not in archive, name
            with pytest.raises((KeyError, TypeError)):
                archive.remove(name)
        archive.add("a", blob())
    assert_sound(path, {"a": blob()})


def test_names_that_are_taken(path: Path) -> None:
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


def test_what_cannot_be_added(path: Path) -> None:
    damaged, module = flipped(blob(), -60), flipped(blob(), len(blob()) // 2)
    with Archive.create(path) as archive:
        for wrong in (damaged, module, b"", b"PK\3\4", blob()[:-1]):
            with pytest.raises(DeserializationError):
                archive.add("a", wrong)
        with pytest.raises(TypeError, match="a buffer with an artifact"):
            archive.add("a", "model.jaxexp")
        options: list[tuple[dict[str, Any], str]] = [
            ({"vjp_order": 1}, "vjp_order=1 is for an Exported"),
            ({"strict": True}, "strict=True is for an Exported"),
            ({"metadata": {"x": "y" * 65536}}, "at most 65536 bytes"),
            ({"metadata": {"x": X}}, "JSON"),
        ]
        for option, said in options:
            with pytest.raises(ExportError, match=said):
                archive.add("a", blob(), **option)
        assert len(archive) == 0
        archive.add("a", blob())
    assert_sound(path, {"a": blob()})


def test_buffers_of_all_kinds(path: Path) -> None:
    """What follows an artifact in one is left out."""
    data = blob(vjp_order=1)
    kinds = {"bytearray": bytearray(data), "view": memoryview(data), "array": np.frombuffer(data, np.uint8)}
    assert_sound(make(path, kinds), dict.fromkeys(kinds, data))
    make(path, {"cpu": blob() + b"more", "tpu": blob("tpu") + bytes(1000), "again": blob() + b"other"})
    assert_sound(path, {"cpu": blob(), "tpu": blob("tpu"), "again": blob()})
    with zipfile.ZipFile(path) as zipped:
        assert zipped.namelist() == ["cpu", ".jaxexp/apart/tpu", ".jaxexp/index"]


def test_create_is_atomic(path: Path) -> None:
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


def test_append(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(path, {"b": blob()})
    old, before = path.read_bytes(), Archive.open(path)
    with Archive.append(path) as archive:
        archive.add("a", blob("tpu"))
        archive.add("c", blob())
        assert list(Archive.open(path)) == ["b"], "seen only when it is complete"
    for use in (lambda: archive.add("d", blob()), lambda: archive.remove("b")):
        with pytest.raises(ExportError, match="is written in a block"):
            use()
    appended = path.read_bytes()
    assert appended.startswith(old), "nothing is overwritten"
    assert_sound(path, {"a": blob("tpu"), "b": blob(), "c": blob()})
    assert list(before) == ["b"]
    assert before["b"].load() == jaxexp.deserialize(blob())

    def full(self: Output, position: int, *parts: Any) -> None:
        self._file.seek(position)
        self._file.write(bytes(parts[0])[:10])
        raise OSError(28, "No space left on device")

    for error in (RuntimeError, KeyError, OSError):
        with pytest.raises(error), Archive.append(path) as archive:
            archive.add("d", blob(factor=2.0))
            if error is OSError:
                monkeypatch.setattr(Output, "write_at", full)
            else:
                raise error
        assert path.read_bytes() == appended


def test_remove_and_compact(path: Path) -> None:
    make(path, {"a": blob(), "b": blob(factor=2.0), "c": blob(factor=3.0)})
    with Archive.append(path) as archive:
        archive.remove("b")
        with pytest.raises(KeyError, match="b"):
            archive.remove("a", "c", "b")
        assert archive.names() == ["a", "c"], "several are removed, or none"
        archive.add("b", blob(factor=4.0))
        archive.remove("a")
    assert_sound(path, {"b": blob(factor=4.0), "c": blob(factor=3.0)})
    large = path.stat().st_size
    Archive.compact(path)
    assert_sound(path, {"b": blob(factor=4.0), "c": blob(factor=3.0)})
    assert path.stat().st_size < 0.7 * large
    assert path.read_bytes() == make(path, {"b": blob(factor=4.0), "c": blob(factor=3.0)}).read_bytes()


def test_modules_of_one_digest_are_told_apart(path: Path) -> None:
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


@each("seed", range(3))
def test_like_a_dict(seed: int, tmp_path: Path) -> None:
    path, source = tmp_path / "fleet.zip", random.Random(seed)
    pool = [blob(p, factor, order) for p in ("cpu", "tpu", "cuda") for factor in (1.0, 2.0) for order in (0, 1)]
    pool += [plain(), plain(2.0)]
    expected: dict[str, bytes] = {}
    make(path, {})
    for _ in range(12):
        with Archive.append(path, share_modules=source.random() < 0.8) as archive:
            for _ in range(source.randrange(8)):
                if expected and source.random() < 0.4:
                    archive.remove(gone := source.choice(sorted(expected)))
                    del expected[gone]
                elif (name := f"m{source.randrange(100)}") not in expected:
                    expected[name] = source.choice(pool)
                    archive.add(name, expected[name])
            assert archive.names() == sorted(expected)
        assert_sound(path, expected)
        if source.random() < 0.3:
            Archive.compact(path)
            assert_sound(path, expected)
    archive = Archive.open(path)
    assert archive.load_all() == [jaxexp.deserialize(expected[name]) for name in archive]


def test_compact_refuses_damage_and_loses_nothing(path: Path) -> None:
    make(path, {"a": blob(), "b": plain()})
    data = flip(path, plain(), len(plain()) // 2)
    with pytest.raises(DeserializationError, match=r"fleet.zip::b"):
        Archive.compact(path)
    assert path.read_bytes() == data
    assert [p.name for p in path.parent.iterdir()] == ["fleet.zip"]


def test_more_members_than_fit_16_bits_and_places_beyond_32(path: Path) -> None:
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
        assert archive["m"].load() == jaxexp.deserialize(blob())
        assert bytes(archive["far/65999"].read()) == b"00065999"
        with zipfile.ZipFile(path) as zipped:
            assert len(zipped.namelist()) == count + 2
            assert zipped.read("far/65999") == b"00065999"
            assert zipped.read("m") == blob()
        assert archive.glob("m").verify() == {}
        archive._opened.check()
    finally:
        path.unlink()


def test_threads_add_at_once(path: Path) -> None:
    make(path, {"old": blob()})
    artifacts = {f"m/{i:03}": blob(factor=1.0 + i % 3, version=i % 7) for i in range(200)}
    taken = []

    def add(name: str) -> None:
        try:
            archive.add(name, artifacts[name], metadata={"name": name})
        except ExportError as error:
            taken.append(str(error))

    with Archive.append(path) as archive, ThreadPoolExecutor(8) as threads:
        list(threads.map(add, [*artifacts, *artifacts]))
        threads.submit(archive.remove, "m/000")
    del artifacts["m/000"]
    written = {name: _native.with_metadata(one, {"name": f'"{name}"'}) for name, one in artifacts.items()}
    assert len(taken) == 200
    assert all("remove it first" in error for error in taken)
    assert_sound(path, written | {"old": blob()})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
@pytest.mark.usefixtures("small_heap")
@each("how, ending", [("create", "exit"), ("append", "error"), ("append", "end")])
def test_a_forked_process_has_no_part_in_it(how: str, ending: str, tmp_path: Path) -> None:
    path = make(tmp_path / "fleet.zip", {"old": blob()})
    with contextlib.suppress(SystemExit), getattr(Archive, how)(path) as archive:
        archive.add("a", blob())
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
    assert_sound(path, {"a": blob(), "c": blob(factor=2.0)} | ({"old": blob()} if how == "append" else {}))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_not_replaced(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file, so it is not replaced"), Archive.create(path):
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


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.usefixtures("small_heap")
@each("begin", [Archive.create, Archive.append])
def test_changes_without_a_block_are_refused(tmp_path: Path, begin: Callable) -> None:
    old = make(tmp_path / "fleet.zip", {"a": blob()})
    before = old.read_bytes()
    changes: list[Callable[[Any], object]] = [
        lambda archive: archive.add("b", blob()),
        lambda archive: archive.add_file("b", "missing.jaxexp"),
        lambda archive: archive.remove("a"),
    ]
    for change in changes:
        with pytest.raises(ExportError, match=rf"with Archive\.{begin.__name__}\('.*fleet.zip'\) as archive:"):
            change(begin(old))
        gc.collect()
        assert old.read_bytes() == before
        assert [file.name for file in old.parent.iterdir()] == [old.name]


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="others drop objects later")
@each("begin, is_entered", [(Archive.create, False), (Archive.append, True)])
def test_a_writer_that_is_dropped(tmp_path: Path, begin: Callable, is_entered: bool) -> None:
    """At once, and not only when the garbage collector comes: others want to write."""
    old = make(tmp_path / "fleet.zip", {"a": blob()})
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


def test_a_writer_at_the_end_of_a_process(tmp_path: Path) -> None:
    code = "import jaxexp; writer = jaxexp.Archive.create('new.zip')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stderr, list(tmp_path.iterdir())) == ("", [])


@pytest.mark.usefixtures("small_heap")
def test_a_block_that_has_ended_warns_of_nothing(path: Path, recwarn: pytest.WarningsRecorder) -> None:
    for ends in (RuntimeError, KeyboardInterrupt, None):
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
