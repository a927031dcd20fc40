"""What a policy allows has the types that its module says, for other checks believe them."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.artifact import operations
from kit.operations import OPERATIONS
from kit.other_modules import serialized
from kit.policies import refused

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


@pytest.mark.sampled(one_in=3, reason="a module for each change of each operation")
@pytest.mark.parametrize("name", NAMES)
def test_types_are_those_that_xla_computes(name: str) -> None:
    """Each with one type changed in each way, and with several: what StableHLO and a policy allow is as it says."""
    context, count = _jax.make_ir_context(), 0
    for operation in (one for seed in OPERATIONS if seed.name == name for one in (seed, *seed.changes())):
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


def check_refused(text: str, *, unless: str) -> None:
    blob = bytes(jaxexp.from_stablehlo(serialized(text)).serialize())
    assert refused(blob, jaxexp.Policy()) == ("operations", "operations")
    assert refused(blob, jaxexp.Policy(operations=[unless])) == (None, None)


@pytest.mark.parametrize("element", ["i2", "ui2"])
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
