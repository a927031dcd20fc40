"""A raised function as one jaxpr: operations that are alike are traced once, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._readback import program
from jaxexp._readback.program import Step
from kit.corpus import arr
from kit.each import each
from kit.raising import assert_same_bits
from kit.snippets import SNIPPETS

pytestmark = pytest.mark.jax

X, Y = arr(4), arr(4, seed=1)
TABLE = arr(30, 4, seed=2)


@pytest.fixture(autouse=True)
def short_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_SHORT", 0)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the steps that JAX traces."""
    found: list[str] = []
    original = Step.results

    def counting(self: Step, arguments: Any) -> Any:
        found.append(self.name)
        return original(self, arguments)

    monkeypatch.setattr(Step, "results", counting)
    return found


def loaded(fun: Callable[..., Any], *args: Any) -> jaxexp.Exported:
    return jaxexp.deserialize(jaxexp.export(jax.jit(fun))(*args).serialize())


def long(x: Any, y: Any) -> Any:
    """200 operations of 5 kinds, with operands in either order."""
    for i in range(40):
        x, y = (jnp.sin(x) - y) * x, y - x if i % 2 else x - y
    return x, y


def test_alike_operations_are_traced_once(steps: list[str]) -> None:
    exported = loaded(long, X, Y)
    found = jax.jit(exported.raised())(X, Y)
    assert sorted(steps) == ["stablehlo.multiply", "stablehlo.sine", "stablehlo.subtract"]
    assert_same_bits(found, exported.call(X, Y))


def nothing(x: Any, y: Any) -> Any:
    return ()


def arguments_and_constants(x: Any, y: Any) -> Any:
    return y, x, x, 3.5, jnp.asarray(TABLE), jnp.zeros((2, 3)), x + TABLE, y + TABLE, x + 2 * TABLE


def without_arguments() -> Any:
    return jnp.arange(3) * 2, jnp.arange(3) + 2


def some_results(x: Any, y: Any) -> Any:
    """Of operations with several results, one is not used."""
    first, _ = jax.lax.sort((x, y), num_keys=1)
    _, second = jax.lax.sort((y, x), num_keys=1)
    return first, second


def loops(x: Any, y: Any) -> Any:
    for scale in (1.0, 2.0):
        x, y = jax.lax.scan(lambda c, row, scale=scale: (c * scale + row, c), x, jnp.asarray(TABLE))[0], x
        y = jax.lax.cond(y[0] > 0, lambda a: a + 1, lambda a: a - scale, y)  # noqa: B023
    return x, y


@jax.jit
def softmax(x: Any) -> Any:
    return jnp.exp(x - x.max()) / jnp.exp(x - x.max()).sum()


def functions(x: Any, y: Any) -> Any:
    return softmax(softmax(x) + softmax(y)), softmax(TABLE)


@each("fun", [nothing, arguments_and_constants, without_arguments, some_results, loops, functions])
def test_kinds(fun: Callable[..., Any]) -> None:
    args = () if fun is without_arguments else (X, Y)
    exported = loaded(fun, *args)
    expected = jax.tree.leaves(exported.call(*args))
    with jax.enable_checks(True):
        for run in (jax.jit(exported.raised()), exported.raised()):
            assert_same_bits(jax.tree.leaves(run(*args)), expected)
        if args:
            mapped = jax.vmap(exported.raised(), (0, None))(np.stack([X, X]), Y)
            for found, row in zip(jax.tree.leaves(mapped), expected, strict=True):
                np.testing.assert_allclose(found, np.stack([row, row]), rtol=1e-6)


def test_weak_types() -> None:
    exported = loaded(lambda x, y: (x * y + y, jnp.sin(x)), np.float32(2), np.float32(3))
    assert_same_bits(exported.raised()(2.0, 3.0), exported.call(2.0, 3.0))


def test_traced_once(steps: list[str]) -> None:
    raised = loaded(long, X, Y).raised()
    assert_same_bits(raised(X, Y), raised(X, Y))
    assert len(steps) == 3
    with jax.default_matmul_precision("float32"):
        raised(X, Y)
    assert len(steps) == 6  # under other settings, JAX may trace something else


def test_functions_of_the_module(steps: list[str]) -> None:
    """Long ones are staged by themselves, however often they are called."""
    function = jax.jit(long)
    exported = loaded(lambda x, y: function(*function(x, y)), X, Y)
    found = jax.jit(exported.raised())(X, Y)
    assert sorted(steps) == ["func.call", "stablehlo.multiply", "stablehlo.sine", "stablehlo.subtract"]
    assert_same_bits(found, exported.call(X, Y))
    mapped = jax.vmap(exported.call)(np.stack([X, Y]), np.stack([Y, X]))
    for row, x, y in ((0, X, Y), (1, Y, X)):
        for column, expected in zip(mapped, exported.call(x, y), strict=True):
            np.testing.assert_allclose(column[row], expected, rtol=1e-4)
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))  # types say more there
    with jax.set_mesh(mesh):
        x, y = (jax.device_put(z, jax.sharding.NamedSharding(mesh, jax.P("i"))) for z in (X, Y))
        assert_same_bits(jax.jit(exported.raised())(x, y), exported.call(X, Y))


def test_what_jax_does_not_map_is_named() -> None:
    snippet = SNIPPETS["reduce from an argument"]
    batches = [np.stack([array, array]) for array in snippet.arguments()]
    with pytest.raises(jaxexp.errors.UnsupportedError, match=r"stablehlo\.reduce \(NotImplementedError"):
        jax.vmap(snippet.exported().raised())(*batches)
