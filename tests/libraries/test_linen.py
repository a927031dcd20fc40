"""A training step of flax.linen: parameters in dicts, and a TrainState that holds functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kit import stories

X = np.linspace(-1, 1, 8, dtype="f4").reshape(4, 2)


def training() -> tuple[Any, Any, Any]:
    import flax
    import optax
    from flax import linen
    from flax.training import train_state

    model = linen.Sequential([linen.Dense(3), linen.tanh, linen.Dense(1)])
    params = model.init(jax.random.key(0), X)
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(0.05, momentum=0.9))
    statistics = flax.core.freeze({"batches": {"count": jnp.zeros(())}})

    def step(state: Any, statistics: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda p: jnp.mean((state.apply_fn(p, X) - 0.1) ** 2))(state.params)
        return (state.apply_gradients(grads=gradient), jax.tree.map(lambda n: n + 1, statistics)), loss

    return step, state, statistics


def write(folder: Path) -> None:
    stories.write_training(folder, *training())


def go_on(folder: Path) -> None:
    _, state, statistics = training()
    after, counted = stories.go_on(folder, state, statistics)
    assert after.apply_fn == state.apply_fn
    assert type(counted) is type(statistics)
    assert counted["batches"]["count"] == 2 * stories.STEPS


def without(folder: Path) -> None:
    state, statistics = stories.go_on_without(folder)
    assert state._class_name == "flax.training.train_state.TrainState"
    assert state._names == ("step", "params", "opt_state")
    assert state.step == 2 * stories.STEPS
    assert state.opt_state[0].trace["params"]["layers_0"]["bias"].shape == (3,)
    assert "Module.apply" in state._static
    assert statistics._class_name == "flax.core.frozen_dict.FrozenDict"
    assert statistics["batches"]["count"] == 2 * stories.STEPS


@pytest.mark.sampled(one_in=0, reason="as test_equinox.py does with another library")
@pytest.mark.processes(reason="one writes, one goes on with flax, one without it")
def test_training_goes_on(tmp_path: Path, subprocess_env: Any) -> None:
    pytest.importorskip("flax.linen", reason="comes with the extra 'test', where its releases fit this JAX")
    stories.run_all(__file__, tmp_path, subprocess_env(), ["flax", "optax"])
