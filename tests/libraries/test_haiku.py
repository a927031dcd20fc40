"""A training step of Haiku: parameters and state in dicts of dicts, and optax's optimizer state around them."""

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


def training() -> tuple[Any, Any, Any]:
    import haiku as hk

    def network(x: Any) -> Any:
        count = hk.get_state("count", (), init=jnp.zeros)
        hk.set_state("count", count + 1)
        return hk.nets.MLP([3, 1], activation=jnp.tanh)(x)

    transformed = hk.transform_with_state(network)
    params, state = transformed.init(jax.random.PRNGKey(0), X)
    training = hk.LSTMState(hidden=params, cell=hk.data_structures.to_haiku_dict(state))

    def step(training: Any) -> Any:
        def loss_of(params: Any) -> Any:
            out, state = transformed.apply(params, training.cell, None, X)
            return jnp.mean((out - 0.1) ** 2), state

        (loss, state), gradient = jax.value_and_grad(loss_of, has_aux=True)(training.hidden)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, training.hidden, gradient)
        return (hk.LSTMState(hidden=params, cell=state),), loss

    return step, training, hk.LSTMState


def write(folder: Path) -> None:
    step, state, _ = training()
    stories.write_training(folder, step, state)


def go_on(folder: Path) -> None:
    _, state, kind = training()
    (after,) = stories.go_on(folder, state)
    assert type(after) is kind
    assert jax.tree.leaves(after.cell)[0] == 2 * stories.STEPS


def without(folder: Path) -> None:
    (after,) = stories.go_on_without(folder)
    assert after._class_name == "haiku._src.recurrent.LSTMState"
    assert after.hidden["mlp/~/linear_0"]["w"].shape == (2, 3)
    assert repr(jaxexp.load(folder / "step.jaxexp").out_tree).count("haiku._src.recurrent.LSTMState") == 1


@pytest.mark.sampled(one_in=0, reason="as test_equinox.py does with another library")
@pytest.mark.processes(reason="one writes, one goes on with haiku, one without it")
def test_training_goes_on(tmp_path: Path, subprocess_env: Any) -> None:
    pytest.importorskip("haiku", reason="comes with the extra 'test', where its releases fit this JAX")
    stories.run_all(__file__, tmp_path, subprocess_env(), ["haiku"])
