"""Builds the documentation and looks at its links: what `make docs` does.

python tests/tools/site.py [FOLDER]

The site goes to FOLDER, build/docs by default. Every warning of Sphinx is an error, and so is a link inside of the site
that leads nowhere. Links to other sites are not followed: they are listed in FOLDER.links.txt.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.places import ROOT


def build(folder: Path) -> None:
    """Raises CalledProcessError where Sphinx warns."""
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--builder", "html"]
    trees = folder.with_name(f"{folder.name}-doctrees")
    subprocess.run([*command, "--doctree-dir", str(trees), str(ROOT / "docs"), str(folder)], check=True)


class Page(HTMLParser):
    """What a page links to, what it loads, and where it can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        if "id" in found:
            self.anchors.add(found["id"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and "href" in found and found.get("rel") == "stylesheet":
            self.loaded.append(found["href"])
        elif "src" in found:
            self.loaded.append(found["src"])


def broken(folder: Path) -> Iterator[str]:
    """The links of a site that lead nowhere, and what a page loads from elsewhere."""
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        for target in page.links + page.loaded:
            url = urlsplit(target)
            if url.scheme == "data" or (url.scheme and target in page.links):
                continue
            there = (path.parent / unquote(url.path)).resolve() if url.path else path
            other = pages.get(there)
            lost = other is not None and url.fragment not in other.anchors
            if url.scheme or url.netloc or not there.is_file() or lost:
                yield f"{path.relative_to(folder)}: {target}"


def others(folder: Path) -> list[str]:
    """The links to other sites."""
    found = {link for path in folder.rglob("*.html") for link in Page(path).links if urlsplit(link).scheme}
    return sorted(found)


def main(folder: Path) -> int:
    build(folder)
    listed = folder.with_name(f"{folder.name}.links.txt")
    listed.write_text("".join(f"{link}\n" for link in others(folder)))
    if wrong := list(broken(folder)):
        print("links that lead nowhere:", *wrong, sep="\n  ")
        return 1
    count = len(list(folder.rglob("*.html")))
    print(f"{folder}: {count} pages; {len(others(folder))} links to other sites, not followed, in {listed}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/docs")))
