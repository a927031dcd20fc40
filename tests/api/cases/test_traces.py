"""Traces of runs: fingerprints of what operations make, and the first operation at which two runs part."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp._api.cases import culprit
from jaxexp._api.cases.calling import Chain
from jaxexp._readback.traced import fingerprint, rows, tracing
from kit.mutations import Mutation, different, mutations

pytestmark = pytest.mark.jax
SOURCE = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray[Any, Any]:
    return SOURCE.standard_normal(shape).astype(np.float32)


def trace(exported: jaxexp.Exported, *args: Any) -> tuple[list[Any], Any, culprit.Trace]:
    chain = Chain(exported)
    arguments = [np.asarray(leaf) for leaf in jax.tree.leaves(args)]
    traced, found = chain.trace(0, arguments)
    return chain.call(0, arguments), traced.rows, found


def find(of: Sequence[rows.Row], here: culprit.Trace, recorded: culprit.Trace) -> jaxexp.CheckReport.Culprit:
    named = culprit.find(of, here, recorded)
    assert named is not None
    assert of[named.row].at == named.culprit.at
    return named.culprit


def perceptron(w: Any, v: Any, x: Any) -> Any:
    return jax.nn.softmax(jnp.maximum(x @ w, 0) @ v)


def attention(q: Any, k: Any, v: Any, scale: Any) -> Any:
    scores = jnp.einsum("qhd,khd->hqk", q, k) / jnp.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    out = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), v).reshape(q.shape[0], -1)
    return (out - out.mean(-1, keepdims=True)) * jax.lax.rsqrt(out.var(-1, keepdims=True) + 1e-5) * scale


def transformer(embedding: Any, layers: Any, tokens: Any) -> Any:
    def normalized(x: Any, scale: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale

    x = embedding[tokens] + jnp.sin(jnp.arange(len(tokens))[:, None] / 10 ** jnp.linspace(0, 2, embedding.shape[1]))
    for layer in layers:
        q, k, v = (jnp.einsum("sd,dhe->she", normalized(x, layer["scale"]), layer[name]) for name in "qkv")
        x = x + attention(q, k, v, 1.0) @ layer["out"]
        x = x + jax.nn.gelu(normalized(x, layer["scale"]) @ layer["up"]) @ layer["down"]
    logits = x @ embedding.T
    return logits, -jnp.take_along_axis(jax.nn.log_softmax(logits)[:-1], tokens[1:, None], -1).mean()


def root(x: Any) -> Any:
    def step(state: Any) -> Any:
        i, y, _ = state
        z = y - 0.5 * (y * y - x) / jnp.maximum(y, 1e-3)
        return i + 1, z, jnp.max(jnp.abs(z - y))

    return jax.lax.while_loop(lambda s: (s[0] < 20) & (s[2] > 1e-5), step, (0, jnp.ones_like(x), jnp.float32(1)))


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


def _layer() -> dict[str, Any]:
    shapes = {"scale": (8,), "out": (8, 8), "up": (8, 12), "down": (12, 8)}
    return {name: random(*shape) for name, shape in (dict.fromkeys("qkv", (8, 2, 4)) | shapes).items()}


MODELS: dict[str, tuple[Callable[..., Any], ...]] = {
    "perceptron": (perceptron, random(6, 8), random(8, 5), random(3, 6)),
    "transformer": (transformer, random(10, 8), [_layer() for _ in range(2)], np.array([3, 1, 4, 1, 5, 9], np.int32)),
    "root": (root, np.abs(random(5)) + 1),
    "sharded": (sharded, random(6, 8), random(8, 3), random(8, 6)),
}


@pytest.mark.wide(one_in=5, promise="arrays that differ have fingerprints that differ, in each dtype")
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float64", "complex64", "int8", "int64", "uint32", "bool", "int4"]
)
def test_fingerprints_differ(dtype: str) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(SOURCE.integers(0, 2 if dtype in ("bool", "int4") else 50, 24)).astype(dtype).reshape(4, 6)
        print_of = jax.jit(lambda x: jnp.concatenate([part.ravel().astype(float) for part in fingerprint.of_arrays(x)]))
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
        if any("branch" in name for name in row.where) and row.shape == (3,) and row.operation != "stablehlo.constant"
    }
    runs = {name: [int(found.integers(half, row)[0]) for half in (0, 1)] for name, row in inside.items()}
    assert (runs["stablehlo.multiply"], runs["stablehlo.add"]) == ([1, 1], [1, 4])
    assert found.floats(0, inside["stablehlo.multiply"])[5] == 6  # (1 + 1 + 1) * 2 in its first run
    assert found.floats(1, inside["stablehlo.add"])[5] == 8


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
    assert (len(rows), {row.where for row in rows}) == (len(found.words), {()})
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
    with pytest.raises(jaxexp.UnsupportedError, match="more than 100 operations"):
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
        with pytest.raises(jaxexp.UnsupportedError, match="custom_call in float64"):
            chain.trace(0, [x], at)
        return
    (row,) = [index for index, row in enumerate(plain.rows) if row.at == at[0]]
    traced, run = chain.trace(0, [x], at[0])
    wide = traced.rows[row + 1]
    assert wide.operation == rows.EXACT
    assert wide.dtype == ("bool" if kind == "compare" else "complex128" if kind in ("fft", "complex") else "float64")
    named = culprit.Named(row, culprit._culprit(plain.rows[row], ""))
    wrong = here.words.copy()
    wrong[row, 3:5] = np.float32(3).view(np.uint32)
    for recorded, is_off in ((here, False), (culprit.Trace(wrong), True)):
        found = culprit.with_exact(named, traced, run, recorded)
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
    assert (found.operation, found.is_first_run, found.runs) == ("stablehlo.compare", False, 5)
    assert "after the first of 5 runs" in str(found)
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
        (None, "no trace was recorded; 'record --trace'"),
        (case.trace, "none, when each one is looked at"),
        (dataclasses.replace(case.trace, shape=(case.trace.nbytes // 4, 1)), "has a form that this release of jaxexp"),
    ):
        wrong = dataclasses.replace(case, results=(other,), trace=trace)
        monkeypatch.setattr("jaxexp._api.cases.recording._fitting", lambda chain, wrong=wrong: (wrong,))
        report = exported.check()
        assert why in report.cases[0].unnamed
        assert report.cases[0].unnamed in str(report)


def test_what_differs_when_run_again_is_not_recorded() -> None:
    traced, one = Chain(jaxexp.export(jax.jit(jnp.sin))(random(4))).trace(0, [random(4)])
    words = one.words.copy()
    words[0, 3] ^= 1
    other = culprit.Trace(words)
    assert culprit.find(traced.rows, other, one) is not None
    assert culprit.find(traced.rows, other, culprit.Trace(one.where_as(other))) is None


def test_large_traces_are_in_the_file_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxexp._api.cases.files.MOST_INLINE", 64)
    exported = saved(jax.nn.softmax, random(2), path=tmp_path / "f.jaxexp")
    (case,) = exported.cases
    assert case.trace is not None
    assert case.trace.tensor == "0/trace"
    assert exported.check().ok
    jaxexp.verify(tmp_path / "f.jaxexp")


def is_named(found: culprit.Named | None, mutation: Mutation) -> bool:
    """Whether the operation that was changed is named, or the one that it belongs to."""
    if found is None:
        return False
    name = found.culprit.operation
    around = [one for one in mutation.around if one != "sdy.manual_computation"]  # its operations are told apart
    inserted = name == "stablehlo.convert" and "bfloat16" in mutation.how
    return name in (mutation.operation, mutation.becomes, *around) or inserted


def examine(name: str, one_in: int) -> tuple[int, list[str]]:
    """How many changes of a model change its results, and those whose operation is not named."""
    function, *args = MODELS[name]
    exported = jaxexp.export(jax.jit(function))(*args)
    expected, rows, recorded = trace(exported, *args)
    assert culprit.find(rows, recorded, recorded) is None
    changed, missed = 0, []
    for mutation in mutations(bytes(exported.mlir_module_serialized), one_in):
        try:
            results, rows, here = trace(dataclasses.replace(exported, mlir_module_serialized=mutation.module), *args)
        except jax.errors.JaxRuntimeError as error:
            assert "UNIMPLEMENTED" in str(error)  # such as a sum across devices that is a difference
            continue
        if different(expected, results):
            changed += 1
            found = culprit.find(rows, here, recorded)
            if not is_named(found, mutation):
                missed.append(f"{mutation.operation}, {mutation.how}: {found}")
        jax.clear_caches()  # compiled code takes places in memory, of which a process has only so many
    return changed, missed


# How many changes of each model are tried, at least; and of which models only some are, because all take hours.
LEAST = {"perceptron": 11, "transformer": 40, "root": 20, "sharded": 25}
ONE_IN = {"transformer": 4}


def test_a_changed_operation_is_named() -> None:
    changed, missed = examine("perceptron", 11)
    assert changed > 0
    assert not missed


@pytest.mark.long(
    promise="of an operation that was changed, a trace tells which one it is",
    sibling="test_traces.py::test_a_changed_operation_is_named",
)
@pytest.mark.parametrize("name", MODELS)
def test_changed_operations_are_named(name: str) -> None:
    changed, missed = examine(name, ONE_IN.get(name, 1))
    assert changed >= LEAST[name]
    assert len(missed) <= 0.05 * changed, missed
