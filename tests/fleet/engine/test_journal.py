"""Journals: interrupted passes go on, find what others find, and look again at what changed; damage is one error."""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp import _native
from jaxexp._errors import JournalError
from jaxexp._fleet.engine.engine import Journal
from jaxexp._fleet.passes import many
from jaxexp._fleet.places.inspect import digests_of
from jaxexp._fleet.places.source import Opened
from kit import bulk, weighted
from kit.archive_files import make
from kit.archives import blob
from kit.each import each
from kit.places import WORKERS
from kit.served import serving

ABOUT = {"pass": "verify", "options": {"policy": None}}
DONE = [("a", [1, "x"], 0, 3, [None]), ("b", [2], 5, 6, {"found": 1})]


def line(said: object) -> bytes:
    text = json.dumps(said, separators=(",", ":")).encode()
    return _native.digest(text).hex().encode() + b" " + text + b"\n"


HEAD = line({"jaxexp": "journal", "layout": 1, **ABOUT})


@pytest.fixture
def path(tmp_path) -> Path:
    """Two lines behind the first one."""
    path = tmp_path / "journal"
    with Journal(path, ABOUT) as journal:
        journal.add(DONE[:1])
        journal.add(DONE[1:])
    return path


def known(path: Path) -> list[object]:
    with Journal(path, ABOUT) as journal:
        return [journal.done("a", [1, "x"]), journal.done("b", [2])]


def test_what_is_done_is_remembered(path) -> None:
    assert known(path) == [[(0, 3, [None])], [(5, 6, {"found": 1})]]
    with Journal(path, ABOUT) as journal:
        assert journal.done("a", [1, "y"]) == [], "a changed input"
        journal.add([("a", [1, "y"], 0, 3, "new")])
    with Journal(path, ABOUT) as journal:
        assert journal.done("a", [1, "z"]) == []
        assert journal.done("a", [1, "y"]) == [(0, 3, "new")]
        assert journal.done("a", [1, "x"]) == [(0, 3, [None])], "as it was before"


def test_inputs_of_one_name_are_told_apart(path) -> None:
    with Journal(path, ABOUT) as journal:
        journal.add([("a", [1, {"member": i, "of": "a"}], 0, 1, i) for i in range(5)])
        journal.add([("a", [1, {"member": 2, "of": "a"}], 1, 2, "more"), ("a", [1, "x"], 2, 5, "later")])
    with Journal(path, ABOUT) as journal:
        for i in (3, 0, 4, 1):
            assert journal.done("a", (1, {"of": "a", "member": i})) == [(0, 1, i)]
        assert journal.done("a", [1, {"member": 2, "of": "a"}]) == [(0, 1, 2), (1, 2, "more")]
        assert journal.done("a", [1, {"member": 5, "of": "a"}]) == []
        assert journal.done("a", [1, "x"]) == [(2, 5, "later")], "what was done again counts"


def test_a_journal_that_is_cut_anywhere_goes_on(path) -> None:
    before, data = known(path), path.read_bytes()
    path.write_bytes(data + bytes(5000))  # as a crash leaves it
    assert known(path) == before
    ends = [i + 1 for i, c in enumerate(data) if c == ord("\n")]
    for size in range(len(data)):
        path.write_bytes(data[:size])
        found = known(path)
        whole = sum(end <= size for end in ends)
        assert [bool(one) for one in found] == [whole > 1, whole > 2]
        with Journal(path, ABOUT) as journal:
            journal.add(DONE[1:])
        assert known(path)[1] == [(5, 6, {"found": 1})]


def test_a_byte_that_changed_is_an_error(path) -> None:
    data = path.read_bytes()
    for place in range(len(data) - 1):  # without the last line's end, that line was not finished
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(JournalError) as caught:
            known(path)
        assert str(path) in str(caught.value)


EMPTY, RESULTS = "a journal, or an empty file", "names, numbers and results"
DEEP = b"[" * 99_999
FOREIGN = [
    (b"Dear diary,\n", EMPTY),
    (b"Dear diary", EMPTY),
    (b"12345", EMPTY),
    (b"deadbeef" * 4 + b" of somebody", EMPTY),
    (bytes(100_000), EMPTY),
    (bytes(range(256)) * 4, EMPTY),
    (line({"jobs": 1}), "another one"),
    (line([1]), "another one"),
    (line({"jaxexp": "journal", "layout": 2, **ABOUT}), "layout 1"),
    (HEAD + line(0), RESULTS),
    (HEAD + line({"done": 3}), RESULTS),
    (HEAD + line({"done": [["a", [], 3, 2, None]]}), RESULTS),
    (HEAD + line({"done": [["a", [], False, True, None]]}), RESULTS),
    (HEAD + line({"done": [[["a"], [], 0, 1, None]]}), RESULTS),
    (HEAD + _native.digest(DEEP).hex().encode() + b" " + DEEP + b"\n", "JSON"),
]


@each("data, said", FOREIGN)
def test_files_that_no_pass_left(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(data)
    with pytest.raises(JournalError, match=f"{said}.*; name another file, or remove this one to begin again$"):
        known(path)
    assert path.read_bytes() == data


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.timeout(60)
def test_a_pipe_is_no_journal(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(JournalError, match=r"found a pipe or a device$"):
            known(path)


def test_the_journal_of_another_pass(path) -> None:
    """Which has other options, too: the pass is named first, and a long option is shown in part."""
    with pytest.raises(JournalError, match="with pass 'migrate', found pass 'verify'; name another file"):
        Journal(path, {**ABOUT, "pass": "migrate", "options": {"to": "max"}})
    path.write_bytes(line({"jaxexp": "journal", "layout": 1, **ABOUT, "pass": "\x1b" * 1_000_000}))
    with pytest.raises(JournalError, match="expected the same pass as now") as caught:
        known(path)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


def test_one_pass_at_a_time(path) -> None:
    with Journal(path, ABOUT), pytest.raises(jaxexp.errors.ExportError, match="is being changed by another writer"):
        Journal(path, ABOUT)


def test_results_that_no_pass_would_write(tmp_path) -> None:
    """The digests of lines are no signatures: who writes a journal can write anything, and gets an error."""
    artifact, path = tmp_path / "x.jaxexp", tmp_path / "journal"
    artifact.write_bytes(blob())
    assert jaxexp.verify_many([artifact], journal=path) == {}
    head, did = path.read_bytes().splitlines(keepends=True)
    ((name, identity, *_),) = json.loads(did[33:])["done"]
    wrong = [1, True, [], ["os", 1], 0]
    for stop, result in ((1, None), (1, 3), (1, [1]), (1, wrong), (1, {}), (7, [1, True, [], None, 0])):
        path.write_bytes(head + line({"done": [[name, identity, 0, stop, result]]}))
        with pytest.raises(JournalError, match="the result of this pass"):
            jaxexp.verify_many([artifact], journal=path)


@pytest.mark.skipif(os.name == "nt", reason="there are no such modes")
def test_nobody_else_may_read_a_new_journal(path) -> None:
    """It has URLs as they were given."""
    assert path.stat().st_mode & 0o777 == 0o600


DOZENS = pytest.mark.long(
    promise="a pass that is killed or interrupted goes on where it was",
    sibling="test_journal.py::test_killed_and_gone_on_with",
)


@pytest.fixture
def folder(tmp_path) -> Path:
    return bulk.folder_of(tmp_path / "in", 60)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize(
    ("how", "workers"),
    [
        pytest.param(signal.SIGKILL, 0, marks=pytest.mark.processes(reason="kills a few")),
        pytest.param(signal.SIGINT, 0, marks=DOZENS),
        pytest.param(signal.SIGKILL, 2, marks=DOZENS),
        pytest.param(signal.SIGINT, 2, marks=DOZENS),
    ],
)
def test_killed_and_gone_on_with(how: signal.Signals, workers: int, folder, tmp_path, subprocess_env) -> None:
    """Killed when it has found a random number of results, again and again, until a pass comes to its end."""
    journal, result = tmp_path / "journal", tmp_path / "result"
    moments = random.Random(f"{how} {workers}")
    command = [sys.executable, WORKERS / "bulk_pass.py", folder, journal, result, str(workers)]
    sizes = [0]
    while not result.exists():
        with subprocess.Popen(command, env=subprocess_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout.readline() == b"begun\n"
            enough = sizes[-1] + moments.randrange(3_000, 6_000)
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


@each(
    "said, named",
    [
        ("ETag", "model.jaxexp"),
        ("ETag", ""),
        ("Content-MD5", ""),
        ("Digest", "model.jaxexp"),
        ("Last-Modified", "model.jaxexp"),
        (None, ""),
    ],
)
def test_what_has_changed_behind_a_url_is_done_again(said: str | None, named: str, tmp_path) -> None:
    """By whatever a server says of its files, by itself or by its folder. If it says nothing, nobody knows whether they
    are the same."""
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
    make(old, {f"inner/{i}": blob(version=i) for i in range(3)})
    assert jaxexp.migrate_many([old], new, journal=journal) == {}
    assert jaxexp.load(new / "inner/1.jaxexp") == jaxexp.deserialize(blob(version=1))
    times = {path: path.stat().st_mtime_ns for path in new.rglob("*.jaxexp")}
    assert len(times) == 3
    assert jaxexp.migrate_many([old], new, journal=journal) == {}
    assert {path: path.stat().st_mtime_ns for path in times} == times
    (new / "inner/1.jaxexp").write_bytes(b"overwritten")
    assert jaxexp.migrate_many([old], new, journal=journal) == {}
    assert jaxexp.load(new / "inner/1.jaxexp") == jaxexp.deserialize(blob(version=1))
    with pytest.raises(jaxexp.errors.DeserializationError, match=r"with options .*0\.6\.2.*, found options"):
        jaxexp.migrate_many([old], new, "0.6.2", journal=journal)


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
        journal.write_bytes(head + line({"done": [[*place, [said]]]}))
        assert jaxexp.migrate_many([old], new, journal=journal) == {}
        assert jaxexp.load(new / "x.jaxexp") == jaxexp.deserialize(blob())


def test_a_journal_cannot_name_weights_elsewhere(tmp_path, monkeypatch) -> None:
    """Nobody looks at them, or asks a server for them."""
    folder, journal = tmp_path / "in", tmp_path / "journal"
    folder.mkdir()
    weighted.bound()[0].save(folder / "m.jaxexp")
    assert jaxexp.verify_many([folder], journal=journal) == {}
    head, did = journal.read_bytes().splitlines(keepends=True)
    ((*place, [written]),) = json.loads(did[33:])["done"]
    ((name, *stamp),) = written["files"]
    asked: list[str] = []
    monkeypatch.setattr(many, "stamp", lambda path: asked.append(path) or tuple(stamp))
    for other in (str(tmp_path / "m.safetensors"), "https://evil.example/m.safetensors", "/etc/passwd"):
        journal.write_bytes(head + line({"done": [[*place, [{**written, "files": [[other, *stamp]]}]]]}))
        assert jaxexp.verify_many([folder], journal=journal) == {}
        assert set(asked) == {str(folder / name)}  # as it is verified again
    asked.clear()
    journal.write_bytes(head + did)
    assert jaxexp.verify_many([folder], journal=journal) == {}
    assert asked == [str(folder / name)]


def test_migrated_weights_that_changed_are_written_again(tmp_path) -> None:
    old, new, journal = tmp_path / "old.zip", tmp_path / "new", tmp_path / "journal"
    make(old, {"m": weighted.bound()[0]})
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
    make(old, {"m": weighted.bound()[0]})
    assert jaxexp.migrate_many([old], tmp_path / "first") == {}
    (weights,) = (tmp_path / "first").glob("*.safetensors")
    outside.write_text("mine")
    new.mkdir()
    (new / weights.name).symlink_to(outside)
    (error,) = jaxexp.migrate_many([old], new).values()
    assert "is a link that leads out of" in str(error)
    assert outside.read_text() == "mine"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A function with weights and cases in files beside it."""
    weights = {"w": np.full((200, 200), 2.0, np.float32)}
    exported = jaxexp.export(jax.jit(lambda p, x: p["w"] * x))(weights, jax.ShapeDtypeStruct((200, 200), np.float32))
    exported.bind(weights).save(tmp_path / "f.jaxexp", cases=[(np.ones((200, 200), np.float32),)])
    assert {file.name for file in tmp_path.iterdir()} == {"f.jaxexp", "f.safetensors", "f.cases.safetensors"}
    return tmp_path / "f.jaxexp"


def changed(file: Path) -> bytes:
    """Changes the last byte, and returns what the file was."""
    before, stat = file.read_bytes(), file.stat()
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))
    return before


def test_a_file_beside_it_changes_or_goes(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "loaded", looked_at := Mock(side_effect=many.loaded))

    def checked() -> tuple[str, int]:
        looked_at.reset_mock()
        ((_, report),) = jaxexp.check_many([model], journal=model.parent / "journal")
        return report.verdict, looked_at.call_count

    assert checked() == ("equal", 1)
    assert checked() == ("equal", 0)
    for name, verdict in (("f.cases.safetensors", "failed"), ("f.safetensors", "differs")):
        file = model.parent / name
        before = changed(file)
        assert checked() == (verdict, 1)
        assert checked() == (verdict, 0)
        file.write_bytes(before)
        assert checked() == ("equal", 1)
    file = model.parent / "f.cases.safetensors"
    before = file.read_bytes()
    file.unlink()
    assert checked() == checked() == ("failed", 1) == (jaxexp.check(model).verdict, 1)
    file.write_bytes(before)
    assert checked() == ("equal", 1)


def test_weights_that_come_later(model: Path) -> None:
    journal, weights = model.parent / "journal", model.parent / "f.safetensors"
    weights.rename(model.parent / "later")
    (error,) = jaxexp.verify_many([model], journal=journal).values()
    assert isinstance(error, jaxexp.errors.WeightsError)
    (model.parent / "later").rename(weights)
    assert jaxexp.verify_many([model], journal=journal) == {}


@pytest.mark.processes(reason="workers are processes")
def test_digests_are_kept_until_weights_change(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights beside an artifact are a part of its meaning."""
    (model.parent / "g.jaxexp").write_bytes(blob())
    alone = dict(jaxexp.digests_many([model.parent]))
    journal = model.parent / "journal"
    with bulk.pool() as workers:
        assert dict(jaxexp.digests_many([model.parent], executor=workers, journal=journal)) == alone
    read: list[str] = []

    def noted(found: Opened) -> Any:
        read.append(Path(found.source.name).name)
        return digests_of(found)

    monkeypatch.setattr(many, "digests_of", noted)
    assert (dict(jaxexp.digests_many([model.parent], journal=journal)), read) == (alone, [])
    (model.parent / "f.safetensors").touch()
    assert (dict(jaxexp.digests_many([model.parent], journal=journal)), read) == (alone, ["f.jaxexp"])


@pytest.mark.parametrize(
    ("run", "module", "name"),
    [
        (jaxexp.verify_many, "jaxexp._fleet.places.verify", "files_of"),
        (jaxexp.digests_many, "jaxexp._fleet.passes.many", "digests_of"),
    ],
)
def test_a_file_that_is_replaced_while_it_is_read(
    run: Callable[..., Any], module: str, name: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has the state of the file from before it was read."""
    owner = importlib.import_module(module)
    real = getattr(owner, name)

    def slow(*args: Any) -> Any:
        found = real(*args)
        changed(model.parent / "f.safetensors")
        return found

    monkeypatch.setattr(owner, name, slow)
    before = dict(run([model], journal=model.parent / "journal"))
    monkeypatch.setattr(owner, name, real)
    assert dict(run([model], journal=model.parent / "journal")) != before
