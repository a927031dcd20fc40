"""Files of executables: read back, added to, and refused or cut short where they are damaged, or a writer died."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from jaxexp import _native
from jaxexp._executables.file import ExecutablesFile, GrowingFile, Record
from jaxexp._kernel.io.lock import locked
from kit.places import WORKERS

CONDITIONS = {"module": "12ab", "arguments": "float32[8,8]\nint32[]", "XLA_FLAGS": ""}
CALL = {"jax": '{"kept": [0]}', "custom calls": ""}


def is_intact(found: ExecutablesFile, record: Record) -> bool:
    try:
        return len(found.code(record)) == record.size
    except jaxexp.DeserializationError:
        return False


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.exe"
    file = GrowingFile(path)
    file.append(CONDITIONS, CALL, b"one" * 100)
    file.append({**CONDITIONS, "module": "zwölf"}, CALL, b"")
    return path


def test_what_was_written_is_read(path: Path) -> None:
    found = ExecutablesFile(path)
    assert [record.conditions for record in found.records] == [CONDITIONS, {**CONDITIONS, "module": "zwölf"}]
    assert [record.call for record in found.records] == [CALL, CALL]
    assert list(found.records[0].conditions) == list(CONDITIONS), "in the order in which they are compared"
    assert [found.code(record) for record in found.records] == [b"one" * 100, b""]
    assert all(record.position % 64 == 0 for record in found.records)
    assert found.end == path.stat().st_size


def test_a_record_that_was_not_finished_does_not_count_and_is_replaced(path: Path) -> None:
    complete = path.read_bytes()
    GrowingFile(path).append(CONDITIONS, CALL, b"three")
    longer = path.read_bytes()
    for size in range(len(complete), len(longer)):
        path.write_bytes(longer[:size])
        assert len(ExecutablesFile(path).records) == 2
    GrowingFile(path).append(CONDITIONS, CALL, b"three")
    assert path.read_bytes() == longer


def test_every_changed_byte_is_noticed(path: Path) -> None:
    written = path.read_bytes()
    records = ExecutablesFile(path).records
    zeros = 0
    for place in range(len(written)):
        path.write_bytes(written[:place] + bytes([written[place] ^ 1]) + written[place + 1 :])
        try:
            found = ExecutablesFile(path)
        except jaxexp.DeserializationError as error:
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
        with pytest.raises(jaxexp.DeserializationError, match="expected a file of executables"):
            ExecutablesFile(other)
        if content:
            with pytest.raises(jaxexp.DeserializationError, match="expected a file of executables"):
                GrowingFile(other).append(CONDITIONS, CALL, b"")
        assert other.read_bytes() == content
    with pytest.raises(FileNotFoundError, match=r"missing\.exe"):
        ExecutablesFile(tmp_path / "missing.exe")


def test_a_growing_file_has_what_everybody_adds(tmp_path: Path) -> None:
    path = tmp_path / "model.exe"
    mine, other = GrowingFile(path), GrowingFile(path)
    assert mine.size_of(CONDITIONS) is None
    mine.append(CONDITIONS, CALL, b"one")
    assert other.size_of(CONDITIONS) == 3
    other.append({**CONDITIONS, "module": "other"}, CALL, b"longer")
    assert mine.size_of({**CONDITIONS, "module": "other"}) == 6
    mine.append({**CONDITIONS, "module": "third"}, CALL, b"")
    assert [record.size for record in ExecutablesFile(path).records] == [3, 6, 0]
    path.unlink()
    assert mine.size_of(CONDITIONS) is None
    mine.append(CONDITIONS, CALL, b"again")
    assert mine.size_of(CONDITIONS) == 5
    assert len(ExecutablesFile(path).records) == 1


def test_an_empty_file_is_as_good_as_none(tmp_path: Path) -> None:
    """As `tempfile` makes one to take its name."""
    with tempfile.NamedTemporaryFile(dir=tmp_path, delete=False) as made:
        path = Path(made.name)
    mode = path.stat().st_mode
    growing = GrowingFile(path)
    assert growing.size_of(CONDITIONS) is None
    growing.append(CONDITIONS, {}, b"code")
    assert growing.size_of(CONDITIONS) == 4
    assert [r.size for r in ExecutablesFile(path).records] == [4]
    assert path.stat().st_mode == mode
    path.write_bytes(b"")  # once more, under a file that was known
    growing.append(CONDITIONS, {}, b"other")
    assert [r.size for r in ExecutablesFile(path).records] == [5]


def test_a_growing_file_reads_each_record_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = _native.read_executables
    read: list[int] = []

    def counting(*arguments: Any) -> Any:
        found = reading(*arguments)
        read.append(len(found[0]))
        return found

    monkeypatch.setattr(_native, "read_executables", counting)
    file = GrowingFile(path)
    for number in range(20):
        assert file.size_of({**CONDITIONS, "module": str(number)}) is None
        file.append({**CONDITIONS, "module": str(number)}, CALL, b"code")
    assert sum(read) == 2 + 19


def test_whoever_adds_waits_while_another_adds(path: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with locked(path):
            waiting = pool.submit(GrowingFile(path).append, CONDITIONS, CALL, b"late")
            assert not concurrent.futures.wait([waiting], 0.05).done
        waiting.result()
    assert [record.size for record in ExecutablesFile(path).records] == [300, 0, 4]


def test_whoever_waits_in_vain_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxexp._executables.file.PATIENCE", 0.02)
    with locked(path), pytest.raises(jaxexp.ExportError, match=r"model\.exe' is being changed by another writer"):
        GrowingFile(path).append(CONDITIONS, CALL, b"late")


def test_readers_keep_their_records_while_what_was_not_finished_goes(path: Path) -> None:
    complete = path.read_bytes()
    GrowingFile(path).append(CONDITIONS, CALL, bytes(10_000))
    path.write_bytes(path.read_bytes()[:-100])  # whoever added it died
    reader = ExecutablesFile(path)
    GrowingFile(path).append(CONDITIONS, CALL, b"shorter")
    assert path.stat().st_size < len(complete) + 10_000
    assert [len(reader.code(record)) for record in reader.records] == [300, 0]


# --- processes that are killed, and many at once --------------------------------------------------------------------

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the processes that it kills")


@pytest.fixture
def run_worker(tmp_path: Path, subprocess_env: Callable[..., dict[str, str]]) -> Callable[..., dict[str, int]]:
    def run(*arguments: object) -> dict[str, int]:
        file = tmp_path / "model.exe"
        file.unlink(missing_ok=True)
        command = [sys.executable, WORKERS / "executables_kill.py", file, *map(str, arguments)]
        done = subprocess.run(command, env=subprocess_env(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return {name: int(times) for name, times in map(str.split, done.stdout.splitlines())}

    return run


@needs_fork
def test_killed_at_any_byte_and_many_at_once(run_worker: Callable[..., dict[str, int]]) -> None:
    """The records that were there are left, or one more; others wait for their turn, and lose nothing."""
    found = run_worker("bytes", 30, 0)
    assert found["died"] == 30
    assert found["unfinished"] >= 20
    found = run_worker("together", 4, 0)
    assert found["records"] == 40
    assert found["looks"] > 0


@needs_fork
@pytest.mark.cpp
def test_what_cpp_adds(run_worker: Callable[..., dict[str, int]], programs: Path) -> None:
    assert run_worker("bytes", 30, 0, programs / "append")["unfinished"] >= 20
    assert run_worker("together", 4, 0, programs / "append")["records"] == 40
