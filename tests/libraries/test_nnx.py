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


def go_on(folder: Path) -> None:
    _, graph, state = training()
    after_graph, after = stories.go_on(folder, graph, state)
    assert type(after) is type(state)
    from flax import nnx

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
