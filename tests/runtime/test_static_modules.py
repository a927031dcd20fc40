"""Modules with open sizes in a session: what it refuses instead of computing without end, or wrongly."""

from __future__ import annotations

import dataclasses
import re

import jax
import numpy as np

import jaxexp
from jaxexp.runtime import Session
from kit import other_modules, without_jax

without_jax.skip_without_plugin()


def said(module: bytes, size: int = 3) -> str:
    """Why a module does not run for an array of this size; nothing where it runs."""
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b"), np.float32)
    exported = jaxexp.export(jax.jit(lambda x: x.shape[0]))(spec)
    blob = dataclasses.replace(exported, mlir_module_serialized=module).serialize()
    try:
        Session(blob, plugin="cpu")(np.zeros(size, np.float32))
    except (jaxexp.errors.RunError, jaxexp.errors.DeserializationError) as error:
        return str(error)
    return ""


def of_size(body: str, *functions: str) -> bytes:
    """A module whose main function takes an array, has its size as %d, and returns the size %r."""
    main = f"""func.func public @main(%x: tensor<?xf32>) -> tensor<i32> {{
      %d = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xf32>) -> tensor<i32>
      {body}
      return %r : tensor<i32>
    }}"""
    return other_modules.serialized("module { " + "\n".join([main, *functions]) + " }")


CALL = "func.call @f(%d) : (tensor<i32>) -> tensor<i32>"


def test_functions_that_call_others_twice_each_time() -> None:
    """Each time with other sizes: 2 ** 40 functions, if nobody counted."""
    functions = ["func.func private @f0(%d: tensor<i32>) -> tensor<i32> { return %d : tensor<i32> }"] + [
        f"""func.func private @f{i}(%d: tensor<i32>) -> tensor<i32> {{
          %one = stablehlo.constant dense<1> : tensor<i32>
          %a = stablehlo.add %d, %one : tensor<i32>
          %b = stablehlo.add %d, %d : tensor<i32>
          %u = func.call @f{i - 1}(%a) : (tensor<i32>) -> tensor<i32>
          %v = func.call @f{i - 1}(%b) : (tensor<i32>) -> tensor<i32>
          %r = stablehlo.add %u, %v : tensor<i32>
          return %r : tensor<i32>
        }}"""
        for i in range(1, 41)
    ]
    module = of_size("%r = " + CALL.replace("@f", "@f40"), *functions)
    assert "its functions call others over and over with ever new sizes" in said(module, 50)


def test_a_function_that_calls_itself() -> None:
    itself = f"func.func private @f(%d: tensor<i32>) -> tensor<i32> {{ %r = {CALL} return %r : tensor<i32> }}"
    assert "found a function that calls itself" in said(of_size(f"%r = {CALL}", itself))


def of_assertion(message: str) -> bytes:
    """That the size is less than 2, with the size and 2 for the message."""
    return of_size(f"""
      %two = stablehlo.constant dense<2> : tensor<i32>
      %holds = stablehlo.compare LT, %d, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.custom_call @shape_assertion(%holds, %d, %two) {{
        api_version = 2 : i32, error_message = "{message}", has_side_effect = true
      }} : (tensor<i1>, tensor<i32>, tensor<i32>) -> ()
      %r = stablehlo.add %d, %two : tensor<i32>""")


def test_an_assertion_that_does_not_hold() -> None:
    message = of_assertion("{0} {1} {2} {{")
    assert said(message) == "calling <lambda>: 3 2 {2} {{"
    assert not said(message, 1)
    digits = "1" * 500_000  # of which the message shows the beginning, in linear time
    assert digits[:1_000] in said(of_assertion(digits))


def test_what_is_left_open_is_left_to_the_plugin() -> None:
    """A division by zero is no constant, and no shape can depend on it."""
    shape = """
      %s = stablehlo.reshape %q : (tensor<i32>) -> tensor<1xi32>
      %i = stablehlo.dynamic_iota %s, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
      %r = stablehlo.get_dimension_size %i, dim = 0 : (tensor<?xf32>) -> tensor<i32>"""
    for operation in ("divide", "remainder"):
        body = f"""
          %zero = stablehlo.subtract %d, %d : tensor<i32>
          %q = stablehlo.{operation} %d, %zero : tensor<i32>"""
        assert not said(of_size(body + "%r = stablehlo.add %q, %d : tensor<i32>"))
        assert "vhlo.dynamic_iota_v1" in said(of_size(body + shape))


def test_operands_count_for_each_size() -> None:
    """A function that is written for many sizes, with all of its operands."""
    count = 4_000
    operands, types = ", ".join(["%d"] * count), ", ".join(["tensor<i32>"] * count)
    wide = f"""func.func private @f(%d: tensor<i32>) -> tensor<i32> {{
      %r = stablehlo.custom_call @foo({operands}) {{api_version = 2 : i32}} : ({types}) -> tensor<i32>
      return %r : tensor<i32>
    }}"""
    calls = [
        f"%c{i} = stablehlo.constant dense<{i}> : tensor<i32>\n"
        f"%r{i} = func.call @f(%c{i}) : (tensor<i32>) -> tensor<i32>"
        for i in range(1_000)
    ]
    last = "%r = stablehlo.add %d, %d : tensor<i32>"
    assert not said(of_size("\n".join([*calls[:10], last]), wide))
    refused = said(of_size("\n".join([*calls, last]), wide))
    assert "its functions call others over and over with ever new sizes" in refused


def test_operations_of_later_versions_may_have_no_operands() -> None:
    body = """
      %q = stablehlo.custom_call @foo() {api_version = 2 : i32} : () -> tensor<i32>
      %r = stablehlo.add %d, %q : tensor<i32>"""
    later = re.sub(rb"custom_call_v\d", b"dynamic_pad_v2", of_size(body))
    assert "vhlo.dynamic_pad_v2" in said(later)
