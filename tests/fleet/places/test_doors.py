"""Each door that takes an artifact, and each place that one comes from: the same result, and the same error."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxexp
from jaxexp import DeserializationError, WeightsError
from kit.doors import DOORS, SAID, WRONG, W, World, X, outcome, sources
from kit.each import each

every_door = pytest.mark.parametrize("door", DOORS)


def of(name: str | None) -> set[str | None]:
    """What an error may be about: an artifact, or the archive that it is in."""
    return {name, name and name.partition("::")[0]}


@every_door
def test_the_same_result(door: str, world: World) -> None:
    read = DOORS[door]
    expected = read(world.root / "good" / "f.jaxexp")
    assert {way: found for _, way, make, _ in world.sources("good") if (found := outcome(read, make)) != expected} == {}


@every_door
def test_the_same_error(door: str, world: World) -> None:
    wrong = {}
    for state in ("damaged", *WRONG):
        for _, way, make, name in world.sources(state):
            found = outcome(DOORS[door], make)
            if (state, door, found) == ("damaged", "check", "failed") or (state, way) == ("empty", "mmap"):
                continue  # a case that fails; and no system maps nothing
            names = of(name) | ({None} if (state, door) == ("damaged", "load") else set())  # a module is read later
            is_right = isinstance(found, DeserializationError) and found.file in names
            if not is_right or SAID.get(state, "") not in str(found):
                wrong[state, way] = found
    assert wrong == {}


@every_door
def test_what_is_not_there(door: str, world: World, tmp_path: Path) -> None:
    """Also in an archive: one artifact has one name, and patterns are for the command line."""
    wrong = {}
    for where, way, make, name in sources(tmp_path, f"{world.url}/missing"):
        found = outcome(DOORS[door], make)
        file = "" if where == "buffer" else str(name).partition("::")[0].removeprefix("file://")
        if not isinstance(found, FileNotFoundError) or file not in str(found):
            wrong[way] = found
    assert wrong == {}
    for place in (world.root, world.url):
        with pytest.raises(KeyError, match=r"'in/\*' is not in Archive"):
            DOORS[door](f"{place}/good/all.zip::in/*")


# --- files beside an artifact: archives have them inside, buffers do not have them ----------------------------------


def computed(artifact: Any, **options: Any) -> tuple[bool, bool, list[str | None]]:
    """Whether a function has its weights, whether it computes what it should, and why it uses no compiled code."""
    function = jaxexp.load(artifact, **options)
    is_bound = isinstance(function, jaxexp.BoundExported)
    found = function.call(X) if is_bound else function.call(W, X)
    return is_bound, np.allclose(found, np.sin(X @ W["w"]), 1e-3, 1e-2), [one.why for one in function.executables]


def verified(artifact: Any) -> None:
    jaxexp.load(artifact, verify=True)


BOUND, UNBOUND = (True, True, []), (False, True, [])
ALONE = WeightsError, "weights beside it in 'f.safetensors': copy all files"
DAMAGED = WeightsError, r"found the digest|as its header says, found content"
MISSING = WeightsError, "names, found none of this name"
# What a door makes of a state, from a path, an archive, a URL and a buffer: the result, or the error.
BESIDE: list[tuple[str, Callable[[Any], Any], Any, Any, Any, Any]] = [
    ("with_weights", computed, BOUND, BOUND, ALONE, UNBOUND),
    ("with_weights", lambda artifact: computed(artifact, verify=True), BOUND, BOUND, ALONE, UNBOUND),
    ("with_weights", jaxexp.verify, None, None, None, None),
    ("damaged_weights", jaxexp.verify, DAMAGED, DAMAGED, DAMAGED, None),
    ("damaged_weights", verified, DAMAGED, DAMAGED, ALONE, None),
    ("missing_weights", jaxexp.verify, MISSING, None, MISSING, None),
    ("missing_weights", verified, MISSING, None, ALONE, None),
    ("with_cases", DOORS["check"], "equal", "equal", "equal", "failed"),
    ("with_cases", jaxexp.verify, None, None, None, None),
    ("damaged_cases", DOORS["check"], "failed", "failed", "failed", "failed"),
    ("damaged_cases", jaxexp.verify, DAMAGED, DAMAGED, DAMAGED, None),
    ("missing_cases", DOORS["check"], "failed", "equal", "failed", "failed"),
    ("missing_cases", jaxexp.verify, MISSING, None, MISSING, None),
]


@each("row", range(len(BESIDE)))
def test_files_beside_it(row: int, world: World) -> None:
    state, read, *expected = BESIDE[row]
    wrong = {}
    for where, way, make, name in world.sources(state):
        found, right = (
            outcome(read, make),
            dict(zip(("path", "archive", "URL", "buffer"), expected, strict=True))[where],
        )
        if isinstance(found, Exception) and isinstance(right, tuple) and isinstance(right[0], type):
            file = str(found.file).replace(".cases.safetensors", ".jaxexp").replace(".safetensors", ".jaxexp")
            if type(found) is right[0] and re.search(right[1], str(found)) and file in of(name):
                continue
        if found != right:
            wrong[way] = found
    assert wrong == {}


def test_compiled_code_and_digests(world: World) -> None:
    meaning = jaxexp.digests(world.root / "with_weights" / "f.jaxexp")
    for where, way, make, _ in world.sources("with_weights"):
        found = outcome(lambda artifact: computed(artifact, executables=world.root / "f.exe"), make)
        if where == "URL":
            assert isinstance(found, WeightsError), way
        else:
            assert found == (where != "buffer", True, [None]), way
        digests = outcome(jaxexp.digests, make)
        assert digests == meaning if where != "buffer" else "give the artifact's path" in str(digests), way
        assert outcome(jaxexp.inspect, make).weights, way
