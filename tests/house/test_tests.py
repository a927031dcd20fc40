"""The tests' own house: what is shared lies in kit, and tools are for people and for make."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kit.places import TESTS
from tools import check

FILES = sorted(TESTS.rglob("test_*.py"))
ROOMS = {path.parent.relative_to(TESTS).as_posix() for path in FILES}


def imported(path: Path) -> set[str]:
    """The first names of what a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." if node.level else (node.module or "").partition(".")[0])
    return found


def test_no_test_imports_another() -> None:
    files = {path.stem for path in FILES} | {"conftest", "."}
    wrong = {str(path.relative_to(TESTS)): imported(path) & files for path in FILES}
    assert not {path: names for path, names in wrong.items() if names}


def test_kit_imports_no_tools() -> None:
    wrong = [path.name for path in (TESTS / "kit").rglob("*.py") if "tools" in imported(path)]
    assert not wrong


def test_files_have_names_of_their_own() -> None:
    """Reports and the table of behaviours would mix them up."""
    assert len({path.name for path in FILES}) == len(FILES) > 50


def test_marks_say_why(request: pytest.FixtureRequest) -> None:
    marks = [
        mark
        for item in request.session.items
        for name in ("slow", "once", "processes")
        for mark in item.iter_markers(name)
    ]
    assert all(mark.kwargs.keys() == {"reason"} and mark.kwargs["reason"] for mark in marks)
    sampled = [mark for item in request.session.items for mark in item.iter_markers("sampled")]
    assert all(mark.kwargs.keys() == {"one_in", "reason"} and mark.kwargs["reason"] for mark in sampled)


@pytest.mark.parametrize(
    ("path", "room"),
    [
        ("tests/kernel/read/test_damaged.py", "kernel/read"),
        ("tests/kit/corpus.py", None),
        ("tests/conftest.py", None),
        ("python/jaxexp/_kernel/codec/nodes.py", "kernel/codec"),
        ("python/jaxexp/_cli/commands/verify.py", "cli"),
        ("python/jaxexp/_jax.py", None),
        ("cpp/wire/bytecode/cursor.cpp", "kernel/module"),
        ("docs/guide/cli.md", "house"),
        ("Makefile", None),
    ],
)
def test_make_check_knows_whose_tests_a_change_concerns(path: str, room: str | None) -> None:
    assert check.room_of(path) == room
    assert room is None or room in check.rooms()


def test_make_check_looks_at_everything_a_little_when_much_has_changed() -> None:
    assert check.chosen(["tests/kernel/read/x.py", "python/jaxexp/_kernel/codec/y.py", "README.md"]) == {
        "kernel/read",
        "kernel/codec",
    }
    assert check.chosen(["tests/kernel/read/x.py", "tests/kernel/io/y.py", "tests/kernel/call/z.py"]) == set()
    assert set(check.ELSEWHERE.values()) <= check.rooms() == ROOMS
