"""A training step of flax.nnx: the state of a model and of its optimizer, and the graph that they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit import stories

X = np.linspace(-1, 1, 8, dtype="f4").reshape(4, 2)


def training(features: int = 3) -> tuple[Any, Any, Any]:
    import optax
    from flax import nnx

    model = nnx.Sequential(
        nnx.Linear(2, features, rngs=nnx.Rngs(0)), nnx.tanh, nnx.Linear(features, 1, rngs=nnx.Rngs(1))
    )
    graph, state = nnx.split((model, nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)))

    def step(graph: Any, state: Any) -> Any:
        model, optimizer = nnx.merge(graph, state)
        loss, gradient = nnx.value_and_grad(lambda model: jnp.mean((model(X) - 0.1) ** 2))(model)
        optimizer.update(model, gradient)
        return nnx.split((model, optimizer)), loss

    return step, graph, state


def write(folder: Path) -> None:
    stories.write_training(folder, *training())
    _, _, state = training()
    jaxexp.export(jax.jit(lambda state: state))(state).save(folder / "state.jaxexp")
    of_any_batch().save(folder / "any_batch.jaxexp")


def of_any_batch() -> jaxexp.Exported:
    from flax import nnx

    graph, state = nnx.split(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
    x = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("batch, 2"), jnp.float32)
    return jaxexp.export(jax.jit(lambda state, x: nnx.merge(graph, state)(x)))(state, x)


def go_on(folder: Path) -> None:
    from flax import nnx

    # The first call names the dimensions, by making the arguments' trees where JAX has no trace.
    loaded = jaxexp.load(folder / "any_batch.jaxexp")
    _, state = nnx.split(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
    assert loaded.call(state, X).shape == (4, 1)
    _, graph, state = training()
    after_graph, after = stories.go_on(folder, graph, state)
    assert type(after) is type(state)
    model, _ = nnx.merge(after_graph, after)
    assert model(X).shape == (4, 1)
    with pytest.raises(jaxexp.ExportError):
        _, graph, state = training(features=4)
        jaxexp.load(folder / "step.jaxexp").call(graph, state)
    # A state by itself is all data.
    _, _, state = training()
    loaded = jaxexp.load(folder / "state.jaxexp")
    assert loaded.in_tree == jax.tree.structure(((state,), {}))


def without(folder: Path) -> None:
    graph, state = stories.go_on_without(folder)
    assert graph._class_name.startswith("flax.nnx.")
    assert graph._class_name.endswith(".GraphDef")
    assert len(graph) == 0
    assert state._class_name.endswith(".State")
    leaf = state[0]["layers"][0]["kernel"]
    assert leaf._class_name.endswith(".Param")
    assert jax.tree.leaves(leaf)[0].shape == (2, 3)


@pytest.mark.sampled(one_in=0, reason="as test_equinox.py does with another library")
@pytest.mark.processes(reason="one writes, one goes on with flax, one without it")
def test_training_goes_on(tmp_path: Path, subprocess_env: Any) -> None:
    pytest.importorskip("flax.nnx", reason="comes with the extra 'test', where its releases fit this JAX")
    stories.run_all(__file__, tmp_path, subprocess_env(), ["flax", "optax"])


def test_wrong_arguments_are_named() -> None:
    """Although flax.nnx makes no state where JAX has no trace, as in the rule for the types of results."""
    nnx = pytest.importorskip("flax.nnx", reason="comes with the extra 'test', where its releases fit this JAX")
    state = nnx.state(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
    loaded = jaxexp.deserialize(of_any_batch().serialize())
    with pytest.raises(jaxexp.ExportError, match=r"args\[1\].shape\[1\] must have size 2, found size 1 "):
        loaded.call(state, X[:, :1])
    with pytest.raises(jaxexp.ExportError, match=r"args\[0\]\['kernel'\].*must have size 2, found size 3 "):
        loaded.call(nnx.state(nnx.Linear(3, 1, rngs=nnx.Rngs(0))), X)
