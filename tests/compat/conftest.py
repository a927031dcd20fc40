"""Tests of this room leave jax.export as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.installed import everything


@pytest.fixture(autouse=True)
def no_trace() -> Iterator[None]:
    """No test may leave jax.export other than it was."""
    before = everything()
    yield
    assert everything() == before
