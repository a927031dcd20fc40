"""Processes in which JAX is not installed, as far as Python can see."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Mapping

import pytest

from . import native
from . import runtime as built

# Whoever looks for JAX on the path finds none.
_HIDE = """
import importlib.machinery
import sys

class _Hides:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib"):
            return None
        return importlib.machinery.PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = _Hides
"""
_CHECK = """
assert not {"jax", "jaxlib"} & {name.partition(".")[0] for name in sys.modules}
"""


def run(code: str, env: Mapping[str, str], *arguments: object) -> str:
    """What a program prints, which imports no JAX."""
    whole = _HIDE + textwrap.dedent(code) + _CHECK
    command = [sys.executable, "-c", whole, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(env), check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def skip_without_plugin() -> None:
    """Skips the module that calls it if there is no plugin for the CPU."""
    try:
        built.plugin()
    except native.UnavailableError as missing:
        pytest.skip(str(missing), allow_module_level=True)
