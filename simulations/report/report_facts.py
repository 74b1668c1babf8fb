"""What pages of a report ask of report.json's content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from ...core.learning import algorithm_registry
from .measures import Measure, measure_of
from .svg import duration

Report: TypeAlias = Mapping[str, Any]


def algorithm_of(report: Report) -> str:
    """The algorithm's title."""
    name: str = report["scenario"]["algorithm"]["name"]
    return algorithm_registry.title(name)


def runs_of(report: Report) -> list[Report]:
    """The run, and the one that it is compared with."""
    return [report, report["compare"]] if "compare" in report else [report]


def is_real(report: Report) -> bool:
    """Whether daemons ran it, in real time."""
    return report["summary"].get("wall_seconds") is not None


def took(report: Report) -> str:
    """How long all rounds took."""
    key = "wall_seconds" if is_real(report) else "virtual_seconds"
    return duration(report["summary"][key])


def ways_of(report: Report) -> int:
    """Classes of a few-shot episode, which numbers them again each time; 0 for other tasks."""
    ways: int = report["scenario"]["data"].get("ways", 0)
    return ways


def measured_by(report: Report) -> Measure:
    """What models are judged by."""
    return measure_of(report["scenario"])


def percent1(share: float | None) -> str:
    """A share as a percentage with one decimal; a dash for None."""
    return "–" if share is None else f"{100 * share:.1f}%"
