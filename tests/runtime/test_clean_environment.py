"""The page on Python without JAX, in an environment that has no JAX."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import jaxexp
from kit import documentation as pages
from kit import without_jax
from kit.places import TESTS

PAGE = pages.DOCS / "guide" / "python_without_jax.md"

without_jax.skip_without_plugin()
if not PAGE.exists():
    pytest.skip("the documentation is not beside the tests", allow_module_level=True)


def environment(folder: Path, *distributions: str) -> Path:
    """Makes an environment with jaxexp, these distributions, and what they require. Returns its Python."""
    venv.create(folder, with_pip=False)
    variables = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", vars=variables))
    found: dict[str, importlib.metadata.Distribution] = {}
    open_names = [*distributions]
    while open_names:
        name = canonicalize_name(open_names.pop())
        if name not in found:
            found[name] = importlib.metadata.distribution(name)
            requirements = map(Requirement, found[name].requires or ())
            open_names += [one.name for one in requirements if not one.marker or one.marker.evaluate({"extra": ""})]
    for distribution in found.values():
        files = [file for file in distribution.files or () if ".." not in file.parts]
        link((Path(str(distribution.locate_file(file))), site / file) for file in files)
    package = Path(jaxexp.__file__).parent  # which may be the checkout's
    link((file, site / "jaxexp" / file.relative_to(package)) for file in package.rglob("*"))
    return Path(sysconfig.get_path("scripts", vars=variables)) / "python"


def link(files: Iterable[tuple[Path, Path]]) -> None:
    for source, target in files:
        if "__pycache__" not in source.parts and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(source, target)


@pytest.mark.long(
    promise="where JAX is not installed, the page on Python without JAX works as it is written",
    sibling="test_plugins.py::test_a_plugin_starts_once_in_a_process",
)
@pytest.mark.processes(reason="one that exports, and servers")
def test_the_page_in_an_environment_without_jax(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="comes with the extra 'test'")
    python = str(environment(tmp_path / "venv", "numpy", "ml_dtypes", "xla-cpu-pjrt", "fastapi", "httpx2"))
    folder = tmp_path / "page"
    folder.mkdir()
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(TESTS), str(folder)])}
    for name in ("jax", "jaxlib", "scipy"):
        assert subprocess.run([python, "-c", f"import {name}"], env=env, capture_output=True).returncode == 1
    exporting, *others = range(len(pages.processes(PAGE)))
    pages.run_process(PAGE, exporting, folder, sys.executable, pages.environment(folder))
    assert others
    for number in others:
        pages.run_process(PAGE, number, folder, python, env)
