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


def assert_types_are_computed(exported: jaxexp.Exported, *, or_refused: bool) -> None:
    said = [(aval.shape, aval.dtype) for aval in exported.out_avals]
    assert computed(exported) in ([said, None] if or_refused else [said])


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
            assert_types_are_computed(jaxexp.deserialize(blob, policy=jaxexp.Policy()), or_refused=True)
            count += 1
    assert count > 0


def test_all_operations_at_once() -> None:
    functions, calls, taken, given = [], [], [], []
    for number, operation in enumerate(one for one in OPERATIONS if one.name not in operations.RESIZING):
        arguments = [f"%x{len(taken) + i}" for i in range(len(operation.operands))]
        types = [", ".join(f"tensor<{one}>" for one in some) for some in (operation.operands, operation.results)]
        count = len(operation.results)
        calls.append(
            f"%c{number}:{count} = func.call @f{number}({', '.join(arguments)}) : ({types[0]}) -> ({types[1]})"
        )
        taken += [f"{argument}: tensor<{type_}>" for argument, type_ in zip(arguments, operation.operands, strict=True)]
        given += [(f"%c{number}#{i}", f"tensor<{type_}>") for i, type_ in enumerate(operation.results)]
        inner = operation.module().partition("{")[2].rstrip().removesuffix("}")
        functions.append(inner.replace("public @main", f"private @f{number}"))
    values, types = (", ".join(some) for some in zip(*given, strict=True))
    body = "\n".join([*calls, f"return {values} : {types}"])
    main = f"func.func public @main({', '.join(taken)}) -> ({types}) {{ {body} }}"
    blob = bytes(jaxexp.from_stablehlo(serialized("\n".join(["module @f {", main, *functions, "}"]))).serialize())
    assert refused(blob, jaxexp.Policy()) == (None, None)
    assert_types_are_computed(jaxexp.deserialize(blob, policy=jaxexp.Policy()), or_refused=False)


# A policy looks at the types of these itself, where StableHLO and XLA do not.
LOOKED_AT = {f"stablehlo.{name}" for name in ("bitcast_convert", "remainder", "rng_bit_generator")}
LOOKED_AT |= operations.REDUCTIONS | operations.RESIZING.keys()


@each("name", sorted(LOOKED_AT & set(NAMES)))
def test_types_of_some(name: str) -> None:
    check_types(name, 60)


@pytest.mark.long(
    promise="the types that StableHLO and a policy allow are those that XLA computes",
    sibling="test_policy_types.py::test_types_of_some",
)
@pytest.mark.parametrize("name", NAMES)
def test_types_are_those_that_xla_computes(name: str) -> None:
    check_types(name, 1)


# XLA's code for CPUs writes a byte for each number of two bits, and has memory for a quarter of that.
TWO_BITS = """module @f {{ func.func public @main(%x: tensor<9xi8>) -> tensor<9xi8> {{
  %y = stablehlo.convert %x : (tensor<9xi8>) -> tensor<9x{0}>
  %r = stablehlo.convert %y : (tensor<9x{0}>) -> tensor<9xi8>
  return %r : tensor<9xi8> }} }}"""
# XLA's compiler crashes at it.
COMPLEX_REMAINDER = """module @f { func.func public @main(%x: tensor<9xcomplex<f32>>) -> tensor<9xcomplex<f32>> {
  %r = stablehlo.remainder %x, %x : tensor<9xcomplex<f32>>
  return %r : tensor<9xcomplex<f32>> } }"""
# From the first array, XLA takes the number of parts of all.
GATHERED_IN_TWO_WAYS = """module @f {
  func.func public @main(%x: tensor<3xf32>, %y: tensor<3xf32>) -> (tensor<6xf32>, tensor<3xf32>) {
  %r:2 = "stablehlo.all_gather"(%x, %y) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}>
    : (tensor<3xf32>, tensor<3xf32>) -> (tensor<6xf32>, tensor<3xf32>)
  return %r#0, %r#1 : tensor<6xf32>, tensor<3xf32> } }"""


@each(
    "text, unless",
    [
        (TWO_BITS.format("i2"), "tensor<*xi2>"),
        (TWO_BITS.format("ui2"), "tensor<*xui2>"),
        (COMPLEX_REMAINDER, "stablehlo.remainder"),
        (GATHERED_IN_TWO_WAYS, "stablehlo.all_gather"),
    ],
)
def test_types_that_xla_gets_wrong(text: str, unless: str) -> None:
    blob = bytes(jaxexp.from_stablehlo(serialized(text)).serialize())
    assert refused(blob, jaxexp.Policy()) == ("operations", "operations")
    assert refused(blob, jaxexp.Policy(operations=[unless])) == (None, None)


@pytest.fixture(scope="module")
def of_open_size() -> jaxexp.Exported:
    return jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b"), np.float32))


RANDOM = """rng_bit_generator(%state, %size) {api_version = 2 : i32, rng_algorithm = #stablehlo<rng_algorithm DEFAULT>}
  : (tensor<2xui64>, tensor<1xi32>)"""
WINDOW = """reduce_window(%x, %zero, %size, %one, %one, %one, %padding)
  {api_version = 2 : i32, called_computations = [@sum]}
  : (tensor<?xf32>, tensor<f32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1x2xi32>)"""


@each(
    "call, results, is_allowed",
    [
        (RANDOM, ["tensor<2xui64>", "tensor<?xui32>"], True),
        (RANDOM, ["tensor<2xui64>", "tensor<?xf32>"], False),
        (RANDOM, ["tensor<2xui64>", "tensor<?xi32>"], False),
        (RANDOM, ["tensor<2xf64>", "tensor<?xui32>"], False),
        (WINDOW, ["tensor<?xf32>"], True),
        (WINDOW, ["tensor<?xf64>"], False),
    ],
)
def test_calls_of_open_sizes(call: str, results: list[str], of_open_size: jaxexp.Exported, *, is_allowed: bool) -> None:
    """Custom calls, the last result of which is converted to float32[b]."""
    text = f"""module @f {{
      func.func public @main(%x: tensor<?xf32>) -> tensor<?xf32> {{
        %one = stablehlo.constant dense<1> : tensor<1xi32>
        %padding = stablehlo.constant dense<0> : tensor<1x2xi32>
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %state = stablehlo.constant dense<0> : tensor<2xui64>
        %b = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xf32>) -> tensor<i32>
        %size = stablehlo.reshape %b : (tensor<i32>) -> tensor<1xi32>
        %r:{len(results)} = stablehlo.custom_call @stablehlo.dynamic_{call} -> ({", ".join(results)})
        %y = stablehlo.convert %r#{len(results) - 1} : ({results[-1]}) -> tensor<?xf32>
        return %y : tensor<?xf32>
      }}
      func.func private @sum(%x: tensor<f32>, %y: tensor<f32>) -> tensor<f32> {{
        %s = stablehlo.add %x, %y : tensor<f32>
        return %s : tensor<f32>
      }}
    }}"""
    blob = bytes(dataclasses.replace(of_open_size, mlir_module_serialized=serialized(text)).serialize())
    assert refused(blob, jaxexp.Policy()) == ((None, None) if is_allowed else ("operations", "operations"))
    assert refused(blob, jaxexp.Policy(operations=["stablehlo.custom_call"])) == (None, None)
