"""A coordinator with a clock, two edges 1 and 2, and the ways to a run's phases. Devices 10.. are
behind edge 1, 20.. behind edge 2.
"""

from __future__ import annotations

import numpy as np
from delian.cloud.protocol.coordinator_state import CoordinatorPolicy, CoordinatorState
from delian.cloud.protocol.machine import Coordinator, restore
from delian.core.learning.metrics import LOSS_MAX, QUERIES_MAX, metrics_plan
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.protocol.ports import (
    SECOND,
    NewModel,
    Node,
    Ordered,
    ProgramFinished,
    Received,
    Record,
    RunProgram,
    Send,
    SetTimer,
    Started,
    Tier,
    TimerFired,
)
from delian.core.wire import round_pb2
from delian.core.wire.admission_pb2 import Away, EdgeHello
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import BUFFERED, PlanMessage, RunOrder
from delian.core.wire.round_pb2 import EdgeProgress, EdgeSum

RING = RingPlan(clip=1e6, clients_max=16, dimension=3)
BUNDLE = BlobRef(digest=b"b" * 32, size=100)
WEIGHTS = BlobRef(digest=b"w" * 32, size=12)
NEXT = BlobRef(digest=b"v" * 32, size=12)
HALF = int(RING.weight_scale) // 2

ROUNDS = {
    "rounds": 2,
    "cohort": 4,
    "over_selection": 1.5,
    "reports_min": 2,
    "attempts_max": 3,
    "timeout_ms": 100_000,
    "margin_ms": 10_000,
    "wait_ms": 60_000,
    "rest_ms": 5_000,
    "seed": 1,
}
WAVES = {
    **ROUNDS,
    "mode": BUFFERED,
    "rounds": 3,
    "over_selection": 1.0,
    "buffer": 4,
    "concurrency": 8,
    "staleness_max": 2,
}


def edge(number):
    return Node(Tier.EDGE, number)


def vector(*steps):
    """An update in the ring, of weight one half."""
    return np.array([*steps, HALF], np.int64).astype(np.uint32)


def blob(letter):
    return BlobRef(digest=letter.encode() * 32, size=12)


def plan(**changes):
    ring = round_pb2.RingPlan(
        clip=RING.clip, clients_max=RING.clients_max, bits=32, dimension=RING.dimension
    )
    fields = {"bundle": BUNDLE, "weights": WEIGHTS, "ring": ring, **ROUNDS, **changes}
    return PlanMessage(**fields)


class Spy(dict):
    """A table that notes which of its places were looked up."""

    def __init__(self, rows):
        super().__init__(rows)
        self.taken = set()

    def get(self, place, default=None):
        if place in self:
            self.taken.add(place)
        return super().get(place, default)


class Bench:
    """`run`: the number of the run that messages are about, where nothing else is said."""

    def __init__(self, state=None, identity=None, policy=None, run=1, **changes):
        self.policy = policy or CoordinatorPolicy()
        self.machine = Coordinator(state or CoordinatorState(), identity, self.policy)
        self.identity = identity
        self.now = 0
        self.effects = []
        self.hellos = 0
        self.run = run
        self.plan = plan(**changes)

    # What happens.

    def does(self, event, after=0):
        self.now += after
        self.effects = self.machine.handle(event, self.now)
        return self

    def hears(self, number, message, after=0):
        return self.does(Received(edge(number), message), after)

    def fires(self, name, after=0, run=None):
        return self.does(TimerFired(f"run/{run or self.run}/{name}"), after)

    def orders(self, kind, value=True, run=None):
        return self.does(Ordered(RunOrder(run=run or self.run, **{kind: value})))

    def submit(self, run=None, **changes):
        message = PlanMessage()
        message.CopyFrom(self.plan)
        for name, value in changes.items():
            setattr(message, name, value)
        return self.orders("submit", message, run)

    def started(self):
        return self.does(Started()).submit()

    def hello(
        self,
        number,
        ready,
        incarnation=1,
        asks_pace=False,
        told_draining=False,
        pace=None,
        away=None,
        after=0,
    ):
        """pace: the number of the one that the edge keeps; None: the newest, or what it asks.

        away: RejectReason -> devices that are there and not ready.
        """
        self.hellos += 1
        if pace is None:
            pace = 0 if asks_pace else self.machine.state.paced
        return self.hears(
            number,
            EdgeHello(
                edge=number,
                incarnation=incarnation,
                sequence=self.hellos,
                protocol=1,
                ready=ready,
                asks_pace=asks_pace,
                told_draining=told_draining,
                pace=pace,
                away=[Away(reason=r, devices=devices) for r, devices in (away or {}).items()],
            ),
            after,
        )

    def progress(self, number, counted, at=None, part=0, run=None):
        round, attempt = at or self.at
        return self.hears(
            number,
            EdgeProgress(
                run=run or self.run,
                round=round,
                attempt=attempt,
                edge=number,
                counted=counted,
                part=part,
            ),
        )

    def sum(self, number, vectors, failures=(), at=None, run=None, **changes):
        """The honest sum of an edge whose devices sent these vectors."""
        round, attempt = at or self.at
        total = sum(vectors.values(), np.uint32(0))
        fields = {
            "run": run or self.run,
            "round": round,
            "attempt": attempt,
            "edge": number,
            "devices": sorted(vectors),
            "count": len(vectors),
            "sum": total.tobytes() if vectors else b"",
            "failures": failures,
            **changes,
        }
        return self.hears(number, EdgeSum(**fields))

    def updated(self, weights=NEXT, memory=None):
        return self.does(ProgramFinished(self.state.ticket, NewModel(weights, memory)), SECOND)

    def again(self, after=SECOND):
        """The coordinator as it is after a restart."""
        other = type(self)(restore(self.machine.snapshot()), self.identity, self.policy, self.run)
        other.plan = self.plan
        other.now, other.hellos = self.now, self.hellos
        return other.does(Started(), after)

    # What is there.

    @property
    def state(self):
        return self.machine.state.runs[self.run]

    @property
    def ended(self):
        return self.machine.state.ended[self.run]

    @property
    def phase(self):
        runs = self.machine.state.runs
        return runs[self.run].phase if self.run in runs else self.ended.phase

    @property
    def at(self):
        """The newest attempt that is out, or what the next will be."""
        state = self.state
        if state.open:
            return state.open[-1].round, state.open[-1].attempt
        return state.round, state.attempt

    @property
    def total(self):
        return self.state.open[0].total

    @property
    def selected(self):
        """By edge, of the newest attempt that is out."""
        return {e: s.devices for e, s in self.state.open[-1].shares.items()}

    def said(self, number, kind=None):
        return [
            e.message
            for e in self.effects
            if isinstance(e, Send)
            and e.to == edge(number)
            and (kind is None or type(e.message) is kind)
        ]

    def of(self, kind):
        return [e for e in self.effects if isinstance(e, kind)]

    def timer(self, name, run=None):
        full = f"run/{run or self.run}/{name}"
        return next(e.at for e in reversed(self.of(SetTimer)) if e.name == full)

    def records(self, kind):
        return [r.fields for r in self.of(Record) if r.kind == kind]

    def facts(self):
        (fields,) = self.records("round")
        return fields

    def ignored(self):
        return self.records("ignored")

    def program(self):
        (run,) = self.of(RunProgram)
        return run

    # Ways to a phase of a run in rounds.

    def waiting(self):
        self.started()
        self.fires("rest", after=self.timer("rest") - self.now)
        self.hello(1, [10, 11, 12, 13])
        return self

    def collecting(self):
        """Both edges tasked; `one` and `two` are the devices selected behind them."""
        self.waiting().hello(2, [20, 21, 22, 23])
        self.one, self.two = self.selected[1], self.selected[2]
        return self

    def aggregating(self):
        self.collecting().sum(1, {d: vector(1, 2, 3) for d in self.one})
        return self.sum(2, {d: vector(-1, 0, 5) for d in self.two})

    def paused(self):
        return self.waiting().orders("pause")

    def rested(self):
        """All devices are back, and the pause is over."""
        self.hello(1, [10, 11, 12, 13]).hello(2, [20, 21, 22, 23])
        return self.fires("rest", after=5 * SECOND)

    def evaluating(self):
        """The first model is judged, by devices behind both edges."""
        self.aggregating().updated().rested()
        self.one, self.two = self.selected[1], self.selected[2]
        return self


def metrics_of(bench, devices, loss):
    """What devices say in an evaluation, each of a hundred examples."""
    cohort, factor = bench.plan.evaluation_cohort, bench.plan.over_selection
    ring, share = metrics_plan(round(cohort * factor)), 100 / QUERIES_MAX
    means = min(2 * loss, LOSS_MAX), 0.25, loss, 0.75
    steps = [round(v * share * ring.scale) for v in means]
    said = np.array([*steps, round(share * ring.weight_scale)], np.int64).astype(np.uint32)
    return dict.fromkeys(devices, said)


def judged(bench, loss):
    """The sums of an evaluation in which every device says the same."""
    for number, chosen in ((1, bench.one), (2, bench.two)):
        bench.sum(number, metrics_of(bench, chosen, loss))
    return bench
