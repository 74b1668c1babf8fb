"""Metrics of a task's own (`learn.task.Task`): from sums to figures, and how people are shown them.

A round's record has them as `global_metrics` and `personalised_metrics`, by name; None is a metric
of which nothing was below the line, as the F1 of a label that no device has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.learning.metrics import figure
from ...core.learning.runtime import Score
from ..runs.result import RoundRecord


def figures(names: Sequence[str], total: Score) -> dict[str, float | None]:
    """The metrics by name, from the sums over all devices."""
    return {
        name: figure(name, above, below) if below else None
        for name, (above, below) in zip(names, total.more, strict=True)
    }


def told(record: RoundRecord) -> str:
    """A round's metrics as progress shows them; empty where there are none."""
    pairs = _pairs(record.global_metrics, record.personalised_metrics)
    return "  ".join(f"{name} {show(a)} -> {show(b)}" for name, (a, b) in pairs.items())


def lines(rounds: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """(name, shared, personal) of each metric, when it was judged last."""
    found = judged(rounds)
    if not found:
        return []
    pairs = _pairs(found[-1]["global_metrics"], found[-1]["personalised_metrics"])
    return [(name, show(a), show(b)) for name, (a, b) in pairs.items()]


def judged(rounds: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rounds that have such metrics."""
    return [r for r in rounds if r.get("global_metrics")]


def _pairs(
    shared: Mapping[str, float | None] | None, own: Mapping[str, float | None] | None
) -> dict[str, tuple[float | None, float | None]]:
    return {name: (value, (own or {}).get(name)) for name, value in (shared or {}).items()}


def show(value: float | None) -> str:
    """A figure as people see it."""
    return "–" if value is None else f"{value:.4g}"
