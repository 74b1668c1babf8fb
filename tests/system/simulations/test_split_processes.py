"""Split training over real processes: the bits of one process, over a slow link, with lost replies;
and what is left when the edge is killed.
"""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.compiler import random, tree
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Samples
from delian.core.learning.nn import Mlp, sgd
from delian.core.placement.cut.cut import DEVICE, EDGE
from delian.core.placement.cut.owned_weights import cut_at
from delian.core.placement.split_training.step_bundle import StepBundle
from delian.core.placement.split_training.step_sides import Stepper
from support.processes.shaped_link import Shape
from support.processes.split_processes import SplitProcesses

B, INPUTS, CLASSES, STEPS = 10, 64, 10, 40
#: First layer and head on the device, with images and labels; the layer between above.
HOMES = {0: DEVICE, 1: DEVICE, 2: EDGE, 3: EDGE, 4: DEVICE, 5: DEVICE}


def net(key):
    return Mlp.init(key, INPUTS, (32, 128), CLASSES)


class Case:
    def __init__(self):
        task = Classification("net", net, Samples(B, 1.0))
        x, y = TensorType(DType.F32, (B, INPUTS)), TensorType(DType.I64, (B,))
        model = net(random.key(3))
        self.bundle = StepBundle.of(task, sgd(0.1, momentum=0.9), model, x, y, labels_stay=True)
        self.cut = cut_at(self.bundle.step, HOMES)
        leaves = [np.asarray(a) for a in tree.leaves(model)]
        self.above = {i: leaves[i] for i in (2, 3)}
        self.below = {i: leaves[i] for i in (0, 1, 4, 5)}
        rng = np.random.default_rng(1)
        self.batches = [
            [
                rng.random((B, INPUTS), np.float32),
                rng.integers(0, CLASSES, B),
                np.ones(B, np.float32),
            ]
            for _ in range(STEPS)
        ]

    def here(self):
        parts = self.bundle.parts(self.cut)
        stepper = Stepper(parts, "native", "reproducible")
        own = self.bundle.started(parts, False, self.below)
        chain = self.bundle.started(parts, True, self.above)
        losses = []
        for batch in self.batches:
            (own,), chain, (told,) = stepper.step([own], chain, [batch])
            losses.append(float(told[0]))
        return {i: own[i] for i in self.below}, {i: chain[i] for i in self.above}, losses


@pytest.fixture(scope="module")
def case():
    return Case()


def same_bits(one, other):
    return one.keys() == other.keys() and all(
        np.array_equal(one[i].view(np.uint32), other[i].view(np.uint32)) for i in one
    )


def check_same(case, told, ended):
    below, above, losses = case.here()
    assert told.lost == "" and told.losses == losses
    assert same_bits(told.weights, below) and same_bits(ended, above)


def test_steps_over_grpc_give_the_bits_of_steps_in_one_process(case, tmp_path):
    with SplitProcesses(tmp_path, case.bundle, case.cut, case.above) as edge:
        told = edge.train(case.below, case.batches, 100)
        ended, facts = edge.end()
    check_same(case, told, ended)
    assert facts["finished"] == ["device-1"] and told.streams == 1


def test_a_slow_link_changes_no_bit(case, tmp_path):
    with SplitProcesses(tmp_path, case.bundle, case.cut, case.above) as edge:
        edge.link.change(Shape.symmetric(5.85e6 / 8, 0.01))
        slower = Shape.symmetric(1.1e6 / 8, 0.02)
        told = edge.train(
            case.below, case.batches, 100, meddle={STEPS // 2: lambda: edge.link.change(slower)}
        )
        ended, _ = edge.end()
    check_same(case, told, ended)


def test_connections_that_break_repeat_requests_and_change_no_bit(case, tmp_path):
    with SplitProcesses(tmp_path, case.bundle, case.cut, case.above) as edge:
        edge.link.change(Shape.symmetric(5.85e6 / 8, 0.02))
        told = edge.train(
            case.below,
            case.batches,
            100,
            meddle=dict.fromkeys((5, 15, 25), edge.link.drop),
        )
        ended, _ = edge.end()
    check_same(case, told, ended)
    assert told.streams == 4


def test_a_killed_edge_is_an_error_in_words_and_nothing_is_half_updated(case, tmp_path):
    with SplitProcesses(tmp_path, case.bundle, case.cut, case.above) as edge:
        told = edge.train(
            case.below, case.batches, 100, due_s=15.0, meddle={STEPS // 4: edge.kill_edge}
        )
    assert "nothing came from above in 15 s" in told.lost
    assert STEPS // 4 <= told.steps < STEPS
    assert same_bits(told.weights, case.below)
    assert not (tmp_path / "ended.npz").exists()
