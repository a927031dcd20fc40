"""Functions with weights under JAX's transformations, as what is called and as arguments; copies and threads."""

from __future__ import annotations

import copy
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp._weights.arrays import weights
from kit.archive_files import make
from kit.command_line import started
from kit.each import each
from kit.weighted import SIZE, X, apply, bound, close, closed, named, params, squared

pytestmark = pytest.mark.jax

# What a process lowers in which JAX makes inputs of what functions close over: its setting is read on import.
HOISTED = """
import sys
import jax, jaxexp
from kit.weighted import X, apply, close, params

model = jaxexp.load(sys.argv[1])
functions = {
    "jit": model.call,
    "grad": jax.grad(lambda x: model.call(x).sum()),
    "scan": lambda x: jax.lax.scan(lambda c, _: (c + model.call(x), None), model.call(x), None, length=3)[0],
}
for name, function in functions.items():
    lowered = jax.jit(function).lower(X).as_text()
    assert len(lowered) < 9_000 and "dense<\\"0x" not in lowered, name
close(jax.jit(model.call)(X), apply(params(), X))
close(jax.jit(functions["grad"])(X), jax.grad(lambda x: apply(params(), x).sum())(X))
given = params()
assert isinstance(jaxexp.export(jax.jit(lambda x: apply(given, x)), weights=given)(X), jaxexp.BoundExported)
"""


@pytest.mark.processes(reason="JAX reads the setting on import")
def test_jax_can_make_inputs_of_weights(tmp_path: Path, subprocess_env: Any) -> None:
    bound()[0].save(tmp_path / "model.jaxexp", vjp_order=1)
    env = {**subprocess_env(), "JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS": "1"}
    done = started(HOISTED, tmp_path / "model.jaxexp", env=env)
    assert done.returncode == 0, done.stderr


def test_it_is_a_pytree_of_its_weights() -> None:
    exported, given = bound()
    leaves, tree = jax.tree.flatten(exported)
    assert len(leaves) == 7
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(exported)]
    assert paths[0] == ".weights['head']"
    assert jax.tree.unflatten(tree, leaves) == exported
    doubled = jax.tree.map(lambda w: 2 * w, exported)
    close(doubled.call(X), apply(jax.tree.map(lambda w: 2 * w, given), X))
    assert jax.tree.leaves(exported.unbound) == [exported.unbound]  # a leaf, as in jax.export


def test_as_an_argument_its_weights_are_no_constants() -> None:
    exported, given = bound()
    lowered = jax.jit(lambda model, x: model.call(x)).lower(exported, X)
    assert len(lowered.as_text()) < 10_000
    assert "dense_resource" not in lowered.as_text()
    close(lowered.compile()(exported, X), apply(given, X))
    # One method as a function: the same.
    close(jax.jit(jaxexp.BoundExported.call)(exported, X), apply(given, X))
    # Closed over, they are constants, as all arrays are in JAX, unless it makes inputs of constants.
    text = jax.jit(exported.call).lower(X).as_text()
    if jax.config.jax_use_simplified_jaxpr_constants:
        assert text.count("{jax.const = true}") == 7
    else:
        assert len(text) > 7_000
    close(jax.jit(exported.call)(X), apply(given, X))


def test_compiled_once_for_all_weights() -> None:
    exported, _ = bound()
    traces = []

    @jax.jit
    def run(model: jaxexp.BoundExported, x: Any) -> Any:
        traces.append(1)
        return model.call(x)

    for seed in range(3):
        other = params(seed=seed)
        close(run(exported.with_weights(other), X), apply(other, X))
    assert len(traces) == 1


def test_derivatives_by_weights_are_what_they_are_without() -> None:
    exported, given = bound()

    def loss(model: Any) -> Any:
        return (model.call(X) ** 2).sum()

    value, gradient = jax.value_and_grad(loss)(exported)
    expected = jax.grad(lambda p: (apply(p, X) ** 2).sum())(given)
    assert isinstance(gradient, jaxexp.BoundExported)
    close(dict(gradient.weights), named(expected))
    step = jax.jit(lambda model: jax.tree.map(lambda w, g: w - 1e-3 * g, model, jax.grad(loss)(model)))
    assert loss(step(exported)) < value


def test_vmap_over_weights() -> None:
    exported, _ = bound()
    ensemble = [params(seed=seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *w: jnp.stack(w), *[exported.with_weights(p) for p in ensemble])
    found = jax.vmap(lambda model: model.call(X))(stacked)
    close(found, jnp.stack([apply(p, X) for p in ensemble]))


def test_inside_loops_and_checkpoints() -> None:
    exported, given = bound()

    def through(call: Any) -> Any:
        step = lambda carry, x: (carry * 0.5 + jax.checkpoint(call)(x).sum(), None)  # noqa: E731
        return lambda x: jax.lax.scan(step, 0.0, jnp.stack([x, 2 * x]))[0]

    close(jax.grad(through(exported.call))(X), jax.grad(through(closed(given)))(X))


def test_gradients_by_inputs_compute_no_gradients_by_weights() -> None:
    """Nor do other gradients by one of several arguments compute the others."""
    exported, _ = bound()
    program, names = exported.unbound, list(exported.weights)
    primals = [jnp.ones(a.shape, a.dtype) for a in program.in_avals]

    def total(*arguments: Any) -> Any:
        return program.call(dict(zip(names, arguments, strict=False)), arguments[-1]).sum()

    whole = jax.make_jaxpr(jax.grad(total, 7))(*primals)
    calls = [e for e in whole.eqns if e.primitive.name == "call_exported" and "results" in e.params]
    assert [e.params["results"] for e in calls] == [(7,)]
    assert len(calls[0].outvars) == 1


def test_derivatives_by_some_arguments() -> None:
    def f(a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
        return jnp.sin(a) * b, (c @ a).sum(), jnp.arange(3) + b.astype(int)

    args = tuple(np.random.default_rng(2).standard_normal((3, 3)).astype(np.float32) for _ in range(3))
    exported = jaxexp.deserialize(bytes(jaxexp.export(jax.jit(f))(*args).serialize(vjp_order=3)))
    total = lambda f: lambda *a: (f(*a)[0] * 2).sum() + f(*a)[1]  # noqa: E731
    close(jax.grad(total(exported.call), 1)(*args), jax.grad(total(f), 1)(*args))
    once = lambda f: jax.grad(total(f), (2, 0))  # noqa: E731
    close(jax.jit(once(exported.call))(*args), once(f)(*args))
    again = lambda f: jax.grad(lambda *a: sum((g**2).sum() for g in jax.tree.leaves(once(f)(*a))), 0)  # noqa: E731
    close(jax.jit(again(exported.call))(*args), jax.jit(again(f))(*args))
    tangent = lambda f: jax.jit(lambda *a: jax.jvp(lambda x: once(f)(x, *a[1:]), a[:1], a[1:2]))  # noqa: E731
    close(tangent(exported.call)(*args), tangent(f)(*args))
    stacked = [np.stack([a, 2 * a]) for a in args]
    close(jax.jit(jax.vmap(once(exported.call)))(*stacked), jax.jit(jax.vmap(once(f)))(*stacked))


def test_on_a_mesh(tmp_path: Path) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    other = Mesh(mesh.devices, ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    rows = NamedSharding(mesh, P("x", "y"))
    given = {"w": jax.device_put(np.eye(32, dtype=np.float32), rows), "b": X[0]}

    def function(p: Any, x: Any) -> Any:
        return x @ p["w"] + p["b"]

    exported = jaxexp.export(jax.jit(lambda x: function(given, x)), weights=given)(X)
    assert exported.nr_devices == 8
    close(exported.call(X), X + X[0])
    exported.save(tmp_path / "x.jaxexp", vjp_order=1)
    loaded = jaxexp.load(tmp_path / "x.jaxexp").with_mesh(other, axis_names={"x": "a", "y": "b"})
    assert loaded.weights["w"].sharding == NamedSharding(other, P("a", "b"))
    x = jax.device_put(X, NamedSharding(other, P()))
    close(loaded.call(x), X + X[0])
    close(jax.grad(squared(loaded.call))(x), jax.grad(squared(lambda x: x + X[0]))(X))


def test_read_back_it_takes_what_a_call_takes() -> None:
    exported, given = bound()
    read_back = exported.raised()
    close(read_back(X), apply(given, X))
    close(jaxexp.export(jax.jit(read_back), platforms=["cpu", "cuda"])(X).call(X), apply(given, X))
    for jaxpr in (exported.make_jaxpr(X), exported.make_jaxpr()):
        assert [aval.shape for aval in jaxpr.in_avals] == [w.shape for w in exported.weights.values()] + [X.shape]
    for use in (exported.make_jaxpr, read_back):
        with pytest.raises(jaxexp.errors.ExportError, match="expected tuple of length 1, found tuple of length 2"):
            use(exported.weights, X)


def test_precompile_and_the_jaxpr_read_no_weights(model_path: Path) -> None:
    model_path.with_suffix(".safetensors").unlink()
    loaded = jaxexp.load(model_path)
    loaded.precompile(into=model_path.with_suffix(".exe"))
    assert "tanh" in str(loaded.make_jaxpr(X))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A function with the weights `SMALL`, with a VJP. To be copied, if its files are changed."""
    path = tmp_path_factory.mktemp("saved") / "model.jaxexp"
    bound(1)[0].save(path, vjp_order=1)
    return path


@pytest.fixture
def model_path(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved.parent, tmp_path / "saved")) / saved.name


SMALL = params(1)


BATCH = np.random.default_rng(2).standard_normal((2, 3, 4, SIZE)).astype(np.float32)


@each("copied", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies(copied: Any, saved: Path, tmp_path: Path) -> None:
    """A pickle needs no files."""
    model_path = Path(shutil.copytree(saved.parent, tmp_path / "saved")) / saved.name
    names = list(jaxexp.load(model_path).weights)
    again = copied(jaxexp.load(model_path))
    if copied not in (copy.copy, copy.deepcopy):
        shutil.rmtree(model_path.parent)
    close(again.call(X), apply(SMALL, X))
    close(jax.grad(squared(again.call))(X), jax.grad(squared(closed(SMALL)))(X))
    assert list(again.weights) == names


def test_a_copy_of_an_exported_function() -> None:
    """As for any function that was exported here, and not loaded, pickling would need its VJPs."""
    model, given = bound()
    close(copy.copy(model).call(X), apply(given, X))
    with pytest.raises(jaxexp.errors.ExportError, match=r"its VJPs are made when they are needed"):
        pickle.dumps(model)


def test_vmap(saved: Path) -> None:
    model, given = jaxexp.load(saved), SMALL
    close(jax.jit(jax.vmap(model.call))(BATCH[0]), apply(given, BATCH[0]))
    twice = jax.vmap(jax.vmap(model.call))
    close(jax.jit(jax.grad(squared(twice)))(BATCH), jax.jit(jax.grad(squared(closed(given))))(BATCH))
    close(jax.jit(jax.vmap(lambda model, x: model.call(x), (None, 0)))(model, BATCH[0]), apply(given, BATCH[0]))


def test_threads_call_a_function_that_was_just_loaded(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each weight is read once."""
    monkeypatch.setattr(weights, "placed", read := Mock(side_effect=weights.placed))
    model, barrier = jaxexp.load(saved), threading.Barrier(8)

    def use(_: int) -> Any:
        barrier.wait()
        return model.call(X), jax.grad(squared(model.call))(X)

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(use, range(8)))
    assert read.call_count == len(model.weights)
    for value, gradient in results:
        close(value, apply(SMALL, X))
        close(gradient, jax.grad(squared(closed(SMALL)))(X))


def test_threads_swap_weights(saved: Path) -> None:
    model = jaxexp.load(saved)

    def use(seed: int) -> None:
        given = params(1, seed)
        for _ in range(5):
            np.testing.assert_allclose(model.with_weights(given).call(X), apply(given, X), rtol=1e-3, atol=1e-4)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))
    close(model.call(X), apply(SMALL, X))


def test_names_are_only_names(tmp_path: Path) -> None:
    """Of weights, in pytrees and in files: none of them is a model_path."""
    names = ["../w", "/etc/passwd", "w\0", "\x1b[31m", "w\nnone", " ", "ä/ö", "\u202e", "__proto__", "a" * 5000]
    given = {"tree": {name: np.full((SIZE, SIZE), i, np.float32) for i, name in enumerate(names)}}
    exported = jaxexp.export(jax.jit(lambda x: [x @ w for w in given["tree"].values()]), weights=given)(X)
    exported.save(tmp_path / "m.jaxexp", vjp_order=1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.jaxexp", "m.safetensors"]
    for loaded in (jaxexp.load(tmp_path / "m.jaxexp"), jaxexp.load(f"{make(tmp_path / 'x.zip', {'m': exported})}::m")):
        assert set(loaded.weights) == {f"tree/{name}" for name in names}
        close(loaded.call(X), [X @ w for w in given["tree"].values()])
