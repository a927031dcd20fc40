"""Results of jax.numpy.linalg, which are namedtuples, and functions with their arguments (`Partial`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit import stories

X = np.array([[2, 1, 0], [1, 3, 1], [0, 1, 4]], "f4")
FUNCTIONS = ("eigh", "qr", "svd", "slogdet")


def decomposed(x: Any) -> Any:
    return {name: getattr(jnp.linalg, name)(x) for name in FUNCTIONS}


def training() -> tuple[Any, Any]:
    def step(eigh: Any) -> Any:
        """One step of making a matrix, which is given by its decomposition, one of unit determinant."""
        matrix = (eigh.eigenvectors * eigh.eigenvalues) @ eigh.eigenvectors.T
        loss, gradient = jax.value_and_grad(lambda m: jnp.linalg.slogdet(m).logabsdet ** 2)(matrix)
        return (jnp.linalg.eigh(matrix - 0.02 * gradient),), loss

    return step, jnp.linalg.eigh(X)


def scaled(scale: Any, x: Any) -> Any:
    return scale * x


def write(folder: Path) -> None:
    stories.write_training(folder, *training())
    jaxexp.export(jax.jit(decomposed))(X).save(folder / "decomposed")
    function = jax.tree_util.Partial(scaled, jnp.float32(3))
    jaxexp.export(jax.jit(lambda f, x: (f(x), f)))(function, X).save(folder / "partial")


def go_on(folder: Path) -> None:
    _, state = training()
    stories.go_on(folder, state)
    found, expected = jaxexp.load(folder / "decomposed").call(X), decomposed(X)
    assert {name: type(part) for name, part in found.items()} == {name: type(part) for name, part in expected.items()}
    stories.assert_equal(found, jax.jit(decomposed)(X))

    loaded = jaxexp.load(folder / "partial")
    result, function = loaded.call(jax.tree_util.Partial(scaled, jnp.float32(5)), X)
    np.testing.assert_array_equal(result, 5 * X)
    assert function.func is scaled
    assert function.args == (5,)
    with pytest.raises(jaxexp.ExportError, match=r"scaled in export and .*decomposed in the call"):
        loaded.call(jax.tree_util.Partial(decomposed, jnp.float32(5)), X)


def without(folder: Path) -> None:
    """Without jaxexp's registrations there is still jax.export, where jaxexp is only imported."""
    from jax import export as jax_export

    _, state = training()
    loaded = jax_export.deserialize(bytearray((folder / "step.jaxexp").read_bytes()))
    assert type(loaded).__module__.startswith("jax.")
    (found,), _ = loaded.call(state)
    assert type(found) is type(state)


@pytest.mark.sampled(one_in=0, reason="as test_equinox.py does with another library")
@pytest.mark.processes(reason="one writes, one goes on, one reads with jax.export")
def test_training_goes_on(tmp_path: Path, subprocess_env: Any) -> None:
    stories.run_all(__file__, tmp_path, subprocess_env(), [])
