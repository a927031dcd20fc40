"""Drawings as SVG: an array on the devices of its mesh, sizes as areas, releases in a row.

Positions and sizes are attributes, never styles, so a page need not allow inline styles.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from jaxexp._kernel.artifact.words import bytes_in_words, cut

from .facts import STEP, Leaf, Placement
from .markup import Markup, element
from .paths import common

# How many parts of an array, and devices, are drawn one by one.
_MOST_PARTS, _MOST_DEVICES = 64, 256
_SHOWN_DEVICES = 4
_COLOURS = 8
_MOST_AREAS = 80
_CHARACTER = 6.7  # the width of one in these drawings,
_WIDE = 1032.0  # which are as wide as a page or smaller


def sharding(leaf: Leaf, placement: Placement) -> Markup | None:
    """An array divided by its sharding, with the numbers of the devices that have each part.

    Devices are numbered in the order of the mesh. If an array has more than two dimensions, the two that are cut are
    drawn. None if there are too many parts.
    """
    sizes = dict(placement.axes)
    devices = math.prod(sizes.values())
    cuts = [math.prod(sizes.get(axis, 1) for axis in axes) for axes in placement.spec]
    if devices > _MOST_DEVICES or math.prod(cuts) > _MOST_PARTS or not leaf.shape or len(sizes) != len(placement.axes):
        return None
    drawn = sorted(sorted(range(len(leaf.shape)), key=lambda dim: (cuts[dim : dim + 1] or [1])[0] == 1)[:2])
    others = [dim for dim, count in enumerate(cuts) if count > 1 and dim not in drawn]
    if others:
        return None
    down, across = (drawn[0], drawn[1]) if len(drawn) == 2 else (None, drawn[0])
    rows, columns = _count(cuts, down), _count(cuts, across)
    of_part = _devices_of_parts(placement, down, across)
    longest = max(len(_named(found)) for found in of_part.values())
    width = max(36.0, min(88.0, longest * _CHARACTER + 12), 150.0 / columns)
    height = max(22.0, 72.0 / rows)
    left, top = (2.0 if down is None else len(_length(leaf, down, rows)) * _CHARACTER + 10), 20.0
    parts: list[Markup] = []
    for (row, column), found in of_part.items():
        x, y = left + column * width, top + row * height
        colour = f"part c{(row * columns + column) % _COLOURS}"
        parts.append(element("rect", None, x=x, y=y, width=width, height=height, class_=colour))
        parts.append(element("text", _named(found), x=x + width / 2, y=y + height / 2 + 4, class_="mid"))
    parts.append(element("text", _length(leaf, across, columns), x=left + columns * width / 2, y=13, class_="mid dim"))
    if down is not None:
        parts.append(
            element("text", _length(leaf, down, rows), x=left - 6, y=top + rows * height / 2 + 4, class_="end dim")
        )
    return _svg(left + columns * width + 2, top + rows * height + 2, parts, f"{leaf.type} as {placement}")


def copied(placement: Placement) -> list[str]:
    """The axes of a mesh that do not divide an array: each of their devices has a copy of it."""
    used = set(itertools.chain.from_iterable(placement.spec))
    return [f"{name!r} ({size})" for name, size in placement.axes if name not in used and size > 1]


def _count(cuts: Sequence[int], dim: int | None) -> int:
    return 1 if dim is None or dim >= len(cuts) else cuts[dim]


def _devices_of_parts(placement: Placement, down: int | None, across: int) -> dict[tuple[int, int], list[int]]:
    found: dict[tuple[int, int], list[int]] = {}
    names, sizes = [name for name, _ in placement.axes], dict(placement.axes)

    def index(dim: int | None, at: dict[str, int]) -> int:
        position = 0
        for axis in placement.spec[dim] if dim is not None and dim < len(placement.spec) else ():
            position = position * sizes.get(axis, 1) + at.get(axis, 0)
        return position

    for device, coordinates in enumerate(itertools.product(*(range(sizes[name]) for name in names))):
        at = dict(zip(names, coordinates, strict=True))
        found.setdefault((index(down, at), index(across, at)), []).append(device)
    return dict(sorted(found.items()))


def _named(devices: Sequence[int]) -> str:
    if len(devices) <= _SHOWN_DEVICES:
        return " ".join(map(str, devices))
    return f"{devices[0]} {devices[1]} … {devices[-1]}"


def _length(leaf: Leaf, dim: int, count: int) -> str:
    length = leaf.shape[dim] if dim < len(leaf.shape) else "?"
    length = cut(length, 8)
    return f"{length} ÷ {count}" if count > 1 else length


def areas(leaves: Sequence[Leaf], what: str) -> Markup | None:
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
        thick = total / side if side else 0.0
        along = 0.0
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
