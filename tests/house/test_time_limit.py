"""A test that hangs fails with its stack, and the tests after it run. Slow ones have a limit of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from kit.places import ROOT, WORKERS

HANGING = WORKERS / "hanging.py"


@pytest.mark.once(reason="pytest is the same with every JAX")
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
