"""Batches: every row once a pass, halves that do not meet, filling that counts for nothing. Run as
plain Python.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.learning import Episodes, EpisodeTable, Samples, SampleSet
from delian.core.learning.sampling import SORTED_ROWS_MAX


def rows(support: int, query: int, capacity: int) -> SampleSet:
    """Row i holds i."""
    x = np.arange(capacity, dtype=np.float32)[:, None]
    y = np.arange(capacity, dtype=np.int32)
    return SampleSet(x, y, np.array(support), np.array(query))


@pytest.mark.parametrize("support", [1, 4, 5, 7, 12])
def test_a_pass_takes_every_support_row_once(support: int) -> None:
    source, data = Samples(5, 1.0).once(), rows(support, 3, 16)
    order = source.order(data, dl.random.key(1))
    taken = []
    for step in range(int(source.steps(data))):
        batch = source.batch(data, order, step)
        taken += [int(y) for y, w in zip(batch.y, batch.weight, strict=True) if w]
    assert sorted(taken) == list(range(support))


@pytest.mark.parametrize("support", [2, 3, 9, 12])
def test_an_episode_judges_by_rows_that_it_did_not_adapt_on(support: int) -> None:
    source, data = Samples(4, 1.0).once(), rows(support, 3, 16)
    order = source.order(data, dl.random.key(2))
    adapted, judged = set(), []
    for step in range(int(source.episodes(data))):
        adapt, judge = source.episode(data, order, step)
        assert adapt.weight.sum() > 0 and judge.weight.sum() > 0
        adapted |= {int(y) for y, w in zip(adapt.y, adapt.weight, strict=True) if w}
        judged += [int(y) for y, w in zip(judge.y, judge.weight, strict=True) if w]
    assert len(judged) == len(set(judged)) == support - support // 2
    assert not adapted & set(judged)
    assert adapted | set(judged) <= set(range(support))


def test_a_pass_over_a_large_table_takes_every_support_row_once() -> None:
    source, data = Samples(500, 1.0).once(), rows(2_345, 3, SORTED_ROWS_MAX + 1)
    order = source.order(data, dl.random.key(1))
    taken = []
    for step in range(int(source.steps(data))):
        batch = source.batch(data, order, step)
        taken += [int(y) for y, w in zip(batch.y, batch.weight, strict=True) if w]
    assert sorted(taken) == list(range(2_345)) != taken


#: By what becomes of it: rows in the last of a pass's batches of five, its share of a step, steps.
LAST = {"fill": (5, 1.0, 3), "weigh": (2, 0.4, 3), "drop": (5, 1.0, 2), "full": (2, 1.0, 3)}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kind", LAST)
def test_the_last_batch_of_a_pass(kind: Any, large: bool) -> None:
    """Twelve rows in batches of five; as rows to judge by those of an episode alike."""
    source = Samples(5, 1.0, last_batch=kind, adapt_share=0.01)
    data = rows(12, 3, SORTED_ROWS_MAX + 1 if large else 16)
    order = source.order(data, dl.random.key(1))
    count, share, steps = LAST[kind]
    assert int(source.steps(data)) == int(source.episodes(data)) == steps
    whole = float(source.length(data))
    assert whole == pytest.approx(sum(float(source.share(data, i)) for i in range(steps)))
    for batch in (source.batch, lambda *given: source.episode(*given)[1]):
        passed = [batch(data, order, np.int64(step)) for step in range(steps)]
        taken = [[int(y) for y, w in zip(b.y, b.weight, strict=True) if w] for b in passed]
        assert len(taken[-1]) == count == len(set(taken[-1]))
        assert set().union(*taken) <= set(range(12))
        if kind == "fill":
            assert taken[-1][2:] == taken[0][:3] and len(set().union(*taken)) == 12
    assert float(source.share(data, steps - 1)) == pytest.approx(share)
    assert float(source.episode_share(data, steps - 1)) == pytest.approx(share)
    assert float(source.share(data, steps + 4)) == 1.0


@pytest.mark.parametrize("kind", LAST)
@pytest.mark.parametrize("support", [0, 1, 3, 5])
def test_rows_that_make_no_second_batch_make_one_whole_step(kind: Any, support: int) -> None:
    source, data = Samples(5, 1.0, last_batch=kind), rows(support, 3, 16)
    batch = source.batch(data, source.order(data, dl.random.key(1)), np.int64(0))
    taken = sorted(int(y) for y, w in zip(batch.y, batch.weight, strict=True) if w)
    assert taken == list(range(support)) and int(source.steps(data)) == min(support, 1)
    assert float(source.share(data, 0)) == 1.0


def test_halves_of_a_large_table_do_not_meet() -> None:
    source, data = Samples(600, 1.0), rows(1_001, 3, SORTED_ROWS_MAX + 1)
    adapt, judge = source.episode(data, source.order(data, dl.random.key(2)), np.int64(0))
    adapted = {int(y) for y, w in zip(adapt.y, adapt.weight, strict=True) if w}
    judged = {int(y) for y, w in zip(judge.y, judge.weight, strict=True) if w}
    assert adapted | judged == set(range(1_001)) and not adapted & judged


@pytest.mark.parametrize("support", [0, 1])
def test_a_large_table_of_a_device_with_hardly_any_rows_is_read_within_its_bounds(
    support: int,
) -> None:
    source, data = Samples(4, 1.0), rows(support, 3, SORTED_ROWS_MAX + 1)
    batch = source.adaptation(data, source.order(data, dl.random.key(2)), np.int64(0))
    assert list(batch.weight) == [1.0] * support + [0.0] * (4 - support)
    assert set(batch.y) == {0}


def test_query_rows_are_those_after_the_support_rows() -> None:
    source, data = Samples(4, 1.0, query_size=2), rows(6, 3, 16)
    order = source.order(data, dl.random.key(3))
    seen = []
    for step in range(int(source.query_batches(data))):
        batch = source.query(data, order, step)
        seen += [int(y) for y, w in zip(batch.y, batch.weight, strict=True) if w]
    assert seen == [6, 7, 8]


def test_personalisation_goes_round_the_support_rows() -> None:
    source, data = Samples(4, 1.0), rows(3, 3, 16)
    order = source.order(data, dl.random.key(4))
    batch = source.adaptation(data, order, 7)
    assert list(batch.weight) == [1, 1, 1, 0]
    assert {int(y) for y in batch.y[:3]} == {0, 1, 2}


def test_an_episode_draws_other_hands_to_judge_by() -> None:
    images = np.zeros((6, 4, 2, 2), np.uint8)
    images[...] = (np.arange(6)[:, None] * 10 + np.arange(4))[:, :, None, None]
    table = EpisodeTable(images, np.array(5))
    source = Episodes(ways=3, shots=1, queries=2, per_pass=4, scale=1.0)
    for step in range(4):
        adapt, judge = source.episode(table, dl.random.key(9), step)
        drawn = adapt.x[:, 0, 0, 0].astype(int)
        assert adapt.x.shape == (3, 2, 2, 1) and judge.x.shape == (6, 2, 2, 1)
        assert list(adapt.y) == [0, 1, 2] and list(judge.y) == [0, 0, 1, 1, 2, 2]
        characters = drawn // 10
        assert len(set(characters)) == 3 and max(characters) < 5
        judged = judge.x[:, 0, 0, 0].astype(int)
        assert list(judged // 10) == list(np.repeat(characters, 2))
        assert not set(drawn) & set(judged)


def test_an_episode_that_trains_may_have_more_characters_than_one_that_judges() -> None:
    images = np.zeros((6, 4, 2, 2), np.uint8)
    images[...] = (np.arange(6)[:, None] * 10 + np.arange(4))[:, :, None, None]
    table, key = EpisodeTable(images, np.array(6)), dl.random.key(9)
    more = Episodes(ways=3, shots=1, queries=2, per_pass=4, scale=1.0, training_ways=5)
    adapt, judge = more.episode(table, key, 0)
    assert list(adapt.y) == [0, 1, 2, 3, 4] and len(judge.y) == 10 and more.labels == 5
    assert len(set(adapt.x[:, 0, 0, 0].astype(int) // 10)) == 5
    assert more.pieces(table, key, 0).y.tolist() == [0, 1, 2, 3, 4]
    alike = replace(more, training_ways=0)
    for of_more, of_alike in (
        (more.adaptation(table, key, 0), alike.episode(table, key, 0)[0]),
        (more.query(table, key, 0), alike.episode(table, key, 0)[1]),
    ):
        assert of_more.y.tolist() == of_alike.y.tolist()
        assert np.array_equal(of_more.x, of_alike.x)


def test_pieces_go_round_one_episode_s_drawings_a_few_of_each_character_a_step() -> None:
    images = np.zeros((6, 4, 2, 2), np.uint8)
    images[...] = (np.arange(6)[:, None] * 10 + np.arange(4))[:, :, None, None]
    table = EpisodeTable(images, np.array(6))
    source = Episodes(ways=3, shots=1, queries=2, per_pass=4, scale=1.0)
    order = dl.random.key(9)
    steps = [source.pieces(table, order, step) for step in range(4)]
    drawn = [piece.x[:, 0, 0, 0].astype(int).tolist() for piece in steps]
    adapt, judge = source.episode(table, order, 0)
    episode = {*adapt.x[:, 0, 0, 0].astype(int), *judge.x[:, 0, 0, 0].astype(int)}
    assert {d for each in drawn for d in each} == episode and drawn[3] == drawn[0]
    assert drawn[0] == adapt.x[:, 0, 0, 0].astype(int).tolist()
    assert all(piece.y.tolist() == [0, 1, 2] for piece in steps)
