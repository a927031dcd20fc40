"""Three gigabytes of weights, in a process that may have no more memory than twice that."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bench.little_memory import MODES, PROGRAM, SIDE
from kit.command_line import started

LAYERS = 12


@pytest.mark.slow(reason="writes and reads three gigabytes")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory in this way")
def test_three_gigabytes(tmp_path: Path, subprocess_env: Any) -> None:
    env = {**subprocess_env(), "XLA_FLAGS": ""}
    path = tmp_path / "model.jaxexp"
    try:
        for mode, most in zip(MODES, (64, 150), strict=True):
            result = started(PROGRAM, mode, path, LAYERS, SIDE, env=env)
            assert result.returncode == 0, result.stderr
            assert int(result.stdout) < most, mode
        assert path.stat().st_size < 100_000
        assert path.with_suffix(".safetensors").stat().st_size < 1.01 * LAYERS * SIDE**2 * 4
    finally:
        path.with_suffix(".safetensors").unlink(missing_ok=True)
