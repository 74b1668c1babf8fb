"""Runs that are killed at a round and resumed, and what must be equal then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from delian.simulations.report.report import build_report
from delian.simulations.resume import kept_run
from delian.simulations.runs.result import (
    Event,
    Replayed,
    SimulationResult,
    UpdateFinished,
)
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file

PLAIN = 'privacy.aggregation="plain"'
SMALL = [
    "rounds=6",
    "fleet.devices=12",
    "fleet.edges=2",
    "round.cohort=4",
    "data.held_out_devices=3",
    "evaluation.every=2",
]


class Killed(BaseException):
    """In the place of a signal that cannot be caught."""


@dataclass
class Killer:
    """Ends a run with the first update that is computed for a round. trained: how many were."""

    round: int = 0
    trained: int = 0
    replayed: int = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Replayed):
            self.replayed = event.record.round
        if isinstance(event, UpdateFinished) and not event.evaluating:
            self.trained += 1
            if self.round and event.round >= self.round:
                raise Killed


@pytest.fixture(autouse=True)
def kept_after_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_run, "KEEP_S", 0.0)
    monkeypatch.setattr(kept_run, "KEEP_SHARE", float("inf"))


def run(algorithm: str, *settings: str, **options: Any) -> SimulationResult:
    scenario = scenario_file.with_algorithm(scenario_file.load("digits"), algorithm)
    scenario = scenario_file.override(scenario, [*SMALL, *settings])
    return simulate(scenario, **{"threads": 2, **options})


def bits_of(result: SimulationResult) -> tuple[Any, ...]:
    report = build_report(result)
    del report["host"]
    assert result.bundle is not None
    return result.trace_hash, result.bundle.to_bytes(), report
