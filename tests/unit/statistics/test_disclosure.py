"""What leaves a site is masked sums: rows with canaries are searched for in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.privacy.mechanisms import ring
from delian.core.statistics.building import build
from delian.core.statistics.methods.aggregates import Aggregates
from delian.core.statistics.question import step_bytes
from delian.core.statistics.request import Request
from delian.core.statistics.sums import Sum, SumPlan, counts
from delian.simulations.statistics import local_sites
from delian.simulations.statistics.local_sites import LocalSites

#: A value of one row alone, and what it is written as.
CANARY, NAME = 123456.78125, "Kanarienvogel"


def tables(rows: int = 60) -> list[dict[str, Any]]:
    draw, made = np.random.default_rng(2), []
    for site in range(5):
        x, g = draw.normal(0, 1, rows), draw.choice(["a", "b"], rows).astype(object)
        if site == 2:
            x[7], g[7] = CANARY, NAME
        y = (draw.random(rows) < 0.5).astype(float)
        made.append({"x": x, "g": g.astype(str), "y": y})
    return made


@pytest.fixture
def sent(monkeypatch):
    """What each site sends, and the sums that the coordinator opens."""
    from delian.core.privacy.secagg.client import ClientSession

    masked: list[Any] = []
    mask = ClientSession.mask

    def recorded(self, vector):
        out = mask(self, vector)
        masked.append((np.array(vector), np.array(out)))
        return out

    monkeypatch.setattr(ClientSession, "mask", recorded)
    return masked


QUESTIONS = [
    Aggregates((("avg", "x"), ("count", "*")), ("g",)),
    build("glm", "y ~ x + C(g)", {"family": "logistic", "categories": {"g": ["a", "b"]}}),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=["aggregates", "glm"])
def test_a_row_is_in_nothing_that_a_site_sends(sent, question) -> None:
    """Neither the canary's limbs nor the site's own numbers are in what it sends."""
    sites, steps = LocalSites(tables()), []
    try:
        sites.answer(question, on_step=steps.append)
    except Exception as fault:
        assert NAME not in str(fault) and str(CANARY) not in str(fault)
    assert sent and all(NAME.encode() not in step_bytes(step) for step in steps)
    for plain, masked in sent:
        # Masks are uniform: as many elements agree as chance has it.
        assert np.mean(plain == masked) < 0.05
        assert not np.isin(plain[:-1][plain[:-1] > 1 << 16], masked).any()


def test_without_masks_the_same_search_finds_the_row() -> None:
    """The search is none that cannot fail: a plain vector of one site has its sum."""
    from delian.core.statistics.measuring import vector_of
    from delian.core.statistics.question import Step
    from delian.core.statistics.site_table import Table

    step = Step(
        "cells",
        (
            counts("rows", 1),
            counts("suppressed"),
            counts("other"),
            counts("known_0", 1),
            Sum("sum_0", (1,), 100, 40),
        ),
    )
    asked = Request(Aggregates((("sum", "x"),), floor=1))
    plan = SumPlan(step.sums, 5)
    vector = vector_of(asked, step, plan, Table({"x": np.array([CANARY])}), {}, b"")
    assert plan.decode(vector[:-1], 1).number("sum_0") == CANARY


def test_a_value_of_one_row_is_no_category(sent) -> None:
    found = LocalSites(tables()).answer(Aggregates(groups=("g",)))
    assert {key for (key,) in found.groups} == {"a", "b"} and NAME not in str(found)
    assert found.facts["rows left out"] == 1


def test_two_sites_cannot_be_asked_under_masks() -> None:
    with pytest.raises(local_sites.StatisticsError, match="2 sites"):
        LocalSites(tables()[:2])


def test_too_few_survivors_open_no_sum() -> None:
    sites = LocalSites(tables(), silent=lambda step: (0, 1, 2))
    with pytest.raises(local_sites.StatisticsError, match="too few sites"):
        sites.answer(Aggregates((("avg", "x"),)))


def test_with_noise_one_row_s_trace_is_within_its_bound() -> None:
    """With and without a row: the noised answers' distributions overlap as epsilon says.

    The count is thresholded in between; the odds of both sides differ by e^epsilon at most.
    """
    rows, noise = 40, 1.0
    asked = Request(Aggregates(floor=1), noise=noise)

    def above(extra: int) -> float:
        given = [{"x": np.zeros(rows + (extra if site == 0 else 0))} for site in range(3)]
        sites = LocalSites(given, masked=False)
        return float(np.mean([sites.answer(asked).counts[0] > 3 * rows + 0.5 for _ in range(300)]))

    epsilon = LocalSites([{"x": np.zeros(rows)}] * 3, masked=False).answer(asked).facts["epsilon"]
    with_row, without = above(1), above(0)
    slack = 3 * np.sqrt(0.25 / 300)
    assert with_row - slack <= np.exp(epsilon) * (without + slack) + 1e-6
    assert with_row < 0.75, "a row alone would be seen"


def test_an_exact_sum_is_no_mean() -> None:
    plan = SumPlan(QUESTIONS[0].ask().send(None).sums, 5).ring
    total = np.arange(plan.length, dtype=np.uint32)
    total[-1] = 3
    made, weight = ring.result(total, plan)
    np.testing.assert_array_equal(made, total)
    assert weight == 3.0
    for count in (0, 6):
        total[-1] = count
        with pytest.raises(ring.RingError):
            ring.result(total, plan)
