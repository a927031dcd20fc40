"""A training step of an Equinox module, with fields that are static: numbers, and a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit import stories

X = np.linspace(-1, 1, 8, dtype="f4").reshape(4, 2)


def training(activation: Callable[[Any], Any] = jnp.tanh, width: int = 4) -> tuple[Any, Any]:
    import equinox as eqx

    class Net(eqx.Module):
        layers: list[eqx.nn.Linear]
        scale: jax.Array
        activation: Callable[[Any], Any] = eqx.field(static=True)
        power: int = eqx.field(static=True, default=2)

        def __call__(self, x: Any) -> Any:
            for layer in self.layers:
                x = self.activation(layer(x))
            return self.scale * x**self.power

    Net.__qualname__ = "Net"  # so that it can be found
    globals()["Net"] = Net

    keys = jax.random.split(jax.random.key(0), 2)
    layers = [eqx.nn.Linear(2, width, key=keys[0]), eqx.nn.Linear(width, 1, use_bias=False, key=keys[1])]

    def step(net: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda net: jnp.mean((jax.vmap(net)(X) - 0.1) ** 2))(net)
        return (eqx.apply_updates(net, jax.tree.map(lambda g: -0.05 * g, gradient)),), loss

    return step, Net(layers, jnp.ones(()), activation)


def write(folder: Path) -> None:
    import equinox as eqx

    step, net = training()
    stories.write_training(folder, step, net)
    # A module without functions among its static fields is all data.
    mlp = eqx.filter(eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0)), eqx.is_array)
    jaxexp.export(jax.jit(lambda key: jax.tree.map(lambda x: jax.random.normal(key, x.shape), mlp)))(
        jax.ShapeDtypeStruct((), jax.random.key(0).dtype)
    ).save(folder / "init.jaxexp")


def go_on(folder: Path) -> None:
    early = jaxexp.load(folder / "init.jaxexp")
    assert type(early.call(jax.random.key(0))) is jaxexp.GenericNode

    import equinox as eqx

    late = jaxexp.load(folder / "init.jaxexp")
    for loaded in (early, late):  # the same arguments, but now the class is there
        assert type(loaded.call(jax.random.key(0))) is eqx.nn.MLP

    _, net = training()
    (net,) = stories.go_on(folder, net)
    assert type(net).__name__ == "Net"
    assert net.activation is jnp.tanh
    assert net(X[0]).shape == (1,)
    loaded = jaxexp.load(folder / "step.jaxexp")
    _, other = training(jnp.sin)
    with pytest.raises(jaxexp.ExportError, match=r"auxiliary data of story\.Net is .*tanh.* in export and .*sin"):
        loaded.call(other)
    _, other = training(width=5)
    with pytest.raises(jaxexp.ExportError):
        loaded.call(other)


def without(folder: Path) -> None:
    (net,) = stories.go_on_without(folder)
    assert net._class_name == "story.Net"
    assert net._names == ("layers", "scale")
    assert net.layers[1].bias is None
    assert "jax.numpy.tanh" in net._static or "tanh" in net._static
    with pytest.raises(AttributeError, match="has no 'activation'; it has layers, scale"):
        net.activation  # noqa: B018
    mlp = jaxexp.load(folder / "init.jaxexp").call(jax.random.key(0))
    assert mlp.layers[0].weight.shape == (4, 2)


@pytest.mark.processes(reason="one writes, one goes on with equinox, one without it")
def test_training_goes_on(tmp_path: Path, subprocess_env: Any) -> None:
    pytest.importorskip("equinox", reason="comes with the extra 'test', where its releases fit this JAX")
    stories.run_all(__file__, tmp_path, subprocess_env(), ["equinox", "jaxtyping"])
