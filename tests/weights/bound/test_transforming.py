"""Functions with weights under JAX's transformations, as what is called and as arguments; copies and threads."""

from __future__ import annotations

import copy
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp._errors import DeserializationError, ExportError
from jaxexp._kernel.call.primitive import call
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
    "jit in jit": lambda x: jax.jit(model.call)(x) + 1,
    "grad": jax.grad(lambda x: model.call(x).sum()),
    "vmap": lambda x: jax.vmap(model.call)(x[None]),
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
    """Then `jax.jit(model.call)` has no weights in what it lowers."""
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
    close(jax.vmap(exported.call)(X[None]), apply(params(), X)[None])


def test_inside_loops_and_checkpoints() -> None:
    exported, given = bound()

    def through(call: Any) -> Any:
        step = lambda carry, x: (carry * 0.5 + jax.checkpoint(call)(x).sum(), None)  # noqa: E731
        return lambda x: jax.lax.scan(step, 0.0, jnp.stack([x, 2 * x]))[0]

    close(jax.grad(through(exported.call))(X), jax.grad(through(closed(given)))(X))


def products(compiled: Any) -> int:
    """How many matrix products a compiled function does."""
    return len(re.findall(r"= \S+ dot\(|__onednn\$matmul|custom_call_target=\"__cublas", compiled.as_text()))


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
    everything = jax.jit(lambda *a: program.vjp().call(*a)).lower(*primals, jnp.ones((4, 8))).compile()
    only_x = jax.jit(lambda *a: call(a, program.vjp(), [7])).lower(*primals, jnp.ones((4, 8))).compile()
    assert products(only_x) < products(everything)


@each("argnums", [1, (2, 0)])
def test_derivatives_by_some_arguments(argnums: Any) -> None:
    def f(a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
        return jnp.sin(a) * b, (c @ a).sum(), jnp.arange(3) + b.astype(int)

    args = tuple(np.random.default_rng(2).standard_normal((3, 3)).astype(np.float32) for _ in range(3))
    exported = jaxexp.deserialize(bytes(jaxexp.export(jax.jit(f))(*args).serialize(vjp_order=3)))
    total = lambda f: lambda *a: (f(*a)[0] * 2).sum() + f(*a)[1]  # noqa: E731
    once = lambda f: jax.grad(total(f), argnums)  # noqa: E731
    close(once(exported.call)(*args), once(f)(*args))
    close(jax.jit(once(exported.call))(*args), once(f)(*args))
    again = lambda f: jax.grad(lambda *a: sum((g**2).sum() for g in jax.tree.leaves(once(f)(*a))), 0)  # noqa: E731
    close(again(exported.call)(*args), again(f)(*args))
    tangent = lambda f: jax.jvp(lambda a: once(f)(a, *args[1:]), args[:1], args[1:2])  # noqa: E731
    close(tangent(exported.call), tangent(f))
    stacked = [np.stack([a, 2 * a]) for a in args]
    close(jax.vmap(once(exported.call))(*stacked), jax.vmap(once(f))(*stacked))


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


def test_prefetch_reads_no_weights(tmp_path: Path) -> None:
    exported, given = bound()
    exported.save(tmp_path / "x.jaxexp")
    loaded = jaxexp.load(tmp_path / "x.jaxexp")
    (tmp_path / "x.safetensors").rename(tmp_path / "elsewhere")
    jaxexp.prefetch([loaded])
    (tmp_path / "elsewhere").rename(tmp_path / "x.safetensors")
    with jax.log_compiles(False):
        close(loaded.call(X), apply(given, X))


def test_read_back_it_takes_what_a_call_takes() -> None:
    exported, given = bound()
    read_back = exported.raised()
    close(read_back(X), apply(given, X))
    close(jaxexp.export(jax.jit(read_back), platforms=["cpu", "cuda"])(X).call(X), apply(given, X))
    for jaxpr in (exported.make_jaxpr(X), exported.make_jaxpr()):
        assert [aval.shape for aval in jaxpr.in_avals] == [w.shape for w in exported.weights.values()] + [X.shape]
    for wrong in (exported.make_jaxpr, read_back):
        with pytest.raises(jaxexp.ExportError, match="expected tuple of length 1, found tuple of length 2"):
            wrong(exported.weights, X)


def test_the_jaxpr_reads_no_weights(tmp_path: Path) -> None:
    exported, _ = bound()
    exported.save(tmp_path / "model.jaxexp", vjp_order=1)
    (tmp_path / "model.safetensors").unlink()
    assert "tanh" in str(jaxexp.load(tmp_path / "model.jaxexp").make_jaxpr(X))


FIRST_USES = {
    "jit": lambda model: jax.jit(lambda x: model.call(x))(X),
    "jit itself": lambda model: jax.jit(model.call)(X),
    "scan": lambda model: jax.lax.scan(lambda c, _: (c, model.call(X)), 0.0, None, length=2),
    "grad": lambda model: jax.jit(jax.grad(lambda x: model.call(x).sum()))(X),
    "vmap": lambda model: jax.vmap(model.call)(jnp.stack([X, X])),
    "shapes": lambda model: jax.eval_shape(model.call, X),
    "export": lambda model: jaxexp.export(jax.jit(lambda x: model.call(x) + 1))(X),
    "one weight": lambda model: jax.jit(lambda: next(iter(model.weights.values())) + 1)(),
}
SOURCES = {
    "load": lambda exported, path: jaxexp.load(path),
    "bind a file": lambda exported, path: exported.unbound.bind(path.with_suffix(".safetensors")),
    "bind NumPy arrays": lambda exported, path: exported.unbound.bind(
        {name: np.asarray(array) for name, array in exported.weights.items()}
    ),
    "another file": lambda exported, path: jaxexp.load(path).with_weights(path.with_suffix(".safetensors")),
    "on a mesh": lambda exported, path: jaxexp.load(path).with_mesh(jax.make_mesh((1,), ("a",))),
}


PAIRS = [(s, u) for i, s in enumerate(SOURCES) for j, u in enumerate(FIRST_USES) if i == 0 or (i + j) % 3 == 0]


@each("source, use", PAIRS)
def test_the_first_use_may_be_traced(source: str, use: str, tmp_path: Path) -> None:
    """What is kept for later uses are arrays, not what stands for them in one trace."""
    exported, given = bound()
    exported.save(tmp_path / "model.jaxexp", vjp_order=1)
    model = SOURCES[source](exported, tmp_path / "model.jaxexp")
    FIRST_USES[use](model)
    close(model.call(X), apply(given, X))
    assert not any(isinstance(array, jax.core.Tracer) for array in model.weights.values())


BATCH = np.random.default_rng(2).standard_normal((2, 3, 4, SIZE)).astype(np.float32)


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    bound()[0].save(tmp_path / "model.jaxexp", vjp_order=1)
    return tmp_path / "model.jaxexp"


@each("copied", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies(tmp_path: Path, copied: Any) -> None:
    """A pickle needs no files."""
    model_path = tmp_path / "model.jaxexp"
    bound()[0].save(model_path, vjp_order=1)
    names = list(jaxexp.load(model_path).weights)
    again = copied(jaxexp.load(model_path))
    if copied not in (copy.copy, copy.deepcopy):
        model_path.unlink()
        model_path.with_suffix(".safetensors").unlink()
    close(again.call(X), apply(params(), X))
    close(jax.grad(squared(again.call))(X), jax.grad(squared(closed(params())))(X))
    assert list(again.weights) == names


def test_a_copy_of_an_exported_function() -> None:
    """As for any function that was exported here, and not loaded, pickling would need its VJPs."""
    model, given = bound()
    close(copy.copy(model).call(X), apply(given, X))
    with pytest.raises(jaxexp.ExportError, match=r"its VJPs are made when they are needed"):
        pickle.dumps(model)


def test_vmap(model_path: Path) -> None:
    model, given = jaxexp.load(model_path), params()
    once, twice = jax.vmap(model.call), jax.vmap(jax.vmap(model.call))
    for mapped, batch in ((once, BATCH[0]), (twice, BATCH)):
        close(mapped(batch), apply(given, batch))
        close(jax.jit(mapped)(batch), apply(given, batch))
        close(jax.grad(squared(mapped))(batch), jax.grad(squared(closed(given)))(batch))
    per_example = jax.vmap(jax.grad(squared(model.call)))
    close(per_example(BATCH[0]), jax.vmap(jax.grad(squared(closed(given))))(BATCH[0]))
    close(jax.jit(jax.vmap(lambda model, x: model.call(x), (None, 0)))(model, BATCH[0]), apply(given, BATCH[0]))
    across = jax.vmap(model.call, in_axes=1, out_axes=1)(np.moveaxis(BATCH[0], 0, 1))
    close(np.moveaxis(np.asarray(across), 1, 0), apply(given, BATCH[0]))


def test_threads_call_a_function_that_was_just_loaded(model_path: Path) -> None:
    model, results, barrier = jaxexp.load(model_path), [], threading.Barrier(8)

    def use() -> None:
        barrier.wait()
        results.append((model.call(X), jax.grad(squared(model.call))(X)))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for value, gradient in results:
        close(value, apply(params(), X))
        close(gradient, jax.grad(squared(closed(params())))(X))


def test_threads_swap_weights(model_path: Path) -> None:
    model, wrong = jaxexp.load(model_path), []

    def use(seed: int) -> None:
        given = params(seed=seed)
        for _ in range(5):
            if not np.allclose(model.with_weights(given).call(X), apply(given, X), rtol=1e-3, atol=1e-4):
                wrong.append(seed)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))
    assert not wrong
    close(model.call(X), apply(params(), X))


def test_in_the_place_of_jax_export(model_path: Path) -> None:
    jaxexp.install()
    try:
        from jax import export

        given = params()
        exported: Any = export.export(jax.jit(closed(given)), weights=given)(X)  # type: ignore[call-arg]
        close(exported.call(X), apply(given, X))
        program: Any = export.deserialize(bytearray(model_path.read_bytes()))
        close(program.bind(model_path.with_suffix(".safetensors")).call(X), apply(given, X))
        plain: Any = export.export(jax.jit(closed(given)))(X)
        assert type(plain) is jaxexp.Exported
    finally:
        jaxexp.uninstall()


def test_names_are_only_names(tmp_path: Path) -> None:
    """Of weights, in pytrees and in files: none of them is a model_path."""
    names = ["../w", "/etc/passwd", "w\0", "\x1b[31m", "w\nnone", " ", "ä/ö", "\u202e", "__proto__", "a" * 5000]
    given = {"tree": {name: np.full((SIZE, SIZE), i, np.float32) for i, name in enumerate(names)}}
    exported = jaxexp.export(jax.jit(lambda x: [x @ w for w in given["tree"].values()]), weights=given)(X)
    exported.save(tmp_path / "m.jaxexp", vjp_order=1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.jaxexp", "m.safetensors"]
    with jaxexp.Archive.create(tmp_path / "x.zip") as archive:
        archive.add("m", exported)
    for loaded in (jaxexp.load(tmp_path / "m.jaxexp"), jaxexp.Archive.open(tmp_path / "x.zip")["m"].load()):
        assert set(loaded.weights) == {f"tree/{name}" for name in names}
        close(loaded.call(X), [X @ w for w in given["tree"].values()])


def test_names_that_no_file_can_hold(tmp_path: Path) -> None:
    for name in ("__metadata__", "\ud800"):
        given = {name: np.eye(SIZE, dtype=np.float32)}
        exported = jaxexp.export(jax.jit(lambda x, given=given, name=name: x @ given[name]), weights=given)(X)
        close(exported.call(X), X)
        with pytest.raises(ExportError, match=r"cannot be called|UTF-8|surrogate"):
            exported.save(tmp_path / "m.jaxexp")
        assert not list(tmp_path.iterdir())


def test_a_file_that_is_damaged_while_it_is_used(model_path: Path) -> None:
    """What was mapped stays what it is if the file is replaced; a new load finds what is there."""
    model = jaxexp.load(model_path)
    close(model.call(X), apply(params(), X))
    tensors = model_path.with_suffix(".safetensors")
    tensors.unlink()
    tensors.write_bytes(b"no tensors")
    close(model.call(X), apply(params(), X))
    with pytest.raises(DeserializationError, match=r"model\.safetensors"):
        jaxexp.load(model_path).call(X)
