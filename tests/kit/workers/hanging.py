"""A test that never ends, and a slow one after it: for the test of time limits, which names this file."""

import ctypes

import pytest

FOREVER = 100_000  # seconds


def test_keeps_the_gil() -> None:
    """No thread of Python runs any more, so none can end this."""
    ctypes.PyDLL(None).sleep(FOREVER)


@pytest.mark.long(promise="long tests have a limit of their own", sibling="hanging.py::test_keeps_the_gil")
def test_after_it(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("timeout").args == (3600,)
