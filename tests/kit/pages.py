"""Pages of `jaxexp view`, read as a browser reads them."""

from __future__ import annotations

import html.parser
import importlib.util
import json
import shutil
from typing import Any

import pytest

HOSTILE_NAME = (
    "</script><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">'\"&amp;\u202e"
)
_WITHOUT_END = {"meta", "input", "br", "img", "link"}


PHONE = {"width": 390, "height": 844}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
IN_A_BROWSER = [
    pytest.mark.long(
        promise="a page answers to clicks and keys, can be read, and runs nothing of others",
        sibling="test_view_page.py::test_page_is_whole_and_loads_nothing",
    ),
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="playwright is not installed"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium to look with"),
]


class Page(html.parser.HTMLParser):
    """The elements of a page with their attributes and texts.

    Attributes:
        elements: names of elements with their attributes, in the order of the page.
        problems: what is not closed in order, or not at all.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.problems: list[str] = []
        self._open: list[tuple[str, str | None]] = []
        self._texts: dict[str, list[str]] = {}
        self.text = ""
        self.feed(text)
        self.close()
        self.problems += [name for name, _ in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag not in _WITHOUT_END:
            self._open.append((tag, attributes.get("id")))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop()[0] != tag:
            self.problems.append(tag)

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1][0] not in ("script", "style"):
            self.text += data + " "
        elif self._open[-1][1]:
            self._texts.setdefault(self._open[-1][1], []).append(data)
        else:
            self._texts.setdefault(self._open[-1][0], []).append(data)

    def inside(self, name: str) -> str:
        """The text of the styles, of the script, or of the script with this id."""
        return "".join(self._texts[name])

    def data(self) -> dict[str, Any]:
        """What the script draws."""
        return json.loads(self.inside("data"))

    def names(self) -> list[str]:
        return [name for name, _ in self.elements]

    def ids(self) -> set[str]:
        return {attributes["id"] for _, attributes in self.elements if attributes.get("id")}
