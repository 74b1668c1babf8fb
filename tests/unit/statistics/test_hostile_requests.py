"""What arrives at a site is hostile: no bytes do more than raise StatisticsError."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.privacy.mechanisms.ring import RingError, RingPlan
from delian.core.statistics.measuring import vector_of
from delian.core.statistics.methods.aggregates import Aggregates
from delian.core.statistics.question import Step, methods, parse_step, step_bytes
from delian.core.statistics.request import Request, Rows, check_step
from delian.core.statistics.site_table import Table
from delian.core.statistics.sums import StatisticsError, Sum, SumPlan, counts
from delian.simulations.statistics.local_sites import LocalSites

REQUEST = Request(Aggregates((("avg", "x"),), ("g",)), Rows("patients", "x > 3"))
STEP = Step("cells", (counts("rows", 2), Sum("sum_0", (2,))), {"levels 0": np.array([97, -1])})


def test_questions_and_steps_travel_as_they_are() -> None:
    assert Request.parse(REQUEST.to_bytes()) == REQUEST
    back = parse_step(step_bytes(STEP))
    assert (back.name, back.sums) == (STEP.name, STEP.sums)
    np.testing.assert_array_equal(back.arrays["levels 0"], STEP.arrays["levels 0"])


@pytest.mark.parametrize("whole", [REQUEST.to_bytes(), step_bytes(STEP)], ids=["request", "step"])
def test_mutated_bytes_are_refused_or_read(whole: bytes) -> None:
    draw, read = random.Random(1), Request.parse if whole == REQUEST.to_bytes() else parse_step
    refused = 0
    for _ in range(3000):
        changed = bytearray(whole)
        for _ in range(draw.randint(1, 6)):
            place = draw.randrange(len(changed))
            match draw.randrange(4):
                case 0:
                    changed[place] = draw.randrange(256)
                case 1:
                    del changed[place : place + draw.randint(1, 9)]
                case 2:
                    changed[place:place] = bytes(draw.choices(b'0123456789-[]{}",:e', k=5))
                case _:
                    changed = changed[:place]
            if not changed:
                break
        try:
            read(bytes(changed))
        except StatisticsError:
            refused += 1
    assert refused > 1500


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"question": {"method": "nothing"}, "rows": {}},
        {"question": {"method": "aggregates", "measures": 3}, "rows": {}},
        {"question": {"method": "aggregates", "measures": [["sum"]]}, "rows": {}},
        {"question": {"method": "aggregates", "nothing": 3}, "rows": {}},
        {"question": {"method": "aggregates"}, "rows": {"where": 3}},
        {"question": {"method": "aggregates"}, "rows": {"columns": []}},
        {"question": {"method": "aggregates"}, "rows": {}, "noise": "much"},
        {"question": {"method": "values"}, "rows": {}},
    ],
)
def test_settings_of_the_wrong_kind_are_refused(said) -> None:
    content = b"delian question 1\n" + json.dumps(said).encode()
    with pytest.raises(StatisticsError):
        Request.parse(content)


def test_an_array_that_a_step_only_claims_is_not_allocated() -> None:
    head = {"name": "x", "sums": [["n", [1], 48, 0]], "arrays": [["a", "float64", [1 << 40]]]}
    with pytest.raises(StatisticsError):
        parse_step(b"delian step 1\n" + json.dumps(head).encode() + b"\n")


@pytest.mark.parametrize(
    "sums",
    [
        (),
        (Sum("n", (1 << 28,)),),
        (Sum("n", (0,)),),
        (Sum("n"), Sum("n")),
        (Sum("a b"),),
        (Sum("n", before=500, after=500),),
        tuple(Sum(f"n{i}") for i in range(65)),
    ],
)
def test_sums_that_no_site_has_room_for_are_refused(sums) -> None:
    with pytest.raises(DelianError):
        SumPlan(sums, 5)


def test_a_ring_of_another_size_than_the_step_s_is_refused() -> None:
    plan = SumPlan(STEP.sums, 5)
    check_step(REQUEST.to_bytes(), step_bytes(STEP), plan.ring)
    for other in (
        RingPlan(1.0, 5, plan.dimension + 1, wide=True),
        RingPlan(1.0, 5, plan.dimension),
        RingPlan(1.0, 5, plan.dimension, noise=1.0, wide=True),
        RingPlan(1.0, 4000, plan.dimension, wide=True),
    ):
        with pytest.raises(StatisticsError):
            check_step(REQUEST.to_bytes(), step_bytes(STEP), other)


@pytest.mark.parametrize(
    "fields", [{"clip": 2.0}, {"bits": 16}, {"rotated": True}, {"kept": 3}, {"top": 3}]
)
def test_an_exact_sum_is_neither_clipped_nor_compressed(fields) -> None:
    with pytest.raises(RingError):
        RingPlan(**{"clip": 1.0, "clients_max": 5, "dimension": 8, "wide": True, **fields})


@pytest.mark.parametrize("name", sorted(methods()))
def test_no_step_that_a_site_gets_ends_in_anything_but_an_error_or_numbers(name: str) -> None:
    """A fuzz of `measure`: steps of every method with arrays of other shapes, types and values."""
    question, table, steps = _asked(name)
    draw = np.random.default_rng(5)
    for _ in range(60):
        step = steps[draw.integers(len(steps))]
        arrays = {n: _mutated(a, draw) for n, a in step.arrays.items() if draw.random() < 0.9}
        names = [s.name for s in steps]
        changed = Step(draw.choice([*names, "nothing"]), step.sums, arrays)
        try:
            vector_of(Request(question), changed, SumPlan(step.sums, 5), table, {}, b"")
        except DelianError:
            continue


def _asked(name: str):
    """A question of a method, a site's rows, and the steps that it asks."""
    from delian.core.statistics.building import build

    draw = np.random.default_rng(1)
    n = 200

    def rows() -> Table:
        return Table(
            {
                "y": (draw.random(n) < 0.5).astype(float),
                "x": draw.normal(0, 1, n),
                "w": draw.normal(0, 1, n),
                "t": draw.integers(1, 30, n).astype(float),
                "e": (draw.random(n) < 0.6).astype(float),
                "g": np.array(draw.choice(["a", "b"], n)),
            }
        )

    examples = {
        "aggregates": ("", {"measures": [["avg", "x"]], "groups": ["g"]}),
        "values": ("", {"of": ["g"]}),
        "glm": ("y ~ x + C(g)", {"family": "logistic", "categories": {"g": ["a", "b"]}}),
        "cox": ("Surv(t, e) ~ x", {}),
        "boosted_trees": ("", {"target": "y", "features": ["x", "w"], "rounds": 2}),
        "random_forest": ("", {"target": "y", "features": ["x", "w"], "n_estimators": 2}),
        "correlations": ("", {"of": ["x", "w"]}),
        "cross_table": ("", {"first": "g", "second": "e"}),
        "description": ("", {"of": ["x"]}),
        "histogram": ("", {"column": "x", "edges": [-1.0, 0.0, 1.0]}),
        "mean_comparison": ("x ~ g", {"categories": {"g": ["a", "b"]}}),
        "quantiles": ("", {"of": ["x"]}),
        "mixed_model": ("w ~ x", {}),
        "preparation": ("", {"of": ["x", "g", "e"]}),
        "pca": ("", {"of": ["x", "w"]}),
        "kmeans": ("", {"of": ["x", "w"], "clusters": 2, "starts": 1}),
        "mixture": ("", {"of": ["x", "w"], "clusters": 2, "starts": 1}),
        "survival_curves": ("Surv(t, e) ~ g", {"categories": {"g": ["a", "b"]}}),
    }
    formula, settings = examples[name]
    question = build(name, formula, settings)
    tables, steps = [rows() for _ in range(3)], []
    LocalSites(tables, masked=False).answer(question, on_step=steps.append)
    return question, tables[0], steps


def _mutated(array, draw):
    match draw.integers(7):
        case 0:
            return array
        case 1:
            return array * np.array(draw.choice([0, -1, 10**6]), array.dtype)
        case 2:
            return array.reshape(-1)[: max(array.size // 2, 0)]
        case 3:
            return np.repeat(array, 2, axis=0) if array.ndim else array
        case 4:
            return array.astype(np.int64 if array.dtype == np.float64 else np.float64)
        case 5:
            return np.full_like(array, np.iinfo(np.int64).max if array.dtype == np.int64 else 1e300)
        case _:
            return array + np.array(draw.integers(-3, 4), array.dtype)
