"""The pages on Python without JAX and on serving, in an environment that has no JAX."""

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

PAGES = [pages.DOCS / "guide" / f"{name}.md" for name in ("python_without_jax", "serving")]

without_jax.skip_without_plugin()
if not all(map(Path.exists, PAGES)):
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
    promise="where JAX is not installed, the pages on Python without JAX and on serving work as they are written",
    sibling="test_plugins.py::test_a_plugin_starts_once_in_a_process",
)
@pytest.mark.processes(reason="those that export, and those without JAX")
@pytest.mark.parametrize("page", PAGES, ids=pages.name_of)
def test_a_page_in_an_environment_without_jax(page: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="comes with the extra 'test'")
    needed = ("numpy", "ml_dtypes", "xla-cpu-pjrt", "fastapi", "httpx2", "model-signing", "pyopenssl")
    python = str(environment(tmp_path / "venv", *needed))
    folder = tmp_path / "page"
    folder.mkdir()
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(TESTS), str(folder)])}
    for name in ("jax", "jaxlib", "scipy"):
        assert subprocess.run([python, "-c", f"import {name}"], env=env, capture_output=True).returncode == 1
    parts = pages.processes(page)
    with_jax = [any("import jax\n" in block.code for block in part) for part in parts]
    assert with_jax[:2] == [True, False]
    for number in range(len(parts)):
        here = (sys.executable, pages.environment(folder)) if with_jax[number] else (python, env)
        pages.run_process(page, number, folder, *here)
