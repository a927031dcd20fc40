"""Custom calls: a plugin's compiler runs those that it has, and the others are named. None of them ends the process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit import runtime

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
    pytest.mark.usefixtures("plugin"),
]

X = np.array([[4, 1, 2], [1, 5, 3], [2, 3, 6]], np.float32)
LINEAR_ALGEBRA: dict[str, Callable[..., Any]] = {
    "cholesky": jnp.linalg.cholesky,
    "eigenvalues": jnp.linalg.eigvals,
    "eigenvalues of a symmetric matrix": jnp.linalg.eigvalsh,
    "householder_product": lambda x: jax.lax.linalg.householder_product(x, x[0]),
    "inverse": jnp.linalg.inv,
    "qr": lambda x: tuple(jnp.linalg.qr(x)),
    "schur": lambda x: tuple(jax.lax.linalg.schur(x)),
    "svd": lambda x: tuple(jnp.linalg.svd(x)),
    "triangular_solve": lambda x: jax.scipy.linalg.solve_triangular(x, x[0]),
    "tridiagonal": lambda x: tuple(jax.lax.linalg.tridiagonal(x)),
}


def save(folder: Path, function: Any, *platforms: str) -> Path:
    spec = jax.ShapeDtypeStruct(X.shape, X.dtype)
    exported = jaxexp.export(jax.jit(function), platforms=platforms)(spec)
    (folder / "f.jaxexp").write_bytes(exported.serialize(compatibility=runtime.READER))
    np.save(folder / "x.npy", X)
    return folder / "f.jaxexp"


@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_what_a_plugin_lacks_is_named(name: str, tmp_path: Path) -> None:
    artifact = save(tmp_path, LINEAR_ALGEBRA[name], "cpu")
    (calls,) = jaxexp.inspect(artifact).custom_calls
    done = runtime.run(artifact, tmp_path / "x.npy")
    assert done.returncode == 1
    assert "has custom calls that the plugin does not compile: lapack_" in done.stderr
    assert all(call in done.stderr for call in calls)
    assert len(done.stderr) < 1000
    inspected = subprocess.run([runtime.RUN, "--inspect", artifact], capture_output=True, text=True, check=True)
    assert f"custom calls: {' '.join(sorted(calls))}\n" in inspected.stdout


@pytest.mark.parametrize("platforms", [("cpu", "tpu"), ("tpu", "cpu"), ("cuda", "cpu")], ids="-".join)
@pytest.mark.parametrize("name", ["householder_product", "inverse", "triangular_solve"])
def test_several_platforms(name: str, platforms: tuple[str, ...], tmp_path: Path) -> None:
    """XLA's own calls for TPUs among them, such as those that it crashes on when they are asked for in another way."""
    artifact = save(tmp_path, LINEAR_ALGEBRA[name], *platforms)
    done = runtime.run(artifact, tmp_path / "x.npy")
    assert done.returncode == 1
    assert "has custom calls that the plugin does not compile: " in done.stderr
    assert "so export it for cpu only, if these are for others" in done.stderr


@pytest.mark.parametrize("platforms", [("cpu",), ("cpu", "tpu"), ("tpu", "cpu")], ids="-".join)
def test_calls_of_the_compiler_itself(platforms: tuple[str, ...], tmp_path: Path) -> None:
    artifact = save(tmp_path, lambda x: jax.lax.approx_max_k(x, 2)[0], *platforms)
    found = runtime.results(artifact, [X], {"result": "float32"})
    np.testing.assert_array_equal(found["result"], jax.lax.top_k(X, 2)[0])
