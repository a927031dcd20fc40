"""The hash table of positions: no factor that a process draws makes it slow."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kit.places import ROOT

pytestmark = [
    pytest.mark.once(reason="a program in C++, built from its sources"),
    pytest.mark.slow(reason="builds a program"),
]

COMPILER = shutil.which("c++") or shutil.which("g++")
SOURCE = ROOT / "tests" / "cpp" / "flat_map.cpp"


@pytest.mark.skipif(COMPILER is None or not SOURCE.exists(), reason="there is no C++ compiler, or no checkout")
def test_keys_are_near_where_they_should_be(tmp_path: Path) -> None:
    program = tmp_path / "flat_map"
    subprocess.run([COMPILER, "-std=c++20", "-O1", f"-I{ROOT / 'cpp'}", SOURCE, "-o", program], check=True)
    done = subprocess.run([program, "10000"], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 6, "steps per key, with the worst of 10,000 factors"
