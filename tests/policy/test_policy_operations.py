"""Policies know a list of operations, and refuse all others: each dialect of the installed jaxlib is on one side."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp import _jax, _native, _runtime
from jaxexp._kernel.artifact import operations
from jaxexp._kernel.module import custom_calls
from jaxexp._policy.limits.limits import Limits
from jaxexp.runtime.judging import judge
from kit import bodies, vhlo
from kit.compare import chain
from kit.corpus import arr
from kit.each import each
from kit.operations import OPERATIONS, shape_of
from kit.other_modules import from_text, serialized, with_module
from kit.places import GOLDEN
from kit.policies import module, refusal, refused

pytestmark = pytest.mark.jax

UNDERSTOOD = {"builtin", "chlo", "func", "sdy", "stablehlo"}
# vhlo is what portable artifacts are written in; parsing them leaves none of it.
REFUSED = set(
    "affine arith cf complex gpu llvm math memref mhlo mpmd nvgpu nvvm scf shape tensor ub vector vhlo".split()
)

# Refused, too; it is there once something in the process has loaded the passes for quantized types.
ONLY_SOMETIMES = {"quant"}


def test_every_dialect_is_understood_or_refused() -> None:
    """Of those that jaxlib's parser lists, when it is given an operation of none of them."""
    with _jax.make_ir_context(), pytest.raises(Exception, match="Available dialects") as error:
        _jax.ir.Module.parse("nosuchdialect.op")
    listed = re.search(r"Available dialects: (.*?) ?(\(\* |;)", str(error.value))[1]
    found = set(re.findall(r"[\w.]+", listed)) - ONLY_SOMETIMES
    assert found == UNDERSTOOD | REFUSED, "a dialect that nobody has looked at"
    assert not {name for name in operations.OPERATIONS if name.partition(".")[0] in ONLY_SOMETIMES}
    assert {name.partition(".")[0] for name in operations.OPERATIONS} == UNDERSTOOD


def test_every_operation_was_looked_at() -> None:
    """Of the dialects that are understood, what jaxlib has and the tables lack is what is left out on purpose."""
    folder = Path(_jax.ir.__file__).parent / "dialects"
    known: set[str] = set()
    for dialect in UNDERSTOOD:
        known |= set(re.findall(r'OPERATION_NAME = "([\w.]+)"', (folder / f"_{dialect}_ops_gen.py").read_text()))
    left_out = {
        "func.call_indirect",  # calls what a value says
        "func.constant",
        "stablehlo.async_start",  # its results have types that cannot be looked into
        "stablehlo.async_done",
        "stablehlo.set_dimension_size",  # XLA believes the size
    }
    assert known - operations.OPERATIONS == left_out


def test_portable_artifacts_are_understood() -> None:
    looked_at = 0
    for path in sorted(GOLDEN.rglob("*.bin")):
        try:
            found = jaxexp.inspect(path)
        except jaxexp.errors.DeserializationError:
            continue  # one that was damaged on purpose, or an image
        assert found.unknown_operations == (), path
        looked_at += found.operation_counts[0] is not None
    assert looked_at > 100


CALL = (
    '%r = "mhlo.custom_call"(%arg0) {call_target_name = "mine", api_version = 4 : i32, has_side_effect = true, '
    "backend_config = {}} : (tensor<2xf32>) -> tensor<2xf32>"
)
WITH_CODE = '%r = stablehlo.add %arg0, %arg0 {backend_config = "code"} : tensor<2xf32>'
OTHER_DIALECTS = {
    "mhlo.custom_call": module(CALL, result="%r"),
    "arith": module("%x = arith.constant 1 : i32"),
    "func.call_indirect": module(
        "%g = func.constant @main : (tensor<2xf32>) -> tensor<2xf32>\n"
        "%r = func.call_indirect %g(%arg0) : (tensor<2xf32>) -> tensor<2xf32>",
        result="%r",
    ),
    "a module inside": module("", more='module @inner { func.func @main() { return } }'),
}  # fmt: skip
HOSTILE = {
    "set_dimension_size": module(  # XLA believes the size
        "%n = stablehlo.constant dense<100000> : tensor<i32>\n"
        "%s = stablehlo.set_dimension_size %arg0, %n, dim = 0 : "
        "(tensor<2xf32>, tensor<i32>) -> tensor<?xf32, #stablehlo.bounds<2>>\n"
        "%d = stablehlo.get_dimension_size %s, dim = 0 : (tensor<?xf32, #stablehlo.bounds<2>>) -> tensor<i32>\n"
        "%c = stablehlo.convert %d : (tensor<i32>) -> tensor<f32>\n"
        "%r = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<2xf32>",
        result="%r",
    ),
    "backend_config": module(WITH_CODE, result="%r"),
    "an attribute of another dialect": module("", attributes='mhlo.spmd_output_sharding = "{replicated}"'),
}  # fmt: skip


@each("name", HOSTILE)
def test_what_is_not_understood_is_refused(name: str) -> None:
    blob = with_module(HOSTILE[name])
    for fields in ({}, {"custom_calls": None, "effects": None, "callbacks": None}):
        policy = jaxexp.Policy(**fields)
        assert refused(blob, policy) == ("operations", "operations")
        with pytest.raises(jaxexp.errors.PolicyError, match=r"Policy\(operations=\("):
            jaxexp.deserialize(blob, policy=policy)
    for policy in (jaxexp.Policy(operations=None), jaxexp.Policy(operations=("*",)), None):
        jaxexp.deserialize(blob, policy=policy)


@each("name", OTHER_DIALECTS)
def test_other_dialects_are_refused_by_each_policy(name: str) -> None:
    """No export has them, and jaxlib's parser trusts them."""
    exported = jax_export.export(jax.jit(jnp.sin))(arr(2))
    raw = dataclasses.replace(exported, mlir_module_serialized=vhlo.bytecode(OTHER_DIALECTS[name]))
    blob = bytes(raw.serialize())
    everything = jaxexp.Policy(operations=None, custom_calls=None, effects=None, callbacks=None)
    for use in (
        lambda: jaxexp.deserialize(blob, policy=jaxexp.Policy()),
        lambda: jaxexp.deserialize(blob, policy=everything),
        lambda: jaxexp.deserialize(blob).mlir_module(),
        lambda: judge(jaxexp.Policy(), _runtime.Program.of_bytes(blob)),
    ):
        with pytest.raises(jaxexp.errors.DeserializationError, match="which no export has"):
            use()


USED = "\nstablehlo.custom_call @kernel(%r) {{has_side_effect = true}} : ({}) -> ()"
CALLS_ALLOWED = {"custom_calls": None, "effects": None}
PORTABLE = {
    "attribute of an argument": (
        module("").replace("%arg0: tensor<2xf32>)", "%arg0: tensor<2xf32> {evil.attr = 1 : i32})", 1), {}, "operations"
    ),
    "attribute of a function": (
        module("").replace("-> tensor<2xf32> {", "-> tensor<2xf32> attributes {evil.attr} {", 1), {}, "operations"
    ),
    "partitions": (
        module("", attributes="mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 2 : i32"), {"max_devices": 8},
        "max_devices",
    ),
    "a call with side effects": (
        module('%r = stablehlo.custom_call @kernel(%arg0) {has_side_effect = true, evil.more = 3 : i64} : '
               "(tensor<2xf32>) -> tensor<2xf32>", result="%r"),
        {"custom_calls": ("kernel",)}, "effects",
    ),
    "a large array": (
        module("%r = stablehlo.iota dim = 0 : tensor<1000xcomplex<f64>>" + USED.format("tensor<1000xcomplex<f64>>")),
        {"max_array_bytes": 15_999, **CALLS_ALLOWED}, "max_array_bytes",
    ),
    "a large array of truth values": (
        module("%r = stablehlo.constant dense<true> : tensor<1000xi1>" + USED.format("tensor<1000xi1>")),
        {"max_array_bytes": 999, **CALLS_ALLOWED}, "max_array_bytes",
    ),
    "a collective": (
        module('%r = "stablehlo.all_reduce"(%arg0) ({^bb0(%a: tensor<f32>, %b: tensor<f32>): '
               "%s = stablehlo.add %a, %b : tensor<f32>\n stablehlo.return %s : tensor<f32>}) "
               "{replica_groups = dense<[[0,1]]> : tensor<1x2xi64>} : (tensor<2xf32>) -> tensor<2xf32>", result="%r"),
        {"max_devices": 1}, "max_devices",
    ),
}  # fmt: skip


@each("name", PORTABLE)
def test_portable_modules_are_refused_with_and_without_jax(name: str) -> None:
    text, fields, field = PORTABLE[name]
    assert refused(with_module(text), jaxexp.Policy(**fields)) == (field, field)


@each("order", [1, 2])
def test_in_vjps(order: int) -> None:
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(2))
    *outside, last = chain(exported, order)
    arguments = ", ".join(f"%arg{i}: tensor<2xf32>" for i in range(len(last.in_avals)))
    types, values = (", ".join([one] * len(last.out_avals)) for one in ("tensor<2xf32>", "%r"))
    inner = f"""module @f {{ func.func public @main({arguments}) -> ({types}) {{
      {WITH_CODE}
      return {values} : {types}
    }} }}"""
    link = dataclasses.replace(last, mlir_module_serialized=serialized(inner))
    for outer in reversed(outside):
        link = dataclasses.replace(outer, _get_vjp=lambda _, link=link: link)
    blob = link.serialize(vjp_order=order)
    error = refusal(blob)
    assert "backend_config" in str(error)
    assert error.where == f"the VJP of order {order} of sin"


def test_inspect_names_them() -> None:
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(2))
    newer = bytes(exported.mlir_module_serialized).replace(b"sine_v2", b"sinh_v2")
    found = jaxexp.inspect(bytes(dataclasses.replace(exported, mlir_module_serialized=newer).serialize()))
    assert found.unknown_operations == ("vhlo.sinh_v2",)
    assert "vhlo.sinh_v2" in str(found)


def test_export_refuses_them() -> None:
    with _jax.make_ir_context():
        parsed = _jax.ir.Module.parse(OTHER_DIALECTS["mhlo.custom_call"])
        with pytest.raises(jaxexp.errors.ExportError, match=r"mhlo\.custom_call"):
            custom_calls.check_stable(parsed, ())
        custom_calls.check_stable(parsed, ("mhlo.custom_call",))
        custom_calls.check_stable(parsed, ("ALL",))


ADD = "%r = stablehlo.add %arg0, %arg0 : tensor<2xf32>"
CONTRADICTIONS = {
    "partitions as text": module(ADD, 'mhlo.num_partitions = "x"', result="%r"),
    "negative partitions": module(ADD, "mhlo.num_partitions = -8 : i32, mhlo.num_replicas = -8 : i32", result="%r"),
    "no partitions": module(ADD, "mhlo.num_partitions = 0 : i32", result="%r"),
    "a function without a body": module(ADD, more="func.func private @g(tensor<2xf32>)", result="%r"),
    "a custom call of a function that is not there": module(
        '%r = "stablehlo.custom_call"(%arg0) {call_target_name = "Sharding", called_computations = [@nowhere]} '
        ": (tensor<2xf32>) -> tensor<2xf32>",
        result="%r",
    ),
}


@each("name", CONTRADICTIONS)
def test_modules_that_contradict_themselves(name: str) -> None:
    blob = with_module(CONTRADICTIONS[name])
    with pytest.raises(jaxexp.errors.DeserializationError, match="mlir_module_serialized"):
        jaxexp.deserialize(blob, policy=jaxexp.Policy(custom_calls=("mine",), max_devices=1))


def test_arrays_in_tuples_count() -> None:
    text = module(
        '%t = "stablehlo.custom_call"(%arg0) {call_target_name = "Sharding", has_side_effect = true} '
        ": (tensor<2xf32>) -> tuple<tensor<4xf32>, tuple<tensor<1000xf32>>>\n" + ADD,
        result="%r",
    )
    blob = with_module(text)
    assert "4,000 bytes" in str(refusal(blob, max_array_bytes=3999))
    jaxexp.deserialize(blob, policy=jaxexp.Policy(max_array_bytes=4000))


@each("dtype", ["bool", "int4", "float8_e4m3fn", "int16"])
def test_elements_have_whole_bytes(dtype: str) -> None:
    exported = jaxexp.export(jax.jit(lambda x: jax.lax.rev(x, (0,))))(jax.ShapeDtypeStruct((1000,), dtype))
    expected = 2000 if dtype == "int16" else 1000
    assert f"{expected:,} bytes" in str(refusal(exported.serialize(), max_array_bytes=expected - 1))
    jaxexp.deserialize(exported.serialize(), policy=jaxexp.Policy(max_array_bytes=expected))


def test_what_is_stated_is_checked_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    exported = jaxexp.export(jax.jit(lambda x, y: (x, y, x)))(arr(2), arr(2))
    blob = bytes(exported.serialize(vjp_order=1))

    def fail(self: object) -> None:
        raise AssertionError("decoded")

    limits = {"max_devices": 0, "max_arguments": 1, "max_results": 2, "max_vjp_order": 0, "max_module_bytes": 10}
    monkeypatch.setattr(_native.Artifact, "decode", fail)
    for field, limit in limits.items():
        assert refusal(blob, **{field: limit}).field == field
    assert refusal(blob, platforms=("tpu",)).field == "platforms"
    monkeypatch.undo()
    np.testing.assert_array_equal(jaxexp.deserialize(blob).call(np.ones(2, "f"), np.ones(2, "f"))[0], np.ones(2))


# --- what combines or compares elements ------------------------------------------------------------------------------


def is_allowed(module: bytes, policy: jaxexp.Policy) -> bool:
    try:
        Limits(policy).of_elements(_native.in_bodies(module), "f")
    except (jaxexp.errors.PolicyError, jaxexp.errors.DeserializationError):
        return False
    return True


@each("holder", bodies.HOLDERS)
def test_each_operation_in_each_body(holder: str) -> None:
    """The table's operations as they are, and on numbers."""
    looked_at = set()
    for operation in (*OPERATIONS, *bodies.OF_NUMBERS):
        base = operation.name.partition(".")[2]
        has_arrays = any(map(shape_of, (*operation.operands, *operation.results)))
        expected = base in operations.OF_ELEMENTS and not has_arrays
        for called in (False, True):
            body = bodies.Body(operation)
            module = serialized(bodies.HOLDERS[holder].module(body.in_function() if called else body))
            if holder == "sort":  # no module may have calls there, or arrays
                assert is_allowed(module, jaxexp.Policy()) == (expected and not called), operation
            else:
                assert is_allowed(module, jaxexp.Policy()) == expected, operation
                assert is_allowed(module, jaxexp.Policy(operations=["stablehlo.*"])), operation
        looked_at.add(base)
    assert operations.OF_ELEMENTS - looked_at == {"call", "composite", "return"}


ALLOWED = [one for one in bodies.OF_NUMBERS if one.name.partition(".")[2] in operations.OF_ELEMENTS]
OTHERS = [
    one for one in (*bodies.OF_NUMBERS, *OPERATIONS) if re.search(r"\.(fft|sort|rng|\w+_id|while|\w+_call)$", one.name)
]


@each("holder", [holder for holder in bodies.HOLDERS if holder != "sort"])
def test_bodies_are_refused_with_and_without_jax(holder: str) -> None:
    policy = jaxexp.Policy(effects=None)
    for operation in OTHERS:
        body = bodies.Body(operation)
        for one in (body, body.in_function()):
            blob = bytes(from_text(bodies.HOLDERS[holder].module(one)).serialize())
            with pytest.raises(jaxexp.errors.PolicyError, match="combines or compares elements by") as error:
                jaxexp.deserialize(blob, policy=policy)
            assert error.value.field == "operations"
            assert refused(blob, policy)[1] == "operations"
    blob = bytes(from_text(bodies.HOLDERS[holder].module(bodies.Body(*ALLOWED))).serialize())
    assert refused(blob, policy)[0] is None


# XLA compiles few reductions between devices, and says so of others.
MAY_FAIL = ("all_reduce", "reduce_scatter")
COMPILES = """
import pathlib, sys
import jax, jaxexp, numpy as np
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    print("calls", path.stem, flush=True)
    function = jaxexp.load(path, policy=jaxexp.Policy())
    try:
        function.call(*(np.zeros(aval.shape, aval.dtype) for aval in function.in_avals))
    except jax.errors.JaxRuntimeError as error:
        print("failed", path.stem, str(error)[:500])
"""


def check_that_it_compiles(found: Iterable[tuple[str, bodies.Body]], folder: Path, env: dict[str, str]) -> None:
    for number, (holder, body) in enumerate(found):
        from_text(bodies.HOLDERS[holder].module(body)).save(folder / f"{holder} {number}.jaxexp")
    command = [sys.executable, "-c", COMPILES, str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout[-100:], done.stderr[-2000:])
    failed = [
        line for line in done.stdout.splitlines() if line.startswith("failed") and line.split()[1] not in MAY_FAIL
    ]
    assert not failed


def bodies_of(body: bodies.Body, holder: str) -> Iterator[tuple[str, bodies.Body]]:
    yield holder, body
    if holder != "sort":
        yield holder, body.in_function()
        yield holder, body.in_function(composite=True)


@pytest.mark.processes(reason="XLA may end it")
def test_what_is_allowed_compiles(tmp_path: Path, subprocess_env: Any) -> None:
    body = bodies.Body(*ALLOWED)
    found = (one for holder in bodies.HOLDERS for one in bodies_of(body, holder))
    check_that_it_compiles(found, tmp_path, subprocess_env())


@pytest.mark.long(
    promise="XLA compiles each operation that a policy allows among those that combine or compare elements",
    sibling="test_policy_operations.py::test_what_is_allowed_compiles",
)
@pytest.mark.processes(reason="XLA may end it")
@each("holder", bodies.HOLDERS)
def test_each_that_is_allowed_compiles(holder: str, tmp_path: Path, subprocess_env: Any) -> None:
    found = (one for operation in ALLOWED for one in bodies_of(bodies.Body(operation), holder))
    check_that_it_compiles(found, tmp_path, subprocess_env())


def test_what_jax_writes_is_allowed() -> None:
    """Functions of JAX that are jitted themselves are calls in its reductions."""
    x, zero = np.ones((4, 3), np.float32), np.float32(0)
    written = (
        lambda x: jax.lax.reduce(x, -jnp.inf, jnp.logaddexp, (0,)),
        lambda x: jax.lax.reduce(x, zero, lambda a, b: jax.lax.cond(a > b, jnp.sin, jnp.cos, a), (0,)),
        lambda x: jax.lax.reduce((x, x + 1), (zero, zero), lambda a, b: (a[0] + b[0], jnp.where(a[1] > 0, *b)), (1,)),
        lambda x: jax.lax.reduce_window(x, zero, jnp.hypot, (2, 1), (2, 1), "VALID"),
        lambda x: x.at[jnp.array([0, 2])].apply(jnp.sinc),
        lambda x: jax.lax.sort([x + 1j * x, x], num_keys=2),
        lambda x: (x.argmax(0), jnp.median(x), jnp.unique_counts(x, size=3), jax.lax.top_k(x, 2)),
        jax.grad(lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 1), (2, 1), "VALID").sum()),
    )
    for place, function in enumerate(written):
        blob = bytes(jaxexp.export(jax.jit(function))(x).serialize())
        assert refused(blob, jaxexp.Policy()) == (None, None), place
