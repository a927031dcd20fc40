"""The rooms of docs/design.md and what they import: the page's tables are what the code is compared with."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from kit.places import ROOT

PACKAGE = ROOT / "python" / "jaxexp"
CPP = ROOT / "cpp"
# What every room may import, and what only rooms that know JAX may import outside of functions.
FOR_ALL = {"_errors", "_native", "_public", "_version"}
JAX = {"_jax", "jax", "jaxlib"}
WITHOUT_JAX = "without JAX"


@dataclasses.dataclass(frozen=True)
class Room:
    """A row of a table: what the room may import, and whether it does without JAX."""

    name: str
    row: str
    allowed: frozenset[str]
    without_jax: bool


@dataclasses.dataclass(frozen=True)
class Arrow:
    """An import or an include. `room` and `to` are names in the tables, or modules that are in no room."""

    file: str
    room: str
    to_file: str
    to: str
    is_lazy: bool = False  # inside a function, or for type checkers

    def __str__(self) -> str:
        return f"{self.file} imports {self.to_file}"


def table(heading: str) -> dict[str, Room]:
    """The rooms below a heading of the page, from the top of the house to its bottom."""
    page = (ROOT / "docs" / "design.md").read_text()
    section = page.split(f"### {heading}", 1)[1].split("\n## ", 1)[0].split("\n### ", 1)[0]
    rooms = {}
    for row in re.findall(r"^\| `.*$", section, re.MULTILINE):
        name, _, allowed, *marks = (cell.strip() for cell in row.strip("|\n").split("|"))
        names = re.findall(r"`([\w/]+)`", allowed)
        rooms[name.strip("`")] = Room(name.strip("`"), row, frozenset(names), WITHOUT_JAX in marks)
    return rooms


PYTHON = table("Python")
IN_CPP = table("C++")


# --- arrows of Python -----------------------------------------------------------------------------------------------


def module_files() -> dict[str, Path]:
    """Every module of the package by its dotted name below jaxexp; the package itself is ""."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


FILES = module_files()


def python_arrows(name: str) -> Iterator[Arrow]:
    """What a module imports: at its top, in functions, and for type checkers."""
    path = FILES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]

    def visit(node: ast.AST, is_lazy: bool) -> Iterator[Arrow]:
        for child in ast.iter_child_nodes(node):
            lazy = is_lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                lazy = True
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                for target in imported(child, package):
                    yield Arrow(name, room_of(name), target, room_of(target), lazy)
            yield from visit(child, lazy)

    return visit(ast.parse(path.read_text()), False)


def imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """The modules that a statement imports: those of jaxexp by their names below it, others by their first part."""
    if isinstance(node, ast.Import):
        stems = [(alias.name, []) for alias in node.names]
    else:
        stem = node.module or ""
        if node.level:
            inside = package.split(".") if package else []
            up = inside[: len(inside) - (node.level - 1)]
            stem = ".".join(["jaxexp", *up, *filter(None, [stem])])
        stems = [(stem, [alias.name for alias in node.names])]
    for stem, names in stems:
        first, _, below = stem.partition(".")
        if first != "jaxexp":
            yield first
            continue
        for whole in [f"{below}.{name}".strip(".") for name in names] or [below]:
            yield whole if whole in FILES or whole in FOR_ALL else below


def room_of(module: str) -> str:
    return module.split(".")[0]


PYTHON_ARROWS = [arrow for name in FILES if name for arrow in python_arrows(name)]
INSIDE = [arrow for arrow in PYTHON_ARROWS if arrow.to_file in FILES]


# --- arrows of C++ --------------------------------------------------------------------------------------------------


def cpp_arrows() -> Iterator[Arrow]:
    # The header that is generated from a schema belongs to the room whose row names the schema.
    generated = {
        f"{schema}_generated.h": room.name
        for room in IN_CPP.values()
        for schema in re.findall(r"schema/(\w+)\.fbs", room.row)
    }
    # Public headers belong to the rooms that implement them; the runtime's errors belong to its lowest room.
    public = {f"jaxexp/{path.name}": f"{path.parts[-4]}/api" for path in CPP.glob("*/include/jaxexp/*.h")}
    public["jaxexp/run_error.h"] = "runtime/plugin"
    public["jaxexp/weights_error.h"] = "runtime/weights"
    public["jaxexp/run.h"] = "runtime/c"
    for path in sorted([*CPP.glob("wire/**/*.*"), *CPP.glob("runtime/**/*.*"), *CPP.glob("bindings/*/*.*")]):
        file = path.relative_to(CPP).as_posix()
        if path.suffix not in (".h", ".cpp") or "/include/" in file:
            continue
        for included in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            to = generated.get(included) or public.get(included) or room_in_cpp(included)
            yield Arrow(file, room_in_cpp(file), included, to)


def room_in_cpp(file: str) -> str:
    return "/".join(file.split("/")[:2])


CPP_ARROWS = list(cpp_arrows())


# --- the rules ------------------------------------------------------------------------------------------------------


def circles(arrows: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Each circle once; none where the arrows can be followed to an end."""
    to: dict[str, set[str]] = {}
    for start, end in arrows:
        if start != end:
            to.setdefault(start, set()).add(end)
    found, done, path = [], set(), []

    def follow(node: str) -> None:
        if node in path:
            found.append([*path[path.index(node) :], node])
        elif node not in done:
            path.append(node)
            for following in sorted(to.get(node, ())):
                follow(following)
            done.add(path.pop())

    for node in sorted(to):
        follow(node)
    return found


def test_circles_are_found() -> None:
    assert circles([("a", "b"), ("b", "c"), ("a", "c")]) == []
    assert circles([("a", "b"), ("b", "c"), ("c", "b")]) == [["b", "c", "b"]]


@pytest.mark.parametrize("rooms", [PYTHON, IN_CPP], ids=["python", "cpp"])
def test_the_tables_point_down(rooms: Mapping[str, Room]) -> None:
    order = list(rooms)
    for room in rooms.values():
        above = [other for other in room.allowed - {"jaxexp"} if order.index(other) <= order.index(room.name)]
        assert not above, f"{room.name} may import {above}, which stand above it in docs/design.md"


def test_every_room_is_in_the_tables() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders == set(PYTHON) - {"_exported"}
    in_cpp = {room_in_cpp(arrow.file) for arrow in CPP_ARROWS if arrow.file != "bindings/module.cpp"}
    assert in_cpp == set(IN_CPP)


def test_python_imports_what_the_table_allows() -> None:
    wrong = []
    for arrow in INSIDE:
        room = PYTHON.get(arrow.room)
        if room is None or arrow.to in (room.name, *FOR_ALL):
            continue
        if arrow.to == "_jax" or (arrow.to or "jaxexp") in room.allowed:
            continue
        wrong.append(str(arrow))
    assert not wrong, "\n".join(["not allowed by docs/design.md:", *wrong])


def test_rooms_without_jax_wait_for_none() -> None:
    """What a room without JAX imports at once does without JAX too."""
    wrong = [
        str(arrow)
        for arrow in PYTHON_ARROWS
        if arrow.room in PYTHON
        and PYTHON[arrow.room].without_jax
        and not arrow.is_lazy
        and (arrow.to in JAX or (arrow.to in PYTHON and not PYTHON[arrow.to].without_jax))
    ]
    assert not wrong, "\n".join(["imported outside of functions:", *wrong])


def test_files_beside_the_rooms_import_no_room() -> None:
    """`_exported.py` has a row of its own; `__main__.py` starts the command line."""
    beside = {name for name in FILES if name and name not in PYTHON and "." not in name and name != "__main__"}
    wrong = [str(arrow) for arrow in INSIDE if arrow.room in beside and arrow.to in PYTHON]
    assert not wrong, wrong


def test_cpp_includes_what_the_table_allows() -> None:
    wrong = [
        str(arrow)
        for arrow in CPP_ARROWS
        if arrow.room in IN_CPP and arrow.to != arrow.room and arrow.to not in IN_CPP[arrow.room].allowed
    ]
    assert not wrong, "\n".join(["not allowed by docs/design.md:", *wrong])


def test_no_circle() -> None:
    inside = [arrow for arrow in INSIDE if arrow.to]  # not of `jaxexp` itself, which looks its names up by a table
    assert circles((arrow.file, arrow.to_file) for arrow in inside) == []
    assert circles((arrow.room, arrow.to) for arrow in inside) == []
    assert circles((arrow.file, arrow.to_file) for arrow in CPP_ARROWS) == []
    assert circles((arrow.room, arrow.to) for arrow in CPP_ARROWS) == []


def test_arrows_are_seen() -> None:
    """The tests above look at real imports: at the top, in functions, for type checkers, and of C++."""
    seen = {(arrow.file, arrow.to_file): arrow.is_lazy for arrow in PYTHON_ARROWS}
    assert seen["_read.load", "_exported"] is False
    assert seen["_archive.load_all", "_read.many"] is True
    assert seen["_archive.handle", "_exported"] is True
    assert len(INSIDE) > 200
    assert len(CPP_ARROWS) > 150


@pytest.mark.parametrize("room", [room for room in PYTHON if room != "_exported"])
def test_a_door_says_what_the_room_owns_and_imports(room: str) -> None:
    """A room's `__init__.py` is a docstring and nothing else; what it may import is what the table says."""
    (only,) = ast.parse((PACKAGE / room / "__init__.py").read_text()).body
    assert isinstance(only, ast.Expr)
    assert isinstance(only.value, ast.Constant)
    said = re.search(r"May import: ([^.]*)\.", str(only.value.value))
    assert said, "the docstring ends with 'May import: ...'"
    assert set(said[1].split()) - {"nothing"} == set(PYTHON[room].allowed)


def test_sizes() -> None:
    beside = [path.name for path in PACKAGE.glob("*.py*") if not path.name.startswith("_native")]
    assert len(beside) <= 8, beside
    long = {str(path): n for path in FILES.values() if (n := len(path.read_text().splitlines())) > 450}
    assert not long
