"""Journals: what a crash may leave is gone on with; anything else that is not as it was written is one clear error."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import jaxexp
from jaxexp import _native
from jaxexp._errors import JournalError
from jaxexp._fleet.engine.journal import Journal

pytestmark = pytest.mark.once(reason="nothing here knows JAX")
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
    """As members of one archive that are named one by one."""
    with Journal(path, ABOUT) as journal:
        journal.add([("a", [1, {"member": i, "of": "a"}], 0, 1, i) for i in range(5)])
        journal.add([("a", [1, {"member": 2, "of": "a"}], 1, 2, "more")])
    with Journal(path, ABOUT) as journal:
        for i in (3, 0, 4, 1):
            assert journal.done("a", (1, {"of": "a", "member": i})) == [(0, 1, i)]
        assert journal.done("a", [1, {"member": 2, "of": "a"}]) == [(0, 1, 2), (1, 2, "more")]
        assert journal.done("a", [1, {"member": 5, "of": "a"}]) == []


def test_of_what_was_done_again_the_last_counts(path) -> None:
    with Journal(path, ABOUT) as journal:
        journal.add([("a", [1, "x"], 2, 5, "later"), ("a", [1, "x"], 7, 8, "apart")])
    assert known(path)[0] == [(2, 5, "later"), (7, 8, "apart")]


def test_a_journal_that_is_cut_anywhere_goes_on(path) -> None:
    data = path.read_bytes()
    ends = [i + 1 for i, c in enumerate(data) if c == ord("\n")]
    for size in range(len(data)):
        path.write_bytes(data[:size])
        found = known(path)
        whole = sum(end <= size for end in ends)
        assert [bool(one) for one in found] == [whole > 1, whole > 2]
        with Journal(path, ABOUT) as journal:
            journal.add(DONE[1:])
        assert known(path)[1] == [(5, 6, {"found": 1})]


@pytest.mark.parametrize("tail", [bytes(1), bytes(5000)])
def test_zeros_at_the_end_are_what_a_crash_left(path, tail: bytes) -> None:
    before = known(path)
    path.write_bytes(path.read_bytes() + tail)
    assert known(path) == before


def test_a_byte_that_changed_is_an_error(path) -> None:
    data = path.read_bytes()
    for place in range(len(data) - 1):  # without the last line's end, that line was not finished
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(JournalError) as caught:
            known(path)
        assert str(path) in str(caught.value)


FOREIGN = {
    "text": (b"Dear diary,\n", "a journal, or an empty file"),
    "text without an end": (b"Dear diary", "a journal, or an empty file"),
    "another program's number": (b"12345", "a journal, or an empty file"),
    "hexadecimal digits and more": (b"deadbeef" * 4 + b" of somebody", "a journal, or an empty file"),
    "many zeros": (bytes(100_000), "a journal, or an empty file"),
    "binary": (bytes(range(256)) * 4, "a journal, or an empty file"),
    "another program's": (line({"jobs": 1}), "another one"),
    "a list": (line([1]), "another one"),
    "a newer one": (line({"jaxexp": "journal", "layout": 2, **ABOUT}), "layout 1"),
    "deep": (HEAD + line(0).replace(b"0\n", b"0\n") + b"", "names, numbers and results"),
    "a number": (HEAD + line({"done": 3}), "names, numbers and results"),
    "backwards": (HEAD + line({"done": [["a", [], 3, 2, None]]}), "names, numbers and results"),
    "truth": (HEAD + line({"done": [["a", [], False, True, None]]}), "names, numbers and results"),
    "no name": (HEAD + line({"done": [[["a"], [], 0, 1, None]]}), "names, numbers and results"),
    "no JSON": (HEAD + _native.digest(b"[" * 99_999).hex().encode() + b" " + b"[" * 99_999 + b"\n", "JSON"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_files_that_no_pass_left(name: str, tmp_path) -> None:
    data, said = FOREIGN[name]
    path = tmp_path / "journal"
    path.write_bytes(data)
    with pytest.raises(JournalError, match=f"{said}.*; name another file, or remove this one to begin again$"):
        known(path)
    assert path.read_bytes() == data


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.timeout(60)
def test_a_pipe_is_no_journal(tmp_path) -> None:
    """Nobody waits for its writer."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(JournalError, match=r"found a pipe or a device$"):
            known(path)


def test_a_long_option_is_shown_in_part(tmp_path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(line({"jaxexp": "journal", "layout": 1, **ABOUT, "pass": "\x1b" * 1_000_000}))
    with pytest.raises(JournalError, match="expected the same pass as now") as caught:
        known(path)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


def test_the_journal_of_another_pass(path) -> None:
    """Which has other options, too: the pass is named first."""
    with pytest.raises(JournalError, match="with pass 'migrate', found pass 'verify'; name another file"):
        Journal(path, {**ABOUT, "pass": "migrate", "options": {"to": "max"}})


def test_one_pass_at_a_time(path) -> None:
    with Journal(path, ABOUT), pytest.raises(jaxexp.ExportError, match="is being changed by another writer"):
        Journal(path, ABOUT)


def test_results_that_no_pass_would_write(tmp_path) -> None:
    """The digests of lines are no signatures: who writes a journal can write anything, and gets an error."""
    from kit.archives import blob

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
