"""Cards for notebooks: the first part of a page as separate HTML, with styles and without scripts."""

from __future__ import annotations

import dataclasses
import functools
import html
import itertools
import math
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple, NewType

from jaxexp._errors import shown
from jaxexp._kernel.artifact.words import bytes_in_words, counted, cut

from . import facts
from .facts import STEP, CardFacts, CardLeaf, MeshPlacement, common

if TYPE_CHECKING:
    from jaxexp._kernel.function.data import ExportedData


# --- markup -----------------------------------------------------------------------------------------------------------
# HTML and SVG from foreign texts: everything is escaped here when it is put in, and nowhere else: what HTML would take
# for markup, and characters that change the direction of a text or cannot be seen.


# Text that is HTML already.
Markup = NewType("Markup", str)

_WITHOUT_END = frozenset(("meta", "input", "br"))


def joined(parts: Iterable[Markup]) -> Markup:
    return Markup("".join(parts))


def element(tag: str, inside: str | Iterable[Markup] | None = None, **attributes: str | float | bool | None) -> Markup:
    """An element.

    Args:
        tag: its name.
        inside: a text, which is escaped, or elements, which are not.
        attributes: its attributes: an underscore at the end is dropped, others become hyphens. None and False omit an
            attribute, and True omits its value.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    content = _escaped(inside) if isinstance(inside, str) else joined(inside or ())
    if tag in _WITHOUT_END:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{content}</{tag}>")


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{round(value, 1):g}" if isinstance(value, (int, float)) else _escaped(value)
    return f' {name}="{text}"'


def _escaped(text: str) -> str:
    return html.escape(shown(text), quote=True)


# The most values in a card, which a notebook stores.
_MOST_VALUES = 200
_MOST_FIGURES = 12
# Arguments whose sizes are not drawn.
_FEW = 4


@functools.cache
def asset(name: str) -> Markup:
    """A file of this room: styles or a script."""
    return Markup(resources.files("jaxexp._view").joinpath("assets", name).read_text(encoding="utf-8"))


# --- the card of a function -------------------------------------------------------------------------------------------


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
        element("tr", [element("td", text) for text in line[: len(heads)]], class_="".join(line[len(heads) :]) or None)
        for line in lines
    ]
    return element("div", [element("table", [head, element("tbody", body)])], class_="wide")


def signature(found: CardFacts, old: CardFacts | None = None) -> list[Markup]:
    """Arguments and results, with drawings of their shardings; next to those of another function, if there is one."""
    parts: list[Markup] = []
    for title, now, count, before in (
        ("argument", found.arguments, found.argument_count, None if old is None else old.arguments),
        ("result", found.results, found.result_count, None if old is None else old.results),
    ):
        parts.append(element("h3", counted(count, title) if count else f"no {title}s"))
        parts.append(_tree(now, before, count))
    return [*parts, *shardings((*found.arguments, *found.results, *found.weights))]


def shardings(leaves: Sequence[CardLeaf]) -> list[Markup]:
    """Each different sharding once, drawn for the first array that has it."""
    first: dict[tuple[MeshPlacement, int], CardLeaf] = {}
    for leaf in leaves:
        if leaf.placement is not None:
            first.setdefault((leaf.placement, len(leaf.shape)), leaf)
    drawn: list[Markup] = []
    for (placement, _), leaf in list(first.items())[:_MOST_FIGURES]:
        svg = _drawn(leaf, placement)
        # Each device of these axes has a copy of the array.
        used = set(itertools.chain.from_iterable(placement.spec))
        copies = [f"{name!r} ({size})" for name, size in placement.axes if name not in used and size > 1]
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


def weights(found: CardFacts, old: CardFacts | None = None) -> list[Markup]:
    """The weights, or else the arguments, by size."""
    parts: list[Markup] = []
    if found.weight_count or (old is not None and old.weight_count):
        parts.append(element("h3", counted(found.weight_count, "weight")))
        drawn = _areas(found.weights, "weights")
        parts += [element("div", [drawn], class_="wide")] if drawn else []
        parts.append(_tree(found.weights, None if old is None else old.weights, found.weight_count))
    elif (drawn := _areas(found.arguments, "arguments")) is not None and len(found.arguments) > _FEW:
        parts += [element("h3", "sizes of the arguments"), element("div", [drawn], class_="wide")]
    return parts


# --- trees that fold, for one artifact or two

# Nodes with more leaves are folded at first, unless something inside differs.
_OPEN = 24
_DEEPEST = 40


class _Change(NamedTuple):
    """A leaf; its earlier state, if that differs; and "changed", "added" or "removed", if it was."""

    leaf: CardLeaf
    old: CardLeaf | None = None
    state: str = ""


@dataclasses.dataclass(slots=True)
class _Branch:
    children: dict[str, _Branch] = dataclasses.field(default_factory=dict)
    leaves: list[_Change] = dataclasses.field(default_factory=list)
    count: int = 0  # of the leaves in it
    bytes: int = 0
    differs: bool = False


def _changes(new: Iterable[CardLeaf], old: Iterable[CardLeaf] | None) -> Iterable[_Change]:
    """Leaves, compared with those of the same paths."""
    before = {leaf.path: leaf for leaf in old or ()}
    for leaf in new:
        was = leaf if old is None else before.pop(leaf.path, None)
        if was is None:
            yield _Change(leaf, None, "added")
        else:
            yield _Change(leaf) if _compared(was) == _compared(leaf) else _Change(leaf, was, "changed")
    yield from (_Change(leaf, None, "removed") for leaf in before.values())


def _compared(leaf: CardLeaf) -> tuple[object, ...]:
    return leaf.type, leaf.sharding, leaf.placement, leaf.notes, leaf.digest


def _tree(new: Sequence[CardLeaf], old: Sequence[CardLeaf] | None, count: int) -> Markup:
    """Leaves as a tree, next to earlier ones, and how many more there are of `count`."""
    root = _Branch()
    for change in _changes(new, old):
        steps = STEP.findall(change.leaf.path)
        if len(steps) > _DEEPEST:
            steps = [*steps[: _DEEPEST - 1], "".join(steps[_DEEPEST - 1 :])]
        node = root
        for step in steps:
            node = node.children.setdefault(step, _Branch())
            node.count += 1
            node.bytes += change.leaf.bytes or 0
            node.differs |= change.state != ""
        node.leaves.append(change)
    parts = _children(root)
    if count > len(new):
        parts.append(element("p", f"and {counted(count - len(new), 'more value')}", class_="more"))
    return element("div", parts, class_="tree")


def _children(node: _Branch) -> list[Markup]:
    parts: list[Markup] = []
    for key, child in node.children.items():
        while not child.leaves and len(child.children) == 1:
            ((step, child),) = child.children.items()
            key += step
        parts += [_leaf(change, key) for change in child.leaves]
        if child.children:
            parts.append(_branch(child, key))
    return parts


def _branch(node: _Branch, key: str) -> Markup:
    facts = counted(node.count, "array") + (f", {bytes_in_words(node.bytes)}" if node.bytes else "")
    marks = [element("span", "differs", class_="state changed")] if node.differs else []
    head = element("summary", [element("code", key, class_="key"), element("span", facts, class_="size"), *marks])
    inside = element("div", _children(node), class_="inside")
    return element("details", [head, inside], open=node.count <= _OPEN or node.differs)


def _leaf(change: _Change, key: str) -> Markup:
    leaf, old, state = change
    types = [element("code", leaf.type, class_="type")]
    more = _shardings(leaf, old or leaf)
    more += [element("span", note, class_="note") for note in leaf.notes]
    if old is not None:
        if old.type != leaf.type:
            types = [element("del", [element("code", old.type, class_="type")]), element("ins", types)]
        more += [element("del", note, class_="note") for note in old.notes if note not in leaf.notes]
    if state:
        more.append(element("span", state, class_=f"state {state}"))
    parts = [  # a column each, even if it is empty
        element("code", key, class_="key"),
        element("span", types),
        element("span", "" if leaf.bytes is None else bytes_in_words(leaf.bytes), class_="size"),
        element("span", more, class_="more"),
    ]
    return element("div", parts, class_=f"leaf {state}".strip())


def _shardings(leaf: CardLeaf, old: CardLeaf) -> list[Markup]:
    before, now = (str(one.placement) if one.placement is not None else one.sharding or "" for one in (old, leaf))
    if before == now:
        return [element("code", now, class_="spec")] if now else []
    return [element("del", before or "not sharded", class_="spec"), element("ins", now or "not sharded", class_="spec")]


# --- drawings as SVG: an array on the devices of its mesh, sizes as areas, releases in a row

# Positions and sizes are attributes, never styles, so a page need not allow inline styles.

# How many parts of an array, and devices, are drawn one by one.
_MOST_PARTS, _MOST_DEVICES = 64, 256
_SHOWN_DEVICES = 4
_COLOURS = 8
_MOST_AREAS = 80
_CHARACTER = 6.7  # the width of one in these drawings,
_WIDE = 1032.0  # which are as wide as a page or smaller


def _drawn(leaf: CardLeaf, placement: MeshPlacement) -> Markup | None:
    """An array divided by its sharding, with the numbers of the devices that have each part.

    Devices are numbered in the order of the mesh. If an array has more than two dimensions, the two that are cut are
    drawn. None if there are too many parts.
    """
    rank, sizes = len(leaf.shape), dict(placement.axes)
    spec = (*placement.spec, *[()] * (rank - len(placement.spec)))
    cuts = [math.prod(sizes.get(axis, 1) for axis in axes) for axes in spec]
    is_many = math.prod(sizes.values()) > _MOST_DEVICES or math.prod(cuts) > _MOST_PARTS
    if is_many or not rank or len(sizes) != len(placement.axes):
        return None
    *down, across = drawn = sorted(sorted(range(rank), key=lambda dim: cuts[dim] == 1)[:2])
    if any(count > 1 and dim not in drawn for dim, count in enumerate(cuts)):
        return None

    def index(dims: Sequence[int], at: dict[str, int]) -> int:
        position = 0
        for axis in itertools.chain.from_iterable(spec[dim] for dim in dims):
            position = position * sizes.get(axis, 1) + at.get(axis, 0)
        return position

    of_part: dict[tuple[int, int], list[int]] = {}
    for device, coordinates in enumerate(itertools.product(*map(range, sizes.values()))):
        at = dict(zip(sizes, coordinates, strict=True))
        of_part.setdefault((index(down, at), index([across], at)), []).append(device)
    rows, columns = math.prod(cuts[dim] for dim in down), cuts[across]
    of_rows, of_columns = "".join(_length(leaf, dim, rows) for dim in down), _length(leaf, across, columns)
    longest = max(len(_devices(found)) for found in of_part.values())
    width = max(36.0, min(88.0, longest * _CHARACTER + 12), 150.0 / columns)
    height = max(22.0, 72.0 / rows)
    left, top = (len(of_rows) * _CHARACTER + 10 if down else 2.0), 20.0
    parts: list[Markup] = []
    for (row, column), found in sorted(of_part.items()):
        x, y = left + column * width, top + row * height
        colour = f"part c{(row * columns + column) % _COLOURS}"
        parts.append(element("rect", None, x=x, y=y, width=width, height=height, class_=colour))
        parts.append(element("text", _devices(found), x=x + width / 2, y=y + height / 2 + 4, class_="mid"))
    parts.append(element("text", of_columns, x=left + columns * width / 2, y=13, class_="mid dim"))
    if down:
        parts.append(element("text", of_rows, x=left - 6, y=top + rows * height / 2 + 4, class_="end dim"))
    return _svg(left + columns * width + 2, top + rows * height + 2, parts, f"{leaf.type} as {placement}")


def _devices(devices: Sequence[int]) -> str:
    if len(devices) <= _SHOWN_DEVICES:
        return " ".join(map(str, devices))
    return f"{devices[0]} {devices[1]} … {devices[-1]}"


def _length(leaf: CardLeaf, dim: int, count: int) -> str:
    length = cut(leaf.shape[dim], 8)
    return f"{length} ÷ {count}" if count > 1 else length


def _areas(leaves: Sequence[CardLeaf], what: str) -> Markup | None:
    """The sizes of arrays as areas, the largest first. None if fewer than two are known."""
    sized = sorted((leaf for leaf in leaves if leaf.bytes), key=lambda leaf: -(leaf.bytes or 0))
    if len(sized) < 2:
        return None
    rest = sized[_MOST_AREAS:]
    names = _short_names([leaf.path for leaf in sized[:_MOST_AREAS]])
    found = [(name, f"{leaf.path} {leaf.type}", leaf.bytes or 0) for name, leaf in zip(names, sized, strict=False)]
    if rest:
        found.append((f"{len(rest):,} smaller {what}", "", sum(leaf.bytes or 0 for leaf in rest)))
    colours: dict[str, int] = {}  # arrays whose names end alike look alike
    width, height = _WIDE, 260.0
    parts: list[Markup] = []
    for (name, title, size), place in zip(found, squarified([size for *_, size in found], width, height), strict=True):
        colour = colours.setdefault(name.rpartition("/")[2], len(colours) % _COLOURS)
        parts += _area(f"area c{colour}", name, title, size, place)
    return _svg(width, height, parts, f"sizes of {what}", "areas")


def _short_names(paths: Sequence[str]) -> list[str]:
    """Names for paths in one tree, without what all begin or end with, such as ``layers/0/w``."""
    steps = [tuple(step.strip("[]<>'\"./") for step in STEP.findall(path)) for path in paths]
    room = max(min(map(len, steps)) - 1, 0)  # a step is left of each
    first = min(room, len(common(steps) or ()))
    last = min(room - first, len(common(one[::-1] for one in steps) or ()))
    return ["/".join(one[first : len(one) - last]) for one in steps]


def _area(look: str, name: str, title: str, size: int, place: tuple[float, float, float, float]) -> list[Markup]:
    x, y, w, h = place
    about = element("title", f"{title or name}, {bytes_in_words(size)}")
    parts = [element("rect", [about], x=x, y=y, width=w, height=h, class_=look)]
    room = int((w - 10) / _CHARACTER)
    if room >= min(len(name), 5) and h >= 18:
        parts.append(element("text", _end_of(name, room), x=x + 6, y=y + 15))
        words = bytes_in_words(size)
        if h >= 34 and len(words) <= room:
            parts.append(element("text", words, x=x + 6, y=y + 29, class_="dim"))
    return parts


def _end_of(name: str, room: int) -> str:
    """The end of a name: names in one tree begin alike, and differ at their ends."""
    if len(name) <= room:
        return name
    start = name.find("/", len(name) - room + 1)
    return f"…{name[start if start >= 0 else len(name) - room + 1 :]}"


def squarified(sizes: Sequence[int], width: float, height: float) -> list[tuple[float, float, float, float]]:
    """Rectangles (x, y, width, height) with these areas, as square as possible, that fill a larger one.

    The algorithm of Bruls, Huizing and van Wijk, "Squarified Treemaps" (2000). Sizes descend.
    """
    scale = width * height / sum(sizes)
    found: list[tuple[float, float, float, float]] = []
    x, y, first = 0.0, 0.0, 0
    while first < len(sizes):
        side = min(width, height)
        count, total, worst = 0, 0.0, math.inf
        for size in sizes[first:]:
            ratio = _worst(sizes[first] * scale, size * scale, total + size * scale, side)
            if ratio > worst:
                break
            count, total, worst = count + 1, total + size * scale, ratio
        thick, along = total / side if side else 0.0, 0.0
        for size in sizes[first : first + count]:
            length = size * scale / thick if thick else 0.0
            found.append((x, y + along, thick, length) if width >= height else (x + along, y, length, thick))
            along += length
        if width >= height:
            x, width = x + thick, width - thick
        else:
            y, height = y + thick, height - thick
        first += count
    return found


def _worst(largest: float, smallest: float, total: float, side: float) -> float:
    """The worst ratio of sides among the rectangles in a row."""
    if not total or not smallest:
        return math.inf
    return max(side * side * largest / total**2, total**2 / (side * side * smallest))


def releases(states: Iterable[tuple[str, bool]]) -> Markup:
    """A row of releases, oldest first, marked to show which ones load an artifact."""
    found = list(states)
    width = _WIDE / len(found)
    parts: list[Markup] = []
    for i, (version, loads) in enumerate(found):
        title = element("title", f"JAX {version}: {'loads it' if loads else 'refuses it'}")
        look = "good" if loads else "bad"
        parts.append(element("rect", [title], x=i * width + 0.5, y=0, width=width - 1, height=14, class_=look))
    parts.append(element("text", found[0][0], x=0, y=28, class_="dim"))
    parts.append(element("text", found[-1][0], x=_WIDE, y=28, class_="end dim"))
    return _svg(_WIDE, 32, parts, "releases of JAX that load it", "releases")


def _svg(width: float, height: float, parts: Sequence[Markup], label: str, look: str = "figure") -> Markup:
    return element(
        "svg",
        parts,
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
        class_=look,
    )
