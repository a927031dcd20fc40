"""Modules of another signature than their artifact's: refused."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit import wire
from kit.corpus import CASES, arr, export_with, f32
from kit.other_modules import with_module

# --- modules of other functions -------------------------------------------------------------------------------------

TWO = """func.func public @main(%arg0: tensor<2xf32>, %arg1: tensor<2xf32>) -> tensor<2xf32> {
  return %arg0 : tensor<2xf32>
}"""
OTHERS = {
    "no main": (
        "func.func public @other(%arg0: tensor<2xf32>) -> tensor<2xf32> { return %arg0 : tensor<2xf32> }",
        "main",
    ),
    "one argument more": (TWO, "1 arguments"),
    "none": ("func.func public @main() { return }", "1 arguments"),
    "one result more": (
        "func.func public @main(%arg0: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) "
        "{ return %arg0, %arg0 : tensor<2xf32>, tensor<2xf32> }",
        "1 results",
    ),
    "another size": (
        "func.func public @main(%arg0: tensor<3xf32>) -> tensor<3xf32> { return %arg0 : tensor<3xf32> }",
        "in_avals",
    ),
    "another rank": (
        "func.func public @main(%arg0: tensor<2x1xf32>) -> tensor<2x1xf32> { return %arg0 : tensor<2x1xf32> }",
        "in_avals",
    ),
    "another dtype": (
        "func.func public @main(%arg0: tensor<2xi32>) -> tensor<2xi32> { return %arg0 : tensor<2xi32> }",
        "in_avals",
    ),
    "another result": (
        "func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xi32> "
        "{ %0 = stablehlo.convert %arg0 : (tensor<2xf32>) -> tensor<2xi32> return %0 : tensor<2xi32> }",
        "out_avals",
    ),
    "a token": (
        "func.func public @main(%arg0: !stablehlo.token) -> tensor<2xf32> "
        "{ %0 = stablehlo.constant dense<0.0> : tensor<2xf32> return %0 : tensor<2xf32> }",
        "in_avals",
    ),
}


def uses(exported: jaxexp.Exported, x) -> list:
    """Everything that reads the module."""
    shape = jax.ShapeDtypeStruct(np.shape(x), f32)
    return [
        lambda: exported.call(x),
        lambda: jax.jit(exported.call)(x),
        lambda: jax.jit(exported.call).lower(shape),
        lambda: jaxexp.export(jax.jit(exported.call))(shape),
        lambda: jaxexp.migrate(exported.serialize()),
        lambda: jaxexp.deserialize(exported.serialize(), policy=jaxexp.Policy()),
    ]


@pytest.mark.parametrize("what", OTHERS)
def test_the_module_of_another_function(what: str) -> None:
    text, found = OTHERS[what]
    exported = jaxexp.deserialize(with_module(f"module @jit_f {{ {text} }}"))
    for use in uses(exported, np.ones(2, f32)):
        with pytest.raises(jaxexp.DeserializationError, match=found) as error:
            use()
        assert error.value.path == "mlir_module_serialized"


SIGNATURES = ["sin", "dropped", "symbolic_batch", "multi_platform", "ordered_effect", "fifty_arguments", "threefry_key"]


def test_swapped_modules() -> None:
    """Each module in each other artifact."""
    exported = {name: export_with(jaxexp, CASES[name].build()) for name in SIGNATURES if name in CASES}
    assert len(exported) >= 5
    policy = jaxexp.Policy(custom_calls=None, effects=None)
    for name, one in exported.items():
        policy.check(jaxexp.deserialize(one.serialize()))
        for other_name, other in exported.items():
            if other_name != name:
                mixed = dataclasses.replace(one, mlir_module_serialized=other.mlir_module_serialized).serialize()
                with pytest.raises(jaxexp.DeserializationError, match="main function"):
                    jaxexp.deserialize(mixed, policy=policy)


def test_platform_index() -> None:
    """A module of several platforms takes its index first, and one of a single platform does not."""
    one, two = (jaxexp.export(jax.jit(jnp.sin), platforms=p)(arr(2)) for p in (("cpu",), ("cpu", "cuda")))
    for a, b in ((one, two), (two, one)):
        mixed = jaxexp.deserialize(dataclasses.replace(a, mlir_module_serialized=b.mlir_module_serialized).serialize())
        with pytest.raises(jaxexp.DeserializationError, match="arguments"):
            mixed.call(np.ones(2, f32))


def test_kept_arguments() -> None:
    """The signature says that an argument is dropped which the module takes."""
    blob = bytearray(jaxexp.export(jax.jit(jnp.add))(arr(2), arr(2)).serialize(trailer=False))
    wire.write(blob, "module_kept_var_idx", 1)  # its length
    with pytest.raises(jaxexp.DeserializationError, match="1 arguments"):
        jaxexp.deserialize(bytes(blob)).call(np.ones(2, f32), np.ones(2, f32))
