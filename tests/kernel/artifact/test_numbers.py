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
    Drawn((300,), "float32"): "08875ed595bce03e",
    Drawn((3, 5), "float64", seed=7, first=1, second=2): "2fba9d62558b0540",
    Drawn((40,), "float32", "uniform", 1 << 63, -1, 1): "9b62ad858b169db1",
    Drawn((40,), "bfloat16", seed=2): "971da79fcddbc6b8",
    Drawn((40,), "float16", "uniform", 3, 0, 1e5): "582031461f99bcfe",
    Drawn((40,), "float8_e4m3fn", seed=4): "fb0fdce70c051d53",
    Drawn((7,), "complex64", seed=5): "307e2fce87666fd2",
    Drawn((40,), "int8", first=-128, second=128): "134bed35c4c9b93c",
    Drawn((40,), "int64", first=-(2.0**53), second=2.0**53): "37f44dab2cd2be41",
    Drawn((40,), "int4"): "5d39d533392b898c",
    Drawn((40,), "bool"): "1c7d5fe21f281087",
    Drawn((2,), "key<fry>"): "acbb0fde7f72b5cb",
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
    np.testing.assert_array_equal(
        whole[numbers._AT_ONCE :][:3].astype(np.float64),
        numbers._some("normal", 0, 0, 1, numbers._AT_ONCE, 3).astype(np.float32),
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
