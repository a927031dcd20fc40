"""Cards for notebooks: the first part of a page as separate HTML, with styles and without scripts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import TYPE_CHECKING

from jaxexp._kernel.artifact.words import counted, cut

from . import facts, figures, tree
from .facts import Facts, Leaf, Placement
from .markup import Markup, element, joined

if TYPE_CHECKING:
    from jaxexp._kernel.function.data import ExportedData

# The most values in a card, which a notebook stores.
_MOST_VALUES = 200
_MOST_FIGURES = 12


@functools.cache
def asset(name: str) -> Markup:
    """A file of this room: styles or a script."""
    return Markup(resources.files("jaxexp._view").joinpath("assets", name).read_text(encoding="utf-8"))


def of_exported(exported: ExportedData, count: int) -> str:
    """A function as a card; the first `count` of its arguments are weights."""
    found = facts.of_exported(exported, count)
    short = dataclasses.replace(
        found,
        arguments=found.arguments[:_MOST_VALUES],
        results=found.results[:_MOST_VALUES],
        weights=found.weights[:_MOST_VALUES],
    )
    return _framed([_head(found.name), rows(short.rows), *signature(short), *weights(short)])


def rows_card(title: str, found: Iterable[tuple[str, str]]) -> str:
    """A card with names and texts."""
    return _framed([_head(title), rows((name, cut(text, 2_000)) for name, text in found if text)])


def table_card(title: str, heads: Sequence[str], lines: Iterable[Sequence[str]], missing: int) -> str:
    """A card with a table, which has so many more lines that are missing here."""
    parts = [_head(title), table(heads, (tuple(map(cut, line)) for line in lines))]
    if missing > 0:
        parts.append(element("p", f"and {missing:,} more", class_="more"))
    return _framed(parts)


def _head(title: str) -> Markup:
    return element("p", [element("code", cut(title), class_="name")], class_="head")


def _framed(parts: Sequence[Markup]) -> str:
    return element("div", [element("style", [asset("card.css")]), *parts], class_="jaxexp")


def rows(found: Iterable[tuple[str, str]]) -> Markup:
    """Names and texts in two columns."""
    return element("dl", [joined((element("dt", name), element("dd", text))) for name, text in found])


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> Markup:
    """A table of texts. If a line has one text more than there are heads, the last one is the class of its row."""
    head = element("thead", [element("tr", [element("th", name, scope="col") for name in heads])])
    body = [
        element(
            "tr",
            [element("td", text) for text in line[: len(heads)]],
            class_=line[len(heads)] if len(line) > len(heads) else None,
        )
        for line in lines
    ]
    return element("div", [element("table", [head, element("tbody", body)])], class_="wide")


def signature(found: Facts, old: Facts | None = None) -> list[Markup]:
    """Arguments and results, with drawings of their shardings; next to those of another function, if there is one."""
    parts: list[Markup] = []
    for title, now, count, before in (
        ("argument", found.arguments, found.argument_count, None if old is None else old.arguments),
        ("result", found.results, found.result_count, None if old is None else old.results),
    ):
        parts.append(element("h3", counted(count, title) if count else f"no {title}s"))
        parts.append(tree.tree(tree.rows(now, before), count - len(now)))
    return [*parts, *shardings((*found.arguments, *found.results, *found.weights))]


def shardings(leaves: Sequence[Leaf]) -> list[Markup]:
    """Each different sharding once, drawn for the first array that has it."""
    first: dict[tuple[Placement, int], Leaf] = {}
    for leaf in leaves:
        if leaf.placement is not None:
            first.setdefault((leaf.placement, len(leaf.shape)), leaf)
    drawn: list[Markup] = []
    for (placement, _), leaf in list(first.items())[:_MOST_FIGURES]:
        svg = figures.sharding(leaf, placement)
        copies = figures.copied(placement)
        about = [f"Mesh({placement.mesh})"]
        about += [f"in {placement.memory}"] if placement.memory not in (None, "device") else []
        about += [f"copied over {', '.join(copies)}"] if copies else []
        caption = [
            element("code", str(placement), class_="spec"),
            element("span", f" {leaf.path} {leaf.type}"),
            element("br"),
            element("span", ", ".join(about), class_="size"),
        ]
        drawn.append(element("figure", [*([svg] if svg else []), element("figcaption", caption)]))
    if not drawn:
        return []
    more = len(first) - len(drawn)
    rest = [element("p", f"and {counted(more, 'more sharding')}", class_="more")] if more > 0 else []
    return [element("h3", "shardings"), element("div", drawn, class_="figures"), *rest]


def weights(found: Facts, old: Facts | None = None) -> list[Markup]:
    """The weights, or else the arguments, by size."""
    parts: list[Markup] = []
    if found.weight_count or (old is not None and old.weight_count):
        parts.append(element("h3", counted(found.weight_count, "weight")))
        drawn = figures.areas(found.weights, "weights")
        parts += [element("div", [drawn], class_="wide")] if drawn else []
        lines = tree.rows(found.weights, None if old is None else old.weights)
        parts.append(tree.tree(lines, found.weight_count - len(found.weights)))
    elif (drawn := figures.areas(found.arguments, "arguments")) is not None and len(found.arguments) > _FEW:
        parts += [element("h3", "sizes of the arguments"), element("div", [drawn], class_="wide")]
    return parts


_FEW = 4
