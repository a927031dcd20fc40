"""One call with what `make runtime` has built, where that and a plugin are at hand; the other tests here build it."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import jaxexp
from kit import native, runtime
from kit.places import ROOT

pytestmark = pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX")


def test_a_function_runs_without_python(tmp_path: Path) -> None:
    sources = [path for folder in ("cpp", "schema") for path in (ROOT / folder).rglob("*") if path.is_file()]
    if not runtime.RUN.exists() or runtime.RUN.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        pytest.skip("the C++ runtime is not built, or has changed since: make runtime")
    try:
        runtime.plugin()
    except native.UnavailableError as missing:
        pytest.skip(str(missing))
    exported = jaxexp.export(jax.jit(lambda x: {"twice": 2 * x}))(jax.ShapeDtypeStruct((3,), np.float32))
    (tmp_path / "f.jaxexp").write_bytes(exported.serialize(compatibility=runtime.READER))
    x = np.array([1, 2, 3], np.float32)
    found = runtime.results(tmp_path / "f.jaxexp", [x], {"result['twice']": "float32"})
    np.testing.assert_array_equal(found["result['twice']"], 2 * x)
