"""Sizes that symbolic dimensions do not allow: the error says which dimension, what it must be, and what it is."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp._kernel.call import constraints

CASES = [
    ("3, batch", "batch <= 512", (3, 600), "args[0].shape[1] must be at most 512, found 600"),
    ("3, batch", "batch >= 8", (3, 6), "args[0].shape[1] must be at least 8, found 6"),
    ("a, b", "mod(b, 8) == 0", (3, 6), "args[0].shape[1] must be a multiple of 8, found 6"),
    ("a, b", "b == 4", (3, 6), "args[0].shape[1] must have size 4, found size 6"),
    (
        "2*a, b",
        "a <= 4",
        (12, 6),
        "the sizes of the arguments must satisfy a <= 4, found a = 6 (args[0].shape[0] is 2*a = 12)",
    ),
    (
        "aa, a, b",
        "a >= 2*b",
        (1, 3, 6),
        "the sizes of the arguments must satisfy a >= 2*b, found a = 3 (args[0].shape[1]), b = 6 (args[0].shape[2])",
    ),
    ("b, 5", "b <= 9", (0, 5), "args[0].shape[0] must be at least 1, found 0"),
    ("b + 3, 5", "b <= 9", (2, 5), "b must be at least 1, found b = -1 (args[0].shape[0] is b + 3 = 2)"),
    (
        "b, b",
        "b <= 9",
        (2, 3),
        "args[0].shape[1] must have size 2, found size 3 (exported with b, here b = 2 (args[0].s",
    ),
    (
        "a, b, a*b",
        "a <= 9",
        (2, 3, 7),
        "args[0].shape[2] must have size 6, found size 7 (exported with a*b, here a = 2 (args[0].shape[0]), b = 3 (",
    ),
    ("2*b, 5", "b <= 9", (3, 5), "b must be a whole number, found 2*b = 3 (args[0].shape[0])"),
    ("a, b", "mod(b, 8) >= 3", (3, 9), "the sizes of the arguments must satisfy mod(b, 8) >= 3, found b = 9 ("),
]


@pytest.mark.parametrize(("dims", "constraint", "sizes", "message"), CASES)
@pytest.mark.parametrize("loaded", [False, True], ids=["exported", "loaded"])
def test_a_broken_constraint(dims: str, constraint: str, sizes: tuple[int, ...], message: str, loaded: bool) -> None:
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape(dims, constraints=[constraint]), np.float32)
    exported = jaxexp.export(jax.jit(lambda x: -x))(spec)
    if loaded:
        exported = jaxexp.deserialize(exported.serialize())
    x = np.ones(sizes, np.float32)
    uses: list[tuple[str, Callable[[], object]]] = [
        ("calling", lambda: exported.call(x)),
        ("calling", lambda: jax.jit(exported.call)(x)),
        ("specializing", lambda: exported.specialize(x)),
    ]
    for doing, use in uses:
        with pytest.raises(jaxexp.ExportError) as caught:
            use()
        assert str(caught.value).startswith(f"{doing} <lambda>: {message}"), str(caught.value)
    with pytest.raises(ValueError) as of_jax:
        jax_export.export(jax.jit(lambda x: -x))(spec).call(x)
    assert isinstance(caught.value, type(of_jax.value))


def test_paths_are_those_of_the_call() -> None:
    (b,) = jaxexp.symbolic_shape("b", constraints=["b <= 4"])
    weights = {"w": np.ones((3, 3), np.float32)}
    exported = jaxexp.export(jax.jit(lambda x: x["a key"] @ weights["w"]), weights=weights)
    model = exported({"a key": jax.ShapeDtypeStruct((b, 3), np.float32)})
    with pytest.raises(jaxexp.ExportError, match=r"args\[0\]\['a key'\].shape\[0\] must be at most 4, found 5"):
        model.call({"a key": np.ones((5, 3), np.float32)})


def test_a_message_in_a_form_that_is_not_known_stays() -> None:
    text = "Input shapes do not match the symbolic shape constraint b <= 4.\n It is 5."
    exported = jaxexp.export(jax.jit(lambda x: x))(np.ones(3))
    assert constraints.broken(ValueError(text), exported, exported.in_avals) == text.replace("\n ", " ")
