"""What operations do together, in words: "attention" and "MLP", or else the kinds of the operations that matter.

A word is said only if its operations stand in the order that makes it: attention is a product of two activations, a
softmax of it, and a product with an activation.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

from .graph import Graph

# Operations that only pass their operand on.
_COPIES = frozenset(("broadcast_in_dim", "convert", "reshape"))
_MOVES = _COPIES | {"transpose", "slice", "dynamic_slice", "concatenate", "dynamic_broadcast_in_dim", "dynamic_reshape"}
_ACTIVATIONS = frozenset(("tanh", "logistic", "maximum", "chlo.erf", "chlo.erfc"))
_STEPS = {"convolution": "C", "exponential": "E", "divide": "V", "chlo.erf": "F", "chlo.erfc": "F"}
# How the numbers in a GELU begin, in each float type: in its tanh, in its erf, and in the series of an erf.
_FACTORS = (("0.0447", "G"), ("0.0446", "G"), ("0.707", "H"), ("1.128", "F"))
# Kinds by rank: 0 is named first, then other functions, 2 and 3 only if there is nothing else.
_HEAVY = frozenset(
    "convolution dot_general fft cholesky triangular_solve sort gather scatter reduce_window while case if "
    "rng_bit_generator all_reduce all_gather all_to_all".split()
)
_ARITHMETIC = frozenset(("add", "subtract", "multiply", "divide", "negate", "and", "or", "not"))
_LIGHT = _MOVES | {"constant", "iota", "compare", "select", "pad", "func.call", "get_dimension_size"}
_CUSTOM = "custom_call "
# Kinds in a text, and steps of a function that a caller knows.
_MOST_KINDS, _MOST_STEPS = 3, 64


@dataclasses.dataclass(slots=True)
class Contents:
    """What operations contain, with the functions that they call: how many of each kind, and the steps in order that
    words are made of. Steps are products with a weight (W) and of activations (D), convolutions (C), activation
    functions (A), the parts of a softmax: maximum (M), exponential (E) and quotient (V), the factors of a GELU of tanh
    (G) and of erf (H, F), and reciprocal roots of weights alone (N).
    """

    kinds: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    steps: str = ""

    def __str__(self) -> str:
        ranks = [_rank(kind) for kind in self.kinds]
        return self.words() or self.counted(min(ranks, default=0) + 1)

    def words(self) -> str:
        """What the operations are together; empty if there is no word for it."""
        words = [*_words(self.steps)]
        if count := self.kinds["convolution"]:
            words.append("convolution" if count == 1 else f"{count:,} convolutions")
        if not words and not self.kinds["dot_general"]:
            if self.kinds["reduce"] and _in_order("MEV", self.steps):
                words.append("softmax")
            elif self.kinds["rsqrt"] and (self.kinds["reduce"] or (self.kinds["subtract"] and "N" in self.steps)):
                words.append("normalization")
            elif ("G" in self.steps and self.kinds["tanh"]) or {*"HF"} <= {*self.steps}:
                words.append("GELU")
        return ", ".join(words)

    def counted(self, last: int = 3) -> str:
        """The kinds of operations, those that matter first, up to a rank."""
        kinds = [pair for pair in self.kinds.items() if _rank(pair[0]) <= last]
        kinds.sort(key=lambda pair: (_rank(pair[0]), -pair[1]))
        named = [f"{count:,} {short(kind)}" if count > 1 else short(kind) for kind, count in kinds[:_MOST_KINDS]]
        return ", ".join(named) + (", …" if len(kinds) > _MOST_KINDS else "")


def short(kind: str) -> str:
    return kind.removeprefix("func.").removeprefix("chlo.").removeprefix(_CUSTOM)


def _rank(kind: str) -> int:
    return 0 if kind in _HEAVY or kind.startswith(_CUSTOM) else 3 if kind in _LIGHT else 2 if kind in _ARITHMETIC else 1


def _words(steps: str) -> Iterable[str]:
    products = steps.replace("A", "")
    if any(_in_order("MEV", between) for between in _between(products)):
        yield "attention"
    found = [i for i, step in enumerate(steps) if step in "WDC"]
    if any(steps[a] == steps[b] == "W" and {*"AF"} & {*steps[a:b]} for a, b in itertools.pairwise(found)):
        yield "MLP"


def _between(steps: str) -> Iterable[str]:
    """What stands between two products of activations."""
    parts = steps.replace("W", "C").split("D")
    return (part for part in parts[1:-1] if "C" not in part)


def _in_order(wanted: str, steps: str) -> bool:
    rest = iter(steps)
    return all(step in rest for step in wanted)


class Function:
    """The operations of a function: which of them are only numbers, and what each one contains.

    Attributes:
        made: for each value, the operation that makes it; None for an argument.
        hidden: the operations, by `id`, that are drawn only inside of their users: numbers, and copies of numbers.
    """

    def __init__(
        self, graph: Graph, block: dict[str, Any], weights: Iterable[int], called: dict[str, Contents]
    ) -> None:
        self.texts, self.called = graph.texts, called
        self.made: list[list[Any] | None] = []
        self.hidden: set[int] = set()
        self._contents: dict[int, Contents] = {}
        self._given = {*weights}  # weights and numbers, and what is only moved
        self._of_weights = {*self._given}  # and what is calculated from these alone
        self._numbers: dict[int, str] = {}  # with their texts
        self._size = ""  # of the last product
        self._read(block)

    def of(self, some: Iterable[list[Any]]) -> Contents:
        """What the operations contain together, without numbers."""
        found = Contents()
        steps = []
        for operation in some:
            if id(operation) not in self.hidden:
                one = self._contents[id(operation)]
                found.kinds.update(one.kinds)
                steps.append(one.steps)
        found.steps = "".join(steps)
        return found

    def _read(self, block: dict[str, Any]) -> None:
        self.made += [None] * len(block["a"])
        for operation in block["o"]:
            first = len(self.made)
            self.made += [operation] * len(operation[4])
            for inner in operation[6]:
                self._read(inner)
            self._look(operation, range(first, first + len(operation[4])))

    def _look(self, operation: list[Any], results: range) -> None:
        kind, more, operands = self.texts[operation[0]], self.texts[operation[5]], operation[3]
        types = [self.texts[i] for i in operation[4]]
        if kind == "composite":  # as newer releases write chlo.erf
            kind = more or kind
        is_number = kind == "constant" and (more != "" or types[0].endswith("[]"))
        if is_number or (kind in _COPIES and self._numbers.keys() >= {*operands}):
            self.hidden.add(id(operation))
            text = more if kind == "constant" else "".join(self._numbers[i] for i in operands[:1])
            self._numbers.update(dict.fromkeys(results, text))
        if kind == "constant" or (kind in _MOVES and not self._given.isdisjoint(operands[:1])):
            self._given.update(results)
        if kind == "constant" or (operands and self._of_weights.issuperset(operands)):
            self._of_weights.update(results)
        inner = [one for block in operation[6] for one in block["o"]]
        found = self.of(inner)
        if kind == "func.call":
            found = self.called.get(more, found)
            found = Contents(found.kinds.copy(), found.steps[:_MOST_STEPS])
        else:
            found.kinds[f"{_CUSTOM}{more}" if kind == "custom_call" else kind] += 1
        found.steps += self._step(kind, operands, types, inner, found)
        self._contents[id(operation)] = found

    def _step(self, kind: str, operands: list[int], types: list[str], inner: list[Any], found: Contents) -> str:
        size = types[0].partition("[")[2] if types else ""
        size = ",".join(sorted(size.rstrip("]").split(",")))
        if kind == "dot_general":
            self._size = size
            return "D" if self._given.isdisjoint(operands) else "W"
        if kind == "reduce":
            return "M" if any(self.texts[one[0]] == "maximum" for one in inner) else ""
        if size == self._size and not {*found.steps} & {*"WDC"} and not _ACTIVATIONS.isdisjoint(found.kinds):
            return "F" if kind in _STEPS else "A"
        if kind == "rsqrt":
            return "N" if self._of_weights.issuperset(operands) else ""
        if kind in _ARITHMETIC:
            numbers = [self._numbers[i] for i in operands if i in self._numbers]
            factors = [letter for start, letter in _FACTORS for text in numbers if text.startswith(start)]
            return factors[0] if factors else _STEPS.get(kind, "")
        return _STEPS.get(kind, "")
