"""The oracle of plots: a changed message that reaches an honest device is found out.

`plots` notes each message to a device that it has changed so that the device alone can see it. Such
a message must not be taken: the device records one of the plot's reasons (`ANSWERS`), or ignores
it, as it ignores what is late. So a check that is missing on devices shows, also where no secret
leaks in that seed. Plots in `ELSEWHERE` show in no single message; another oracle watches those.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from ...core.ports import Effect, Event, Received, Record, Send
from ...core.wire.round_pb2 import Failure, Task
from .edge_book import OracleFailure, name_of
from .plots import Plot, fingerprint

if TYPE_CHECKING:
    from .host import Host

_SIGNATURE: Final = frozenset(("task signature",))
#: What an honest device records of a changed message, by the plot: one of these.
ANSWERS: Final[dict[Plot, frozenset[str]]] = {
    Plot.NO_MASKS: frozenset(("unmasked", "task signature")),
    Plot.SMALL_PLAN: frozenset(("policy", "task signature")),
    Plot.LARGE_NOISE_PLAN: frozenset(("noise", "task signature")),
    Plot.OTHER_MODEL: frozenset(("signature", "task signature")),
    Plot.OTHER_PLAN: frozenset(("signature", "task signature")),
    Plot.OTHER_KEY: frozenset(("signature", "task signature")),
    Plot.UNSIGNED_KEYS: frozenset(("signature",)),
    Plot.FOREIGN_KEYS: frozenset(("signature",)),
    Plot.OLD_KEYS: frozenset(("bundle", "signature")),
    Plot.TWO_SEATS: frozenset(("roster",)),
    Plot.SMALL_COHORT: frozenset(("small",)),
    Plot.WITHHELD_SHARES: frozenset(("few", "delivery")),
    Plot.SMALL_SUM: frozenset(("small",)),
    Plot.FORGED_CONSENTS: frozenset(("consent",)),
}
#: Why no single message of these shows anything, and what watches them.
ELSEWHERE: Final[dict[Plot, str]] = {
    Plot.SECOND_ROSTER: "either list may come first; `ledger` sees a device that takes both",
    Plot.TWO_ROSTERS: "each list is good by itself; masks of different lists do not cancel",
    Plot.TWO_SURVIVORS: "each set is good by itself; `ledger` sees shares for two sets",
    Plot.SECOND_SURVIVORS: "either set may come first; `ledger` sees a device that signs two",
    Plot.BOTH_SHARES: "either set may come first; `ledger` sees shares of both secrets",
    Plot.REPLAY: "each message was good once; `again` and `ledger` see one that counts twice",
}
#: A message that is late, early or for another attempt is not taken for that alone.
_NOBODYS: Final = frozenset(("foreign", "order"))


def check(host: Host, plot: Plot, changed: set[bytes], event: Event, effects: list[Effect]) -> bool:
    """Whether the device found a changed message out, by a reason of the plot. Raises OracleFailure
    where it took one, or refused one for no reason of the plot.
    """
    if type(event) is not Received or fingerprint(event.message) not in changed:
        return False
    message = event.message
    what = f"{host.node}, {name_of(message)}: {plot.value}"
    records = [effect for effect in effects if type(effect) is Record]
    reasons = {one.fields["reason"] for one in records if one.kind == "session"}
    if reasons & ANSWERS[plot]:
        return True
    if any(one.kind == "ignored" for one in records):
        return False  # also a copy of what it has refused, while it says so
    if _took(host.machine.state, message):
        raise OracleFailure("plot", f"{what}: the device took it")
    if strange := reasons - _NOBODYS:
        raise OracleFailure("plot", f"{what}: refused for {', '.join(sorted(strange))}")
    told = any(type(one) is Send and type(one.message) is Failure for one in effects)
    if not (reasons or told):
        raise OracleFailure("plot", f"{what}: nothing records that it was refused")
    return False


def _took(state: Any, message: Any) -> bool:
    """Whether a device's state holds the message as one that it acted on."""
    if type(message) is Task:
        return state.task is not None and fingerprint(state.task) == fingerprint(message)
    session = state.session
    if session is None:
        return False
    digest = hashlib.sha256(message.SerializeToString(deterministic=True)).digest()
    return bool(session.heard.get(type(message).__name__) == digest)
