"""A package that is missing is named: an extra of jaxexp can only be installed where jaxexp came from an index."""

from __future__ import annotations

import sys

import pytest

import jaxexp
from kit.places import ROOT


def test_a_url_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ImportError, match=r"reading https://host/f\.zip needs fsspec: pip install fsspec aiohttp"):
        jaxexp.Archive.open("https://host/f.zip")


@pytest.mark.skipif(not (ROOT / "python").exists(), reason="the sources are not beside the tests")
def test_no_message_names_an_extra() -> None:
    named = [path for path in (ROOT / "python").rglob("*.py") if "pip install 'jaxexp[" in path.read_text("utf-8")]
    assert not named
