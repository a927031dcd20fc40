"""Traces of runs: fingerprints of what operations make, and the first operation at which two runs part."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp._api.cases import culprit
from jaxexp._api.cases.calling import Chain
from jaxexp._readback import traced as tracing
from kit import traced_models
from kit.mutations import Mutation, different, mutations

pytestmark = pytest.mark.jax
SOURCE = np.random.default_rng(0)
BF16 = jnp.bfloat16


def random(*shape: int) -> np.ndarray[Any, Any]:
    return SOURCE.standard_normal(shape).astype(np.float32)


def trace(exported: jaxexp.Exported, *args: Any) -> tuple[list[Any], Any, culprit.Trace]:
    chain = Chain(exported)
    arguments = [np.asarray(leaf) for leaf in jax.tree.leaves(args)]
    traced, found = chain.trace(0, arguments)
    return chain.call(0, arguments), traced.rows, found


def find(of: Sequence[tracing.Row], here: culprit.Trace, recorded: culprit.Trace) -> jaxexp.CheckReport.Culprit:
    named = culprit.Comparison(of, here, recorded).first()
    assert named is not None
    assert of[named.row].at == named.culprit.at
    return named.culprit


def perceptron(w: Any, v: Any, x: Any) -> Any:
    return jax.nn.softmax(jnp.maximum(x @ w, 0) @ v)


def sharded(w: Any, v: Any, x: Any) -> Any:
    """A layer that XLA partitions, and one whose devices talk to each other."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def ours(y: Any, v: Any) -> Any:
        z = jax.lax.psum(y @ v, "model")
        left = jax.lax.ppermute(z, "data", [(i, (i + 1) % 4) for i in range(4)])
        every = jax.lax.all_gather(jnp.exp(-z * z), "data", tiled=True)
        return jnp.where(jax.lax.axis_index("data") > 1, left, z) / (1 + every.sum()), jax.lax.pmax(z.max(), "data")

    y = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), NamedSharding(mesh, P("data", "model")))
    mapped = jax.shard_map(
        ours, mesh=mesh, in_specs=(P("data", "model"), P("model")), out_specs=(P("data"), P()), check_vma=False
    )
    scores, largest = mapped(y, v)
    return jax.nn.softmax(scores) - jnp.cumsum(y, axis=1)[:, :3], largest


PERCEPTRON = perceptron, random(6, 8), random(8, 5), random(3, 6)
SHARDED = sharded, random(6, 8), random(8, 3), random(8, 6)


@pytest.mark.wide(one_in=5, promise="arrays that differ have fingerprints that differ, in each dtype")
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float64", "complex64", "int8", "int64", "uint32", "bool", "int4"]
)
def test_fingerprints_differ(dtype: str) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(SOURCE.integers(0, 2 if dtype in ("bool", "int4") else 50, 24)).astype(dtype).reshape(4, 6)
        print_of = jax.jit(functools.partial(tracing.fingerprints_of, trips=1))
        seen = {bytes(print_of(x).tobytes())}
        others = [x.T.reshape(4, 6), x[::-1], x.at[2, 3].set(1 - x[2, 3] if dtype != "bool" else ~x[2, 3])]
        if jnp.issubdtype(x.dtype, jnp.inexact):
            others += [-x, x.at[0, 0].set(jnp.nan), x.at[0, 1].set(jnp.nan), x.at[0, 0].set(jnp.inf)]
        for other in others:
            seen.add(bytes(print_of(other).tobytes()))
        assert len(seen) == 1 + len(others)


def test_loops_and_branches() -> None:
    def function(x: Any) -> Any:
        step = lambda i, y: jax.lax.cond(i == 2, lambda y: y * 2, lambda y: y + 1, y)  # noqa: E731
        return jax.lax.fori_loop(0, 5, step, x)

    _, rows, found = trace(jaxexp.export(jax.jit(function))(random(3)), np.ones(3, np.float32))
    inside = {
        row.operation: index
        for index, row in enumerate(rows)
        if any("branch" in name for name in row.where) and row.operation in ("stablehlo.multiply", "stablehlo.add")
    }
    numbers = {name: found.numbers[:5, row] for name, row in inside.items()}
    largest = {name: array.view(np.float32)[:, 5].tolist() for name, array in numbers.items()}
    assert largest == {"stablehlo.multiply": [0, 0, 6, 0, 0], "stablehlo.add": [2, 3, 0, 7, 8]}
    assert numbers["stablehlo.add"][:, 0].tolist() == [1, 1, 0, 1, 1]
    again = culprit.Trace.of_case(Recorded(found.words))
    assert again is not None
    np.testing.assert_array_equal(again.words, found.words)
    np.testing.assert_array_equal(again.counts, found.counts)


class Recorded(NamedTuple):
    """The trace of a case."""

    words: np.ndarray[Any, Any]

    def array(self) -> np.ndarray[Any, Any]:
        return self.words


@pytest.mark.wide(one_in=2, promise="the operations of each device are traced and named")
@pytest.mark.parametrize("manual", [("data", "model"), ("data",)])
def test_code_of_each_device(manual: tuple[str, ...], tmp_path: Path) -> None:
    """Code of `jax.shard_map` is entered, also in a loop, and where only some axes are its own."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def ours(x: Any) -> Any:
        y = jax.lax.fori_loop(0, 3, lambda i, y: y * 1.5, x)
        return jnp.where(jax.lax.axis_index("data") == 2, jnp.sin(y), y)

    function = jax.shard_map(
        ours, mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={*manual}, check_vma=False
    )
    exported = saved(function, random(8, 6), path=tmp_path / "f.jaxexp")
    assert (exported.nr_devices, exported.check().verdict) == (8, "equal")
    found = changed(exported, "stablehlo.multiply", "stablehlo.add").cases[0].culprit
    assert found is not None
    assert (found.operation, found.where[:2]) == ("stablehlo.add", ("shard_map", "while"))


def test_results_lie_as_the_code_says(tmp_path: Path) -> None:
    """Also where neither arguments nor results were given a mesh, and none has the axes of the code's; and where the
    code of each device does nothing.
    """
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    nothing = jax.shard_map(lambda x: x, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)
    _, rows, found = trace(jaxexp.export(jax.jit(lambda x: nothing(x) + 1))(random(8)), random(8))
    assert {row.where for row in rows} == {()}
    assert found.numbers.shape[1] == len(rows)
    placed = NamedSharding(mesh, P("model", "data"))
    exported = saved(
        lambda x: jax.lax.with_sharding_constraint(x, placed) + 1, random(4, 8), path=tmp_path / "f.jaxexp"
    )
    assert exported.check().verdict == "equal"


def test_too_many_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    f32 = "tensor<f32>"
    functions = [f"func.func private @f0(%x: {f32}) -> {f32} {{ %r = stablehlo.sine %x : {f32}\n return %r : {f32} }}"]
    for i in range(1, 8):
        calls = [f"%{y} = call @f{i - 1}(%{x}) : ({f32}) -> {f32}" for x, y in ("xy", "yz")]
        functions.append(
            "\n".join([f"func.func private @f{i}(%x: {f32}) -> {f32} {{", *calls, f"return %z : {f32} }}"])
        )
    text = f"""module @m {{ {" ".join(functions)} func.func public @main(%x: tensor<f32>) -> tensor<f32> {{
        %r = call @f7(%x) : (tensor<f32>) -> tensor<f32>
        return %r : tensor<f32> }} }}"""
    exported = dataclasses.replace(jaxexp.export(jax.jit(jnp.sin))(np.float32(1)), mlir_module_serialized=text.encode())
    monkeypatch.setattr(tracing, "_MOST_ROWS", 100)
    with pytest.raises(jaxexp.errors.UnsupportedError, match="more than 100 operations"):
        Chain(exported).trace(0, [np.ones((), np.float32)])


def saved(function: Callable[..., Any], *args: Any, path: Path, **case: Any) -> jaxexp.Exported:
    jaxexp.export(jax.jit(function))(*args).save(path, cases=[{"args": args, "trace": True, **case}])
    return jaxexp.load(path)


def changed(exported: jaxexp.Exported, old: str, new: str) -> jaxexp.CheckReport:
    text = exported.mlir_module()
    assert old in text
    report = dataclasses.replace(exported, mlir_module_serialized=text.replace(old, new).encode()).check()
    assert jaxexp.CheckReport.from_json(json.loads(json.dumps(report.to_json(), allow_nan=False))) == report
    return report


def test_regions_may_use_constants(tmp_path: Path) -> None:
    exported = saved(jnp.sort, random(5), path=tmp_path / "f.jaxexp")
    (case,) = changed(exported, "LT, %", "GT, %").cases
    assert case.culprit is not None
    assert case.culprit.operation == "stablehlo.sort"


def smallest(x: Any) -> Any:
    return jax.lax.reduce_window(x, jnp.inf, jax.lax.min, (2, 2), (1, 2), "VALID")


SINGLE = {
    "dot_general": (lambda x: x @ x.T, random(3, 4)),
    "reduce": (lambda x: jnp.sum(x, 0), random(3, 4)),
    "reduce_window": (smallest, random(4, 6)),
    "sort": (jnp.sort, random(7)),
    "scatter": (lambda x: x.at[jnp.array([1, 1])].add(x[:2]), random(3, 4)),
    "convolution": (lambda x: jax.lax.conv(x, x, (1, 1), "SAME"), random(2, 2, 4, 4)),
    "fft": (lambda x: jnp.fft.rfft(x), random(8)),
    "complex": (lambda x: jax.lax.complex(x, x), random(3)),
    "exponential": (jnp.exp, random(5).astype(np.float16)),
    "clamp": (lambda x: jax.lax.clamp(-1.0, x, 1.0), random(3, 4)),
    "compare": (lambda x: x > 0.5, random(6)),
    "cholesky": (lambda x: jax.lax.linalg.cholesky(x @ x.T + 9 * jnp.eye(3)), random(3, 3)),
}


@pytest.mark.wide(one_in=6, promise="an operation makes the same in float64, but for rounding")
@pytest.mark.parametrize("kind", SINGLE)
def test_operations_in_float64(kind: str) -> None:
    function, x = SINGLE[kind]
    exported = jaxexp.export(jax.jit(function))(x)
    chain = Chain(exported)
    plain, here = chain.trace(0, [x])
    at = [row.at for row in plain.rows if row.operation == f"stablehlo.{kind}"][-1:]
    if not at:
        assert kind == "cholesky"  # which LAPACK does, in one precision
        (at,) = [row.at for row in plain.rows if row.operation == "stablehlo.custom_call"][:1]
        with pytest.raises(jaxexp.errors.UnsupportedError, match="custom_call in float64"):
            chain.trace(0, [x], at)
        return
    (row,) = [index for index, row in enumerate(plain.rows) if row.at == at[0]]
    traced, run = chain.trace(0, [x], at[0])
    wide = traced.rows[row + 1]
    assert wide.operation == tracing.EXACT
    assert wide.dtype == ("bool" if kind == "compare" else "complex128" if kind in ("fft", "complex") else "float64")
    named = culprit.Named(row, 0, culprit._culprit(plain.rows[row], ""))
    wrong = dataclasses.replace(here, numbers=here.numbers.copy())
    wrong.numbers[0, row, 2:4] = np.float32(30).view(np.uint32)
    for recorded, is_off in ((here, False), (wrong, True)):
        found = culprit.with_exact(named, traced, run, here, recorded)
        assert found.expected_error is not None
        assert found.found_error is not None
        assert found.found_error < (1e-3 if kind == "exponential" else 1e-6)
        assert (found.expected_error > 0.1) == is_off


def test_which_side_is_off(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda i, y: jnp.mean(y, axis=0) * y, x)

    exported = saved(function, random(4, 4), path=tmp_path / "f.jaxexp")
    (case,) = changed(exported, "across dimensions = [0]", "across dimensions = [1]").cases
    found, (result,) = case.culprit, case.results
    assert found is not None
    assert (found.operation, found.where[0]) == ("stablehlo.reduce", "while")
    assert found.expected_error is not None
    assert found.found_error is not None
    assert found.found_error < 1e-6 < 0.1 < found.expected_error
    assert "beside the same operation in float64, the recorded result is off by" in str(case.culprit)
    assert result.in_float64 is not None
    assert result.found is not None
    assert float(result.in_float64) == pytest.approx(float(result.found), rel=1e-5)
    assert f"found {result.found}, float64 gives {result.in_float64}" in str(result)


def test_what_later_trips_make(tmp_path: Path) -> None:
    """What differs only after the first trip is found in the loop, and what ends a loop is its condition."""

    def function(x: Any, n: Any, m: Any) -> Any:
        return jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.where(s[0] < m, s[1] * 2, s[1])), (0, x))

    exported = jaxexp.export(jax.jit(function))(random(3), 0, 0)
    chain = Chain(exported)
    x = random(3)
    runs = {
        args: chain.trace(0, [x, *(np.asarray(arg, np.int32) for arg in args)]) for args in ((5, 3), (5, 4), (4, 3))
    }
    traced, recorded = runs[5, 3]
    rows = traced.rows
    # These are other arguments, not other operations: what takes them is named.
    found = find(rows, runs[5, 4][1], recorded)
    assert (found.operation, found.run, found.runs) == ("stablehlo.compare", 4, 5)
    assert "in run 4 of 5" in str(found)
    assert found.where[-1] in ("while", "@_where")
    found = find(rows, runs[4, 3][1], recorded)
    assert "its condition ended it after 5 trips in the recorded run, 4 here" in str(found)


def test_why_no_operation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(4)
    exported = saved(jnp.sin, x, path=tmp_path / "f.jaxexp")
    (case,) = exported.cases
    assert case.trace is not None
    other = dataclasses.replace(case.results[0], _bytes=np.zeros(4, np.float32).tobytes())
    for trace, why in (
        (None, "unknown, because no trace was recorded: run 'record --trace'"),
        (case.trace, "no single one; the compiler"),
        (dataclasses.replace(case.trace, shape=(case.trace.nbytes // 4, 1)), "in another form: record it again"),
    ):
        wrong = dataclasses.replace(case, results=(other,), trace=trace)
        monkeypatch.setattr(Chain, "cases", lambda chain, wrong=wrong: (wrong,))
        report = exported.check()
        assert why in report.cases[0].unnamed
        assert report.cases[0].unnamed in str(report)


def test_what_differs_when_run_again_is_not_recorded() -> None:
    traced, one = Chain(jaxexp.export(jax.jit(jnp.sin))(random(4))).trace(0, [random(4)])
    other = dataclasses.replace(one, numbers=one.numbers.copy())
    other.numbers[0, 0, 3] ^= 1
    assert culprit.Comparison(traced.rows, other, one).first() is not None
    assert culprit.Comparison(traced.rows, other, one.where_as(other)).first() is None


def test_large_traces_are_in_the_file_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxexp._api.cases.files.MOST_INLINE", 64)
    exported = saved(jax.nn.softmax, random(2), path=tmp_path / "f.jaxexp")
    (case,) = exported.cases
    assert case.trace is not None
    assert case.trace.tensor == "0/trace"
    assert exported.check().ok
    jaxexp.verify(tmp_path / "f.jaxexp")


def as_compiled(here: culprit.Trace, recorded: culprit.Trace) -> culprit.Trace:
    """As if the module were the recorded one, and the compiler had made something else of it."""
    return dataclasses.replace(here, module=recorded.module, identities=recorded.identities)


def pair(x: Any) -> Any:
    return jnp.sin(x), jnp.cos(x)


def last(x: Any) -> Any:
    return jnp.exp(jnp.sin(x))


def repeat(body: Callable[..., Any], x: Any) -> Any:
    return jax.lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, *body(*s[1:])), (0, *x))[1:]


# What is changed, how, and which operation has to be named.
CHANGES = {
    "the last": (last, "stablehlo.exponential", "left out", "func.return"),
    "the last of a function": (lambda x: 2 * jax.jit(last)(x), "stablehlo.exponential", "left out", "func.return"),
    "the last of a loop": (
        lambda x: repeat(lambda y: [last(y)], [x]), "stablehlo.exponential", "left out", "stablehlo.while"
    ),
    "the last of a branch": (
        lambda x: jax.lax.cond(x[0] < 9, last, jnp.cos, x), "stablehlo.exponential", "left out", "stablehlo.case"
    ),
    "results": (pair, "func.return", "another order", "func.return"),
    "results of a function": (lambda x: jnp.subtract(*jax.jit(pair)(x)), "func.return", "another order", "func.return"),
    "results of a branch": (
        lambda x: jnp.subtract(*jax.lax.cond(x[0] < 9, pair, lambda x: (x, x), x)), "stablehlo.return", "another order",
        "stablehlo.case",
    ),
    "what a loop carries": (
        lambda x: repeat(lambda y, z: pair(y + z), [x, x]), "stablehlo.return", "another order", "stablehlo.while"
    ),
    "an argument of a function": (lambda x: jax.jit(pair)(jnp.tan(x)), "func.call", "another operand 0", "func.call"),
    "an operand": (lambda x: jnp.exp(x) * jnp.tan(x), "stablehlo.multiply", "another operand 0", "stablehlo.multiply"),
    "the start of a slice": (lambda x: x[:3] * 2, "stablehlo.slice", "other numbers", "stablehlo.slice"),
    "of bfloat16": (
        lambda x: (x.astype(BF16) / 3).astype(np.float32), "stablehlo.divide", "operands exchanged", "stablehlo.divide"
    ),
    "of float16": (
        lambda x: jnp.tanh(x.astype(np.float16)) * 2, "stablehlo.tanh", "logistic instead", "stablehlo.logistic"
    ),
    "a number of bfloat16": (
        lambda x: x.astype(BF16) * BF16(3), "stablehlo.constant", "another constant", "stablehlo.constant"
    ),
}  # fmt: skip


@pytest.mark.wide(one_in=3, promise="what was changed in a module is named, whatever kind of operation it is")
@pytest.mark.parametrize("name", CHANGES)
def test_what_was_changed_is_named(name: str, tmp_path: Path) -> None:
    function, operation, how, expected = CHANGES[name]
    exported = saved(function, random(4), path=tmp_path / "f.jaxexp")
    other, mutation = mutant(exported, operation, how)
    (case,) = other.check().cases
    assert case.culprit is not None
    assert (case.culprit.operation, mutation.names(case.culprit.at)) == (expected, "exact")
    assert next(case.lines()) == case.changed == "the module has changed since the recording"


# Code inside of operations that has no rows of its own.
INSIDE = {
    "what compares in a sort": (jnp.sort, "stablehlo.select", "the other choice"),
    "what ends a loop": (
        lambda x: jax.lax.while_loop(
            lambda s: s[0] < s[1], lambda s: (s[0] + 1, s[1], jnp.sin(s[2])), (jnp.float32(0), x[0] * 0 + 4, x)
        )[2],
        "stablehlo.compare",
        "another operand 0",
    ),
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_was_changed_inside_is_told(name: str, tmp_path: Path) -> None:
    """Even if the same operations are there, and only take other values."""
    function, operation, how = INSIDE[name]
    exported = saved(function, random(6), path=tmp_path / "f.jaxexp")
    other, mutation = mutant(exported, operation, how)
    (case,) = other.check().cases
    assert case.culprit is not None
    assert mutation.names(case.culprit.at) == "around"
    assert case.changed == "the module has changed since the recording"
    assert case.culprit.why.startswith("the module was changed here")


def mutant(exported: jaxexp.Exported, operation: str, how: str) -> tuple[jaxexp.Exported, Mutation]:
    every = mutations(bytes(exported.mlir_module_serialized))
    mutation = next(one for one in every if (one.operation, one.how) == (operation, how))
    return dataclasses.replace(exported, mlir_module_serialized=mutation.module), mutation


# Of loops whose states grow from below 0, something negative turns positive in a later trip; then -y is not |y|.
LATER = {
    "what it counts": lambda x: jax.lax.scan(lambda y, t: (jnp.tanh(y * 0.9 + -(t - 3)), ()), x, jnp.arange(7.0))[0],
    "what it carries": lambda x: repeat(lambda y: [y + 0.9 + 0.1 * -y], [x]),
    "in a branch": lambda x: repeat(lambda y: [jax.lax.cond(y[0] < 9, lambda y: y + 0.9 + 0.1 * -y, jnp.cos, y)], [x]),
    "a loop in a loop": lambda x: repeat(lambda y: repeat(lambda y: [y + 0.3 + 0.1 * -y], [y]), [x]),
    "what it exchanges": lambda x: repeat(lambda y, z: (z + 0.9 + 0.1 * -z, y), [x, x]),
}


@pytest.mark.wide(one_in=3, promise="a difference that begins in a later trip of a loop is named")
@pytest.mark.parametrize("name", LATER)
def test_what_begins_in_a_later_trip(name: str, tmp_path: Path) -> None:
    x = np.full(3, -1.2, np.float32)
    exported = jaxexp.export(jax.jit(LATER[name]))(x)
    _, rows, recorded = trace(exported, x)
    other, mutation = mutant(exported, "stablehlo.negate", "abs instead")
    _, changed, here = trace(other, x)
    for found in (find(changed, here, recorded), find(rows, as_compiled(here, recorded), recorded)):
        assert mutation.names(found.at) == "exact"
        assert 1 < found.run <= found.runs


@pytest.mark.wide(one_in=3, promise="rounding that a loop makes large is not named")
@pytest.mark.parametrize(
    "body", [lambda y: 3.9 * y * (1 - y), lambda y: jnp.cos(4 * y), lambda y: 4 * y * y * y - 3 * y]
)
def test_a_loop_that_rounds_otherwise(body: Callable[[Any], Any]) -> None:
    """Rounding that a loop before makes large is not what is named."""
    x = np.linspace(0.2, 0.7, 5, dtype=np.float32)
    exported = jaxexp.export(jax.jit(lambda x: jnp.sin(jax.lax.fori_loop(0, 6, lambda _, y: body(y), x))))(x)
    _, rows, recorded = trace(exported, x)
    _, _, here = trace(mutant(exported, "stablehlo.sine", "cosine instead")[0], x * np.float32(1 + 3e-5))
    found = find(rows, as_compiled(here, recorded), recorded)
    assert (found.operation, found.where) == ("stablehlo.sine", ())
    assert found.operands_error > 1e-4


@pytest.mark.parametrize("of_a_function", [True, False])
def test_a_loop_that_hands_over_another_value(of_a_function: bool) -> None:
    """Not one of the operations that take it is named, but what hands it over."""

    def body(y: Any, z: Any) -> Any:
        return jnp.sin(y) * 0.5 + jnp.cos(y), jnp.tanh(z) - jnp.exp(z)

    x = np.linspace(0.2, 0.7, 5, dtype=np.float32)
    function = lambda x: jnp.subtract(*repeat(jax.jit(body) if of_a_function else body, [x, x]))  # noqa: E731
    exported = jaxexp.export(jax.jit(function))(x)
    _, rows, recorded = trace(exported, x)
    changed, named = ("func.return",) * 2 if of_a_function else ("stablehlo.return", "stablehlo.while")
    other, mutation = mutant(exported, changed, "another order")
    found = find(rows, as_compiled(trace(other, x)[2], recorded), recorded)
    assert (found.operation, mutation.names(found.at)) == (named, "exact")
    assert found.why == "all 2 operations that take one of its results in the next trip make something else"


@pytest.mark.parametrize("trace", [True, False])
@pytest.mark.parametrize("tensor", ["w", "b"])
def test_other_weights_are_said_first(trace: bool, tensor: str, tmp_path: Path) -> None:
    weights = {"w": random(4, 4), "b": random(4)}
    file, x = tmp_path / "f.jaxexp", random(2, 4)
    exported = jaxexp.export(jax.jit(lambda x: x @ weights["w"] + weights["b"]), weights=weights)(x)
    exported.save(file, cases=[{"args": (x,), "trace": trace}])
    assert jaxexp.load(file).check().cases[0].changed == ""
    beside = tmp_path / "f.safetensors"
    beside.write_bytes(beside.read_bytes().replace(weights[tensor].tobytes(), (weights[tensor] + 1).tobytes()))
    report = jaxexp.load(file).check()
    (case,) = report.cases
    assert case.culprit is None
    assert next(case.lines()).startswith(
        f"the weights have changed since the recording: cannot read the weights '{beside}"
    )
    assert f"tensor '{tensor}'" in case.changed
    assert jaxexp.CheckReport.from_json(report.to_json()) == report


@pytest.mark.wide(one_in=3, promise="an operation without a line has that of what is around it")
@pytest.mark.parametrize(
    "function",
    [
        jax.jit(jnp.sin),
        lambda x: repeat(lambda y: [jnp.sin(y)], [x]),
        lambda x: jax.lax.cond(x[0] < 9, jnp.sin, jnp.cos, x),
    ],
)
def test_lines_come_from_what_is_around(function: Callable[..., Any]) -> None:
    exported = jaxexp.export(jax.jit(lambda x: function(x * 2)))(random(3))
    lines = exported.mlir_module().splitlines()
    for name in ("unknown", '"sin"'):
        text = "\n".join(re.sub("loc(.*)", f"loc({name})", one) if "stablehlo.sine" in one else one for one in lines)
        _, rows, _ = trace(dataclasses.replace(exported, mlir_module_serialized=text.encode()), random(3))
        (row,) = [row for row in rows if row.operation == "stablehlo.sine"]
        assert "test_traces.py:" in row.place
        assert row.place.startswith("sin, ") == (name != "unknown")


def examine(path: Path, one_in: int = 1, most: int | None = None) -> dict[str, list[str]]:
    """Which changes of a recorded model are named exactly, are those around what is named, or are missed: by the
    module, and as if the compiler had made them.
    """
    exported = jaxexp.load(path)
    (case,) = exported.cases
    args, expected = ([value.array() for value in values] for values in (case.arguments, case.results))
    recorded = culprit.Trace.of_case(case.trace)
    assert recorded is not None
    plain, here = Chain(exported).trace(0, args)
    np.testing.assert_array_equal(here.identities, recorded.identities)
    found: dict[str, list[str]] = {"exact": [], "around": [], "wrong": [], "compiled": [], "compiled wrong": []}
    for mutation in mutations(bytes(exported.mlir_module_serialized), one_in):
        chain = Chain(dataclasses.replace(exported, mlir_module_serialized=mutation.module))
        try:
            results, (traced, here) = chain.call(0, args), chain.trace(0, args)
        except jax.errors.JaxRuntimeError:  # such as a sum across devices that is a difference
            continue
        if different(expected, results):
            named = culprit.Comparison(traced.rows, here, recorded).first()
            how = "wrong" if named is None else mutation.names(named.culprit.at)
            found[how].append(f"{mutation}: {named}")
            if mutation.is_in_place and len(traced.rows) == len(plain.rows):
                named = culprit.Comparison(plain.rows, as_compiled(here, recorded), recorded).first()
                is_wrong = named is None or mutation.names(named.culprit.at) == "wrong"
                found["compiled wrong" if is_wrong else "compiled"].append(f"{mutation}: {named}")
        jax.clear_caches()  # compiled code takes places in memory, of which a process has only so many
        if most is not None and sum(map(len, list(found.values())[:3])) == most:
            break
    return found


def test_numbers_whose_squares_are_0(tmp_path: Path) -> None:
    exported = saved(lambda x: (x * 1e-30) + 2e-30, random(3), path=tmp_path / "f.jaxexp")
    (case,) = changed(exported, "stablehlo.multiply", "stablehlo.divide").cases
    assert case.culprit.operation == "stablehlo.divide"
    (case,) = changed(exported, "stablehlo.add", "stablehlo.subtract").cases
    assert case.culprit.operation == "stablehlo.subtract"


def test_a_changed_operation_is_named(tmp_path: Path) -> None:
    saved(*PERCEPTRON, path=tmp_path / "f.jaxexp")
    found = examine(tmp_path / "f.jaxexp", 8)
    assert found["exact"]
    assert found["compiled"]
    assert not found["wrong"] + found["compiled wrong"]


@pytest.fixture(scope="module")
def recorded_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models recorded with another optimization of the compiler."""
    folder = tmp_path_factory.mktemp("models")
    environment = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    subprocess.run([sys.executable, traced_models.__file__, folder], check=True, env=environment)
    return folder


@pytest.mark.long(
    promise="of an operation that was changed, a trace tells which one it is",
    sibling="test_traces.py::test_a_changed_operation_is_named",
    once=True,
)
@pytest.mark.processes(reason="another optimization of the compiler")
@pytest.mark.parametrize("name", traced_models.MODELS)
def test_changed_operations_are_named(name: str, recorded_elsewhere: Path) -> None:
    found = examine(recorded_elsewhere / f"{name}.jaxexp", most=25)
    changed, compiled = (
        sum(len(found[how]) for how in hows) for hows in (("exact", "around", "wrong"), ("compiled", "compiled wrong"))
    )
    assert changed > 15
    assert len(found["wrong"]) <= 0.05 * changed, found["wrong"]
    assert len(found["compiled wrong"]) <= 0.2 * compiled, found["compiled wrong"]


@pytest.mark.long(
    promise="of an operation of several devices that was changed, a trace tells which one it is",
    sibling="test_traces.py::test_code_of_each_device",
    once=True,
)
def test_changed_operations_of_devices_are_named(tmp_path: Path) -> None:
    saved(*SHARDED, path=tmp_path / "f.jaxexp")
    found = examine(tmp_path / "f.jaxexp", most=25)
    assert len(found["wrong"] + found["compiled wrong"]) <= 1
