"""JAX's sparse arrays, whose shapes and flags are auxiliary data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit import stories

X = np.arange(9, dtype="f4").reshape(3, 3) % 2
KINDS = ("BCOO", "BCSR", "COO", "CSR")  # codespell:ignore coo


def matrices() -> dict[str, Any]:
    from jax.experimental import sparse

    return {kind: getattr(sparse, kind).fromdense(X) for kind in KINDS}


def training() -> tuple[Any, Any, Any]:
    def step(matrix: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda x: jnp.sum((matrix @ x - 1) ** 2))(x)
        return (matrix, x - 0.05 * gradient), loss

    return step, matrices()["BCOO"], jnp.zeros(3)


def write(folder: Path) -> None:
    stories.write_training(folder, *training())
    jaxexp.export(jax.jit(lambda d: (d, {kind: m.todense() for kind, m in d.items()})))(matrices()).save(folder / "all")


def go_on(folder: Path) -> None:
    _, matrix, x = training()
    after, _ = stories.go_on(folder, matrix, x)
    assert after.shape == (3, 3)
    np.testing.assert_array_equal(after.todense(), X)
    same, dense = jaxexp.load(folder / "all").call(matrices())
    for kind, matrix in same.items():
        assert type(matrix).__name__ == kind
        np.testing.assert_array_equal(matrix.todense(), X)
        np.testing.assert_array_equal(dense[kind], X)
    from jax.experimental import sparse

    with pytest.raises(jaxexp.ExportError):
        wider = sparse.BCOO((matrices()["BCOO"].data, matrices()["BCOO"].indices), shape=(3, 4))
        jaxexp.load(folder / "step.jaxexp").call(wider, x)


def without(folder: Path) -> None:
    after, _ = stories.go_on_without(folder)
    assert after._class_name == "jax.experimental.sparse.bcoo.BCOO"
    assert "'shape': (3, 3)" in after._static
    assert jax.tree.leaves(after)[0].shape == (4,)


@pytest.mark.sampled(one_in=0, reason="as test_equinox.py does with another library")
@pytest.mark.processes(reason="one writes, one goes on with jax.experimental.sparse, one without it")
def test_training_goes_on(tmp_path: Path, subprocess_env: Any) -> None:
    stories.run_all(__file__, tmp_path, subprocess_env(), ["jax.experimental.sparse"])
