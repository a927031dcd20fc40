"""The drawing of a module in a real browser: where its nodes, edges and labels are."""

from __future__ import annotations

import pytest

from kit.pages import IN_A_BROWSER, PHONE

pytestmark = IN_A_BROWSER


def titles(page) -> list[str]:
    return page.locator("#canvas .node > .title").all_text_contents()


def test_arguments_that_are_returned_are_drawn(opened) -> None:
    page = opened("mixed.jaxexp")
    page.locator("#none").click()
    assert {"args[0]['v']", "args[1]", "args[2]", "3 results"} <= {*titles(page)}
    assert "key<fry>[]" in page.locator("#canvas .sub").all_text_contents()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["args[0]['b1']['bias']", "args[0]['b1']['scale']"], "args[0]['b1']: ['bias'], ['scale']"),
        (["args[0].h[0].w", "args[1]"], "args[0].h[0].w, args[1]"),
        (["weights['h/0/w']", "weights['h/1/w']"], "h: /0/w, /1/w"),
        ([f"args[0]['{'long' * 9}']['{name * 20}']" for name in "ab"], f"args[0]['{'long' * 9}']"),
    ],
)
def test_paths_are_those_of_the_list(opened, names: list[str], expected: str) -> None:
    page = opened("unused.jaxexp")
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


@pytest.mark.parametrize("name", ["scoped.jaxexp", "transformer.jaxexp", "symbolic.jaxexp", "mixed.jaxexp"])
@pytest.mark.parametrize("width", [1280, PHONE["width"]])
def test_the_first_view_fits(opened, name: str, width: int) -> None:
    page = opened(name, viewport={"width": width, "height": 900})
    for tab in range(page.evaluate("view.tabs.children.length")):
        page.evaluate("(tab) => show(tab)", tab)
        assert page.locator("#canvas").bounding_box()["width"] <= page.locator("#graph").bounding_box()["width"]
        assert page.evaluate("view.zoom >= READABLE || view.open.size === 0")


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
