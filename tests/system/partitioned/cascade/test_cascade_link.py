"""A cascade over a real stream: the large model runs behind a gRPC port of this process."""

from __future__ import annotations

import asyncio

import numpy as np
from delian.core.compiler import random
from delian.core.compiler.backends import compile_function
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.nn import Mlp
from delian.core.node.driver.clock import WallClock
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.net.switch import Switch
from delian.core.placement.cascade.cascade_driver import CascadeDriver
from delian.core.placement.cascade.cascade_link import LargeAbove, without_weights
from delian.core.placement.cascade.hard_examples import Threshold
from delian.core.placement.cascade.machine import By, CascadePlan
from delian.core.placement.subgraphs.frames.stream_client import Upstream
from delian.core.placement.subgraphs.machines.part_ports import Link
from delian.core.placement.subgraphs.part_programs import Model
from delian.core.placement.subgraphs.parts_host import PartsHost
from delian.core.protocol.ports import MS, SECOND, Node, Tier

ROWS = SampleSet(np.zeros((4, 6), np.float32), np.arange(4) % 3, np.array(4), np.array(0))


def model():
    bundle = build(
        Classification("large", lambda key: Mlp.init(key, 6, (16,), 3), Samples(4, 1.0)),
        FedAvg(),
        ROWS,
        example=TensorType(DType.F32, (1, 6)),
        clip=5.0,
        clients_max=4,
        weight_max=4.0,
        seed=1,
    )
    return Model.of(bundle)


def small(x):
    """Sure of itself where the first number is above one half."""
    return (
        np.where(x[:, :1] > 0.5, np.float32(9.0), np.float32(0.0)) * np.eye(3, dtype=np.float32)[:1]
    )


def test_hard_examples_are_answered_above_and_here_once_nobody_is_there():
    large = model()
    whole = compile_function(large.function, "reference")
    rows = np.asarray(random.uniform(random.key(3), (12, 1, 6)))

    async def run():
        guard = Guard("insecure", Tier.EDGE)
        edge = Node(Tier.EDGE, 1)
        parts = PartsHost([large], edge, guard, "insecure", False, backend="reference")
        hub = GrpcHub(Switch(), "127.0.0.1:0", None, guard, servicers=(parts.service.add,))
        port = await hub.start()

        def upstream(owner):
            home = [(edge, f"127.0.0.1:{port}")]
            return Upstream(Node(Tier.DEVICE, 4), home, owner, None)

        clock = WallClock()
        above = LargeAbove(without_weights(large), upstream, Link(1e8, 1e8, 0.0), clock)
        above.start()
        plan = CascadePlan(Threshold(0.9), above_ns=120 * SECOND, failures=1000)
        driver = CascadeDriver(plan, small, above, clock)
        try:
            async with asyncio.timeout(120.0):
                while not above.ready:
                    await asyncio.sleep(0.01)
            due = clock.now() + 150 * SECOND
            answered = await asyncio.gather(*(driver.ask(x, due) for x in rows))
            await parts.close()
            await hub.close()
            alone = await driver.ask(np.zeros((1, 6), np.float32), clock.now() + 300 * MS)
        finally:
            await above.close()
            await parts.close()
            await hub.close()
        return answered, alone

    answered, alone = asyncio.run(run())
    went = [bool(x[0, 0] <= 0.5) for x in rows]
    assert 0 < sum(went) < len(rows)
    for x, hard, reply in zip(rows, went, answered, strict=True):
        assert reply.by is (By.LARGE if hard else By.SMALL)
        wanted = whole(*large.leaves, x)[0] if hard else small(x)
        np.testing.assert_array_equal(reply.answer, wanted)
    assert (alone.by, alone.hard) == (By.SMALL, True)
    assert "above" in alone.why
