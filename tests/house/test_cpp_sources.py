"""C++ that no compiler checks: the bindings' namespace, and objects of Python that are made with a check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CPP = Path(__file__).resolve().parents[2] / "cpp"

if not CPP.is_dir():
    pytest.skip("this is no checkout, so there are no C++ sources", allow_module_level=True)

FILES = sorted(path for path in CPP.rglob("*") if path.suffix in (".h", ".cpp") and "third_party" not in path.parts)


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
