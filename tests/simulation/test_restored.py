"""A coordinator that is put back from an older copy, under edges and devices that have gone on
since: nothing of the history that it has forgotten gets into a model.
"""

from __future__ import annotations

from collections import Counter

import pytest
from delian.cloud.protocol.machine import Coordinator, restore
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.protocol.ports import CLOUD, SECOND, Received, Started, Tier
from delian.core.protocol.run_names import number_of
from delian.core.wire.round_pb2 import Upload
from delian.simulations.federation.federation import RUN, Federation
from delian.simulations.federation.fleet import DeviceClass, Fleet
from delian.simulations.federation.network import LinkProfile
from delian.simulations.scenario.federation_plan import FederationPlan
from support.stub_training import StubTraining

RING = RingPlan(clip=1.0, clients_max=64, dimension=7)
LINK = LinkProfile(latency_ms=30.0, up_mbps=1.0, down_mbps=5.0)
ROUNDS = 5
#: Unix time of the coordinator's starts: its first, and the one from the copy.
BEGAN, BACK = 1_790_000_000 * SECOND, 1_790_000_500 * SECOND
BUFFERED = {"mode": "buffered", "buffer": 4, "concurrency": 9, "staleness_max": 2}
MASKED = {"aggregation": "secure", "cohort_min": 3, "corrupt": 0.1, "dropout": 0.2}
HELPED = {
    **{"aggregation": "secure", "cohort_min": 3, "corrupt": 0.0, "dropout": 0.0, "helpers": 1},
    **BUFFERED,
}
KINDS = {
    "rounds": {},
    "evaluated": {"evaluation_every": 2, "evaluation_cohort": 3},
    "buffered": BUFFERED,
    "masked": MASKED,
    "masked waves": {**MASKED, **BUFFERED},
    "helped": HELPED,
}


class Restored(Federation):
    """`copied`: after so many rounds the coordinator is copied; `back`: after so many it is put
    back from there. named: whether starts have a time, as a daemon's do.
    """

    def __init__(self, copied=1, back=3, named=True, **changes):
        fleet = Fleet(
            15, 3, {"kind": 1.0}, {"kind": DeviceClass(speed_flops=1e9, speed_sigma=1.0)}, LINK
        )
        plan = FederationPlan.of(
            **{
                "rounds": ROUNDS,
                "cohort": 6,
                "ring": RING,
                "fleet": fleet,
                "edge_link": LinkProfile(latency_ms=10.0),
                "attempts_max": 4,
                "timeout_ms": 30_000,
                "wait_ms": 30_000,
                "rest_ms": 2_000,
                "reports_min": 3,
                **changes,
            }
        )
        self.births = [BEGAN, BACK] if named else [0, 0]
        self.copied, self.back = copied, back
        self.copy = None
        self.uploads = Counter()
        super().__init__(plan, StubTraining(RING), 5, observer=self._see)

    def _come_up(self, number, host):
        if host.node == CLOUD:
            host.online = True
            self._dispatch(host, Started(tuple(host.store), self.births.pop(0)))
        else:
            super()._come_up(number, host)

    def _see(self, now, host, event):
        if not isinstance(event, Received):
            return
        message = event.message
        if isinstance(message, Upload) and host.node.tier is Tier.EDGE:
            self.uploads[message.device, message.run, message.round, message.attempt] += 1

    def run(self):
        return super().run(self._on_round)

    def _on_round(self, record):
        cloud, made = self.hosts[CLOUD], sum(r.succeeded for r in self.records)
        if made == self.copied and self.copy is None:
            self.copy = cloud.machine.snapshot(), dict(cloud.store)
        if made == self.back and len(self.births) == 1:
            self._at(self.schedule.now, self._restore)

    def _restore(self, number):
        host, (snapshot, store) = self.hosts[CLOUD], self.copy
        self._go_down(host)
        old = host.machine
        known = old.runs.identity, old.policy, old.runs.log
        host.machine = Coordinator(restore(snapshot), *known)
        host.machine.out.carries_vectors = self._beside
        host.store = dict(store)
        self._come_up(number, host)

    @property
    def made(self):
        return [r.round for r in self.records if r.succeeded]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_from_the_copy(kind):
    federation = Restored(**KINDS[kind])
    result = federation.run()
    assert not result.failed and not federation.births
    assert federation.made == [1, 2, 3, 2, 3, 4, 5]


def test_a_round_that_was_done_before_is_another_one_to_edges_and_devices():
    federation = Restored()
    federation.run()
    names = {run for _, run, _, _ in federation.uploads}
    assert len(names) == 2 and {number_of(name) for name in names} == {RUN}
    again = {(d, r, a) for d, _, r, a in federation.uploads}
    assert len(again) < len(federation.uploads), "some devices did a round twice, in two histories"


def test_under_plain_numbers_they_would_refuse_it_and_the_run_would_fail():
    """What a restart whose starts nobody can tell apart comes to: why there are names."""
    result = Restored(named=False).run()
    assert "too few devices reported" in result.failed
