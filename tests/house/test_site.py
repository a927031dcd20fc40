"""The site of the documentation: links that lead nowhere are found, and a reader's search works in a browser."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from kit.pages import CHROMIUM
from tools import site

pytestmark = pytest.mark.xdist_group("site")
long = pytest.mark.long(
    promise="the site's links lead somewhere, and its search finds",
    sibling="test_site.py::test_a_link_that_leads_nowhere_is_found",
)
WAIT = 120_000  # milliseconds, on a busy machine


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("sphinx", "furo", "myst_parser", "sphinx_copybutton"):
        pytest.importorskip(module, reason="comes with the extra 'docs'")
    folder = tmp_path_factory.mktemp("site") / "docs"
    site.build(folder)
    return folder


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(built))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="comes with the extra 'docs'")
    if CHROMIUM is None:
        pytest.skip("this machine has no Chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser: Any, url: str) -> Any:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(WAIT)
    page = context.new_page()
    page.goto(url)
    return page


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#here">1</a><a href="b.html#there">2</a><a href="c.html">3</a>')
    (tmp_path / "b.html").write_text('<p id="here"><script src="https://elsewhere.example/x.js"></script>')
    assert list(site.broken(tmp_path)) == [
        "a.html: b.html#there",
        "a.html: c.html",
        "b.html: https://elsewhere.example/x.js",
    ]


def found_in(page: Any) -> list[str]:
    page.wait_for_function("/finished|did not match/.test(document.querySelector('.search-summary')?.innerText ?? '')")
    links: list[str] = page.eval_on_selector_all("ul.search li a", "links => links.map(a => a.getAttribute('href'))")
    return links


# What new users searched for, and the section that answers.
SOUGHT = {
    "dropout key": "guide/equinox.html#several-inputs-dropout-and-keys",
    "fastapi": "guide/serving.html#a-server-with-fastapi",
    "jax2tf": "guide/migrating.html#from-jax2tf",
    "random key": "guide/versions.html#random-keys",
    "tied weights": "guide/weights.html#other-weights",
    "bfloat16": "guide/versions.html#dtypes",
    "gradient C++": "guide/run.html#derivatives",
    "batch size": "guide/shapes.html",
    "S3": "guide/archive.html#from-a-url",
    "cold start": "guide/serving.html#where-a-cold-start-goes",
    "gpu": "guide/platforms.html",
    "PolicyError": "reference/errors.html#jaxexp.errors.PolicyError",
    "deserialize unsupported version": "troubleshooting.html#deserialize-unsupported-version-12",
}


@long
def test_search_finds_sections_and_asks_nobody_else(browser: Any, address: str) -> None:
    page = opened(browser, f"{address}/index.html")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    first = {}
    for words in SOUGHT:
        page.goto(f"{address}/search.html?{urlencode({'q': words})}")
        first[words] = found_in(page)[:3]
    assert not {words: found for words, found in first.items() if SOUGHT[words] not in found}
    assert all(url.startswith((address, "data:")) for url in asked)
    page.context.close()
