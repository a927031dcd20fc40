"""The example of docs/guide/weights.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from kit.places import ROOT
from kit.weighted import close


def test_the_example_of_the_documentation(tmp_path: Path, monkeypatch: Any) -> None:
    page = (ROOT / "docs" / "guide" / "weights.md").read_text()
    code = "".join(re.findall(r"<!-- example: weights -->\n```python\n(.*?)```", page, re.DOTALL))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(code, names)
    x = names["x"]
    expected = names["model"](x)
    close(names["loaded"].call(x), expected)
    close(names["bound"].call(x), expected)
    close(names["step"](names["loaded"], x), expected)
    close(names["program"].call(dict(names["loaded"].weights), x), expected)
    assert np.abs(names["tuned"].call(x) - expected).max() > 0.01
