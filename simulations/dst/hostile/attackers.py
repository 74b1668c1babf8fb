"""Several attackers together: each stands between its node and the network (`attacks`).

They share the keys of the corrupt devices. What one has changed passes the next at the same node,
or the one at an edge below. A message that several have changed may be refused for a reason of any
of them. What comes of each attack is counted: how often it was drawn, how often it changed a
message, for which reasons devices found it out, and in how many seeds it was harmless.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ....core.protocol.ports import Effect, Event, Node, Received, Record
from ....core.wire.round_pb2 import EdgeTask
from ..oracles import found_out
from ..oracles.edge_book import Name, OracleFailure, name_of
from .attacks import BUNDLES, Attack, Attacker, Scheme, fingerprint
from .hostile_bundles import EXPOSED, RECORD, REFUSED, BundleAttacker

if TYPE_CHECKING:
    from ..simulated_node import Host
    from ..world import World

#: How the counts of a world name what came of an attack (`counts`).
PREFIX: Final = "attack"
#: Attacks that change tasks.
_BY_TASK: Final = BUNDLES | {
    Attack.NO_MASKS,
    Attack.SMALL_PLAN,
    Attack.LARGE_NOISE_PLAN,
    Attack.OTHER_MODEL,
    Attack.OTHER_PLAN,
    Attack.OTHER_KEY,
}
DRAWN, DONE, FOUND, HARMLESS = "drawn", "done", "found", "harmless"


class Attackers:
    """All attackers of a world: they pass all that their nodes send and receive."""

    def __init__(self, world: World, schemes: tuple[Scheme, ...]) -> None:
        # At a node tasks are changed first: what follows is for the sessions that they make.
        self.schemes = schemes = tuple(sorted(schemes, key=lambda s: s.attack not in _BY_TASK))
        self._nodes = frozenset(scheme.where for scheme in schemes)
        self._world = world
        self._attackers = [
            (BundleAttacker if scheme.attack in BUNDLES else Attacker)(world, scheme)
            for scheme in schemes
        ]
        # Messages that a device can see to be bad, and the party that changed them.
        self._marks: dict[bytes, frozenset[Attack]] = {}
        self._good: set[bytes] = set()  # what was changed: another party may undo it
        self.reasons: Counter[tuple[Attack, str]] = Counter()
        self.exposed: set[Attack] = (
            set()
        )  # by which a sum has disclosed less than its devices' updates
        self.found = 0  # changed messages that devices have found out

    @property
    def attacked(self) -> set[Name]:
        """The attempts that an attacker has changed."""
        return set().union(*(attacker.attacked for attacker in self._attackers))

    def meddled(self, name: Name) -> bool:
        return any(name in attacker.attacked for attacker in self._attackers)

    def stands_at(self, node: Node) -> bool:
        return node in self._nodes

    # ------------------------------------------------ what passes

    def received(self, host: Host, sender: Node, message: Any) -> None:
        """A message comes in; the machine gets it too."""
        for scheme, attacker in zip(self.schemes, self._attackers, strict=True):
            if scheme.where == host.node:
                attacker.received(host, sender, message)

    def sending(self, node: Node, to: Node, message: Any) -> list[Any]:
        """What leaves a node in the place of a message."""
        said = [message]
        for scheme, attacker in zip(self.schemes, self._attackers, strict=True):
            if scheme.where == node:
                said = [o for one in said for o in self._changed(scheme.attack, attacker, to, one)]
        return said

    def _changed(
        self, attack: Attack, attacker: Attacker | BundleAttacker, to: Node, message: Any
    ) -> list[Any]:
        said = attacker.sending(to, message)
        if not attacker.changed:
            return said
        marks = [at for at in map(_mark, said) if at in attacker.changed]
        if not marks:
            return said
        own = _mark(message)
        before = self._marks.get(own, frozenset())
        if not before and own not in marks:
            self._good.add(own)
        for at in marks:
            if at not in self._good:
                self._marks[at] = self._marks.get(at, frozenset()) | before | {attack}
        return said

    # ------------------------------------------------ what comes of it

    def check(self, host: Host, event: Event, effects: list[Effect]) -> None:
        """A device has handled an event. Raises OracleFailure where it took a changed message."""
        if type(event) is not Received:
            return
        attacks = self._marks.get(fingerprint(event.message)) if self._marks else None
        if attacks and not self._world.withholds:
            attacks -= {Attack.WITHHELD_DENY_LIST}  # devices have the list by now
        if attacks:
            name = name_of(event.message)
            others = {
                scheme.attack
                for scheme, attacker in zip(self.schemes, self._attackers, strict=True)
                if name in attacker.attacked or scheme.attack is Attack.WITHHELD_DENY_LIST
            }
            reasons = found_out.check(host, attacks, event, effects, others)
            self.found += bool(reasons)
            both = [(p, r) for p in attacks | others for r in reasons & found_out.reasons_of(p)]
            self.reasons.update(both)
            return
        for effect in effects:
            if type(effect) is Record and effect.kind == "session":
                self._notice(event.message, str(effect.fields.get("reason", "")))

    def _notice(self, message: Any, reason: str) -> None:
        """A device ends a session for what no single message shows."""
        for scheme, attacker in zip(self.schemes, self._attackers, strict=True):
            shows = reason in found_out.LATER.get(scheme.attack, ())
            if shows and name_of(message) in attacker.attacked:
                self.reasons[scheme.attack, reason] += 1

    def gated(self, host: Host, name: Name, reason: str) -> None:
        """A device's gate has refused a program for this reason; empty: it runs.

        Raises OracleFailure where that is not what the attack, or honest work, leads to.
        """
        attacks = self._bundles_of(name)
        wanted = {REFUSED.get(attack, "") for attack in attacks} or {""}
        if not attacks and self.meddled(name):
            wanted |= {"masks", "noise", "ring"}  # of a plan that another attack has changed
        if reason not in wanted:
            what = f"refused for {reason}" if reason else "the device runs it"
            told = ", ".join(sorted(attacks)) or "an honest bundle"
            raise OracleFailure("attack", f"{host.node}, {name}: {told}: {what}")
        self.found += bool(reason)
        self.reasons.update((attack, reason) for attack in attacks if reason)

    def summed(self, name: Name, devices: tuple[int, ...], least: int) -> None:
        """The coordinator reads a masked sum. least: the devices of one, as planned."""
        gates = self._world.gates
        if gates is not None and name in gates.exposed:
            told = gates.exposed[name].answering.intersection(devices)
            if 0 < len(told) < least:
                self.exposed.update(self._bundles_of(name))

    def _bundles_of(self, name: Name) -> set[Attack]:
        both = zip(self.schemes, self._attackers, strict=True)
        return {s.attack for s, p in both if s.attack in BUNDLES and name in p.attacked}

    def _read_record(self) -> None:
        """What readers of the record find at the end. Raises OracleFailure."""
        assert self._world.gates is not None
        for name in sorted(self._world.gates.unpublished()):
            attacks = self._bundles_of(name)
            if not attacks:
                raise OracleFailure("attack", f"{name}: an honest bundle is not in the record")
            self.reasons.update((attack, RECORD) for attack in attacks)

    def count(self, counts: Counter[str]) -> None:
        """Adds what came of each attack to a world's counts, at the end of its seed.

        Raises OracleFailure where the record hides a bundle that devices have run.
        """
        self._read_record()
        for scheme, attacker in zip(self.schemes, self._attackers, strict=True):
            attack = scheme.attack
            counts[key(attack, DRAWN)] += 1
            counts[key(attack, DONE)] += bool(attacker.attacked)
            found = {reason for at, reason in self.reasons if at is attack}
            for reason in sorted(found):
                counts[key(attack, FOUND, reason)] += 1
            counts[key(attack, EXPOSED)] += attack in self.exposed
            nothing = not (found or attack in self.exposed)
            counts[key(attack, HARMLESS)] += bool(attacker.attacked) and nothing
        together = len({(s.where.tier, s.where.number) for s in self.schemes})
        counts[f"{PREFIX}s of {len(self.schemes)} at {together}"] += 1


def key(attack: Attack, what: str, reason: str = "") -> str:
    """The name of a count."""
    return ": ".join(part for part in (f"{PREFIX} {attack.name.lower()}", what, reason) if part)


def _mark(message: Any) -> bytes:
    """What a device gets of a message."""
    return fingerprint(message.task if type(message) is EdgeTask else message)
