"""Pictures of a run over time, as SVG in the page. All share one axis of time.

Places across are percentages and text keeps its size, so a picture fits a phone and a printed page alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np

from laggard_cli.past.times import iso
from laggard_cli.report.arrays import Array, Flags, any_rank, stretches
from laggard_cli.report.history import History
from laggard_cli.report.markup import element, text
from laggard_cli.report.raster import ANCHORS, PLACE_COLOURS, Pixels, data_uri
from laggard_cli.report.verdicts import Problem

#: Pixels below a plot, for the times.
_AXIS = 22
#: Pixels of a row of a heat map, by how many there are; of a name; and which names are left where rows are narrower.
_ROW_HEIGHTS = ((16, 20), (40, 14), (10_000, 9))
_TEXT, _FEW_NAMES = 12, 4
#: Percent of the time that a bar takes at least, to be seen.
_LEAST_WIDTH = 0.6
#: Pixels of plots, from the bottom up.
_STACK, _LINES = 220.0, 180.0
_NICE = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800)
_MOST_TICKS = 4


@dataclass(frozen=True)
class Row:
    """One line of a heat map: a rank, or several of which the worst shows."""

    label: str
    members: tuple[int, ...]
    marked: bool
    about: str


class Axis:
    """The time that all pictures of a report show."""

    def __init__(self, history: History, problems: Iterable[Problem]) -> None:
        self._begin, self._end = float(history.times[0]), float(history.times[-1]) + history.span.step
        self._marks = [problem.begin for problem in problems if problem.severity != "info"]

    def at(self, moment: float) -> float:
        """Return a time as a place, in percent."""
        return round(100 * min(1.0, max(0.0, (moment - self._begin) / (self._end - self._begin))), 3)

    def over(self, height: float) -> str:
        """Return the lines of the grid and the times below them, and where problems began."""
        length = self._end - self._begin
        each = next((nice for nice in _NICE if length / nice <= _MOST_TICKS), _NICE[-1])
        form = "%H:%M" if length <= 86400 else "%m-%d %H:%M"  # noqa: PLR2004 - a day
        form = "%H:%M:%S" if each < 60 else form  # noqa: PLR2004 - a minute
        drawn: list[str] = []
        for number in range(math.ceil(self._begin / each), math.floor(self._end / each) + 1):
            place = self.at(number * each)
            label = datetime.fromtimestamp(number * each, timezone.utc).strftime(form)
            anchor = "start" if place < 8 else "end" if place > 92 else "middle"  # noqa: PLR2004 - near an edge
            drawn.append(element("line", class_="grid", x1=f"{place}%", x2=f"{place}%", y1=0, y2=height))
            drawn.append(element("text", text(label), class_="tick", x=f"{place}%", y=height + 15, text_anchor=anchor))
        for moment in sorted(set(self._marks)):
            place = f"{self.at(moment)}%"
            drawn.append(element("line", class_="began", x1=place, x2=place, y1=0, y2=height))
        return "".join(drawn)


def _frame(label: str, names: str, area: str, height: float) -> str:
    """Return the names of rows beside a plot."""
    whole = height + _AXIS
    return element(
        "div",
        element("svg", names, class_="names", height=whole, aria_hidden="true"),
        element("svg", area, class_="area", height=whole, role="img", aria_label=label),
        class_="plot",
    )


def _stretched(content: str, width: float, height: float, high: float) -> str:
    """Return a drawing that fills the plot, however wide it is."""
    return element(
        "svg", content, x=0, y=0, width="100%", height=high, viewBox=f"0 0 {width} {height}", preserveAspectRatio="none"
    )


def timeline(axis: Axis, problems: Sequence[Problem], says: Sequence[str]) -> str:
    """Return when each problem's alerts fired; each leads to what is said of it."""
    made: list[str] = []
    for number, (problem, said) in enumerate(zip(problems, says, strict=True), 1):
        bars: list[str] = []
        for begin, end in _merged(problem):
            left, width = axis.at(begin), max(axis.at(end) - axis.at(begin), _LEAST_WIDTH)
            place = {"x": f"{left}%", "width": f"{width:.3f}%", "y": 1, "height": 12, "rx": 2}
            bars.append(element("rect", class_=f"bar {problem.severity}", **place))
        ground = element("line", class_="grid", x1=0, x2="100%", y1=7, y2=7)
        label = f"fires {_spoken(problem)}"
        bar = element("svg", ground, *bars, class_="area", height=14, role="img", aria_label=label)
        link = element("a", text(said), href=f"#problem-{number}")
        tag = element("span", text(problem.severity), class_=f"tag {problem.severity}")
        made.append(element("div", tag, element("div", link, bar), class_="plot verdict"))
    return "".join(made) + _frame("Axis of time", "", axis.over(0), 0)


def _spoken(problem: Problem) -> str:
    stretches = [f"{iso(begin)} to {iso(end)}" for begin, end in _merged(problem)]
    return ", ".join(stretches[:5]) + (f" and {len(stretches) - 5} times more" if len(stretches) > 5 else "")  # noqa: PLR2004 - a line


def _merged(problem: Problem) -> list[tuple[float, float]]:
    made: list[tuple[float, float]] = []
    for firing in sorted(problem.firings, key=lambda each: each.begin):
        if made and firing.begin <= made[-1][1]:
            made[-1] = made[-1][0], max(made[-1][1], firing.end)
        else:
            made.append((firing.begin, firing.end))
    return made


def heat_map(axis: Axis, label: str, rows: Sequence[Row], pixels: Pixels, says: Sequence[str]) -> str:
    """Return a table of colours, a row a rank.

    Args:
        axis: of time.
        label: what it shows, for those who do not see it.
        rows: from the top down.
        pixels: row by time.
        says: of each row, what is most remarkable.
    """
    high = next(pixels for most, pixels in _ROW_HEIGHTS if len(rows) <= most)
    height = high * len(rows)
    image = element("image", href=data_uri(pixels), x=0, y=0, width=pixels.shape[1], height=len(rows),
                    preserveAspectRatio="none", class_="pixels")  # fmt: skip
    area = [
        element("rect", class_="gap", x=0, y=0, width="100%", height=height),
        _stretched(image, pixels.shape[1], len(rows), height),
        axis.over(height),
    ]
    for first, last in stretches(np.array([row.marked for row in rows])):
        area.append(element("rect", class_="outline", x=0, y=first * high, width="100%", height=(last - first) * high))
    for index, (row, said) in enumerate(zip(rows, says, strict=True)):
        title = element("title", text(f"{row.about}: {said}"))
        area.append(element("rect", title, class_="over", x=0, y=index * high, width="100%", height=high))
    return _frame(label, _names(rows, high), "".join(area), height)


def _names(rows: Sequence[Row], high: int) -> str:
    """Return the names of rows; where rows are narrow, of the marked ones together, and of others here and there."""
    every = 1 if high >= _TEXT else _FEW_NAMES
    marked = stretches(np.array([row.marked for row in rows]))
    groups = [group for first, last in marked for group in ([(first, last)] if every > 1 else _each(first, last))]
    shown = [(first, last, "name culprit") for first, last in groups]
    near = {row for first, last in marked for row in range(first - (every > 1), last + (every > 1))}
    shown += [(row, row + 1, "name") for row in range(0, len(rows), every) if row not in near]
    drawn: list[str] = []
    for first, last, style in shown:
        said = (
            rows[first].label if last == first + 1 else f"{rows[first].label}\u2013{rows[last - 1].label.split()[-1]}"
        )
        place = {"x": "100%", "dx": -8, "y": (first + last) * high / 2 + 4, "text_anchor": "end"}
        drawn.append(element("text", text(f"\u25b6 {said}" if "culprit" in style else said), class_=style, **place))
    return "".join(drawn)


def _each(first: int, last: int) -> list[tuple[int, int]]:
    return [(row, row + 1) for row in range(first, last)]


def stacked(axis: Axis, label: str, layers: Mapping[str, Array], scale: Sequence[tuple[float, str]]) -> str:
    """Return layers on top of each other; a time without any is a gap.

    Args:
        axis: of time.
        label: what it shows, for those who do not see it.
        layers: values by name, which is the class too, from the bottom up.
        scale: values and their texts for the axis that goes up; the last one is the top.
    """
    top = scale[-1][0]
    values = np.array(list(layers.values()))
    there = any_rank(values)
    edges = np.concatenate((np.zeros((1, values.shape[1])), np.cumsum(np.nan_to_num(values), axis=0)))
    high = _heights(edges, top, _STACK)
    drawn: list[str] = []
    for name, below, above in zip(layers, high[:-1], high[1:], strict=True):
        for first, last in stretches(there):
            columns = range(first, last)
            upper = [f"{column},{above[column]} {column + 1},{above[column]}" for column in columns]
            lower = [f"{column + 1},{below[column]} {column},{below[column]}" for column in reversed(columns)]
            points = " ".join(upper + lower)
            drawn.append(element("polygon", element("title", text(name)), points=points, class_=f"layer {name}"))
    area = _gaps(there, _STACK) + _stretched("".join(drawn), len(there), _STACK, _STACK) + axis.over(_STACK)
    return _frame(label, _scale(scale, _STACK), area, _STACK)


def _heights(values: Array, top: float, height: float) -> list[list[float]]:
    """Return how far below the top of a plot values are, in pixels."""
    return [[round(height * (1 - value / top), 1) for value in row] for row in values.tolist()]


def _gaps(there: Flags, height: float) -> str:
    """Return marks for the times without data."""
    width = 100 / max(1, len(there))
    return "".join(
        element(
            "rect", class_="gap", x=f"{first * width:.3f}%", y=0, width=f"{(last - first) * width:.3f}%", height=height
        )
        for first, last in stretches(~there)
    )


def lines(
    axis: Axis, label: str, rows: Sequence[tuple[Array, str]], scale: Sequence[tuple[float, str]], limit: float | None
) -> str:
    """Return lines, each with its class; a time without a value is a gap."""
    top = scale[-1][0]
    drawn: list[str] = []
    for values, style in rows:
        (high,) = _heights(values[None, :], top, _LINES)
        for first, last in stretches(np.isfinite(values)):
            points = " ".join(f"{column + 0.5},{high[column]}" for column in range(first, last))
            drawn.append(element("polyline", points=points, class_=f"line {style}"))
    there = any_rank(np.array([values for values, _ in rows]))
    area = _gaps(there, _LINES) + _stretched("".join(drawn), len(there), _LINES, _LINES) + axis.over(_LINES)
    if limit is not None and limit <= top:
        place = _LINES * (1 - limit / top)
        area += element("line", class_="limit", x1=0, x2="100%", y1=place, y2=place)
    return _frame(label, _scale(scale, _LINES), area, _LINES)


def _scale(amount: Sequence[tuple[float, str]], height: float) -> str:
    top = amount[-1][0] or 1.0
    return "".join(
        element(
            "text",
            text(said),
            class_="name",
            x="100%",
            dx=-8,
            y=max(10.0, height * (1 - value / top) + 4),
            text_anchor="end",
        )
        for value, said in amount
    )


def key(entries: Iterable[tuple[str, str]]) -> str:
    """Return what colours mean: classes and texts."""
    return element("ul", *(element("li", _swatch(class_=style), text(said)) for style, said in entries), class_="key")


def ramp(low: str, high: str) -> str:
    """Return what the colours of a heat map mean."""
    width = 100 / len(ANCHORS)
    steps = (
        element("rect", fill=colour, x=f"{width * index:.2f}%", y=0, width=f"{width + 0.2:.2f}%", height=12)
        for index, colour in enumerate(ANCHORS)
    )
    bar = element("svg", *steps, class_="ramp", width=120, height=12, aria_hidden="true")
    still = element("li", _swatch(class_="still"), text("reports, ends no step"))
    return element("ul", element("li", text(low), bar, text(high)), still, _no_data(), class_="key")


def place_key(names: Sequence[str]) -> str:
    """Return what the colours of places mean."""
    items = (element("li", _swatch(fill=colour), text(name)) for colour, name in zip(PLACE_COLOURS, names, strict=True))
    return element("ul", *items, _no_data(), class_="key")


def _no_data() -> str:
    return element("li", _swatch(class_="gap"), text("no data"))


def _swatch(**colour: str) -> str:
    square = element("rect", width=14, height=14, **colour)
    return element("svg", square, class_="swatch", width=14, height=14, aria_hidden="true")
