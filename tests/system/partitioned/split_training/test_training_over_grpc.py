"""Split training over a real stream, in one process: what a device and an edge make of it is what
both would have made in one, whatever is repeated, broken or refused.
"""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest
from delian.core.compiler import random, tree
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Samples
from delian.core.learning.nn import Mlp, sgd
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.pki.certificates import (
    Role,
    TlsMaterial,
    certificate_request,
    key_pem,
    new_key,
    server_credentials,
)
from delian.core.node.identity.pki.identity_folder import IdentityFolder
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.net.switch import Switch
from delian.core.placement.cut.cut import DEVICE, EDGE
from delian.core.placement.cut.owned_weights import cut_at
from delian.core.placement.split_training import training_requests
from delian.core.placement.split_training.step_bundle import StepBundle
from delian.core.placement.split_training.step_sides import Sharing, Stepper
from delian.core.placement.split_training.training_requests import SplitLostError
from delian.core.placement.split_training.training_service import TrainingHost
from delian.core.placement.split_training.trainings import Trainings
from delian.core.placement.subgraphs import request_codec
from delian.core.placement.subgraphs.frames.stream_service import SubgraphService
from delian.core.protocol.ports import Tier
from delian.device.serving.split_trainer import SplitTrainer

LABELS_UP = {0: DEVICE, 1: DEVICE, 2: EDGE, 3: EDGE, 4: EDGE, 5: EDGE}
U_SHAPE = {0: DEVICE, 1: DEVICE, 2: EDGE, 3: EDGE, 4: DEVICE, 5: DEVICE}
B, STEPS = 6, 4


def net(key):
    return Mlp.init(key, 5, (4, 8), 3)


class Case:
    def __init__(self, homes=U_SHAPE):
        task = Classification("net", net, Samples(B, 1.0))
        x, y = TensorType(DType.F32, (B, 5)), TensorType(DType.I64, (B,))
        model = net(random.key(3))
        self.bundle = StepBundle.of(
            task, sgd(0.1, momentum=0.9), model, x, y, labels_stay=homes is U_SHAPE
        )
        self.cut = cut_at(self.bundle.step, homes)
        self.parts = self.bundle.parts(self.cut)
        leaves = [np.asarray(a) for a in tree.leaves(model)]
        self.above = {i: leaves[i] for i in homes if homes[i] == EDGE}
        self.below = {i: leaves[i] for i in homes if homes[i] == DEVICE}

    def batches(self, seed=0):
        rng = np.random.default_rng(seed)
        return [
            [
                rng.normal(size=(B, 5)).astype(np.float32),
                rng.integers(0, 3, B),
                np.ones(B, np.float32),
            ]
            for _ in range(STEPS)
        ]

    def here(self, batches):
        """The same steps in one process: the device's leaves, the edge's, losses."""
        stepper = Stepper(self.parts, "reference", "reproducible")
        own = self.bundle.started(self.parts, False, self.below)
        chain = self.bundle.started(self.parts, True, self.above)
        losses = []
        for batch in batches:
            (own,), chain, (told,) = stepper.step([own], chain, [batch])
            losses.append(float(told[0]))
        return {i: own[i] for i in self.below}, {i: chain[i] for i in self.above}, losses

    def trainer(self, address, number=1, identity=None, **more):
        return SplitTrainer(
            self.bundle,
            self.cut,
            [f"edge-1@{address}"],
            identity,
            number=number,
            backend="reference",
            profile="reproducible",
            **{"due_s": 120.0, "plain": True, **more},
        )


@pytest.fixture(scope="module")
def case():
    return Case()


@contextlib.asynccontextmanager
async def edge(case, sharing=Sharing.COPIES, host_type=TrainingHost, shown=None):
    """shown: the edge's key and certificate, in a federation "farm"; None: no TLS."""
    host = host_type(Trainings(case.bundle, case.cut, sharing, "reference", "reproducible"))
    guard = Guard("farm" if shown else "insecure", Tier.EDGE)
    service = SubgraphService(host, guard, None if shown else "insecure")
    credentials = server_credentials(shown) if shown else None
    hub = GrpcHub(Switch(), "127.0.0.1:0", credentials, guard, servicers=(service.add,))
    try:
        yield host, f"127.0.0.1:{await hub.start()}"
    finally:
        await hub.close()
        await host.close()


async def train(trainer, case, seed=0, examples=10):
    return await asyncio.to_thread(trainer.run, case.below, case.batches(seed), examples)


def same_bits(one, other):
    return one.keys() == other.keys() and all(
        np.array_equal(one[i].view(np.uint32), other[i].view(np.uint32)) for i in one
    )


@pytest.mark.parametrize("homes", [U_SHAPE, LABELS_UP], ids=["labels stay", "labels go up"])
def test_steps_over_a_stream_give_the_bits_of_steps_in_one_process(homes):
    case = Case(homes)

    async def story():
        async with edge(case) as (host, address):
            host.begin(case.above)
            trained = await train(case.trainer(address), case)
            return trained, await host.end()

    trained, ended = asyncio.run(story())
    below, above, losses = case.here(case.batches())
    assert same_bits(trained.weights, below) and same_bits(ended.weights, above)
    assert list(trained.losses) == losses and trained.streams == 1
    assert ended.finished == ("device-1",)
    moved = [(below[i] - case.below[i]).reshape(-1) for i in sorted(below)]
    assert np.array_equal(trained.update, np.concatenate(moved))


class Breaking(TrainingHost):
    """Loses the stream before a reply: once at each of some turns, when the turn has been run."""

    breaks = frozenset({2, 5, 8})

    def _reply(self, visit, key, training):
        if key[1] in self.breaks:
            self.breaks = self.breaks - {key[1]}
            visit.line.end("lost")
        else:
            super()._reply(visit, key, training)


def test_a_reply_that_is_lost_is_answered_from_memory_and_nothing_moves_twice(case):
    async def story():
        async with edge(case, host_type=Breaking) as (host, address):
            host.begin(case.above)
            trained = await train(case.trainer(address), case)
            return trained, await host.end(), host.counts["repeated"]

    trained, ended, repeated = asyncio.run(story())
    below, above, _ = case.here(case.batches())
    assert repeated == 3 and trained.streams == 4
    assert same_bits(trained.weights, below) and same_bits(ended.weights, above)


class Twice(training_requests.TrainingAsker):
    """Sends every request twice."""

    def _send(self, only=None):
        super()._send(only)
        super()._send(only)


def test_a_request_that_comes_twice_is_run_once(case, monkeypatch):
    monkeypatch.setattr("delian.device.serving.split_trainer.TrainingAsker", Twice)

    async def story():
        async with edge(case) as (host, address):
            host.begin(case.above)
            trained = await train(case.trainer(address), case)
            return trained, await host.end(), host.counts["repeated"]

    trained, ended, repeated = asyncio.run(story())
    below, above, _ = case.here(case.batches())
    assert repeated > 0
    assert same_bits(trained.weights, below) and same_bits(ended.weights, above)


def test_devices_have_copies_and_the_mean_is_weighed(case):
    async def story():
        async with edge(case) as (host, address):
            host.begin(case.above)
            trainers = [case.trainer(address, n) for n in (1, 2)]
            await asyncio.gather(
                *(train(t, case, seed, 10 * seed) for seed, t in enumerate(trainers, 1))
            )
            return await host.end()

    ended = asyncio.run(story())
    chains = [case.here(case.batches(seed))[1] for seed in (1, 2)]
    for i, mean in ended.weights.items():
        wanted = (chains[0][i].astype(np.float64) + 2 * chains[1][i].astype(np.float64)) / 3
        assert np.abs(mean - wanted).max() < 1e-7
    assert sorted(ended.finished) == ["device-1", "device-2"] and ended.examples == 30


def test_devices_of_a_chain_wait_for_one_another(case):
    async def story():
        async with edge(case, Sharing.SEQUENTIAL) as (host, address):
            host.begin(case.above)
            trainers = [case.trainer(address, n, sharing=Sharing.SEQUENTIAL) for n in (1, 2)]
            await asyncio.gather(*(train(t, case, 5) for t in trainers))
            return await host.end()

    ended = asyncio.run(story())
    stepper = Stepper(case.parts, "reference", "reproducible")
    chain = case.bundle.started(case.parts, True, case.above)
    for _ in range(2):  # both train on the same rows, so their order is of no matter
        own = case.bundle.started(case.parts, False, case.below)
        for batch in case.batches(5):
            (own,), chain, _ = stepper.step([own], chain, [batch])
    assert same_bits(ended.weights, {i: chain[i] for i in case.above})


def test_a_device_that_trained_is_told_to_wait_for_the_next_round(case):
    async def story():
        async with edge(case) as (host, address):
            with pytest.raises(SplitLostError, match="no round of training has begun"):
                await train(case.trainer(address, due_s=3.0), case)
            host.begin(case.above)
            await train(case.trainer(address), case)
            with pytest.raises(SplitLostError, match="has trained in this round"):
                await train(case.trainer(address, due_s=3.0), case)
            host.begin(case.above)
            await train(case.trainer(address), case)
            return await host.end()

    assert asyncio.run(story()).finished == ("device-1",)


def test_what_the_edge_does_not_have_so_is_refused_in_words(case):
    async def story():
        async with edge(case) as (host, address):
            host.begin(case.above)
            with pytest.raises(SplitLostError, match="trains copies"):
                await train(case.trainer(address, sharing=Sharing.SEQUENTIAL), case)
            with pytest.raises(SplitLostError, match="cut in another way"):
                trainer = case.trainer(address)
                trainer._cut = cut_at(case.bundle.step, U_SHAPE, "f16")
                await train(trainer, case)
            return await host.end()

    assert asyncio.run(story()).finished == ()


def test_a_fault_of_the_edge_ends_the_training_and_is_told(case, monkeypatch):
    def broken(training, tensors):
        raise RuntimeError("a fault")

    async def story():
        async with edge(case) as (host, address):
            host.begin(case.above)
            monkeypatch.setattr(host.trainings, "run", broken)
            with pytest.raises(SplitLostError, match=r"(?i)fail"):
                await train(case.trainer(address), case)
            assert host.counts["subgraph_failed"] == 1
            return await host.end()

    assert asyncio.run(story()).finished == ()


def test_a_refusal_by_a_number_that_is_not_known_here_ends_the_training(case, monkeypatch):
    async def story():
        async with edge(case) as (host, address):
            host.begin(case.above)

            def newer(visit, key, *_):
                visit.line.reply(key, request_codec.reply_bytes(*key, 99))

            monkeypatch.setattr(host, "_reply", newer)
            with pytest.raises(SplitLostError, match="refused above: failed"):
                await train(case.trainer(address), case)

    asyncio.run(story())


def test_an_edge_that_has_forgotten_the_training_ends_it_and_nothing_counts(case):
    class Forgetting(TrainingHost):
        """A new round begins in the middle, as after a restart."""

        def _reply(self, visit, key, training):
            if key[1] == 5:
                self.begin(case.above)
                visit.line.end("lost")
            else:
                super()._reply(visit, key, training)

    given = {i: a.copy() for i, a in case.below.items()}

    async def story():
        async with edge(case, host_type=Forgetting) as (host, address):
            host.begin(case.above)
            with pytest.raises(SplitLostError, match="not here any more") as lost:
                await train(case.trainer(address), case)
            return lost.value.steps, await host.end()

    steps, ended = asyncio.run(story())
    assert steps == 2, "turn 5 is the third step's first"
    assert same_bits(ended.weights, case.above) and same_bits(case.below, given)


def test_a_device_trains_as_whom_its_certificate_names(case, tmp_path):
    farm = Authority.create(tmp_path / "ca", "farm")

    def issued(role, number):
        key = new_key()
        made = farm.issue(certificate_request(key), role, number)
        return TlsMaterial(key_pem(key), made.chain, farm.pem), made.renew_after_s

    shown, _ = issued(Role.EDGE, 1)
    folder = IdentityFolder(tmp_path / "device-7")
    mine, renew_after_s = issued(Role.DEVICE, 7)
    folder.store(mine, renew_after_s=renew_after_s, homes=())

    async def story():
        async with edge(case, shown=shown) as (host, address):
            host.begin(case.above)
            await train(case.trainer(address, 7, tmp_path / "device-7"), case)
            return await host.end()

    ended = asyncio.run(story())
    assert ended.finished == ("device-7",)
    assert same_bits(ended.weights, case.here(case.batches())[1])


def test_an_edge_that_is_not_there_is_told_of_in_time(case):
    with pytest.raises(SplitLostError, match="nothing came"):
        case.trainer("127.0.0.1:9", due_s=0.3).run(case.below, case.batches(), 10)
