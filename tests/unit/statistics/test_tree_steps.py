"""Hostile steps of trees are refused, or give numbers of the shape that was asked."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from delian.core.statistics.methods.boosted_trees import BoostedTrees
from delian.core.statistics.methods.random_forest import RandomForest
from delian.core.statistics.question import Question, Step
from delian.core.statistics.site_table import Table
from delian.core.statistics.sums import StatisticsError
from delian.simulations.statistics.local_sites import LocalSites


def table(n: int = 150) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 9, n).astype(float), rng.integers(0, 4, n).astype(float)
    a[rng.random(n) < 0.2] = np.nan
    return {"a": a, "b": b, "y": rng.integers(0, 3, n).astype(float)}


QUESTIONS: dict[str, Question] = {
    "boosted": BoostedTrees("y", ("a", "b"), "multi:softprob", rounds=2, num_class=3, floor=1),
    "forest": RandomForest("y", ("a", "b"), num_class=3, n_estimators=3, max_depth=3),
}


@functools.cache
def steps(name: str) -> list[Step]:
    found: list[Step] = []
    sites = [{k: v[i::3] for k, v in table().items()} for i in range(3)]
    LocalSites(sites, masked=False).answer(QUESTIONS[name], on_step=found.append)
    return found


def changed(step: Step, draw: np.random.Generator) -> Step:
    """The step with one array that is another."""
    arrays = {name: array.copy() for name, array in step.arrays.items()}
    name = draw.choice([n for n in arrays if arrays[n].size])
    flat = arrays[name].reshape(-1)
    place = draw.integers(len(flat))
    kind = draw.integers(5)
    if kind == 0:
        flat[place] += draw.choice([-1, 1, 2, 255])
    elif kind == 1:
        flat[place] = draw.choice([-(2**62), -1, 2**31, 2**62])
    elif kind == 2:
        draw.shuffle(flat)
    elif kind == 3 and arrays[name].dtype.kind == "i":
        flat[place] ^= 1 << int(draw.integers(63))
    else:
        arrays[name] = arrays[name][: len(arrays[name]) // 2]
    return Step(step.name, step.sums, arrays)


@pytest.mark.parametrize("name", QUESTIONS)
def test_changed_steps_are_refused_or_give_what_was_asked(name: str) -> None:
    draw, site = np.random.default_rng(1), Table.of(table())
    question = QUESTIONS[name]
    refused = 0
    for step in steps(name):
        for _ in range(60 if step.arrays else 0):
            kept: dict[str, Any] = {}
            if draw.random() < 0.5:
                question.measure(site, step, kept)
            hostile = changed(step, draw)
            try:
                with np.errstate(all="ignore"):
                    found = question.measure(site, hostile, kept)
            except StatisticsError:
                refused += 1
                continue
            assert set(found) == {s.name for s in step.sums}
            for value in found.values():
                assert np.isfinite(np.asarray(value, np.float64)).all()
                assert np.asarray(value).size <= 1 << 16
    assert refused > 100


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("missing", ["cuts", "starts", "nodes", "trees", "asked", "features"])
def test_steps_that_lack_an_array_are_refused(name: str, missing: str) -> None:
    step = next(s for s in steps(name) if s.name == "level")
    arrays = {k: v for k, v in step.arrays.items() if k != missing}
    with pytest.raises(StatisticsError, match=missing):
        QUESTIONS[name].measure(Table.of(table()), Step("level", step.sums, arrays), {})


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_unknown_step_is_refused(name: str) -> None:
    with pytest.raises(StatisticsError, match="no step `rows`"):
        QUESTIONS[name].measure(Table.of(table()), Step("rows", ()), {})
