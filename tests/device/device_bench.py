"""A device's machine with a clock, and the ways to its phases."""

from __future__ import annotations

import numpy as np
from delian.core.ports import (
    BlobStored,
    Node,
    Outcome,
    ProgramFinished,
    Received,
    Record,
    Send,
    SetTimer,
    Started,
    Tier,
)
from delian.core.streams import Streams
from delian.core.wire.admission_pb2 import (
    Accept,
    DeviceFacts,
    Eligibility,
    RetryWindow,
)
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.round_pb2 import (
    TRAIN,
    RingPlan,
    Task,
)
from delian.device.machine import DeviceMachine, DeviceState

EDGE = Node(Tier.EDGE, 2)
BUNDLE, WEIGHTS = b"b" * 32, b"w" * 32
VECTOR = np.arange(4, dtype=np.uint32)


def make_task(
    round=1, attempt=1, run=1, time_ms=10_000, weights=WEIGHTS, bundle=BUNDLE, purpose=TRAIN
):
    return Task(
        run=run,
        round=round,
        attempt=attempt,
        bundle=BlobRef(digest=bundle, size=100),
        weights=BlobRef(digest=weights, size=12),
        ring=RingPlan(clip=1, clients_max=10, bits=32, dimension=3),
        time_ms=time_ms,
        rng_key=b"roundkey",
        purpose=purpose,
    )


class Bench:
    """A device and a clock; `said` is what it sent last."""

    def __init__(self, state=None, masker=None, homes=(EDGE,)):
        self.machine = DeviceMachine(
            state or DeviceState(7),
            homes,
            Streams(1),
            DeviceFacts(memory_mib=512),
            Eligibility(consented=True),
            masker,
        )
        self.now = 0
        self.effects = []

    def does(self, event, after=0):
        self.now += after
        self.effects = self.machine.handle(event, self.now)
        return self

    def gets(self, message, after=0):
        return self.does(Received(EDGE, message), after)

    @property
    def phase(self):
        return self.machine.state.phase

    @property
    def said(self):
        return [e.message for e in self.effects if isinstance(e, Send)]

    @property
    def sent(self):
        return [(e.to, e.message) for e in self.effects if isinstance(e, Send)]

    def of(self, kind):
        return [e for e in self.effects if isinstance(e, kind)]

    def timer(self, name):
        return next(e.at for e in reversed(self.of(SetTimer)) if e.name == name)

    def ignored(self):
        return [r for r in self.of(Record) if r.kind == "ignored"]

    # Ways to a phase.

    def ready(self):
        self.does(Started())
        window = RetryWindow(min_ms=1000, max_ms=2000)
        return self.gets(Accept(sequence=1, lease_ms=60_000, after_task=window))

    def fetching(self, **task):
        return self.ready().gets(make_task(**task))

    def training(self, **task):
        self.fetching(**task)
        self.does(BlobStored(BUNDLE, True))
        return self.does(BlobStored(WEIGHTS, True))

    def uploading(self, **task):
        self.training(**task)
        return self.does(ProgramFinished(1, Outcome(VECTOR)))
