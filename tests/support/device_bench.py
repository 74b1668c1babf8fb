"""A device's machine with a clock, and the ways to its phases."""

from __future__ import annotations

import numpy as np
from delian.core.privacy.secagg import masks
from delian.core.privacy.secagg.client import ClientSession, ClientState
from delian.core.privacy.secagg.client import Phase as SessionPhase
from delian.core.privacy.secagg.member_identity import SimulatedIdentity, simulated_coordinator
from delian.core.privacy.secagg.server import ServerSession, ServerState
from delian.core.privacy.secagg.signed_task import sign
from delian.core.protocol.ports import (
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
from delian.core.protocol.random_streams import Streams
from delian.core.wire.admission_pb2 import (
    Accept,
    DeviceFacts,
    Eligibility,
    RetryWindow,
)
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.round_pb2 import (
    COUNTED,
    TRAIN,
    RingPlan,
    Task,
    Upload,
    UploadAck,
)
from delian.core.wire.secure_pb2 import KeyBundle, SecurePlan
from delian.device.protocol.device_state import DevicePolicy
from delian.device.protocol.machine import DeviceMachine, DeviceState

EDGE = Node(Tier.EDGE, 2)
BUNDLE, WEIGHTS = b"b" * 32, b"w" * 32
VECTOR = np.arange(4, dtype=np.uint32)
IDENTITY = SimulatedIdentity(7, 1)
COORDINATOR = simulated_coordinator(1)
#: An owner who allows plain tasks.
PLAIN = DevicePolicy(secure_required=False)


SECURE = SecurePlan(suite=1, cohort_min=3, corrupt=0.1, dropout=0.1)


def make_task(
    round=1,
    attempt=1,
    run=1,
    time_ms=10_000,
    weights=WEIGHTS,
    bundle=BUNDLE,
    purpose=TRAIN,
    secure=None,
    signer=COORDINATOR,
    ends_s=60,
    frozen=(),
):
    task = Task(
        run=run,
        round=round,
        attempt=attempt,
        bundle=BlobRef(digest=bundle, size=100),
        weights=BlobRef(digest=weights, size=12),
        ring=RingPlan(clip=1, clients_max=10, bits=32, dimension=3),
        time_ms=time_ms,
        rng_key=b"roundkey",
        purpose=purpose,
        secure=secure,
        frozen=frozen,
    )
    sign(task, signer, ends_s)
    return task


class Neighbours:
    """A coordinator and two other devices, 3 and 9, with whom device 7 has a session."""

    def __init__(self, task, bundle, others=(3, 9)):
        self.server = ServerSession(ServerState(), SimulatedIdentity(0, 1))
        self.server.begin(task, [7, *others])
        self.others = {}
        for number in others:
            self.others[number] = ClientSession(ClientState(number), SimulatedIdentity(number, 1))
            secret = bytes([number]) * 32
            assert self.server.add_bundle(self.others[number].begin(task, secret))
        assert self.server.add_bundle(bundle)
        self.cohorts = dict(self.server.close_keys())
        self.length = task.ring.dimension + 1
        self.deliveries = self.told = self.asked = None

    def cohort(self):
        return self.cohorts[7]

    def delivery(self, shares):
        if self.deliveries is None:
            for number, session in self.others.items():
                assert self.server.add_shares(session.take_cohort(self.cohorts[number]))
            assert self.server.add_shares(shares)
            self.deliveries = dict(self.server.close_shares())
        return self.deliveries[7]

    def survivors(self):
        if self.told is None:
            self.masked = np.zeros(self.length, np.uint32)
            for number, session in self.others.items():
                session.take_delivery(self.deliveries[number])
                self.masked += session.mask(np.full(self.length, number, np.uint32))
            self.told = self.server.survivors([7, *self.others])
        return self.told[7]

    def request(self, consent):
        if self.asked is None:
            self.asked = {}
            consents = {n: s.take_survivors(self.told[n]) for n, s in self.others.items()}
            for one in (*consents.values(), consent):
                self.asked.update(self.server.add_consent(one))
        return self.asked[7]

    def unmasked(self, upload, unmask):
        """The sum that the coordinator reads in the end."""
        for number, session in self.others.items():
            assert self.server.add_unmask(session.take_unmask(self.asked[number]))
        assert self.server.add_unmask(unmask) and self.server.is_ready
        total = self.masked + np.frombuffer(upload.vector, "<u4")
        masks.add(total, self.server.keys(), 1)
        return total

    def next(self, session):
        """What the coordinator says to a device whose session is where it is; None: nothing."""
        if session.phase is SessionPhase.KEYS:
            return self.cohort()
        if session.phase is SessionPhase.SHARES:
            return self.delivery(session.shares)
        if session.phase is SessionPhase.MASKED and self.deliveries is not None:
            return self.survivors()
        if session.phase is SessionPhase.CONSENTED and self.told is not None:
            return self.request(session.consent)
        return None


class Bench:
    """A device and a clock; `said` is what it sent last."""

    def __init__(
        self, state=None, homes=(EDGE,), policy=None, identity=IDENTITY, key_secret=b"k" * 32
    ):
        self.machine = DeviceMachine(
            state or DeviceState(7),
            homes,
            Streams(1),
            DeviceFacts(memory_mib=512),
            Eligibility(consented=True),
            policy or PLAIN,
            b"s" * 32,
            identity,
            key_secret,
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

    # Ways to a phase of a session.

    @property
    def session(self):
        return self.machine.state.session

    def secured(self, **task):
        """It has a task whose updates are masked; `near` are its neighbours."""
        self.fetching(secure=SECURE, **task)
        (bundle,) = [m for m in self.said if isinstance(m, KeyBundle)]
        self.near = Neighbours(self.machine.state.task, bundle)
        return self

    def hears_next(self, after=0):
        return self.gets(self.near.next(self.session), after)

    def sealing(self, **task):
        """It has trained before its neighbours' shares came."""
        self.secured(**task).hears_next()
        self.does(BlobStored(BUNDLE, True)).does(BlobStored(WEIGHTS, True))
        return self.does(ProgramFinished(1, Outcome(VECTOR)))

    def masked(self, **task):
        """It uploads its masked update."""
        self.sealing(**task).hears_next()
        (self.upload,) = [m for m in self.said if isinstance(m, Upload)]
        return self

    def unmasking(self, **task):
        self.masked(**task)
        state = self.machine.state
        name = {"run": state.task.run, "round": state.task.round, "attempt": state.task.attempt}
        return self.gets(UploadAck(**name, device=7, status=COUNTED))

    def uploading(self, **task):
        self.training(**task)
        return self.does(ProgramFinished(1, Outcome(VECTOR)))
