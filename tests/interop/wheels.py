"""Released versions of JAX from PyPI, each in a folder of its own, and programs that run with one of them."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# What a release needs beside jaxlib. Until 0.4.26 it was compiled for NumPy 1.
OLD_BASE = ("numpy==1.26.4", "scipy==1.11.4", "ml_dtypes==0.3.2", "opt_einsum", "flatbuffers", "absl-py")
BASE = ("numpy", "scipy", "ml_dtypes>=0.5", "opt_einsum", "flatbuffers", "absl-py")


def number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


@functools.cache
def pypi(project: str) -> dict[str, list[dict[str, Any]]]:
    """The files of each release of a project."""
    with urllib.request.urlopen(f"https://pypi.org/pypi/{project}/json", timeout=60) as answer:
        releases: dict[str, list[dict[str, Any]]] = json.load(answer)["releases"]
    return {release: files for release, files in releases.items() if files and re.fullmatch(r"[0-9.]+", release)}


def upload_date(project: str, release: str) -> str:
    return min(file["upload_time_iso_8601"] for file in pypi(project)[release])[:10]


def jaxlib_of(release: str) -> str:
    """The jaxlib that `pip install jax==release` takes: some releases of JAX came without one of their own."""
    return max((lib for lib in pypi("jaxlib") if number(lib) <= number(release)), key=number)


def python_of(release: str) -> str:
    """A Python that the release has wheels for."""
    return "3.11" if number(release) < (0, 11) else "3.13"


def parser(description: str) -> argparse.ArgumentParser:
    """The command line of a script that asks released wheels; `Wheels.chosen` takes what it parses."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", required=True, metavar="VERSION=PATH")
    parser.add_argument("--keep", type=Path, help="leave the wheels in this folder, and use what is there")
    parser.add_argument("releases", nargs="*")
    return parser


def exporters() -> list[str]:
    """Every release that has an exporter, oldest first."""
    return sorted((release for release in pypi("jax") if number(release) >= (0, 4, 22)), key=number)


class Wheels:
    """Installs releases under a folder.

    Args:
        folder: where they go.
        pythons: a Python interpreter for each of "3.11" and "3.13".
        are_kept: whether a release stays there when it is done.
    """

    def __init__(self, folder: Path, pythons: Mapping[str, str], *, are_kept: bool = True) -> None:
        self.folder, self.pythons, self.are_kept = folder, pythons, are_kept

    @classmethod
    @contextlib.contextmanager
    def chosen(cls, options: argparse.Namespace) -> Iterator[Wheels]:
        """Those that a command line asks for; without `--keep`, in a new folder that goes away."""
        with contextlib.ExitStack() as stack:
            folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(exist_ok=True)
            yield cls(folder, dict(entry.split("=", 1) for entry in options.python), are_kept=bool(options.keep))

    def done(self, release: str) -> None:
        if not self.are_kept:
            shutil.rmtree(self.folder / release)

    def _install(self, target: Path, python: str, *arguments: str) -> Path:
        if not target.exists():
            partial = target.with_name(f".{target.name}")
            pip = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--target", os.fspath(partial)]
            subprocess.run([*pip, *arguments], check=True)
            partial.rename(target)
        return target

    def environment(self, release: str) -> tuple[str, dict[str, str]]:
        """The Python of a release, and the environment variables with which it finds the release."""
        tag = python_of(release)
        python = self.pythons[tag]
        old = number(release) <= (0, 4, 26)
        base = self._install(self.folder / f"base-{tag}{'-old' if old else ''}", python, *(OLD_BASE if old else BASE))
        jaxlib = f"jaxlib=={jaxlib_of(release)}"
        wheels = self._install(self.folder / release, python, "--no-deps", f"jax=={release}", jaxlib)
        path = os.pathsep.join(map(os.fspath, (wheels, base)))
        return python, {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}

    def run(self, release: str, script: Path, *arguments: str) -> Any:
        """Runs a script with a release; returns the JSON that the script prints."""
        python, environment = self.environment(release)
        command = [python, "-P", os.fspath(script), *arguments]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
        return json.loads(done.stdout)
