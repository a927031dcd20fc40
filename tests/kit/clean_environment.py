"""Environments of Python that have some of the packages that are installed here, and no others."""

from __future__ import annotations

import importlib.metadata
import os
import sysconfig
import venv
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import jaxexp


def make(folder: Path, *distributions: str) -> Path:
    """Makes an environment with jaxexp, these distributions, and what they require. Returns its Python."""
    venv.create(folder, with_pip=False)
    variables = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", vars=variables))
    for distribution in _with_requirements(distributions):
        files = [file for file in distribution.files or () if ".." not in file.parts]
        _link((Path(str(distribution.locate_file(file))), site / file) for file in files)
    package = Path(jaxexp.__file__).parent  # which may be the checkout's
    _link((file, site / "jaxexp" / file.relative_to(package)) for file in package.rglob("*") if file.is_file())
    return Path(sysconfig.get_path("scripts", vars=variables)) / "python"


def _with_requirements(names: Iterable[str]) -> list[importlib.metadata.Distribution]:
    found: dict[str, importlib.metadata.Distribution] = {}
    open_names = list(names)
    while open_names:
        name = canonicalize_name(open_names.pop())
        if name in found:
            continue
        found[name] = importlib.metadata.distribution(name)
        for text in found[name].requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                open_names.append(requirement.name)
    return list(found.values())


def _link(files: Iterable[tuple[Path, Path]]) -> None:
    for source, target in files:
        if "__pycache__" not in source.parts and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(source, target)
