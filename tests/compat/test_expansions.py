"""Derivatives of CHLO's functions in modules that have their expansions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxexp
from jaxexp import _jax
from jaxexp._compat.foreign import expansions
from jaxexp._kernel.module import mlir
from kit.each import each
from kit.producers import bytecode

pytestmark = pytest.mark.jax

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "bessel_i1e": lax.bessel_i1e,
    "digamma": lax.digamma,
    "erf": lax.erf,
    "erf_inv": lax.erf_inv,
    "erfc": lax.erfc,
    "lgamma": lax.lgamma,
}
X = np.array([0, 0.25, -0.25, 1, -1, 2, -2.5, 1e-30, 10, -10])


def of_chlo(function: str, element: str = "f32", count: int = X.size) -> bytes:
    type_ = f"tensor<{count}x{element}>"
    return bytecode(f"""func.func @main(%x: {type_}) -> {type_} {{
        %0 = chlo.{function} %x : {type_} -> {type_}
        return %0 : {type_}
    }}""")


def gradient(function: Callable[..., Any], x: Any) -> Any:
    return jax.grad(lambda x: function(x).astype(jnp.float32).sum())(x)


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.float32(found), np.float32(expected), rtol=tolerance, atol=tolerance)


@each("element, tolerance", [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_derivatives_are_those_of_jax(element: str, tolerance: float) -> None:
    """All functions in one module; in few bits, JAX and an expansion in float32 round otherwise."""
    x, short = X.astype(jnp.dtype(element)), {"float32": "f32", "bfloat16": "bf16"}[element]
    names = list(FUNCTIONS) if element == "float32" else ["erf_inv", "lgamma"]
    type_ = f"tensor<{X.size}x{short}>"
    body = "\n".join(f"%{i} = chlo.{name} %x : {type_} -> {type_}" for i, name in enumerate(names))
    returned, types = ", ".join(f"%{i}" for i in range(len(names))), ", ".join([type_] * len(names))
    text = f"func.func @main(%x: {type_}) -> ({types}) {{\n{body}\nreturn {returned} : {types} }}"
    exported = jaxexp.from_stablehlo(bytecode(text), differentiable=True)
    loaded = jaxexp.deserialize(exported.serialize(vjp_order=1))

    def gradients(call: Callable[..., Any]) -> Any:
        every = lambda x: [y.astype(jnp.float32).sum() for y in call(x)]  # noqa: E731
        return jax.jit(jax.jacrev(every))(x)

    expected = gradients(lambda x: [FUNCTIONS[name](x) for name in names])
    for name, one, other in zip(names, gradients(loaded.call), expected, strict=True):
        np.testing.assert_allclose(np.float32(one), np.float32(other), tolerance, tolerance, err_msg=name)


def test_derivatives_in_float64() -> None:
    with jax.enable_x64(True):
        x = np.linspace(-0.9, 0.9, 7)
        exported = jaxexp.from_stablehlo(of_chlo("erf_inv", "f64", 7), differentiable=True)
        expected = jax.grad(lambda x: lax.erf_inv(x).sum())(x)
        np.testing.assert_allclose(jax.grad(lambda x: exported.call(x).sum())(x), expected, rtol=1e-12)


@pytest.mark.wide(one_in=6, promise="the functions that JAX itself expands have their derivatives")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_jax_exports(function: str) -> None:
    """In a portable artifact, hardly any of the functions is left."""
    x = np.float32([0.25, 0.5, -0.75])
    module = jax.export.export(jax.jit(lambda x: FUNCTIONS[function](x * FUNCTIONS[function](x))))(x)
    exported = jaxexp.from_stablehlo(module.mlir_module_serialized, differentiable=True)
    expected = gradient(lambda x: FUNCTIONS[function](x * FUNCTIONS[function](x)), x)
    # JAX 0.12 takes the bits of the argument apart, and loses the derivative.
    close(gradient(exported.call, x), 0 * x if "bitcast" in exported.mlir_module() else expected, 1e-4)


@pytest.mark.wide(one_in=3, promise="expansions between conversions have their derivatives")
@pytest.mark.parametrize(("outer", "inner"), [("float64", "float32"), ("float32", "bfloat16"), ("int32", "float32")])
def test_arguments_of_another_type(outer: str, inner: str) -> None:
    """The expansion for numbers of 16 bits begins and ends with conversions, as this does."""
    with jax.enable_x64(True):
        x = np.array([0, 1] if outer == "int32" else [0.25, -0.5]).astype(jnp.dtype(outer))
        weights = np.ones(2, np.float32)

        def function(x: Any, w: Any) -> Any:
            return lax.erf_inv(x.astype(jnp.dtype(inner))).astype(jnp.bfloat16) * w

        exported = jaxexp.from_stablehlo(bytecode(jax.jit(function).lower(x, weights).as_text()), differentiable=True)
        wrt = 1 if outer == "int32" else 0
        found, expected = (
            jax.grad(lambda *a, f=f: f(*a).astype(jnp.float32).sum(), wrt)(x, weights)
            for f in (exported.call, function)
        )
        close(found, expected, 2e-2)


def test_sizes_that_were_open_and_code_of_a_loop() -> None:
    text = """func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %three = stablehlo.constant dense<3> : tensor<i32>
      %0:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<?xf32>
        cond {
          %c = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
        } do {
          %j = stablehlo.add %i, %one : tensor<i32>
          %z = chlo.erf_inv %y : tensor<?xf32> -> tensor<?xf32>
          stablehlo.return %j, %z : tensor<i32>, tensor<?xf32>
        }
      return %0#1 : tensor<?xf32>
    }"""
    x = np.float32([0, 0.25, -0.5])
    exported = jaxexp.from_stablehlo(bytecode(text), shapes={0: (3,)}, differentiable=True)
    close(gradient(exported.call, x), gradient(lambda x: lax.erf_inv(lax.erf_inv(lax.erf_inv(x))), x))


def read(text: str) -> str:
    with _jax.make_ir_context() as context, _jax.ir.Location.unknown(context):
        module = _jax.ir.Module.parse(text)
        expansions.read(module)
        module.operation.verify()
        return str(module)


def expanded(function: str, element: str) -> str:
    with _jax.make_ir_context() as context:
        return str(mlir.parse(jaxexp.from_stablehlo(of_chlo(function, element)).mlir_module_serialized, context))


@each("function, element", [(name, element) for name in FUNCTIONS for element in ("bf16", "f32", "f64")])
def test_nothing_is_left_of_an_expansion(function: str, element: str) -> None:
    text = expanded(function, element)
    if "stablehlo.composite" in text:  # which is read back as what it stands for
        assert " = chlo." not in read(text)
        return
    found = read(text)
    assert (found.count("chlo."), f"chlo.{function}" in found, "stablehlo." in found) == (1, True, False)


@pytest.mark.wide(one_in=6, promise="only what is equal to an expansion is read as one")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_only_what_is_equal_is_read(function: str) -> None:
    text = expanded(function, "f32")
    if "stablehlo.composite" in text:
        return
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if "stablehlo.constant" in line)
    for at, line in enumerate(lines):
        if not (found := re.match(r"( *%\w+ = stablehlo\.)(?!constant|compare|select|convert)(\w+ .*)", line)):
            continue
        for use in re.finditer(r"%\w+", found[2]):
            other = f"{found[1]}{found[2][: use.start()]}%other{found[2][use.end() :]}"
            type_ = line.rpartition(" : ")[2]
            new = [*lines[:first], f"%other = stablehlo.constant dense<123.0> : {type_}", *lines[first:]]
            new[at + 1] = other
            if "f32" in type_ and "->" not in type_:
                assert f"chlo.{function}" not in read("\n".join(new)), other
    for old, new_ in (("LT,", "LE,"), ("subtract", "add"), ("multiply", "divide")):
        if old in text:
            assert f"chlo.{function}" not in read(text.replace(old, new_, 1))


def test_reductions_that_start_from_a_broadcast_constant() -> None:
    """JAX lowers the starts of some of its reductions to this."""
    text = """func.func @main(%x: tensor<5xf32>) -> tensor<4xf32> {
      %c = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<f32>
      %1 = "stablehlo.reduce_window"(%x, %0) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %2 = stablehlo.maximum %a, %b : tensor<f32>
        stablehlo.return %2 : tensor<f32>
      }) {window_dimensions = array<i64: 2>} : (tensor<5xf32>, tensor<f32>) -> tensor<4xf32>
      return %1 : tensor<4xf32>
    }"""
    x = np.float32([3, 1, 4, 1, 5])
    exported = jaxexp.from_stablehlo(bytecode(text), differentiable=True)
    np.testing.assert_array_equal(exported.call(x), [3, 4, 4, 5])
    np.testing.assert_array_equal(gradient(exported.call, x), [1, 0, 2, 0, 1])
