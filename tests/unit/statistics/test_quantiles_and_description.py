"""Brackets hold the pooled quantile; moments are those of pandas; small parts are not counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.statistics.counting.quantile_search import keys_of, number_of
from delian.core.statistics.methods.description import Description
from delian.core.statistics.methods.quantiles import Quantiles
from delian.core.statistics.question import Step
from delian.core.statistics.site_table import Table
from delian.core.statistics.sums import StatisticsError
from delian.simulations.statistics.local_sites import LocalSites

WANTED = (0.0, 0.01, 0.25, 0.5, 0.9, 1.0)


def columns_of(n: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(n)
    made = {
        "normal": draw.normal(0, 1, n),
        "whole": draw.integers(0, 20, n) * 1.0,
        "wide": draw.lognormal(10, 2, n),
        "far": 1e9 + draw.normal(0, 1e-3, n),
        "small": draw.normal(0, 1e-300, n),
        "constant": np.full(n, -0.1),
    }
    made["normal"][:3] = np.nan
    return made


def split(columns: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    parts = np.array_split(np.arange(len(columns["whole"])), 5)
    return [{k: v[p] for k, v in columns.items()} for p in parts]


@pytest.mark.parametrize("rows", [7, 100, 3000])
@pytest.mark.parametrize("floor", [1, 5])
def test_brackets_hold_the_quantiles_of_the_pooled_rows(rows: int, floor: int) -> None:
    columns = columns_of(rows)
    found: Any = LocalSites(split(columns)).answer(Quantiles(tuple(columns), WANTED, floor))
    for name, ranked in found.columns.items():
        values = columns[name][~np.isnan(columns[name])]
        assert ranked.rows == len(values) and ranked.missing == rows - len(values)
        for each in ranked.quantiles:
            wanted = np.quantile(values, each.q)
            assert each.low <= wanted <= each.high
            if np.isfinite(each.high - each.low):
                assert each.low <= each.estimate <= each.high
            else:
                assert np.isnan(each.estimate) and any("too few" in n for n in found.notes)
            if floor == 1:
                assert each.low == each.high == wanted
            elif rows == 3000:
                held = ((values >= each.low) & (values <= each.high)).sum()
                assert 5 <= held <= each.rows <= (250 if name == "whole" else 3000)
    if rows == 3000 and floor == 5:
        middle = found.columns["wide"].quantiles[3]
        assert middle.rows < 0.05 * rows
        assert found.columns["constant"].quantiles[0].low == -0.1


def test_keys_have_the_order_of_numbers() -> None:
    values = np.array([-np.inf, -1e300, -2.5, -1e-320, -0.0, 0.0, 1e-320, 1.0, 1e300, np.inf])
    keys = keys_of(values)
    assert (np.diff(keys.astype(object)) >= 0).all() and keys[4] == keys[5]
    assert [number_of(int(k)) for k in keys] == values.tolist()


def test_no_part_of_fewer_rows_than_the_floor_is_counted() -> None:
    table = Table({"a": np.array([1.0, 1.0, 1.0, 5.0, 200.0])})
    brackets = np.array([[0, 0, 0, 12]])
    step = Step("brackets", (), {"brackets": brackets, "floor": np.array([3])})
    found = Quantiles(("a",), floor=3).measure(table, step, {})
    assert found["parts"].sum() == 3 and found["unsplit"].tolist() == [[2, 0]]
    with pytest.raises(StatisticsError):
        Quantiles(("a",), floor=4).measure(table, step, {})


def test_a_site_that_drops_out_restarts_the_search() -> None:
    columns = columns_of(500)
    sites = LocalSites(split(columns), silent=lambda step: {2} if step >= 2 else ())
    found: Any = sites.answer(Quantiles(("wide",), (0.5,), 1))
    kept = np.delete(np.arange(500), np.arange(200, 300))
    assert found.columns["wide"].quantiles[0].estimate == np.quantile(columns["wide"][kept], 0.5)
    assert found.facts["sites"] == 4


@pytest.mark.parametrize(
    ("brackets", "floor"),
    [
        (np.zeros((0, 4)), 5),
        (np.array([[1, 0, 0, 12]]), 5),
        (np.array([[0, 0, 0, 13]]), 5),
        (np.array([[0, 0, 60, 10]]), 5),
        (np.array([[0, 9, 3, 1]]), 5),
        (np.array([[0, -1, 3, 1]]), 5),
        (np.array([[0, 0, -1, 1]]), 5),
        (np.array([[0, 0, 3, 0]]), 5),
        (np.tile([0, 0, 0, 1], (600, 1)), 5),
        (np.array([[0, 0, 0, 12]]), 1),
    ],
)
def test_hostile_brackets_are_refused(brackets: np.ndarray, floor: int) -> None:
    arrays = {"brackets": brackets.astype(np.int64), "floor": np.array([floor])}
    with pytest.raises(DelianError):
        Quantiles(("a",)).measure(Table({"a": np.ones(9)}), Step("brackets", (), arrays), {})


def test_a_description_is_that_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    columns = columns_of(600)
    del columns["small"]
    found: Any = LocalSites(split(columns)).answer(Description(tuple(columns)))
    frame = pandas.DataFrame(columns)
    np.testing.assert_array_equal(found.rows, frame.count())
    np.testing.assert_array_equal(found.missing, frame.isna().sum())
    np.testing.assert_allclose(found.means, frame.mean(), rtol=1e-13)
    apart = frame - frame.mean()  # pandas itself loses digits where a mean is large
    np.testing.assert_allclose(found.variances[:4], apart.var()[:4], rtol=1e-9)
    np.testing.assert_allclose(found.skewness[:4], apart.skew()[:4], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.kurtosis[:4], apart.kurt()[:4], rtol=1e-7, atol=1e-9)
    assert found.variances[4] == 0 and np.isnan(found.skewness[4])
    printed = str(found)
    assert "kurtosis" in printed and " .. " in printed and "nan" not in printed


@pytest.mark.parametrize(
    "question",
    [
        lambda: Description(()),
        lambda: Description(("a", "a")),
        lambda: Description(("a",), floor=0),
        lambda: Quantiles(()),
        lambda: Quantiles(("a",), (1.5,)),
        lambda: Quantiles(("a",), floor=0),
        lambda: Quantiles(tuple("abcdefghij"), tuple(np.linspace(0, 1, 40))),
    ],
)
def test_settings_that_make_no_sense_are_refused(question: Any) -> None:
    with pytest.raises(StatisticsError):
        question()


@pytest.mark.parametrize("question", [Description(("a",)), Quantiles(("a",))])
def test_no_values_are_an_error(question: Any) -> None:
    with pytest.raises(StatisticsError, match="no column has a value"):
        LocalSites([{"a": np.array([np.nan, np.nan])}] * 3).answer(question)
