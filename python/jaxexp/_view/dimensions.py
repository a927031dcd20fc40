"""The names of dimensions and of keys: modules have sizes, question marks and uint32, signatures have expressions and
key<fry>.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from .graph import Graph, numbered, operations

_ANY = "?"


class Known(NamedTuple):
    """The type of an argument or a result in the signature, with its dimensions as texts."""

    dtype: str
    dims: tuple[str, ...]

    def fits(self, text: str) -> bool:
        """Whether it agrees with a type in the graph, and says more."""
        dtype, _, rest = text.partition("[")
        found = rest.removesuffix("]").split(",") if rest != "]" else []
        is_key = self.dtype.startswith("key<") and dtype == "uint32"  # with a dimension more: the words of the key
        if is_key:
            found = found[:-1]
        return (
            (is_key or (_ANY in found and dtype == self.dtype))
            and len(found) == len(self.dims)
            and all(now in (_ANY, dim) for now, dim in zip(found, self.dims, strict=True))
        )

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(self.dims)}]"


def named(graph: Graph, arguments: Sequence[Known], results: Sequence[Known]) -> Graph:
    """The same graph with names of dimensions, as far as arguments and results of the function pass through it. They
    are the last ones of `main`, which may have others before them.
    """
    if "main" not in graph.functions:
        return graph
    return _Naming(graph).done(arguments, results)


class _Naming:
    """A graph whose dimensions are being named."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.numbers = {text: number for number, text in enumerate(graph.texts)}
        self.functions = dict(graph.functions)
        # A function that is called twice may be called with other dimensions.
        self.calls = collections.Counter(
            name for name in map(self.called, operations(graph.functions.values())) if name
        )

    def done(self, arguments: Sequence[Known], results: Sequence[Known]) -> Graph:
        main = self.graph.functions["main"]
        waiting = [("main", _last(arguments, len(main["a"])), _last(results, len(main["r"])))]
        seen = {"main"}
        while waiting:
            for call in self.function(*waiting.pop()):
                name = call[0]
                if self.calls[name] == 1 and name in self.functions and name not in seen:
                    seen.add(name)
                    waiting.append(call)
        return dataclasses.replace(self.graph, texts=tuple(self.numbers), functions=self.functions)

    def called(self, operation: list[Any]) -> str:
        return self.graph.texts[operation[5]] if self.graph.texts[operation[0]] == "func.call" else ""

    def function(
        self, name: str, arguments: list[Known | None], results: list[Known | None]
    ) -> list[tuple[str, list[Known | None], list[Known | None]]]:
        """Names the known dimensions in a function, and returns what is known about the functions that it calls."""
        block = self.functions[name]
        passed = [*zip(block["r"], results, strict=False), *enumerate(arguments[: len(block["a"])])]
        known = {value: one for value, one in passed if one is not None}
        types, operations = list(block["a"]), []
        calls: list[tuple[str, list[Known | None], list[Known | None]]] = []
        self.name(types, range(len(types)), known)
        first = len(types)
        for operation in block["o"]:
            made = range(first, first + len(operation[4]))
            first = made.stop + sum(map(_values, operation[6]))
            if self.graph.texts[operation[0]] == "sdy.sharding_constraint":
                known |= {result: known[i] for result, i in zip(made, operation[3], strict=False) if i in known}
            if not known.keys().isdisjoint(made):
                operation = [*operation[:4], list(operation[4]), *operation[5:]]
                self.name(operation[4], made, known)
            operations.append(operation)
            if callee := self.called(operation):
                calls.append((callee, [known.get(i) for i in operation[3]], [known.get(i) for i in made]))
        self.functions[name] = {**block, "a": types, "o": operations}
        return calls

    def name(self, types: list[int], values: range, known: dict[int, Known]) -> None:
        for place, value in enumerate(values):
            one = known.get(value)
            if one is not None and one.fits(self.graph.texts[types[place]]):
                types[place] = numbered(str(one), self.numbers)


def _last(known: Sequence[Known], count: int) -> list[Known | None]:
    """What is known of the last values, with None for those before them; nothing if there are too many."""
    return [] if len(known) > count else [*[None] * (count - len(known)), *known]


def _values(block: dict[str, Any]) -> int:
    """How many values are numbered in a block and the blocks inside of it."""
    return len(block["a"]) + sum(len(operation[4]) + sum(map(_values, operation[6])) for operation in block["o"])
