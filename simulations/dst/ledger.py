"""What is kept of sessions of secure aggregation: which keys were used for what, who signed which
survivors, and which share of whose secret has left a device.

A device decides when it handles a message, and what it says leaves later, or never: so what a
message means is noted when it is made (`handled`), and counts when it leaves (`sent`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.ports import Effect, Send
from ...core.wire.secure_pb2 import Consent, KeyBundle, UnmaskShares
from .edge_book import Name, OracleFailure, name_of

if TYPE_CHECKING:
    from .host import Host


class Ledger:
    """Of all devices. Raises OracleFailure."""

    def __init__(self) -> None:
        self._members: dict[int, tuple[Any, bytes]] = {}  # by a message's identity; it is kept
        self._keys: dict[bytes, tuple[int, Name]] = {}
        self._signed: dict[tuple[Name, int], bytes] = {}
        self._given: dict[tuple[Name, int], bool] = {}  # owner: its self-mask seed, not its key

    def handled(self, host: Host, effects: list[Effect]) -> None:
        """A device has handled an event; nothing of it is durable yet."""
        for effect in effects:
            if type(effect) is Send and type(effect.message) in (Consent, UnmaskShares):
                session = host.machine.state.session
                self._members[id(effect.message)] = (effect.message, session.members)

    def sent(self, message: Any) -> None:
        """A message leaves a device."""
        kind = type(message)
        if kind is KeyBundle:
            for key in (message.sealing_key, message.mask_key):
                use = (message.device, name_of(message))
                _check(self._keys.setdefault(key, use) == use, f"{use} has keys of before")
        elif kind is Consent:
            at = (name_of(message), message.device)
            members = self._members[id(message)][1]
            same = self._signed.setdefault(at, members) == members
            _check(same, f"{at} signs two sets of survivors")
        elif kind is UnmaskShares:
            members = self._members[id(message)][1]
            for share in message.shares:
                alive = bool(members[share.index >> 3] >> (share.index & 7) & 1)
                owner = (name_of(message), share.index)
                both = self._given.setdefault(owner, alive) != alive
                _check(not both, f"shares of both secrets of {owner} are out")


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise OracleFailure("ledger", what)
