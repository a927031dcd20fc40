"""The hostile files of tests/attacks: each is refused for what is wrong with it, within 64 MB and in little time."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

import jaxexp
from kit.each import each
from kit.places import ATTACKS

MANIFEST: dict[str, dict[str, str]] = json.loads((ATTACKS / "manifest.json").read_text())


@pytest.mark.processes(reason="a process that may use 64 MB more and 30 s of processor time reads them all")
def test_attacks() -> None:
    done = subprocess.run(
        [sys.executable, ATTACKS / "measure.py", "--json"], capture_output=True, text=True, check=False
    )
    found = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, f"after {list(found)[-1:]}: {done.returncode} {done.stderr}"

    @each("name", MANIFEST)
    def refused(name: str) -> None:
        expected, said = MANIFEST[name]["expected"], found[name]["found"]
        assert re.search(expected, said) if expected else said == "", said
        assert not expected or re.match(r"cannot read the artifact: .*expected .*, found ", said, re.S)
        assert len(said) < 500, "an error is a sentence, whatever is in the file"
        assert found[name]["MB"] < 64

    refused()


def test_dimensions_that_load_are_what_the_file_says() -> None:
    for name in (name for name in MANIFEST if not MANIFEST[name]["expected"]):
        blob = (ATTACKS / f"{name}.bin").read_bytes()
        (dimension,) = jaxexp.deserialize(blob).in_avals[0].shape
        assert str(dimension).encode() in blob or "+" in str(dimension)  # terms of a sum may have another order
