"""`weights_into`: weights by their names into a pytree that the user has."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._errors import WeightsError
from kit.weighted import X, apply, bound, close, params


def test_the_way_back(tmp_path: Path) -> None:
    model, _ = bound()
    tuned = params(seed=1)
    model.with_weights(tuned).save(tmp_path / "model.jaxexp")
    loaded = jaxexp.load(tmp_path / "model.jaxexp")
    named = dict(loaded.weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for like in (params(), jax.eval_shape(params), {**params(), "name": "mlp", "activation": jnp.tanh}, named):
            found = loaded.weights_into(like)
            assert jax.tree.structure(found) == jax.tree.structure(like)
            if like is not named:
                close(apply(found, X), apply(tuned, X))
    assert found is not named
    assert all(found[name] is named[name] for name in named)


def test_a_module_of_equinox(tmp_path: Path) -> None:
    eqx = pytest.importorskip("equinox", reason="comes with the extra 'test', where its releases fit this JAX")

    class Net(eqx.Module):  # type: ignore[name-defined, misc]
        embed: Any
        out: Any
        key: Any
        unused: Any
        activation: Any = jnp.tanh
        scale: float = 3.0

        def __call__(self, token: Any) -> Any:
            noise = jax.random.normal(self.key, (8,))
            return self.scale * self.out @ self.activation(self.embed(token) + noise)

    def net(seed: int, key: int = 0) -> Net:
        embed = eqx.nn.Embedding(5, 8, key=jax.random.key(seed))
        return Net(embed, embed.weight, jax.random.key(key), np.full(3, seed))

    token = np.int32(2)
    model = net(0)
    exported = jaxexp.export(jax.jit(lambda token: model(token)), weights=model)(token)
    with pytest.warns(UserWarning, match="'key', 'unused'"):
        exported.with_weights(net(1)).save(tmp_path / "net.jaxexp")
    loaded = jaxexp.load(tmp_path / "net.jaxexp")
    assert list(loaded.weights) == ["embed/weight"]

    with pytest.warns(UserWarning, match="of the model that stay its own: 'key', 'unused'") as warned:
        found = loaded.weights_into(net(2))
    assert [one.filename for one in warned] == [__file__]
    assert type(found) is Net
    assert found.out is found.embed.weight
    assert (found.unused == 2).all()
    assert found.activation is jnp.tanh
    close(found(token), net(1)(token))
    close(found(token), loaded.call(token))


def test_a_state_of_nnx() -> None:
    nnx = pytest.importorskip("flax.nnx", reason="comes with the extra 'test', where its releases fit this JAX")
    model, other = (nnx.Linear(4, 3, rngs=nnx.Rngs(seed)) for seed in (0, 1))
    graph, state = nnx.split(model)
    x = np.ones((2, 4), np.float32)
    exported = jaxexp.export(jax.jit(lambda x: nnx.merge(graph, state)(x)), weights=state)(x)
    close(nnx.merge(graph, exported.weights_into(nnx.split(other)[1]))(x), model(x))


def test_what_has_no_place_for_a_weight() -> None:
    model, given = bound()
    with pytest.raises(WeightsError, match=r"'layers/2/b': expected an array of this name, found none .*'layers/2/w'"):
        model.weights_into(params(layers=2))
    with pytest.raises(WeightsError, match=r"'head': expected float32\[32,8\], found float32\[32,9\]"):
        model.weights_into({**given, "head": jnp.zeros((32, 9))})
    with pytest.raises(WeightsError, match=r"'head': expected float32\[32,8\], found int32\[32,8\]"):
        model.weights_into({**given, "head": jnp.zeros((32, 8), int)})
    with pytest.raises(WeightsError, match=r"'head': expected float32\[32,8\], found 3"):
        model.weights_into({**given, "head": 3})
    with pytest.raises(WeightsError, match=r"'out': expected float32\[4\], found float32\[5\]"):
        tied = jnp.ones(4)
        both = {"embed": tied, "out": tied}
        made = jaxexp.export(jax.jit(lambda: both["embed"] + both["out"]), weights=both)()
        made.weights_into({"embed": tied, "out": jnp.ones(5)})


def test_another_place_of_a_tied_weight_is_enough() -> None:
    tied = jnp.arange(4.0)
    both = {"embed": tied, "out": tied}
    made = jaxexp.export(jax.jit(lambda: both["embed"] + both["out"]), weights=both)()
    assert (made.weights_into({"out": jnp.ones(4)})["out"] == tied).all()


def test_a_function_in_the_place_of_its_weights() -> None:
    model, _ = bound()
    with pytest.raises(TypeError, match=r"takes arrays, not the function .*: pass its \.weights") as raised:
        model.with_weights(model)
    assert isinstance(raised.value, jaxexp.ExportError)


def test_a_function_without_weights() -> None:
    with pytest.raises(jaxexp.ExportError, match="has no weights"):
        jaxexp.export(jax.jit(jnp.sin))(X).weights_into({"w": X})
