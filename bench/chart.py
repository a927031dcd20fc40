"""Charts as SVG text: the same numbers give the same bytes. They have their own background, light or dark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.report import short, times

_LIGHT = {
    "card": "#fcfcfb", "edge": "#dddcd7", "grid": "#e9e8e4", "axis": "#8f8e89", "ink": "#1d1d1b", "soft": "#5f5e59",
    "s0": "#2a78d6", "s1": "#eb6834", "s2": "#1baf7a", "s3": "#4a3aa7",
}  # fmt: skip
_DARK = {
    "card": "#1a1a19", "edge": "#3b3b38", "grid": "#2e2e2c", "axis": "#82817b", "ink": "#f4f3ee", "soft": "#b9b8b1",
    "s0": "#4a95ea", "s1": "#e8703f", "s2": "#2bb583", "s3": "#a194f0",
}  # fmt: skip
WIDTH = 800
_MARGIN = 20
_GLYPH = 6.4  # of small text, roughly


def _style() -> str:
    def rules(colours: Mapping[str, str]) -> str:
        lines = {"edge", "grid", "axis"}
        return "".join(f".{n}{{{'stroke' if n in lines else 'fill'}:{c}}}" for n, c in colours.items())

    return (
        f"<style>text{{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}}"
        f".title{{font-size:15px;font-weight:600}}{rules(_LIGHT)}"
        f"@media (prefers-color-scheme:dark){{{rules(_DARK)}}}</style>"
    )


class _Svg:
    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []

    def text(self, x: float, y: float, text: str, kind: str = "soft", anchor: str = "start") -> None:
        self.parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str, width: float = 1) -> None:
        self.parts.append(
            f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke-width="{width}"/>'
        )

    def mark(self, x: float, y: float, series: int, size: float = 4.5) -> None:
        """Each series has its own shape, so that colour is not the only difference."""
        shapes = {
            0: [(math.cos(i * math.pi / 8), math.sin(i * math.pi / 8)) for i in range(16)],
            1: [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
            2: [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
            3: [(0, -1.2), (1.15, 0.9), (-1.15, 0.9)],
        }
        corners = " ".join(f"{x + dx * size:.1f},{y + dy * size:.1f}" for dx, dy in shapes.get(series, shapes[0]))
        self.parts.append(f'<polygon class="s{series}" points="{corners}"/>')

    def legend(self, x: float, y: float, names: Iterable[str]) -> None:
        for series, name in enumerate(names):
            self.mark(x + 5, y - 4, series)
            self.text(x + 16, y, name)
            x += 36 + len(name) * _GLYPH

    def finish(self, height: float) -> str:
        card = f'<rect class="card edge" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="8"/>'
        body = "\n".join([_style(), f"<title>{escape(self.title)}</title>", card, *self.parts])
        size = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n{body}\n</svg>\n'


@dataclass(frozen=True)
class _Log:
    """A logarithmic axis from `low` to `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float, room: float = 1.3) -> _Log:
        low, high = min(values) / room, max(values) * room
        if high < low * 10:  # at least one tick lies in a decade
            middle = math.sqrt(low * high)
            low, high = middle / math.sqrt(10), middle * math.sqrt(10)
        return cls(low, high, start, end)

    def __call__(self, value: float) -> float:
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Powers of ten; of 100 if there would be many, and also 2 and 5 times them if there would be few."""
        exponents = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
        if len(exponents) < 3:
            exponents = range(exponents.start - 1, exponents.stop)
            finer = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
            return [tick for tick in finer if self.low <= tick <= self.high]
        step = 1 if len(exponents) <= 8 else 2
        return [10.0**exponent for exponent in exponents if exponent % step == 0]


def _head(svg: _Svg, note: str) -> float:
    svg.text(_MARGIN, 30, svg.title, "ink title")
    svg.text(_MARGIN, 49, note)
    return 72


def dots(title: str, note: str, rows: Sequence[str], series: Mapping[str, Mapping[str, float]]) -> str:
    """A row per case and a mark per series, on a logarithmic axis of ratios that emphasizes 1."""
    svg = _Svg(title)
    top = _head(svg, note)
    svg.legend(_MARGIN, top, series)
    rows = [row for row in rows if any(row in points for points in series.values())]
    left, right, top, step = 190.0, WIDTH - _MARGIN - 20.0, top + 36, 23
    bottom = top + step * len(rows)
    values = [value for points in series.values() for value in points.values()]
    axis = _Log.around([1.0, *values], left, right)
    _ratio_axis(svg, axis, top, bottom)
    for number, row in enumerate(rows):
        y = top + step * (number + 0.5)
        svg.line(left, y, right, y, "grid")
        svg.text(left - 12, y + 4, row, "ink", "end")
        for i, points in enumerate(series.values()):
            if row in points:
                svg.mark(axis(points[row]), y, i)
    return svg.finish(bottom + 18)


def _ratio_axis(svg: _Svg, axis: _Log, top: float, bottom: float) -> None:
    for tick in axis.ticks():
        svg.line(axis(tick), top, axis(tick), bottom, "axis" if tick == 1 else "grid", 1.5 if tick == 1 else 1)
        svg.text(axis(tick), top - 7, short(times(tick)), anchor="middle")
