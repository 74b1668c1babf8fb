"""The drawing of a result of benchmarks/placement.py: latency over bandwidth, a panel a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from delian.simulations.report.svg import Frame, element, path, text

PANEL_WIDTH, PANEL_HEIGHT, COLUMNS = 330.0, 250.0, 2
LEGEND_HEIGHT = 34.0
#: Of the round trips that were measured, the one that is drawn.
ROUND_TRIP_MS = 20.0
#: What is drawn: the row's entry, its words, its colour, its dashes.
LINES = (
    ("device_ms", "device only", "#8a8a8a", "2 3"),
    ("above_ms", "all above", "#3b78b5", "6 3"),
    ("by_hand_ms", "best cut of the chain", "#c8781e", "1 3"),
    ("ours_ms", "ours", "#1f8a4c", "none"),
)
PREDICTED = ("predicted_ms", "ours, predicted", "#1f8a4c")
_STYLE = (
    "text{font:11px sans-serif;fill:#444}.grid{stroke:#ddd}.axis{stroke:#888}"
    ".title{font-weight:bold;fill:#222}svg{background:#fff}"
)


def draw(result: dict[str, Any]) -> str:
    """An SVG document."""
    drawn = [r for r in result["points"] if r["round_trip_ms"] == ROUND_TRIP_MS]
    models = list(dict.fromkeys(r["model"] for r in drawn))
    parts = [element("style", _STYLE), _legend()]
    for n, model in enumerate(models):
        x = n % COLUMNS * PANEL_WIDTH
        y = LEGEND_HEIGHT + n // COLUMNS * PANEL_HEIGHT
        rows = sorted((r for r in drawn if r["model"] == model), key=lambda r: r["mbit"])
        parts.append(element("g", _panel(model, rows), transform=f"translate({x:g} {y:g})"))
    width = PANEL_WIDTH * min(COLUMNS, len(models))
    height = LEGEND_HEIGHT + PANEL_HEIGHT * math.ceil(len(models) / COLUMNS)
    attributes = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": width,
        "height": height,
    }
    return element("svg", "".join(parts), **attributes) + "\n"


def _legend() -> str:
    parts, x = [], 64.0
    for _, words, colour, dashes in LINES:
        parts.append(_line([(x, 16), (x + 24, 16)], colour, dashes))
        parts.append(text(x + 30, 20, words))
        x += 46 + 5.8 * len(words)
    parts.append(_dot(x + 6, 16, PREDICTED[2]) + text(x + 16, 20, PREDICTED[1]))
    return "".join(parts)


def _panel(model: str, rows: Sequence[dict[str, Any]]) -> str:
    keys = [*(name for name, *_ in LINES), PREDICTED[0]]
    values = [r[k] for r in rows for k in keys if r[k] is not None]
    low, high = math.log10(min(values)), math.log10(max(values))
    x_low, x_high = math.log10(rows[0]["mbit"]), math.log10(rows[-1]["mbit"])
    ranges = (x_low, x_high), (low - 0.05, high + 0.05)
    frame = Frame(PANEL_WIDTH, PANEL_HEIGHT, *ranges, left=64.0, top=28.0)
    marks = [math.log10(m * 10.0**e) for e in range(-2, 5) for m in (1, 2, 5)]
    inside = [m for m in marks if low <= m <= high]
    parts = [
        text(frame.left, 16, f"{model}, {ROUND_TRIP_MS:g} ms round trip", cls="title"),
        frame.grid(inside, lambda v: f"{10**v:,.10g} ms"),
        frame.scale([math.log10(r["mbit"]) for r in rows], lambda v: f"{10**v:.4g}"),
        frame.x_title("Mbit/s"),
    ]
    for name, _, colour, dashes in LINES:
        found = [(r["mbit"], r[name]) for r in rows if r[name] is not None]
        if found:
            at = [(frame.x(math.log10(m)), frame.y(math.log10(v))) for m, v in found]
            parts.append(_line(at, colour, dashes))
    for r in rows:
        x, y = frame.x(math.log10(r["mbit"])), frame.y(math.log10(r[PREDICTED[0]]))
        parts.append(_dot(x, y, PREDICTED[2]))
    return "".join(parts)


def _line(points: Sequence[tuple[float, float]], colour: str, dashes: str) -> str:
    return element(
        "path", d=path(points), stroke=colour, stroke_width=2, stroke_dasharray=dashes, fill="none"
    )


def _dot(x: float, y: float, colour: str) -> str:
    return element("circle", cx=x, cy=y, r=3.5, fill="none", stroke=colour)
