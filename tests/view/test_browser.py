"""The page of `jaxexp view` in a real browser: what it answers to, how it is drawn, and that nothing of others runs."""

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


def test_a_model_with_symbolic_shapes_is_seen_at_first(opened) -> None:
    page = opened("symbolic.jaxexp")
    first = titles(page)
    assert {"layer0", "layer5", "shape checks", "batch", "args[0]", "args[1]", "result"} <= {*first}
    assert "shape_assertion" not in page.locator("#canvas").text_content()
    node(page, "shape checks").dblclick()
    assert "shape_assertion" in page.locator("#canvas").text_content()
    page.locator("#none").click()
    node(page, "shape checks").click()
    assert "args[0]" in page.locator("#about").text_content()
    page.locator("#search").fill("tanh layer3")
    page.locator("#found .hit").first.click()
    assert "layer3" in page.locator("#about").text_content()
    assert page.locator("#about dt:text-is('function') + dd").text_content() == "model"
    page.get_by_role("tab").nth(1).click()
    assert any(title.startswith("cotangent") for title in titles(page))
    kinds = page.evaluate("view.shown.filter(({node}) => node.values).map(({node}) => node.names)")
    assert all(len({name.split("[")[0] for name in names}) == 1 for names in kinds), "those of a kind stand together"


def test_counts_are_those_of_the_list(opened) -> None:
    for name, expected, listed in (
        ("sharded", "2 arguments", "2 arguments"),
        ("unused", "2 of 3 arguments", "3 arguments"),
        ("scoped", "2 of 5 arguments", "5 arguments"),
    ):
        page = opened(f"{name}.jaxexp")
        page.locator("#none").click()
        assert expected in titles(page)
        assert page.locator("#signature h3").first.text_content() == listed


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
    states = "added", "removed", "changed"
    assert len({page.locator(f".leaf.{state}").first.evaluate(background) for state in states}) == 3


def test_phone(opened) -> None:
    for name in ("scoped", "sharded", "bound", "hostile", "long"):
        page = opened(f"{name}.jaxexp", viewport=PHONE, has_touch=True, is_mobile=True)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"], name
        for section in page.locator("section").all():
            assert section.bounding_box()["width"] <= PHONE["width"], name


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


def test_arguments_that_are_returned_are_drawn(opened) -> None:
    page = opened("mixed.jaxexp")
    page.locator("#none").click()
    assert {"args[0]['v']", "args[1]", "args[2]", "3 results"} <= {*titles(page)}
    assert "key<fry>[]" in page.locator("#canvas .sub").all_text_contents()


def test_paths_are_those_of_the_list(opened) -> None:
    page = opened("unused.jaxexp")
    for names, expected in (
        (["args[0]['b1']['bias']", "args[0]['b1']['scale']"], "args[0]['b1']: ['bias'], ['scale']"),
        (["args[0].h[0].w", "args[1]"], "args[0].h[0].w, args[1]"),
        (["weights['h/0/w']", "weights['h/1/w']"], "h: /0/w, /1/w"),
        ([f"args[0]['{'long' * 9}']['{name * 20}']" for name in "ab"], f"args[0]['{'long' * 9}']"),
    ):
        assert page.evaluate("listed", names) == expected
    assert page.evaluate("([name]) => end(name, 20)", ["args[0]['encoder']['norm'].value"]) == "…['norm'].value"


@pytest.mark.parametrize("name", ["scoped.jaxexp", "transformer.jaxexp", "symbolic.jaxexp", "mixed.jaxexp"])
def test_values_that_enter_a_block_reach_its_operations(opened, name: str) -> None:
    """Each operand of each operation comes along an edge, or is a number, a weight, or a dimension."""
    page = opened(name)
    page.locator("#all").click()
    found = page.evaluate(
        """() => {
          const missing = [];
          let entered = 0;
          for (const {node: around} of view.shown) {
            const {nodes = [], edges = [], of} = around.inside ?? {};
            nodes.forEach((node, i) => {
              if (node.type !== "op") return;
              const come = edges.filter(({to}) => to === i);
              entered += come.filter(({from}) => nodes[from].type === "port").length;
              for (const value of node.op.raw[OPERANDS]) {
                const {op, arg, block} = of.values[value];
                const {name, kind} = op ? {} : argument(block, arg);
                const named = op ? op.hidden : isWeight(name, kind) || kind === "dimension";
                const drawn = come.some(({values}) => values.includes(value));
                if (!named && !drawn) missing.push([around.title, node.title]);
              }
            });
          }
          return [missing, entered];
        }"""
    )
    assert found[0] == []
    assert found[1] > 0


def test_a_residual_addition_has_two_inputs(opened) -> None:
    page = opened("transformer.jaxexp")
    ends = """() => {
      const {inside} = view.shown.find(({node}) => node.title === "layers[0]").node;
      const add = inside.nodes.findIndex(({title}) => title === "add");
      return inside.edges.filter(({to}) => to === add).map(({from}) => inside.nodes[from].type).sort();
    }"""
    assert page.evaluate(ends) == ["port", "scope"]
    border = """() => {
      const {node, group} = view.shown.find(({node}) => node.title === "layers[0]");
      const top = group.firstChild.getBoundingClientRect().top;
      return [...group.querySelectorAll(":scope > g > .edges > path")].filter((path) =>
        Math.abs(path.getBoundingClientRect().top - top) < 1).length;
    }"""
    assert page.evaluate(border) == 2, "to the norm, and to the addition"


@pytest.mark.parametrize("name", ["scoped.jaxexp", "transformer.jaxexp", "symbolic.jaxexp", "mixed.jaxexp"])
def test_labels_can_be_read(opened, name: str) -> None:
    """No label leaves the drawing, and no other label, node or edge crosses it."""
    page = opened(name)
    for button in ("#none", "#all"):
        page.locator(button).click()
        page.evaluate("scale(1)")
        wrong = page.evaluate(
            """() => {
              const all = view.canvas.getBoundingClientRect(), found = [];
              const named = (what) => view.canvas.querySelectorAll(what);
              const boxes = (what) => [...named(what)].map((one) => [one, one.getBoundingClientRect()]);
              const meet = (a, b) =>
                a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
              const labels = boxes(".edges text"), nodes = boxes(".node:not(.open) > rect");
              const paths = boxes(".edges path");
              const known = new Map(), pointsOf = (path) => {
                if (!known.has(path)) {
                  const points = [], matrix = path.getScreenCTM(), length = path.getTotalLength();
                  for (let at = 0; at < length; at += 3) points.push(path.getPointAtLength(at).matrixTransform(matrix));
                  known.set(path, points);
                }
                return known.get(path);
              };
              for (const [label, box] of labels) {
                const text = label.textContent;
                if (box.left < all.left || box.right > all.right) found.push(["clipped", text]);
                for (const [other, its] of [...labels, ...nodes]) {
                  if (other !== label && meet(box, its)) found.push([text, other.textContent]);
                }
                for (const [path, its] of paths) {
                  if (!meet(box, its)) continue;
                  const isIn = ({x, y}) =>
                    x > box.left + 1 && x < box.right - 1 && y > box.top + 3 && y < box.bottom - 3;
                  if (pointsOf(path).some(isIn)) found.push([text, "struck through"]);
                }
              }
              return [found, labels.length];
            }"""
        )
        assert wrong[0] == []
        assert wrong[1] > 0


def test_the_first_view_fits(opened) -> None:
    for name in ("scoped.jaxexp", "transformer.jaxexp", "symbolic.jaxexp", "mixed.jaxexp"):
        for width in (1280, PHONE["width"]):
            page = opened(name, viewport={"width": width, "height": 900})
            for tab in range(page.evaluate("view.tabs.children.length")):
                page.evaluate("(tab) => show(tab)", tab)
                drawn, room = (page.locator(place).bounding_box()["width"] for place in ("#canvas", "#graph"))
                assert drawn <= room, (name, width)
                assert page.evaluate("view.zoom >= READABLE || view.open.size === 0"), (name, width)


def test_nodes_of_a_level_do_not_overlap(opened) -> None:
    page = opened("scoped.jaxexp")
    for tab in page.get_by_role("tab").all():
        tab.click()
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
              for (const {node, above} of view.shown) {
                if (above && (node.x < -0.5 || node.x + node.w > above.node.w || node.y + node.h > above.node.h)) {
                  wrong.push([node.title, above.node.title]);
                }
              }
              return wrong;
            }"""
        )
        assert overlaps == []


def test_texts_stay_inside_of_their_nodes(opened) -> None:
    page = opened("scoped.jaxexp")
    page.locator("#all").click()
    outside = page.evaluate(
        """() => view.shown.filter(({group}) => [...group.querySelectorAll(":scope > text")].some(
             (text) => text.getBBox().x + text.getBBox().width > group.firstChild.getBBox().width)).length"""
    )
    assert outside == 0
