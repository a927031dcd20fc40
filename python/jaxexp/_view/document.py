"""The file of a page: its head, its styles and scripts, and the data that the script draws."""

from __future__ import annotations

import base64
import collections
import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxexp._kernel.artifact.words import cut

from . import blocks, card, dimensions, graph
from .dimensions import Known
from .graph import Graph
from .markup import Markup, element, joined
from .sides import Errors, Side, modules

# How many arguments of a VJP of a VJP are named.
_MOST_LABELS = 20_000
# How many dimensions of an array are named.
_MOST_DIMS = 16


def data(sides: Sequence[Side]) -> Markup:
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


@dataclasses.dataclass(frozen=True, slots=True)
class _Value:
    """An argument or a result of a module's main function. Its kind is a weight, an argument of the call, or a
    cotangent.
    """

    name: str
    kind: str
    type: Known


class _Signature(NamedTuple):
    """The arguments that a module takes, its results, and how many arguments of each kind its function takes."""

    arguments: list[_Value]
    results: list[_Value]
    takes: dict[str, int]


def _taken(one: Side) -> list[_Signature]:
    """The arguments of its function that each module takes, and its results.

    A VJP takes the arguments of its function and a cotangent for each result; it returns one for each argument.
    """
    weights = one.facts.weight_count
    arguments, results = (
        [
            _Value(value.path, "weight" if i < first else "argument", Known(value.dtype, _dims(value.shape)))
            for i, value in enumerate(values)
        ]
        for values, first in ((one.found.arguments, weights), (one.found.results, 0))
    )
    found = []
    for kept in one.kept:
        takes = collections.Counter(value.kind for value in arguments)
        found.append(_Signature([arguments[i] for i in kept if i < len(arguments)], results, takes))
        if len(arguments) > _MOST_LABELS:
            break
        arguments, results = [*arguments, *map(_cotangent, results)], [*map(_cotangent, arguments)]
    return found


def _dims(shape: tuple[int | str, ...]) -> tuple[str, ...]:
    """Dimensions as texts; none if there are many, because a signature may repeat a long shape for each value."""
    return tuple(cut(str(dim), 40) for dim in shape) if len(shape) <= _MOST_DIMS else ()


def _named(one: Side, found: Graph, signature: _Signature) -> tuple[Graph, list[tuple[str, str]]]:
    """The graph of a module with named dimensions, and a name and a kind for each argument of its main function."""
    arguments, results, _ = signature
    before = ["platform"] * (len(one.found.platforms) > 1) + ["token"] * len(one.found.ordered_effects)
    count = len(found.functions["main"]["a"]) if "main" in found.functions else 0
    kept = [(cut(value.name), value.kind) for value in arguments]
    named = dimensions.named(found, [value.type for value in arguments], [value.type for value in results])
    return named, graph.labels(count, kept, before)


def _cotangent(value: _Value) -> _Value:
    return _Value(f"cotangent of {value.name}", "cotangent", value.type)


def _short_block(block: dict[str, Any]) -> dict[str, Any]:
    return {**block, "o": [_short_operation(operation) for operation in block["o"]]}


def _short_operation(operation: list[Any]) -> list[Any]:
    """An operation without the empty items at its end."""
    short = [*operation[:6], [_short_block(block) for block in operation[6]], operation[7]]
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
