"""Cuts of training steps whose weights' tiers are given."""

from __future__ import annotations

import itertools

import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler import random
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Samples
from delian.core.learning.nn import Mlp, sgd
from delian.core.placement.cut.cut import CLOUD, DEVICE, EDGE, Cut, CutError
from delian.core.placement.cut.owned_weights import cut_at, kept_below
from delian.core.placement.cut.problem import PlacementError
from delian.core.placement.cut.training_step import step_of, step_parts


@pytest.fixture(scope="module")
def step():
    task = Classification("net", lambda key: Mlp.init(key, 7, (4,), 3), Samples(6, 1.0))
    x, y = TensorType(DType.F32, (6, 7)), TensorType(DType.I64, (6,))
    return kept_below(step_of(task, sgd(0.1), task.init(random.key(0)), x, y))


def crossing_bytes(step, labels):
    parts = step_parts(step, Cut(labels))
    return sum(p.type.nbytes for m in parts.messages for p in m.ports)


def test_weights_are_where_they_were_put(step):
    for homes in ({0: DEVICE, 1: DEVICE, 2: EDGE, 3: EDGE}, {0: DEVICE, 1: DEVICE, 2: CLOUD}):
        parts = step_parts(step, cut_at(step, homes))
        assert {i: parts.homes[i] for i in homes} == homes


def test_no_labels_of_operations_cross_fewer_bytes(step):
    homes = {0: DEVICE, 1: DEVICE, 2: EDGE, 3: EDGE}
    cut = cut_at(step, homes)
    best = crossing_bytes(step, cut.labels)
    assert best == 6 * 8 + 6 * 4 + 6 * 4 * 4 + 4 + 6 * 4 * 4  # labels, counts, h; the loss, dh
    moving = [n for n, label in enumerate(cut.labels) if label >= 0]
    # All other cuts in which up to two operations change their tier.
    tried = 0
    for some in itertools.chain(
        itertools.combinations(moving, 1), itertools.combinations(moving, 2)
    ):
        labels = list(cut.labels)
        for n in some:
            labels[n] = 1 - labels[n]
        try:
            parts = step_parts(step, Cut(tuple(labels)))
        except CutError:
            continue
        if {i: parts.homes[i] for i in homes} == homes:
            tried += 1
            assert crossing_bytes(step, tuple(labels)) >= best
    assert tried > 20


def test_a_wire_is_for_all_floats_that_cross(step):
    cut = cut_at(step, {0: DEVICE, 1: DEVICE, 2: EDGE, 3: EDGE}, "i8")
    parts = step_parts(step, cut)
    wires = {p.wire for m in parts.messages for p in m.ports}
    assert wires == {"i8", "i64"}


def test_all_on_the_device_sends_nothing(step):
    parts = step_parts(step, cut_at(step, {0: DEVICE}))
    assert parts.top == DEVICE and not parts.messages


def test_what_cannot_be_is_refused(step):
    with pytest.raises(PlacementError):  # raw rows would have to go up
        cut_at(step, {0: EDGE, 1: EDGE})
    for homes in ({9: EDGE}, {0: 5}):
        with pytest.raises(DelianError, match="leaves count from 0"):
            cut_at(step, homes)
