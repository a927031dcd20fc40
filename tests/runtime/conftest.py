"""All tests here build the runtime once, and need a plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import native, runtime
from kit.places import ROOT


@pytest.fixture(scope="session")
def installed() -> Path:
    """Where the runtime is installed."""
    if not (ROOT / "cpp" / "runtime").exists():
        pytest.skip("this is no checkout, so there are no C++ sources")
    try:
        return runtime.build()
    except native.UnavailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def plugin(installed: Path) -> Path:
    try:
        return runtime.plugin()
    except native.UnavailableError as missing:
        pytest.skip(str(missing))
