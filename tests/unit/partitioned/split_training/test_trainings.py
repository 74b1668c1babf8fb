"""The upper end of split training without I/O: turns, repeats, rounds, and who may begin."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler import random, tree
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Samples
from delian.core.learning.nn import Mlp, sgd
from delian.core.placement.cut.cut import CLOUD, DEVICE, EDGE, CutError
from delian.core.placement.cut.owned_weights import cut_at
from delian.core.placement.cut.wire_formats import encode
from delian.core.placement.split_training.step_bundle import StepBundle
from delian.core.placement.split_training.step_sides import (
    Programs,
    Sent,
    Sharing,
    Side,
    SplitError,
    averaged,
)
from delian.core.placement.split_training.trainings import IDLE_S, STEPS_MAX, Refused, Trainings

U_SHAPE = {0: DEVICE, 1: DEVICE, 2: EDGE, 3: EDGE, 4: DEVICE, 5: DEVICE}
RUN, OTHER = b"a" * 16, b"b" * 16
B = 6


def net(key):
    return Mlp.init(key, 5, (4, 8), 3)


def make_bundle():
    task = Classification("net", net, Samples(B, 1.0))
    x, y = TensorType(DType.F32, (B, 5)), TensorType(DType.I64, (B,))
    return StepBundle.of(task, sgd(0.1, momentum=0.9), net(random.key(3)), x, y, labels_stay=True)


class Case:
    def __init__(self, sharing=Sharing.COPIES, **limits):
        self.bundle = make_bundle()
        cut = cut_at(self.bundle.step, U_SHAPE)
        self.trainings = Trainings(self.bundle, cut, sharing, "reference", **limits)
        leaves = [np.asarray(a) for a in tree.leaves(net(random.key(3)))]
        self.above = {i: leaves[i] for i in (2, 3)}
        parts = self.trainings.parts
        below = {i: leaves[i] for i in self.bundle.owned_by(parts, above=False)}
        self.below = self.bundle.started(parts, False, below)
        self.programs = Programs(parts, "reference")

    def open(self, node="device-1", run=RUN, steps=2, examples=10, again=False, now=0.0):
        return self.trainings.open(node, run, steps, examples, again, now)

    def turn(self, training, tensors):
        """One turn as the driver runs it; its reply."""
        assert self.trainings.takes(training, training.turn + 1)
        reply, moved = self.trainings.run(training, tensors)
        assert self.trainings.ran(training, reply, moved, 1.0)
        return reply

    def step(self, training, seed=0):
        """A device's step against a training."""
        rng = np.random.default_rng(seed)
        batch = [rng.normal(size=(B, 5)).astype(np.float32), rng.integers(0, 3, B)]
        batch.append(np.ones(B, np.float32))
        side = Side(self.programs, DEVICE, self.below)
        values = [p.value for p in self.trainings.parts.inputs]
        sent = side.start(dict(zip(values, batch, strict=True)))
        while sent is not None:
            _, reply = self.trainings.ports_of(training, training.turn + 1)
            sent = side.take(Sent(reply, (self.turn(training, sent.tensors[0]),)))
        assert side.done


def same(one, other):
    return all(np.array_equal(one[i], other[i]) for i in one) and one.keys() == other.keys()


def test_weights_move_when_a_whole_step_is_done_and_not_before():
    case = Case()
    case.trainings.begin(case.above)
    training = case.open()
    before = dict(training.weights)
    for k, (request, _) in enumerate(case.trainings.turns):
        assert same(training.weights, before), f"moved before turn {k + 1}"
        case.turn(training, filled(request, 0.5))
    assert len(case.trainings.turns) == 2
    assert not same(training.weights, before)


def filled(message, number):
    """A request in which every number is the same."""
    return {
        p.value: encode(np.full(p.type.shape, number, np.float32), p.wire) for p in message.ports
    }


def test_only_the_next_turn_and_the_last_one_are_taken():
    case = Case()
    case.trainings.begin(case.above)
    training = case.open(steps=1)
    assert [n for n in range(-1, 5) if case.trainings.takes(training, n)] == [1]
    case.step(training)
    assert case.trainings.finished(training)
    assert [n for n in range(-1, 5) if case.trainings.takes(training, n)] == [2]


def test_copies_are_averaged_by_examples_and_only_those_that_finished():
    case = Case()
    case.trainings.begin(case.above)
    one, two, three = (
        case.open(f"device-{n}", bytes([n]) * 16, 1, examples)
        for n, examples in ((1, 10), (2, 30), (3, 99))
    )
    case.step(one, 1)
    case.step(two, 2)
    three_began = three.turn
    assert not same(one.weights, two.weights)
    ended = case.trainings.end()
    mean = averaged([one.weights, two.weights], [10, 30])
    assert same(ended.weights, {i: mean[i] for i in (2, 3)})
    assert (ended.finished, ended.unfinished) == (("device-1", "device-2"), ("device-3",))
    assert ended.examples == 40 and three_began == 0
    assert three.over and not case.trainings.takes(three, 1)
    with pytest.raises(SplitError):
        case.trainings.end()


def test_a_round_in_which_nobody_finished_leaves_the_weights():
    case = Case()
    case.trainings.begin(case.above)
    case.step(case.open(steps=2))
    assert same(case.trainings.end().weights, case.above)


def test_a_chain_is_one_nodes_at_a_time_and_keeps_what_each_left():
    case = Case(Sharing.SEQUENTIAL)
    case.trainings.begin(case.above)
    one = case.open(steps=1)
    with pytest.raises(Refused) as refused:
        case.open("device-2", OTHER)
    assert refused.value.later
    case.step(one, 1)
    two = case.open("device-2", OTHER, steps=2)
    assert same(two.weights, one.weights)
    case.step(two, 2)
    left = dict(two.weights)
    case.trainings.expire(IDLE_S * 2)  # it went silent after a whole step
    assert two.over
    three = case.open("device-3", bytes(16))
    assert same(three.weights, left)


def test_a_run_that_ends_after_its_training_does_moves_nothing():
    case = Case(Sharing.SEQUENTIAL)
    case.trainings.begin(case.above)
    training = case.open(steps=1)
    for _ in case.trainings.turns:
        request, _ = case.trainings.ports_of(training, training.turn + 1)
        reply, moved = case.trainings.run(training, filled(request, 1.0))
        if moved is None:
            case.trainings.ran(training, reply, moved, 1.0)
    case.trainings.drop("device-1", training)
    assert moved is not None and not case.trainings.ran(training, reply, moved, 1.0)
    assert same(case.trainings.end().weights, case.above)


def test_numbers_that_are_not_finite_never_become_weights():
    case = Case()
    case.trainings.begin(case.above)
    training = case.open(steps=1)
    with pytest.raises(SplitError, match="finite"):
        for _ in case.trainings.turns:
            request, _ = case.trainings.ports_of(training, training.turn + 1)
            case.turn(training, filled(request, np.nan))
    assert all(np.isfinite(a).all() for a in training.weights.values())


def test_openings_are_let_in_by_the_rules():
    case = Case()
    with pytest.raises(Refused) as refused:
        case.open()
    assert refused.value.later, "no round yet"
    case.trainings.begin(case.above)
    for wrong in (
        {"run": b"short"},
        {"steps": 0},
        {"steps": STEPS_MAX + 1},
        {"examples": 0},
        {"examples": 10**9},
    ):
        with pytest.raises(Refused) as refused:
            case.open(**wrong)
        assert not refused.value.later
    with pytest.raises(Refused) as refused:
        case.open(again=True)
    assert refused.value.over, "what is not known is not begun anew"
    first = case.open()
    assert case.open(again=True) is first
    with pytest.raises(Refused):
        case.open(steps=3)
    newer = case.open(run=OTHER)
    assert first.over and newer is not first
    for seed in range(2):
        case.step(newer, seed)
    with pytest.raises(Refused) as refused:
        case.open(run=RUN)
    assert refused.value.later, "a node counts once a round"
    assert case.open(run=OTHER, again=True) is newer


def test_there_is_room_for_so_many_copies():
    first = Case()
    size = sum(
        a.nbytes for a in first.bundle.started(first.trainings.parts, True, first.above).values()
    )
    case = Case(bytes_max=2 * size)
    case.trainings.begin(case.above)
    case.open("device-1")
    case.open("device-2")
    with pytest.raises(Refused, match="no room"):
        case.open("device-3")


def test_what_links_do_not_carry_is_refused_in_words():
    bundle = make_bundle()
    with pytest.raises(DelianError, match="together"):
        Trainings(bundle, cut_at(bundle.step, U_SHAPE), Sharing.SYNCHRONOUS)
    with pytest.raises(CutError, match="tiers"):
        Trainings(bundle, cut_at(bundle.step, {**U_SHAPE, 2: CLOUD, 3: CLOUD}))
    with pytest.raises(CutError, match="tiers"):
        Trainings(bundle, cut_at(bundle.step, {}))


def test_what_is_kept_of_a_training_is_made_before_its_last_answer():
    made = []

    def finish(node, examples, moved):
        made.append((node, examples, moved))
        return np.full(3, len(made), np.uint32)

    case = Case(finish=finish)
    case.trainings.begin(case.above)
    training = case.open(steps=2)
    case.step(training, 1)
    assert not made and case.trainings.kept("device-1", RUN) is None
    before = {i: a.copy() for i, a in case.above.items()}
    case.step(training, 2)
    ((node, examples, moved),) = made
    assert (node, examples) == ("device-1", 10) and moved.keys() == before.keys()
    assert all(a.any() for a in moved.values())
    assert case.trainings.kept("device-1", RUN).tolist() == [1, 1, 1]
    assert case.trainings.kept("device-1", OTHER) is None
    assert case.trainings.kept("device-2", RUN) is None
    assert not training.weights and not training.first, "the copy is gone"


def test_a_training_of_which_nothing_can_be_kept_is_not_whole():
    def finish(node, examples, moved):
        raise SplitError("no finite numbers")

    case = Case(finish=finish)
    case.trainings.begin(case.above)
    training = case.open(steps=1)
    with pytest.raises(SplitError, match="no finite numbers"):
        case.step(training)
    case.trainings.drop("device-1", training)  # as the driver does
    assert training.over and case.trainings.kept("device-1", RUN) is None
