"""Files of executables: read back, added to, and refused or cut short where they are damaged, or a writer died."""

from __future__ import annotations

import collections
import concurrent.futures
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxexp import _native
from jaxexp._executables.file import ExecutablesFile, GrowingFile, Record
from jaxexp._kernel.io.lock import locked
from jaxexp.errors import DeserializationError, ExportError

CONDITIONS = {"module": "12ab", "arguments": "float32[8,8]\nint32[]", "XLA_FLAGS": ""}
CALL = {"jax": '{"kept": [0]}', "custom calls": ""}


def is_intact(found: ExecutablesFile, record: Record) -> bool:
    try:
        return len(found.code(record)) == record.size
    except DeserializationError:
        return False


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.exe"
    file = GrowingFile(path)
    file.put(CONDITIONS, CALL, b"one" * 100)
    file.put({**CONDITIONS, "module": "zwölf"}, CALL, b"")
    return path


def test_what_was_written_is_read(path: Path) -> None:
    found = ExecutablesFile(path)
    assert [record.conditions for record in found.records] == [CONDITIONS, {**CONDITIONS, "module": "zwölf"}]
    assert [record.call for record in found.records] == [CALL, CALL]
    assert list(found.records[0].conditions) == list(CONDITIONS), "in the order in which they are compared"
    assert [found.code(record) for record in found.records] == [b"one" * 100, b""]


def test_a_record_that_was_not_finished_does_not_count_and_is_replaced(path: Path) -> None:
    complete = path.read_bytes()
    GrowingFile(path).put(CONDITIONS, CALL, b"three")
    longer = path.read_bytes()
    for size in range(len(complete), len(longer)):
        path.write_bytes(longer[:size])
        assert len(ExecutablesFile(path).records) == 2
    reader = ExecutablesFile(path)
    GrowingFile(path).put(CONDITIONS, CALL, b"three")
    assert path.read_bytes() == longer
    assert [len(reader.code(record)) for record in reader.records] == [300, 0], "readers keep their records"


def test_every_changed_byte_is_noticed(path: Path) -> None:
    written = path.read_bytes()
    records = ExecutablesFile(path).records
    zeros = 0
    for place in range(len(written)):
        path.write_bytes(written[:place] + bytes([written[place] ^ 1]) + written[place + 1 :])
        try:
            found = ExecutablesFile(path)
        except DeserializationError as error:
            assert error.file == str(path)
            assert str(error).startswith("cannot read the executables")
            continue
        intact = [is_intact(found, record) for record in found.records]
        if intact == [True, True]:  # what is between the records has no meaning
            assert written[place] == 0
            zeros += 1
        else:
            start = records[0].position
            assert intact == [False, True] and start <= place < start + records[0].size
    assert zeros < 4 * 64


def test_something_else_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    for content in (b"", b"PK\3\4", b"JAXEXPEX", bytes(64)):
        other.write_bytes(content)
        with pytest.raises(DeserializationError, match="expected a file of executables"):
            ExecutablesFile(other)
        if content:
            with pytest.raises(DeserializationError, match="expected a file of executables"):
                GrowingFile(other).put(CONDITIONS, CALL, b"")
        assert other.read_bytes() == content
    with pytest.raises(FileNotFoundError, match=r"missing\.exe"):
        ExecutablesFile(tmp_path / "missing.exe")


def test_a_growing_file_has_what_everybody_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And reads each record once."""
    reading = _native.read_executables
    read: list[int] = []

    def counting(*arguments: Any) -> Any:
        found = reading(*arguments)
        read.append(len(found[0]))
        return found

    path = tmp_path / "model.exe"
    mine, other = GrowingFile(path), GrowingFile(path)
    with monkeypatch.context() as patch:
        patch.setattr(_native, "read_executables", counting)
        for number in range(20):
            file = other if number % 2 else mine
            file.put({**CONDITIONS, "module": str(number)}, CALL, bytes(number))
            found = (mine if number % 2 else other).find({**CONDITIONS, "module": str(number)})
            assert found == (CALL, bytes(number))
        assert sum(read) < 2 * 20
    assert [record.size for record in ExecutablesFile(path).records] == list(range(20))
    path.unlink()
    assert mine.find(CONDITIONS) is None
    mine.put(CONDITIONS, CALL, b"again")
    assert mine.find(CONDITIONS) == (CALL, b"again")
    assert len(ExecutablesFile(path).records) == 1


def test_an_empty_file_is_as_good_as_none(tmp_path: Path) -> None:
    """As `tempfile` makes one to take its name."""
    with tempfile.NamedTemporaryFile(dir=tmp_path, delete=False) as made:
        path = Path(made.name)
    mode = path.stat().st_mode
    growing = GrowingFile(path)
    assert growing.find(CONDITIONS) is None
    growing.put(CONDITIONS, {}, b"code")
    assert growing.find(CONDITIONS) == ({}, b"code")
    assert [r.size for r in ExecutablesFile(path).records] == [4]
    assert path.stat().st_mode == mode
    path.write_bytes(b"")  # once more, under a file that was known
    growing.put(CONDITIONS, {}, b"other")
    assert [r.size for r in ExecutablesFile(path).records] == [5]


def test_whoever_adds_waits_while_another_adds(path: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with locked(path):
            waiting = pool.submit(GrowingFile(path).put, CONDITIONS, CALL, b"late")
            assert not concurrent.futures.wait([waiting], 0.05).done
        waiting.result()
    assert [record.size for record in ExecutablesFile(path).records] == [300, 0, 4]


def test_whoever_waits_in_vain_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxexp._executables.file.PATIENCE", 0.02)
    with locked(path), pytest.raises(ExportError, match=r"model\.exe' is being changed by another writer"):
        GrowingFile(path).put(CONDITIONS, CALL, b"late")


# --- many processes at once -----------------------------------------------------------------------------------------

ADDING = """
import sys
from jaxexp._executables.file import GrowingFile
for _ in range(10):
    GrowingFile(sys.argv[1]).put({"name": sys.argv[2]}, {}, bytes([len(sys.argv[2])]) * 200_000)
"""


def assert_nothing_is_lost(path: Path, adding: Callable[[str], list[str]]) -> None:
    """Four processes wait for each other's turn; whoever looks meanwhile sees whole records."""
    children, looks = [subprocess.Popen(adding("x" * i)) for i in range(1, 5)], 0
    while any(child.poll() is None for child in children) or looks == 0:
        file = ExecutablesFile(path) if path.exists() else None
        records = file.records if file else []
        names = [record.conditions["name"] for record in records]
        assert all(
            file.code(record) == bytes([len(name)]) * 200_000 for name, record in zip(names, records, strict=True)
        )
        looks += 1
    assert [child.returncode for child in children] == [0] * 4
    records = ExecutablesFile(path).records
    assert collections.Counter(record.conditions["name"] for record in records) == {"x" * i: 10 for i in range(1, 5)}
    assert list(path.parent.iterdir()) == [path]


def test_many_at_once(tmp_path: Path) -> None:
    path = tmp_path / "model.exe"
    assert_nothing_is_lost(path, lambda name: [sys.executable, "-c", ADDING, str(path), name])


@pytest.mark.cpp
def test_many_at_once_in_cpp(tmp_path: Path, programs: Path) -> None:
    path = tmp_path / "model.exe"
    assert_nothing_is_lost(path, lambda name: [str(programs / "append"), str(path), name, "10", "200000"])
