"""What stands together in a module: calls in the source, name scopes, and what uses the weights of one place.

A trace writes operations down in order, so each of these is a run of operations. A loop over layers leaves no trace of
its own, but each turn uses other weights, and it ends where the fewest values go on to the next.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

from .chains import filled, of_calls, of_scopes, shown
from .contents import Contents, Function
from .graph import Graph, numbered, operations
from .locations import Call
from .paths import Path, common, dotted, of_labels

# Nodes of a level before they are put into groups, and the size of such a group.
_MOST_NODES, _GROUP = 60, 40
# Nodes of a level before the operations of one expression are put into a group, and the fewest of these.
_FEW_NODES, _EXPRESSION = 12, 4
_DEEPEST = 32  # calls, or scopes
# The functions whose operations are drawn first.
_ROOTS = ("main", "_wrapped_jax_export_main")
_INDEX = re.compile(r"\[\d+\]")


def folded(graph: Graph, labels: Sequence[tuple[str, str]]) -> Graph:
    """The same graph. Its blocks also have groups (`g`), the operations that are drawn only inside of their users
    (`h`), and what they contain (`s`). A group is a list: its title, what it contains, the place of the call, its first
    and its last operation, and the groups inside of it. The labels are names and kinds of the arguments of `main`.
    """
    paths = of_labels(labels)
    root = common(path for path in paths if path is not None) or ()
    known: dict[str, Sequence[Path | None]] = {"main": paths}
    numbers = {text: number for number, text in enumerate(graph.texts)}
    functions: dict[str, dict[str, Any]] = {}
    contents: dict[str, Contents] = {}
    for name in _callees_first(graph, known):
        block, given = graph.functions[name], known.get(name, ())
        function = Function(graph, block, (i for i, path in enumerate(given) if path is not None), contents)
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
class _Node:
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
    inside: list[_Node] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    """An operation that is drawn."""

    node: _Node
    scopes: tuple[str, ...]
    calls: tuple[Call, ...]
    is_call: bool


class _Folding:
    """A function whose operations are being put into groups."""

    def __init__(
        self, graph: Graph, numbers: dict[str, int], function: Function, paths: dict[int, Path | None], root: Path
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
                value += _values(one)
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
        found, count = [], 0
        for one in change[:-1]:
            count += one
            found.append(count)
        return found

    # --- groups -------------------------------------------------------------------------------------------------------

    def _nodes(self, operations: list[list[Any]], hidden: set[int], is_root: bool) -> list[_Node]:
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
                _Node(i, i, self._path(operation), kind=operation[0], calls=operation[8]),
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

    def _path(self, operation: list[Any]) -> Path | None:
        return common(path for value in operation[3] if (path := self.paths.get(value)) is not None)

    def _folded(self, items: list[_Item], depth: int, scope: int, is_top: bool = False) -> list[_Node]:
        def call(item: _Item) -> Any:
            return (item.calls[depth - 1 : depth], item.calls[depth].function) if len(item.calls) > depth else None

        def scoped(item: _Item) -> Any:
            return item.scopes[scope] if len(item.scopes) > scope else None

        nodes: list[_Node] = []
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

    def _call(self, items: list[_Item], depth: int, scope: int) -> list[_Node]:
        """The operations of a call as a group; or a group for each turn, if it is called again and again."""
        name, called = shown(items[0].calls[depth].function), ""
        if depth:
            called = items[0].calls[depth - 1].at
        if len(items) == 1:
            if items[0].is_call:
                items[0].node.name = items[0].node.name or name
            return [items[0].node]
        inside = self._folded(items, depth + 1, scope)
        turns = inside if len(inside) > 1 and all(node.is_turn for node in inside) else [_group(inside)]
        for node in turns:
            if not node.is_scope:
                node.name, node.called = name, called
            node.is_turn = False
        return turns

    def _by_weights(self, nodes: list[_Node]) -> list[_Node]:
        """The nodes, with those in one group that are neighbours and use the weights of one place."""
        depth = len(common(node.path for node in nodes if node.path is not None) or ())
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
        found: list[_Node] = []
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

    def _cut(self, nodes: list[_Node], low: int, high: int, is_last: bool) -> int:
        """The first or last place where the fewest values go on from one node to the next."""
        return min(range(low, high + 1), key=lambda i: (self._going(nodes, i), -i if is_last else i))

    def _going(self, nodes: list[_Node], i: int) -> int:
        return self.crossing[nodes[i].first if i < len(nodes) else nodes[-1].last + 1]

    # --- as plain data ------------------------------------------------------------------------------------------------

    def _groups(self, nodes: list[_Node], path: Path, around: str, operations: list[list[Any]]) -> list[Any]:
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

    def _title(self, node: _Node, path: Path, known: tuple[str, str]) -> str:
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
        return name if _same(where, name) else " · ".join(filter(None, (where, name)))

    def _parts(self, nodes: list[_Node]) -> list[_Node]:
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

    def _place(self, node: _Node, path: Path) -> Path:
        """The place of a node's weights: where a single weight is, unless there is nothing else to call the node."""
        place = node.path or path
        if len(place) <= len(path):
            return path
        return place[:-1] if place in self.leaves and (node.name or place[:-1] != path) else place


def _values(block: dict[str, Any]) -> int:
    return len(block["a"]) + sum(len(one[4]) + sum(map(_values, one[6])) for one in block["o"])


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


def _are_turns(nodes: list[_Node]) -> bool:
    """Whether they are groups, each for the weights of another element of a list."""
    depth = len(common(node.path for node in nodes if node.path is not None) or ())
    steps = [node.path[depth : depth + 1] for node in nodes if node.path is not None]
    return len({*steps}) == len(steps) and all(step and _INDEX.fullmatch(step[0]) for step in steps)


def _group(inside: list[_Node]) -> _Node:
    if len(inside) == 1 and inside[0].inside:
        return inside[0]
    path = common(node.path for node in inside if node.path is not None)
    return _Node(inside[0].first, inside[-1].last, path, inside=inside)


def _scope(name: str, inside: list[_Node], keep: bool) -> _Node:
    if len(inside) == 1 and not inside[0].inside and not keep:
        return inside[0]
    node = _group(inside)
    node.name = f"{name}/{node.name}" if node.is_scope else name
    node.is_scope, node.is_turn = True, False
    return node


def _expressions(nodes: list[_Node]) -> list[_Node]:
    """Long levels with the operations of one expression in one group."""
    if len(nodes) <= _FEW_NODES:
        return nodes
    found: list[_Node] = []
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


def _same(where: str, name: str) -> bool:
    return re.sub(r"\W|_", "", where).lower() == re.sub(r"\W|_", "", name).lower()
