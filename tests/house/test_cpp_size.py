"""C++ that is read at a glance: classes of at most 250 lines, functions of 80; and the bindings' namespace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

CPP = Path(__file__).resolve().parents[2] / "cpp"
MOST = {"class": 250, "function": 80}

if not CPP.is_dir():
    pytest.skip("this is no checkout, so there are no C++ sources", allow_module_level=True)

FILES = sorted(path for path in CPP.rglob("*") if path.suffix in (".h", ".cpp") and "third_party" not in path.parts)
CONTROL = re.compile(r"\}|(if|for|while|do|switch|case|default|else|try|catch|namespace|enum|extern|return)\b")
CLASS = re.compile(r"(template <.*> )?(class|struct|union)\b")


def blocks(text: str) -> Iterator[tuple[str, str, int]]:
    """Classes and functions: what they are, their first lines, and how many lines they have.

    clang-format indents what is in a block deeper than its first and its last line, and nothing else as deep as these.
    """
    lines = text.split("\n")
    depths = [len(line) - len(line.lstrip()) if line.strip() and line[0] != "#" else -1 for line in lines]
    for end, line in enumerate(lines):
        if not re.fullmatch(r" *\}(;|  // .*)?", line):
            continue
        begin = end - 1
        while begin >= 0 and (depths[begin] == -1 or depths[begin] > depths[end]):
            begin -= 1
        first = lines[begin].strip()
        if begin < 0 or CONTROL.match(first) or depths[begin] < depths[end]:
            continue
        kind = "class" if CLASS.match(first) else "function"
        yield kind, first, end - begin + 1


def test_no_class_and_no_function_is_too_long() -> None:
    kinds = Counter(kind for path in FILES for kind, _, _ in blocks(path.read_text()))
    assert kinds["class"] > 200 and kinds["function"] > 1000, "the reader sees them"
    too_long = [
        f"{path.relative_to(CPP)}: {first} has {size} lines, where a {kind} may have {MOST[kind]}"
        for path in FILES
        for kind, first, size in blocks(path.read_text())
        if size > MOST[kind]
    ]
    assert not too_long, "\n".join(too_long)


def test_the_bindings_have_a_namespace_of_their_own() -> None:
    """A program may link them beside the library: their names are no names of its headers."""
    for path in (CPP / "bindings").rglob("*"):
        if path.suffix in (".h", ".cpp") and path.name != "module.cpp":
            opened = re.findall(r"^namespace (\S+) \{$", path.read_text(), re.MULTILINE)
            assert opened == ["jaxexp::bindings"], path


def test_lists_and_dicts_are_made_with_a_check() -> None:
    """nanobind's own constructors make an object of nothing when memory runs out."""
    unchecked = re.compile(r"nb::(dict|list)( \w+;|\(\)| \w+\{\})")
    found = [
        f"{path.name}: {line.strip()}"
        for path in FILES
        for line in path.read_text().split("\n")
        if unchecked.search(line)
    ]
    assert not found, "new_dict() and new_list() of bindings/base/owned.h"
    assert unchecked.search("nb::dict fields;")
