"""Means and spreads over sites hold for columns of any unit, and name what is constant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from delian.core.statistics.answer import Answer
from delian.core.statistics.design import Design
from delian.core.statistics.moments import ask_moments, measure_moments
from delian.core.statistics.question import _METHODS, Asking, Kept, Question, Step
from delian.core.statistics.site_table import Table
from delian.core.statistics.sums import StatisticsError
from delian.simulations.statistics.local_sites import LocalSites


@dataclass(frozen=True)
class MomentsAnswer(Answer):
    moments: Any = None


@dataclass(frozen=True)
class MomentsQuestion(Question):
    names: tuple[str, ...]

    def columns(self) -> tuple[str, ...]:
        return self.names

    def ask(self) -> Asking:
        moments = yield from ask_moments(len(self.names))
        return MomentsAnswer("Moments", {}, moments=moments)

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        complete = Design(self.names, intercept=False).of(table)
        return measure_moments(complete.matrix, step, complete)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_METHODS, "test_moments", MomentsQuestion)
    monkeypatch.setattr(MomentsQuestion, "method", "test_moments")


def test_means_and_spreads_are_those_of_the_pooled_rows() -> None:
    draw = np.random.default_rng(2)
    columns = {
        "small": draw.normal(3e-25, 1e-25, 500),
        "large": draw.normal(0, 1e25, 500),
        "far": draw.normal(1e9, 1.0, 500),
        "constant": np.full(500, 0.1),
    }
    columns["large"][7] = np.nan
    parts = np.array_split(np.arange(500), 5)
    sites = LocalSites([{k: v[p] for k, v in columns.items()} for p in parts])
    found = sites.answer(MomentsQuestion(tuple(columns))).moments
    pooled = np.stack([np.delete(v, 7) for v in columns.values()], axis=1)
    assert (found.sites, found.rows, found.missing, found.unlisted) == (5, 499, 1, 0)
    np.testing.assert_allclose(found.means, pooled.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(found.spreads[:3], pooled.std(axis=0)[:3], rtol=1e-9)
    assert found.spreads[3] == 0 and found.scales[3] == found.means[3]


def test_no_complete_row_is_an_error() -> None:
    sites = LocalSites([{"a": np.array([np.nan])}] * 3)
    with pytest.raises(StatisticsError, match="no complete row"):
        sites.answer(MomentsQuestion(("a",)))
