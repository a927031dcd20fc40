"""Pages: one HTML file about one artifact or two. It loads nothing, and runs only its own script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from jaxexp._kernel.artifact import words
from jaxexp._kernel.artifact.words import bytes_in_words, cut, listed

from . import card, figures, graph
from .document import data, document
from .graph import Graph
from .markup import Markup, element
from .sides import Check, Side, modules

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.inspection import Inspection

# Rows of a table, and kinds of operations that are counted separately.
_MOST_ROWS, _MOST_KINDS = 200, 40
# Differences of a section that are not folded at first.
_OPEN = 16

# By section and name: the value in the one artifact, and in the other.
Differences = Mapping[str, Mapping[str, tuple[str, str]]]


def page(new: Side, old: Side | None = None, differences: Differences | None = None) -> str:
    """The page about an artifact, or about the differences between an old one and a new one."""
    sides = [new] if old is None else [old, new]
    earlier = None if old is None else old.facts
    if old is not None:
        for before, after in zip(old.graphs, new.graphs, strict=False):
            if isinstance(before, Graph) and isinstance(after, Graph):
                graph.compare(before, after)
    sections = [
        ("overview", "Overview", _overview(sides)),
        ("check", "Check", [] if new.check is None else _check(new.check)),
        ("differences", "Differences", [] if old is None else _differences(old, new, differences or {})),
        ("signature", "Arguments and results", card.signature(new.facts, earlier)),
        ("weights", "Sizes", card.weights(new.facts, earlier)),
        ("module", "Module", _module(sides)),
        ("derivatives", "Derivatives", _for_each(sides, _derivatives)),
        ("readers", "Who can read it", _for_each(sides, _readers)),
        ("trust", "What it may do", _for_each(sides, _trust)),
    ]
    sections = [(name, title, parts) for name, title, parts in sections if parts]
    title = (
        new.facts.name if old is None or old.facts.name == new.facts.name else f"{old.facts.name} → {new.facts.name}"
    )
    links = [element("a", title, href=f"#{name}") for name, title, _ in sections]
    inside = [element("b", title), element("nav", links, aria_label="sections")]
    bar = element("header", [element("div", inside)], class_="bar")
    main = [element("h1", title), _where(sides)]
    main += [element("section", [element("h2", title), *parts], id=name) for name, title, parts in sections]
    return document(title, [bar, element("main", main)], data(sides))


def _where(sides: Sequence[Side]) -> Markup:
    if len(sides) == 1:
        return element("p", f"{sides[0].where}, {bytes_in_words(sides[0].found.total_bytes)}", class_="where")
    old, new = (f"{one.where}, {bytes_in_words(one.found.total_bytes)}" for one in sides)
    parts = [element("span", old, class_="old"), element("span", " → "), element("span", new, class_="new")]
    return element("p", parts, class_="where")


def _for_each(sides: Sequence[Side], make: Callable[[Side], list[Markup]]) -> list[Markup]:
    if len(sides) == 1:
        return make(sides[0])
    return [
        element("div", [element("h3", one.where, class_=look), *make(one)])
        for one, look in zip(sides, ("old", "new"), strict=True)
    ]


# --- sections ---------------------------------------------------------------------------------------------------------


def _overview(sides: Sequence[Side]) -> list[Markup]:
    if len(sides) == 1:
        return [card.rows(sides[0].facts.rows)]
    old, new = (dict(one.facts.rows) for one in sides)
    lines = [
        (name, old.get(name, ""), new.get(name, ""), "changed" if old.get(name) != new.get(name) else "")
        for name in {**old, **new}
    ]
    return [card.table(("", sides[0].where, sides[1].where), lines)]


def _check(found: Check) -> list[Markup]:
    parts = [element("p", found.title), card.table(found.heads, (tuple(map(cut, line)) for line in found.lines))]
    parts += [element("p", cut(text, 2_000)) for text in found.words]
    if found.errors:
        swatches = [
            element("span", text, class_=f"swatch {look}")
            for look, text in (
                ("own", "differs by more than its operands and rounding explain"),
                ("reached", "differs as they explain"),
            )
        ]
        scale = element("span", "the stronger the colour, the larger the difference")
        link = element("a", "The module below", href="#module")
        parts.append(element("p", [link, element("span", " has colours:"), *swatches, scale], class_="legend"))
    return parts


def _differences(old: Side, new: Side, differences: Differences) -> list[Markup]:
    parts: list[Markup] = []
    for section, found in differences.items():
        lines = [
            (
                cut(name),
                cut(a),
                cut(b),
                "added" if a in ("", "none") else "removed" if b in ("", "none") else "changed",
            )
            for name, (a, b) in list(found.items())[:_MOST_ROWS]
        ]
        inside = [card.table(("", old.where, new.where), lines)]
        if len(found) > _MOST_ROWS:
            inside.append(element("p", f"and {len(found) - _MOST_ROWS:,} more", class_="more"))
        head = [element("span", section), element("span", f"{len(found):,}", class_="size")]
        parts.append(element("details", [element("summary", head), *inside], open=len(found) <= _OPEN))
    return parts or [element("p", "The two artifacts are the same.")]


def _module(sides: Sequence[Side]) -> list[Markup]:
    parts: list[Markup] = []
    for one, order, _, label in modules(sides):
        counts = one.found.operation_counts[order]
        kinds = sorted((counts or {}).items(), key=lambda pair: (-pair[1], pair[0]))
        found = [
            element("li", [element("b", f"{count:,}"), element("span", f" {cut(words.kind(kind))}")])
            for kind, count in kinds[:_MOST_KINDS]
        ]
        head = element(
            "summary", [element("code", label, class_="key"), element("span", _counts(one, order), class_="size")]
        )
        parts.append(element("details", [head, element("ul", found, class_="kinds")]))
    return [*parts, _drawing()]


def _counts(one: Side, order: int) -> str:
    counts = one.found.operation_counts[order]
    size = bytes_in_words(one.found.module_bytes[order])
    return size if counts is None else f"{words.operations(counts)}, {size}"


def _drawing() -> Markup:
    def button(name: str, text: str, about: str) -> Markup:
        return element("button", text, type="button", id=name, title=about, aria_label=about)

    search = element(
        "input", type="search", id="search", placeholder="Search operations, scopes, files  ( / )", aria_label="search"
    )
    checkbox = element("input", type="checkbox", id="constants")
    tools = [
        search,
        button("all", "open all", "open as much as there is room for"),
        button("none", "close all", "close all"),
        button("farther", "\N{MINUS SIGN}", "farther away"),
        button("closer", "+", "closer"),
        button("fit", "fit", "fit into the frame"),
        element("label", [checkbox, element("span", "numbers")], title="draw constants as nodes, too"),
        element("div", [], id="found", hidden=True),
    ]
    canvas = Markup('<svg id="canvas" role="group" aria-label="the module as a graph"></svg>')
    split = [element("div", [canvas], id="graph"), element("aside", [], id="about", aria_live="polite")]
    return element(
        "div",
        [
            element("div", [], id="tabs", role="tablist", aria_label="modules"),
            element("p", [], id="why"),
            element("div", [element("div", tools, class_="tools"), element("div", split, class_="split")], id="drawn"),
        ],
        id="drawing",
        hidden=True,
    )


def _derivatives(one: Side) -> list[Markup]:
    found = one.found
    links = []
    for order in range(min(len(found.module_bytes), _MOST_ROWS)):
        name = f"VJP of order {order}" if order else one.facts.name
        inside = [element("code", name), element("br"), element("span", _counts(one, order), class_="size")]
        links.append(element("li", [element("div", inside)]))
    says = (
        f"Derivatives of a loaded function work up to order {found.vjp_order}."
        if found.vjp_order
        else "It has no VJP: jax.grad of the loaded function is an error."
    )
    return [element("ol", links, class_="chain"), element("p", says, class_="more")]


def _readers(one: Side) -> list[Markup]:
    readers, overview = one.readers, dict(one.facts.rows)
    lines = [(cut(span), "refuses it" if why else "loads it", cut(why), "") for span, why in readers.spans]
    return [
        card.rows((name, cut(text, 2_000)) for name, text in readers.facts if name not in overview),
        element("h3", "jax.export of each release of JAX"),
        figures.releases(readers.releases),
        card.table(("JAX", "", "because of"), lines[:_MOST_ROWS]),
    ]


def _trust(one: Side) -> list[Markup]:
    found = one.found
    effects = words.effects(found.ordered_effects, found.unordered_effects, 50)
    parts = [
        element(
            "p",
            f"The verdict of Policy(), which allows only what is understood and stable. Effects: {cut(effects)}.",
        )
    ]
    lines = [
        (cut(target), *(f"{calls.get(target, 0):,}" for calls in _calls(found)), cut(verdict))
        for target, verdict in _verdicts(found)
    ]
    if lines:
        orders = [f"in VJP {order}" if order else "calls" for order in range(len(_calls(found)))]
        parts.append(card.table(("custom call", *orders, "Policy()"), lines))
    elif all(calls is not None for calls in found.custom_calls):
        parts.append(element("p", "No custom calls."))
    if any(calls is None for calls in found.custom_calls):
        text = "The custom calls of a module that cannot be read here are not known."
        parts.append(element("p", text, class_="bad-text"))
    if found.unknown_operations:
        names = cut(listed(found.unknown_operations, most=50), 2_000)
        text = f"Operations that jaxexp does not know, and that Policy() refuses: {names}"
        parts.append(element("p", text, class_="bad-text"))
    return parts


def _calls(found: Inspection) -> list[dict[str, int]]:
    return [calls or {} for calls in found.custom_calls[:8]]


def _verdicts(found: Inspection) -> Iterable[tuple[str, str]]:
    targets = sorted({target for calls in _calls(found) for target in calls})[:_MOST_ROWS]
    if not targets:
        return
    from jaxexp._kernel.artifact.targets import STABLE_CUSTOM_CALLS, is_callback

    for target in targets:
        if is_callback(target):
            yield target, "refuses it: it calls back to Python; callbacks=True allows it"
        elif target in STABLE_CUSTOM_CALLS:
            yield target, "allows it: JAX promises to keep it stable"
        else:
            yield target, f"refuses it; custom_calls=({target!r},) allows it"
