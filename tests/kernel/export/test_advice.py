"""JAX's errors about symbolic dimensions get a note with the constraint to add. The errors stay as they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp._kernel.export import advice

CASES: list[tuple[str, Callable[..., Any], list[str]]] = [
    ("b, 4", lambda x: jax.lax.top_k(x.T, 5), ["b <= 4", "b >= 5"]),
    ("b, 4", lambda x: x if x.shape[0] > 8 else 2 * x, ["b >= 9", "b <= 8"]),
    ("b, 4", lambda x: x if x.shape[0] // 2 <= 8 else 2 * x, ["floordiv(b, 2) <= 8", "floordiv(b, 2) >= 9"]),
    ("b, 4", lambda x: jax.lax.slice(x, (2, 0), (x.shape[0] - 5, 4)), ["b - 5 >= 0", "b - 5 <= -1"]),
    ("a, b", lambda x: x if x.shape[0] <= x.shape[1] else 2 * x, ["a <= b", "a >= b + 1"]),
    ("a, b", lambda x: x if x.shape[0] < x.shape[1] - 2 else 2 * x, ["a <= b - 2 - 1", "a >= b - 2"]),
    ("b, 4", lambda x: x.reshape(8, -1), ["mod(4*b, - 8) == 0"]),
    ("b, 4", lambda x: jnp.split(x, 2), ["mod(b, 2) == 0"]),
]

# What the advice says is all that it takes.
SUFFICES: list[tuple[str, Callable[..., Any], list[str]]] = [
    ("b, n", lambda x: x.reshape(-1, x.shape[1] // 2, 2), ["mod(n, 2) == 0"]),
    ("b, n", lambda x: x.reshape(x.shape[0] // 4 * 4, -1), ["mod(b, 4) == 0"]),
    ("b, n", lambda x: x.reshape(-1, 6), ["mod(b*n, - 6) == 0"]),
    ("b, n", lambda x: jnp.split(x, 2), ["mod(b, 2) == 0"]),
    ("b, n", lambda x: x[:, :512] + jnp.ones((1, 512)), ["n >= 512"]),
    ("b, n", lambda x: x[:, -512:] + jnp.ones((1, 512)), ["n - 512 >= 0"]),
    ("b, n", lambda x: x[:, :512] @ jnp.ones((512, 3)), ["n >= 512"]),
    ("b, n", lambda x: jnp.where(x[:, :512] > 0, jnp.ones((1, 512)), 0), ["n >= 512"]),
    ("b, n", lambda x: jnp.concatenate([x[:, :512], jnp.ones((3, 512))]), ["n >= 512"]),
    ("a, b", lambda x: x[:3, :4] + jnp.ones((3, 4)), ["a >= 3", "b >= 4"]),
    ("n", lambda x: x[2:6] + jnp.ones(4), ["n >= 6", "n >= 2"]),
    ("n", lambda x: jnp.zeros(512).at[: x.shape[0]].set(x), ["n <= 512"]),
    ("n", lambda x: jnp.pad(x, (0, 512 - x.shape[0])), ["- n + 512 >= 0"]),
]


def exported(
    export: Callable[..., Any], shape: str, function: Any, constraints: Sequence[str] = ()
) -> Exception | None:
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape(shape, constraints=constraints), np.float32)
    try:
        export(jax.jit(function))(spec)
    except Exception as error:
        return error
    return None


def notes_of(error: Exception) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


@pytest.mark.parametrize(("shape", "function", "constraints"), CASES)
def test_the_constraint_to_add(shape: str, function: Any, constraints: list[str]) -> None:
    error, of_jax = (exported(library.export, shape, function) for library in (jaxexp, jax_export))
    assert error is not None and type(error) is type(of_jax) and str(error) == str(of_jax)
    assert re.findall(r"constraints=\['(.*?)'\]", notes_of(error)) == constraints
    for constraint in constraints:
        after = exported(jaxexp.export, shape, function, [constraint])
        assert after is None or str(after) != str(error)  # JAX may refuse sizes for which a layer makes no sense


@pytest.mark.parametrize(("shape", "function", "constraints"), SUFFICES)
def test_the_constraint_suffices(shape: str, function: Any, constraints: list[str]) -> None:
    error = exported(jaxexp.export, shape, function)
    assert error is not None
    advised = re.findall(r"constraints=\[(.*?)\]", notes_of(error))
    assert repr(constraints)[1:-1] in advised
    assert exported(jaxexp.export, shape, function, constraints) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(-1, x.shape[1], x.shape[0] - 1),
        lambda x: x.reshape(x.shape[0] // 4, -1),
        lambda x: x + np.ones(8),
    ],
)
def test_no_advice_that_cannot_be_followed(function: Any) -> None:
    """JAX refuses a constraint that divides by what may be 0."""
    error = exported(jaxexp.export, "b, n", function)
    assert error is not None and "constraints=" not in notes_of(error)


@pytest.mark.parametrize("function", [lambda x: np.zeros(int(x.shape[0])), lambda x: x + np.ones(8)])
def test_no_constraint_helps(function: Any) -> None:
    error = exported(jaxexp.export, "b", function)
    assert error is not None and "constraints=" not in notes_of(error)


def test_a_dimension_is_compared_in_words() -> None:
    error = exported(jaxexp.export, "b, 4", lambda x: jax.lax.top_k(x.T, 5))
    assert error is not None and notes_of(error).endswith(
        "If b < 5 holds for all sizes, add constraints=['b <= 4'] to symbolic_shape; if it holds for none, add "
        "constraints=['b >= 5']."
    )
    assert advice._advice("something else") is None
