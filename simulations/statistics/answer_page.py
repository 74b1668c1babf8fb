"""An answer as a page: its facts, its tables, and a drawing of each plot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...core.statistics.answer import Answer, Plot, ResultTable, written
from ..report import page_parts as parts
from ..report import svg
from ..report.page_parts import escaped
from ..report.report import write_whole
from ..report.svg import both

#: Classes of the style sheet, in the order in which curves take them.
HUES = ("shared", "personal", "harmed", "newcomer", "late", "dropped")
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 16.0, 12.0, 46.0
_ROW = 26.0
_HEIGHT = 300.0


def write_page(path: Path, answer: Answer, asked: str) -> None:
    """Writes the page of an answer. asked: the question, as it was written."""
    write_whole(path, page(answer, asked))


def page(answer: Answer, asked: str) -> str:
    """The whole document."""
    header = (
        f'<header>\n<div class="brand">{parts.MARK}<span>Delian</span></div>\n'
        f'<h1>{escaped(answer.title)}</h1>\n<p class="facts"><code>{escaped(asked)}</code></p>\n'
        "</header>\n"
    )
    rows = "".join(
        f"<tr><th>{escaped(name)}</th><td>{escaped(written(value))}</td></tr>"
        for name, value in answer.facts.items()
    )
    notes = "".join(f'<p class="notice">{escaped(note)}</p>' for note in answer.notes)
    body = parts.section("Question", "", f"<table><tbody>{rows}</tbody></table>", notes)
    for plot in answer.plots:
        drawn = both(partial(draw, plot))
        body += parts.section(plot.title, "", parts.figure(_keys(plot) + drawn))
    body += _tables(answer.tables)
    return parts.document(answer.title, header + body)


def _tables(tables: Sequence[ResultTable]) -> str:
    """A section for each table that has a name, with those behind it that have none."""
    made, heading, inside = "", "Answer", list[str]()
    for number, table in enumerate(tables, 1):
        if table.name and inside:
            made += parts.section(heading, "", *inside)
            inside = []
        heading = table.name or heading
        inside.append(_table(table, number))
    return made + (parts.section(heading, "", *inside) if inside else "")


def _table(table: ResultTable, number: int) -> str:
    head = "".join(f"<th>{escaped(c)}</th>" for c in table.columns)
    rows = "".join(
        f"<tr><th>{escaped(written(row[0]))}</th>"
        + "".join(f"<td>{escaped(written(v))}</td>" for v in row[1:])
        + "</tr>"
        for row in table.rows
    )
    link = parts.csv_link(f"answer-{number}", table.columns, table.rows)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        f"</div><p>{link}</p>"
    )


def _keys(plot: Plot) -> str:
    if len(plot.series) < 2:
        return ""
    return parts.legend([(_hue(i), name) for i, name in enumerate(plot.series)])


def _hue(place: int) -> str:
    return HUES[place % len(HUES)]


def draw(plot: Plot, width: float) -> str:
    """The drawing of a plot, so wide."""
    if plot.kind in ("intervals", "bars"):
        return _rows_of(plot, width)
    return _curves(plot, width)


# ---------------------------------------------------------------- a line for each name


def _rows_of(plot: Plot, width: float) -> str:
    series = next(iter(plot.series.values()))
    names = [written(x) for x in series["x"]]
    values = [_number(v) for v in series["y"]]
    lows = [_number(v) for v in series.get("low", values)]
    highs = [_number(v) for v in series.get("high", values)]
    left = min(max((len(n) for n in names), default=1) * 7.5 + 16.0, width * 0.45)
    known = [v for v in (*values, *lows, *highs) if v is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if plot.kind == "bars" or low <= 0.0 <= high:
        low, high = min(low, 0.0), max(high, 0.0)
    scale = _scale(low, high, left, width - _RIGHT)
    height = _TOP + _ROW * len(names) + _BOTTOM
    body = _TOP + _ROW * len(names)
    drawn = _vertical(scale, low, high, body, width, plot.y)
    for place, name in enumerate(names):
        y = _TOP + _ROW * (place + 0.5)
        drawn.append(svg.text(left - 8, y + 4, name, cls="label", text_anchor="end"))
        value, least, most = values[place], lows[place], highs[place]
        if value is None:
            continue
        told = svg.title(f"{name}: {written(value)}")
        if plot.kind == "bars":
            start, end = sorted((scale(0.0), scale(value)))
            drawn.append(
                svg.element(
                    "rect",
                    told,
                    x=start,
                    y=y - 8,
                    width=max(end - start, 1.0),
                    height=16.0,
                    cls="bar shared",
                )
            )
            continue
        if least is not None and most is not None:
            drawn.append(
                svg.element("line", x1=scale(least), y1=y, x2=scale(most), y2=y, cls="line shared")
            )
        drawn.append(svg.element("circle", told, cx=scale(value), cy=y, r=5.0, cls="dot shared"))
    return svg.drawing(width, height, plot.title, drawn)


def _vertical(
    scale: Callable[[float], float], low: float, high: float, bottom: float, width: float, name: str
) -> list[str]:
    """Ticks of a horizontal axis, with lines upwards."""
    drawn = []
    for tick in svg.ticks(low, high, 5 if width > 500 else 3):
        x = scale(tick)
        drawn.append(svg.element("line", x1=x, y1=_TOP, x2=x, y2=bottom, cls="grid"))
        drawn.append(svg.text(x, bottom + 18, _tick(tick), cls="tick", text_anchor="middle"))
    drawn.append(
        svg.text(
            (scale(low) + scale(high)) / 2, bottom + 38, name, cls="title", text_anchor="middle"
        )
    )
    return drawn


# ---------------------------------------------------------------- curves


def _curves(plot: Plot, width: float) -> str:
    points = {
        name: [
            (x, y)
            for x, y in zip(map(_number, one["x"]), map(_number, one["y"]), strict=True)
            if x is not None and y is not None
        ]
        for name, one in plot.series.items()
    }
    xs = [x for one in points.values() for x, _ in one]
    ys = [y for one in points.values() for _, y in one]
    for one in plot.series.values():
        for end in ("low", "high"):
            ys += [v for v in map(_number, one.get(end, ())) if v is not None]
    low_x, high_x = min(xs, default=0.0), max(xs, default=1.0)
    low, high = min(ys, default=0.0), max(ys, default=1.0)
    if low >= 0.0 and high <= 1.0:
        low, high = 0.0, 1.0
    across = _scale(low_x, high_x, _LEFT, width - _RIGHT)
    bottom = _HEIGHT - _BOTTOM
    up = _scale(low, high, bottom, _TOP)
    drawn = _vertical(across, low_x, high_x, bottom, width, plot.x)
    for tick in svg.ticks(low, high, 5):
        y = up(tick)
        drawn.append(svg.element("line", x1=_LEFT, y1=y, x2=width - _RIGHT, y2=y, cls="grid"))
        drawn.append(svg.text(_LEFT - 8, y + 4, _tick(tick), cls="tick", text_anchor="end"))
    for place, (name, one) in enumerate(plot.series.items()):
        drawn += _band(plot, one, across, up, _hue(place))
        line = _stairs(points[name]) if plot.kind == "steps" else points[name]
        placed = [(across(x), up(y)) for x, y in line]
        if placed:
            drawn.append(
                svg.element("path", svg.title(name), d=svg.path(placed), cls=f"line {_hue(place)}")
            )
    drawn.append(svg.text(_LEFT, _TOP - 2, plot.y, cls="title", text_anchor="start"))
    return svg.drawing(width, _HEIGHT, plot.title, drawn)


def _band(
    plot: Plot,
    one: Mapping[str, Sequence[Any]],
    across: Callable[[float], float],
    up: Callable[[float], float],
    hue: str,
) -> list[str]:
    """The interval around a curve."""
    if "low" not in one or "high" not in one:
        return []
    rows = [
        (x, a, b)
        for x, a, b in zip(
            map(_number, one["x"]), map(_number, one["low"]), map(_number, one["high"]), strict=True
        )
        if x is not None and a is not None and b is not None
    ]
    if not rows:
        return []
    lower, upper = [(x, a) for x, a, _ in rows], [(x, b) for x, _, b in rows]
    if plot.kind == "steps":
        lower, upper = _stairs(lower), _stairs(upper)
    around = [(across(x), up(y)) for x, y in (*upper, *reversed(lower))]
    return [svg.element("path", d=svg.path(around) + "Z", cls=f"band {hue}")]


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Constant from each point to the next."""
    made: list[tuple[float, float]] = []
    for x, y in points:
        if made:
            made.append((x, made[-1][1]))
        made.append((x, y))
    return made


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    wide = high - low or 1.0
    return lambda value: start + (value - low) / wide * (end - start)


def _tick(value: float) -> str:
    return f"{value:,.6g}" if abs(value) < 1e9 else f"{value:.3g}"


def _number(value: Any) -> float | None:
    if value is None:
        return None
    found = float(value)
    return found if math.isfinite(found) else None
