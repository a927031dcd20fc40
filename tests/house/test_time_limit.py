"""Each test has a time limit, at which a thread without the GIL ends the process."""

from __future__ import annotations

import faulthandler
import os
from typing import Any

import pytest
import pytest_timeout


def test_every_test_has_a_limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that needs no GIL is asked to end the process, and told where the stacks go."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(
        faulthandler, "dump_traceback_later", lambda seconds, **how: asked.append({"s": seconds, **how})
    )
    settings = pytest_timeout.Settings(7.0, "signal", False, False)
    assert request.config.hook.pytest_timeout_set_timer(item=request.node, settings=settings)
    ((how),) = asked
    assert (how["s"], how["exit"]) == (7, True)
    assert os.fstat(how["file"])
    assert float(request.config.getini("timeout")) <= 600
