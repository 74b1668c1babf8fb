"""Answers: tables of numbers with their intervals, as text, as JSON, and for a page with plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

#: Characters of a printed answer.
WIDTH = 78

PlotKind = Literal["intervals", "steps", "lines", "bars"]


@dataclass(frozen=True)
class ResultTable:
    """A table of an answer."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """Text, numbers, or None where there is none."""


@dataclass(frozen=True)
class Plot:
    """A drawing of an answer."""

    kind: PlotKind
    """`intervals`: an estimate and its interval a line; `steps`: curves that are constant between
    points; `lines`; `bars`.
    """
    title: str
    x: str
    """Name of the horizontal axis."""
    y: str
    """Name of the vertical axis."""
    series: Mapping[str, Mapping[str, Sequence[Any]]]
    """By name: "x" (numbers, or labels), "y", and where there are such "low" and "high"."""


@dataclass(frozen=True)
class Answer:
    """What a question gives. A method's answer derives from it and has its numbers as fields."""

    title: str
    """What was done, for people: "Logistic regression"."""
    facts: Mapping[str, Any]
    """Numbers and words about the whole: sites, rows, missing rows, iterations."""
    tables: tuple[ResultTable, ...] = ()
    plots: tuple[Plot, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    """What a reader must know: what was left out, what is approximate."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; numbers that are not finite are None."""
        return {
            "title": self.title,
            "facts": {name: plain(value) for name, value in self.facts.items()},
            "tables": [
                {
                    "name": table.name,
                    "columns": list(table.columns),
                    "rows": [[plain(v) for v in row] for row in table.rows],
                }
                for table in self.tables
            ],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [self.title.center(WIDTH).rstrip(), "=" * WIDTH, *_facts(self.facts)]
        for table in self.tables:
            lines += ["-" * WIDTH, *([table.name] if table.name else []), *_table(table)]
        lines.append("=" * WIDTH)
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, np.ndarray):
        return [plain(v) for v in value.tolist()]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def written(value: Any) -> str:
    """A value as tables print it."""
    if value is None:
        return ""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value == int(value) if math.isfinite(value) else False):
        return f"{int(value):,}" if abs(value) < 1e15 else f"{value:.6g}"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e9 else f"{value:.4g}"


def _facts(facts: Mapping[str, Any]) -> list[str]:
    """Two facts a line."""
    half = WIDTH // 2 - 1
    cells = []
    for name, value in facts.items():
        text = written(value)
        space = max(half - len(name) - 1 - len(text), 1)
        cells.append(f"{name}:{' ' * space}{text}")
    pairs = [cells[i : i + 2] for i in range(0, len(cells), 2)]
    return ["  ".join(f"{cell:<{half}}" for cell in pair).rstrip() for pair in pairs]


def _table(table: ResultTable) -> list[str]:
    rows = [[written(v) for v in row] for row in table.rows]
    widths = [
        max(len(name), *(len(row[k]) for row in rows), 1) if rows else len(name)
        for k, name in enumerate(table.columns)
    ]

    def line(cells: Sequence[str]) -> str:
        first = f"{cells[0]:<{widths[0]}}"
        return "  ".join(
            [first, *(f"{c:>{w}}" for c, w in zip(cells[1:], widths[1:], strict=True))]
        )

    return [line(table.columns), *map(line, rows)]
