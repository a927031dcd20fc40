"""The page on Python without JAX, in an environment that has no JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit import clean_environment, without_jax
from kit import documentation as pages
from kit.places import TESTS

PAGE = pages.DOCS / "guide" / "python_without_jax.md"

without_jax.skip_without_plugin()
if not PAGE.exists():
    pytest.skip("the documentation is not beside the tests", allow_module_level=True)


@pytest.mark.slow(reason="makes an environment, in which a server answers a thousand requests")
def test_the_page_in_an_environment_without_jax(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="comes with the extra 'test'")
    python = str(clean_environment.make(tmp_path / "venv", "numpy", "ml_dtypes", "xla-cpu-pjrt", "fastapi", "httpx2"))
    folder = tmp_path / "page"
    folder.mkdir()
    first = pages.environment(folder)
    path = os.pathsep.join([str(TESTS), str(folder)])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": path}
    for name in ("jax", "jaxlib", "scipy"):
        assert subprocess.run([python, "-c", f"import {name}"], env=env, capture_output=True).returncode == 1
    exporting, *others = range(len(pages.processes(PAGE)))
    pages.run_process(PAGE, exporting, folder, sys.executable, first)
    assert others
    for number in others:
        pages.run_process(PAGE, number, folder, python, env)
