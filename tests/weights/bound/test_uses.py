"""What programs do with functions that have weights: copies, threads, `jax.vmap`, `install`."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp._errors import DeserializationError, ExportError
from kit.weighted import SIZE, X, apply, bound, close, closed, params, squared

BATCH = np.random.default_rng(2).standard_normal((2, 3, 4, SIZE)).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    bound()[0].save(tmp_path / "model.jaxexp", vjp_order=1)
    return tmp_path / "model.jaxexp"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies(path: Path, copied: Any) -> None:
    again = copied(jaxexp.load(path))
    close(again.call(X), apply(params(), X))
    close(jax.grad(squared(again.call))(X), jax.grad(squared(closed(params())))(X))
    assert list(again.weights) == list(jaxexp.load(path).weights)


def test_a_pickle_needs_no_files(path: Path) -> None:
    pickled = pickle.dumps(jaxexp.load(path))
    for file in path.parent.iterdir():
        file.unlink()
    close(pickle.loads(pickled).call(X), apply(params(), X))


def test_a_copy_of_an_exported_function() -> None:
    """As for any function that was exported here, and not loaded, pickling would need its VJPs."""
    model, given = bound()
    close(copy.copy(model).call(X), apply(given, X))
    with pytest.raises(jaxexp.ExportError, match=r"its VJPs are made when they are needed"):
        pickle.dumps(model)


def test_vmap(path: Path) -> None:
    model, given = jaxexp.load(path), params()
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


def test_threads_call_a_function_that_was_just_loaded(path: Path) -> None:
    model, results, barrier = jaxexp.load(path), [], threading.Barrier(8)

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


def test_threads_swap_weights(path: Path) -> None:
    model, wrong = jaxexp.load(path), []

    def use(seed: int) -> None:
        given = params(seed=seed)
        for _ in range(5):
            if not np.allclose(model.with_weights(given).call(X), apply(given, X), rtol=1e-3, atol=1e-4):
                wrong.append(seed)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))
    assert not wrong
    close(model.call(X), apply(params(), X))


def test_in_the_place_of_jax_export(path: Path) -> None:
    jaxexp.install()
    try:
        from jax import export

        given = params()
        exported: Any = export.export(jax.jit(closed(given)), weights=given)(X)  # type: ignore[call-arg]
        close(exported.call(X), apply(given, X))
        program: Any = export.deserialize(bytearray(path.read_bytes()))
        close(program.bind(path.with_suffix(".safetensors")).call(X), apply(given, X))
        plain: Any = export.export(jax.jit(closed(given)))(X)
        assert type(plain) is jaxexp.Exported
    finally:
        jaxexp.uninstall()


@pytest.mark.parametrize(
    "name", ["../w", "/etc/passwd", "w\0", "\x1b[31m", "w\nnone", " ", "ä/ö", "\u202e", "__proto__", "a" * 5000]
)
def test_names_are_only_names(name: str, tmp_path: Path) -> None:
    """Of weights, in pytrees and in files: none of them is a path."""
    given = {"tree": {name: np.eye(SIZE, dtype=np.float32)}}
    exported = jaxexp.export(jax.jit(lambda x: x @ given["tree"][name]), weights=given)(X)
    exported.save(tmp_path / "m.jaxexp", vjp_order=1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.jaxexp", "m.safetensors"]
    with jaxexp.Archive.create(tmp_path / "x.zip") as archive:
        archive.add("m", exported)
    for loaded in (jaxexp.load(tmp_path / "m.jaxexp"), jaxexp.Archive.open(tmp_path / "x.zip")["m"].load()):
        assert list(loaded.weights) == [f"tree/{name}"]
        close(loaded.call(X), X)


def test_names_that_no_file_can_hold(tmp_path: Path) -> None:
    for name in ("__metadata__", "\ud800"):
        given = {name: np.eye(SIZE, dtype=np.float32)}
        exported = jaxexp.export(jax.jit(lambda x, given=given, name=name: x @ given[name]), weights=given)(X)
        close(exported.call(X), X)
        with pytest.raises(ExportError, match=r"cannot be called|UTF-8|surrogate"):
            exported.save(tmp_path / "m.jaxexp")
        assert not list(tmp_path.iterdir())


def test_a_file_that_is_damaged_while_it_is_used(path: Path) -> None:
    """What was mapped stays what it is if the file is replaced; a new load finds what is there."""
    model = jaxexp.load(path)
    close(model.call(X), apply(params(), X))
    tensors = path.with_suffix(".safetensors")
    tensors.unlink()
    tensors.write_bytes(b"no tensors")
    close(model.call(X), apply(params(), X))
    with pytest.raises(DeserializationError, match=r"model\.safetensors"):
        jaxexp.load(path).call(X)
