"""Linear algebra of old releases: their artifacts, and the equations that results have to satisfy."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import jax
import numpy as np

import jaxexp
from kit import goldens
from kit.places import GOLDEN

LAPACK = GOLDEN / "lapack"
ARTIFACTS = {
    f"{folder.name}/{name}": entry["custom_calls"]
    for folder in sorted(LAPACK.glob("jax-*"))
    for name, entry in json.loads((folder / "cases.json").read_text()).items()
}


def load(name: str) -> jaxexp.Exported:
    return jaxexp.deserialize((LAPACK / f"{name}.bin").read_bytes())


def stored(name: str) -> tuple[dict[str, Any], list[Any]]:
    """The arguments, and the results of the release that wrote the artifact."""
    leaves, results = (goldens.stored(LAPACK / f"{name}.npz", kind) for kind in ("in", "out"))
    return load(name).in_tree.unflatten(leaves)[0][0], results


def precision(name: str) -> Any:
    return jax.enable_x64(True) if name.endswith("_64") else contextlib.nullcontext()


def close(found: Any, expected: Any) -> None:
    tolerance = 1e-4 if np.asarray(found).dtype in (np.float32, np.complex64) else 1e-11
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
