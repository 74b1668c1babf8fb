"""A coordinator's bench whose devices are there: real sessions of secure aggregation, which speak
through the edges 1 and 2.
"""

from __future__ import annotations

import numpy as np
from delian.core.privacy.secagg import masks
from delian.core.privacy.secagg.client import ClientSession, ClientState
from delian.core.privacy.secagg.member_identity import SimulatedIdentity
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.protocol.ports import (
    Outcome,
    ProgramFinished,
    RunProgram,
    Send,
)
from delian.core.wire.round_pb2 import EdgeTask, RoundClosed
from delian.core.wire.secure_pb2 import (
    Cohort,
    Delivery,
    SecurePlan,
    Survivors,
    UnmaskRequest,
)

from support import run_bench as _bench

SEED = 1
SECURE = SecurePlan(suite=1, cohort_min=3, corrupt=0.1, dropout=0.1)
DOWN = (Cohort, Delivery, Survivors, UnmaskRequest)


class SecureBench(_bench.Bench):
    """`crew`: (round, attempt, device) -> its session. `mute`: devices that say nothing.
    `elsewhere`: device -> the edge that it goes through. `over`: devices that were told that it is
    over. `notes`: records of sessions.
    """

    def __init__(self, *arguments, **changes):
        if not arguments:
            changes = {"identity": SimulatedIdentity(0, SEED), "secure": SECURE, **changes}
        super().__init__(*arguments, **changes)
        self.crew, self.mute, self.elsewhere = {}, set(), {}
        self.over, self.out, self.notes, self.programs = [], [], [], []
        self.said_by, self.homes = {}, {}

    def again(self, after=0):
        other = super().again(after)
        for name in ("crew", "mute", "elsewhere", "over", "out", "said_by", "homes", "now"):
            setattr(other, name, getattr(self, name))
        return other.speak()

    def does(self, event, after=0):
        super().does(event, after)
        self.notes += self.records("session")
        self.programs += [p for p in self.of(RunProgram) if p.program == "unmask"]
        return self

    # What devices say.

    def speak(self):
        """Lets devices answer what they were told, until nobody has anything to say."""
        words = self._heard(self.effects)
        while words:
            edge, word = words.pop(0)
            if word.device not in self.mute:
                self.hears(self.elsewhere.get(word.device, edge), word)
                words += self._heard(self.effects)
        return self

    def _heard(self, effects):
        """What devices answer to some effects, with the edges that pass it on."""
        said = []
        for effect in effects:
            if not isinstance(effect, Send):
                continue
            message, edge = effect.message, effect.to.number
            if isinstance(message, EdgeTask):
                said += self._tasked(message, edge)
            elif isinstance(message, DOWN):
                said += self._told(message, edge)
            elif isinstance(message, RoundClosed) and message.HasField("device"):
                self.over.append(message.device)
        return said

    def _tasked(self, message, edge):
        said = []
        for device in message.devices:
            name = (message.task.round, message.task.attempt, device)
            if name not in self.crew:
                state = ClientState(device)
                session = ClientSession(state, SimulatedIdentity(device, SEED))
                self.crew[name] = session
                self.homes[device] = edge
                said.append((edge, session.begin(message.task, bytes([device]) * 32)))
        return said

    def _told(self, message, edge):
        session = self.crew[message.round, message.attempt, message.device]
        take = {
            Cohort: session.take_cohort,
            Delivery: session.take_delivery,
            Survivors: session.take_survivors,
            UnmaskRequest: session.take_unmask,
        }[type(message)]
        try:
            answer = take(message)
        except SecureError as fault:
            self.out.append((message.device, fault.reason))
            return []
        return [] if answer is None else [(edge, answer)]

    def poll(self, device, at=None):
        """A device says its last word again."""
        round, attempt = at or self.at
        word = self.crew[round, attempt, device].waiting
        return self.hears(self.elsewhere.get(device, self.homes[device]), word).speak()

    # Ways.

    def collecting(self, **kw):
        """Both edges tasked; all devices that speak have their neighbours' shares."""
        self.waiting().hello(2, [20, 21, 22, 23])
        self.one, self.two = self.selected[1], self.selected[2]
        return self.speak()

    def masked(self, device, vector, at=None):
        round, attempt = at or self.at
        return self.crew[round, attempt, device].mask(vector)

    def sums(self, without=(), vectors=None):
        """Every edge's honest sum; some devices have vanished."""
        round, attempt = self.at
        shares = {e: list(s.devices) for e, s in self.state.open[-1].shares.items()}
        for number, devices in shares.items():
            there = [d for d in devices if d not in without]
            vector = self.vector_of if vectors is None else vectors
            updates = {d: self.masked(d, vector(d), (round, attempt)) for d in there}
            self.sum(number, updates, at=(round, attempt))
        return self

    @staticmethod
    def vector_of(device):
        return _bench.vector(device, -device, 7)

    def opened(self):
        """The program that takes the masks out has run."""
        total, keys, suite = self.programs[-1].arguments
        plain = np.array(total)
        masks.add(plain, keys, suite)
        return self.does(ProgramFinished(self.programs[-1].ticket, Outcome(plain)))

    def unmasking(self, without=()):
        """The sums are in, and those who speak have given their shares."""
        return self.collecting().sums(without).speak()


class EightBench(SecureBench):
    """Eight devices, all of whom are tasked: a cohort of six, and a third more."""

    def __init__(self, *arguments, **changes):
        super().__init__(*arguments, **{"cohort": 6, "over_selection": 1.3, **changes})


def everybody(bench):
    return sorted([*bench.one, *bench.two])
