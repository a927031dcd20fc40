"""Fixtures of the tests of the codec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jaxexp._kernel.codec import binding, treedefs


@pytest.fixture(params=["node list", "node by node"])
def way_of_trees(request: Any, monkeypatch: Any) -> Iterator[None]:
    """Tree structures go through their node list where its layout is known, and node by node where it is not."""
    assert treedefs.state_is_known
    monkeypatch.setattr(treedefs, "state_is_known", request.param == "node list")
    binding.bind.cache_clear()
    yield
    monkeypatch.undo()
    binding.bind.cache_clear()
    binding.bind()
