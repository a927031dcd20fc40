"""The hostile files of tests/attacks: each is refused for what is wrong with it, within 64 MB and in little time."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from typing import Any

import pytest

import jaxexp
from kit.places import ATTACKS

FOLDER = ATTACKS
MANIFEST: dict[str, dict[str, str]] = json.loads((FOLDER / "manifest.json").read_text())


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """What one child process, which may use 64 MB more and 30 s of processor time, found in all files."""
    done = subprocess.run(
        [sys.executable, FOLDER / "measure.py", "--json"], capture_output=True, text=True, check=False
    )
    found = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, f"after {list(found)[-1:]}: {done.returncode} {done.stderr}"
    return found


@pytest.mark.parametrize("name", MANIFEST)
def test_attack(name: str, measured: dict[str, Any]) -> None:
    expected, result = MANIFEST[name]["expected"], measured[name]
    if expected:
        assert re.search(expected, result["found"]), result["found"]
        assert re.match(r"cannot read the artifact: .*expected .*, found ", result["found"], re.S)
    else:
        assert result["found"] == ""
    assert len(result["found"]) < 500, "an error is a sentence, whatever is in the file"
    assert result["MB"] < 64


def test_dimensions_that_load_are_what_the_file_says() -> None:
    for name in (name for name in MANIFEST if not MANIFEST[name]["expected"]):
        blob = (FOLDER / f"{name}.bin").read_bytes()
        (dimension,) = jaxexp.deserialize(blob).in_avals[0].shape
        text = str(dimension)
        assert text.encode() in blob or "+" in text  # terms of a sum may come in another order


def test_files_are_what_the_script_writes() -> None:
    attacks = runpy.run_path(str(FOLDER / "make.py"))["ATTACKS"]
    assert sorted(path.stem for path in FOLDER.glob("*.bin")) == sorted(attacks)
    assert sorted(MANIFEST) == sorted(attacks)
    for name, (blob, what, expected) in attacks.items():
        assert (FOLDER / f"{name}.bin").read_bytes() == blob, name
        assert MANIFEST[name] == {"attacks": what, "expected": expected}
