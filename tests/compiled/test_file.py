"""Files of executables: read back, added to, and refused or cut short where they are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

import jaxexp
from jaxexp._compiled import file
from jaxexp._compiled.file import ExecutablesFile

CONDITIONS = {"module": "12ab", "arguments": "float32[8,8]\nint32[]", "XLA_FLAGS": ""}
CALL = {"jax": '{"kept": [0]}', "custom calls": ""}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.exe"
    file.append(path, CONDITIONS, CALL, b"one" * 100)
    file.append(path, {**CONDITIONS, "module": "zwölf"}, CALL, b"")
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
    file.append(path, CONDITIONS, CALL, b"three")
    longer = path.read_bytes()
    for size in range(len(complete), len(longer)):
        path.write_bytes(longer[:size])
        assert len(ExecutablesFile(path).records) == 2
    file.append(path, CONDITIONS, CALL, b"three")
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
        intact = [found.is_intact(record) for record in found.records]
        if intact == [True, True]:  # what is between the records has no meaning
            assert written[place] == 0
            zeros += 1
        else:
            start = records[0].position
            assert intact == [False, True] and start <= place < start + records[0].size
    assert zeros < 4 * 64


@pytest.mark.parametrize("content", [b"", b"PK\3\4", b"JAXEXPEX", bytes(64)])
def test_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    other = tmp_path / "other"
    other.write_bytes(content)
    with pytest.raises(jaxexp.DeserializationError, match="expected a file of executables"):
        ExecutablesFile(other)
    with pytest.raises(jaxexp.DeserializationError, match="expected a file of executables"):
        file.append(other, CONDITIONS, CALL, b"")
    assert other.read_bytes() == content


def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.exe"):
        ExecutablesFile(tmp_path / "missing.exe")
