"""Modules that PyTorch/XLA, torchax, TensorFlow and IREE wrote compute here what they compute there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit.producers import NAMES, Module, module

pytestmark = pytest.mark.jax

# TensorFlow's loop compares two counters, so its number of trips is not known before it runs.
WITHOUT_GRADIENT = "tensorflow-2.21.0/recurrent.mlirbc"
OF_ANY_BATCH = "torch_xla-2.9.0/mlp_of_any_batch.mlirbc"
SMOOTH = [name for name in NAMES if module(name).gradients and name != WITHOUT_GRADIENT]


def read(of: Module, **options: Any) -> jaxexp.Exported:
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


@pytest.mark.wide(one_in=4, promise="modules of other producers compute here what they compute there")
@pytest.mark.parametrize("name", NAMES)
def test_a_call_returns_what_the_producer_computes(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    of, path = module(name), tmp_path / "f.jaxexp"
    exported = read(of)
    assert not exported.has_vjp()
    exported.save(path)
    assert not any(jaxexp.inspect(path).custom_calls)
    for function in (
        exported,
        jaxexp.load(path, verify=True, policy=jaxexp.Policy(custom_calls=())),
        jax_export.deserialize(bytearray(path.read_bytes())),
    ):
        close(function.call(*of.arguments), of.results)
    elements = [[factor * array for array in of.arguments] for factor in (1, 2, -0.5)]
    elements = [[np.asarray(array, like.dtype) for array, like in zip(e, of.arguments, strict=True)] for e in elements]
    mapped = jax.vmap(exported.call)(*map(np.stack, zip(*elements, strict=True)))
    for i, element in enumerate(elements):
        close([result[i] for result in mapped], exported.call(*element), atol=1e-5)
    assert "one call after the other" not in caplog.text


@pytest.mark.wide(one_in=4, promise="derivatives of modules of other producers are those that they compute")
@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_are_those_of_the_producer(name: str) -> None:
    of = module(name)
    exported = read(of, differentiable=True)
    loaded = jaxexp.deserialize(exported.serialize(vjp_order=1))
    every = tuple(range(len(of.arguments)))
    found = jax.grad(lambda *args: total(loaded.call(*args)), every)(*of.arguments)
    close(found, of.gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.long(
    promise="modules of other producers have derivatives of derivatives",
    sibling="test_modules_of_producers.py::test_gradients_are_those_of_the_producer",
)
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
        jaxexp.errors.UnsupportedError, match=r"importing '.*recurrent.mlirbc': differentiable=True: JAX cannot"
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


def test_weights_by_name(tmp_path: Path) -> None:
    of = module("torchax-0.0.9/mlp.mlirbc")
    names = ["first.weight", "first.bias", "second.weight", "second.bias"]
    exported = jaxexp.from_stablehlo(of.path, args=({name: i for i, name in enumerate(names)}, 4), results=0)
    *weights, x = of.arguments
    bound = exported.bind(dict(zip(names, weights, strict=True)))
    bound.save(tmp_path / "mlp.jaxexp")
    close(jaxexp.from_stablehlo(of.path).call(tuple(weights), ((x,),)), of.results)  # grouped by names of JAX
    loaded = jaxexp.load(tmp_path / "mlp.jaxexp")
    assert set(loaded.weights) == set(names)
    close([loaded.call(x)], of.results)
