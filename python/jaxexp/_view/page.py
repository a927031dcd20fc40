"""Pages: one HTML file about one artifact or two. It loads nothing, and runs only its own script."""

from __future__ import annotations

import base64
import collections
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp._kernel.artifact import words
from jaxexp._kernel.artifact.operations import STABLE_CUSTOM_CALLS, is_callback
from jaxexp._kernel.artifact.words import bytes_in_words, cut, listed

from . import blocks, card, graph
from .card import Markup, element, joined
from .graph import Graph
from .sides import Check, Errors, Side, modules

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.inspection import Value


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
    sections = [section for section in sections if section[2]]
    title = " → ".join(dict.fromkeys(side.facts.name for side in sides))
    links = [element("a", title, href=f"#{name}") for name, title, _ in sections]
    inside = [element("b", title), element("nav", links, aria_label="sections")]
    bar = element("header", [element("div", inside)], class_="bar")
    main = [element("h1", title), _where(sides)]
    main += [element("section", [element("h2", title), *parts], id=name) for name, title, parts in sections]
    return _document(title, [bar, element("main", main)], _data(sides))


def _where(sides: Sequence[Side]) -> Markup:
    old, *new = (f"{one.where}, {bytes_in_words(one.found.total_bytes)}" for one in sides)
    if not new:
        return element("p", old, class_="where")
    parts = [element("span", old, class_="old"), element("span", " → "), element("span", *new, class_="new")]
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
        legend = [
            element("a", "The module below", href="#module"),
            element("span", " has colours:"),
            element("span", "differs by more than its operands and rounding explain", class_="swatch own"),
            element("span", "differs as they explain", class_="swatch reached"),
            element("span", "the stronger the colour, the larger the difference"),
        ]
        parts.append(element("p", legend, class_="legend"))
    return parts


def _differences(old: Side, new: Side, differences: Differences) -> list[Markup]:
    parts: list[Markup] = []
    for section, found in differences.items():
        lines = [
            (*map(cut, (name, a, b)), "added" if a in ("", "none") else "removed" if b in ("", "none") else "changed")
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
    return [*parts, _DRAWING]


def _counts(one: Side, order: int) -> str:
    counts = one.found.operation_counts[order]
    size = bytes_in_words(one.found.module_bytes[order])
    return size if counts is None else f"{words.operations(counts)}, {size}"


_DRAWING = Markup(
    '<div id="drawing" hidden><div id="tabs" role="tablist" aria-label="modules"></div><p id="why"></p><div id="drawn">'
    '<div class="tools"><input type="search" id="search" placeholder="Search operations, scopes, files  ( / )" '
    'aria-label="search">'
    + joined(
        element("button", text, type="button", id=name, title=about, aria_label=about)
        for name, text, about in (
            ("all", "open all", "open as much as there is room for"),
            ("none", "close all", "close all"),
            ("farther", "\N{MINUS SIGN}", "farther away"),
            ("closer", "+", "closer"),
            ("fit", "fit", "fit into the frame"),
        )
    )
    + '<label title="draw constants and sizes as nodes, too"><input type="checkbox" id="constants">'
    "<span>numbers</span></label>"
    '<div id="found" hidden></div></div><div class="split"><div id="graph">'
    '<svg id="canvas" role="group" aria-label="the module as a graph"></svg></div>'
    '<aside id="about" aria-live="polite"></aside></div></div></div>'
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
        card.releases(readers.releases),
        card.table(("JAX", "", "because of"), lines[:_MOST_ROWS]),
    ]


def _trust(one: Side) -> list[Markup]:
    found = one.found
    effects = words.effects(found.ordered_effects, found.unordered_effects, 50)
    about = f"The verdict of Policy(), which allows only what is understood and stable. Effects: {cut(effects)}."
    parts, calls = [element("p", about)], [some or {} for some in found.custom_calls[:8]]
    targets = sorted({target for some in calls for target in some})[:_MOST_ROWS]
    if targets:
        lines = [(cut(t), *(f"{some.get(t, 0):,}" for some in calls), cut(_verdict(t))) for t in targets]
        orders = [f"in VJP {order}" if order else "calls" for order in range(len(calls))]
        parts.append(card.table(("custom call", *orders, "Policy()"), lines))
    elif None not in found.custom_calls:
        parts.append(element("p", "No custom calls."))
    if None in found.custom_calls:
        text = "The custom calls of a module that cannot be read here are not known."
        parts.append(element("p", text, class_="bad-text"))
    if found.unknown_operations:
        names = cut(listed(found.unknown_operations, most=50), 2_000)
        text = f"Operations that jaxexp does not know, and that Policy() refuses: {names}"
        parts.append(element("p", text, class_="bad-text"))
    return parts


def _verdict(target: str) -> str:
    if is_callback(target):
        return "refuses it: it calls back to Python; callbacks=True allows it"
    if target in STABLE_CUSTOM_CALLS:
        return "allows it: JAX promises to keep it stable"
    return f"refuses it; custom_calls=({target!r},) allows it"


# --- the file: its head, its styles and scripts, and the data that the script draws

# How many arguments of a VJP of a VJP are named.
_MOST_LABELS = 20_000
# How many dimensions of an array are named.
_MOST_DIMS = 16


def _data(sides: Sequence[Side]) -> Markup:
    """The data that the script draws, as JSON. No text in it can end the element that contains it."""
    found_modules = []
    taken = {one: _taken(one) for one in sides}
    for one, order, name, label in modules(sides):
        found = one.graphs[order]
        about: dict[str, Any] = {"label": label, "side": sides.index(one) if len(sides) > 1 else 1}
        if isinstance(found, Graph):
            arguments: list[tuple[str, str]] = []
            takes: dict[str, int] = {}
            if order < len(taken[one]):
                found, arguments = _named(one, found, taken[one][order])
                takes = taken[one][order].takes
            found = blocks.folded(found, arguments)
            about |= {
                "name": name,
                "texts": [cut(text) for text in found.texts],
                "labels": [argument for argument, _ in arguments],
                "kinds": [kind for _, kind in arguments],
                "takes": takes,
                "functions": [(cut(name), _short_block(block)) for name, block in found.functions.items()],
            }
            if one.check is not None and order in one.check.errors:
                about |= _errors(one.check.errors[order])
        else:
            about["why"] = found
        found_modules.append(about)
    text = json.dumps({"modules": found_modules}, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _errors(found: Errors) -> dict[str, Any]:
    """The errors of operations, each with its function, its number there, and two numbers; None is infinite."""

    def number(error: float) -> float | None:
        return float(f"{error:.3g}") if math.isfinite(error) else None

    every = [(cut(name), at, number(error), number(own)) for (name, at), (error, own) in found.operations.items()]
    return {"errors": every, "first": found.first and (cut(found.first[0]), found.first[1])}


class _NamedValue(NamedTuple):
    """An argument or a result of a module's main function. Its kind is a weight, an argument of the call, or a
    cotangent.
    """

    name: str
    kind: str
    type: graph.SignatureType


class _Signature(NamedTuple):
    """The arguments that a module takes, its results, and how many arguments of each kind its function takes."""

    arguments: list[_NamedValue]
    results: list[_NamedValue]
    takes: dict[str, int]


def _taken(one: Side) -> list[_Signature]:
    """The arguments of its function that each module takes, and its results.

    A VJP takes the arguments of its function and a cotangent for each result; it returns one for each argument.
    """

    def named(value: Value, kind: str) -> _NamedValue:
        # A signature may repeat a long shape for each value.
        dims = tuple(cut(str(dim), 40) for dim in value.shape) if len(value.shape) <= _MOST_DIMS else ()
        return _NamedValue(value.path, kind, graph.SignatureType(value.dtype, dims))

    def cotangents(values: list[_NamedValue]) -> list[_NamedValue]:
        return [_NamedValue(f"cotangent of {value.name}", "cotangent", value.type) for value in values]

    weights, found = one.facts.weight_count, list[_Signature]()
    arguments = [named(value, "weight" if i < weights else "argument") for i, value in enumerate(one.found.arguments)]
    results = [named(value, "") for value in one.found.results]
    for kept in one.kept:
        takes = collections.Counter(value.kind for value in arguments)
        found.append(_Signature([arguments[i] for i in kept if i < len(arguments)], results, takes))
        if len(arguments) > _MOST_LABELS:
            break
        arguments, results = [*arguments, *cotangents(results)], cotangents(arguments)
    return found


def _named(one: Side, found: Graph, signature: _Signature) -> tuple[Graph, list[tuple[str, str]]]:
    """The graph of a module with named dimensions, and a name and a kind for each argument of its main function."""
    arguments, results, _ = signature
    before = ["platform"] * (len(one.found.platforms) > 1) + ["token"] * len(one.found.ordered_effects)
    count = len(found.functions["main"]["a"]) if "main" in found.functions else 0
    kept = [(cut(value.name), value.kind) for value in arguments]
    named = graph.named(found, [value.type for value in arguments], [value.type for value in results])
    if count != len(before) + len(kept):
        return named, [(f"argument {i}", "") for i in range(count)]
    return named, [*((name, name) for name in before), *((name[: graph.LONGEST], kind) for name, kind in kept)]


def _short_block(block: dict[str, Any]) -> dict[str, Any]:
    """A block whose operations do not have the empty items at their ends."""
    operations = []
    for operation in block["o"]:
        short = [*operation[:6], [*map(_short_block, operation[6])], operation[7]]
        while len(short) > 5 and not short[-1]:
            short.pop()
        operations.append(short)
    return {**block, "o": operations}


def _document(title: str, body: Sequence[Markup], data: Markup) -> str:
    style = Markup(f"{card.asset('card.css')}{card.asset('page.css')}")
    script = Markup("".join(card.asset(f"{name}.js") for name in ("layout", "module", "page")))
    allowed = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; base-uri 'none'; "
        "form-action 'none'"
    )
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=allowed),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{title} · jaxexp"),
        element("style", [style]),
    ]
    scripts = [element("script", [data], type="application/json", id="data"), element("script", [script])]
    whole = element("html", [element("head", head), element("body", [*body, *scripts], class_="jaxexp")], lang="en")
    return f"<!doctype html>\n{joined([whole])}\n"


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
