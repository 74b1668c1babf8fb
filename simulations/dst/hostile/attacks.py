"""Attacks: what a coordinator or an edge that is not to be trusted does with what it sends.

The node's own machine goes on as ever; the attacker stands between it and the network, as the
operator of the node could. It reads all that comes and goes, and changes what leaves for devices in
the first few sessions that it sees, in one way: so each seed shows what one behaviour leads to, and
that honest devices go on when it is over. It has the keys of some devices too (`colluders`), no
more than the plan bears.

A hostile coordinator accepts every signature (`Credulous`): what ends a session must be what honest
devices check. Whatever it does, an honest device gives shares for one set of survivors, one share a
neighbour, and no update without masks: that is the auditor's to see.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ....core.privacy.secagg import messages, transcript
from ....core.privacy.secagg.cohort import Layout, layout
from ....core.privacy.secagg.member_identity import SimulatedIdentity, simulated_coordinator
from ....core.privacy.secagg.secure_errors import SecureError
from ....core.privacy.secagg.transcript import Session
from ....core.protocol.ports import CLOUD, SECOND, Node, Tier
from ....core.wire import secure_pb2
from ....core.wire.journal_pb2 import DeniedVersion
from ....core.wire.round_pb2 import EdgeTask, Task
from ..oracles.edge_book import Name, name_of
from . import log_attacks

if TYPE_CHECKING:
    from ..simulated_node import Host
    from ..world import World

#: Messages to one device that are kept for being said again later.
_KEPT = 12


class Attack(StrEnum):
    """What is done. A test says of each what honest devices answer."""

    NO_MASKS = "the plan without masks"
    SMALL_PLAN = "a plan for smaller sums than the owner allows"
    LARGE_NOISE_PLAN = "noise that was planned for more devices than a sum may have"
    OTHER_MODEL = "another model for some"
    OTHER_PLAN = "another plan for some"
    OTHER_KEY = "another round key for some"
    UNSIGNED_KEYS = "keys without a signature"
    FOREIGN_KEYS = "a colluder's keys under another device's number"
    OLD_KEYS = "keys of an earlier attempt"
    TWO_SEATS = "a colluder's certificate in two places"
    SMALL_COHORT = "a cohort of three"
    SECOND_ROSTER = "another list of members after the first"
    TWO_ROSTERS = "another list of members for some"
    WITHHELD_SHARES = "shares of few neighbours"
    TWO_SURVIVORS = "different survivors for different devices"
    SECOND_SURVIVORS = "two sets of survivors for one device"
    BOTH_SHARES = "shares for one set, and then for another"
    SMALL_SUM = "survivors too few"
    FORGED_CONSENTS = "consents that neighbours did not sign"
    REPLAY = "what was said in earlier attempts, again"
    UNLOGGED_SYBILS = "sybils that are in no log"
    OTHER_PROOFS = "proofs of other certificates"
    ROLLED_BACK_LOG = "a head of a smaller log"
    FORKED_LOG = "another log, with sybils, that all witnesses have signed"
    UNWITNESSED_LOG = "a log that goes on with sybils, for one device alone"
    WITHHELD_DENY_LIST = "a deny list that is withheld until it is too old"
    BUNDLE_BY_KEY = "a program that answers for one random key"
    BUNDLE_BY_NUMBER = "a program that answers for one device's number"
    BUNDLE_BY_DATA = "a program that answers for one row"
    BUNDLE_UNSIGNED = "a bundle without a manifest"
    BUNDLE_FOREIGN_ROOT = "a manifest under another root key"
    BUNDLE_STRANGER = "a manifest that no listed key has signed"
    BUNDLE_WITHDRAWN_KEY = "a manifest that a withdrawn key has signed"
    BUNDLE_REPLACED = "another bundle than the one that was signed"
    BUNDLE_OLDER = "an older manifest of the same line"
    BUNDLE_EXPIRED = "a manifest that has expired"
    BUNDLE_LARGE_CLIP = "a larger clip than was signed"
    BUNDLE_LESS_NOISE = "less noise than was signed"
    BUNDLE_LOW_FLOOR = "smaller sums than were signed"
    BUNDLE_UNPUBLISHED = "a signed bundle that is not in the record"


#: Attacks of an operator that has the CA's key too.
LOGGED = frozenset(attack for attack in Attack if attack.name in log_attacks.WAYS)
#: What the author of a bundle does (`bundles`).
BUNDLES: Final = frozenset(attack for attack in Attack if attack.name.startswith("BUNDLE_"))


@dataclass(frozen=True, slots=True)
class Scheme:
    """The attackers and their attacks."""

    attack: Attack
    where: Node = CLOUD
    sessions: int = 2
    """In so many, the first that the node has a part in."""
    colluders: frozenset[int] = frozenset()
    """Devices whose keys it has."""


class Credulous:
    """An identity that accepts every signature."""

    def __init__(self, own: SimulatedIdentity) -> None:
        self.certificate = own.certificate
        self.sign = own.sign
        self.log_leaf, self.log_head = own.log_leaf, own.log_head

    def verify(self, device: int, certificate: bytes, message: bytes, signature: bytes) -> bool:
        return True

    def verify_edge(self, edge: int, certificate: bytes, message: bytes, signature: bytes) -> bool:
        return True

    def verify_coordinator(self, certificate: bytes, message: bytes, signature: bytes) -> bool:
        return True


@dataclass(slots=True)
class Talk:
    """What has passed of one session."""

    session: Session
    cohorts: dict[int, secure_pb2.Cohort] = field(default_factory=dict)
    """By device."""
    bundles: dict[int, secure_pb2.KeyBundle] = field(default_factory=dict)
    """By device."""
    consents: dict[bytes, dict[int, bytes]] = field(default_factory=dict)
    """By set, then index."""
    told: dict[int, bytes] = field(default_factory=dict)
    """The set that a device received."""
    heard: dict[int, Node] = field(default_factory=dict)
    """From where."""

    def layout(self, device: int) -> Layout:
        return layout(self.session, self.cohorts[device].leaves, self.cohorts[device].devices)


class Attacker:
    """The attacks of one node, which pass all that it sends and receives."""

    def __init__(self, world: World, scheme: Scheme) -> None:
        self._world, self._scheme, self.seed = world, scheme, world.seed
        self._talks: dict[Name, Talk] = {}
        self._before: dict[int, list[Any]] = {}
        self._old_bundles: dict[int, secure_pb2.KeyBundle] = {}
        self.attacked: set[Name] = set()
        self.changed: set[bytes] = set()  # messages that a device can see to be bad
        self.found = 0  # of those, how many devices found out
        attack = scheme.attack
        cohort = self._logged if attack in LOGGED else _as_it_is
        self._ways: dict[type, Callable[[Talk, Any], list[Any]]] = {
            secure_pb2.Cohort: getattr(self, f"_cohort_{attack.name.lower()}", cohort),
            secure_pb2.Survivors: getattr(self, f"_survivors_{attack.name.lower()}", _as_it_is),
            secure_pb2.UnmaskRequest: getattr(self, f"_request_{attack.name.lower()}", _as_it_is),
        }

    # ------------------------------------------------ what passes

    def received(self, host: Host, sender: Node, message: Any) -> None:
        """A message comes in; the machine gets it too."""
        if type(message) in messages.UP and name_of(message) in self._talks:
            talk = self._talks[name_of(message)]
            talk.heard[message.device] = sender
            if type(message) is secure_pb2.KeyBundle:
                talk.bundles[message.device] = message
            elif type(message) is secure_pb2.Consent:
                self._add_consent(host, talk, message)

    def sending(self, to: Node, message: Any) -> list[Any]:
        """What leaves in the place of a message."""
        kind = type(message)
        if kind is EdgeTask and message.task.HasField("secure"):
            return self._task_for_edge(to, message)
        if kind is Task and message.HasField("secure"):
            return self._replayed(to.number, self._task(message, to.number % 2))
        if kind not in messages.DOWN or name_of(message) not in self._talks:
            return [message]
        talk = self._talks[name_of(message)]
        if kind is secure_pb2.Cohort and message.leaves:
            talk.cohorts.setdefault(message.device, message)
        said = [message]
        if name_of(message) in self.attacked and message.device in talk.cohorts:
            said = self._ways.get(kind, _as_it_is)(talk, message)
            if kind is not secure_pb2.Cohort and self._scheme.attack is Attack.WITHHELD_SHARES:
                said = _few_shares(message)
            if self._scheme.attack in _BY_MESSAGE or self._is_mixed(talk, message):
                self._note(message, said)
        return self._replayed(message.device, said)

    def _note(self, message: Any, said: list[Any]) -> None:
        """Notes what a device can see to be bad."""
        mixed = self._scheme.attack in _MIXED and type(message) is secure_pb2.Cohort
        self.changed.update(fingerprint(one) for one in said if mixed or one != message)

    def _is_mixed(self, talk: Talk, message: Any) -> bool:
        """Whether a cohort has neighbours that were given another task than its receiver."""
        if type(message) is not secure_pb2.Cohort or self._scheme.attack not in _MIXED:
            return False
        if self._scheme.where != CLOUD or message.device not in talk.heard:
            return False
        own = talk.heard[message.device].number % 2
        near = [b.device for b in message.neighbours]
        return any(d in talk.heard and talk.heard[d].number % 2 != own for d in near)

    def _task_for_edge(self, to: Node, message: EdgeTask) -> list[Any]:
        changed = EdgeTask()
        changed.CopyFrom(message)
        changed.task.CopyFrom(self._task(message.task, to.number % 2)[0])
        return [changed]

    def _replayed(self, device: int, said: list[Any]) -> list[Any]:
        """With what this device received in earlier attempts."""
        if self._scheme.attack is not Attack.REPLAY or not self._world.faulty:
            return said
        before = self._before.setdefault(device, [])
        old = [m for m in before if name_of(m) != name_of(said[0])]
        before.extend(said)
        del before[:-_KEPT]
        self.attacked.update(name_of(m) for m in said)
        return [*old, *said]

    # ------------------------------------------------ tasks

    def _task(self, task: Task, other: int) -> list[Any]:
        """other: whether this one is to get something else, where some do."""
        name = name_of(task)
        if name not in self._talks:
            self._talks[name] = Talk(Session.of(task))
            if len(self.attacked) < self._scheme.sessions and self._world.faulty:
                self.attacked.add(name)
        if name not in self.attacked:
            if self._scheme.attack is Attack.WITHHELD_DENY_LIST:
                give_deny_lists(self._world)
            return [task]
        if self._scheme.attack is Attack.WITHHELD_DENY_LIST:
            self.changed.add(fingerprint(task))  # of devices that know too little to take it
            return [task]
        said = Task()
        said.CopyFrom(task)
        match self._scheme.attack:
            case Attack.NO_MASKS:
                said.ClearField("secure")
            case Attack.SMALL_PLAN:
                said.secure.cohort_min = 3
            case Attack.LARGE_NOISE_PLAN:
                said.ring.noise = 1.0
                said.secure.noise_survivors = task.secure.cohort_min + 1
            case Attack.OTHER_MODEL if other:
                said.weights.CopyFrom(task.bundle)  # something that every store has
            case Attack.OTHER_PLAN if other:
                said.secure.dropout = task.secure.dropout / 2
            case Attack.OTHER_KEY if other:
                said.rng_key = bytes(reversed(task.rng_key))
        if self._scheme.where == CLOUD and said != task:
            # A coordinator signs what it likes; an edge has no key for that.
            signed = transcript.signed_task(said)
            said.signature = simulated_coordinator(self._world.seed).sign(signed)
        if said != task and (self._scheme.where != CLOUD or self._scheme.attack in _BY_MESSAGE):
            self.changed.add(fingerprint(said))
        return [said]

    # ------------------------------------------------ cohorts

    def forged(
        self,
        talk: Talk,
        message: secure_pb2.Cohort,
        bundles: list[secure_pb2.KeyBundle],
        numbers: tuple[int, ...] | None = None,
    ) -> secure_pb2.Cohort:
        """The cohort that these bundles make, in order, as the receiver gets it.

        As it is where that cannot be. numbers: the members' as it states them; None: those of the
        bundles. Of devices that are in the log it has the proof.
        """
        leaves = b"".join(transcript.leaf(b) for b in bundles)
        order = [b.device for b in bundles]
        if message.device not in order:
            return message
        index = order.index(message.device)
        try:
            devices = transcript.numbers(numbers or order)
            near = layout(talk.session, leaves, devices).neighbours(index)
        except SecureError:
            return message  # of so few no cohort can be made
        forged = secure_pb2.Cohort(
            run=message.run,
            round=message.round,
            attempt=message.attempt,
            device=message.device,
            leaves=leaves,
            devices=devices,
            index=index,
            indices=near,
        )
        forged.neighbours.extend(bundles[i] for i in near)
        log = self._world.log
        assert log is not None, "a world that is attacked in has masks"
        forged.log.CopyFrom(log.proof(message.log.update, [bundles[i].device for i in near]))
        return forged

    def _logged(self, talk: Talk, message: secure_pb2.Cohort) -> list[Any]:
        log = self._world.log
        assert log is not None, "a world that is attacked in has masks"
        return [log_attacks.WAYS[self._scheme.attack.name](self, log, talk, message)]

    def _members(self, talk: Talk, message: secure_pb2.Cohort) -> list[secure_pb2.KeyBundle]:
        """The bundles of the whole cohort, by what the receiver gets: of a complete graph."""
        own = talk.bundles.get(message.device)
        rest = {int(i): b for i, b in zip(message.indices, message.neighbours, strict=True)}
        if own is None or len(rest) + 1 != len(message.leaves) // transcript.DIGEST_BYTES:
            return []
        rest[int(message.index)] = own
        return [rest[index] for index in sorted(rest)]

    def _with_victim(
        self,
        talk: Talk,
        message: secure_pb2.Cohort,
        change: Callable[[secure_pb2.KeyBundle], secure_pb2.KeyBundle],
        numbers: tuple[int, ...] | None = None,
    ) -> list[Any]:
        """With the keys of the first honest member but the receiver changed."""
        bundles = self._members(talk, message)
        corrupt = self._scheme.colluders
        for place, bundle in enumerate(bundles):
            if bundle.device != message.device and bundle.device not in corrupt:
                bundles[place] = change(bundle)
                return [self.forged(talk, message, bundles, numbers)]
        return [message]

    def _cohort_unsigned_keys(self, talk: Talk, message: secure_pb2.Cohort) -> list[Any]:
        def change(bundle: secure_pb2.KeyBundle) -> secure_pb2.KeyBundle:
            forged = copy.deepcopy(bundle)
            forged.mask_key = bytes(reversed(bundle.mask_key))
            return forged

        return self._with_victim(talk, message, change)

    def _cohort_foreign_keys(self, talk: Talk, message: secure_pb2.Cohort) -> list[Any]:
        own = SimulatedIdentity(min(self._scheme.colluders, default=0), self._world.seed)

        def change(bundle: secure_pb2.KeyBundle) -> secure_pb2.KeyBundle:
            forged = copy.deepcopy(bundle)
            forged.sealing_key, forged.mask_key = bundle.mask_key, bundle.sealing_key
            signed = transcript.signed_bundle(
                talk.session, bundle.device, forged.sealing_key, forged.mask_key
            )
            forged.signature = own.sign(signed)
            return forged

        return self._with_victim(talk, message, change)

    def _cohort_old_keys(self, talk: Talk, message: secure_pb2.Cohort) -> list[Any]:
        """With keys that the victim gave for another attempt, under this one's name."""

        def change(bundle: secure_pb2.KeyBundle) -> secure_pb2.KeyBundle:
            old = copy.deepcopy(self._old_bundles.get(bundle.device, bundle))
            if old == bundle:
                old.attempt = bundle.attempt + 1
            else:
                old.run, old.round, old.attempt = bundle.run, bundle.round, bundle.attempt
            return old

        said = self._with_victim(talk, message, change)
        for bundle in message.neighbours:
            self._old_bundles.setdefault(bundle.device, bundle)
        return said

    def _cohort_two_seats(self, talk: Talk, message: secure_pb2.Cohort) -> list[Any]:
        """With a colluder's second keys in the place of an honest device, under its number."""
        seats = {b.device: b for b in self._members(talk, message)}
        mine = [d for d in sorted(seats) if d in self._scheme.colluders]
        if not mine:
            return [message]
        number = mine[0]
        second = copy.deepcopy(seats[number])
        second.sealing_key, second.mask_key = second.mask_key, second.sealing_key
        signed = transcript.signed_bundle(talk.session, number, second.sealing_key, second.mask_key)
        second.signature = SimulatedIdentity(number, self._world.seed).sign(signed)

        def change(bundle: secure_pb2.KeyBundle) -> secure_pb2.KeyBundle:
            return second

        # The list names the honest device still: twice the same number would be no list.
        numbers = transcript.devices_of(message.devices)
        return self._with_victim(talk, message, change, numbers)

    def _cohort_small_cohort(self, talk: Talk, message: secure_pb2.Cohort) -> list[Any]:
        bundles = self._members(talk, message)
        others = [b for b in bundles if b.device != message.device][:2]
        few = sorted((b for b in bundles if b in others or b.device == message.device), key=_device)
        return [self.forged(talk, message, few) if len(few) == 3 else message]

    def _cohort_second_roster(self, talk: Talk, message: secure_pb2.Cohort) -> list[Any]:
        return [message, *self._without_last(talk, message)]

    def _cohort_two_rosters(self, talk: Talk, message: secure_pb2.Cohort) -> list[Any]:
        return self._without_last(talk, message) if message.device % 2 else [message]

    def _without_last(self, talk: Talk, message: secure_pb2.Cohort) -> list[Any]:
        """A cohort without its last member but the receiver."""
        bundles = self._members(talk, message)
        last = [b for b in bundles if b.device != message.device][-1:]
        return [self.forged(talk, message, [b for b in bundles if b not in last])]

    # ------------------------------------------------ survivors

    def _victim(self, talk: Talk, message: secure_pb2.Survivors) -> int:
        """The first survivor that does not work with the attacker; -1: there is none."""
        corrupt = {c.index for d, c in talk.cohorts.items() if d in self._scheme.colluders}
        alive = transcript.indices(message.members, talk.layout(message.device).members)
        return next((i for i in alive if i not in corrupt), -1)

    def _without(self, talk: Talk, message: secure_pb2.Survivors) -> secure_pb2.Survivors:
        victim, changed = self._victim(talk, message), copy.deepcopy(message)
        if victim >= 0 and talk.cohorts[message.device].index != victim:
            members = bytearray(message.members)
            members[victim >> 3] &= ~(1 << (victim & 7))
            changed.members = bytes(members)
        return changed

    def _survivors_two_survivors(self, talk: Talk, message: secure_pb2.Survivors) -> list[Any]:
        """Half of the devices receive that the victim has dropped out."""
        said = self._without(talk, message) if message.device % 2 else message
        talk.told[message.device] = said.members
        self._sign_as_colluders(talk, message.device, said.members)
        return [said]

    def _survivors_second_survivors(self, talk: Talk, message: secure_pb2.Survivors) -> list[Any]:
        return [message, self._without(talk, message)]

    def _request_both_shares(self, talk: Talk, message: secure_pb2.UnmaskRequest) -> list[Any]:
        """When a device has given its shares for one set, it is asked for those for another."""
        place = talk.layout(message.device)
        every = secure_pb2.Survivors(
            run=message.run,
            round=message.round,
            attempt=message.attempt,
            device=message.device,
            members=transcript.bitmap(range(place.members), place.members),
        )
        return [message, self._without(talk, every), message]

    def _survivors_small_sum(self, talk: Talk, message: secure_pb2.Survivors) -> list[Any]:
        own, changed = talk.cohorts[message.device].index, copy.deepcopy(message)
        place = talk.layout(message.device)
        few = sorted({own, *place.neighbours(own)[:2]})
        changed.members = transcript.bitmap(few, place.members)
        return [changed]

    def _request_forged_consents(self, talk: Talk, message: secure_pb2.UnmaskRequest) -> list[Any]:
        own = SimulatedIdentity(min(self._scheme.colluders, default=0), self._world.seed)
        forged = copy.deepcopy(message)
        for consent in forged.consents[:1]:
            consent.signature = own.sign(b"whatever")
        return [forged]

    def _add_consent(self, host: Host, talk: Talk, message: secure_pb2.Consent) -> None:
        """Gathers the signers of each set.

        Devices that received the other one are asked for their shares as soon as enough have signed
        that.
        """
        members = talk.told.get(message.device)
        if members is None:
            return
        signed = talk.consents.setdefault(members, {})
        signed[talk.cohorts[message.device].index] = message.signature
        for device, told in talk.told.items():
            place, own = talk.layout(device), talk.cohorts[device].index
            near = [i for i in place.neighbours(own) if i in signed]
            if told != members or own not in signed or len(near) < place.threshold:
                continue
            request = secure_pb2.UnmaskRequest(
                run=message.run, round=message.round, attempt=message.attempt, device=device
            )
            request.consents.extend(secure_pb2.Signed(index=i, signature=signed[i]) for i in near)
            self._world.network.send(host, talk.heard[device], request)

    def _sign_as_colluders(self, talk: Talk, device: int, members: bytes) -> None:
        binding, signed = talk.layout(device).binding, talk.consents.setdefault(members, {})
        for one in self._scheme.colluders & talk.cohorts.keys():
            text = transcript.signed_consent(binding, one, members)
            identity = SimulatedIdentity(one, self._world.seed)
            signed.setdefault(talk.cohorts[one].index, identity.sign(text))


#: One message of these is enough to see it.
_BY_MESSAGE = frozenset(
    (
        Attack.NO_MASKS,
        Attack.SMALL_PLAN,
        Attack.LARGE_NOISE_PLAN,
        Attack.UNSIGNED_KEYS,
        Attack.FOREIGN_KEYS,
        Attack.OLD_KEYS,
        Attack.TWO_SEATS,
        Attack.SMALL_COHORT,
        Attack.WITHHELD_SHARES,
        Attack.SMALL_SUM,
        Attack.FORGED_CONSENTS,
        *LOGGED,
    )
)
#: A coordinator signs both tasks of these; a cohort of devices that have different ones shows it.
_MIXED = frozenset((Attack.OTHER_MODEL, Attack.OTHER_PLAN, Attack.OTHER_KEY))


def give_deny_lists(world: World) -> None:
    """Devices get the list that was withheld from them, once."""
    if not world.withholds:
        return
    world.withholds = False
    for device in range(world.shape.devices):
        host = world.hosts[Node(Tier.DEVICE, device)]
        world.order(host.node, DeniedVersion(version=1, issued_s=host.now // SECOND))


def fingerprint(message: Any) -> bytes:
    """What a message says, without what is left of a task's time."""
    if type(message) is Task and message.HasField("left_ms"):
        whole = Task()
        whole.CopyFrom(message)
        whole.ClearField("left_ms")
        message = whole
    return type(message).__name__.encode() + bytes(message.SerializeToString(deterministic=True))


def _as_it_is(talk: Talk, message: Any) -> list[Any]:
    return [message]


def _few_shares(message: Any) -> list[Any]:
    """A Delivery with one share alone."""
    changed = copy.deepcopy(message)
    if hasattr(changed, "shares"):
        del changed.shares[1:]
    return [changed]


def _device(bundle: secure_pb2.KeyBundle) -> int:
    return bundle.device
