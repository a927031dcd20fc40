"""All tests here build the runtime once, and need a plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import native
from kit import runtime as built
from kit.places import ROOT
from kit.run_c import Handle, Library


@pytest.fixture(scope="session")
def installed() -> Path:
    """Where the runtime is installed."""
    if not (ROOT / "cpp" / "runtime").exists():
        pytest.skip("this is no checkout, so there are no C++ sources")
    try:
        return built.build()
    except native.UnavailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def plugin(installed: Path) -> Path:
    try:
        return built.plugin()
    except native.UnavailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def library(installed: Path) -> Library:
    return Library(next(installed.glob("lib*/libjaxexp-c.*")))


@pytest.fixture(scope="module")
def runtime(library: Library, plugin: Path) -> Handle:
    return library.runtime(plugin, cpu_device_count=4)
