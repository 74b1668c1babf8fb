"""Counts, sums and means by groups: equal to pandas', with a floor at each site, and noise."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from delian.core.privacy.mechanisms import accountant, wide_noise
from delian.core.statistics.asking import noise_for
from delian.core.statistics.methods.aggregates import Aggregates
from delian.core.statistics.methods.column_values import ColumnValues
from delian.core.statistics.request import Request
from delian.core.statistics.sums import StatisticsError, SumPlan, counts
from delian.simulations.statistics.local_sites import LocalSites

MEASURES = (("count", "*"), ("count", "x"), ("sum", "x"), ("avg", "x"), ("var", "x"))


def frames(seed: int = 0, sites: int = 5, rows: int = 300) -> list[pd.DataFrame]:
    draw, made = np.random.default_rng(seed), []
    for _ in range(sites):
        x = draw.normal(1e6, 2, rows)
        x[draw.random(rows) < 0.1] = np.nan
        region = draw.choice(["north", "süd", "ost"], rows)
        made.append(pd.DataFrame({"x": x, "region": region, "k": draw.integers(0, 3, rows)}))
    return made


@pytest.mark.parametrize("masked", [True, False])
def test_groups_are_those_of_all_rows_in_one_place(masked: bool) -> None:
    tables = frames()
    found = LocalSites(tables, masked=masked).answer(Aggregates(MEASURES, ("region", "k")))
    whole = pd.concat(tables).groupby(["region", "k"])["x"]
    wanted = whole.agg(["size", "count", "sum", "mean", "var"]).to_numpy()
    got = found.values[:, [0, 1, 2, 3, 6]]  # behind the mean stand its ends
    order = np.argsort([f"{a} {b}" for a, b in found.groups], kind="stable")
    np.testing.assert_allclose(got[order][:, :4], wanted[:, :4], rtol=1e-12)
    np.testing.assert_allclose(got[order][:, 4], wanted[:, 4], rtol=1e-8)
    assert found.facts["rows"] == 1500 and found.facts["rows left out"] == 0


def test_a_site_leaves_out_its_groups_below_the_floor() -> None:
    tables = [pd.DataFrame({"g": ["a"] * 20 + ["rare"] * few}) for few in (4, 7, 0)]
    found = LocalSites(tables).answer(Aggregates(groups=("g",), floor=5))
    assert dict(zip(found.groups, found.counts.tolist(), strict=True)) == {
        ("a",): 60.0,
        ("rare",): 7.0,
    }
    assert found.facts["rows left out"] == 4 and "4 rows" in found.notes[0]


def test_values_of_fewer_rows_than_the_floor_are_never_found() -> None:
    texts = ["f"] * 30 + ["m"] * 20 + ["Zürich-7"] * 4 + ["Zug"] * 3
    tables = [pd.DataFrame({"g": texts}) for _ in range(3)]
    asked = []
    sites = LocalSites(tables)
    found = sites.answer(ColumnValues(("g",), floor=13), on_step=asked.append)
    assert found.values == {"g": ("f", "m")}
    assert found.facts["rows of rare values"] == 21
    # "Z" has 21 rows and is followed; "Zü" and "Zu" have fewer than the floor and are not.
    followed = [
        s.arrays["prefixes"][i][:n]
        for s in asked
        for i, n in enumerate(s.arrays["lengths"].tolist())
    ]
    assert all(len(prefix) <= 1 for prefix in followed)


def test_a_site_that_drops_out_is_left_out_and_said() -> None:
    tables = frames()
    sites = LocalSites(tables, silent=lambda step: (2,))
    found = sites.answer(Aggregates((("avg", "x"),)))
    rest = pd.concat([t for i, t in enumerate(tables) if i != 2])["x"]
    assert found.facts["sites"] == 4
    np.testing.assert_allclose(found.values[0, 0], rest.mean(), rtol=1e-12)


def test_sites_that_lack_the_column_are_an_error_that_names_none() -> None:
    tables = [*frames(sites=3), pd.DataFrame({"y": [1.0]})]
    found = LocalSites(tables).answer(Aggregates((("avg", "x"),)))
    assert found.facts["sites"] == 3
    assert found.notes[-1] == "1 of 4 sites did not answer: a site has no column `x`"
    with pytest.raises(StatisticsError, match="3 of 5 sites"):
        LocalSites([*tables[:2], *[tables[3]] * 3]).answer(Aggregates((("avg", "x"),)))


@pytest.mark.parametrize(
    "settings",
    [
        {"measures": ()},
        {"measures": (("max", "x"),)},
        {"measures": (("sum", "*"),)},
        {"floor": 0},
        {"limits": {"x": (3.0, 2.0)}},
        {"limits": {"x": (0.0, float("inf"))}},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings) -> None:
    with pytest.raises(StatisticsError):
        Aggregates(**settings)


# ---------------------------------------------------------------- noise


def test_noise_has_the_deviation_that_is_charged() -> None:
    """Of n sites' noise: sqrt(n) Z times what one row changes, in each count."""
    rows = pd.DataFrame({"g": ["a", "b"] * 50})
    sites = LocalSites([rows] * 4, masked=False)
    asked = Request(Aggregates(groups=("g",), categories={"g": ("a", "b")}, floor=1), noise=2.0)
    off = []
    for _ in range(200):
        found = sites.answer(asked)
        off += (found.counts - 200).tolist()
    # Three sums in the step, rounded up to a power of two: one row changes their length by 2.
    wanted = np.sqrt(4) * 2.0 * 2.0
    assert abs(np.mean(off)) < 6 * wanted / np.sqrt(len(off))
    assert 0.75 < np.std(off) / wanted < 1.3


def test_a_floor_makes_the_noise_as_many_times_larger() -> None:
    """One row may bring its group to the floor, and the whole group is counted then."""
    from delian.core.statistics.measuring import _sensitivities

    for floor in (1, 5):
        question = Aggregates(groups=("g",), categories={"g": ("a",)}, floor=floor)
        step = question.ask().send(None)
        assert question.sensitivities(step)["rows"] == floor
        assert _sensitivities(question, step)["rows"] >= floor


@pytest.mark.parametrize("noise", [0.5, 2.0, 8.0])
def test_epsilon_holds_against_an_exact_accountant(noise: float) -> None:
    """The hockey-stick divergence of Gaussians at the accounted epsilon is below delta.

    Balle and Wang, "Improving the Gaussian mechanism for differential privacy", ICML 2018: for
    sensitivity 1 and deviation s, delta(eps) = F(1/2s - eps s) - e^eps F(-1/2s - eps s). Skellam
    noise of this variance is as near to it as its bound says.
    """
    special = pytest.importorskip("scipy.special")
    plan = SumPlan((counts("n", 10),), 5, noise).ring
    epsilon = accountant.epsilon_of(wide_noise.release(plan, 5), 1e-6)
    s = noise * np.sqrt(5)
    exact = special.ndtr(1 / (2 * s) - epsilon * s) - np.exp(epsilon) * special.ndtr(
        -1 / (2 * s) - epsilon * s
    )
    assert exact <= 1e-6
    # And the bound is no idle one: at half of it the exact delta is above.
    half = epsilon / 2
    loose = special.ndtr(1 / (2 * s) - half * s) - np.exp(half) * special.ndtr(
        -1 / (2 * s) - half * s
    )
    assert loose > 1e-6


def test_the_least_noise_for_an_epsilon_keeps_it() -> None:
    plan = SumPlan((counts("n", 10),), 5, 1.0).ring
    noise = noise_for(1.0, 3, plan, 4, 0.2)
    spent = [wide_noise.release(SumPlan((counts("n", 10),), 5, noise).ring, 4, 0.2)] * 3
    assert 0.99 < accountant.epsilon_of(accountant.composed(spent), 1e-6) <= 1.0


def test_a_mean_without_limits_has_no_noise() -> None:
    with pytest.raises(StatisticsError, match="limits"):
        LocalSites(frames()).answer(Request(Aggregates((("avg", "x"),)), noise=1.0))


def test_a_site_refuses_a_step_without_room_for_its_noise() -> None:
    from delian.core.statistics.measuring import vector_of
    from delian.core.statistics.question import Step
    from delian.core.statistics.site_table import Table

    asked = Request(Aggregates(), noise=1.0)
    sums = (counts("rows", 1), counts("suppressed"), counts("other"))
    step = Step("cells", sums)
    plan = SumPlan(sums, 5, 1.0)
    with pytest.raises(StatisticsError, match="no room"):
        vector_of(asked, step, plan, Table({}, 30), {}, bytes(32))
