"""What a policy allows has the types that its module says, for other checks believe them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.artifact import operations
from kit.each import each
from kit.operations import OPERATIONS
from kit.other_modules import serialized
from kit.policies import refused

pytestmark = pytest.mark.jax

# What has no arrays of its own, or exchanges them with others.
OTHERS = """after_all collective_reduce composite create_token custom_call get_tuple_element infeed outfeed recv return
  send tuple uniform_dequantize uniform_quantize""".split()
NAMES = sorted({operation.name for operation in OPERATIONS})


def test_all_operations_are_tried() -> None:
    known = {name for name in operations.OPERATIONS if name.startswith("stablehlo.")}
    refused = operations.UNTYPED | operations.UNTYPED_IF_CONSTANT
    assert known - refused - set(NAMES) == {f"stablehlo.{name}" for name in OTHERS}


def is_valid(text: str, context: Any) -> bool:
    try:
        with context, _jax.ir.Location.unknown():
            _jax.ir.Module.parse(text)
    except _jax.ir.MLIRError:
        return False
    return True


def computed(exported: jaxexp.Exported) -> list[tuple[tuple[int, ...], Any]] | None:
    """The types of the results that XLA computes; None if it refuses the module."""
    try:
        program = jax.jit(exported.call).lower(*exported.in_avals).compiler_ir("hlo")
    except (ValueError, jax.errors.JaxRuntimeError):
        return None
    shape = program.program_shape().result_shape()
    return [(one.dimensions(), one.numpy_dtype()) for one in (shape.tuple_shapes() if shape.is_tuple() else [shape])]


def check_types(name: str, one_in: int) -> None:
    """Each with one type changed in each way, and with several: what StableHLO and a policy allow is as it says."""
    context, count = _jax.make_ir_context(), 0
    seeds = [seed for seed in OPERATIONS if seed.name == name]
    for operation in (one for seed in seeds for one in (seed, *list(seed.changes())[::one_in])):
        if not is_valid(operation.module(), context):
            continue
        blob = bytes(jaxexp.from_stablehlo(serialized(operation.module())).serialize())
        with_jax, without = refused(blob, jaxexp.Policy())
        assert without is not None if name in operations.RESIZING else with_jax == without, operation
        if with_jax is None:
            exported = jaxexp.deserialize(blob, policy=jaxexp.Policy())
            said = [(aval.shape, aval.dtype) for aval in exported.out_avals]
            assert computed(exported) in (said, None), operation
            count += 1
    assert count > 0


@each("name", NAMES)
def test_types_of_some(name: str) -> None:
    check_types(name, 60)


@pytest.mark.wide(one_in=40, promise="the types that StableHLO and a policy allow are those that XLA computes")
@pytest.mark.parametrize("name", NAMES)
def test_types_are_those_that_xla_computes(name: str) -> None:
    check_types(name, 1)


def check_refused(text: str, *, unless: str) -> None:
    blob = bytes(jaxexp.from_stablehlo(serialized(text)).serialize())
    assert refused(blob, jaxexp.Policy()) == ("operations", "operations")
    assert refused(blob, jaxexp.Policy(operations=[unless])) == (None, None)


@each("element", ["i2", "ui2"])
def test_numbers_of_two_bits(element: str) -> None:
    """XLA's code for CPUs writes a byte for each, and has memory for a quarter of that."""
    check_refused(
        f"""module @f {{ func.func public @main(%x: tensor<9xi8>) -> tensor<9xi8> {{
      %y = stablehlo.convert %x : (tensor<9xi8>) -> tensor<9x{element}>
      %r = stablehlo.convert %y : (tensor<9x{element}>) -> tensor<9xi8>
      return %r : tensor<9xi8> }} }}""",
        unless=f"tensor<*x{element}>",
    )


def test_remainders_of_complex_numbers() -> None:
    """XLA's compiler crashes at them."""
    check_refused(
        """module @f { func.func public @main(%x: tensor<9xcomplex<f32>>) -> tensor<9xcomplex<f32>> {
      %r = stablehlo.remainder %x, %x : tensor<9xcomplex<f32>>
      return %r : tensor<9xcomplex<f32>> } }""",
        unless="stablehlo.remainder",
    )


def test_all_arrays_are_gathered_alike() -> None:
    """From the first one, XLA takes the number of parts of all."""
    check_refused(
        """module @f {
      func.func public @main(%x: tensor<3xf32>, %y: tensor<3xf32>) -> (tensor<6xf32>, tensor<3xf32>) {
      %r:2 = "stablehlo.all_gather"(%x, %y) <{all_gather_dim = 0 : i64,
        replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}>
        : (tensor<3xf32>, tensor<3xf32>) -> (tensor<6xf32>, tensor<3xf32>)
      return %r#0, %r#1 : tensor<6xf32>, tensor<3xf32> } }""",
        unless="stablehlo.all_gather",
    )


def check_symbolic_call(call: str, operands: str, *results: str, is_allowed: bool) -> None:
    """A custom call with open sizes, in a function of float32[b], whose last result is converted to that."""
    exported = jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b"), np.float32))
    text = f"""module @f {{
      func.func public @main(%x: tensor<?xf32>) -> tensor<?xf32> {{
        %one = stablehlo.constant dense<1> : tensor<1xi32>
        %padding = stablehlo.constant dense<0> : tensor<1x2xi32>
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %state = stablehlo.constant dense<0> : tensor<2xui64>
        %b = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xf32>) -> tensor<i32>
        %size = stablehlo.reshape %b : (tensor<i32>) -> tensor<1xi32>
        %r:{len(results)} = stablehlo.custom_call @stablehlo.dynamic_{call} : ({operands}) -> ({", ".join(results)})
        %y = stablehlo.convert %r#{len(results) - 1} : ({results[-1]}) -> tensor<?xf32>
        return %y : tensor<?xf32>
      }}
      func.func private @sum(%x: tensor<f32>, %y: tensor<f32>) -> tensor<f32> {{
        %s = stablehlo.add %x, %y : tensor<f32>
        return %s : tensor<f32>
      }}
    }}"""
    blob = bytes(dataclasses.replace(exported, mlir_module_serialized=serialized(text)).serialize())
    assert refused(blob, jaxexp.Policy()) == ((None, None) if is_allowed else ("operations", "operations"))
    assert refused(blob, jaxexp.Policy(operations=["stablehlo.custom_call"])) == (None, None)


@each(
    "state, bits, is_allowed",
    [
        ("ui64", "ui32", True),
        ("ui64", "ui8", True),
        ("ui64", "f32", False),
        ("ui64", "i32", False),
        ("f64", "ui32", False),
    ],
)
def test_random_bits_of_open_sizes(state: str, bits: str, *, is_allowed: bool) -> None:
    call = "rng_bit_generator(%state, %size) {api_version = 2 : i32, rng_algorithm = #stablehlo<rng_algorithm DEFAULT>}"
    results = f"tensor<2x{state}>", f"tensor<?x{bits}>"
    check_symbolic_call(call, "tensor<2xui64>, tensor<1xi32>", *results, is_allowed=is_allowed)


@each("element, is_allowed", [("f32", True), ("f64", False), ("i32", False)])
def test_windows_of_open_sizes(element: str, *, is_allowed: bool) -> None:
    call = """reduce_window(%x, %zero, %size, %one, %one, %one, %padding)
      {api_version = 2 : i32, called_computations = [@sum]}"""
    of_sizes = "tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1x2xi32>"
    operands = f"tensor<?xf32>, tensor<f32>, {of_sizes}"
    check_symbolic_call(call, operands, f"tensor<?x{element}>", is_allowed=is_allowed)
