"""Prefixes of a step must not overlap: a row would count in several, and its noise is for one."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.statistics import categories
from delian.core.statistics.methods.aggregates import Aggregates
from delian.core.statistics.question import Step
from delian.core.statistics.site_table import Table
from delian.core.statistics.sums import StatisticsError


def measured(*prefixes: bytes) -> None:
    packed = np.zeros((len(prefixes), categories.BYTES_MAX), np.int64)
    for row, prefix in zip(packed, prefixes, strict=True):
        row[: len(prefix)] = list(prefix)
    lengths = np.array([len(p) for p in prefixes])
    step = Step("prefixes a", (), {"prefixes": packed, "lengths": lengths})
    categories.measure(Table({"a": np.array(["abc", "b"])}), step, ("a",), {})


def test_prefixes_that_overlap_are_refused() -> None:
    measured(b"a", b"b")
    for wrong in ((b"a", b"a"), (b"a", b"ab"), (b"", b"a")):
        with pytest.raises(StatisticsError, match="overlap"):
            measured(*wrong)


def test_bytes_behind_a_prefix_make_no_other_prefix() -> None:
    packed = np.zeros((2, categories.BYTES_MAX), np.int64)
    packed[:, 0], packed[1, 5] = ord("a"), 7
    step = Step("prefixes a", (), {"prefixes": packed, "lengths": np.array([1, 1])})
    with pytest.raises(StatisticsError, match="overlap"):
        categories.measure(Table({"a": np.array(["abc"])}), step, ("a",), {})


def test_a_row_that_brings_its_group_to_the_floor_changes_the_sums_by_the_whole_group() -> None:
    question = Aggregates(
        (("count", "*"), ("sum", "x")), ("g",), {"g": ("a",)}, floor=4, limits={"x": (0.0, 2.0)}
    )
    step = Step("cells", (), {"levels 0": np.array([ord("a"), -1])})
    full = {"g": np.array(["a"] * 4), "x": np.full(4, 2.0)}
    parts = [{k: v[:rows] for k, v in full.items()} for rows in (3, 4)]
    few, enough = (question.measure(Table(part), step, {}) for part in parts)
    bounds = question.sensitivities(step)
    for name in ("rows", "suppressed", "other", "sum_0"):
        change = np.abs(np.asarray(enough[name], float) - few[name]).max()
        assert change <= bounds[name]
    assert enough["sum_0"][0] - few["sum_0"][0] == bounds["sum_0"] == 8.0
