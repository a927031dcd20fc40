"""How a pass is cut: every unit once, shares of about the same bytes, and nothing looked at before its turn."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterable

import pytest

from jaxexp._fleet.engine.work import Input, Part, Share, cut

pytestmark = pytest.mark.once(reason="nothing here knows JAX")


def an_input(sizes: list[int]) -> Input:
    return Input("x", [], ("x",), range(len(sizes)), lambda start, stop: sizes[start:stop])


def units(shares: Iterable[Share | None]) -> list[tuple[Input, int]]:
    return [(p.input, i) for share in shares if share for p in share.parts for i in range(p.start, p.stop)]


@pytest.mark.parametrize("seed", range(20))
def test_every_unit_is_in_one_share(seed: int) -> None:
    numbers = random.Random(seed)
    inputs = [an_input([numbers.randrange(3000) for _ in range(numbers.randrange(1, 40))]) for _ in range(12)]
    parts = [Part(one, 0, len(one.numbers)) for one in inputs]
    shares = [share for share in cut(parts, 5000, 10) if share]
    assert units(shares) == [(one, i) for one in inputs for i in one.numbers]
    weights = [sum(size + 10 for p in s.parts for size in p.input.sizes(p.start, p.stop)) for s in shares]
    assert all(5000 <= weight < 5000 + 3010 for weight in weights[:-1])
    for share in shares:
        if share.units > 1:
            halves = share.halves()
            assert units(halves) == units([share])
            assert abs(halves[0].units - halves[1].units) <= 1


def test_an_archive_of_a_million_members_is_cut_as_workers_become_free() -> None:
    """By its index: what a worker gets is a range, whatever its length, and the cutter remembers nothing."""
    looked_up = 0

    def sizes(start: int, stop: int) -> Iterable[int]:
        nonlocal looked_up
        looked_up += stop - start
        return [20_000] * (stop - start)

    fleet = Input("fleet.zip", [], ("archive",), range(1_000_000), sizes)
    shares = cut([Part(fleet, 0, 1_000_000)], 1 << 27, 1 << 14)
    first = next(shares)
    assert first is not None
    assert looked_up < 10_000
    tracemalloc.start()
    rest, largest = 0, 0
    for share in shares:
        assert share is not None
        ((_, numbers),) = (part.crossing() for part in share.parts)
        assert isinstance(numbers, range)
        rest += share.units
        largest = max(largest, share.units)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert first.units + rest == looked_up == 1_000_000
    assert largest == (1 << 27) // (20_000 + (1 << 14)) + 1
    assert peak < 1 << 20


def test_a_pause_is_passed_on() -> None:
    one = an_input([1])
    assert [share is None for share in cut([None, Part(one, 0, 1), None], 10, 0)] == [True, True, False]
