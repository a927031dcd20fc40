"""The notebook of the documentation runs, and shows what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from kit.places import ROOT

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"

if not NOTEBOOK.exists():
    pytest.skip("the documentation is not beside the tests", allow_module_level=True)

pytestmark = [pytest.mark.jax, pytest.mark.processes(reason="the kernel of a notebook")]


def test_the_notebook(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    nbclient.NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs: list[Any] = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    card, shapes, page, verdicts = (output.data for output in outputs if output.output_type == "execute_result")
    assert "float32[batch,2]" in card["text/html"]
    assert shapes["text/plain"] == "((4, 1), (4, 2))"
    assert 'src="same_sign.html"' in page["text/html"]
    assert verdicts["text/plain"] == "['equal', 'equal', 'equal', 'equal', 'equal']"
    assert "5/5" in json.dumps([output.text for output in outputs if output.output_type == "stream"])
    assert (tmp_path / "same_sign.html").read_text().startswith("<!doctype html>")
