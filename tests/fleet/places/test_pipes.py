"""A named pipe is an error at once: opening it would wait for somebody who writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from jaxexp._cli import start

if not hasattr(os, "mkfifo"):
    pytest.skip("this system has no named pipes", allow_module_level=True)

READERS: dict[str, Callable[[Path], Any]] = {
    "load": jaxexp.load,
    "inspect": jaxexp.inspect,
    "verify": jaxexp.verify,
    "digests": jaxexp.digests,
    "check": jaxexp.check,
    "compatibility": jaxexp.compatibility,
    "Archive.open": jaxexp.Archive.open,
}


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "f.jaxexp")
    return tmp_path / "f.jaxexp"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", READERS)
def test_readers(name: str, pipe: Path) -> None:
    with pytest.raises((OSError, jaxexp.ExportError)) as found:
        READERS[name](pipe)
    assert "f.jaxexp" in str(found.value)


@pytest.mark.timeout(60)
def test_passes(pipe: Path) -> None:
    for one in (jaxexp.verify_many, jaxexp.digests_many, jaxexp.compatibility_many, jaxexp.check_many):
        ((_, found),) = dict(one([pipe])).items()
        assert isinstance(found, Exception), one.__name__


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", ["verify", "digest", "inspect", "ls", "check", "compat"])
def test_commands(command: str, pipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([str(pipe)], [str(pipe.parent), "--include", "*.jaxexp"]):
        assert start.main([command, *arguments]) == 1
        assert "f.jaxexp" in "".join(capsys.readouterr())
