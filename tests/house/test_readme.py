"""The README's example does what it says, in the two processes that it speaks of."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kit.places import ROOT

README = ROOT / "README.md"


def blocks() -> dict[str, str]:
    found = re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    return dict(found)


def run(code: str, folder: Path) -> str:
    result = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.processes(reason="the producer and the consumer")
def test_example(tmp_path):
    example = blocks()
    assert run(example["producer"], tmp_path) == ""
    assert [path.name for path in tmp_path.iterdir()] == ["scores.jaxexp"]

    printed = run(example["consumer"] + example["mistake"], tmp_path)
    assert "float32[batch,4]" in printed
    assert "0.3333" in printed  # equal scores for equal inputs
    mistake = printed.splitlines()[-1]
    assert "args[1].shape[1]" in mistake
    assert "4" in mistake
    assert "5" in mistake
    assert f"<!-- printed: mistake -->\n```text\n{mistake}\n```\n" in README.read_text()
