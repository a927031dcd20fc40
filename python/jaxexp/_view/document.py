"""The file of a page: its head, its styles and scripts, and what the script draws, as data."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from . import card, graph
from .facts import cut
from .graph import Graph
from .markup import Markup, element, joined
from .sides import Side, modules

# Arguments that are named, of a VJP of a VJP.
_MOST_LABELS = 20_000


def data(sides: Sequence[Side]) -> Markup:
    """What the script draws, as JSON; no text in it can end the element that it is in."""
    found_modules = []
    names = {one: _labels(one) for one in sides}
    for one, order, label in modules(sides):
        found = one.graphs[order]
        about: dict[str, Any] = {"label": label, "side": sides.index(one) if len(sides) > 1 else 1}
        if isinstance(found, Graph):
            about |= {
                "texts": [cut(text) for text in found.texts],
                "labels": names[one][order] if order < len(names[one]) else [],
                "functions": [(cut(name), _short_block(block)) for name, block in found.functions.items()],
            }
        else:
            about["why"] = found
        found_modules.append(about)
    text = json.dumps({"modules": found_modules}, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _labels(one: Side) -> list[list[str]]:
    """Names for the arguments of each module's main function.

    A VJP takes the arguments of its function and a cotangent for each result; it returns one for each argument.
    """
    arguments, results = ([value.path for value in values] for values in (one.found.arguments, one.found.results))
    before = ["platform"] * (len(one.found.platforms) > 1) + ["token"] * len(one.found.ordered_effects)
    found = []
    for order, kept in enumerate(one.kept):
        drawn = one.graphs[order]
        count = len(drawn.functions["main"]["a"]) if isinstance(drawn, Graph) and "main" in drawn.functions else 0
        names = [cut(arguments[i]) for i in kept if i < len(arguments)]
        found.append(graph.labels(count, names, before))
        if len(arguments) > _MOST_LABELS:
            break
        arguments, results = [*arguments, *map(_cotangent, results)], [*map(_cotangent, arguments)]
    return found


def _cotangent(path: str) -> str:
    return f"cotangent of {path}"


def _short_block(block: dict[str, Any]) -> dict[str, Any]:
    return {**block, "o": [_short_operation(operation) for operation in block["o"]]}


def _short_operation(operation: list[Any]) -> list[Any]:
    """An operation without what is empty at its end."""
    short = [*operation[:6], [_short_block(block) for block in operation[6]], *operation[7:]]
    while len(short) > 5 and not short[-1]:
        short.pop()
    return short


def document(title: str, body: Sequence[Markup], data: Markup) -> str:
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
