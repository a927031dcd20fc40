"""Dimensions as text: what any release prints is read as it stands, and nothing else is."""

from __future__ import annotations

import runpy
from typing import Any

import pytest
from jax import export as jax_export

import jaxexp
from kit.places import ATTACKS

_MAKE = runpy.run_path(str(ATTACKS / "make.py"))


def read(text: str) -> Any:
    (dimension,) = jaxexp.deserialize(_MAKE["Writer"]().finish(_MAKE["dimension"](text))).in_avals[0].shape
    return dimension


PRINTED = [
    "0",
    "1",
    "9223372036854775807",
    "b",
    "_b1",
    "größe",
    "a^2",
    "a*b",
    "2*a",
    "b + a",
    "b - a",
    "- b + a",
    "- 2*a + 3",
    "a + 3",
    "2*a*b^2 + 3*a - 1",
    "mod(a, 3)",
    "floordiv(a, 2) + 1",
    "max(a, b)",
    "min(a - 1, 5)",
    "max(a - 2, 0)",
    "floordiv(a, - 2)",
    "max(- a + 3, b)",
    "b*mod(a, b)^2",
    "max(floordiv(floordiv(h - 3, 2) - 2, 2) + 1, 0)",
    "a*mod(b, 2)",
    "non_negative",
]


@pytest.mark.parametrize("text", PRINTED)
def test_what_is_printed_today(text: str) -> None:
    dimension = read(text)
    (theirs,) = jax_export.symbolic_shape(text, scope=getattr(dimension, "scope", None)) if text != "0" else (0,)
    assert type(dimension) is type(theirs)
    assert dimension == theirs
    assert str(dimension) == str(theirs) == text


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


@pytest.mark.parametrize("text", OLD)
def test_what_old_releases_print(text: str) -> None:
    dimension = read(text)
    (today,) = jax_export.symbolic_shape(OLD[text], scope=dimension.scope)
    assert dimension == today
    assert str(dimension) == str(today)


NONSENSE = [
    "",
    " ",
    "-1",
    "-0",
    "+1",
    "007",
    "1_0",
    "0x10",
    "1e3",
    "1.5",
    "9223372036854775808",
    "a ",
    " a",
    "a+b",
    "a +  b",
    "a + ",
    "+ a",
    "--a",
    "a - -1",
    "a b",
    "a, b",
    "(a)",
    "a*",
    "*a",
    "a**2",
    "a^",
    "a^1",
    "a^0",
    "a^-1",
    "a^64",
    "a^2^2",
    "1*a",
    "0*a",
    "- 1*a",
    "a*2",
    "2*3",
    "2^3",
    "a + a",
    "a*a",
    "3 + 4",
    "a + 1 + 2",
    "a + 0",
    "a - 0",
    "_",
    "...",
    "mod",
    "max",
    "mod(a)",
    "mod(a, 2, 3)",
    "max()",
    "max(a,b)",
    "max(1, 2)",
    "floordiv(a, 0)",
    "mod(a, 0)",
    "sin(a)",
    "non_negative(a, 0)",
    "non_negative()",
    "a # b",
    "a\n",
    "a\0",
    "a;b",
    "mod(a, 2",
    "mod(a, 2))",
    "\u2003",
    "a\u2003b",
    "99999999999999999999*a",
    "a^99999999999999999999",
]


@pytest.mark.parametrize("text", NONSENSE)
def test_what_nobody_prints(text: str) -> None:
    with pytest.raises(jaxexp.DeserializationError) as error:
        read(text)
    assert error.value.path.startswith("in_avals[0]")


def test_it_is_not_simplified() -> None:
    """What JAX takes for something else here is read as it was written, and is the same function."""
    text = "max(a + 1, a)"
    dimension = read(text)
    assert str(dimension) == text
    assert dimension._evaluate({"a": 4}) == 5


def test_variables_of_one_function_are_of_one_scope() -> None:
    a, b = (f"max({v}, 2)" for v in "ab")
    artifact = _MAKE["function"](
        in_avals=[_MAKE["aval"](a, b)], out_avals=[_MAKE["aval"](b, a)], uses_global_constants=True
    )
    exported = jaxexp.deserialize(_MAKE["Writer"]().finish(artifact))
    assert exported.in_avals[0].shape == tuple(reversed(exported.out_avals[0].shape))
