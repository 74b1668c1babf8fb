"""Bins found from counts of ranges: XGBoost's cuts where values are few, quantiles where not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from delian.core.statistics.sums import StatisticsError
from delian.core.statistics.trees.bins import (
    Cuts,
    CutSearch,
    counted,
    cuts_of,
    keys_of,
    value_of,
)
from delian.core.statistics.trees.search_steps import declared_values


def search(columns: list[Any], max_bin: int = 256, floor: int = 1) -> tuple[Cuts, CutSearch, int]:
    """The search over two sites."""
    known = [np.asarray(c, np.float32)[~np.isnan(c)] for c in columns]
    halves = [[np.sort(keys_of(c[k::2])) for c in known] for k in range(2)]
    made, steps = CutSearch(len(columns), max_bin, floor), 0
    while len(cells := made.open):
        bits = made.bits
        total = sum(counted(half, cells, made.length, bits) for half in halves)
        made.take(np.asarray(total, np.float64), bits)
        steps += 1
    return made.cuts(), made, steps


def test_keys_have_the_order_of_their_values_and_give_them_back() -> None:
    values = np.array([-3e38, -2.5, -1e-40, -0.0, 0.0, 1e-45, 0.1, 1.0, 7.0, 3e38], np.float32)
    keys = keys_of(values).astype(np.int64)
    assert (np.diff(keys) >= 0).all() and keys[3] == keys[4]
    np.testing.assert_array_equal([value_of(int(k)) for k in keys], values)


@pytest.mark.parametrize("max_bin", [16, 256])
def test_cuts_of_few_values_are_those_of_xgboost(max_bin: int) -> None:
    xgboost = pytest.importorskip("xgboost")
    rng = np.random.default_rng(2)
    n = 3000
    x = np.stack(
        [
            rng.integers(0, 2, n),
            rng.integers(-8, 8, n) * 0.1,
            rng.integers(0, 16, n) * 1e9,
            rng.integers(-3, 13, n) * 1e-7,
            np.full(n, -4.5),
            np.where(rng.random(n) < 0.5, np.nan, rng.integers(18, 34, n)),
        ],
        1,
    ).astype(float)
    cuts, made, steps = search(list(x.T), max_bin)
    starts, values = xgboost.QuantileDMatrix(x, max_bin=max_bin).get_quantile_cut()
    for f in range(6):
        theirs = values[starts[f] : starts[f + 1]]
        np.testing.assert_array_equal(cuts.of(f)[:-1], theirs[1:-1])
        # Versions of XGBoost differ in the outer cuts.
        assert cuts.of(f)[-1] > np.nanmax(x[:, f]) and cuts.lowest[f] < np.nanmin(x[:, f])
        assert made.is_exact(f)
    assert steps == 4


def test_many_values_have_bins_of_about_as_many_rows() -> None:
    rng = np.random.default_rng(3)
    columns = [rng.normal(size=20_000), rng.exponential(size=20_000) * 1e6]
    columns.append(np.where(rng.random(20_000) < 0.4, 0.0, rng.normal(size=20_000)))
    cuts, made, _ = search(columns, max_bin=64, floor=5)
    for f, column in enumerate(columns):
        bins = np.searchsorted(cuts.of(f), column.astype(np.float32), side="right")
        rows = np.bincount(bins, minlength=len(cuts.of(f)))
        assert len(rows) == len(cuts.of(f)) <= 64
        fair = 20_000 / 64
        assert np.sort(rows)[-2] < 1.6 * fair and rows.min() >= 5
        assert (rows > fair / 3).mean() > 0.9
        assert not made.is_exact(f)
        assert made.rows(f) == 20_000


def test_no_bin_has_fewer_rows_than_the_floor() -> None:
    column = np.repeat([1.0, 2.0, 3.0, 4.0, 1e6, 2e6], [50, 2, 40, 1, 3, 2]).astype(float)
    cuts, made, _ = search([column], floor=5)
    rows = np.bincount(np.searchsorted(cuts.of(0), column, side="right"))
    assert rows.min() >= 5 and not made.is_exact(0)
    assert search([column], floor=1)[1].is_exact(0)


def test_empty_columns_and_the_largest_numbers_have_a_bin() -> None:
    largest = float(np.finfo(np.float32).max)
    columns = [np.full(9, np.nan), np.array([largest, -largest, 0.0, 1, 2, 3, 4, 5, 6])]
    cuts, _, _ = search(columns)
    assert len(cuts.of(0)) == 1 and np.isfinite(cuts.values).all()
    bins, missing = cuts.binned([np.asarray(c, np.float32) for c in columns])
    assert missing.tolist() == [True, False]
    assert bins[0].tolist() == [1] * 9
    assert bins[1].max() == len(cuts.of(1)) - 1


def test_declared_values_are_ranges_of_steps() -> None:
    found = declared_values({"age": (18, 21), "dose": (0, 1, 0.25)}, ["dose", "age"])
    assert found[1].tolist() == [18, 19, 20, 21] and found[0].tolist() == [0, 0.25, 0.5, 0.75, 1]


@pytest.mark.parametrize("values", [{"b": (1, 2)}, {"a": (2, 1)}, {"a": (1, 2, 0)}, {"a": (1,)}])
def test_values_that_are_no_range_are_refused(values: Mapping[str, Any]) -> None:
    with pytest.raises(StatisticsError):
        declared_values(values, ["a"])


@pytest.mark.parametrize(
    ("cells", "length", "bits"),
    [
        ([[0, 0]], -1, 4),
        ([[0, 0]], 0, 9),
        ([[0, 0]], 30, 3),
        ([[1, 0]], 0, 4),
        ([[-1, 0]], 0, 4),
        ([[0, 2]], 1, 4),
        ([[0, 1], [0, 0]], 1, 4),
        ([[0, 0], [0, 0]], 1, 4),
        ([], 1, 4),
    ],
)
def test_hostile_cells_are_refused(cells: list[list[int]], length: int, bits: int) -> None:
    asked = np.array(cells, np.int64).reshape(-1, 2)
    with pytest.raises(StatisticsError):
        counted([np.ones(4, np.uint32)], asked, length, bits)


@pytest.mark.parametrize(
    ("starts", "values"),
    [([0, 2], [1.0, 1.0]), ([0, 0], []), ([1, 2], [1.0, 2.0]), ([0, 3], [1.0, 2.0])],
)
def test_hostile_cuts_are_refused(starts: list[int], values: list[float]) -> None:
    with pytest.raises(StatisticsError):
        cuts_of(np.array(starts, np.int64), np.array(values), 1)
