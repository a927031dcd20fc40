"""The house of docs/design.md and what is imported in it: the page's tables are what the code is compared with."""

from __future__ import annotations

import ast
import dataclasses
import functools
import graphlib
import re
from collections.abc import Iterable, Iterator
from importlib.util import resolve_name
from pathlib import Path

from kit.places import ROOT

PACKAGE = ROOT / "python" / "jaxexp"
CPP = ROOT / "cpp"
PAGE = (ROOT / "docs" / "design.md").read_text()
# What every room may import, and what only rooms that know JAX may import outside of functions.
FOR_ALL = {"_errors", "_native", "_public", "_runtime", "_version"}
JAX = {"_jax", "jax", "jaxlib"}
WITHOUT_JAX = "without JAX"


@dataclasses.dataclass(frozen=True)
class Room:
    """A row of a table, of a box or a room: what it may import, and whether it does without JAX."""

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
    section = re.split("\n###? ", PAGE.split(f"### {heading}", 1)[1])[0]
    rooms = {}
    for row in re.findall(r"^\| `.*$", section, re.MULTILINE):
        name, _, allowed, *marks = (cell.strip() for cell in row.strip("|\n").split("|"))
        names = re.findall(r"`([\w/]+)`", allowed)
        rooms[name.strip("`")] = Room(name.strip("`"), row, frozenset(names), WITHOUT_JAX in marks)
    return rooms


BOXES = table("Boxes")
ROOMS = table("Rooms")
IN_CPP = table("C++")


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
        stem = resolve_name("." * node.level + (node.module or ""), f"jaxexp.{package}".strip("."))
        stems = [(stem, [alias.name for alias in node.names])]
    for stem, names in stems:
        first, _, below = stem.partition(".")
        if first != "jaxexp":
            yield first
            continue
        for whole in [f"{below}.{name}".strip(".") for name in names] or [below]:
            yield whole if whole in FILES or whole in FOR_ALL else below


def box_of(module: str) -> str:
    return module.split(".")[0]


def room_of(module: str) -> str:
    """The innermost room of a module: its box, if that has no rooms."""
    parts = module.split(".")
    inner = "/".join(parts[:2])
    return inner if inner in ROOMS else parts[0]


def without_jax(room: str) -> bool:
    row = ROOMS.get(room) or BOXES.get(room)
    return row is not None and row.without_jax


@functools.cache
def all_python_arrows() -> list[Arrow]:
    return [arrow for name in FILES for arrow in python_arrows(name)]


def inside() -> list[Arrow]:
    return [arrow for arrow in all_python_arrows() if arrow.to_file in FILES]


def cpp_arrows() -> Iterator[Arrow]:
    # The header that is generated from a schema belongs to the room whose row names the schema.
    generated = {
        f"{schema}_generated.h": room.name
        for room in IN_CPP.values()
        for schema in re.findall(r"schema/(\w+)\.fbs", room.row)
    }
    # Public headers belong to the rooms that implement them; the runtime's errors and times belong to its lower ones.
    public = {f"jaxexp/{path.name}": f"{path.parts[-4]}/api" for path in CPP.glob("*/include/jaxexp/*.h")}
    public["jaxexp/run_error.h"] = "runtime/plugin"
    public["jaxexp/weights_error.h"] = "runtime/weights"
    public["jaxexp/call_times.h"] = "runtime/function"
    public["jaxexp/run.h"] = "runtime/c"
    public["jaxexp/version.h"] = "wire/api"  # which the build makes
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


def has_no_circle(arrows: Iterable[tuple[str, str]]) -> bool:
    to: dict[str, set[str]] = {}
    for start, end in arrows:
        if start != end:
            to.setdefault(start, set()).add(end)
    graphlib.TopologicalSorter(to).prepare()  # raises an error that has the circle
    return True


def test_the_tables_point_down() -> None:
    for rooms in (BOXES, ROOMS, IN_CPP):
        order = list(rooms)
        for room in rooms.values():
            above = [other for other in room.allowed if order.index(other) <= order.index(room.name)]
            assert not above, f"{room.name} may import {above}, which stand above it in docs/design.md"


def test_every_box_and_every_room_is_in_the_tables() -> None:
    folders = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if any(path.glob("*.py"))}
    folders -= {"_cli/commands", "."}
    assert folders == {*BOXES, *(room for room in ROOMS if "/" in room)}
    in_cpp = {room_in_cpp(arrow.file) for arrow in CPP_ARROWS if arrow.file != "bindings/module.cpp"}
    assert in_cpp == set(IN_CPP)


def test_python_imports_what_the_tables_allow() -> None:
    wrong = []
    for arrow in inside():
        box, to_box = box_of(arrow.file), box_of(arrow.to_file)
        if box not in BOXES or to_box in (*FOR_ALL, "_jax"):
            continue
        if box != to_box:
            if to_box not in BOXES[box].allowed:
                wrong.append(str(arrow))
        elif arrow.room in ROOMS and arrow.to != arrow.room and arrow.to not in ROOMS[arrow.room].allowed:
            wrong.append(str(arrow))
    assert not wrong, "\n".join(["not allowed by docs/design.md:", *wrong])
    seen = {(arrow.file, arrow.to_file): arrow.is_lazy for arrow in inside()}
    assert (seen["_api.load", "_api.exported"], seen["_api.load", "_policy.policy"]) == (False, True)


def test_rooms_without_jax_wait_for_none() -> None:
    wrong = [
        str(arrow)
        for arrow in all_python_arrows()
        if without_jax(arrow.room)
        and not arrow.is_lazy
        and (arrow.to in JAX or (box_of(arrow.to_file) in BOXES and not without_jax(arrow.to)))
    ]
    assert not wrong, "\n".join(["imported outside of functions:", *wrong])


def test_files_beside_the_boxes_import_none() -> None:
    """`__main__.py` starts the command line."""
    beside = {name for name in FILES if name not in BOXES and "." not in name and name != "__main__"}
    wrong = [str(arrow) for arrow in inside() if box_of(arrow.file) in beside and box_of(arrow.to_file) in BOXES]
    assert not wrong, wrong


def test_cpp_includes_what_the_table_allows() -> None:
    wrong = [
        str(arrow)
        for arrow in CPP_ARROWS
        if arrow.room in IN_CPP and arrow.to != arrow.room and arrow.to not in IN_CPP[arrow.room].allowed
    ]
    assert not wrong, "\n".join(["not allowed by docs/design.md:", *wrong])


def test_no_circle() -> None:
    for of in (lambda name: name, room_of, box_of):
        assert has_no_circle((of(arrow.file), of(arrow.to_file)) for arrow in inside())
    assert len(CPP_ARROWS) > 150
    assert has_no_circle((arrow.file, arrow.to_file) for arrow in CPP_ARROWS)
    assert has_no_circle((arrow.room, arrow.to) for arrow in CPP_ARROWS)


def test_nothing_imports_the_package_for_a_public_name() -> None:
    """That would be a circle with a mask: the public names are looked up in a table."""
    wrong = [str(arrow) for arrow in all_python_arrows() if arrow.file and arrow.to_file == ""]
    assert not wrong, wrong


def test_a_door_says_what_is_inside() -> None:
    """The `__init__.py` of a folder is a docstring and nothing else: a sentence, and up to ten lines. That of a public
    box has its names, too.
    """
    for folder in (*BOXES, *(room for room in ROOMS if "/" in room)):
        only, *names = ast.parse((PACKAGE / folder / "__init__.py").read_text()).body
        assert not names or not folder.startswith("_"), folder
        assert isinstance(only, ast.Expr) and isinstance(only.value, ast.Constant), folder
        lines = str(only.value.value).strip().splitlines()
        assert lines[0].endswith((".", ":")) and len(lines) <= 14, folder


def test_the_table_of_caches_has_each_name_that_is_kept() -> None:
    """What functions keep is named where it is computed, and listed in docs/design.md."""
    listed = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| kept (.*?) \|", PAGE, re.MULTILINE))))
    source = "\n".join(path.read_text() for path in FILES.values())
    named = set(re.findall(r"\bkept\([\w.]+, \"(\w+)\"", source))
    named |= set(re.findall(r"\b(?:_kept|kept_by\([\w.]+\))\)(?:\.get\(|\[)\"(\w+)\"", source)) | {"equal"}
    assert named == listed
