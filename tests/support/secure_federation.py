"""A coordinator and devices joined directly, without tiers or transport: messages wait in one heap
and are handed over in the order that a test, or a seeded shuffle, wants.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from delian.core.privacy.secagg import masks, transcript
from delian.core.privacy.secagg.client import ClientSession, ClientState, Policy
from delian.core.privacy.secagg.cohort import layout
from delian.core.privacy.secagg.logged import ServedLog
from delian.core.privacy.secagg.member_identity import SimulatedIdentity
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.privacy.secagg.server import ServerSession, ServerState
from delian.core.privacy.secagg.simulated_log import SimulatedLog
from delian.core.privacy.secagg.transcript import Session
from delian.core.protocol import snapshot
from delian.core.wire.round_pb2 import Task
from delian.core.wire.secure_pb2 import (
    Cohort,
    Consent,
    Delivery,
    KeyBundle,
    SealedShares,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
)

SEED = 11
TAKERS = {
    Cohort: "take_cohort",
    Delivery: "take_delivery",
    Survivors: "take_survivors",
    UnmaskRequest: "take_unmask",
}
ADDERS = {
    KeyBundle: "add_bundle",
    SealedShares: "add_shares",
    Consent: "add_consent",
    UnmaskShares: "add_unmask",
}
#: The steps at which a device can fall silent, in order.
STEPS = ("keys", "shares", "masks", "consent", "unmask")


def make_task(**changes: Any) -> Task:
    """A task of a small model; names of a field of Task, or of its SecurePlan or RingPlan."""
    task = Task(run=7, round=3, attempt=1, time_ms=1000, rng_key=bytes(8))
    task.weights.digest = b"w" * 32
    task.bundle.digest = b"b" * 32
    task.ring.clip, task.ring.clients_max, task.ring.bits, task.ring.dimension = 1.0, 1000, 32, 16
    task.secure.suite, task.secure.cohort_min = 1, 3
    task.secure.corrupt, task.secure.dropout = 0.1, 0.1
    for name, value in changes.items():
        if name in ("weights", "bundle"):
            getattr(task, name).digest = value
            continue
        parts = (task, task.secure, task.ring)
        part = next(p for p in parts if name in p.DESCRIPTOR.fields_by_name)
        setattr(part, name, value)
    return task


def master_of(device: int, seed: int = SEED) -> bytes:
    return random.Random(f"{seed} {device}").randbytes(32)


def update_of(device: int, length: int, seed: int = SEED) -> np.ndarray:
    drawn = np.random.default_rng([seed, device]).integers(0, 2**32, length, dtype=np.uint64)
    return drawn.astype(np.uint32)


@dataclass
class Federation:
    """Some devices, the coordinator, and what they have said to each other.

    restored: both sides are written down and read again before every message. log: the certificate
    log that the coordinator gives proofs from.
    """

    devices: list[int]
    task: Task = field(default_factory=make_task)
    seed: int = SEED
    policy: Policy = field(default_factory=Policy)
    restored: bool = False
    log: SimulatedLog | None = None
    server: ServerSession = field(init=False)
    clients: dict[int, ClientSession] = field(init=False)
    masked: dict[int, np.ndarray] = field(default_factory=dict)
    said: list[tuple[int, str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = self.serving(ServerState())
        self.clients = {d: self.client(d) for d in self.devices}
        self.server.begin(self.task, self.devices)

    def serving(self, state: ServerState) -> ServerSession:
        log = None if self.log is None else ServedLog(self.log, self.log.head())
        return ServerSession(state, SimulatedIdentity(0, SEED), log)

    def client(self, device: int) -> ClientSession:
        return ClientSession(ClientState(device), SimulatedIdentity(device, SEED), self.policy)

    @property
    def length(self) -> int:
        return self.task.ring.dimension + 1

    def update(self, device: int) -> np.ndarray:
        return update_of(device, self.length, self.seed)

    # ------------------------------------------------------------ one message

    def up(self, message: Any) -> Any:
        """A message to the coordinator; what it gives."""
        if self.restored:
            state = snapshot.load(ServerState, snapshot.dump(self.server.state))
            self.server = self.serving(state)
        self.said.append((message.device, "up", message))
        return getattr(self.server, ADDERS[type(message)])(message)

    def down(self, message: Any, device: int | None = None) -> Any:
        """A message to a device; what it answers."""
        device = message.device if device is None else device
        self._restore(device)
        self.said.append((device, "down", message))
        return getattr(self.clients[device], TAKERS[type(message)])(message)

    def _restore(self, device: int) -> None:
        if self.restored:
            state = snapshot.load(ClientState, snapshot.dump(self.clients[device].state))
            self.clients[device] = ClientSession(
                state, SimulatedIdentity(device, SEED), self.policy
            )

    # ------------------------------------------------------------ one step each

    def give_keys(self, devices: Iterable[int] | None = None) -> dict[int, Cohort]:
        for device in self.devices if devices is None else devices:
            self.up(self.clients[device].begin(self.task, master_of(device, self.seed)))
        return self.server.close_keys()

    def give_shares(self, cohorts: dict[int, Cohort], but: Iterable[int] = ()) -> Any:
        for device in cohorts.keys() - set(but):
            self.up(self.down(cohorts[device]))
        return self.server.close_shares()

    def give_updates(self, deliveries: dict[int, Delivery], but: Iterable[int] = ()) -> Any:
        for device in sorted(deliveries.keys() - set(but)):
            self.down(deliveries[device])
            self._restore(device)
            self.masked[device] = self.clients[device].mask(self.update(device))
        return self.server.survivors(sorted(self.masked))

    def give_consents(self, survivors: dict[int, Survivors], but: Iterable[int] = ()) -> Any:
        requests = {}
        for device in sorted(survivors.keys() - set(but)):
            requests.update(self.up(self.down(survivors[device])))
        return requests

    def give_unmasks(self, requests: dict[int, UnmaskRequest], but: Iterable[int] = ()) -> None:
        for device in sorted(requests.keys() - set(but)):
            self.up(self.down(requests[device]))

    def run(self, silent: dict[int, str] | None = None) -> np.ndarray:
        """The whole session; who is in `silent` says nothing from that step on. The sum."""
        gone: set[int] = set()

        def until(step: str) -> set[int]:
            gone.update(d for d, s in (silent or {}).items() if s == step)
            return gone

        cohorts = self.give_keys([d for d in self.devices if d not in until("keys")])
        deliveries = self.give_shares(cohorts, until("shares"))
        survivors = self.give_updates(deliveries, until("masks"))
        requests = self.give_consents(survivors, until("consent"))
        self.give_unmasks(requests, until("unmask"))
        return self.unmasked()

    def unmasked(self) -> np.ndarray:
        """The sum of what was masked without the masks; raises SecureError when it cannot be."""
        if not self.server.is_ready:
            raise SecureError("few", self.server.explain())
        total = self.total(self.masked.values())
        masks.add(total, self.server.keys(), self.task.secure.suite)
        return total

    def expected(self, devices: Iterable[int] | None = None) -> np.ndarray:
        """The sum of the updates themselves."""
        members = self.masked if devices is None else devices
        return self.total(self.update(device) for device in members)

    def total(self, vectors: Iterable[np.ndarray]) -> np.ndarray:
        total = np.zeros(self.length, np.uint32)
        for vector in vectors:
            total += vector
        return total


class Shuffled:
    """A session in which messages wait, come in any order, and may come again at any later time.

    A device says what it waits to say again as often as the coordinator answers; steps are closed
    when nothing is under way. silent: device -> the step from which on it says nothing.
    """

    def __init__(self, federation: Federation, seed: int, silent: dict[int, str]) -> None:
        self.federation = federation
        self.random = random.Random(seed)
        self.silent = silent
        self.step = STEPS[0]
        self.waiting: list[tuple[bool, Any]] = []  # (whether it goes up, message)
        self.old: list[tuple[bool, Any]] = []
        self.answers: dict[tuple[int, str], bytes] = {}

    def says(self, device: int, step: str) -> bool:
        last = self.silent.get(device)
        return last is None or STEPS.index(step) < STEPS.index(last)

    def run(self) -> np.ndarray:
        federation = self.federation
        for device, client in federation.clients.items():
            if self.says(device, "keys"):
                self.say(client.begin(federation.task, master_of(device)))
        self.settle()
        self.push(federation.server.close_keys())
        self.settle()
        self.push(federation.server.close_shares())
        self.settle()
        for device, client in federation.clients.items():
            if client.state.phase == "masking" and self.says(device, "masks"):
                federation.masked[device] = client.mask(federation.update(device))
        self.push(federation.server.survivors(federation.masked))
        self.settle()
        return federation.unmasked()

    def say(self, message: Any) -> None:
        self.waiting.append((True, message))

    def push(self, messages: dict[int, Any]) -> None:
        self.waiting.extend((False, message) for message in messages.values())

    def settle(self) -> None:
        """Hands messages over until none waits. One in four comes a second time, now or later."""
        while self.waiting:
            entry = self.waiting.pop(self.random.randrange(len(self.waiting)))
            if self.random.random() < 0.25:
                self.old.append(entry)
            self.hand_over(*entry)
            if self.old and self.random.random() < 0.3:
                self.hand_over(*self.old[self.random.randrange(len(self.old))])

    def hand_over(self, goes_up: bool, message: Any) -> None:
        federation = self.federation
        if goes_up:
            given = federation.up(message)
            if isinstance(given, dict):
                self.push(given)
                return
            answer = federation.server.answer(message.device)
            if answer is not None and self.random.random() < 0.2:
                self.waiting.append((False, answer))
            return
        steps = {Cohort: "shares", Delivery: "masks", Survivors: "consent", UnmaskRequest: "unmask"}
        step = steps[type(message)]
        if not self.says(message.device, step):
            return
        answer = federation.down(message)
        if answer is not None:
            encoded = answer.SerializeToString(deterministic=True)
            assert self.answers.setdefault((message.device, step), encoded) == encoded
            self.say(answer)


# ---------------------------------------------------------------- what a bad coordinator says


def cohort_of(
    task: Task, bundles: Iterable[KeyBundle], device: int, devices: Iterable[int] | None = None
) -> Cohort:
    """The Cohort that tells `device` of these members, in this order; all else is as it must be.

    devices: the members' numbers as it states them; None: those in the bundles.
    """
    session, members = Session.of(task), list(bundles)
    leaves = b"".join(map(transcript.leaf, members))
    said = [b.device for b in members] if devices is None else list(devices)
    numbers = transcript.numbers(said)
    index = next(i for i, bundle in enumerate(members) if bundle.device == device)
    try:
        near = layout(session, leaves, numbers).neighbours(index)
    except SecureError:  # no cohort at all: as in a complete graph
        near = [other for other in range(len(members)) if other != index]
    message = Cohort(run=task.run, round=task.round, attempt=task.attempt, device=device)
    message.leaves, message.devices, message.index = leaves, numbers, index
    message.indices.extend(near)
    message.neighbours.extend(members[other] for other in near)
    return message


def bundle_of(device: int, task: Task | None = None, **changes: Any) -> KeyBundle:
    """The keys of a device that holds the seed's identity; `changes` are made before it signs."""
    task = task or make_task()
    session = Session.of(task)
    identity = SimulatedIdentity(device, SEED)
    client = ClientSession(ClientState(device), identity)
    bundle = KeyBundle()
    bundle.CopyFrom(client.begin(task, master_of(device)))
    for name, value in changes.items():
        setattr(bundle, name, value)
    if "signature" not in changes:
        bundle.signature = identity.sign(
            transcript.signed_bundle(session, device, bundle.sealing_key, bundle.mask_key)
        )
    return bundle


def changed(message: Any, **changes: Any) -> Any:
    """A copy with some fields set, lists replaced."""
    copy = type(message)()
    copy.CopyFrom(message)
    for name, value in changes.items():
        if isinstance(value, list):
            copy.ClearField(name)
            getattr(copy, name).extend(value)
        else:
            setattr(copy, name, value)
    return copy
