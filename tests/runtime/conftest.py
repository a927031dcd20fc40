"""All tests here build the runtime once, and need a plugin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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


@pytest.fixture
def call(library: Library) -> Callable[..., list[np.ndarray]]:
    """Calls a function with NumPy's arrays."""

    def call(function: Handle, *arguments: Any) -> list[np.ndarray]:
        given = [library.array(np.asarray(argument)) for argument in arguments]
        return [library.read(result) for result in library.call(function, *given)]

    return call
