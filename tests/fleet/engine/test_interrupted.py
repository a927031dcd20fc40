"""Passes that are interrupted, in whatever way: the next one goes on, and finds what an uninterrupted one finds."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import jaxexp
from jaxexp import _native
from jaxexp._fleet.passes import verify_many
from kit import bulk, weighted
from kit.archives import blob
from kit.places import WORKERS
from kit.served import serving


@pytest.fixture
def folder(tmp_path) -> Path:
    return bulk.folder_of(tmp_path / "in", 60)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.mark.sampled(one_in=2, reason="many cases go the same way")
@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.processes(reason="kills some")
@pytest.mark.parametrize(
    "workers",
    [
        pytest.param(0, id="alone"),
        pytest.param(2, id="with workers", marks=pytest.mark.slow(reason="starts dozens of processes")),
    ],
)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C"])
def test_killed_and_gone_on_with(how: signal.Signals, workers: int, folder, tmp_path, subprocess_env) -> None:
    """Killed when it has found a random number of results, again and again, until a pass comes to its end."""
    journal, result = tmp_path / "journal", tmp_path / "result"
    moments = random.Random(f"{how} {workers}")
    command = [sys.executable, WORKERS / "bulk_pass.py", folder, journal, result, str(workers)]
    sizes = [0]
    while not result.exists():
        with subprocess.Popen(command, env=subprocess_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begun\n"
            enough = sizes[-1] + moments.randrange(1, 4_000)
            while child.poll() is None and size_of(journal) < enough:
                time.sleep(0.002)
            child.send_signal(how)
            child.communicate()
        sizes.append(size_of(journal))
        assert len(sizes) < 100, "it goes on"
    assert len(sizes) > 2, "nothing was interrupted"
    assert sizes == sorted(sizes)
    assert json.loads(result.read_text()) == {n: str(e) for n, e in jaxexp.verify_many([folder]).items()}
    # Each file was done once: what was in the journal was not done again.
    lines = journal.read_bytes().splitlines()
    done = [part[0] for line in lines[1:] for part in json.loads(line[33:])["done"] if part[0].endswith(".jaxexp")]
    assert len(done) == len(set(done)) == 61


def test_what_has_changed_is_done_again(folder, tmp_path, monkeypatch) -> None:
    journal, read = tmp_path / "journal", []
    verify_files = _native.verify_files
    monkeypatch.setattr(
        _native, "verify_files", lambda paths, threads: read.extend(paths) or verify_files(paths, threads)
    )
    assert list(jaxexp.verify_many([folder], journal=journal)) == [str(folder / "damaged.jaxexp")]
    assert len(read) == 61
    read.clear()
    assert list(jaxexp.verify_many([folder], journal=journal)) == [str(folder / "damaged.jaxexp")]
    assert read == []
    # Mended, of the same size and with the same time; added; taken away; and damaged meanwhile.
    damaged = folder / "damaged.jaxexp"
    times = damaged.stat()
    damaged.write_bytes(blob(version=70))
    os.utime(damaged, ns=(times.st_atime_ns, times.st_mtime_ns))
    (folder / "new.jaxexp").write_bytes(blob(version=71))
    (folder / "000.jaxexp").unlink()
    (folder / "001.jaxexp").write_bytes(blob(version=1)[:-1])
    assert list(jaxexp.verify_many([folder], journal=journal)) == [str(folder / "001.jaxexp")]
    assert sorted(Path(path).name for path in read) == ["001.jaxexp", "damaged.jaxexp", "new.jaxexp"]


@pytest.mark.parametrize("named", ["model.jaxexp", ""], ids=["by itself", "by its folder"])
@pytest.mark.parametrize("said", ["ETag", "Content-MD5", "Digest", "Last-Modified", None])
def test_what_has_changed_behind_a_url_is_done_again(said: str | None, named: str, tmp_path) -> None:
    """By whatever a server says of its files. If it says nothing, nobody knows whether they are the same."""
    pytest.importorskip("aiohttp")
    whole, journal = blob(), tmp_path / "journal"
    with serving(b"") as server:
        url = server.url.replace("fleet.zip", "models/")
        server.others = {"/models/": b'<a href="model.jaxexp">', "/models/model.jaxexp": whole}
        server.headers = {} if said is None else {said: "the first"}
        assert jaxexp.verify_many([url + named], journal=journal) == {}
        server.requests.clear()
        assert jaxexp.verify_many([url + named], journal=journal) == {}
        assert (("GET", len(whole)) in server.requests) == (said is None), "what is the same is not read again"
        server.others["/models/model.jaxexp"] = whole[:-4] + b"gone"
        server.headers = {} if said is None else {said: "another"}
        assert list(jaxexp.verify_many([url + named], journal=journal)) == [f"{url}model.jaxexp"]


def test_what_could_not_be_read_is_tried_again(tmp_path) -> None:
    path, journal = tmp_path / "late.jaxexp", tmp_path / "journal"
    assert isinstance(jaxexp.verify_many([path], journal=journal)[str(path)], FileNotFoundError)
    path.write_bytes(blob())
    assert jaxexp.verify_many([path], journal=journal) == {}


def test_migrated_files_that_are_not_there_any_more(tmp_path) -> None:
    old, new, journal = tmp_path / "old.zip", tmp_path / "new", tmp_path / "journal"
    with jaxexp.Archive.create(old) as archive:
        for i in range(3):
            archive.add(f"inner/{i}", blob(version=i))
    assert jaxexp.migrate_many([old], new, journal=journal) == {}
    assert jaxexp.load(new / "inner/1.jaxexp") == jaxexp.deserialize(blob(version=1))
    times = {path: path.stat().st_mtime_ns for path in new.rglob("*.jaxexp")}
    assert len(times) == 3
    assert jaxexp.migrate_many([old], new, journal=journal) == {}
    assert {path: path.stat().st_mtime_ns for path in times} == times
    (new / "inner/1.jaxexp").write_bytes(b"overwritten")
    assert jaxexp.migrate_many([old], new, journal=journal) == {}
    assert jaxexp.load(new / "inner/1.jaxexp") == jaxexp.deserialize(blob(version=1))
    with pytest.raises(jaxexp.DeserializationError, match=r"with options .*0\.6\.2.*, found options"):
        jaxexp.migrate_many([old], new, "0.6.2", journal=journal)


def journal_line(said: object) -> bytes:
    text = json.dumps(said).encode()
    return _native.digest(text).hex().encode() + b" " + text + b"\n"


def test_a_journal_cannot_say_that_a_file_elsewhere_was_written(tmp_path) -> None:
    """Whoever writes a journal can write right digests, too; but a result is about its own place."""
    old, new, journal, other = tmp_path / "x.jaxexp", tmp_path / "new", tmp_path / "journal", tmp_path / "other"
    old.write_bytes(blob())
    other.write_bytes(blob())
    assert jaxexp.migrate_many([old], new, journal=journal) == {}
    head, did = journal.read_bytes().splitlines(keepends=True)
    ((*place, [written]),) = json.loads(did[33:])["done"]
    for file in (str(other), str(new / ".." / "other"), "\ud800", "a\0b", str(tmp_path)):
        (new / "x.jaxexp").unlink(missing_ok=True)
        said = {**written, "file": file, "size": other.stat().st_size, "digest": _native.digest(blob()).hex()}
        journal.write_bytes(head + journal_line({"done": [[*place, [said]]]}))
        assert jaxexp.migrate_many([old], new, journal=journal) == {}
        assert jaxexp.load(new / "x.jaxexp") == jaxexp.deserialize(blob())


def test_a_journal_cannot_name_weights_elsewhere(tmp_path, monkeypatch) -> None:
    """Nobody looks at them, or asks a server for them."""
    folder, journal = tmp_path / "in", tmp_path / "journal"
    folder.mkdir()
    weighted.bound()[0].save(folder / "m.jaxexp")
    assert jaxexp.verify_many([folder], journal=journal) == {}
    head, did = journal.read_bytes().splitlines(keepends=True)
    ((*place, [size, digests, ((name, *stamp),), *others]),) = json.loads(did[33:])["done"]
    asked: list[str] = []
    monkeypatch.setattr(verify_many, "stamp", lambda path: asked.append(path) or tuple(stamp))
    for other in (str(tmp_path / "m.safetensors"), "https://evil.example/m.safetensors", "/etc/passwd"):
        said = [size, digests, [[other, *stamp]], *others]
        journal.write_bytes(head + journal_line({"done": [[*place, said]]}))
        with pytest.raises(jaxexp.DeserializationError, match="the result of this pass"):
            jaxexp.verify_many([folder], journal=journal)
    assert asked == []
    journal.write_bytes(head + did)
    assert jaxexp.verify_many([folder], journal=journal) == {}
    assert asked == [name]


def test_migrated_weights_that_changed_are_written_again(tmp_path) -> None:
    old, new, journal = tmp_path / "old.zip", tmp_path / "new", tmp_path / "journal"
    function, _ = weighted.bound()
    with jaxexp.Archive.create(old) as archive:
        archive.add("m", function)
    assert jaxexp.migrate_many([old], new, journal=journal) == {}
    (weights,) = new.glob("*.safetensors")
    whole = weights.read_bytes()
    for damaged in (whole[:-4], whole[:8] + b" " * 60 + whole[68:]):
        weights.write_bytes(damaged)
        assert jaxexp.migrate_many([old], new, journal=journal) == {}
        assert weights.read_bytes() == whole


@pytest.mark.skipif(sys.platform == "win32", reason="links take privileges there")
def test_weights_are_written_below_the_folder_only(tmp_path) -> None:
    old, new, outside = tmp_path / "old.zip", tmp_path / "new", tmp_path / "outside"
    function, _ = weighted.bound()
    with jaxexp.Archive.create(old) as archive:
        archive.add("m", function)
    assert jaxexp.migrate_many([old], tmp_path / "first") == {}
    (weights,) = (tmp_path / "first").glob("*.safetensors")
    outside.write_text("mine")
    new.mkdir()
    (new / weights.name).symlink_to(outside)
    (error,) = jaxexp.migrate_many([old], new).values()
    assert "is a link that leads out of" in str(error)
    assert outside.read_text() == "mine"


def test_two_artifacts_for_one_file(tmp_path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jaxexp").write_bytes(blob())
    ((name, error),) = jaxexp.migrate_many([tmp_path / "a", tmp_path / "b"], tmp_path / "new").items()
    assert name == str(tmp_path / "b" / "x.jaxexp")
    assert "to the same place as another: 'x'" in str(error)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.jaxexp"]
