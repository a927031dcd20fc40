"""Five mistakes: type checkers have to find each one, and nothing else. Nobody runs this file."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp

import jaxexp


def mistakes(path: Path, exported: jaxexp.Exported) -> None:
    jaxexp.exprot(jnp.sin)  # mistake  # codespell:ignore exprot
    jaxexp.load(3)  # mistake
    exported.sarve(path)  # mistake
    jaxexp.Archive.create(path, share_modules="all")  # mistake
    jaxexp.load_many([path], on_error="return")[0].call(1.0)  # mistake: it may be an exception
