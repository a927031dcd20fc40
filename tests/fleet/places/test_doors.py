"""Each door that takes an artifact, and each place that one comes from: the same result, and the same error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxexp
from jaxexp.errors import DeserializationError, WeightsError
from kit.doors import DOORS, SAID, WRONG, Taken, W, World, X, outcome, sources


def every_door(test: Callable[..., None]) -> Callable[..., None]:
    """For each door a third of the ways, in turn, and at night the `rest`."""
    for names, values in (("door", DOORS), ("rest", [False, True])):
        test = pytest.mark.parametrize(names, values)(test)
    return pytest.mark.wide(one_in=2, promise="each way to an artifact is one for each door")(test)


def some(ways: Iterable[Taken], first: int, rest: bool) -> list[Taken]:
    return [way for number, way in enumerate(ways) if ((number + first) % 3 == 0) != rest]


NUMBERS = {door: number for number, door in enumerate(DOORS)}


def of(name: str | None) -> set[str | None]:
    """What an error may be about: an artifact, or the archive that it is in."""
    return {name, name and name.partition("::")[0]}


@every_door
def test_the_same_result(door: str, rest: bool, world: World) -> None:
    read = DOORS[door]
    expected = read(world.root / "good" / "f.jaxexp")
    ways = some(world.sources("good"), NUMBERS[door], rest)
    assert {way: found for _, way, make, _ in ways if (found := outcome(read, make)) != expected} == {}


@every_door
def test_the_same_error(door: str, rest: bool, world: World) -> None:
    wrong = {}
    for number, state in enumerate(("damaged", *WRONG)):
        for _, way, make, name in some(world.sources(state), NUMBERS[door] + number, rest):
            found = outcome(DOORS[door], make)
            if (state, door, found) == ("damaged", "check", "failed") or (state, way) == ("empty", "mmap"):
                continue  # a case that fails; and no system maps nothing
            names = of(name) | ({None} if (state, door) == ("damaged", "load") else set())  # a module is read later
            is_right = isinstance(found, DeserializationError) and found.file in names
            if not is_right or SAID.get(state, "") not in str(found):
                wrong[state, way] = found
    assert wrong == {}


@every_door
def test_what_is_not_there(door: str, rest: bool, world: World, tmp_path: Path) -> None:
    wrong = {}
    for where, way, make, name in some(sources(tmp_path, f"{world.url}/missing"), NUMBERS[door], rest):
        found = outcome(DOORS[door], make)
        file = "" if where == "buffer" else str(name).partition("::")[0].removeprefix("file://")
        if not isinstance(found, FileNotFoundError) or file not in str(found):
            wrong[way] = found
    assert wrong == {}
    for place in (world.root, world.url):
        with pytest.raises(KeyError, match=r"'in/\*' is not in Archive"):
            DOORS[door](f"{place}/good/all.zip::in/*")


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


@pytest.mark.wide(one_in=2, promise="files beside an artifact are used, or missed, in each way to it")
@pytest.mark.parametrize("rest", [False, True])
def test_files_beside_it(rest: bool, world: World) -> None:
    wrong = {}
    for row, (state, read, *expected) in enumerate(BESIDE):
        by_place = dict(zip(("path", "archive", "URL", "buffer"), expected, strict=True))
        for where, way, make, name in some(world.sources(state), row, rest):
            found, right = outcome(read, make), by_place[where]
            if isinstance(found, Exception) and isinstance(right, tuple) and isinstance(right[0], type):
                file = str(found.file).replace(".cases.safetensors", ".jaxexp").replace(".safetensors", ".jaxexp")
                if type(found) is right[0] and re.search(right[1], str(found)) and file in of(name):
                    continue
            if found != right:
                wrong[row, state, way] = found
    assert wrong == {}


def test_compiled_code_and_digests(world: World) -> None:
    meaning = jaxexp.digests(world.root / "with_weights" / "f.jaxexp")
    for where, way, make, _ in some(world.sources("with_weights"), 0, rest=True):
        found = outcome(lambda artifact: computed(artifact, executables=world.root / "f.exe"), make)
        if where == "URL":
            assert isinstance(found, WeightsError), way
        else:
            assert found == (where != "buffer", True, [None]), way
        digests = outcome(jaxexp.digests, make)
        assert digests == meaning if where != "buffer" else "pass the path of the artifact" in str(digests), way
        assert outcome(jaxexp.inspect, make).weights, way
