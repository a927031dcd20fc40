"""Training that goes on in other processes, with a library and without it, from what one process wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxexp
from kit.places import WORKERS

STEPS = 3


def run(file: str, part: str, folder: Path, env: dict[str, str], missing: Sequence[str] = ()) -> None:
    """Runs a part of a story in a process of its own, where some modules are missing."""
    command = [sys.executable, str(WORKERS / "story.py"), file, part, str(folder), *missing]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{part}: {done.stderr[-6000:]}"


def assert_equal(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_array_equal(one, other)


def run_all(file: str, folder: Path, env: dict[str, str], missing: Sequence[str]) -> None:
    """One process writes; one goes on with the library, and one without."""
    run(file, "write", folder, env)
    run(file, "go_on", folder, env)
    run(file, "without", folder, env, missing)


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
