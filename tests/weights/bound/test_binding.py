"""`bind`, `with_weights` and `weights_into`: an argument becomes weights, others take their place, and back."""

from __future__ import annotations

import dataclasses
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.flax
import safetensors.numpy

import jaxexp
from jaxexp._errors import ExportError, WeightsError
from kit.each import each
from kit.weighted import X, apply, bound, close, closed, named, params, squared

W = np.ones(3, np.float32)
LAYERS = 12  # layers/10 comes before layers/2 among names, and not in the tree


@pytest.fixture(scope="module")
def program() -> jaxexp.Exported:
    return jaxexp.export(jax.jit(apply))(params(LAYERS), X)


def test_a_pytree() -> None:
    given = params(2)
    program = jaxexp.deserialize(bytes(jaxexp.export(jax.jit(apply))(given, X).serialize(vjp_order=2)))
    bound = program.bind(given)
    assert list(bound.weights) == sorted(named(given))
    close(bound.call(X), apply(given, X))
    f = squared(closed(given))
    close(jax.grad(squared(bound.call))(X), jax.grad(f)(X))
    twice = lambda f: lambda x: (jax.grad(f)(x) ** 2).sum()  # noqa: E731
    close(jax.grad(twice(squared(bound.call)))(X), jax.grad(twice(f))(X))
    found = jax.grad(lambda model: squared(model.call)(X))(bound)
    close(dict(found.weights), named(jax.grad(lambda p: squared(closed(p))(X))(given)))


def test_a_call_that_leaves_out_the_weights(program: jaxexp.Exported, tmp_path: Path) -> None:
    program.bind(params(LAYERS)).save(tmp_path / "x.jaxexp")
    read = jaxexp.deserialize((tmp_path / "x.jaxexp").read_bytes())
    said = r"The first argument is a dict of arrays, such as weights: the method bind takes them from you; jaxexp\.load"
    with pytest.raises(ExportError, match=said):
        read.call(X)
    for call in (lambda: read.call(X, X, X), jaxexp.load(tmp_path / "x.jaxexp").call):
        with pytest.raises(ExportError, match="another tree structure") as caught:
            call()
        assert "weights" not in str(caught.value)


@each("empty", [{"": W}, {"a": W * 2, "": W}, {"a": {"": W}}, {"": {"": W}}])
def test_empty_keys(empty: Any, tmp_path: Path) -> None:
    jaxexp.export(jax.jit(lambda p: jax.tree.leaves(p)[0] * 2))(empty).bind(empty).save(tmp_path / "x.jaxexp")
    close(jaxexp.load(tmp_path / "x.jaxexp").call(), W * 2)
    with pytest.raises(ExportError, match="two weights would be called 'weights'"):
        jaxexp.export(jax.jit(lambda p: p))({"": W, "weights": W}).bind({"": W, "weights": W})


def test_a_flat_dict_stays_as_it_is() -> None:
    exported = jaxexp.export(jax.jit(lambda p, x: x @ p["w"] + p["b"]))({"w": np.eye(32, dtype="f4"), "b": X[0]}, X)
    bound = exported.bind({"b": X[0], "w": np.eye(32, dtype="f4")})
    assert bound.unbound is exported
    close(bound.call(X), X + X[0])


def test_arguments_that_the_module_does_not_take() -> None:
    given = params(2)

    def function(p: Any, unused: Any, x: Any) -> Any:
        return {"y": apply(p, x), "b": p["layers"][1]["b"] + 1, "x": x + 1}

    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 32"), np.float32)
    jitted = jax.jit(function, donate_argnums=2)
    exported = jaxexp.export(jitted, platforms=("cpu", "tpu"))({**given, "more": X}, X[0], spec)
    bound = exported.bind({**given, "more": X})
    close(bound.call(X[0], X), function(given, None, X))
    count = len(bound.weights)
    assert [i - count for i in bound.donated_arguments] == [i - count for i in exported.donated_arguments]
    gradient = jax.grad(lambda x: (bound.call(X[0], x)["y"] ** 2).sum())(X)
    close(gradient, jax.grad(squared(closed(given)))(X))


def test_other_weights(program: jaxexp.Exported) -> None:
    bound, other = program.bind(params(LAYERS)), params(LAYERS, seed=3)
    swapped = bound.with_weights(other)
    close(swapped.call(X), apply(other, X))
    close(bound.call(X), apply(params(LAYERS), X))
    assert swapped.unbound is bound.unbound
    close(swapped.with_weights(bound.weights).call(X), apply(params(LAYERS), X))


CHANGES: list[tuple[Callable[[Any], object], str]] = [
    (lambda given: given.pop("head"), "tensor 'head': expected an array of this name, found no such name among 24"),
    (lambda given: given.update(head=X), r"tensor 'head': expected float32\[32,8\], found float32\[4,32\]"),
    (lambda given: given.update(head=given["head"].astype(jnp.bfloat16)), r"float32\[32,8\], found bfloat16\[32,8\]"),
    (
        lambda given: given.update(head=np.ma.array(given["head"], mask=True)),
        r"expected float32\[32,8\], found a masked array, whose mask would be lost: pass array\.filled",
    ),
]


@each("change, message", CHANGES)
def test_weights_that_do_not_fit(program: jaxexp.Exported, change: Any, message: str) -> None:
    given = params(LAYERS)
    change(given)
    with pytest.raises(WeightsError, match=message):
        program.bind(given)
    with pytest.raises(WeightsError, match=message):
        program.bind(params(LAYERS)).with_weights(given)


def test_programs_that_cannot_be_bound() -> None:
    symbolic = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 3"), np.float32)
    for args, message in (
        ((), "no arrays in a first positional argument"),
        (((), X), "no arrays in a first positional argument"),
        (({"a": {"b": X}, "a/b": X}, X), "two weights would be called 'a/b'"),
        (((symbolic,), X), r"'0' in its first argument has the symbolic shape \(b, 3\).*Specialize it first"),
    ):
        exported = jaxexp.export(jax.jit(lambda *args, x: x))(*args, x=X)
        with pytest.raises(ExportError, match=message):
            exported.bind({})


def test_bound_once(program: jaxexp.Exported) -> None:
    bound = program.bind(params(LAYERS))
    with pytest.raises(ExportError, match="has weights already: pass others to with_weights"):
        bound.bind(params(LAYERS))
    with pytest.raises(TypeError, match=r"use dataclasses\.replace\(bound\.unbound"):
        dataclasses.replace(bound, fun_name="other")


def test_pickles_and_equality(program: jaxexp.Exported) -> None:
    given = params(LAYERS)
    loaded = jaxexp.deserialize(bytes(program.bind(given).serialize(vjp_order=1)))
    bound = loaded.bind(given)
    copied = pickle.loads(pickle.dumps(bound))
    assert bound == loaded.bind(given)
    assert hash(bound) == hash(loaded.bind(given))
    assert bound != copied  # the arrays are other ones
    assert bound.unbound == copied.unbound
    assert bound != bound.unbound
    assert bound.unbound != bound


def test_messages_count_the_arguments_of_the_call(program: jaxexp.Exported) -> None:
    bound = program.bind(params(LAYERS))
    with pytest.raises(ExportError, match=r"args\[0\]\.shape\[1\] must have size 32, found size 3"):
        bound.call(X[:, :3])
    with pytest.raises(ExportError, match="args: expected tuple of length 1, found tuple of length 2"):
        bound.call(X, X)
    with pytest.raises(ExportError, match=r"args\[0\]\.shape\[1\] must have size 32, found size 3"):
        jax.jit(bound.call)(X[:, :3])
    with pytest.raises(TypeError):
        bound.call(object())
    with pytest.raises((TypeError, ValueError)):
        bound.call(X.astype(">f4"))


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

    with pytest.warns(UserWarning, match="of the model that stay as they are: 'key', 'unused'") as warned:
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
    for like, said in (
        (params(layers=2), r"'layers/2/b': expected a leaf at this path of the model, found no .*'layers/2/w'"),
        ({**given, "head": jnp.zeros((32, 9))}, r"'head': expected float32\[32,8\], found float32\[32,9\]"),
        ({**given, "head": jnp.zeros((32, 8), int)}, r"'head': expected float32\[32,8\], found int32\[32,8\]"),
        ({**given, "head": 3}, r"'head': expected float32\[32,8\], found 3"),
    ):
        with pytest.raises(WeightsError, match=said):
            model.weights_into(like)


def test_another_place_of_a_tied_weight_is_enough() -> None:
    tied = jnp.arange(4.0)
    both = {"embed": tied, "out": tied}
    made = jaxexp.export(jax.jit(lambda: both["embed"] + both["out"]), weights=both)()
    assert (made.weights_into({"out": jnp.ones(4)})["out"] == tied).all()
    with pytest.raises(WeightsError, match=r"'out': expected float32\[4\], found float32\[5\]"):
        made.weights_into({"embed": tied, "out": jnp.ones(5)})


def test_a_function_in_the_place_of_its_weights() -> None:
    model, _ = bound()
    with pytest.raises(TypeError, match=r"takes arrays, not the function .*: pass its \.weights") as raised:
        model.with_weights(model)
    assert isinstance(raised.value, jaxexp.errors.ExportError)


def test_another_architecture_warns() -> None:
    model, _ = bound(layers=2)
    larger = params(layers=3, seed=1)
    for given in (larger, {**larger, "step": 7}, named(larger)):
        with pytest.warns(
            UserWarning, match=r"given arrays that are not used: 'layers/2/b', 'layers/2/w'\. They"
        ) as warned:
            tuned = model.with_weights(given)
        assert [one.filename for one in warned] == [__file__]
        assert list(tuned.weights) == list(model.weights)


def test_what_may_have_more_is_quiet(tmp_path: Path) -> None:
    model, _ = bound(layers=2)
    larger = params(layers=3, seed=1)
    arrays = {name: np.asarray(array) for name, array in named(larger).items()}
    safetensors.numpy.save_file(arrays, tmp_path / "larger.safetensors")
    state = {**{name: arrays[name] for name in model.weights}, "step": 7, "optimizer": "adam", "schedule": jnp.tanh}
    same = {**params(layers=2, seed=1), "name": "mlp", "rate": 0.5, "activation": jnp.tanh}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (state, tmp_path / "larger.safetensors", same, model.weights, dict(model.weights)):
            model.with_weights(given)


def test_a_misspelt_name_warns() -> None:
    model, _ = bound(layers=2)
    with pytest.warns(UserWarning, match=r"arrays that are not used: 'layers/0/W'\. .* a name may be misspelt"):
        model.with_weights({**model.weights, "layers/0/W": jnp.ones((4, 4))})
