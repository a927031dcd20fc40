"""The unit tests of tests/cpp/unit, which ctest runs; and what the sanitizers see, and have seen."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kit import native
from kit.places import TESTS
from tools import sanitize


@pytest.mark.cpp
def test_unit_tests(programs: Path) -> None:
    ctest = Path(native.cmake()).with_name("ctest")
    command = [ctest, "--test-dir", programs, "--output-on-failure"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "100% tests passed" in done.stdout


def test_sanitizers_run_again_for_other_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("cpp/a.cpp", "int a;"), ("cpp/b.cpp", "int b;"), ("tests/other.py", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(sanitize, "ROOT", tmp_path)
    monkeypatch.setattr(sanitize, "PASSED", tmp_path / "sanitized")
    assert not sanitize.passed_before()
    first = sanitize.digest()
    (tmp_path / "sanitized").write_text(f"{first}\n")
    assert sanitize.passed_before()
    (tmp_path / "tests" / "other.py").write_text("1")
    assert sanitize.passed_before()
    (tmp_path / "cpp" / "a.cpp").rename(tmp_path / "cpp" / "c.cpp")
    assert not sanitize.passed_before()
    (tmp_path / "cpp" / "c.cpp").rename(tmp_path / "cpp" / "a.cpp")
    assert sanitize.passed_before()
    (tmp_path / "cpp" / "b.cpp").write_text("int c;")
    assert not sanitize.passed_before()


def test_sanitizers_see_tests_that_exist() -> None:
    assert not [name for name in sanitize.SUITE if not (TESTS / name).exists()]
