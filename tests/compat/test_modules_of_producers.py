"""Modules that PyTorch/XLA, torchax, TensorFlow and IREE wrote compute here what they compute there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit.producers import FOLDER, NAMES, Module, module

every_module = pytest.mark.parametrize("name", NAMES)
# TensorFlow's loop compares two counters, so its number of trips is not known before it runs.
WITHOUT_GRADIENT = "tensorflow-2.21.0/recurrent.mlirbc"
OF_ANY_BATCH = "torch_xla-2.9.0/mlp_of_any_batch.mlirbc"
SMOOTH = [name for name in NAMES if module(name).gradients and name != WITHOUT_GRADIENT]
differentiable = pytest.mark.parametrize("name", SMOOTH)


def read(of: Module, **options: Any) -> jaxexp.Exported:
    """The function of a module, which takes and returns what the module does."""
    args, results = range(len(of.arguments)), tuple(range(len(of.results)))
    if of.path.name.startswith("mlp_of_any_batch"):
        options.setdefault("shapes", {len(args) - 1: of.arguments[-1].shape})
    return jaxexp.from_stablehlo(of.path, args=args, results=results, **options)


def total(results: Any) -> Any:
    return sum((i + 1) * result.sum() for i, result in enumerate(results))


def close(found: Any, expected: Any, *, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def test_there_are_modules_of_four_producers() -> None:
    assert {name.partition("-")[0] for name in NAMES} == {"iree", "tensorflow", "torch_xla", "torchax"}
    assert {path.suffix for path in FOLDER.glob("*/*") if path.suffix != ".npz"} == {".mlir", ".mlirbc"}


@every_module
def test_a_call_returns_what_the_producer_computes(name: str) -> None:
    of = module(name)
    exported = read(of)
    close(exported.call(*of.arguments), of.results)
    close(jax.jit(exported.call)(*of.arguments), of.results)
    assert not exported.has_vjp()


@every_module
def test_both_libraries_load_the_artifact(name: str, tmp_path: Path) -> None:
    of = module(name)
    read(of).save(tmp_path / "f.jaxexp")
    close(jaxexp.load(tmp_path / "f.jaxexp", verify=True).call(*of.arguments), of.results)
    close(jax_export.deserialize(bytearray((tmp_path / "f.jaxexp").read_bytes())).call(*of.arguments), of.results)
    assert not any(jaxexp.inspect(tmp_path / "f.jaxexp").custom_calls)
    policy = jaxexp.Policy(custom_calls=())
    close(jaxexp.load(tmp_path / "f.jaxexp", policy=policy).call(*of.arguments), of.results)


@every_module
def test_a_mapped_call_is_a_loop_of_calls(name: str, caplog: pytest.LogCaptureFixture) -> None:
    of = module(name)
    exported = read(of)
    elements = [[factor * array for array in of.arguments] for factor in (1, 2, -0.5)]
    elements = [[np.asarray(array, like.dtype) for array, like in zip(e, of.arguments, strict=True)] for e in elements]
    mapped = jax.vmap(exported.call)(*map(np.stack, zip(*elements, strict=True)))
    for i, element in enumerate(elements):
        close([result[i] for result in mapped], exported.call(*element), atol=1e-5)
    assert "one call after the other" not in caplog.text
    assert exported.make_jaxpr().out_avals


@differentiable
def test_gradients_are_those_of_the_producer(name: str) -> None:
    of = module(name)
    exported = read(of, differentiable=True)
    every = tuple(range(len(of.arguments)))
    for function in (exported, jaxexp.deserialize(exported.serialize(vjp_order=1))):
        found = jax.grad(lambda *args, f=function: total(f.call(*args)), every)(*of.arguments)
        close(found, of.gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in SMOOTH if "convnet" not in name])  # two in a pool are nearly equal
def test_gradients_are_finite_differences(name: str) -> None:
    of = module(name)
    exported, step = read(of, differentiable=True), 1e-3
    rng = np.random.default_rng(5)
    directions = [rng.uniform(-1, 1, array.shape).astype(array.dtype) for array in of.arguments]
    gradients = jax.grad(lambda *args: total(exported.call(*args)), tuple(range(len(directions))))(*of.arguments)
    slope = sum(float(np.vdot(g, d)) for g, d in zip(gradients, directions, strict=True))
    ends = [
        float(total(exported.call(*(a + sign * step * d for a, d in zip(of.arguments, directions, strict=True)))))
        for sign in (1, -1)
    ]
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=3e-2, abs=3e-2)


def test_second_derivatives() -> None:
    of = module("torchax-0.0.9/mlp.mlirbc")
    exported = jaxexp.deserialize(read(of, differentiable=True).serialize(vjp_order=2))
    *weights, x = of.arguments

    def slope(x: Any) -> Any:
        return jax.grad(lambda x: (exported.call(*weights, x)[0] ** 2).sum())(x)

    second, step = jax.grad(lambda x: slope(x)[0, 0])(x), np.zeros_like(x)
    step[0, 1] = 1e-2
    assert float(second[0, 1]) == pytest.approx(
        float((slope(x + step)[0, 0] - slope(x - step)[0, 0]) / 2e-2), rel=5e-2, abs=1e-3
    )


def test_a_loop_of_unknown_length_has_no_gradient() -> None:
    of = module(WITHOUT_GRADIENT)
    with pytest.raises(
        jaxexp.UnsupportedError, match=r"importing '.*recurrent.mlirbc': differentiable=True: JAX has no"
    ):
        read(of, differentiable=True)


def test_a_batch_of_any_size() -> None:
    of = module(OF_ANY_BATCH)
    exported = read(of, shapes={4: "batch, 4"})
    assert str(exported.out_avals[0]) == "float32[batch,3]"
    loaded = jaxexp.deserialize(exported.serialize())
    *weights, x = of.arguments
    close(loaded.call(*weights, x), of.results)
    close(loaded.call(*weights, np.tile(x, (3, 1))), [np.tile(result, (3, 1)) for result in of.results])
    close(loaded.specialize(*weights, x).call(*weights, x), of.results)


def test_names_of_jax_group_arguments() -> None:
    """torchax writes modules with JAX: a list of weights and a tuple of inputs."""
    of = module("torchax-0.0.9/mlp.mlirbc")
    exported = jaxexp.from_stablehlo(of.path)
    *weights, x = of.arguments
    close(exported.call(tuple(weights), ((x,),)), of.results)


def test_weights_by_name(tmp_path: Path) -> None:
    of = module("torchax-0.0.9/mlp.mlirbc")
    names = ["first.weight", "first.bias", "second.weight", "second.bias"]
    exported = jaxexp.from_stablehlo(of.path, args=({name: i for i, name in enumerate(names)}, 4), results=0)
    *weights, x = of.arguments
    bound = exported.bind(dict(zip(names, weights, strict=True)))
    bound.save(tmp_path / "mlp.jaxexp")
    loaded = jaxexp.load(tmp_path / "mlp.jaxexp")
    assert set(loaded.weights) == set(names)
    close([loaded.call(x)], of.results)
