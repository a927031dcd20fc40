"""The page of `jaxexp view` in a real browser: what it answers to, and that nothing of others runs."""

from __future__ import annotations

import pytest

from kit.pages import HOSTILE_NAME, IN_A_BROWSER, PHONE

pytestmark = IN_A_BROWSER


def titles(page) -> list[str]:
    return page.locator("#canvas .node > .title").all_text_contents()


def node(page, title: str):
    return page.locator("#canvas .node", has=page.locator(f":scope > .title:text-is('{title}')")).first


def test_the_operation_that_differs_first_is_shown(opened) -> None:
    page = opened("changed.jaxexp")
    assert page.locator("#about h3").text_content() == "constant"
    assert "more than its operands and rounding explain" in page.locator("#about").text_content()
    assert page.locator("#canvas .node.own.chosen").count() == 1
    assert page.locator("#canvas .node.reached").count() > 1
    fills = [
        page.locator(f"#canvas .node.{look}:not(.open) > rect").first.evaluate("rect => getComputedStyle(rect).fill")
        for look in ("own", "reached", "input")
    ]
    assert len({*fills}) == 3
    page.locator("#none").click()
    assert page.locator("#canvas .node.own, #canvas .node.reached").count() > 0


def test_draws_shardings_on_the_mesh(opened) -> None:
    page = opened("sharded.jaxexp")
    assert page.locator("figure svg rect.part").count() == 8
    assert page.locator("figure svg").first.bounding_box()["width"] > 80
    assert page.locator(".note", has_text="donated").is_visible()
    assert titles(page) == ["2 arguments", "add", "result"]
    assert "float32[8,4]" in page.locator("#canvas .edges text").all_text_contents()


def test_arguments_have_their_names_inside_of_main(opened) -> None:
    page = opened("batched.jaxexp")
    page.locator("#all").click()
    assert {"weights['large']", "args[0]"} <= {*titles(page)}
    assert not any(title.startswith("argument ") for title in titles(page))
    assert "float32[batch,64]" in page.locator("#canvas .edges text").all_text_contents()


def test_a_model_with_symbolic_shapes_is_seen_at_first(opened) -> None:
    page = opened("symbolic.jaxexp")
    first = titles(page)
    assert {"layer0", "layer5", "shape checks", "batch", "args[0]", "args[1]", "result"} <= {*first}
    assert "shape_assertion" not in page.locator("#canvas").text_content()
    node(page, "shape checks").dblclick()
    assert "shape_assertion" in page.locator("#canvas").text_content()
    page.locator("#none").click()
    assert {"layer0", "layer5", "shape checks"} <= {*titles(page)}
    page.get_by_role("tab").nth(1).click()
    assert "shape checks" in titles(page)
    assert any(title.startswith("cotangent") for title in titles(page))


def test_what_checks_shapes_is_found_and_takes_arguments(opened) -> None:
    page = opened("symbolic.jaxexp")
    page.locator("#search").fill("shape_assertion")
    page.locator("#found .hit").first.click()
    assert page.locator("#about h3").text_content() == "custom_call"
    page.locator("#none").click()
    node(page, "shape checks").click()
    assert "args[0]" in page.locator("#about").text_content()
    page.locator("#search").fill("tanh layer3")
    page.locator("#found .hit").first.click()
    assert "layer3" in page.locator("#about").text_content()
    assert page.locator("#about dt:text-is('function') + dd").text_content() == "model"
    page.locator("#search").fill("func.call")
    assert "_wrapped" not in page.locator("body").inner_text()


@pytest.mark.parametrize(
    ("name", "expected", "listed"),
    [
        ("sharded.jaxexp", "2 arguments", "2 arguments"),
        ("unused.jaxexp", "2 of 3 arguments", "3 arguments"),
        ("scoped.jaxexp", "2 of 5 arguments", "5 arguments"),
    ],
)
def test_counts_are_those_of_the_list(opened, name: str, expected: str, listed: str) -> None:
    page = opened(name)
    page.locator("#none").click()
    assert expected in titles(page)
    assert page.locator("#signature h3").first.text_content() == listed


def test_arguments_of_a_kind_stand_together(opened) -> None:
    page = opened("symbolic.jaxexp")
    counted = "([kind, count]) => counted(kind, count, view.modules[0].takes[kind])"
    for kind, count, title in (
        ("weight", 3, "3 weights"),
        ("weight", 2, "2 of 3 weights"),
        ("argument", 3, "3 arguments"),
        ("argument", 2, "2 of 3 arguments"),
        ("dimension", 2, "2 dimensions"),
        ("", 2, "2 arguments"),
        ("", 47_256, "47,256 arguments"),
    ):
        assert page.evaluate(counted, [kind, count]) == title
    kinds = page.evaluate("view.shown.filter(({node}) => node.values).map(({node}) => node.names)")
    assert all(len({name.split("[")[0] for name in names}) == 1 for names in kinds)


def test_values_of_a_branch_stand_in_columns(opened) -> None:
    page = opened("scoped.jaxexp", "other.jaxexp")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    lefts = page.evaluate(
        """[...document.querySelectorAll("#signature .tree, #signature .inside")].map((branch) =>
             [...branch.children].filter((one) => one.classList.contains("leaf")).map((leaf) =>
               [...leaf.children].map((cell) => Math.round(cell.getBoundingClientRect().left))))"""
    )
    assert any(len(leaves) > 1 for leaves in lefts)
    assert all(leaf == leaves[0] and len(leaf) == 4 for leaves in lefts for leaf in leaves)


def test_folds_by_scopes_and_has_a_tab_for_each_vjp(opened) -> None:
    page = opened("scoped.jaxexp")
    tabs = page.get_by_role("tab")
    assert tabs.all_text_contents() == ["scoped", "VJP 1", "VJP 2"]
    page.locator("#none").click()
    assert {"layer0", "layer1", "while", "result"} < {*titles(page)}
    assert "dot_general" not in titles(page)
    node(page, "layer0").dblclick()
    assert {"attention", "mlp"} < {*titles(page)}
    node(page, "attention").dblclick()
    assert "dot_general" in titles(page)
    assert node(page, "attention").get_attribute("aria-expanded") == "true"
    node(page, "layer0").locator(".fold").first.click()
    assert "dot_general" not in titles(page)
    tabs.nth(1).click()
    assert tabs.nth(1).get_attribute("aria-selected") == "true"
    assert any("cotangent of result" in title for title in titles(page))
    page.locator("#all").click()
    assert len(titles(page)) > 60


def test_search_leads_into_functions(opened) -> None:
    page = opened("scoped.jaxexp")
    page.locator("#none").click()
    page.keyboard.press("/")
    page.keyboard.type("maximum relu")
    assert page.locator("#found .hit").count() == 1
    page.locator("#found .hit").click()
    assert page.locator("#about h3").text_content() == "maximum"
    assert "relu" in page.locator("#about").text_content()
    assert page.locator(".node.chosen > .title").text_content() == "maximum"
    page.locator("#search").fill("layer1/attention exponential")
    page.locator("#found .hit").click()
    assert "layer1/attention" in page.locator("#about").text_content()
    assert "conftest.py:" in page.locator("#about").text_content()


def test_keyboard(opened) -> None:
    page = opened("scoped.jaxexp")
    page.locator("#none").click()
    node(page, "layer0").focus()
    node(page, "layer0").click()
    page.keyboard.press("Enter")
    assert "attention" in titles(page)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    inside = page.locator("#about h3").text_content()
    assert inside in ("attention", "mlp")
    page.keyboard.press("Escape")
    assert page.locator("#about h3").text_content() == "layer0"
    page.keyboard.press(" ")
    assert "attention" not in titles(page)
    page.keyboard.press("ArrowDown")
    assert page.locator("#about h3").text_content() == "layer1"
    before = page.locator("#canvas").bounding_box()["width"]
    page.keyboard.press("+")
    assert page.locator("#canvas").bounding_box()["width"] > before


def test_a_long_module_opens_at_once(browser, opened, folder) -> None:
    """Reading, laying out and drawing 2,000 operations takes less than two seconds of the page's thread."""
    page = opened("long.jaxexp")
    assert page.evaluate("() => view.modules[0].root.ops.length") > 2_000
    assert 10 < len(titles(page)) < 200
    node(page, "29 to 42 of 700 repeats").dblclick()
    assert "sine" in titles(page)
    context = browser.new_context()
    measured = context.new_page()
    tools = context.new_cdp_session(measured)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})
    measured.goto((folder / "long.jaxexp.html").as_uri())
    found = {metric["name"]: metric["value"] for metric in tools.send("Performance.getMetrics")["metrics"]}
    context.close()
    assert 0.001 < found["TaskDuration"] < 2


def test_a_transformer_is_understood_at_first(opened) -> None:
    """The layers with their weights in order; the first one is open, and those that are like it are not."""
    page = opened("transformer.jaxexp")
    found = titles(page)
    assert [title for title in found if title.startswith("layers")] == [f"layers[{i}]" for i in range(12)]
    assert {"norm", "attention", "mlp"} <= {*found}
    texts = page.locator("#canvas .sub").all_text_contents()
    assert any(text.endswith("ops: attention, MLP") for text in texts)
    assert any(text.startswith("args[0]['layers'][3]: ['down'], ") and text.endswith(" more") for text in texts)
    assert not any(title.startswith("part") or title.endswith("…") for title in found)
    node(page, "layers[3]").dblclick()
    assert titles(page).count("attention") == 2


def test_hostile_names_run_nothing(opened) -> None:
    page = opened("hostile.jaxexp")
    shown = HOSTILE_NAME.replace("\u202e", "\\u202e")
    assert page.title() == f"{shown} · jaxexp"
    assert page.locator("h1").text_content() == shown
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    page.locator("#search").fill("add")
    page.locator("#found .hit").first.click()
    assert page.locator("img").count() == 0


def test_scripts_of_others_are_refused(browser, pages, folder) -> None:
    """Even a script that got into the page would not run."""
    pages("sharded.jaxexp")
    context = browser.new_context()
    page = context.new_page()
    page.goto((folder / "sharded.jaxexp.html").as_uri())
    blocked = page.evaluate(
        """() => new Promise((done) => {
             document.addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
             const script = document.createElement("script");
             script.textContent = "document.title = 'run'";
             document.body.append(script);
           })"""
    )
    assert blocked == "script-src-elem"
    assert page.title() != "run"
    context.close()


def test_differences_in_colour(opened) -> None:
    page = opened("scoped.jaxexp", "other.jaxexp")
    assert page.get_by_role("tab", selected=True).text_content() == "new: other"
    page.locator("#all").click()
    assert page.locator("#canvas .node.added").count() > 0
    assert page.locator("#canvas .node.removed").count() == 0
    page.get_by_role("tab").first.click()
    page.locator("#all").click()
    assert page.locator("#canvas .node.removed").count() > 0
    background = "(element) => getComputedStyle(element).backgroundColor"
    assert (
        len({page.locator(f".leaf.{state}").first.evaluate(background) for state in ("added", "removed", "changed")})
        == 3
    )


@pytest.mark.parametrize("name", ["scoped.jaxexp", "sharded.jaxexp", "bound.jaxexp", "hostile.jaxexp", "long.jaxexp"])
def test_phone(opened, name: str) -> None:
    page = opened(name, viewport=PHONE, has_touch=True, is_mobile=True)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]
    for section in page.locator("section").all():
        assert section.bounding_box()["width"] <= PHONE["width"]


def luminance(colour: list[int]) -> float:
    parts = [c / 255 for c in colour]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(opened, scheme: str) -> None:
    """WCAG's contrast of 4.5 between texts and the page, in light and dark."""
    page = opened("sharded.jaxexp", color_scheme=scheme)
    colour = """(element, name) => {
      const pen = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
      pen.fillStyle = getComputedStyle(document.body).backgroundColor;
      pen.fillRect(0, 0, 1, 1);
      pen.fillStyle = getComputedStyle(element)[name];
      pen.fillRect(0, 0, 1, 1);
      return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
    }"""
    paper = luminance(page.locator("body").evaluate(colour, "backgroundColor"))
    assert (paper < 0.1) == (scheme == "dark")
    for selector in ("h1", "dt", "dd", ".type", ".spec", ".size", "figcaption", ".bar a"):
        ink = luminance(page.locator(selector).first.evaluate(colour, "color"))
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5, selector


def test_print(opened, tmp_path) -> None:
    page = opened("scoped.jaxexp", color_scheme="dark")
    folded = page.locator("details:not([open])").count()
    assert folded > 0
    page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("details:not([open])").count() == 0
    assert not page.locator(".tools").is_visible()
    assert page.locator("#canvas").is_visible()
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.emulate_media(media="screen")
    page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() == folded
    assert page.pdf(path=tmp_path / "page.pdf")[:4] == b"%PDF"
