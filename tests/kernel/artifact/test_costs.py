"""The promise about cost: at most 1 s + 2 µs a byte of CPU and 64 MB + 64 bytes a byte, whatever the bytes are."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from kit import costs, hostile
from kit.places import TESTS

WAYS = {"deserialize", "inspect", "verify", "compatibility", "load_many", "archive"}
SMALL, LARGE = 30_000, 300_000
sys.setrecursionlimit(max(sys.getrecursionlimit(), 30_000))  # nested trees are written by recursion


def measured(size: int) -> dict[str, list[dict[str, Any]]]:
    """What one child process found for each family."""
    command = [sys.executable, TESTS / "kit" / "workers" / "costs.py", str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in hostile.FAMILIES}
    for line in map(json.loads, done.stdout.splitlines()):
        found[line["family"]].append(line)
    assert done.returncode == 0, done.stderr[-3000:]
    return found


@pytest.fixture(scope="module")
def small() -> dict[str, list[dict[str, Any]]]:
    return measured(SMALL)


@pytest.fixture(scope="module")
def large() -> dict[str, list[dict[str, Any]]]:
    return measured(LARGE)


def check(lines: list[dict[str, Any]]) -> None:
    assert {line["way"] for line in lines} == WAYS
    for line in lines:
        assert line["seconds"] <= costs.allowed_seconds(line["size"], line["slowness"]), line
        assert line["memory"] <= costs.allowed_memory(line["size"]), line
        assert len(line["outcome"]) < 1000, "an error is a sentence"


@pytest.mark.once(reason="read by the codec, and refused before JAX sees anything")
@pytest.mark.sampled(one_in=5, reason="many cases go the same way")
@pytest.mark.parametrize("family", hostile.FAMILIES)
def test_cost_of_small_artifacts(family: str, small: dict[str, list[dict[str, Any]]]) -> None:
    check(small[family])


@pytest.mark.slow(reason="a third of a megabyte for each family, read in six ways")
@pytest.mark.parametrize("family", hostile.FAMILIES)
def test_cost_of_large_artifacts(family: str, large: dict[str, list[dict[str, Any]]]) -> None:
    check(large[family])


def test_families_have_the_sizes_that_are_asked_for() -> None:
    """Cost is judged by growth, so families have to grow; some end at what a trailer holds, or share all they have."""
    ends = ("constraints_", "equalities_", "inequalities", "division_", "nested_", "shared_tuples", "ordered_dicts")
    for family, make in hostile.FAMILIES.items():
        if not family.startswith((*ends, "vjps_that_share_trees")):
            assert SMALL / 4 < len(make(SMALL)) < 4 * SMALL, family


GROWTH_WITH_TREES = """
import jaxexp
from kit import costs
from kit.layout import aval, of_values

def read(count):
    vars(jaxexp.deserialize(of_values([aval("1")], [0] * count)))

def many():
    for i in range(60):
        read(20_000 + i)

read(20_000)
print(costs.measured(many)[2])
"""


def test_trees_that_differ_are_not_kept_for_ever(subprocess_env) -> None:
    """Sixty trees of 20,000 leaves have 75 MB; the cache of trees has 16 MB."""
    command = [sys.executable, "-c", GROWTH_WITH_TREES]
    done = subprocess.run(command, env=subprocess_env(), capture_output=True, text=True, check=True)
    assert int(done.stdout) < 48 << 20
