"""What small modules can become: functions that call each other twice, and deep nesting."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _jax
from jaxexp._cli import start
from jaxexp._kernel.module import mlir
from jaxexp._readback import read_back, reader
from jaxexp.errors import UnsupportedError
from kit.corpus import arr
from kit.each import each
from kit.other_modules import serialized, with_module

pytestmark = pytest.mark.jax

T = "tensor<2xf32>"
CONDITION = "%p = stablehlo.constant dense<true> : tensor<i1>\n"
SINE = f"%r = stablehlo.sine %arg0 : {T}"


def function(name: str, body: str, visibility: str = "private") -> str:
    return f"func.func {visibility} @{name}(%arg0: {T}) -> {T} {{ {body}\n return %r : {T} }}"


def calling(depth: int, operation: str, times: int) -> str:
    """Functions that each call the next one so many times, in a chain."""
    made = []
    for i in range(depth):
        values = ["%arg0", *(f"%c{k}" for k in range(1, times)), "%r"]
        each = (operation.format(value, i + 1) for value in values[:-1])
        body = "\n".join(f"{result} = {one}" for result, one in zip(values[1:], each, strict=True))
        made.append(function(f"f{i}" if i else "main", body, "private" if i else "public"))
    return f"module @f {{ {' '.join(made)} {function(f'f{depth}', SINE)} }}"


CALL = f"func.call @f{{1}}({{0}}) : ({T}) -> {T}"
COMPOSITE = f'stablehlo.composite "a.b" {{0}} {{{{decomposition = @f{{1}}}}}} : ({T}) -> {T}'


def nested(depth: int) -> str:
    inner = f"%x0 = stablehlo.sine %arg0 : {T}\n stablehlo.return %x0 : {T}"
    for i in range(1, depth + 1):
        inner = (
            f'%x{i} = "stablehlo.if"(%p) ({{ {inner} }}, {{ stablehlo.return %arg0 : {T} }}) : (tensor<i1>) -> {T}\n'
            f"stablehlo.return %x{i} : {T}"
        )
    body = inner.rpartition("\n")[0].replace(f"%x{depth} =", "%r =")
    return f"module @f {{ {function('main', CONDITION + body, 'public')} }}"


def shown(exported: jaxexp.Exported) -> str:
    return str(exported.make_jaxpr())


def traced(exported: jaxexp.Exported) -> object:
    return jax.make_jaxpr(exported.raised())(np.ones(2, np.float32))


@pytest.mark.parametrize("use", [shown, traced])
@pytest.mark.parametrize("operation", [CALL, COMPOSITE], ids=["calls", "composites"])
def test_what_doubles_at_each_call_is_refused(operation: str, use: Any, caplog: pytest.LogCaptureFixture) -> None:
    """JAX follows each call to print a jaxpr or to lower it, so this would take 2**40 steps."""
    exported = jaxexp.deserialize(with_module(calling(40, operation, 2)))
    with pytest.raises(UnsupportedError, match=r"more than 2\*\*41 operations; mlir_module\(\) or"):
        use(exported)
    assert len(exported.mlir_module()) < 30_000
    jax.jit(jax.vmap(exported.call)).lower(np.ones((3, 2), np.float32))
    if use is shown:  # it says so once for equal functions
        assert "2**41 operations" in caplog.text, "a batch is a loop"


def test_the_limit_is_on_what_calls_add() -> None:
    assert len(shown(jaxexp.deserialize(with_module(calling(10, CALL, 3))))) < 3_000  # 3**10 sines, each call once
    too_many = jaxexp.deserialize(with_module(calling(13, CALL, 3)))
    with pytest.raises(UnsupportedError, match="has 3,985,806 operations"):
        too_many.make_jaxpr()


@pytest.fixture
def usual_recursion_limit() -> Iterator[None]:
    """Libraries that other tests import may have raised it."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("usual_recursion_limit")
@each("text, use", [(nested(200), shown), (calling(150, CALL, 1), shown), (calling(150, CALL, 1), traced)])
def test_what_is_nested_too_deeply_is_one_error(text: str, use: Any) -> None:
    assert "sin" in shown(jaxexp.deserialize(with_module(nested(30) if "if" in text else calling(30, CALL, 1))))
    exported = jaxexp.deserialize(with_module(text))
    with pytest.raises(UnsupportedError, match="nested too deeply for Python's recursion limit of") as error:
        use(exported)
    assert "RecursionError" not in str(error.value)


@pytest.mark.usefixtures("usual_recursion_limit")
@each("text", [nested(200), calling(40, CALL, 2)])
def test_the_command_says_what_to_do(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "a.jaxexp").write_bytes(with_module(text))
    assert start.main(["inspect", "--jaxpr", str(path)]) == 1
    said = capsys.readouterr().err
    assert "inspect --mlir" in said
    assert len(said.splitlines()) < 5
    assert start.main(["inspect", "--mlir", str(path)]) == 0
    assert "stablehlo.sine" in capsys.readouterr().out


def test_functions_are_read_for_a_few_platforms_only() -> None:
    """A function is read again for arguments that are the platform's index; here there are 2**12 sets of them."""
    depth, i = 12, "tensor<i32>"
    types = ", ".join([i] * depth)
    made = []
    for level in range(depth):
        names = [f"%arg{k}" for k in range(depth)]
        other = [*names[:level], "%z", *names[level + 1 :]]
        made.append(
            f"func.func private @f{level}({', '.join(f'{n}: {i}' for n in names)}) -> {i} {{\n"
            f"%z = stablehlo.add %arg{level}, %arg{level} : {i}\n"
            f"%a = func.call @f{level + 1}({', '.join(names)}) : ({types}) -> {i}\n"
            f"%b = func.call @f{level + 1}({', '.join(other)}) : ({types}) -> {i}\n"
            f"%r = stablehlo.add %a, %b : {i}\n return %r : {i} }}"
        )
    arguments = ", ".join(f"%arg{k}: {i}" for k in range(depth))
    made.append(f"func.func private @f{depth}({arguments}) -> {i} {{ return %arg0 : {i} }}")
    text = f"""module @f {{
      func.func public @main(%arg0: {i}, %arg1: {T}) -> {T} {{
        %c = func.call @f0({", ".join(["%arg0"] * depth)}) : ({types}) -> {i}
        %f = stablehlo.convert %c : ({i}) -> tensor<f32>
        %b = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> {T}
        %r = stablehlo.add %b, %arg1 : {T}
        return %r : {T}
      }}
      {" ".join(made)}
    }}"""
    exported = jaxexp.export(jax.jit(jnp.sin), platforms=["cpu", "tpu"])(arr(2))
    module = serialized(text)
    changed = dataclasses.replace(exported, mlir_module_serialized=module)
    with _jax.make_ir_context() as context, _jax.ir.Location.unknown(context):
        reading = reader.ModuleReader(mlir.parse(module, context), read_back.OPERATIONS, 0)
        reading.main()
        assert reading.counts["stablehlo.add"] <= 2 * depth * 8 + 1
    found = jax.jit(changed.raised())(np.ones(2, np.float32))
    np.testing.assert_array_equal(found, changed.call(np.ones(2, np.float32)))
