"""Split training over a real stream with noise on what goes up: what the edge is sent, what it
costs, and what is refused before anything leaves the device.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from delian.core.compiler import random, tree
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Samples
from delian.core.learning.nn import NormalisedMlp, sgd
from delian.core.placement.cut.cut import DEVICE, EDGE
from delian.core.placement.cut.owned_weights import cut_at
from delian.core.placement.split_training import training_requests
from delian.core.placement.split_training.step_bundle import StepBundle
from delian.core.placement.split_training.step_sides import Sharing
from delian.core.placement.split_training.training_requests import SplitLostError
from delian.core.placement.split_training.training_service import TrainingHost
from delian.core.placement.split_training.trainings import Trainings
from delian.core.privacy.mechanisms.accountant import Budget, BudgetError
from delian.core.privacy.mechanisms.activation_noise import BoundaryError, Shield
from system.partitioned.split_training import test_training_over_grpc as _over

Case, B, STEPS = _over.Case, _over.B, _over.STEPS
LOUD = Shield(clip=0.5, noise=2.0)


class Seen(Trainings):
    """An edge that keeps what it was sent."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.sent = []

    def run(self, training, tensors):
        self.sent.append({v: np.frombuffer(t.content, "<f4") for v, t in tensors.items()})
        return super().run(training, tensors)


def trained(case, batches=None, **settings):
    """What a device made of its steps with an edge, and what the edge was sent."""

    async def story():
        seen = Seen(case.bundle, case.cut, Sharing.COPIES, "reference", "reproducible")
        async with _over.edge(case, host_type=lambda _: TrainingHost(seen)) as (host, address):
            host.begin(case.above)
            trainer = case.trainer(address, **settings)
            given = case.batches() if batches is None else batches
            found = await asyncio.to_thread(trainer.run, case.below, given, 10)
            return found, seen.sent

    return asyncio.run(story())


@pytest.fixture(scope="module")
def case():
    return Case()


def rows(sent):
    """Norms of the rows of all that went up."""
    tensors = [t.reshape(B, -1) for one in sent for t in one.values()]
    return np.concatenate([np.linalg.norm(t, axis=1) for t in tensors])


def test_what_the_edge_is_sent_is_noised_and_the_run_goes_through(case):
    plain, clear = trained(case)
    noised, sent = trained(case, shields=[LOUD])
    assert len(sent) == len(clear) == 2 * STEPS, "activations and gradients"
    for one, other in zip(sent[0].values(), clear[0].values(), strict=True):
        assert not np.any(one == other)
        steps = one / np.float32(LOUD.step)
        assert np.array_equal(steps, np.rint(steps)), "whole steps of noise, no float's low bits"
    # Of noise with a deviation of one in each coordinate, over rows that were cut to a half.
    assert np.median(rows(sent)) > 1.0
    assert noised.update.shape == plain.update.shape and np.isfinite(noised.update).all()


def test_faint_noise_changes_steps_hardly(case):
    plain, _ = trained(case)
    noised, _ = trained(case, shields=[Shield(1.0, 0.01), Shield(1.0, 0.01)])
    assert 0.0 < np.abs(noised.update - plain.update).max() < 0.2


def test_noise_is_drawn_anew_each_time(case):
    (_, one), (_, two) = (trained(case, shields=[LOUD]) for _ in range(2))
    assert not any(np.array_equal(one[0][v], two[0][v]) for v in one[0])


def test_a_run_is_charged_before_it_begins_and_refused_where_it_costs_too_much(case):
    budget = Budget(600.0, 1e-5)
    trained(case, shields=[LOUD], budget=budget)
    once, rows = budget.epsilon_spent, STEPS * B
    assert budget.releases == rows and 0.0 < once <= 600.0
    runs = 1
    while True:
        try:
            sent = trained(case, shields=[LOUD], budget=budget)[1]
        except BudgetError:
            break
        runs += 1
        assert len(sent) == 2 * STEPS
    assert runs > 1 and budget.epsilon_spent <= 600.0 and budget.releases == runs * rows


def test_rows_that_an_example_is_carried_into_are_charged(case):
    """A device's weights move by its examples, and make all rows that go up later."""
    trainer = case.trainer("127.0.0.1:9", shields=[LOUD], budget=Budget(1e3, 1e-5))
    assert trainer._charged(passes=2, steps=STEPS) == STEPS * B
    stays = SimpleNamespace(owned_by=lambda parts, above: ())
    trainer.bundle = stays
    assert trainer._charged(passes=2, steps=STEPS) == 2


def test_a_run_that_is_lost_stays_charged(case, monkeypatch):
    monkeypatch.setattr(training_requests, "AGAIN_S", 0.01)
    budget = Budget(1e3, 1e-5)
    trainer = case.trainer("127.0.0.1:9", shields=[LOUD], budget=budget, due_s=0.3)
    with pytest.raises(SplitLostError):
        trainer.run(case.below, case.batches(), 10)
    assert budget.releases == STEPS * B


def test_rows_that_are_not_finite_are_not_sent(case):
    batches = case.batches()
    batches[1][0][2] = np.inf
    with np.errstate(all="ignore"), pytest.raises(BoundaryError, match="not finite"):
        trained(case, batches, shields=[LOUD])


def test_a_cut_that_sends_labels_up_is_refused():
    with pytest.raises(BoundaryError, match="batch itself would go up"):
        Case(_over.LABELS_UP).trainer("127.0.0.1:9", shields=[LOUD])


def test_a_budget_without_shields_is_refused(case):
    with pytest.raises(BoundaryError, match="as it is"):
        case.trainer("127.0.0.1:9", budget=Budget(1.0, 1e-5))


def test_rows_that_mix_are_found_out_before_anything_is_sent():
    task = Classification("net", lambda key: NormalisedMlp.init(key, 5, (4, 8), 3), Samples(B, 1.0))
    model = task.init(random.key(0))
    x, y = TensorType(DType.F32, (B, 5)), TensorType(DType.I64, (B,))
    leaves, structure = tree.flatten(model)
    homes = {
        i: EDGE if n.startswith("layers.1.") else DEVICE for i, n in enumerate(structure.paths())
    }
    case = Case.__new__(Case)
    case.bundle = StepBundle.of(task, sgd(0.1), model, x, y, labels_stay=True)
    case.cut = cut_at(case.bundle.step, homes)
    below = {i: np.asarray(leaves[i]) for i in homes if homes[i] == DEVICE}
    budget = Budget(1e3, 1e-5)
    trainer = case.trainer("127.0.0.1:9", shields=[LOUD], budget=budget)
    with pytest.raises(BoundaryError, match="depends on other rows"):
        trainer.run(below, case.batches(), 10)
    assert not budget.releases
