"""Arguments, results and weights as trees that fold, for one artifact or two."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from jaxexp._kernel.artifact.words import bytes_in_words, counted

from .facts import STEP, Leaf
from .markup import Markup, element

# Nodes with more leaves are folded at first, unless something inside differs.
_OPEN = 24
_DEEPEST = 40

SAME, CHANGED, ADDED, REMOVED = "same", "changed", "added", "removed"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A leaf and its earlier state; one of them may be missing."""

    new: Leaf | None
    old: Leaf | None

    @property
    def leaf(self) -> Leaf:
        leaf = self.new or self.old
        assert leaf is not None
        return leaf

    @property
    def state(self) -> str:
        if self.old is None:
            return ADDED
        if self.new is None:
            return REMOVED
        return SAME if self.old is self.new or _compared(self.old) == _compared(self.new) else CHANGED


def _compared(leaf: Leaf) -> tuple[object, ...]:
    return leaf.type, leaf.sharding, leaf.placement, leaf.notes, leaf.digest


@dataclasses.dataclass(slots=True)
class _Node:
    children: dict[str, _Node] = dataclasses.field(default_factory=dict)
    rows: list[Row] = dataclasses.field(default_factory=list)
    leaves: int = 0
    bytes: int = 0
    differs: bool = False


def rows(new: Iterable[Leaf], old: Iterable[Leaf] | None = None) -> list[Row]:
    """Pairs leaves with their earlier states, by path."""
    if old is None:
        return [Row(leaf, leaf) for leaf in new]
    before = {leaf.path: leaf for leaf in old}
    found = [Row(leaf, before.pop(leaf.path, None)) for leaf in new]
    return [*found, *(Row(None, leaf) for leaf in before.values())]


def tree(found: Sequence[Row], missing: int) -> Markup:
    """The rows as a tree, and how many more there are."""
    root = _Node()
    for row in found:
        _add(root, row)
    parts = _children(root, ())
    if missing > 0:
        parts.append(element("p", f"and {counted(missing, 'more value')}", class_="more"))
    return element("div", parts, class_="tree")


def _add(root: _Node, row: Row) -> None:
    steps = STEP.findall(row.leaf.path)
    if len(steps) > _DEEPEST:
        steps = [*steps[: _DEEPEST - 1], "".join(steps[_DEEPEST - 1 :])]
    node = root
    for step in ("", *steps):
        node = node if step == "" else node.children.setdefault(step, _Node())
        node.leaves += 1
        node.bytes += row.leaf.bytes or 0
        node.differs |= row.state != SAME
    node.rows.append(row)


def _children(node: _Node, path: tuple[str, ...]) -> list[Markup]:
    parts: list[Markup] = []
    for step, child in node.children.items():
        steps = (*path, step)
        while not child.rows and len(child.children) == 1:
            (only, child) = next(iter(child.children.items()))
            steps = (*steps, only)
        parts += [_leaf(row, "".join(steps)) for row in child.rows]
        if child.children:
            parts.append(_branch(child, "".join(steps)))
    return parts


def _branch(node: _Node, key: str) -> Markup:
    facts = counted(node.leaves, "array") + (f", {bytes_in_words(node.bytes)}" if node.bytes else "")
    marks = [element("span", "differs", class_="state changed")] if node.differs else []
    head = element("summary", [element("code", key, class_="key"), element("span", facts, class_="size"), *marks])
    inside = element("div", _children(node, ()), class_="inside")
    return element("details", [head, inside], open=node.leaves <= _OPEN or node.differs)


def _leaf(row: Row, key: str) -> Markup:
    leaf, old, state = row.leaf, row.old, row.state
    if state == CHANGED and old is not None and old.type != leaf.type:
        types = [element("del", [_type(old)]), element("ins", [_type(leaf)])]
    else:
        types = [_type(leaf)]
    more = _shardings(leaf, old if state == CHANGED else None)
    more += [element("span", note, class_="note") for note in leaf.notes]
    if state == CHANGED and old is not None:
        more += [element("del", note, class_="note") for note in old.notes if note not in leaf.notes]
    if state != SAME:
        more.append(element("span", state, class_=f"state {state}"))
    parts = [  # a column each, even if it is empty
        element("code", key, class_="key"),
        element("span", types),
        element("span", "" if leaf.bytes is None else bytes_in_words(leaf.bytes), class_="size"),
        element("span", more, class_="more"),
    ]
    return element("div", parts, class_="leaf" if state == SAME else f"leaf {state}")


def _type(leaf: Leaf) -> Markup:
    return element("code", leaf.type, class_="type")


def _shardings(leaf: Leaf, old: Leaf | None) -> list[Markup]:
    def shown(one: Leaf) -> str:
        return str(one.placement) if one.placement is not None else one.sharding or ""

    before, now = shown(old) if old is not None else shown(leaf), shown(leaf)
    if before == now:
        return [element("code", now, class_="spec")] if now else []
    return [element("del", before or "not sharded", class_="spec"), element("ins", now or "not sharded", class_="spec")]
