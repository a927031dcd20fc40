"""Dimensions as text: what any release prints is read as it stands, and nothing else; made and printed as JAX does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax import export as jax_export
from jax.export import SymbolicScope, symbolic_shape

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.codec import binding
from kit.each import each
from kit.layout import aval, of_values

pytestmark = pytest.mark.jax


def read(*texts: str) -> tuple[Any, ...]:
    blob = of_values([aval(*texts)], [0], uses_global_constants=True)
    shape: tuple[Any, ...] = jaxexp.deserialize(blob).in_avals[0].shape
    return shape


PRINTED = (
    "0|1|9223372036854775807|b|_b1|größe|a^2|a*b|2*a|b + a|b - a|- b + a|- 2*a + 3|a + 3|2*a*b^2 + 3*a - 1|mod(a, 3)|"
    "floordiv(a, 2) + 1|max(a, b)|min(a - 1, 5)|max(a - 2, 0)|floordiv(a, - 2)|max(- a + 3, b)|b*mod(a, b)^2|"
    "max(floordiv(floordiv(h - 3, 2) - 2, 2) + 1, 0)|a*mod(b, 2)|non_negative"
).split("|")


# Before 0.4.26: signs belong to numbers, the order of terms is another one, and there is another operation.
OLD = {
    "a + -1": "a - 1",
    "b + -2*a": "- 2*a + b",
    "-1*a + 5": "- a + 5",
    "-1*a*b + a": "- a*b + a",
    "a + b": "b + a",
    "non_negative(a + -3)": "max(a - 3, 0)",
    "non_negative(a + -3)^2": "max(a - 3, 0)^2",
    "-1*mod(b, 2) + b": "b - mod(b, 2)",
}


@each("text, today", [*zip(PRINTED, PRINTED, strict=True), *OLD.items()])
def test_what_releases_print(text: str, today: str) -> None:
    (dimension,) = read(text)
    (theirs,) = jax_export.symbolic_shape(today, scope=getattr(dimension, "scope", None)) if text != "0" else (0,)
    assert type(dimension) is type(theirs)
    assert dimension == theirs
    assert str(dimension) == str(theirs)
    assert text in OLD or str(dimension) == text


NONSENSE = (
    "| |-1|-0|+1|007|1_0|0x10|1e3|1.5|9223372036854775808|a | a|a+b|a +  b|a + |+ a|--a|a - -1|a b|a, b|(a)|a*|*a|a**2|"
    "a^|a^1|a^0|a^-1|a^64|a^2^2|1*a|0*a|- 1*a|a*2|2*3|2^3|a + a|a*a|3 + 4|a + 1 + 2|a + 0|a - 0|_|...|mod|max|mod(a)|"
    "mod(a, 2, 3)|max()|max(a,b)|max(1, 2)|floordiv(a, 0)|mod(a, 0)|sin(a)|non_negative(a, 0)|non_negative()|a # b|a\n|"
    "a\0|a;b|mod(a, 2|mod(a, 2))|\u2003|a\u2003b|99999999999999999999*a|a^99999999999999999999"
).split("|")


@each("text", NONSENSE)
def test_what_nobody_prints(text: str) -> None:
    with pytest.raises(jaxexp.errors.DeserializationError) as error:
        read(text)
    assert error.value.path in ("in_avals[0].shape[0]", "unique_avals[0].shape[0]")


def test_it_is_not_simplified() -> None:
    (dimension,) = read("max(a + 1, a)")
    assert str(dimension) == "max(a + 1, a)"
    assert dimension._evaluate({"a": 4}) == 5


def test_equal_texts_are_one_object_in_one_scope() -> None:
    one, other, again = read("a + 1", "b", "a + 1")
    assert one is again is not other
    assert one.scope is other.scope
    a, b = (f"max({v}, 2)" for v in "ab")
    exported = jaxexp.deserialize(of_values([aval(a, b), aval(b, a)], [0, 1], uses_global_constants=True))
    assert exported.in_avals[0].shape == tuple(reversed(exported.in_avals[1].shape))


def some_dimension(rng: random.Random, scope: Any, depth: int = 3) -> Any:
    variable = symbolic_shape(rng.choice("abcd"), scope=scope)[0]
    if depth == 0:
        return variable * rng.randint(1, 3) + rng.randint(-2, 2)
    one, other = some_dimension(rng, scope, depth - 1), some_dimension(rng, scope, depth - 1)
    number = rng.randint(2, 5)
    ways: list[Callable[[], Any]] = [
        lambda: one + other, lambda: one - other + 1, lambda: one * variable, lambda: one // number,
        lambda: one % number, lambda: jax.core.max_dim(one, other) * variable**2,
        lambda: jax.core.min_dim(other, one) - variable,
    ]  # fmt: skip
    made = rng.choice(ways)()
    return made if jax_export.is_symbolic_dim(made) else variable


@pytest.fixture(params=["slots", "another layout"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """As JAX lays its objects out, and as if it did that in a way that jaxexp does not know."""
    assert _jax.dimension_layout() is not None
    if request.param != "slots":
        monkeypatch.setattr(_jax, "dimension_layout", lambda: None)
        binding.bind.cache_clear()
    yield request.param
    if request.param != "slots":
        monkeypatch.undo()
        binding.bind.cache_clear()
        binding.bind()


def test_they_are_made_and_printed_as_jax_does(layout: str) -> None:
    rng, scope = random.Random(0), SymbolicScope()
    wanted = [some_dimension(rng, scope) for _ in range(20)]
    for dimension, original in zip(read(*map(str, wanted)), wanted, strict=True):
        (theirs,) = symbolic_shape(str(original), scope=dimension.scope)
        assert str(dimension) == str(theirs) == str(original)
        assert hash(dimension) == hash(theirs) != hash(original)  # another scope
        assert dimension._sorted_terms == theirs._sorted_terms
        values = dict(zip("abcd", (11, 7, 5, 3), strict=True))
        assert dimension._evaluate(values) == original._evaluate(values)
    shape = (*symbolic_shape("a, b, c, d", scope=scope), *wanted)
    specs = [jax.ShapeDtypeStruct((dimension,), np.float32) for dimension in shape]
    exported = jaxexp.export(jax.jit(lambda *xs: xs[0]))(*specs)
    again = jax_export.deserialize(exported.serialize())
    assert [str(aval.shape[0]) for aval in again.in_avals] == [str(dimension) for dimension in shape]


# Sizes that do not fit into 64 bits, equal terms: JAX's own objects are made, or refused.
def test_large_numbers() -> None:
    text = "9223372036854775807*max(9223372036854775807*a, b)"
    (dimension,) = read(text)
    assert str(dimension) == text
    assert dimension == symbolic_shape(text, scope=dimension.scope)[0]
    with pytest.raises(jaxexp.errors.DeserializationError, match="twice"):
        read("a*b + b*a")
