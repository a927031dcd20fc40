"""Functions for several platforms: which of their custom calls run on one, and that only those matter there."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax.experimental import pallas
from jax.extend.core import Primitive
from jax.interpreters import mlir as jax_mlir

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.module import custom_calls, mlir
from kit.each import each
from kit.linear_algebra import close

pytestmark = pytest.mark.jax
A = np.arange(9, dtype=np.float32).reshape(3, 3) + np.eye(3, dtype=np.float32)
WIDE = np.ones((8, 128), np.float32)


def both(function: Any, *specs: Any, **options: Any) -> tuple[Any, Any]:
    """A function as each of the libraries reads it."""
    blob = bytes(jaxexp.export(jax.jit(lambda *args: function(*args)), **options)(*specs).serialize())
    return jaxexp.deserialize(blob), jax_export.deserialize(bytearray(blob))


def double_in_pallas(x: Any) -> Any:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] * 2

    return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


double_p = Primitive("double_in_test_branches")
double_p.def_abstract_eval(lambda aval: aval)
jax_mlir.register_lowering(double_p, jax_mlir.lower_fun(double_in_pallas, multiple_results=False), platform="tpu")
jax_mlir.register_lowering(double_p, jax_mlir.lower_fun(lambda x: x * 2, multiple_results=False))

FUNCTIONS = {
    "qr": (lambda a: tuple(jnp.linalg.qr(a)), A),
    "svd": (lambda a: tuple(jnp.linalg.svd(a)), A),
    "lu": (lambda a: jax.scipy.linalg.lu(a), A),
    "pallas": (double_p.bind, WIDE),
}


@pytest.mark.wide(one_in=2, promise="calls that only run on another platform do not matter here")
@pytest.mark.parametrize("name", [*FUNCTIONS][::-1])
def test_called_and_only_lowered(name: str) -> None:
    function, x = FUNCTIONS[name]
    ours, theirs = both(function, x, platforms=("cpu", "tpu"))
    expected = jax.tree.leaves(theirs.call(x))
    for call in (ours.call, jax.jit(ours.call), lambda x: jax.jit(lambda x: ours.call(x))(x)):
        jax.tree.map(close, jax.tree.leaves(call(x)), expected)
    assert "call_exported" in jax.jit(ours.call).lower(x).as_text()
    assert ours.mlir_module() == theirs.mlir_module()

    def in_a_branch(exported: Any, x: Any, take: bool) -> Any:
        def total(x: Any) -> Any:
            return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(exported.call(x)))

        return jax.lax.cond(take, total, jnp.sum, x)

    for take in (False, True):
        close(in_a_branch(ours, x, take), in_a_branch(theirs, x, take))


@each("name", ["qr", "pallas"])
def test_a_function_for_another_platform(name: str) -> None:
    function, x = FUNCTIONS[name]
    for exported in both(function, x, platforms=["tpu"]):
        for call in (exported.call, jax.jit(exported.call), lambda x, f=exported: jax.jit(f.call).lower(x)):
            with pytest.raises(ValueError, match=r"exported for .*tpu.*cpu"):
                call(x)
    checks = [jaxexp.DisabledSafetyCheck.platform()]
    for exported in both(function, x, platforms=["tpu"], disabled_checks=checks):
        jax.jit(exported.call).lower(x).as_text()
        if name == "qr":  # which the compiler itself takes apart, on every platform
            exported.call(x)
        else:
            with pytest.raises(RuntimeError, match="tpu_custom_call"):
                exported.call(x)


def named(target: str) -> Any:
    return lambda x: jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def exported_with(function: Any, *targets: str, platforms: Any = ("cpu", "tpu", "cuda")) -> jaxexp.Exported:
    checks = [jaxexp.DisabledSafetyCheck.custom_call(target) for target in targets]
    return jaxexp.export(jax.jit(function), platforms=platforms, disabled_checks=checks)(np.ones((2, 3), np.float32))


def running(exported: jaxexp.Exported) -> dict[str, set[str]]:
    """The custom calls that run on each platform."""
    with _jax.make_ir_context() as context:
        module = mlir.parse(exported.mlir_module_serialized, context)
        indices = range(len(exported.platforms)) if len(exported.platforms) > 1 else [None]
        return {
            platform: {mlir.target_of(call) for call in custom_calls.custom_calls_on(module, index)}
            for platform, index in zip(exported.platforms, indices, strict=True)
        }


def choose(**of_platforms: Any) -> Any:
    return lambda x: jax.lax.platform_dependent(x, **of_platforms)


def test_branches_of_platforms() -> None:
    function = choose(cpu=named("on_cpu"), tpu=named("on_tpu"), default=lambda x: x)
    assert running(exported_with(function, "on_cpu", "on_tpu")) == {"cpu": {"on_cpu"}, "tpu": {"on_tpu"}, "cuda": set()}

    def of_data(x: Any) -> Any:  # all count
        return jax.lax.switch(x[0, 0].astype(int), [named("first"), named("second"), jnp.sin], x)

    for platforms in (("cpu",), ("cpu", "tpu")):
        found = running(exported_with(of_data, "first", "second", platforms=platforms))
        assert found == {platform: {"first", "second"} for platform in platforms}


def test_branches_inside_branches_and_loops() -> None:
    inner = choose(tpu=named("inner_on_tpu"), default=named("inner"))

    def function(x: Any) -> Any:
        x = jax.lax.fori_loop(0, 3, lambda i, x: jax.jit(inner)(x), x)
        return jax.lax.cond(x[0, 0] > 0, choose(cpu=named("on_cpu"), default=inner), lambda x: x, x)

    found = running(exported_with(function, "inner", "inner_on_tpu", "on_cpu"))
    assert found == {"cpu": {"inner", "on_cpu"}, "tpu": {"inner_on_tpu"}, "cuda": {"inner"}}


def test_branches_of_a_function_that_is_called() -> None:
    """Its platforms may be in another order than those of its caller."""
    targets = "on_cpu", "on_tpu"
    inner = exported_with(choose(cpu=named("on_cpu"), default=named("on_tpu")), *targets, platforms=("tpu", "cpu"))
    outer = exported_with(lambda x: inner.call(x) + 1, *targets, platforms=("cpu", "tpu"))
    assert running(outer) == {"cpu": {"on_cpu"}, "tpu": {"on_tpu"}}
    again = exported_with(lambda x: choose(cpu=outer.call, default=jnp.sin)(x), *targets, platforms=("tpu", "cpu"))
    assert running(again) == {"cpu": {"on_cpu"}, "tpu": set()}


MODULE = """
func.func public @main(%p: tensor<i32>, %x: tensor<2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %many = stablehlo.constant dense<256> : tensor<i32>
  %index = INDEX
  %r = "stablehlo.case"(%index) ({
    %0 = stablehlo.custom_call @first(%x) : (tensor<2xf32>) -> tensor<2xf32>
    stablehlo.return %0 : tensor<2xf32>
  }, {
    %0 = func.call @inner(%p, %x) : (tensor<i32>, tensor<2xf32>) -> tensor<2xf32>
    stablehlo.return %0 : tensor<2xf32>
  }) : (tensor<i32>) -> tensor<2xf32>
  return %r : tensor<2xf32>
}
func.func private @inner(%p: tensor<i32>, %x: tensor<2xf32>) -> tensor<2xf32> {
  %r = "stablehlo.case"(%p) ({
    stablehlo.return %x : tensor<2xf32>
  }, {
    %0 = stablehlo.custom_call @second(%x) : (tensor<2xf32>) -> tensor<2xf32>
    stablehlo.return %0 : tensor<2xf32>
  }) : (tensor<i32>) -> tensor<2xf32>
  return %r : tensor<2xf32>
}
"""

INDICES = {
    "the platform": ("stablehlo.convert %p : tensor<i32>", [{"first"}, {"second"}]),
    "clamped": ("stablehlo.clamp %zero, %p, %zero : tensor<i32>", [{"first"}, {"first"}]),
    "beyond all branches": ("stablehlo.constant dense<7> : tensor<i32>", [set(), {"second"}]),
    "unknown": ("stablehlo.add %p, %one : tensor<i32>", [{"first"}, {"first", "second"}]),
    "of another type": ("stablehlo.convert %c : (tensor<i8>) -> tensor<i32>", [{"first"}, {"first", "second"}]),
}


@each("name", INDICES)
def test_indices(name: str) -> None:
    """What is not surely the platform counts with all branches."""
    index, expected = INDICES[name]
    text = MODULE.replace("%index = INDEX", f"%index = {index}")
    if "%c" in index:
        text = text.replace("%index =", "%c = stablehlo.convert %many : (tensor<i32>) -> tensor<i8>\n  %index =")
    with _jax.make_ir_context():
        module = _jax.ir.Module.parse(text)
        found = [{mlir.target_of(call) for call in custom_calls.custom_calls_on(module, index)} for index in (0, 1)]
    assert found == expected


def test_chains_of_any_length_end() -> None:
    """Each step of a chain of 5,000 cases depends on the one before."""
    step = """  %{0} = "stablehlo.case"(%{1}) ({{
    stablehlo.return %zero : tensor<i32>
  }}, {{
    stablehlo.return %one : tensor<i32>
  }}) : (tensor<i32>) -> tensor<i32>
"""
    steps = "".join(step.format(f"c{i + 1}", f"c{i}") for i in range(5000)).replace("%c0)", "%p)")
    text = re.sub(r"  %index = INDEX\n", steps, MODULE).replace('"stablehlo.case"(%index)', '"stablehlo.case"(%c5000)')
    with _jax.make_ir_context():
        module = _jax.ir.Module.parse(text)
        assert {mlir.target_of(call) for call in custom_calls.custom_calls_on(module, 0)} == {"first"}


CALLBACK = "xla_python_cpu_callback"


def test_callbacks_in_branches_of_data_are_refused() -> None:
    """In a function for several platforms, too, where other branches are those of platforms and do not matter."""
    x = np.ones((2, 3), np.float32)
    of_others = choose(cpu=jnp.sin, default=named(CALLBACK))
    exported = exported_with(of_others, CALLBACK, platforms=("cpu", "tpu"))
    close(jaxexp.deserialize(exported.serialize()).call(x), np.sin(x))

    def function(x: Any) -> Any:
        return jax.lax.cond(x[0, 0] > 0, named(CALLBACK), choose(cpu=jnp.sin, default=jnp.cos), x)

    exported = exported_with(function, CALLBACK, platforms=("cpu", "tpu"))
    with pytest.raises(jaxexp.errors.ExportError, match="calls back to Python"):
        jaxexp.deserialize(exported.serialize()).call(x)
