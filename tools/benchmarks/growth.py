"""How costs grow with the ranks: the slope of each line, and a picture of all lines.

Both axes are logarithmic, so a cost that grows with the ranks is a line at 45 degrees, and what
does not grow is level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log10
from typing import Any

WIDTH, HEIGHT = 800, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 250, 30, 50
COLOURS = ("#1b6ca8", "#c0561f", "#4d7c32", "#6b4c9a", "#8a6d00", "#555555", "#a8327d")
FONT = "font-family='DejaVu Sans, Helvetica, sans-serif' font-size='12'"


@dataclass(frozen=True)
class Point:
    """A cost at one size."""

    name: str
    unit: str
    ranks: int
    value: float


@dataclass(frozen=True)
class Line:
    """The same cost at several sizes; `slope` is the exponent from the first to the last."""

    name: str
    points: tuple[Point, ...]
    slope: float

    @property
    def text(self) -> str:
        """The values of the line."""
        unit = self.points[0].unit
        return ", ".join(f"{one.ranks:,}: {one.value:.3g} {unit}" for one in self.points)


def points_of(what: str, ranks: int, state: str, found: dict[str, Any]) -> list[Point]:
    """What is drawn of one measurement."""
    if what == "named":
        known = [one for one in found["named_s"] if one is not None]
        return [Point("a hang is named", "s", ranks, max(known))] if known else []
    cores = found["take"] + found.get("look", 0.0)
    points = [Point(f"{what} CPU, {state}", "cores", ranks, cores)]
    if state == "healthy":
        points.append(Point(f"{what} memory", "GiB", ranks, found["rss_mib"] / 1024))
    if what == "viewer" and state == "healthy":
        points.append(Point("join and judge", "s", ranks, found["join_s"]))
    return points


def lines_of(points: Iterable[Point]) -> list[Line]:
    """The points, grouped by what they measure."""
    by_name: dict[str, list[Point]] = {}
    for one in points:
        by_name.setdefault(one.name, []).append(one)
    return [Line(name, tuple(own), _slope(own)) for name, own in by_name.items() if len(own) > 1]


def _slope(points: Sequence[Point]) -> float:
    first, last = points[0], points[-1]
    return log10(last.value / first.value) / log10(last.ranks / first.ranks)


class _Axes:
    """Where a number of ranks and a value are on the picture."""

    def __init__(self, points: Sequence[Point]) -> None:
        ranks, values = [one.ranks for one in points], [one.value for one in points]
        self.left, self.right = log10(min(ranks)), log10(max(ranks))
        self.low, self.high = _decade(min(values), down=True), _decade(max(values), down=False)

    def x(self, ranks: float) -> float:
        return LEFT + (log10(ranks) - self.left) / (self.right - self.left) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return TOP + (self.high - log10(value)) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)


def _decade(value: float, down: bool) -> int:
    whole = int(log10(value) // 1)
    return whole if down else whole + 1


def drawn(lines: Sequence[Line]) -> str:
    """An SVG of these lines."""
    points = [one for line in lines for one in line.points]
    axes = _Axes(points)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}'"
        f" viewBox='0 0 {WIDTH} {HEIGHT}' {FONT}>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#ffffff'/>",
        *_grid(axes, sorted({one.ranks for one in points})),
    ]
    ends = _apart([axes.y(line.points[-1].value) for line in lines])
    for line, colour, end in zip(lines, COLOURS * len(lines), ends, strict=False):
        path = " ".join(f"{axes.x(one.ranks):.1f},{axes.y(one.value):.1f}" for one in line.points)
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        for one in line.points:
            parts.append(
                f"<circle cx='{axes.x(one.ranks):.1f}' cy='{axes.y(one.value):.1f}' r='3.5'"
                f" fill='{colour}'/>"
            )
        unit = line.points[0].unit
        text = f"{line.name}, {unit}: slope {line.slope:.2f}"
        parts.append(
            f"<text x='{WIDTH - RIGHT + 10}' y='{end + 4:.1f}' fill='{colour}'"
            f" font-size='11'>{text}</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _apart(heights: Sequence[float], least: float = 15.0) -> list[float]:
    """The heights, moved so that no two texts overlap."""
    order = sorted(range(len(heights)), key=lambda at: heights[at])
    found = list(heights)
    for before, at in pairwise(order):
        found[at] = max(found[at], found[before] + least)
    return found


def _grid(axes: _Axes, sizes: Sequence[int]) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for decade in range(axes.low, axes.high + 1):
        y = axes.y(10.0**decade)
        parts.append(f"<line x1='{LEFT}' x2='{right}' y1='{y:.1f}' y2='{y:.1f}' stroke='#dddddd'/>")
        parts.append(
            f"<text x='{LEFT - 8}' y='{y + 4:.1f}' text-anchor='end' fill='#444444'>"
            f"{10.0**decade:g}</text>"
        )
    for ranks in sizes:
        x = axes.x(ranks)
        parts.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{TOP}' y2='{bottom}' stroke='#dddddd'/>")
        parts.append(
            f"<text x='{x:.1f}' y='{bottom + 18}' text-anchor='middle' fill='#444444'>"
            f"{ranks:,}</text>"
        )
    parts.append(
        f"<text x='{(LEFT + right) / 2:.0f}' y='{HEIGHT - 10}' text-anchor='middle'"
        " fill='#444444'>ranks</text>"
    )
    return parts
