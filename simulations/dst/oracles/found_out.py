"""The oracle of attacks: a changed message that reaches an honest device is found out.

`attacks` notes each message to a device that it has changed so that the device alone can see it.
Such a message must not be taken: the device records one of the attack's reasons (`ANSWERS`), or
ignores it, as it ignores what is late. So a check that is missing on devices shows, also where no
secret leaks in that seed. Attacks in `ELSEWHERE` show in no single message; another oracle watches
those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ....core.privacy.secagg import logged
from ....core.protocol.ports import Effect, Received, Record, Send
from ....core.wire.round_pb2 import Failure, Task
from ....device.protocol.acceptance import DENY_LIST
from ..hostile.attacks import Attack, fingerprint
from .edge_book import OracleFailure, name_of

if TYPE_CHECKING:
    from ..simulated_node import Host

_SIGNATURE: Final = frozenset(("task signature",))
#: What an honest device records of a changed message, by the attack: one of these.
ANSWERS: Final[dict[Attack, frozenset[str]]] = {
    Attack.NO_MASKS: frozenset(("unmasked", "task signature")),
    Attack.SMALL_PLAN: frozenset(("policy", "task signature")),
    Attack.LARGE_NOISE_PLAN: frozenset(("noise", "task signature")),
    Attack.OTHER_MODEL: frozenset(("signature", "task signature")),
    Attack.OTHER_PLAN: frozenset(("signature", "task signature")),
    Attack.OTHER_KEY: frozenset(("signature", "task signature")),
    Attack.UNSIGNED_KEYS: frozenset(("signature",)),
    Attack.FOREIGN_KEYS: frozenset(("signature",)),
    Attack.OLD_KEYS: frozenset(("bundle", "signature")),
    Attack.TWO_SEATS: frozenset(("roster",)),
    Attack.SMALL_COHORT: frozenset(("small",)),
    Attack.WITHHELD_SHARES: frozenset(("few", "delivery")),
    Attack.SMALL_SUM: frozenset(("small",)),
    Attack.FORGED_CONSENTS: frozenset(("consent",)),
    Attack.UNLOGGED_SYBILS: frozenset((logged.LOG,)),
    Attack.WITHHELD_DENY_LIST: frozenset((DENY_LIST,)),
    Attack.OTHER_PROOFS: frozenset((logged.LOG,)),
    Attack.ROLLED_BACK_LOG: frozenset((logged.ROLLBACK,)),
    Attack.FORKED_LOG: frozenset((logged.FORK,)),
    Attack.UNWITNESSED_LOG: frozenset((logged.WITNESSES,)),
}
#: Why no single message of these shows anything, and what watches them.
ELSEWHERE: Final[dict[Attack, str]] = {
    Attack.SECOND_ROSTER: "either list may come first; the ledger sees a device that takes both",
    Attack.TWO_ROSTERS: "each list is good by itself; masks of different lists do not cancel",
    Attack.TWO_SURVIVORS: "each set is good by itself; the ledger sees shares for two sets",
    Attack.SECOND_SURVIVORS: "either set may come first; the ledger sees a device that signs two",
    Attack.BOTH_SHARES: "either set may come first; the ledger sees shares of both secrets",
    Attack.REPLAY: "each message was good once; `again` and the ledger see one that counts twice",
}
#: For which reasons devices end a session by the whole of what these have said, also where another
#: party has changed the message too.
LATER: Final[dict[Attack, frozenset[str]]] = {
    Attack.OTHER_MODEL: frozenset(("signature",)),
    Attack.OTHER_PLAN: frozenset(("signature",)),
    Attack.OTHER_KEY: frozenset(("signature",)),
    Attack.SECOND_ROSTER: frozenset(("equivocation",)),
    Attack.TWO_SURVIVORS: frozenset(("consent",)),
    Attack.SECOND_SURVIVORS: frozenset(("equivocation", "consent")),
    Attack.BOTH_SHARES: frozenset(("equivocation",)),
    Attack.WITHHELD_DENY_LIST: frozenset((DENY_LIST,)),
}
#: For which reasons devices may refuse what another party has changed in addition to these: a list
#: without one member may be below the floor.
BESIDE: Final[dict[Attack, frozenset[str]]] = {
    Attack.SECOND_ROSTER: frozenset(("small",)),
    Attack.TWO_ROSTERS: frozenset(("small",)),
}
#: A message that is late, early or for another attempt is not taken for that alone.
_NOBODYS: Final = frozenset(("foreign", "order"))


def reasons_of(attack: Attack) -> frozenset[str]:
    """For which reasons a device may refuse what a party of this attack has changed."""
    none: frozenset[str] = frozenset()
    return frozenset().union(*(by.get(attack, none) for by in (ANSWERS, LATER, BESIDE)))


def check(
    host: Host,
    attacks: Iterable[Attack],
    event: Received,
    effects: list[Effect],
    others: Iterable[Attack] = (),
) -> frozenset[str]:
    """The reasons of these attacks for which the device refused the message that they have changed.

    None where it ignored it. others: attacks of the same attempt; what one has changed and another
    changes again may be refused for either. Raises OracleFailure where the device took it, or
    refused it for no reason of all these attacks.
    """
    message, attacks = event.message, sorted(attacks)
    what = f"{host.node}, {name_of(message)}: {', '.join(attacks)}"
    records = [effect for effect in effects if type(effect) is Record]
    reasons = frozenset(one.fields["reason"] for one in records if one.kind == "session")
    if known := reasons & frozenset().union(*map(reasons_of, {*attacks, *others})):
        return known
    if any(one.kind == "ignored" for one in records):
        return frozenset()  # also a copy of what it has refused, while it says so
    if _took(host.machine.state, message):
        raise OracleFailure("attack", f"{what}: the device took it")
    if strange := reasons - _NOBODYS:
        raise OracleFailure("attack", f"{what}: refused for {', '.join(sorted(strange))}")
    told = any(type(one) is Send and type(one.message) is Failure for one in effects)
    if not (reasons or told):
        raise OracleFailure("attack", f"{what}: nothing records that it was refused")
    return frozenset()


def _took(state: Any, message: Any) -> bool:
    """Whether a device's state holds the message as one that it acted on."""
    if type(message) is Task:
        return state.task is not None and fingerprint(state.task) == fingerprint(message)
    session = state.session
    if session is None:
        return False
    digest = hashlib.sha256(message.SerializeToString(deterministic=True)).digest()
    return bool(session.heard.get(type(message).__name__) == digest)
