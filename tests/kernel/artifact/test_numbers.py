"""Random numbers that every release draws alike: Philox as its authors publish it, and numbers that never change."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest

from jaxexp import Drawn
from jaxexp._kernel.artifact import numbers

pytestmark = pytest.mark.once(reason="no JAX takes part")
ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox(counter: Sequence[int], key: tuple[int, int], words: str) -> None:
    """The known answers of Random123."""
    found = numbers.philox([np.array([word], np.uint64) for word in counter], key)
    assert " ".join(f"{int(word[0]):08x}" for word in found) == words


PROMISED = {
    Drawn((300,), "float32"): "218ec0466f84558a",
    Drawn((3, 5), "float64", seed=7, first=1, second=2): "2cd9732c152ca03e",
    Drawn((40,), "float32", "uniform", 1 << 63, -1, 1): "6d4b7ad29fb86b72",
    Drawn((40,), "bfloat16", seed=2): "55bedd833eb043a6",
    Drawn((40,), "float16", "uniform", 3, 0, 1e5): "d2818f3367e0dd72",
    Drawn((40,), "float8_e4m3fn", seed=4): "d21e54b854a45103",
    Drawn((7,), "complex64", seed=5): "8fb1e2565801a06f",
    Drawn((40,), "int8", first=-128, second=128): "1aec4c35e906a83d",
    Drawn((40,), "int64", first=-(2.0**53), second=2.0**53): "85cf629a79274a8e",
    Drawn((40,), "int4"): "5713f23ce7543849",
    Drawn((40,), "bool"): "faf0fa8318d20163",
    Drawn((2,), "key<fry>"): "a8fd1957531541d0",
}


@pytest.mark.parametrize("drawn", PROMISED, ids=lambda drawn: f"{drawn.dtype} {drawn.distribution}")
def test_the_same_in_every_release(drawn: Drawn) -> None:
    array = drawn.array()
    assert hashlib.sha256(array.tobytes()).hexdigest()[:16] == PROMISED[drawn]
    assert array.nbytes == drawn.nbytes


def test_each_number_by_itself() -> None:
    """A number depends on its place only, and not on how many are drawn at once."""
    whole, start = Drawn((600_000,), "float32").array(), Drawn((5,), "float32").array()
    np.testing.assert_array_equal(whole[:5], start)
    for distribution in numbers.DISTRIBUTIONS:
        whole = numbers.draw(distribution, 5, 0, 9, (40_001,), np.float64)
        for start in (0, 1, 7, numbers._AT_ONCE - 1, numbers._AT_ONCE, 39_999):
            np.testing.assert_array_equal(
                whole[start:][:3], numbers._some(distribution, 5, 0, 9, start, min(3, 40_001 - start))
            )


def test_they_are_distributed_as_said() -> None:
    normal = Drawn((200_000,), "float64", first=3, second=2).array()
    assert abs(normal.mean() - 3) < 0.02
    assert abs(normal.std() - 2) < 0.02
    uniform = Drawn((200_000,), "float32", "uniform", first=-1, second=3).array()
    assert -1 <= uniform.min() < -0.999
    assert 2.999 < uniform.max() <= 3
    assert set(Drawn((2_000,), "int8").array()) == set(range(8))
    assert set(Drawn((100,), "bool").array()) == {False, True}
