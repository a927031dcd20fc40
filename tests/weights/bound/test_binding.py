"""`Exported.bind`: an argument becomes weights."""

from __future__ import annotations

import dataclasses
import pickle
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
from kit.weighted import X, apply, close, closed, named, params, squared

LAYERS = 12  # layers/10 comes before layers/2 among names, and not in the tree


@pytest.fixture(scope="module")
def program() -> jaxexp.Exported:
    return jaxexp.export(jax.jit(apply))(params(LAYERS), X)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_pytree(program: jaxexp.Exported, loaded: bool) -> None:
    given = params(LAYERS)
    if loaded:
        program = jaxexp.deserialize(bytes(program.serialize(vjp_order=2)))
    bound = program.bind(given)
    assert list(bound.weights) == sorted(named(given))
    close(bound.call(X), apply(given, X))
    f = squared(closed(given))
    close(jax.grad(squared(bound.call))(X), jax.grad(f)(X))
    twice = lambda f: lambda x: (jax.grad(f)(x) ** 2).sum()  # noqa: E731
    close(jax.grad(twice(squared(bound.call)))(X), jax.grad(twice(f))(X))
    found = jax.grad(lambda model: squared(model.call)(X))(bound)
    close(dict(found.weights), named(jax.grad(lambda p: squared(closed(p))(X))(given)))


def test_jax_export_reads_the_program(program: jaxexp.Exported) -> None:
    """With the arrays that other tools load from the file."""
    given = params(LAYERS)
    weights = safetensors.flax.load(safetensors.flax.save(named(given)))
    read = jax.export.deserialize(bytearray(program.bind(given).serialize(vjp_order=1)))
    close(read.call(weights, X), apply(given, X))
    close(jax.grad(lambda x: squared(read.call)(weights, x))(X), jax.grad(squared(closed(given)))(X))


def test_a_call_that_leaves_out_the_weights(program: jaxexp.Exported, tmp_path: Path) -> None:
    program.bind(params(LAYERS)).save(tmp_path / "x.jaxexp")
    read = jaxexp.deserialize((tmp_path / "x.jaxexp").read_bytes())
    said = r"The first argument is the function's weights: jaxexp\.load\(path\) finds them"
    with pytest.raises(ExportError, match=said):
        read.call(X)
    for call in (lambda: read.call(X, X, X), jaxexp.load(tmp_path / "x.jaxexp").call):
        with pytest.raises(ExportError, match="another tree structure") as caught:
            call()
        assert "weights" not in str(caught.value)


def test_files_of_other_tools(program: jaxexp.Exported, tmp_path: Path) -> None:
    given = params(LAYERS)
    safetensors.flax.save_file({**named(given), "optimizer": jnp.ones(3)}, tmp_path / "x.safetensors")
    bound = program.bind(tmp_path / "x.safetensors")
    assert "in files: " in repr(bound.weights)
    close(bound.call(X), apply(given, X))


def test_a_flat_dict_stays_as_it_is() -> None:
    exported = jaxexp.export(jax.jit(lambda p, x: x @ p["w"] + p["b"]))({"w": np.eye(32, dtype="f4"), "b": X[0]}, X)
    bound = exported.bind({"b": X[0], "w": np.eye(32, dtype="f4")})
    assert bound.unbound is exported
    close(bound.call(X), X + X[0])


def test_arguments_that_the_module_does_not_take(program: jaxexp.Exported) -> None:
    """Unused and donated ones, of several platforms, with static shapes and symbolic ones."""
    given = params(LAYERS)

    def function(p: Any, unused: Any, x: Any) -> Any:
        return {"y": apply(p, x), "b": p["layers"][11]["b"] + 1, "x": x + 1}

    shape = jaxexp.symbolic_shape("b, 32")
    for spec in (X, jax.ShapeDtypeStruct(shape, np.float32)):
        jitted = jax.jit(function, donate_argnums=2)
        exported = jaxexp.export(jitted, platforms=("cpu", "tpu"))({**given, "more": X}, X[0], spec)
        bound = exported.bind({**given, "more": X})
        close(bound.call(X[0], X), function(given, None, X))
        count = len(bound.weights)
        assert [i - count for i in bound.donated_arguments] == [i - count for i in exported.donated_arguments]
        gradient = jax.grad(lambda x: (bound.call(X[0], x)["y"] ** 2).sum())(X)  # noqa: B023
        close(gradient, jax.grad(squared(closed(given)))(X))


def test_other_weights(program: jaxexp.Exported) -> None:
    bound, other = program.bind(params(LAYERS)), params(LAYERS, seed=3)
    swapped = bound.with_weights(other)
    close(swapped.call(X), apply(other, X))
    close(bound.call(X), apply(params(LAYERS), X))
    assert swapped.unbound is bound.unbound
    close(swapped.with_weights(bound.weights).call(X), apply(params(LAYERS), X))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given.pop("head"), "tensor 'head': expected an array of this name, found none among 24"),
        (lambda given: given.update(head=X), r"tensor 'head': expected float32\[32,8\], found float32\[4,32\]"),
        (
            lambda given: given.update(head=given["head"].astype(jnp.bfloat16)),
            r"expected float32\[32,8\], found bfloat16\[32,8\]",
        ),
        (
            lambda given: given.update(head=np.ma.array(given["head"], mask=True)),
            r"expected float32\[32,8\], found a masked array, whose mask would be lost: pass array\.filled",
        ),
    ],
)
def test_weights_that_do_not_fit(program: jaxexp.Exported, change: Any, message: str) -> None:
    given = params(LAYERS)
    change(given)
    with pytest.raises(WeightsError, match=message):
        program.bind(given)
    with pytest.raises(WeightsError, match=message):
        program.bind(params(LAYERS)).with_weights(given)


@pytest.mark.parametrize(
    ("function", "specs", "message"),
    [
        (lambda *, x: x, {"x": X}, "no arrays in a first positional argument"),
        (lambda p, x: x, ((), X), "no arrays in a first positional argument"),
        (lambda p, x: x, ({"a": {"b": X}, "a/b": X}, X), "two weights would be called 'a/b'"),
        (
            lambda p, x: x,
            ((jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 3"), np.float32),), X),
            r"'0' in its first argument has the symbolic shape \(b, 3\).*Specialize it first",
        ),
    ],
)
def test_programs_that_cannot_be_bound(function: Any, specs: Any, message: str) -> None:
    args, kwargs = ((), specs) if isinstance(specs, dict) else (specs, {})
    exported = jaxexp.export(jax.jit(function))(*args, **kwargs)
    with pytest.raises(ExportError, match=message):
        exported.bind({})


def test_arrays_that_change_later() -> None:
    given = {"w": np.eye(64, dtype=np.float32)}
    x = np.ones((2, 64), np.float32)
    bound = jaxexp.export(jax.jit(lambda p, x: x @ p["w"]))(given, x).bind(given)
    close(bound.call(x), x)
    given["w"][:] = 0
    close(bound.call(x), x)


def test_bound_once(program: jaxexp.Exported) -> None:
    bound = program.bind(params(LAYERS))
    with pytest.raises(ExportError, match="has weights: use with_weights"):
        bound.bind(params(LAYERS))
    with pytest.raises(TypeError, match=r"use dataclasses\.replace\(bound\.unbound"):
        dataclasses.replace(bound, fun_name="other")


def test_pickles_and_equality(program: jaxexp.Exported) -> None:
    given = params(LAYERS)
    loaded = jaxexp.deserialize(bytes(program.bind(given).serialize(vjp_order=1)))
    bound = loaded.bind(given)
    copied = pickle.loads(pickle.dumps(bound))
    close(copied.call(X), apply(given, X))
    close(jax.grad(squared(copied.call))(X), jax.grad(squared(closed(given)))(X))
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
