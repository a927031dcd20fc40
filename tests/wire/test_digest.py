"""The loops of XXH3: whichever the processor can run, the digest is the same."""

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
SOURCE = ROOT / "tests" / "cpp" / "digest.cpp"


@pytest.mark.skipif(COMPILER is None or not SOURCE.exists(), reason="there is no C++ compiler, or no checkout")
def test_all_loops_give_the_same_digests(tmp_path: Path) -> None:
    program = tmp_path / "digest"
    includes = [f"-I{ROOT / 'cpp'}", "-isystem", ROOT / "cpp" / "third_party" / "xxhash"]
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run([COMPILER, "-std=c++20", "-O1", *warnings, *includes, SOURCE, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    flags = Path("/proc/cpuinfo")
    if flags.exists() and " avx2 " in flags.read_text():
        assert done.stdout == "2\n"
