"""A training step of optax, whose states are namedtuples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit import stories

X = np.linspace(-1, 1, 12, dtype="f4").reshape(4, 3)
Y = X.sum(1, keepdims=True) ** 2


def loss_of(params: Any) -> Any:
    return jnp.mean((jnp.tanh(X @ params["w"]) @ params["v"] - Y) ** 2)


def training() -> tuple[Any, Any, Any]:
    import optax

    schedule = optax.exponential_decay(0.1, 10, 0.9)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    params = {"w": jnp.full((3, 4), 0.3), "v": jnp.full((4, 1), 0.2)}

    def step(params: Any, state: Any) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), loss

    return step, params, optimizer.init(params)


def write(folder: Path) -> None:
    stories.write_training(folder, *training())


def go_on(folder: Path) -> None:
    late = jaxexp.load(folder / "step.jaxexp")  # before optax
    assert "GenericNode" in str(late.in_tree)
    _, params, state = training()
    stories.go_on(folder, params, state)
    assert "GenericNode" not in str(jaxexp.load(folder / "step.jaxexp").in_tree)
    (_, after), _ = late.call(params, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    (_, after), _ = jax.jit(late.call)(params, state)
    assert type(after[1][0]) is type(state[1][0])


def without(folder: Path) -> None:
    params, state = stories.go_on_without(folder)
    adam = state[1][0]
    assert isinstance(adam, jaxexp.GenericNode)
    assert adam._class_name == "optax._src.transform.ScaleByAdamState"
    assert adam._names == ("count", "mu", "nu")
    assert int(adam.count) == adam["count"] == 2 * stories.STEPS
    assert adam.mu["w"].shape == (3, 4)
    assert repr(adam).startswith("GenericNode(optax._src.transform.ScaleByAdamState, count=Array(6")

    # Dicts with the same keys do as well, in whatever order.
    loaded = jaxexp.load(folder / "step.jaxexp")
    plain = (*state[:1], ({"nu": adam.nu, "mu": adam.mu, "count": adam.count}, *state[1][1:]), *state[2:])
    stories.assert_equal(loaded.call(params, plain), loaded.call(params, state))
    with pytest.raises(jaxexp.ExportError, match="has the children count, mu, nu"):
        loaded.call(params, (*state[:1], ({"nu": adam.nu, "mu": adam.mu}, *state[1][1:]), *state[2:]))

    assert ".jaxexp" not in str(jaxexp.inspect(folder / "step.jaxexp"))
    assert "ScaleByAdamState(count=*, mu={'v': *, 'w': *}" in jaxexp.inspect(folder / "step.jaxexp").in_tree


@pytest.mark.sampled(one_in=0, reason="as test_equinox.py does with another library")
@pytest.mark.processes(reason="one writes, one goes on with optax, one without it")
def test_training_goes_on(tmp_path: Path, subprocess_env: Any) -> None:
    pytest.importorskip("optax", reason="comes with the extra 'test', where its releases fit this JAX")
    stories.run_all(__file__, tmp_path, subprocess_env(), ["optax", "chex"])
