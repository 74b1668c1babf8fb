"""Fine-tuning over a real stream: a device and an edge train adapters of their own parts, and the
cut moves between rounds with the link.
"""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.net.switch import Switch
from delian.core.placement.cut.link_model import LinkProfile
from delian.core.placement.split_training.step_placement import StepCosts, shared_out
from delian.core.placement.split_training.step_sides import Sharing, Stepper
from delian.core.placement.split_training.training_requests import SplitLostError
from delian.core.placement.split_training.training_service import TrainingHost
from delian.core.placement.split_training.trainings import Trainings
from delian.core.placement.subgraphs.frames.stream_service import SubgraphService
from delian.core.protocol.ports import Tier
from delian.device.serving.split_trainer import SplitTrainer

STEPS = 3


class Case:
    def __init__(self, adapted_steps):
        self.steps = adapted_steps
        model = adapted_steps.classifier()
        self.bundle = adapted_steps.bundle_of(model)
        self.own, self.frozen = self.bundle.divided(model)
        self.costs = StepCosts(
            self.bundle, adapted_steps.PROFILES, on_device=("embedding.*", "blocks.0.*")
        )

    def cut(self, bandwidth):
        return self.costs.at(LinkProfile(bandwidth, bandwidth, 0.0)).cut

    def of_side(self, cut, above):
        """The frozen leaves of one side alone."""
        places = self.bundle.frozen_of(self.bundle.parts(cut), above)
        return {self.bundle.frozen[k].name: self.frozen[self.bundle.frozen[k].name] for k in places}

    def trainer(self, address, cut):
        return SplitTrainer(
            self.bundle,
            cut,
            [f"edge-1@{address}"],
            number=1,
            backend="reference",
            profile="reproducible",
            due_s=120.0,
            frozen=self.of_side(cut, above=False),
        )

    def here(self, cut, leaves, batches):
        """A round in one process by some cut: the leaves after it."""
        parts = self.bundle.parts(cut)
        held = {
            **self.bundle.held(parts, False, self.frozen),
            **self.bundle.held(parts, True, self.frozen),
        }
        stepper = Stepper(parts, "reference", "reproducible", held)
        below, above = shared_out(self.bundle, parts, leaves)
        device = self.bundle.started(parts, False, below)
        edge = self.bundle.started(parts, True, above)
        for batch in batches:
            (device,), edge, _ = stepper.step([device], edge, [batch])
        every = {**device, **edge}
        return {i: every[i] for i in leaves}


@pytest.fixture(scope="module")
def case(adapted_steps):
    return Case(adapted_steps)


@contextlib.asynccontextmanager
async def edge(case, cut):
    trainings = Trainings(
        case.bundle, cut, Sharing.COPIES, "reference", "reproducible", frozen=case.frozen
    )
    host, guard = TrainingHost(trainings), Guard("insecure", Tier.EDGE)
    service = SubgraphService(host, guard, "insecure")
    hub = GrpcHub(Switch(), "127.0.0.1:0", None, guard, servicers=(service.add,))
    try:
        yield host, f"127.0.0.1:{await hub.start()}"
    finally:
        await hub.close()
        await host.close()


async def round_of(case, host, address, cut, leaves, batches):
    """The leaves after a round: those of the device's part, and those above."""
    below, above = shared_out(case.bundle, case.bundle.parts(cut), leaves)
    host.begin(above, cut)
    trained = await asyncio.to_thread(case.trainer(address, cut).run, below, batches, 10)
    ended = await host.end()
    assert ended.finished == ("device-1",)
    return {**trained.weights, **ended.weights}


def test_rounds_whose_cut_moves_give_the_bits_of_rounds_whose_cut_stays(case):
    far, near = case.cut(case.steps.MIDDLE), case.cut(case.steps.FAST)
    owned = [case.bundle.owned_by(case.bundle.parts(cut), above=True) for cut in (far, near)]
    assert owned == [(8, 9), tuple(range(4, 10))]
    given = [case.steps.batches(STEPS, seed) for seed in range(3)]

    async def story():
        leaves = dict(case.own)
        async with edge(case, far) as (host, address):
            for cut, batches in zip((far, near, far), given, strict=True):
                leaves = await round_of(case, host, address, cut, leaves, batches)
        return leaves

    leaves, wanted = asyncio.run(story()), dict(case.own)
    for batches in given:
        wanted = case.here(far, wanted, batches)
    for i, leaf in wanted.items():
        assert leaves[i].tobytes() == leaf.tobytes(), case.bundle.leaves[i].name
        assert not np.array_equal(leaf, case.own[i])


def test_a_device_with_the_cut_of_an_earlier_round_is_refused(case):
    far, near = case.cut(case.steps.MIDDLE), case.cut(case.steps.FAST)
    _, above = shared_out(case.bundle, case.bundle.parts(near), case.own)

    async def story():
        async with edge(case, far) as (host, address):
            host.begin(above, near)
            late = shared_out(case.bundle, case.bundle.parts(far), case.own)[0]
            with pytest.raises(SplitLostError, match="cut in another way"):
                await asyncio.to_thread(
                    case.trainer(address, far).run, late, case.steps.batches(1), 10
                )
            return await host.end()

    ended = asyncio.run(story())
    assert ended.finished == () and ended.weights.keys() == above.keys()


def test_a_device_without_its_frozen_leaves_does_not_begin(case):
    cut = case.cut(case.steps.FAST)
    with pytest.raises(DelianError, match="is missing"):
        SplitTrainer(case.bundle, cut, ["edge-1@127.0.0.1:1"], number=1, backend="reference")
