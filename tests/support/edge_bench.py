"""An edge's machine with a clock, and the ways to its phases."""

from __future__ import annotations

from functools import cache

import numpy as np
from delian.core.privacy.secagg.helper import Helper, Helpers, mask
from delian.core.privacy.secagg.logged import LogRules
from delian.core.privacy.secagg.member_identity import SimulatedIdentity, simulated_coordinator
from delian.core.privacy.secagg.signed_task import sign
from delian.core.protocol.ports import (
    CLOUD,
    BlobStored,
    Node,
    Received,
    Record,
    Send,
    SetTimer,
    Started,
    Tier,
    TimerFired,
)
from delian.core.wire.admission_pb2 import CheckIn, DeviceFacts, Eligibility, Pace
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.helper_pb2 import HelpPart, HelpRequest
from delian.core.wire.round_pb2 import (
    NON_FINITE,
    TRAIN,
    EdgeSum,
    EdgeTask,
    Failure,
    Flush,
    RingPlan,
    Task,
    Upload,
    UploadAck,
)
from delian.core.wire.secure_pb2 import MaskSeeds
from delian.edge.protocol.edge_state import EdgePolicy, EdgeState, Stage
from delian.edge.protocol.machine import EdgeMachine

COORDINATOR = simulated_coordinator(1)
BUNDLE, WEIGHTS = b"b" * 32, b"w" * 32
ROUND = {"run": 1, "round": 1, "attempt": 1}


def device(number):
    return Node(Tier.DEVICE, number)


def check_in(number, sequence=1, protocol=1, memory_mib=0, storage_mib=0, **eligibility):
    return CheckIn(
        device=number,
        sequence=sequence,
        protocol=protocol,
        facts=DeviceFacts(memory_mib=memory_mib, storage_mib=storage_mib),
        eligibility=Eligibility(**{"consented": True, **eligibility}),
    )


def edge_task(
    devices,
    round=1,
    attempt=1,
    run=1,
    weights=WEIGHTS,
    bundle=BUNDLE,
    time_ms=10_000,
    edge_ms=12_000,
    dimension=3,
    alone=False,
    purpose=TRAIN,
    apart=False,
    signed=True,
    frozen=(),
    split=False,
):
    task = Task(
        run=run,
        round=round,
        attempt=attempt,
        bundle=BlobRef(digest=bundle, size=100),
        weights=BlobRef(digest=weights, size=12),
        ring=RingPlan(clip=1, clients_max=10, bits=32, dimension=dimension),
        time_ms=time_ms,
        rng_key=b"roundkey",
        purpose=purpose,
        frozen=frozen,
        split=split,
    )
    if signed:
        sign(task, COORDINATOR, ends_s=10**6)
    return EdgeTask(task=task, devices=devices, time_ms=edge_ms, alone=alone, apart=apart)


def helper(edge=4, least=0, rules=None):
    """An edge's part as a helper. rules: what it asks of the certificate log."""
    identity = SimulatedIdentity(edge, 1, "edge")
    return Helper(edge, bytes([edge]) * 32, identity, least, rules or LogRules())


def helped_task(helpers=(4,), **changes):
    """A task of updates that helpers unmask."""
    task = edge_task([1], **changes).task
    task.secure.suite, task.secure.cohort_min = 1, 3
    task.secure.helpers.extend(helper(edge).card() for edge in helpers)
    return task


@cache
def masked(task_bytes, number):
    """A device's masked update and its seeds."""
    helpers, me = Helpers.of(Task.FromString(task_bytes)), SimulatedIdentity(number, 1)
    return mask(vector(number), helpers, number, bytes([number]) * 32, me)


def help_request(devices=(1, 2, 3), batch=1, place=0, **changes):
    """What a helper is asked about devices that had one task."""
    task = helped_task(**changes)
    seeds = [masked(task.SerializeToString(), d)[1] for d in devices]
    shown = [
        MaskSeeds(device=s.device, certificate=s.certificate, seeds=[s.seeds[place]]) for s in seeds
    ]
    part = HelpPart(task=task, devices=shown)
    return HelpRequest(run=task.run, batch=batch, parts=[part])


def vector(number):
    return np.array([number, 2**32 - number, 7, 1], np.uint32)


def upload(number, run=1, round=1, attempt=1, split=b""):
    content = vector(number).tobytes()
    return Upload(run=run, round=round, attempt=attempt, device=number, vector=content, split=split)


def failure(number, reason=NON_FINITE):
    return Failure(**ROUND, device=number, reason=reason)


class Bench:
    """An edge and a clock."""

    def __init__(self, state=None, helper=None, **policy):
        state = state or EdgeState(4, incarnation=1)
        identity = SimulatedIdentity(state.edge, 1, "edge")
        self.machine = EdgeMachine(state, EdgePolicy(**policy), helper, identity)
        self.now = 0
        self.effects = []

    def does(self, event, after=0):
        self.now += after
        self.effects = self.machine.handle(event, self.now)
        return self

    def hears(self, sender, message, after=0):
        return self.does(Received(sender, message), after)

    def cloud(self, message, after=0):
        """A Pace without a number is the next one."""
        if isinstance(message, Pace) and not message.number:
            known = self.state.pace
            message.number = 1 if known is None else known.number + 1
        return self.hears(CLOUD, message, after)

    @property
    def state(self):
        return self.machine.state

    @property
    def open(self):
        """The names of the attempts that are open."""
        return list(self.machine.state.collections)

    def stage(self, name="1.1.1"):
        """Where an attempt is; it is over when the edge has closed it."""
        one = self.machine.state.collections.get(name)
        return Stage.OVER if one is None else one.phase

    def one(self, name="1.1.1"):
        return self.machine.state.collections[name]

    def statuses(self, number):
        return [m.status for m in self.said(device(number)) if isinstance(m, UploadAck)]

    def sums(self):
        return [m for m in self.said(CLOUD) if isinstance(m, EdgeSum)]

    def fires(self, name, after=0, attempt="1.1.1"):
        return self.does(TimerFired(f"{attempt}/{name}"), after)

    def said(self, to):
        return [e.message for e in self.effects if isinstance(e, Send) and e.to == to]

    def of(self, kind):
        return [e for e in self.effects if isinstance(e, kind)]

    def timer(self, name):
        return next(e.at for e in reversed(self.of(SetTimer)) if e.name.endswith(name))

    def ignored(self):
        return [r for r in self.of(Record) if r.kind == "ignored"]

    # Ways to a phase.

    def gathering(self, devices=(1, 2, 3), pace=None):
        self.does(Started())
        if pace is not None:
            self.cloud(pace)
        for number in devices:
            self.hears(device(number), check_in(number))
        return self

    def collecting(self, devices=(1, 2, 3), **task):
        return self.gathering(devices).cloud(edge_task(devices, **task))

    def flushed(self, devices=(1, 2, 3), counted=(1,), **flush):
        """A sum was asked for when some devices had answered."""
        self.collecting(devices)
        for number in counted:
            self.hears(device(number), upload(number))
        return self.cloud(Flush(**ROUND, **flush))

    def reporting(self, devices=(1, 2, 3)):
        self.collecting(devices)
        for number in devices:
            self.hears(device(number), upload(number))
        return self

    def serving(self):
        self.collecting()
        self.does(BlobStored(BUNDLE, True))
        return self.does(BlobStored(WEIGHTS, True))


def the_sum(bench):
    (message,) = bench.sums()
    return message
