"""The artifacts of a page: the facts about each, and its modules taken apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from jaxexp._errors import ExportError
from jaxexp._kernel.artifact.chain import chain
from jaxexp._kernel.artifact.inspection import shown_node
from jaxexp._kernel.artifact.words import cut

from . import graph
from .facts import CardFacts, of_artifact
from .graph import Graph

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.inspection import Inspection
    from jaxexp._native import Artifact

# How many modules a page shows, and how many of them have named arguments.
_MOST_MODULES, _MOST_NAMED = 128, 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """The releases that load an artifact.

    Attributes:
        releases: all known releases of JAX, and whether each one loads it.
        spans: ranges of releases, and why they refuse it; empty if they load it.
        facts: other facts.
    """

    releases: tuple[tuple[str, bool], ...]
    spans: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, str], ...]


class Errors(NamedTuple):
    """By how much results of operations differ from those of another run of the same module.

    Attributes:
        module: the module.
        operations: for an operation, by its function and its number there: by how much its result differs, relative to
            its size, and how much of that neither its operands nor rounding explain.
        first: the function and the number of the operation that is named as the first one.
    """

    module: bytes
    operations: Mapping[tuple[str, int], tuple[float, float]]
    first: tuple[str, int] | None


class Check(NamedTuple):
    """What a check of an artifact found.

    Attributes:
        title: the verdict.
        heads, lines: a table of cases and their results.
        words: what else there is to say.
        errors: by the order of the VJP, where a call differs.
    """

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    words: Sequence[str]
    errors: Mapping[int, Errors]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Side:
    """An artifact on a page.

    Attributes:
        where: its file, or its place in an archive.
        found: the result of `inspect`.
        facts: the same, as shown on the page.
        graphs: the graphs of its modules, or why one has none.
        kept: for the first modules, which arguments of its function each one takes.
        readers: who loads it.
        check: what a check of it found, if there was one.
    """

    where: str
    found: Inspection
    facts: CardFacts
    graphs: tuple[Graph | str, ...]
    kept: tuple[tuple[int, ...], ...]
    readers: Readers
    check: Check | None = None


def side(where: str, artifact: Artifact, found: Inspection, readers: Readers, check: Check | None = None) -> Side:
    """Takes an artifact apart, as far as a page has room. This imports JAX."""
    errors = {} if check is None else check.errors
    graphs: list[Graph | str] = []
    kept: list[tuple[int, ...]] = []
    left = graph.MOST_OPERATIONS
    for order, (link, counts) in enumerate(zip(chain(artifact), found.operation_counts, strict=True)):
        count = None if counts is None else sum(counts.values())
        drawn = count is not None and count <= left
        if order < _MOST_NAMED:
            kept.append(tuple(link.describe(shown_node)["kept"]) if drawn else ())
        if count is None:
            graphs.append("It is damaged, or in a format that is not known here, so it is not drawn.")
        elif count > left:
            graphs.append(
                f"It has {count:,} operations. A page has room for {graph.MOST_OPERATIONS:,} in all modules of an "
                "artifact together, so they are only counted."
            )
        else:
            try:
                graphs.append(graph.read(errors[order].module if order in errors else link.module()))
            except ExportError as error:
                graphs.append(f"It is not drawn: {cut(str(error), 400)}")
            left -= count
    first = graphs[0]
    donated = first.donated if isinstance(first, Graph) else ()
    facts = of_artifact(artifact, found, donated)
    return Side(cut(where), found, facts, tuple(graphs), tuple(kept), readers, check)


def modules(sides: Sequence[Side]) -> list[tuple[Side, int, str, str]]:
    """All modules of a page, those of functions and their VJPs: the order, a name, and a label that also tells two
    artifacts apart.
    """
    found = []
    for one, prefix in zip(sides, ("",) if len(sides) == 1 else ("old: ", "new: "), strict=True):
        for order in range(len(one.graphs)):
            name = f"VJP {order}" if order else one.facts.name
            found.append((one, order, name, f"{prefix}{name}"))
    return found[:_MOST_MODULES]
