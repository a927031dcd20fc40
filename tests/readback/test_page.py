"""docs/guide/read_back.md: what its example prints, and the lists of operations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxexp._readback.read_back import OPERATIONS, REFUSED
from kit.places import ROOT

pytestmark = pytest.mark.jax

PAGE = ROOT / "docs" / "guide" / "read_back.md"

if not PAGE.exists():
    pytest.skip("the documentation is not beside the tests", allow_module_level=True)


def test_the_example(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = re.search(r"<!-- example: read_back -->\n```python\n(.*?)```.*?```\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(found[1], {"__name__": "__main__"})
    printed = capsys.readouterr().out
    if jax.__version_info__ >= (0, 12):  # each release prints jaxprs in its own way
        assert printed == found[2]
    assert "= scan[" in printed


def test_every_operation_that_is_refused_is_listed() -> None:
    """With its reason; the others of that table are not refused."""
    table = PAGE.read_text(encoding="utf-8").partition("These are not:")[2].partition("\n\nCustom calls")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|$", table, re.MULTILINE)
    listed = {name: reason for names, reason in rows for name in re.findall(r"`([^`]*)`", names)}
    wanted = {name.partition(".")[2]: why for name, why in REFUSED.items() if not name.startswith("chlo.broadcast_")}
    assert {name: listed.get(name, "").partition(";")[0].replace("`", "") for name in wanted} == wanted
    assert listed.keys() - wanted.keys() == {"broadcast_add"}
    assert OPERATIONS.keys() > REFUSED.keys()
