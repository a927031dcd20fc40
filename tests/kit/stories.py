"""Training that goes on in other processes, with a library and without it, from what one process wrote.

`main` calls a function of a test file with the folder, where some modules cannot be imported, as if they were not
installed.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxexp

STEPS = 3


def assert_equal(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_array_equal(one, other)


def write_training(folder: Path, step: Callable[..., Any], *state: Any) -> None:
    """Exports a step, takes some, and saves where it has come to and which losses come next.

    A step takes a state, which may be several arguments, and returns the new state, as a tuple, and the loss.
    """
    jitted = jax.jit(step)
    jaxexp.export(jitted)(*state).save(folder / "step.jaxexp")
    state, _ = _steps(jitted, state)
    save_leaves(folder / "state.npz", state)
    _, losses = _steps(jitted, state)
    assert losses[-1] < losses[0]
    (folder / "losses.json").write_text(json.dumps(losses))


def _steps(step: Callable[..., Any], state: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[float]]:
    losses = []
    for _ in range(STEPS):
        state, loss = step(*state)
        losses.append(float(loss))
    return state, losses


def go_on(folder: Path, *state: Any) -> tuple[Any, ...]:
    """Goes on from what was saved, in the classes of `state`, and compares the losses. Returns the last state."""
    loaded = jaxexp.load(folder / "step.jaxexp")
    return _compare(folder, loaded, load_leaves(folder / "state.npz", jax.tree.structure(state)), state)


def go_on_without(folder: Path) -> tuple[Any, ...]:
    """The same in generic nodes, which the artifact describes. Returns the last state."""
    loaded = jaxexp.load(folder / "step.jaxexp")
    args, _ = loaded.in_tree.unflatten(range(loaded.in_tree.num_leaves))
    state = load_leaves(folder / "state.npz", jax.tree.structure(args))
    return _compare(folder, loaded, state, args)


def _compare(folder: Path, loaded: Any, state: tuple[Any, ...], like: tuple[Any, ...]) -> tuple[Any, ...]:
    state, losses = _steps(loaded.call, state)
    assert losses == json.loads((folder / "losses.json").read_text())
    assert jax.tree.structure(state) == jax.tree.structure(like)
    return state


def save_leaves(path: Path, tree: Any) -> None:
    np.savez(path, *[np.asarray(leaf) for leaf in jax.tree.leaves(tree)])


def load_leaves(path: Path, structure: Any) -> Any:
    with np.load(path) as arrays:
        return structure.unflatten([jax.numpy.asarray(array) for array in arrays.values()])


class _NotInstalled:
    """The first of the finders of modules: some are not there."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if any(name == missing or name.startswith(missing + ".") for missing in self.names):
            raise ModuleNotFoundError(f"No module named {name!r}, because the test says so", name=name)


def main(file: str, part: str, folder: str, *missing: str) -> None:
    assert not set(missing) & set(sys.modules)
    sys.meta_path.insert(0, _NotInstalled(list(missing)))  # type: ignore[arg-type]
    spec = importlib.util.spec_from_file_location("story", file)
    assert spec is not None and spec.loader is not None
    story = importlib.util.module_from_spec(spec)
    sys.modules["story"] = story
    spec.loader.exec_module(story)
    getattr(story, part)(Path(folder))
    assert not set(missing) & set(sys.modules)
