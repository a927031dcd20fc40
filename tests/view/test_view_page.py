"""The page of `jaxexp view` without a browser: its parts, its size, and that names in it are only data."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

import jaxexp
from jaxexp._view import card, graph
from jaxexp._view.card import element
from kit.pages import HOSTILE_NAME, Page

pytestmark = pytest.mark.jax
ALL = ["scoped.jaxexp", "sharded.jaxexp", "bound.jaxexp", "hostile.jaxexp", "long.jaxexp", "fleet.zip::nested/scoped"]


def test_page_is_whole_and_loads_nothing(pages) -> None:
    for name in ALL:
        text = pages(name)
        page = Page(text)
        assert page.problems == [], name
        assert not {"link", "img", "iframe", "object", "base", "form"} & {*page.names()}
        for tag, attributes in page.elements:
            assert not any(key.startswith("on") or key in ("src", "style", "srcdoc") for key in attributes), tag
            assert attributes.get("href", "#").startswith("#")
        own = page.inside("style") + page.inside("script")
        assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org)", own)
        assert "fetch(" not in page.inside("script")
        assert len(text) < 300_000


def test_only_its_own_script_and_styles_are_allowed(pages) -> None:
    page = Page(pages("scoped.jaxexp"))
    (policy,) = (a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    for kind in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(page.inside(kind).encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_hostile_names_are_data(pages) -> None:
    text = pages("hostile.jaxexp")
    page = Page(text)
    assert page.names().count("script") == 2
    shown = HOSTILE_NAME.replace("\u202e", "\\u202e")
    assert page.text.count(shown) >= 4, "title, head, argument and metadata"
    assert "\u202e" not in text
    module = page.data()["modules"][0]
    assert module["label"] == shown
    assert any("onerror" in scope for scope in module["texts"])
    assert text.count("<script") == 2
    assert "</script><script>document" not in text
    evil = "<b>\x1b[31m\u202e\u2066\ud800\n\"'&"
    escaped = r"&lt;b&gt;\x1b[31m\u202e\u2066\ud800\n&quot;&#x27;&amp;"
    assert element("p", evil, title=evil) == f'<p title="{escaped}">{escaped}</p>'


def test_signature_and_weights(pages) -> None:
    page = Page(pages("sharded.jaxexp"))
    for part in ("float32[8,4]", "128 bytes", "P('x', 'y')", "donated", "['c']", "Mesh('x': 4, 'y': 2)", "8 ÷ 4"):
        assert part in page.text
    parts = [a for name, a in page.elements if name == "rect" and (a.get("class") or "").startswith("part")]
    assert len(parts) == 8, "one for each device"
    assert "donated" not in Page(pages("scoped.jaxexp")).text
    page = Page(pages("bound.jaxexp"))
    assert "2 weights" in page.text
    areas = [a for name, a in page.elements if name == "rect" and (a.get("class") or "").startswith("area")]
    sizes = sorted(float(a["width"] or 0) * float(a["height"] or 0) for a in areas)
    assert sizes[1] / sizes[0] == pytest.approx(2, rel=0.02)
    paths = [f"args[0]['model'].{name}.value" for name in ("first.bias", "first.kernel", "second.bias")]
    assert card._short_names(paths) == ["first/bias", "first/kernel", "second/bias"], "what differs"
    assert card._short_names(["args[0].value"]) == ["value"]
    page = Page(pages("scoped.jaxexp"))
    assert {"overview", "signature", "module", "derivatives", "readers", "trust"} <= page.ids()
    for part in ("Derivatives of a loaded function work up to order 2.", "loads it", "refuses it"):
        assert part in page.text
    assert "JAX promises to keep it stable" in Page(pages("other.jaxexp")).text
    assert page.data() == Page(pages("fleet.zip::nested/scoped")).data()


def test_modules_are_data(pages) -> None:
    modules = Page(pages("scoped.jaxexp")).data()["modules"]
    assert [module["label"] for module in modules] == ["scoped", "VJP 1", "VJP 2"]
    first = modules[0]
    assert first["labels"] == ["args[0][0]['v']", "args[0][0]['w']", "args[0][1]['v']", "args[0][1]['w']", "args[1]"]
    assert (first["takes"], modules[1]["labels"][-1]) == ({"argument": 5}, "cotangent of result")
    assert modules[1]["kinds"] == ["argument"] * 5 + ["cotangent"]
    assert modules[1]["takes"] == {"argument": 5, "cotangent": 1}
    assert "layer1/attention" in first["texts"]
    assert any(re.search(r"conftest\.py:\d+ in scoped$", text) for text in first["texts"])
    function, vjp = Page(pages("symbolic.jaxexp")).data()["modules"]
    assert function["labels"][2:4] == ["weights['out']", "args[0]"]
    assert (function["kinds"], function["takes"]) == (["weight"] * 3 + ["argument"] * 3, {"weight": 3, "argument": 3})
    assert vjp["takes"] == {"weight": 3, "argument": 3, "cotangent": 1}
    assert "float32[batch,5]" in function["texts"], "the names of dimensions"
    (unused,) = Page(pages("unused.jaxexp")).data()["modules"]
    assert (unused["kinds"], unused["takes"]) == (["argument"] * 2, {"argument": 3})


def test_two_artifacts(folder, pages) -> None:
    page = Page(pages("scoped.jaxexp", "other.jaxexp"))
    assert "differences" in page.ids()
    states = [a.get("class") for name, a in page.elements if (a.get("class") or "").startswith("leaf ")]
    assert {"leaf changed", "leaf added", "leaf removed"} == {*states}
    assert {"ins", "del"} <= {*page.names()}
    sizes = [len((folder / name).read_bytes()) for name in ("scoped.jaxexp", "other.jaxexp")]
    assert f"artifact {sizes[0]:,} {sizes[1]:,}" in page.text
    modules = page.data()["modules"]
    assert [module["side"] for module in modules] == [0, 0, 0, 1]
    marks = [sum(len(operation) > 7 for operation in dict(module["functions"])["main"]["o"]) for module in modules]
    assert marks[0] > 0
    assert marks[3] > 0
    assert all(mark < len(dict(module["functions"])["main"]["o"]) for mark, module in zip(marks, modules, strict=True))


def test_an_artifact_beside_itself(folder, pages) -> None:
    """Also where it was written for an older release: versions of an operation are one operation."""
    jaxexp.load(folder / "scoped.jaxexp").save(folder / "before.jaxexp", vjp_order=2, compatibility="0.4.30")
    same, older = (Page(pages(name, "scoped.jaxexp")) for name in ("scoped.jaxexp", "before.jaxexp"))
    assert "The two artifacts are the same." in same.text
    assert not [a for _, a in same.elements if (a.get("class") or "").startswith("leaf ")]
    assert "VJP 1: dot_general" not in older.text
    for module in (*same.data()["modules"], *older.data()["modules"]):
        assert all(len(operation) < 8 for _, block in module["functions"] for operation in block["o"])


def test_a_long_module_is_counted_and_not_drawn(folder, tmp_path, monkeypatch) -> None:
    from jaxexp._cli import start

    monkeypatch.setattr(graph, "MOST_OPERATIONS", 1000)
    path = tmp_path / "page.html"
    assert start.main(["view", str(folder / "long.jaxexp"), "-o", str(path)]) == 0
    page = Page(path.read_text(encoding="utf-8"))
    (module,) = page.data()["modules"]
    assert "functions" not in module
    assert "A page has room for 1,000" in module["why"]
    assert "700" in page.text, "sines are counted"


def test_a_check_gives_colours(pages) -> None:
    page = Page(pages("changed.jaxexp"))
    assert page.problems == []
    assert "check" in page.ids()
    assert {name for name, _ in page.elements}.isdisjoint({"img", "link"})
    assert "the first operation that differs: stablehlo.constant float32[]" in page.text
    assert {("span", "swatch own"), ("span", "swatch reached")} <= {(n, a.get("class")) for n, a in page.elements}
    (module,) = page.data()["modules"]
    functions = dict(module["functions"])
    errors = {(function, number): (error, own) for function, number, error, own in module["errors"]}
    function, number = module["first"]
    assert errors[function, number][0] == errors[function, number][1] > 0.05
    first = functions[function]["o"][number]
    assert (module["texts"][first[0]], module["texts"][first[4][0]]) == ("constant", "float32[]")
    assert "float32[2,4]" in module["texts"]
    later = [own for at, (_, own) in errors.items() if at != (function, number)]
    assert later and not any(later)
    other = Page(pages("scoped.jaxexp"))
    assert "check" not in other.ids()
    assert all("errors" not in module for module in other.data()["modules"])
