"""What a page costs: at most four times what other looks at an artifact may take, and no more than 4 MB of HTML."""

from __future__ import annotations

import sys

import pytest

from jaxexp import DeserializationError
from jaxexp._cli.commands.view import page_of
from jaxexp._cli.inputs import Source
from kit import costs, hostile

SIZE, LARGE = 30_000, 300_000
READINGS, MOST_HTML = 4, 4_000_000
sys.setrecursionlimit(max(sys.getrecursionlimit(), 30_000))  # nested trees are written by recursion


def check(family: str, size: int, path) -> None:
    blob = hostile.FAMILIES[family](size)
    path.write_bytes(blob)

    def look() -> str:
        try:
            return page_of(Source(str(path), str(path)))
        except DeserializationError as error:
            return str(error)

    slowness = costs.slowness()
    page, seconds, memory = costs.measured(look)
    assert seconds <= READINGS * costs.allowed_seconds(len(blob), slowness)
    assert memory <= READINGS * costs.allowed_memory(len(blob))
    assert isinstance(page, str)
    assert len(page) < MOST_HTML


FEW = ["shared_leaves", "specs_of_long_names", "many_weights", "modules_of_many_names", "vjps_that_share_a_module"]


@pytest.mark.parametrize("family", FEW)
def test_cost_of_pages(family: str, tmp_path) -> None:
    check(family, SIZE, tmp_path / "a.jaxexp")


@pytest.mark.slow(reason="all families of hostile artifacts, a third of a megabyte each")
@pytest.mark.parametrize("family", hostile.FAMILIES)
def test_cost_of_pages_of_all_families(family: str, tmp_path) -> None:
    check(family, LARGE, tmp_path / "a.jaxexp")
