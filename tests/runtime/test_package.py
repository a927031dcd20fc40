"""What is installed, as a project uses it: the examples are built against it, and run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit import native, runtime
from kit.places import ROOT

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
]
EXAMPLE = ROOT / "cpp" / "example" / "run"


def run(*command: Any, **options: Any) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def programs(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example")
    options = ("-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_PREFIX_PATH={installed}")
    run(native.cmake(), "-S", EXAMPLE, "-B", folder, *options)
    run(native.cmake(), "--build", folder)
    return folder


def save(path: Path, function: Any, *specs: Any) -> Path:
    path.write_bytes(jaxexp.export(jax.jit(function))(*specs).serialize(compatibility=runtime.READER))
    return path


def test_a_training_loop_in_cpp(programs: Path, plugin: Path, tmp_path: Path) -> None:
    def loss(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((x @ weights - y) ** 2)

    def step(weights: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(weights, x, y)
        return weights - 0.3 * gradient, value

    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((2,), (4, 2), (4,))]
    artifact = save(tmp_path / "step.jaxexp", step, *shapes)
    said = run(programs / "train", plugin, artifact, 200).split()
    assert (float(said[1]), float(said[2].rstrip(","))) == pytest.approx((2, -1), abs=1e-3)
    assert float(said[4]) < 1e-6
    missing = subprocess.run([programs / "train", plugin, tmp_path / "no", "1"], capture_output=True, text=True)
    assert missing.returncode == 1
    assert missing.stderr.count(str(tmp_path / "no")) == 2


def test_a_call_from_c(programs: Path, plugin: Path, tmp_path: Path) -> None:
    spec = jax.ShapeDtypeStruct((2, 3), np.float32)
    artifact = save(tmp_path / "f.jaxexp", lambda x: (x.sum(), 2 * x[0]), spec)
    assert (
        run(programs / "predict", plugin, artifact, 2, 3) == "result[0]: float32[]: 6\nresult[1]: float32[3]: 2 2 2\n"
    )
    wrong = subprocess.run([programs / "predict", plugin, artifact, "2"], capture_output=True, text=True)
    assert wrong.returncode == 1
    assert wrong.stderr.endswith("args[0] is float32[2, 3], and not float32[2]\n")


def test_a_call_from_python_without_jax(installed: Path, plugin: Path, tmp_path: Path) -> None:
    spec = jax.ShapeDtypeStruct((2, 3), np.float32)
    artifact = save(tmp_path / "f.jaxexp", lambda x: 2 * x, spec)
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    library = next(installed.glob("lib*/libjaxexp-c.*"))
    run_it = "import runpy, sys; runpy.run_path(sys.argv[0], run_name='__main__'); assert 'jax' not in sys.modules"
    code = f"import sys; sys.argv = sys.argv[1:]; {run_it}"
    environment = {**os.environ, "PYTHONPATH": ""}
    files = (library, plugin, artifact, tmp_path / "x.npy")
    assert (
        run(sys.executable, "-c", code, EXAMPLE / "predict.py", *files, env=environment)
        == str(np.arange(0, 12, 2, dtype=np.float32).reshape(2, 3)) + "\n"
    )


def test_the_header_of_the_c_api_is_as_published() -> None:
    package = runtime.plugin_package()
    if package is None:
        pytest.skip("there is no PJRT plugin: install xla-cpu-pjrt, which is for Linux on x86-64")
    published = (package / "include" / "pjrt_c_api.h").read_bytes()
    assert (ROOT / "cpp" / "third_party" / "pjrt" / "pjrt_c_api.h").read_bytes() == published
