"""Dimensions that are made and printed by their slots are what JAX's own parser and printer make."""

from __future__ import annotations

import random
import runpy
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax import export as jax_export
from jax.export import SymbolicScope, symbolic_shape

import jaxexp
from jaxexp._kernel.codec import binding, dimensions
from kit.places import ATTACKS

_MAKE = runpy.run_path(str(ATTACKS / "make.py"))


def read(*texts: str) -> tuple[Any, ...]:
    aval = _MAKE["aval"](*texts)
    artifact = _MAKE["function"](in_avals=[aval], out_avals=[aval], uses_global_constants=True)
    shape: tuple[Any, ...] = jaxexp.deserialize(_MAKE["Writer"]().finish(artifact)).in_avals[0].shape
    return shape


def slots(dimension: Any) -> Any:
    """Everything in a dimension but the scope."""
    return [
        [
            [
                [f.var, f.operation, [slots(o) for o in f.operands], f._size, exponent]
                for f, exponent in term._factors
            ]
            + [term._size, coefficient]
            for term, coefficient in dimension._sorted_terms
        ],
        dimension._size,
    ]  # fmt: skip


def some_dimension(rng: random.Random, scope: Any, depth: int = 3) -> Any:
    def variable() -> Any:
        return symbolic_shape(rng.choice("abcd"), scope=scope)[0]

    if depth == 0:
        return variable() * rng.randint(1, 3) + rng.randint(-2, 2)
    one, other = some_dimension(rng, scope, depth - 1), some_dimension(rng, scope, depth - 1)
    made = rng.choice(
        [
            lambda: one + other,
            lambda: one - other + 1,
            lambda: one * variable(),
            lambda: one // rng.randint(2, 5),
            lambda: one % rng.randint(2, 5),
            lambda: jax.core.max_dim(one, other) * variable() ** 2,
            lambda: jax.core.min_dim(other, one) - variable(),
        ]
    )()
    return made if jax_export.is_symbolic_dim(made) else variable()


@pytest.fixture(params=["slots", "another layout"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """As JAX lays its objects out, and as if it did that in a way that jaxexp does not know."""
    if request.param != "slots":
        monkeypatch.setattr(dimensions, "layout", lambda: None)
        binding.bind.cache_clear()
    yield request.param
    if request.param != "slots":
        monkeypatch.undo()
        binding.bind.cache_clear()
        binding.bind()


def test_this_jax_has_the_known_layout() -> None:
    assert dimensions.layout() is not None


@pytest.mark.parametrize("seed", range(3))
def test_they_are_made_as_jax_makes_them(layout: str, seed: int) -> None:
    rng, scope = random.Random(seed), SymbolicScope()
    wanted = [some_dimension(rng, scope) for _ in range(20)]
    for dimension, original in zip(read(*map(str, wanted)), wanted, strict=True):
        assert slots(dimension) == slots(original)
        assert str(dimension) == str(original)
        assert hash(dimension) != hash(original)  # another scope


@pytest.mark.sampled(one_in=3, reason="many cases go the same way")
@pytest.mark.parametrize("seed", range(3))
def test_they_are_printed_as_jax_prints_them(layout: str, seed: int) -> None:
    rng, scope = random.Random(seed), SymbolicScope()
    shape = (*symbolic_shape("a, b, c, d", scope=scope), *(some_dimension(rng, scope) for _ in range(20)))
    specs = [jax.ShapeDtypeStruct((dimension,), np.float32) for dimension in shape]
    exported = jaxexp.export(jax.jit(lambda *xs: xs[0]))(*specs)
    again = jax_export.deserialize(exported.serialize())
    assert [str(aval.shape[0]) for aval in again.in_avals] == [str(dimension) for dimension in shape]


def test_equal_texts_are_one_object() -> None:
    one, other, again = read("a + 1", "b", "a + 1")
    assert one is again is not other


# Sizes that do not fit into 64 bits, equal terms: JAX's own objects are made, or refused.
def test_large_numbers() -> None:
    text = "9223372036854775807*max(9223372036854775807*a, b)"
    (dimension,) = read(text)
    assert str(dimension) == text
    assert slots(dimension) == slots(symbolic_shape(text)[0])
    with pytest.raises(jaxexp.DeserializationError, match="twice"):
        read("a*b + b*a")
