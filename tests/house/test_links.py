"""The documentation refers only to what exists: files, headings, and the paths in its code spans."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.places import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md")]

if not (ROOT / "docs").exists():
    pytest.skip("the documentation is not beside the tests", allow_module_level=True)

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`((?:bench|cpp|demo|docs|python|schema|tests)/[^`\s]*)`")
FOLDERS = ("bench", "cpp", "python", "schema", "tests")
# They name files of the project by the ends of their paths.
OF_CODE = [
    *(ROOT / name for name in ("RELEASING.md", "docs/design.md")),
    *(path for top in ("cpp", "python") for path in (ROOT / top).rglob("*.[mphc]*") if "third_party" not in path.parts),
]
FILE = re.compile(r"`([\w/.-]+\.(?:py|h|cpp|fbs))`")


def links(text: str) -> list[str]:
    return [target for target in LINK.findall(CODE.sub("``", text)) if not re.match(r"[a-z]+:", target)]


def anchors_of(file: Path) -> Iterator[str]:
    """The anchors that GitHub gives to the headings of a page."""
    if file.suffix != ".md":
        return
    text = re.sub(r"^```.*?^```$", "", file.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    seen: dict[str, int] = {}
    for heading in HEADING.findall(text):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        kept = "".join(c for c in shown if c in " -_" or unicodedata.category(c)[0] in "LN")
        anchor = kept.replace(" ", "-")
        count = seen[anchor] = seen.get(anchor, -1) + 1
        yield f"{anchor}-{count}" if count else anchor


def broken(page: Path) -> list[str]:
    found = []
    for target in links(page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not (file.is_relative_to(ROOT) and file.exists() and (not anchor or anchor in anchors_of(file))):
            found.append(target)
    return found


def test_links_lead_somewhere() -> None:
    assert sum(len(links(page.read_text(encoding="utf-8"))) for page in PAGES) > 300
    wrong = {page.relative_to(ROOT).as_posix(): broken(page) for page in PAGES}
    assert not {name: targets for name, targets in wrong.items() if targets}


def test_paths_exist() -> None:
    named = [(page.name, path) for page in PAGES for path in SPAN.findall(page.read_text(encoding="utf-8"))]
    assert len(named) > 50
    assert not [(name, path) for name, path in named if not any(ROOT.glob(path.partition("::")[0].rstrip("/")))]


def test_files_exist() -> None:
    """Also those that are named by the end of their paths: a file that was folded into another one is named no more."""
    known = [f"/{path.relative_to(ROOT).as_posix()}" for top in FOLDERS for path in (ROOT / top).rglob("*.*")]
    named = {
        (page, name)
        for page in OF_CODE
        if page.suffix in (".md", ".py", ".h", ".cpp")
        for name in FILE.findall(page.read_text(encoding="utf-8"))
    }
    assert len(named) > 60
    assert not {(str(page), name) for page, name in named if not any(path.endswith(f"/{name}") for path in known)}


def test_the_index_lists_every_page() -> None:
    folder = ROOT / "docs"
    listed = {(folder / target).resolve() for target in links((folder / "README.md").read_text(encoding="utf-8"))}
    assert {page.resolve() for page in folder.rglob("*.md")} - listed == {(folder / "README.md").resolve()}
