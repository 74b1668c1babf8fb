"""A coordinator that says what it likes, with as many corrupt devices as the plan bears: what it
holds in the end never makes both secrets of one honest device.

With both, it could take all masks off that device's update. With c corrupt neighbours of k, shares
of a device's two secrets number at most 2c + (k - c): the corrupt ones have both kinds, the honest
ones give one. So 2t > k + c is enough, as long as no device can be made to give both.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from delian.core.privacy.secagg import transcript
from delian.core.privacy.secagg.client import ClientSession, ClientState
from delian.core.privacy.secagg.member_identity import SimulatedIdentity
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.protocol import snapshot
from delian.core.wire.secure_pb2 import Signed, Survivors, UnmaskRequest
from support.secure_federation import SEED, Federation, changed, make_task

SELF, KEY = "self-mask seed", "mask key"


class Coordinator:
    """Runs the keys honestly, as it must for its devices to go on, and then does as it likes."""

    def __init__(self, seed: int, count: int, corrupt: float) -> None:
        self.random = random.Random(seed)
        self.federation = Federation(list(range(count)), make_task(corrupt=corrupt))
        cohorts = self.federation.give_keys()
        self.layout = self.federation.server._layout
        self.corrupt = set(self.random.sample(range(count), int(corrupt * count)))
        self.honest = [d for d in range(count) if d not in self.corrupt]
        self.deliveries = self.federation.give_shares(cohorts)
        self.consents: dict[bytes, dict[int, bytes]] = {}
        self.told: dict[int, bytes] = {}
        #: (owner, which secret) -> holders whose share is known.
        self.ledger: dict[tuple[int, str], set[int]] = {}
        for holder in self.corrupt:
            for owner in self.layout.neighbours(holder):
                self.learns(owner, SELF, holder)
                self.learns(owner, KEY, holder)

    def learns(self, owner: int, secret: str, holder: int) -> None:
        self.ledger.setdefault((owner, secret), set()).add(holder)

    def deliver(self, withheld: float) -> None:
        """All shares; to a part of the devices as few as they put up with."""
        for device in self.honest:
            delivery = self.deliveries[device]
            shares = list(delivery.shares)
            if self.random.random() < withheld:
                kept = self.random.randint(self.layout.threshold - 1, len(shares))
                shares = sorted(self.random.sample(shares, kept), key=lambda s: s.index)
            self.tries(device, changed(delivery, shares=shares))
            client = self.federation.clients[device]
            if client.state.phase == "masking":
                client.mask(self.federation.update(device))

    def name_survivors(self) -> None:
        """Up to three different sets, each told to some devices, some told two of them."""
        count = len(self.federation.devices)
        missing = max(1, count // 10)
        sets = []
        for _ in range(self.random.choice((1, 1, 2, 3))):
            gone = self.random.sample(range(count), self.random.randint(0, missing))
            sets.append(transcript.bitmap([i for i in range(count) if i not in gone], count))
        for device in self.honest:
            for members in self.random.sample(sets, self.some(len(sets))):
                message = Survivors(run=7, round=3, attempt=1, device=device, members=members)
                consent = self.tries(device, message)
                if consent is not None:
                    self.told[device] = members
                    self.consents.setdefault(members, {})[device] = consent.signature
        for members in sets:
            self.sign_as_corrupt(members)

    def some(self, most: int) -> int:
        """Nearly always one, at times two."""
        return min(most, 1 + (self.random.random() < 0.1))

    def sign_as_corrupt(self, members: bytes) -> None:
        for device in self.corrupt:
            signed = transcript.signed_consent(self.layout.binding, device, members)
            signature = SimulatedIdentity(device, SEED).sign(signed)
            self.consents.setdefault(members, {})[device] = signature

    def ask(self) -> None:
        """For whatever the consents that it has are good for; sometimes with those of another."""
        for device in self.honest:
            members = self.told.get(device, b"")
            if self.random.random() < 0.1:
                members = self.random.choice(sorted(self.consents))
            self.ask_one(device, members)

    def ask_one(self, device: int, members: bytes) -> None:
        near = self.layout.neighbours(device)
        alive = transcript.indices(members, len(self.federation.devices)) if members else []
        known = self.consents.get(members, {})
        signed = [Signed(index=i, signature=known[i]) for i in near if i in alive and i in known]
        request = UnmaskRequest(run=7, round=3, attempt=1, device=device, consents=signed)
        answer = self.tries(device, request)
        if answer is None:
            return
        alive = transcript.indices(self.told[device], len(self.federation.devices))
        for share in answer.shares:
            self.learns(share.index, SELF if share.index in alive else KEY, device)

    def tries(self, device: int, message):
        try:
            return self.federation.down(message)
        except SecureError:
            return None

    def broken(self) -> list[int]:
        """Honest devices of which both secrets can be made."""
        t = self.layout.threshold
        return [
            d
            for d in self.honest
            if all(len(self.ledger.get((d, secret), ())) >= t for secret in (SELF, KEY))
        ]

    def made(self) -> Counter[str]:
        """How many secrets of honest devices can be made, of either kind."""
        t = self.layout.threshold
        ledger = self.ledger.items()
        return Counter(kind for (d, kind), held in ledger if d in self.honest and len(held) >= t)


def attack(seed: int, count: int, corrupt: float) -> Coordinator:
    coordinator = Coordinator(seed, count, corrupt)
    coordinator.deliver(withheld=coordinator.random.choice((0, 0.3)))
    coordinator.name_survivors()
    coordinator.ask()
    return coordinator


@pytest.mark.parametrize(("count", "corrupt", "runs"), [(6, 0.2, 30), (10, 0.3, 30), (32, 0.1, 8)])
def test_no_schedule_gives_both_secrets_of_an_honest_device(count, corrupt, runs):
    made: Counter[str] = Counter()
    for seed in range(runs):
        coordinator = attack(seed, count, corrupt)
        assert coordinator.broken() == []
        made += coordinator.made()
    assert made[SELF] > 0 and made[KEY] > 0, "the coordinator does get what it may have"


@pytest.mark.parametrize("first", range(2, 8))
def test_devices_cannot_be_split_into_two_sums(first):
    """Ten devices, three of them corrupt and in both sums, the honest ones told different sets."""
    coordinator = Coordinator(5, 10, 0.3)
    coordinator.deliver(withheld=0)
    groups = coordinator.honest[:first], coordinator.honest[first:]
    sums = [transcript.bitmap(sorted({*group, *coordinator.corrupt}), 10) for group in groups]
    for group, members in zip(groups, sums, strict=True):
        coordinator.sign_as_corrupt(members)
        for device in group:
            message = Survivors(run=7, round=3, attempt=1, device=device, members=members)
            consent = coordinator.tries(device, message)
            if consent is not None:
                coordinator.told[device] = members
                coordinator.consents[members][device] = consent.signature
    for device, members in coordinator.told.items():
        coordinator.ask_one(device, members)
    ledger = coordinator.ledger.items()
    made = {owner for (owner, kind), held in ledger if kind == SELF and len(held) >= 7}
    read = [set(group) for group in groups if made.intersection(group)]
    # t = 7: with three that sign everything, it takes five honest ones to agree; two fives there
    # are not. Who agrees may be one sum.
    assert read == [set(group) for group in groups if len(group) >= 5]
    assert coordinator.layout.threshold == 7 and coordinator.broken() == []


def test_a_device_that_forgot_what_it_signed_would_be_the_coordinator_s_gain():
    """The ledger finds it: this is why a device's state is durable before its answer leaves."""
    coordinator = Coordinator(1, 10, 0.3)
    coordinator.deliver(withheld=0)
    federation = coordinator.federation
    before = {d: snapshot.dump(federation.clients[d].state) for d in coordinator.honest}
    victim = coordinator.honest[0]
    everybody = set(range(10))
    for alive in (everybody, everybody - {victim}):
        for device in coordinator.honest:
            state = snapshot.load(ClientState, before[device])
            federation.clients[device] = ClientSession(state, SimulatedIdentity(device, SEED))
        members = transcript.bitmap(sorted(alive), 10)
        coordinator.sign_as_corrupt(members)
        for device in alive & set(coordinator.honest):
            message = Survivors(run=7, round=3, attempt=1, device=device, members=members)
            consent = federation.down(message)
            coordinator.told[device] = members
            coordinator.consents[members][device] = consent.signature
        for device in alive & set(coordinator.honest):
            coordinator.ask_one(device, members)
    assert coordinator.broken() == [victim]
