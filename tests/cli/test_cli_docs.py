"""docs/guide/cli.md shows what the program prints.

The sessions are recorded anew. With the JAX of the page every character has to be the same. Another JAX writes other
modules, so sizes, digests and versions differ: then each command has to print rows of the same names in the same order.
"""

from __future__ import annotations

import itertools
import re
import sys

import pytest

from jaxexp._cli import app

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals to record on", allow_module_level=True)

from tools import picture_cli
from tools.record_cli import CONSOLE, PAGE, PROMPT, VERSIONS, recorded, versions

recorded_anew = pytest.mark.long(
    promise="the page and the picture of the command line show what it prints",
    sibling="test_cli_docs.py::test_every_command_has_a_session",
)


def sessions(text: str) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for block in CONSOLE.findall(text):
        for line in block.splitlines():
            if line.startswith(PROMPT):
                found.append((line.removeprefix(PROMPT), []))
            else:
                found[-1][1].append(line)
    return found


def names(lines: list[str]) -> list[str]:
    """The first cells of rows, with what differs between releases and runs left out."""
    # Totals and the reasons below them are of verdicts, which are those of one JAX.
    rows = itertools.takewhile(lambda line: not re.match(r"\d+ artifacts: ", line), lines)
    rows = [line for line in rows if line.strip() and not line.startswith(" " * 10)]  # others go on from above
    return [re.sub(r"[0-9a-f]*\d[0-9a-f.,]*", "0", re.split(r"\s{2,}", row.strip())[0]) for row in rows]


@recorded_anew
@pytest.mark.processes(reason="runs every command of the page")
def test_sessions_are_those_of_today() -> None:
    page = PAGE.read_text()
    again = recorded(page)
    shown, printed = sessions(page), sessions(again)
    assert len(shown) > 20
    assert [command for command, _ in shown] == [command for command, _ in printed]
    same_jax = VERSIONS.search(page)[1] == versions()
    for (command, before), (_, now) in zip(shown, printed, strict=True):
        if same_jax:
            assert now == before, command
        assert now if command.startswith("jaxexp") else not now, command
        if "--mlir" not in command:
            assert names(now) == names(before), command
    for command, now in printed:
        assert not any("Traceback" in line or "not expected here" in line for line in now), command


def test_every_command_has_a_session() -> None:
    ran = {command.split()[1] for command, _ in sessions(PAGE.read_text()) if command.startswith("jaxexp ")}
    assert {*app._COMMANDS} - ran == {"sign", "record", "check"}  # their pages have sessions of their own


@recorded_anew
@pytest.mark.processes(reason="runs the commands of the picture")
def test_the_picture_is_that_of_today() -> None:
    """Without colours: `python tests/tools/picture_cli.py` draws it again."""
    if VERSIONS.search(PAGE.read_text())[1] != versions():
        pytest.skip("the picture is of another JAX")
    shown = picture_cli.texts(picture_cli.PICTURE.read_text(encoding="utf-8"))
    assert shown == picture_cli.texts(picture_cli.drawn(picture_cli.printed()))
    assert "$ jaxexp compat old" in shown
