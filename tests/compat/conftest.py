"""Tests of this room leave jax.export as it was. Most parse text here, and not in a process for that."""

from __future__ import annotations

import subprocess
import types
from collections.abc import Iterator

import pytest

from jaxexp._compat.foreign import source
from kit.installed import everything
from kit.producers import parsed_here


@pytest.fixture(autouse=True)
def no_trace() -> Iterator[None]:
    before = everything()
    yield
    assert everything() == before


@pytest.fixture(autouse=True)
def parsing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.get_closest_marker("processes"):
        stand_in = types.SimpleNamespace(run=parsed_here, TimeoutExpired=subprocess.TimeoutExpired)
        monkeypatch.setattr(source, "subprocess", stand_in)
