"""Prints the supported pairs of Python and JAX as outputs of a step in .github/workflows.

python tests/tools/pairs.py >> "$GITHUB_OUTPUT"
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.places import ROOT


def pairs() -> dict[str, str]:
    """The JAX that is tested on each Python; the newest pair is the last one."""
    found: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["jaxexp"]["pairs"]
    return found


def outputs() -> list[str]:
    """`pairs` is for the matrix of a job, `newest` is the newest Python."""
    matrix = [{"python": python, "jax": jax} for python, jax in pairs().items()]
    return [f"pairs={json.dumps(matrix)}", f"newest={list(pairs())[-1]}"]


if __name__ == "__main__":
    print(*outputs(), sep="\n")
