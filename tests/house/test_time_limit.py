"""A test that hangs fails with its stack, and the tests after it run. Slow ones have a limit of their own."""

from __future__ import annotations

import faulthandler
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import pytest_timeout

from kit.places import ROOT, WORKERS

HANGING = WORKERS / "hanging.py"


@pytest.mark.long(
    promise="a test that hangs is a failed one with a stack, and the tests after it run",
    sibling="test_time_limit.py::test_every_test_has_a_limit",
)
@pytest.mark.processes(reason="a run of pytest whose worker is lost")
@pytest.mark.skipif(sys.platform == "win32", reason="calls sleep of the C library")
def test_a_hang_is_a_failed_test_with_a_stack(tmp_path: Path, subprocess_env: Any) -> None:
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-o", "timeout=5", f"--junitxml={report}", str(HANGING)]
    done = subprocess.run(command, cwd=ROOT, env=subprocess_env(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    failed = {case.get("name"): case.findtext("error") for case in ElementTree.parse(report).iter("testcase")}
    crashed = "worker 'gw0' crashed while running 'tests/kit/workers/hanging.py::test_keeps_the_gil'"
    assert failed == {"test_keeps_the_gil": crashed, "test_after_it": None}
    assert "Timeout (0:00:05)!" in done.stderr
    assert re.search(rf'File "{re.escape(str(HANGING))}", line \d+ in test_keeps_the_gil\n', done.stderr)


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
