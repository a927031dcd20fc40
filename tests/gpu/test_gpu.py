"""On an accelerator, which most machines lack: CONTRIBUTING.md says how to run these tests. A CPU can stand for one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit import compare, without_jax

# The first of those that were asked for.
PLATFORM = os.environ.get("JAXEXP_TEST_PLATFORMS", "").partition(",")[0]
if not PLATFORM:
    pytest.skip("no accelerator was asked for", allow_module_level=True)
GPU, CPU = jax.devices(PLATFORM)[0], jax.devices("cpu")[0]
BOTH = list(dict.fromkeys(("cpu", PLATFORM)))

pytestmark = pytest.mark.jax

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
W = np.linspace(1, 2, 18, dtype=np.float32).reshape(6, 3)


@pytest.fixture(autouse=True)
def _on_the_gpu() -> Iterator[None]:
    with jax.default_device(GPU), jax.default_matmul_precision("highest"):
        yield


def predict(w: Any, x: Any) -> Any:
    return {"y": jnp.tanh(x @ w), "s": x.sum()}


def test_the_same_function_as_jax_export() -> None:
    ours, theirs = (
        library.export(jax.jit(predict), platforms=[PLATFORM])(
            W, jax.ShapeDtypeStruct(library.symbolic_shape("batch, 6"), np.float32)
        )
        for library in (jaxexp, jax_export)
    )
    compare.assert_same_chains(ours, theirs, 1, module=False)
    for exported in (ours, jaxexp.deserialize(theirs.serialize(vjp_order=1)), theirs):
        results = exported.call(W, X)
        assert all(leaf.devices() == {GPU} for leaf in jax.tree.leaves(results))
        compare.assert_same_values(results, jax.jit(predict)(W, X))
        gradient = jax.grad(lambda w, e=exported: e.call(w, X)["y"].sum())(W)
        compare.assert_same_values(gradient, jax.grad(lambda w: predict(w, X)["y"].sum())(W))
    many = jax.vmap(ours.call, (None, 0))(W, np.stack([X, 2 * X]))
    compare.assert_same_values(many, jax.vmap(predict, (None, 0))(W, np.stack([X, 2 * X])))


@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
def test_a_function_of_two_platforms(device: jax.Device) -> None:
    def which(x: Any) -> Any:
        return jax.lax.platform_dependent(x, **{"cpu": lambda x: x + 1, PLATFORM: lambda x: x + 2})

    exported = jaxexp.deserialize(jaxexp.export(jax.jit(which), platforms=BOTH)(X).serialize())
    x = jax.device_put(X, device)
    result = exported.call(x)
    assert result.devices() == {device}
    np.testing.assert_array_equal(result, X + (2 if device == GPU else 1))


def spd(a: Any) -> Any:
    return a @ a.T + jnp.eye(a.shape[0], dtype=a.dtype)


DECOMPOSITIONS: dict[str, Callable[[Any], Any]] = {
    "cholesky": lambda a: jnp.linalg.cholesky(spd(a)),
    "qr": lambda a: jnp.abs(jnp.linalg.qr(a)[1]),
    "eigh": lambda a: jnp.linalg.eigvalsh(spd(a)),
    "svd": lambda a: jnp.linalg.svd(a, compute_uv=False),
    "solve": lambda a: jnp.linalg.solve(spd(a), a[:, 0]),
    "fft": lambda a: jnp.abs(jnp.fft.fft(a)),
    "random": lambda a: a + jax.random.normal(jax.random.key(0), a.shape),
}


def test_libraries_of_the_gpu() -> None:
    """Functions that were exported where there may be no GPU, and that call cuSOLVER and its like there."""
    a = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
    for name, function in DECOMPOSITIONS.items():
        with jax.default_device(CPU):
            artifact = jaxexp.export(jax.jit(function), platforms=BOTH)(a).serialize()
        found = jaxexp.deserialize(artifact).call(jax.device_put(a, GPU))
        assert found.devices() == {GPU}, name
        compare.assert_same_values(found, jax.jit(function)(jax.device_put(a, GPU)), rtol=1e-4)


def test_donation() -> None:
    exported = jaxexp.deserialize(
        jaxexp.export(jax.jit(lambda x: x + 1, donate_argnums=0), platforms=[PLATFORM])(X).serialize()
    )
    x = jax.device_put(X, GPU)
    call = jax.jit(exported.call, donate_argnums=0)
    np.testing.assert_array_equal(call(x), X + 1)
    assert x.is_deleted()


def test_code_from_a_file_is_used_in_another_process(tmp_path: Path) -> None:
    path, exe = tmp_path / "f.jaxexp", tmp_path / "f.exe"
    jaxexp.export(jax.jit(predict), platforms=[PLATFORM])(W, X).save(path, vjp_order=1)
    loaded = jaxexp.load(path)
    loaded.precompile(into=exe)
    loaded.precompile(into=exe, vjp_order=1)
    code = """
        import sys, numpy as np, jax, jaxexp
        from jax import monitoring
        compiled = []
        monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
        path, exe, w, x, into = sys.argv[1:]
        model = jaxexp.load(path, executables=exe)
        w, x = np.load(w), np.load(x)
        y = model.call(w, x)
        gradient = jax.grad(lambda w, x: model.call(w, x)["y"].sum(), (0, 1))
        assert not any("backend_compile" in event for event in compiled), compiled
        assert all(one.used for one in model.executables), model.executables
        np.savez(into, y=y["y"], g=gradient(w, x)[0])
    """
    np.save(tmp_path / "w.npy", W)
    np.save(tmp_path / "x.npy", X)
    given = [path, exe, tmp_path / "w.npy", tmp_path / "x.npy", tmp_path / "out.npz"]
    run(code, *given, JAX_ENABLE_COMPILATION_CACHE="false")
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["y"], np.tanh(X @ W), rtol=1e-2, atol=1e-2)  # TF32 in that process


def run(code: str, *arguments: object, **env: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def test_a_session(tmp_path: Path) -> None:
    """Calls, results that stay on the GPU, sizes that are padded, and code for the next process."""
    x = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("batch, 6"), np.float32)
    path = tmp_path / "f.jaxexp"
    exported = jaxexp.export(jax.jit(lambda x: jnp.sin(x) * jnp.exp(-x)), platforms=[PLATFORM])(x)
    exported.save(path, sizes=[{"batch": 4}, {"batch": 8}], pad="batch")
    code = """
        import sys, numpy as np
        from jaxexp.runtime import Session
        path, exe, platform = sys.argv[1:]
        options = {"preallocate": False} if platform in ("cuda", "rocm") else None
        model = Session(path, plugin=platform, pad=True, only_sizes=True, options=options)
        assert model.platform == platform, model.platform
        for n in (1, 4, 5, 8):
            x = np.linspace(-1, 1, 6 * n, dtype=np.float32).reshape(n, 6)
            y = model(x)
            assert y.shape == (n, 6)
            np.testing.assert_allclose(y, np.sin(x) * np.exp(-x), rtol=1e-5, atol=1e-6)
        kept = model.on_device(x)
        np.testing.assert_array_equal(np.asarray(model.on_device(kept)), model(y))
        put = model.put(x)
        np.testing.assert_array_equal(model(put), y)
        model.save_executable(exe)
    """
    without_jax.run(code, os.environ, path, tmp_path / "f.exe", PLATFORM)
    code = """
        import sys, numpy as np
        from jaxexp.runtime import Session
        again = Session(sys.argv[1], plugin=sys.argv[3], executables=sys.argv[2])
        again(np.zeros((4, 6), np.float32))
        assert not again.why_compiled, again.why_compiled
    """
    without_jax.run(code, os.environ, path, tmp_path / "f.exe", PLATFORM)
