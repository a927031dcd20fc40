"""When a batch is a loop and when it is not, and how often a module is read for it."""

from __future__ import annotations

import collections
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from bench.batches import BATCHES
from jaxexp._readback import read_back
from kit.batches import loaded, reload
from kit.corpus import arr, spec
from kit.raising import no_loops, said_of_loops

pytestmark = pytest.mark.jax

X, W = arr(4), arr(4, 4, seed=1)
BATCH = np.stack([X, 2 * X, -X])


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The modules that are read, by their shapes."""
    found: list[Any] = []
    original = read_back._raise

    def counting(exported: Any, in_avals: Any, *rest: Any) -> Any:
        found.append(tuple(aval.shape for aval in in_avals))
        return original(exported, in_avals, *rest)

    monkeypatch.setattr(read_back, "_raise", counting)
    return found


def test_read_once(reads: list[Any]) -> None:
    exported = loaded(lambda x, w: jnp.tanh(x @ w) + 41, X, W)
    again = jaxexp.deserialize(bytes(exported.serialize(vjp_order=1)))
    for called in (exported, exported, again):
        jax.vmap(called.call, (0, None))(BATCH, W)
        jax.jit(jax.vmap(lambda x, called=called: called.call(x, W)))(BATCH)
        jax.vmap(called.call, (0, None))(BATCH[:2], W)  # a batch of another size has elements of the same shape
    assert reads == [((4,), (4, 4))]


def test_read_once_for_each_size(reads: list[Any]) -> None:
    (b,) = jaxexp.symbolic_shape("b")
    exported = loaded(lambda x: jnp.cumsum(x) * 43, spec((b,)))
    with no_loops():
        for size in (3, 4, 3, 4):
            found = jax.vmap(exported.call)(jnp.ones((2, size)))
            np.testing.assert_array_equal(found, [np.arange(1, size + 1) * 43.0] * 2)
    assert reads == [((3,),), ((4,),)]


def test_gradients_of_each_element(reads: list[Any]) -> None:
    """The VJP is read, and not the function."""

    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(jax.lax.stop_gradient(x @ w) * (x @ w))) * 2

    def mapped(fun: Any) -> Any:
        return jax.jit(jax.vmap(jax.vmap(jax.grad(fun), (None, 0)), (None, 0)))

    exported, batch = loaded(loss, W, X), np.stack([BATCH, BATCH + 1])
    with no_loops():
        np.testing.assert_allclose(mapped(exported.call)(W, batch), mapped(loss)(W, batch), rtol=1e-5, atol=1e-6)
    assert [len(arguments) for arguments in reads] == [3]


def test_unused_results_are_not_computed() -> None:
    """The VJP also computes the cotangent of x, which is as much work as that of w."""

    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    exported = loaded(loss, arr(64, 64), arr(64, seed=1))

    def work(fun: Any, wrt: Any) -> float:
        mapped = jax.jit(jax.vmap(jax.grad(fun, wrt), (None, 0)))
        return float(mapped.lower(arr(64, 64), arr(8, 64)).compile().cost_analysis()["flops"])

    assert work(exported.call, 0) == pytest.approx(work(loss, 0), rel=0.01)
    assert work(exported.call, 0) < 0.9 * work(exported.call, (0, 1))


def test_pushforwards_of_each_element() -> None:
    def f(x: Any) -> Any:
        return jnp.sin(x @ W)

    def pushed(fun: Any) -> Any:
        return jax.jit(jax.vmap(lambda x: jax.jvp(fun, (x,), (2 * x,))[1]))

    exported = jaxexp.export(jax.jit(f))(X)
    with pytest.raises(jaxexp.errors.ExportError, match="vjp_order=2"):
        pushed(reload(exported, 1).call)(BATCH)
    with no_loops():
        np.testing.assert_allclose(pushed(reload(exported, 2).call)(BATCH), pushed(f)(BATCH), rtol=1e-5, atol=1e-6)


def refused(operation: Any) -> Any:
    return operation.refuse("in this test")


def test_the_log_names_the_operation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(read_back.OPERATIONS, "stablehlo.cosine", refused)
    exported = loaded(lambda x: jax.lax.cos(x), X)
    with said_of_loops() as said:
        for _ in range(2):
            for batch in (BATCH, BATCH[:2]):
                np.testing.assert_allclose(jax.vmap(exported.call)(batch), np.cos(batch), rtol=1e-6)
    assert len(said) == 1
    assert "stablehlo.cosine (in this test)" in said[0]
    assert "test_loops.py" in said[0]


def test_results_are_sharded_as_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the loop runs over all of the batch."""
    mesh = jax.make_mesh((4,), ("batch",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    batch = jax.device_put(np.stack([X, 2 * X, -X, X + 1]), sharding)
    monkeypatch.setitem(read_back.OPERATIONS, "stablehlo.cosine", refused)
    looped = loaded(jnp.cos, X)
    found = jax.jit(jax.vmap(looped.call))(batch)
    assert not found.sharding.is_fully_replicated
    np.testing.assert_array_equal(found, [looped.call(x) for x in np.asarray(batch)])


def test_results_of_64_bits_where_jax_makes_32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(read_back.OPERATIONS, "stablehlo.subtract", refused)
    with jax.enable_x64(True):
        wide = [loaded(lambda x: x.astype(float) + 1e-9, X), loaded(lambda x: x.astype(float) - -1e-9, X)]
    with said_of_loops() as said:
        for exported in wide:
            found = jax.vmap(exported.call)(BATCH)
            assert found.dtype == np.float64
            np.testing.assert_array_equal(found, BATCH.astype(float) + 1e-9)
    assert len(said) == 1


def operations(fun: Any, args: list[Any]) -> collections.Counter[str]:
    """The operations of the compiled program, each with the type of its result."""
    text = jax.jit(fun).lower(*args).compile().as_text() or ""
    return collections.Counter(re.findall(r" = (\S+ [\w-]+)\(", text))


@pytest.mark.wide(one_in=6, promise="a batch compiles to the program of a batch of the live function")
@pytest.mark.parametrize("name", BATCHES)
def test_same_program(name: str) -> None:
    function, arguments, mapped = BATCHES[name]
    is_gradient, args, axes = name == "gradients of each", arguments(), [0 if m else None for m in mapped]
    rows = [np.stack([arg, arg]) if is_mapped else arg for arg, is_mapped in zip(args, mapped, strict=True)]
    ours, live = (
        operations(jax.vmap(jax.grad(fun) if is_gradient else fun, axes), rows)
        for fun in (reload(jaxexp.export(jax.jit(function))(*args), int(is_gradient)).call, function)
    )
    # The outer products of the live function's gradient are copied into another order.
    assert ours.total() < live.total() if is_gradient else ours == live
