"""docs/guide/migrating.md, where TensorFlow is installed: SavedModels."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxexp
from kit.places import GOLDEN, ROOT

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("orbax", "tensorflow"))),
    reason="needs TensorFlow (2 GB): pip install --group orbax",
)
W, B = np.linspace(-1, 1, 12, dtype="f4").reshape(4, 3), np.ones(3, "f4")


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
