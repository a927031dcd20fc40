"""docs/guide/migrating.md, where TensorFlow is installed: SavedModels, and the files of orbax-export."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit.places import GOLDEN, ROOT

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("orbax", "tensorflow"))),
    reason="needs TensorFlow (2 GB): pip install '.[orbax]'",
)
W, B = np.linspace(-1, 1, 12, dtype="f4").reshape(4, 3), np.ones(3, "f4")

ORBAX = """
import sys
import jax, jax.numpy as jnp, numpy as np
from orbax.export import JaxModule, utils

apply = lambda params, x: jnp.tanh(x @ params["w"] + params["b"])
params = {"w": np.ones((4, 3), "f4"), "b": np.ones(3, "f4")}
module = JaxModule(params, apply, input_polymorphic_shape="b, 4", jax2tf_kwargs={})
exported = module.obm_module_to_jax_exported_map(jax.ShapeDtypeStruct((2, 4), np.float32))
utils.save_jax_exported_map(sys.argv[1], exported, vjp_order=1)
"""


def run(code: str, folder: Path, env: dict[str, str], *args: str) -> None:
    done = subprocess.run([sys.executable, "-c", code, *args], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_saved_model(tmp_path: Path, subprocess_env) -> None:
    page = (ROOT / "docs/guide/migrating.md").read_text(encoding="utf-8")
    code = re.search(r"<!-- example: saved model -->\n<!-- not run: [^\n]*\n```python\n(.*?)```", page, re.DOTALL)
    assert code
    shutil.copytree(GOLDEN / "saved_model", tmp_path / "saved")
    run(code[1], tmp_path, subprocess_env(TF_CPP_MIN_LOG_LEVEL="3"))
    x = np.linspace(0, 1, 32, dtype="f4").reshape(8, 4)
    np.testing.assert_allclose(jaxexp.load(tmp_path / "model.jaxexp").call(x), np.tanh(x @ W + B), rtol=1e-5)


def test_files_of_orbax_export(tmp_path: Path, subprocess_env) -> None:
    run(ORBAX, tmp_path, subprocess_env(TF_CPP_MIN_LOG_LEVEL="3"), str(tmp_path / "saved"))
    (path,) = (tmp_path / "saved").glob("*.jax_exported")
    params, x = {"w": jnp.asarray(W), "b": jnp.asarray(B)}, np.ones((5, 4), "f4")
    loaded = jaxexp.load(path).bind(params)
    np.testing.assert_allclose(loaded.call(x), np.tanh(x @ W + B), rtol=1e-5)
    assert jax.grad(lambda x: loaded.call(x).sum())(x).shape == (5, 4)
