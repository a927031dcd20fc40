"""The page of `jaxexp view` in a real browser: what it answers to, how it is drawn, and that nothing of others runs."""

from __future__ import annotations

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


def test_phone(opened) -> None:
    for name in ("scoped", "sharded", "bound", "hostile", "long"):
        page = opened(f"{name}.jaxexp", viewport=PHONE, has_touch=True, is_mobile=True)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"], name
        for section in page.locator("section").all():
            assert section.bounding_box()["width"] <= PHONE["width"], name


def test_folds_by_scopes_and_has_a_tab_for_each_vjp(opened) -> None:
    page = opened("scoped.jaxexp")
    tabs = page.get_by_role("tab")
    assert tabs.all_text_contents() == ["scoped", "VJP 1", "VJP 2"]
    page.locator("#none").click()
    assert {"layer0", "layer1", "while", "result", "2 of 5 arguments"} <= {*titles(page)}
    node(page, "layer0").dblclick()
    node(page, "attention").dblclick()
    assert "dot_general" in titles(page)
    node(page, "layer0").locator(".fold").first.click()
    assert "dot_general" not in titles(page)
    tabs.nth(1).click()
    assert any("cotangent of result" in title for title in titles(page))


def test_nodes_fit_and_do_not_overlap(opened) -> None:
    for name in ("scoped.jaxexp", "transformer.jaxexp", "symbolic.jaxexp", "mixed.jaxexp"):
        page = opened(name, viewport={"width": PHONE["width"], "height": 900})
        drawn, room = (page.locator(place).bounding_box()["width"] for place in ("#canvas", "#graph"))
        assert drawn <= room, name
        page.locator("#all").click()
        overlaps = page.evaluate(
            """() => {
              const wrong = [];
              for (const level of new Set(view.shown.map(({above}) => above))) {
                const nodes = view.shown.filter(({above}) => above === level).map(({node}) => node);
                for (const a of nodes) for (const b of nodes) {
                  if (a !== b && a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h) {
                    wrong.push([a.title, b.title]);
                  }
                }
              }
              return wrong;
            }"""
        )
        assert overlaps == []


def test_print(opened) -> None:
    page = opened("scoped.jaxexp", color_scheme="dark")
    assert page.locator("details:not([open])").count() > 0
    page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("details:not([open])").count() == 0
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
