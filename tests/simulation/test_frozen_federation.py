"""Frozen parts in a simulated federation: what they cost on the links, and who takes no part."""

from __future__ import annotations

import numpy as np
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.protocol.ports import CLOUD, Node, SendBlob, Tier
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import PlanMessage, RunOrder
from delian.core.wire.round_pb2 import NO_ROOM
from delian.device.protocol.device_state import DevicePolicy
from delian.simulations.federation.federation import Federation
from delian.simulations.federation.fleet import Fleet
from delian.simulations.scenario.federation_plan import FederationPlan
from support.stub_training import StubTraining

RING = RingPlan(clip=1.0, clients_max=64, dimension=100)
MIB = 2**20
PARTS = tuple(BlobRef(digest=bytes([n]) * 32, size=MIB) for n in range(1, 11))
DEVICES, EDGES = 6, 2


def plan(**changes) -> FederationPlan:
    settings = {
        "rounds": 3,
        "cohort": DEVICES,
        "ring": RING,
        "fleet": Fleet(DEVICES, EDGES),
        "over_selection": 1.0,
        "frozen": PARTS,
        "reports_min": DEVICES,
        **changes,
    }
    return FederationPlan.of(**settings)


class Watched(Federation):
    """Counts which blobs are sent to which nodes."""

    def _on_send_blob(self, host, effect: SendBlob) -> None:
        key = (effect.to, effect.digest)
        self.sent = getattr(self, "sent", {})
        self.sent[key] = self.sent.get(key, 0) + 1
        super()._on_send_blob(host, effect)


def test_each_part_goes_once_to_each_edge_and_device_in_all_rounds_of_two_runs():
    federation = Watched(plan(), StubTraining(RING), seed=1)
    again = PlanMessage()
    again.CopyFrom(federation.message)
    federation.order(0, RunOrder(run=2, submit=again))
    result = federation.run()
    assert [r.succeeded for r in result.rounds] == [True] * 3
    state = federation.hosts[CLOUD].machine.state
    assert state.ended[2].round == 3, "another run, of the same parts"
    names = {ref.digest for ref in PARTS}
    sent = {key: count for key, count in federation.sent.items() if key[1] in names}
    devices = {Node(Tier.DEVICE, d) for d in range(DEVICES)}
    edges = {Node(Tier.EDGE, e) for e in range(EDGES)}
    assert sent.keys() == {(node, name) for node in devices | edges for name in names}
    assert set(sent.values()) == {1}


def test_the_model_is_the_same_as_without_them():
    models = []
    for frozen in ((), PARTS):
        federation = Federation(plan(frozen=frozen, rounds=2), StubTraining(RING), seed=1)
        federation.run()
        models.append(federation.weights)
    assert models[0].any() and np.array_equal(*models)


def test_masked_rounds_have_them_too():
    asked = plan(aggregation="secure", cohort_min=3, rounds=2)
    result = Federation(asked, StubTraining(RING), seed=1).run()
    assert [r.succeeded for r in result.rounds] == [True, True]


def test_devices_without_room_decline_before_anything_is_fetched():
    policy = DevicePolicy(secure_required=False, blobs_bytes_max=len(PARTS) * MIB)
    asked = plan(device_policy=policy, attempts_max=1)
    federation = Watched(asked, StubTraining(RING), seed=1)
    result = federation.run()
    (failed,) = result.rounds
    assert not failed.succeeded and set(failed.refused.values()) == {NO_ROOM}
    assert len(failed.refused) == DEVICES and result.failed
    assert "no room" in federation.hosts[CLOUD].machine.state.ended[1].why
    assert not {to for to, _ in federation.sent if to.tier is Tier.DEVICE}


def test_small_parts_are_fetched_beside_one_another_by_slow_devices():
    """With time for it, all devices of a slow fleet get a model larger than a part."""
    result = Federation(plan(rounds=1, timeout_ms=3_600_000), StubTraining(RING), seed=2).run()
    assert result.rounds[0].reported and not result.rounds[0].dropped
