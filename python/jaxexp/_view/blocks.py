"""What stands together in a module: calls in the source, name scopes, and what uses the weights of one place.

A trace writes operations down in order, so each of these is a run of operations. A loop over layers leaves no trace of
its own, but each turn uses other weights, and it ends where the fewest values go on to the next.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from .facts import STEP, common
from .graph import Graph, SourceCall, numbered, operations, values_in

# Nodes of a level before they are put into groups, and the size of such a group.
_MOST_NODES, _GROUP = 60, 40
# Nodes of a level before the operations of one expression are put into a group, and the fewest of these.
_FEW_NODES, _EXPRESSION = 12, 4
_DEEPEST = 32  # calls, or scopes
# The functions whose operations are drawn first.
_ROOTS = ("main", "_wrapped_jax_export_main")
_INDEX = re.compile(r"\[\d+\]")

T = TypeVar("T")
# The steps to a weight, as in ("args[0]", "blocks", "[0]", "kernel").
Path = tuple[str, ...]


def folded(graph: Graph, labels: Sequence[tuple[str, str]]) -> Graph:
    """The same graph. Its blocks also have groups (`g`), the operations that are drawn only inside of their users
    (`h`), and what they contain (`s`). A group is a list: its title, what it contains, the place of the call, its first
    and its last operation, and the groups inside of it. The labels are names and kinds of the arguments of `main`.
    """
    paths = of_labels(labels)
    root = common(paths) or ()
    known: dict[str, Sequence[Path | None]] = {"main": paths}
    numbers = {text: number for number, text in enumerate(graph.texts)}
    functions: dict[str, dict[str, Any]] = {}
    contents: dict[str, Contents] = {}
    for name in _callees_first(graph, known):
        block, given = graph.functions[name], known.get(name, ())
        function = FunctionContents(graph, block, (i for i, path in enumerate(given) if path is not None), contents)
        contents[name] = function.of(block["o"])
        folding = _Folding(graph, numbers, function, dict(enumerate(given)), root)
        functions[name] = folding.block(block, 0, name in _ROOTS)
    ordered = {name: functions[name] for name in graph.functions}
    return dataclasses.replace(graph, texts=tuple(numbers), functions=ordered)


def _callees_first(graph: Graph, known: dict[str, Sequence[Path | None]]) -> list[str]:
    """The functions, each after those that it calls. Adds the weights that functions are called with, if there is only
    one call.
    """
    calls = {
        name: [operation for operation in operations([block]) if graph.texts[operation[0]] == "func.call"]
        for name, block in graph.functions.items()
    }
    order: dict[str, None] = {}
    seen = set()
    for start in graph.functions:
        waiting = [start]
        while waiting:
            name = waiting[-1]
            if name in seen:
                order.setdefault(waiting.pop())
            else:
                seen.add(name)
                callees = (graph.texts[call[5]] for call in calls[name])
                waiting += [callee for callee in callees if callee in calls and callee not in seen]
    times = collections.Counter(graph.texts[call[5]] for found in calls.values() for call in found)
    for name in reversed(order):
        here = dict(enumerate(known.get(name, ())))
        for call in calls[name]:
            if times[callee := graph.texts[call[5]]] == 1:
                known[callee] = [here.get(value) for value in call[3]]
    return list(order)


@dataclasses.dataclass(slots=True)
class _DrawnNode:
    """An operation, or a group of them, from `first` to `last` of its block.

    Attributes:
        path: what the paths of the weights that it uses have in common; None if it uses none.
        name: the name of its scope or function.
        title: what it is called on the page.
        is_scope: whether that is a scope.
        is_turn: whether it is a group because of its weights.
        called: where its function is called.
        kind, calls: for an operation, the numbers of its kind and of its calls.
    """

    first: int
    last: int
    path: Path | None
    name: str = ""
    title: str = ""
    is_scope: bool = False
    is_turn: bool = False
    called: str = ""
    kind: int = 0
    calls: int = 0
    inside: list[_DrawnNode] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    """An operation that is drawn."""

    node: _DrawnNode
    scopes: tuple[str, ...]
    calls: tuple[SourceCall, ...]
    is_call: bool


class _Folding:
    """A function whose operations are being put into groups."""

    def __init__(
        self,
        graph: Graph,
        numbers: dict[str, int],
        function: FunctionContents,
        paths: dict[int, Path | None],
        root: Path,
    ) -> None:
        self.graph, self.numbers, self.function, self.paths, self.root = graph, numbers, function, paths, root
        self.leaves = {path for path in paths.values() if path}
        self.longest = max(map(len, graph.calls))
        self.crossing: list[int] = []  # how many values are made before an operation of the block, and used after

    def block(self, block: dict[str, Any], first: int, is_root: bool) -> dict[str, Any]:
        """A block with its groups, and the blocks inside of it; its values are numbered from `first`."""
        made, value = [], first + len(block["a"])
        starts = []
        for operation in block["o"]:
            starts.append(value)
            value += len(operation[4])
            inner = []
            for one in operation[6]:
                inner.append(self.block(one, value, is_root=False))
                value += values_in(one)
            made.append([*operation[:6], inner, *operation[7:]])
        hidden = [i for i, operation in enumerate(block["o"]) if id(operation) in self.function.hidden]
        self.crossing = self._crossing(block, starts)
        nodes = self._nodes(block["o"], {*hidden} if len(hidden) < len(block["o"]) else set(), is_root)
        groups, about = self._groups(nodes, self.root, "", block["o"]), str(self.function.of(block["o"]))
        return {**block, "o": made, "g": groups, "h": hidden, "s": self._number(about)}

    def _number(self, text: str) -> int:
        return numbered(text, self.numbers)

    def _crossing(self, block: dict[str, Any], starts: list[int]) -> list[int]:
        last = dict.fromkeys(block["r"], len(block["o"]))
        for i in reversed(range(len(block["o"]))):
            for value in _uses(block["o"][i]):
                last.setdefault(value, i)
        change = [0] * (len(block["o"]) + 2)
        for i, operation in enumerate(block["o"]):
            if id(operation) not in self.function.hidden:
                for value in range(starts[i], starts[i] + len(operation[4])):
                    if value in last:
                        change[i + 1] += 1
                        change[last[value] + 1] -= 1
        return [*itertools.accumulate(change[:-1])]

    # --- groups -------------------------------------------------------------------------------------------------------

    def _nodes(self, operations: list[list[Any]], hidden: set[int], is_root: bool) -> list[_DrawnNode]:
        drawn = [(i, operation) for i, operation in enumerate(operations) if i not in hidden]
        texts = self.graph.texts
        scopes = filled([of_scopes(texts[operation[1]]) for _, operation in drawn])
        calls = of_calls([self.graph.calls[operation[8]] for _, operation in drawn], self.longest)
        if is_root:  # what all have in common says nothing
            shared = len(common(one for one in scopes if one) or ())
            scopes = [one[shared:] for one in scopes]
        depth = len(common(calls) or ())
        if len({chain[depth].function if len(chain) > depth else "" for chain in calls}) == 1:
            depth += len(calls[0]) > depth
        items = [
            _Item(
                _DrawnNode(i, i, common(map(self.paths.get, operation[3])), kind=operation[0], calls=operation[8]),
                scopes[n][:_DEEPEST],
                calls[n][: depth + _DEEPEST],
                texts[operation[0]] == "func.call",
            )
            for n, (i, operation) in enumerate(drawn)
        ]
        nodes = self._folded(items, depth, 0, is_top=True)
        while is_root and len(nodes) == 1 and nodes[0].inside and not nodes[0].is_scope:
            nodes = nodes[0].inside
        return nodes

    def _folded(self, items: list[_Item], depth: int, scope: int, is_top: bool = False) -> list[_DrawnNode]:
        def call(item: _Item) -> Any:
            return (item.calls[depth - 1 : depth], item.calls[depth].function) if len(item.calls) > depth else None

        def scoped(item: _Item) -> Any:
            return item.scopes[scope] if len(item.scopes) > scope else None

        nodes: list[_DrawnNode] = []
        i = 0
        while i < len(items):
            calls, scopes = (_run(items, i, key) for key in (call, scoped))
            end = max(calls, scopes)
            some = items[i:end]
            if end == i:
                nodes.append(items[i].node)
                end += 1
            elif scopes >= calls:
                name = some[0].scopes[scope]
                inside = self._folded(some, depth + (calls == scopes), scope + 1)
                nodes.append(_scope(name, inside, keep=is_top))
            else:
                nodes += self._call(some, depth, scope)
            i = end
        return self._by_weights(nodes)

    def _call(self, items: list[_Item], depth: int, scope: int) -> list[_DrawnNode]:
        """The operations of a call as a group; or a group for each turn, if it is called again and again."""
        first = items[0]
        name, called = shown(first.calls[depth].function), first.calls[depth - 1].at if depth else ""
        if len(items) == 1:
            if first.is_call:
                first.node.name = first.node.name or name
            return [first.node]
        inside = self._folded(items, depth + 1, scope)
        turns = inside if len(inside) > 1 and all(node.is_turn for node in inside) else [_group(inside)]
        for node in turns:
            if not node.is_scope:
                node.name, node.called = name, called
            node.is_turn = False
        return turns

    def _by_weights(self, nodes: list[_DrawnNode]) -> list[_DrawnNode]:
        """The nodes, with those in one group that are neighbours and use the weights of one place."""
        depth = len(common(node.path for node in nodes) or ())
        runs: list[tuple[str, list[int]]] = []
        for i, node in enumerate(nodes):
            if node.path is not None:
                step = node.path[depth] if len(node.path) > depth else ""
                if runs and runs[-1][0] == step != "":
                    runs[-1][1].append(i)
                else:
                    runs.append((step, [i]))
        if len(runs) < 2 or all(len(places) < 2 for _, places in runs):
            return nodes
        are_turns = all(_INDEX.fullmatch(step) for step, _ in runs)
        found: list[_DrawnNode] = []
        done = 0
        for n, (_, places) in enumerate(runs):
            if len(places) < 2:
                continue
            before = runs[n - 1][1][-1] + 1 if n else 0
            after = runs[n + 1][1][0] if n + 1 < len(runs) else len(nodes)
            start = 0 if are_turns else places[0]
            if n:
                start = max(done, self._cut(nodes, before, places[0], is_last=True))
            if n + 1 < len(runs):
                end = self._cut(nodes, places[-1] + 1, after, is_last=len(runs[n + 1][1]) > 1)
            else:
                end = len(nodes) if are_turns else self._cut(nodes, places[-1] + 1, after, is_last=False)
            inside = self._by_weights(nodes[start:end])
            found += nodes[done:start]
            if len(inside) > 1 and (all(node.is_turn for node in inside) or _are_turns(inside)):
                found += inside
            else:
                found.append(dataclasses.replace(_group(inside), is_turn=True))
            done = end
        return found + nodes[done:]

    def _cut(self, nodes: list[_DrawnNode], low: int, high: int, is_last: bool) -> int:
        """The first or last place where the fewest values go on from one node to the next."""
        at = [*(node.first for node in nodes), nodes[-1].last + 1]
        return min(range(low, high + 1), key=lambda i: (self.crossing[at[i]], -i if is_last else i))

    # --- as plain data ------------------------------------------------------------------------------------------------

    def _groups(self, nodes: list[_DrawnNode], path: Path, around: str, operations: list[list[Any]]) -> list[Any]:
        """Inside of the call of a class, its other methods have short names."""
        nodes = _expressions(nodes)
        class_ = around.partition(" ")[0].rpartition(".")[2]
        shared = _shared_prefix(node.name for node in nodes)
        for node in nodes:
            if node.inside or node.name or self.graph.texts[node.kind] == "func.call":
                node.title = self._title(node, path, (f"{class_}.", shared))
        found = []
        for node in self._parts(nodes):
            if node.title or node.inside:
                contents = self.function.of(operations[node.first : node.last + 1])
                title = node.title or contents.words() or contents.counted()
                about = str(contents) if node.title else ""
                inside = self._groups(node.inside, self._place(node, path), node.name or around, operations)
                found.append([*map(self._number, (title, about, node.called)), node.first, node.last, inside])
        return [group if group[-1] else group[:-1] for group in found]

    def _title(self, node: _DrawnNode, path: Path, known: tuple[str, str]) -> str:
        """As in "blocks[0] · Block": where its weights are, and its name."""
        place, name = self._place(node, path), node.name
        for prefix in known:
            name = name.removeprefix(prefix)
        inner = place[len(path) :] if place[: len(path)] == path else place
        if inner and _INDEX.fullmatch(inner[0]):
            inner = (*path[-1:], *inner)
        where = dotted(inner)
        if node.is_scope and where.endswith("]") and re.findall(r"\d+", name)[-1:] == re.findall(r"\d+", where)[-1:]:
            return name  # layer0, for what uses layers[0]
        plain, also = (re.sub(r"\W|_", "", text).lower() for text in (where, name))
        return name if plain == also else " · ".join(filter(None, (where, name)))

    def _parts(self, nodes: list[_DrawnNode]) -> list[_DrawnNode]:
        """Too many nodes in parts. If they repeat each other, each part has whole repeats, else it ends where few
        values go on.
        """
        if len(nodes) <= _MOST_NODES:
            return nodes
        size = max(_GROUP, -(-len(nodes) // _MOST_NODES))
        alike = [(node.name, node.kind, node.calls) for node in nodes]
        period = next((n for n in range(1, size + 1) if alike[n:] == alike[:-n]), 0)
        if period:
            whole = -(-size // period) * period
            size = whole if whole < len(nodes) else size // period * period  # one part would be parted for ever
        parts, start = [], 0
        while start < len(nodes):
            end = start + size
            if not period and end < len(nodes):
                end = self._cut(nodes, end - size // 4, min(end + size // 4, len(nodes)), is_last=True)
            part = _group(nodes[start:end])
            titles = [node.title for node in part.inside if node.title]
            if len(titles) > len(part.inside) / 2:
                part.title = f"{titles[0]} to {titles[-1]}"
            elif period:
                done = min(end, len(nodes)) // period
                part.title = f"{start // period + 1} to {done} of {len(nodes) // period} repeats"
            parts.append(part)
            start = end
        return parts

    def _place(self, node: _DrawnNode, path: Path) -> Path:
        """The place of a node's weights: where a single weight is, unless there is nothing else to call the node."""
        place = node.path or path
        if len(place) <= len(path):
            return path
        return place[:-1] if place in self.leaves and (node.name or place[:-1] != path) else place


def _uses(operation: list[Any]) -> Iterable[int]:
    yield from operation[3]
    for block in operation[6]:
        for inner in operations([block]):
            yield from inner[3]
        yield from block["r"]


def _run(items: list[_Item], start: int, key: Any) -> int:
    """Where the operations end that have the same key as the first one, which has one; else the start."""
    wanted, end = key(items[start]), start
    while wanted is not None and end < len(items) and key(items[end]) == wanted:
        end += 1
    return end


def _are_turns(nodes: list[_DrawnNode]) -> bool:
    """Whether they are groups, each for the weights of another element of a list."""
    depth = len(common(node.path for node in nodes) or ())
    steps = [node.path[depth : depth + 1] for node in nodes if node.path is not None]
    return len({*steps}) == len(steps) and all(step and _INDEX.fullmatch(step[0]) for step in steps)


def _group(inside: list[_DrawnNode]) -> _DrawnNode:
    if len(inside) == 1 and inside[0].inside:
        return inside[0]
    path = common(node.path for node in inside)
    return _DrawnNode(inside[0].first, inside[-1].last, path, inside=inside)


def _scope(name: str, inside: list[_DrawnNode], keep: bool) -> _DrawnNode:
    if len(inside) == 1 and not inside[0].inside and not keep:
        return inside[0]
    node = _group(inside)
    node.name = f"{name}/{node.name}" if node.is_scope else name
    node.is_scope, node.is_turn = True, False
    return node


def _expressions(nodes: list[_DrawnNode]) -> list[_DrawnNode]:
    """Long levels with the operations of one expression in one group."""
    if len(nodes) <= _FEW_NODES:
        return nodes
    found: list[_DrawnNode] = []
    i = 0
    while i < len(nodes):
        end = i + 1
        while not nodes[i].inside and nodes[i].calls and end < len(nodes) and nodes[end].calls == nodes[i].calls:
            end += 1
        if end - i < _EXPRESSION or end - i == len(nodes):
            found += nodes[i:end]
        else:
            found.append(_group(nodes[i:end]))
        i = end
    return found


def _shared_prefix(names: Iterable[str]) -> str:
    """The modules that the names of classes have in common."""
    classes = {name for name in names if "." in name}
    modules = common(tuple(name.split(".")[:-1]) for name in classes) if len(classes) > 1 else None
    return "".join(f"{module}." for module in modules or ())


# --- the paths of weights: where they are in the trees that a function takes

_FLAT = re.compile(r"[./]")


def of_labels(labels: Sequence[tuple[str, str]]) -> list[Path | None]:
    """The paths of arguments that are weights, or look like weights: they are in a tree."""
    paths: list[Path | None] = []
    for name, kind in labels:
        first, second, *rest = [*STEP.findall(name), "", ""]
        if kind == "weight":
            steps = [step for part in _steps([second, *rest]) for step in _FLAT.split(part)]
        else:
            steps = [first + second, *_steps(rest)]
        steps = [f"[{step}]" if step.isdecimal() else step for step in steps]
        if len(steps) > 1 and steps[-1] in ("value", "raw_value"):  # of a variable of Flax
            del steps[-1]
        is_tree = kind == "weight" or (kind == "argument" and len(steps) > 1)
        paths.append(tuple(steps) if is_tree else None)
    return paths


def _steps(parts: Iterable[str]) -> list[str]:
    """Steps as short as they can be told apart: "blocks", "[0]"."""
    found = []
    for part in filter(None, parts):
        inner = part.strip("[]'\"<>").lstrip(".")
        found.append(inner or part)
    return found


def dotted(path: Path) -> str:
    """As in "blocks[0].attention"."""
    return "".join(step if step.startswith("[") else f".{step}" for step in path).removeprefix(".")


# --- the chains of calls and of name scopes that operations are inside of

# Functions that only call another one.
_WRAPPERS = frozenset(
    "BoundMethod.__call__ Module._call_wrapped_method _VmapWrapper.__call__ _fun_wrapper inner wrapped wrapper".split()
)
# The group of the operations that compute gradients.
_BACKWARD = "backward"
_MOST_CALLS = 200


def of_scopes(text: str) -> tuple[str, ...]:
    """The scopes in a text. Transformations without a scope only say whether an operation computes gradients, and these
    operations stand together.
    """
    scopes = [scope for scope in text.split("/") if scope and not scope.endswith("()")]
    return (*[_BACKWARD] * ("transpose(" in text or "(transpose of " in text), *scopes)


def of_calls(chains: Sequence[tuple[SourceCall, ...]], longest: int) -> list[tuple[SourceCall, ...]]:
    """Chains of calls in full. Older releases of JAX keep only the innermost ten: the others are those of the operation
    before. Operations from nowhere, such as numbers, are where all others are.
    """
    whole = [chain for chain in chains if 0 < len(chain) < longest]
    before: tuple[SourceCall, ...] = whole[0] if whole else ()
    if not whole:  # the one that begins before all others
        for chain in chains:
            if chain and (not before or before[0] in chain):
                before = chain
    shared = common(whole or (chain for chain in chains if chain and chain[:1] == before[:1])) or ()
    chains = filled([shared, *chains, shared])[1:-1]
    full: dict[tuple[tuple[SourceCall, ...], tuple[SourceCall, ...]], tuple[SourceCall, ...]] = {}
    found = []
    for chain in chains:
        if len(chain) == longest:
            if (before, chain) not in full:
                full[before, chain] = _continued(before, chain)
            chain = full[before, chain]
        before = chain or before
        found.append(tuple(call for call in chain if not _is_wrapper(call.function)))
    return found


def filled(found: list[tuple[T, ...]]) -> list[tuple[T, ...]]:
    """Chains, with those that are not known as both neighbours have them."""

    def latest(before: tuple[T, ...], one: tuple[T, ...]) -> tuple[T, ...]:
        return one or before

    before = itertools.accumulate(found, latest)
    after = list(itertools.accumulate(reversed(found), latest))[::-1]
    return [one or common(around) or () for one, *around in zip(found, before, after, strict=True)]


def _continued(before: tuple[SourceCall, ...], chain: tuple[SourceCall, ...]) -> tuple[SourceCall, ...]:
    for i in reversed(range(len(before) if before[:1] != chain[:1] else 0)):
        if before[i].function == chain[0].function and _file(before[i]) == _file(chain[0]):
            return (before[:i] + chain)[:_MOST_CALLS]
    return chain


def _file(call: SourceCall) -> str:
    return call.at.rsplit(":", 2)[0]


def _is_wrapper(function: str) -> bool:
    name = shown(function)
    return function in _WRAPPERS or name.startswith("<") or name in _WRAPPERS


def shown(function: str) -> str:
    """The name of a function; of a class, if it is called by that."""
    return function.rpartition("<locals>.")[2].removesuffix(".__call__")


# --- what operations do together, in words: "attention" and "MLP", or else the kinds of the operations that matter

# A word is said only if its operations stand in the order that makes it: attention is a product of two activations, a
# softmax of it, and a product with an activation.

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
_OF_SIZES = _ARITHMETIC | {"concatenate", "maximum", "minimum", "remainder"}
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


class FunctionContents:
    """The operations of a function: which of them are only numbers, and what each one contains.

    Attributes:
        made: for each value, the operation that makes it; None for an argument.
        hidden: the operations, by `id`, that are drawn only inside of their users: numbers, copies of numbers, and
            sizes that are computed from dimension variables.
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
        self._numbers = {i: self.texts[name] for i, name in block.get("d", ())}  # with their texts
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
        is_copy = kind in _COPIES or (kind in _OF_SIZES and types[0].startswith("int"))
        if is_number or (is_copy and self._numbers.keys() >= {*operands}):
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
