"""Figures of a report about classes and ways to train: bars side by side, a confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .measures import ACCURACY, Measure
from .report_plots import visible
from .svg import Frame, drawing, element, text, ticks, title, whole

#: A matrix of more classes cannot be read.
MATRIX_CLASSES_MAX = 30
#: Bars of more classes neither: then the classes with the lowest accuracy are shown.
BARS_MAX = 24
_ROW, _BAR = 32.0, 12.0
#: Cells of at least such an opacity are dark on a light page, and light on a dark one.
_DARK, _HALF = 0.85, 0.5


@dataclass(frozen=True, slots=True)
class Bars:
    """One row of a figure: its name, and a value for each hue; None: not known."""

    name: str
    values: Sequence[float | None]


def bars(
    rows: Sequence[Bars],
    series: Sequence[tuple[str, str]],
    width: float,
    measure: Measure = ACCURACY,
    label: str = "Accuracy",
) -> str:
    """Horizontal bars in groups.

    series: (name, hue) of each value of a row. label: what is drawn, for screen readers.
    """
    names = [visible(row.name) for row in rows]
    known = [v for row in rows for v in row.values if v is not None]
    high = 1.0 if not measure.error else max([*known, 0.0]) or 1.0
    left = min(width * 0.4, 16 + 7.2 * max(map(len, names), default=1))
    tall = _ROW + _BAR * (len(series) - 2) if len(series) > 2 else _ROW
    frame = Frame(
        width,
        tall * len(rows) + 36,
        (0.0, high),
        (len(rows), 0.0),
        left=left,
        right=62,
        top=4,
        bottom=30,
    )
    marks = ticks(0.0, high, 3 if frame.narrow else 5)
    show = _percent if not measure.error else (lambda value: f"{value:,.4g}")
    drawn = [
        element("line", x1=frame.x(v), x2=frame.x(v), y1=frame.top, y2=frame.y_end, cls="grid")
        for v in marks
    ]
    drawn.append(frame.scale(marks, show))
    for place, (row, name) in enumerate(zip(rows, names, strict=True)):
        y = frame.y(place) + (tall - _BAR * len(series)) / 2
        middle = frame.y(place) + tall / 2 + 4
        drawn.append(text(left - 8, middle, name, cls="tick", text_anchor="end"))
        for (called, hue), value in zip(series, row.values, strict=True):
            if value is not None:
                told = title(f"{row.name}, {called}: {measure.show(value)}")
                long = max(1.0, frame.x(value) - left)
                drawn.append(
                    element(
                        "rect", told, x=left, y=y, width=long, height=_BAR - 1, cls=f"bar {hue}"
                    )
                )
                if len(series) < 3:
                    drawn.append(
                        text(left + long + 5, y + _BAR - 2.5, measure.show(value), cls="small")
                    )
            y += _BAR
    return drawing(width, frame.height, label, drawn)


def _percent(value: float) -> str:
    return f"{100 * value:.0f}%"


def confusion(classes: Mapping[str, Any], width: float) -> str:
    """A cell for each pair: a row is the true class, a column what the model gave.

    Cells are darker for a larger share of the row; right answers lie on the diagonal.
    """
    names = [visible(str(name)) for name in classes["labels"]]
    matrix: Sequence[Sequence[int]] = classes["confusion"]
    size, longest = len(names), max(map(len, names))
    left = min(width * 0.35, 34 + 7.2 * longest)
    side = min(34.0, (width - left - 8) / size)
    level = longest * 7.2 <= side  # whether names under columns have room next to one another
    bottom = 40.0 if level else 30 + 6.2 * min(longest, 14)
    frame = Frame(
        left + side * size + 8,
        side * size + bottom + 6,
        (0, size),
        (size, 0),
        left=left,
        right=8,
        top=6,
        bottom=bottom,
    )
    drawn = []
    for row, counts in enumerate(matrix):
        total = sum(counts)
        y = frame.y(row)
        drawn.append(text(left - 8, y + side / 2 + 4, names[row], cls="tick", text_anchor="end"))
        for column, count in enumerate(counts):
            x = frame.x(column)
            share = count / total if total else 0.0
            hue = "right" if row == column else "wrong"
            pair = f"{names[row]} taken for {names[column]}"
            told = title(f"{pair}: {count} of {total}")
            box = {"x": x + 0.5, "y": y + 0.5, "width": side - 1, "height": side - 1}
            drawn.append(element("rect", told, **box, cls="blank"))
            strong = 0.1 + 0.9 * share**0.6
            if count:
                opacity = f"{strong:.2f}"
                drawn.append(element("rect", told, **box, cls=f"cell {hue}", fill_opacity=opacity))
            if count and side >= 20:
                dark = " over" if strong >= _DARK else " half" if strong >= _HALF else ""
                drawn.append(
                    text(
                        x + side / 2,
                        y + side / 2 + 4,
                        whole(count),
                        cls=f"small count{dark}",
                        text_anchor="middle",
                    )
                )
    for column, name in enumerate(names):
        x, y = frame.x(column) + side / 2, frame.y_end + 14
        if level:
            drawn.append(text(x, y, name, cls="tick", text_anchor="middle"))
        else:
            turned = f"rotate(-45 {x + 4:.1f} {y:.1f})"
            drawn.append(text(x + 4, y, name, cls="tick", text_anchor="end", transform=turned))
    drawn.append(frame.x_title("class that the model gave"))
    turned = f"rotate(-90 12 {side * size / 2 + 6:.1f})"
    middle = side * size / 2 + 6
    drawn.append(
        text(12, middle, "true class", cls="label", text_anchor="middle", transform=turned)
    )
    return drawing(width, frame.height, "Confusion matrix of the shared model", drawn)
