"""Functions in files, as tests of sessions, of the C++ runtime and of kept code need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

import jaxexp


def saved(place: Path, function: Any, *args: Any, reader: str | None = None, vjp_order: int = 0, **kwargs: Any) -> Path:
    """Exports a function, jitted or not, for such arguments. `place` is a file, or the folder of "f.jaxexp"."""
    path = place / "f.jaxexp" if place.is_dir() else place
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    jaxexp.export(jitted)(*args, **kwargs).save(path, vjp_order=vjp_order, compatibility=reader)
    return path
