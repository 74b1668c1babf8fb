"""Questions made to show one row of a site: each is refused, or the row is left out."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.statistics.building import build
from delian.core.statistics.few_rows import TooFewRows, check_column, is_enough
from delian.core.statistics.measuring import vector_of
from delian.core.statistics.methods.aggregates import Aggregates
from delian.core.statistics.question import Step
from delian.core.statistics.request import Request
from delian.core.statistics.site_rules import OwnerRules
from delian.core.statistics.site_table import Table
from delian.core.statistics.sql.rows_data import Offered, Refused
from delian.core.statistics.sums import SumPlan
from delian.simulations.statistics.local_sites import LocalSites

N, ROW = 200, 17


def columns() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(4)
    x = draw.normal(50, 10, N)
    names = np.array(["anna"] * 120 + ["bert"] * 77 + ["Zoë"] * 3)
    return {
        "x": x,
        "w": draw.normal(0, 1, N),
        "y": (draw.random(N) < 1 / (1 + np.exp(-(x - 50) / 10))).astype(float),
        "one": (np.arange(N) == ROW).astype(float),
        "his": np.where(np.arange(N) == ROW, x, 0.0),
        "known": np.where(np.arange(N) == ROW, x, np.nan),
        "name": names,
    }


def site(floor: int = 5) -> Table:
    return Table(columns(), floor=floor)


def asked(question, rename=None, **arrays):
    """The steps of a question, with arrays of a hostile analyst; gives the site's totals."""
    steps: list[Step] = []
    honest = [Table(columns()) for _ in range(3)]
    LocalSites(honest, masked=False).answer(question, on_step=steps.append)
    step = next(s for s in reversed(steps) if set(arrays) <= set(s.arrays))
    changed = Step(step.name, step.sums, {**step.arrays, **arrays})
    plan = SumPlan(step.sums, 5)
    return lambda floor: plan.decode(
        vector_of(Request(question), changed, plan, site(floor), {}, b"")[:-1], 1
    )


@pytest.mark.parametrize("column", ["one", "his", "known"])
@pytest.mark.parametrize(
    "question",
    [
        lambda c: Aggregates((("sum", c),)),
        lambda c: build("description", settings={"of": [c]}),
        lambda c: build("glm", f"y ~ {c}"),
        lambda c: build("glm", f"{c} ~ x"),
        lambda c: build("correlations", settings={"of": [c, "x"]}),
        lambda c: build("pca", settings={"of": [c, "x"]}),
    ],
)
def test_a_column_that_tells_one_row_from_all_others_is_not_added_up(question, column) -> None:
    made = question(column)
    step = made.ask().send(None)
    with pytest.raises(TooFewRows):
        vector_of(Request(made), step, SumPlan(step.sums, 5), site(), {}, b"")


def test_a_category_of_few_rows_is_no_column_of_a_design() -> None:
    made = build("glm", "y ~ C(name)", {"categories": {"name": ["anna", "bert", "Zoë"]}})
    step = made.ask().send(None)
    with pytest.raises(TooFewRows):
        vector_of(Request(made), step, SumPlan(step.sums, 5), site(), {}, b"")


def test_a_name_of_few_rows_is_not_found_whatever_floor_is_asked_for() -> None:
    made = build("values", settings={"of": ["name"]}, floor=1)
    step = made.ask().send(None)
    plan = SumPlan(step.sums, 5)
    for floor, letters in ((5, "ab"), (1, "abZ")):
        vector = vector_of(Request(made), step, plan, site(floor), {}, b"")
        counts = plan.decode(vector[:-1], 1)["next"][0]
        assert {chr(c) for c in np.flatnonzero(counts)} == set(letters)


def test_a_cluster_around_one_row_is_left_out() -> None:
    made = build("kmeans", settings={"of": ["x", "w"], "clusters": 2, "starts": 1})
    table = columns()
    at = asked(made)(1)  # an honest step has clusters of many rows
    assert (at["counts"] >= 5).all()
    steps: list[Step] = []
    LocalSites([Table(table)] * 3, masked=False).answer(made, on_step=steps.append)
    last = steps[-1]
    scaled = (np.stack([table["x"], table["w"]], axis=1) - last.arrays["means"]) / last.arrays[
        "scales"
    ]
    extreme = int(np.argmax(scaled[:, 0]))
    centres = np.array([scaled[extreme] * 1.0, scaled[extreme] - [1e-9 + np.ptp(scaled[:, 0]), 0]])
    centres[0, 0] += 10 * np.ptp(scaled[:, 0])
    centres[1, 0] = 2 * np.sort(scaled[:, 0])[-1] - centres[0, 0] - 1e-12
    centres[:, 1] = 0.0
    isolating = asked(made, centres=centres)
    seen = isolating(1)
    assert 1.0 in seen["counts"]
    hidden = isolating(5)
    few = int(np.argmin(seen["counts"]))
    assert hidden["counts"][few] == 0 and not hidden["sums"][few].any()


def test_coefficients_that_weigh_one_row_alone_are_refused() -> None:
    made = build("glm", "y ~ x", {"family": "poisson"})
    isolating = asked(made, coefficients=np.array([-80.0, 8.0]))
    with pytest.raises(TooFewRows):
        isolating(5)
    made = build("cox", "Surv(x, y) ~ w", {"least_per_bin": 10})
    steep = asked(made, coefficients=np.array([900.0]))
    with pytest.raises(TooFewRows):
        steep(5)


def test_honest_fits_are_those_without_a_floor() -> None:
    tables = [Table(columns(), floor=floor) for floor in (1, 5, 10)]
    plain = [Table(columns()) for _ in range(3)]
    for made in (
        build("glm", "y ~ x + w", {"family": "logistic"}),
        build("cox", "Surv(x, y) ~ w", {"least_per_bin": 10}),
        build("kmeans", settings={"of": ["x", "w"], "clusters": 3, "starts": 1}),
        build("mixture", settings={"of": ["x", "w"], "clusters": 2, "starts": 1}),
    ):
        assert str(LocalSites(tables).answer(made)) == str(LocalSites(plain).answer(made))


@pytest.mark.parametrize(
    ("method", "formula", "settings"),
    [
        ("boosted_trees", "", {"target": "y", "features": ["x"]}),
        ("random_forest", "", {"target": "y", "features": ["x"]}),
        ("survival_curves", "Surv(x, y) ~ 1", {}),
        ("cox", "Surv(x, y) ~ w", {}),
        ("aggregates", "", {"floor": 4}),
        ("values", "", {"of": ["name"], "floor": 4}),
        ("histogram", "", {"column": "x", "floor": 4}),
    ],
)
def test_sums_about_fewer_rows_than_the_floor_are_the_owner_s_to_allow(
    method, formula, settings
) -> None:
    tables = {"data": Offered("x.csv")}
    made = build(method, formula, settings)
    with pytest.raises(Refused) as refused:
        OwnerRules(tables, floor=5).check(Request(made))
    assert refused.value.reason == "floor"
    OwnerRules(tables, floor=5, fine=True).check(Request(made))
    OwnerRules(tables, floor=1).check(Request(made))


def test_noise_that_is_enough_for_the_owner_takes_the_place_of_the_floor() -> None:
    rules = OwnerRules({"data": Offered("x.csv")}, floor=5, noise_min=2.0)
    asked = Aggregates(floor=1)
    rules.check(Request(asked, noise=2.0))
    assert rules.floor_of(Request(asked, noise=2.0)) == 1
    plain = OwnerRules({"data": Offered("x.csv")}, floor=5)
    with pytest.raises(Refused):
        plain.check(Request(asked, noise=2.0))


def test_what_is_asked_with_the_owner_s_floor_is_allowed() -> None:
    rules = OwnerRules({"data": Offered("x.csv")}, floor=5)
    for method, formula, settings in (
        ("cox", "Surv(x, y) ~ w", {}),
        ("survival_curves", "Surv(x, y) ~ 1", {}),
        ("aggregates", "", {}),
        ("glm", "y ~ x", {}),
        ("quantiles", "", {"of": ["x"]}),
    ):
        rules.check(Request(build(method, formula, settings, floor=5)))


@pytest.mark.parametrize(
    ("values", "floor", "good"),
    [
        ([1.0] * 10, 5, True),
        ([1.0] * 10 + [2.0] * 4, 5, False),
        ([1.0] * 10 + [2.0] * 5, 5, True),
        ([2.0] + [1.0] * 10, 5, False),
        ([np.nan] * 10 + [1.0, 2.0, 3.0, 4.0], 5, False),
        ([np.nan] * 10, 5, True),
        (list(range(10)), 5, True),
        ([], 5, True),
        ([2.0] + [1.0] * 10, 1, True),
    ],
)
def test_a_column_is_about_enough_rows(values, floor, good) -> None:
    if good:
        check_column(np.array(values, np.float64), floor, "x")
        return
    with pytest.raises(TooFewRows):
        check_column(np.array(values, np.float64), floor, "x")


@pytest.mark.parametrize(
    ("weights", "good"),
    [
        ([1.0] * 5, True),
        ([1.0] * 4, False),
        ([1e300] + [1.0] * 50, False),
        ([1e300] * 5, True),
        ([0.0] * 9, True),
        (np.exp(np.linspace(0, 3, 40)), True),
    ],
)
def test_weights_are_about_enough_rows(weights, good) -> None:
    assert is_enough(np.array(weights, np.float64), 5) is good
