"""What is kept of sessions of secure aggregation.

Which keys were used for what, which device signed which survivors, which share of which secret has
left a device, and that no update leaves without masks. Members of one session have one binding:
what is kept of survivors and shares is kept by it, for a coordinator may send devices different
sessions.

A device decides when it handles a message, and what it says leaves later, or never: so what a
message means is noted when it is made (`handled`), and counts when it leaves (`sent`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....core.privacy.mechanisms.ring import RingPlan, packed
from ....core.privacy.secagg.cohort import layout
from ....core.protocol.ports import Effect, Send
from ....core.protocol.random_streams import device_key
from ....core.wire.round_pb2 import Upload
from ....core.wire.secure_pb2 import Consent, KeyBundle, UnmaskShares
from ..node_work import update_of
from .edge_book import Name, OracleFailure, name_of

if TYPE_CHECKING:
    from ..simulated_node import Host


class Ledger:
    """Of all devices. Raises OracleFailure."""

    def __init__(self) -> None:
        # By a message's identity, which is kept with it: the set, and the session's binding.
        self._members: dict[int, tuple[Any, bytes, bytes]] = {}
        self._bindings: dict[tuple[Name, int], bytes] = {}
        self._keys: dict[bytes, tuple[int, Name]] = {}
        self._signed: dict[tuple[Name, int], bytes] = {}
        self._given: dict[tuple[bytes, int], bool] = {}  # owner: its self-mask seed, not its key
        self._opened: dict[bytes, bytes] = {}  # by binding: the set that shares were given for

    def handled(self, host: Host, effects: list[Effect]) -> None:
        """A device has handled an event; nothing of it is durable yet."""
        for effect in effects:
            if type(effect) is not Send:
                continue
            message: Any = effect.message
            session = host.machine.state.session
            if type(message) is Upload and host.world.shape.secure:
                _check_masks(host, message)
            if type(message) not in (Consent, UnmaskShares):
                continue
            at = (name_of(message), message.device)
            if session.cohort is not None:  # gone when its shares are given
                self._bindings[at] = layout(
                    session.session, session.cohort.leaves, session.cohort.devices
                ).binding
            self._members[id(message)] = (message, session.members, self._bindings[at])

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
            _, members, binding = self._members[id(message)]
            same = self._opened.setdefault(binding, members) == members
            _check(same, f"shares of {name_of(message)} are out for two sets of survivors")
            for share in message.shares:
                alive = bool(members[share.index >> 3] >> (share.index & 7) & 1)
                owner = (binding, share.index)
                both = self._given.setdefault(owner, alive) != alive
                _check(not both, f"shares of both secrets of {owner} are out")


def _check_masks(host: Host, upload: Upload) -> None:
    """Where all are to be masked, no update leaves as it is."""
    task, device = host.machine.state.task, host.node.number
    key = device_key(task.rng_key, device)
    plan = RingPlan.of(task.ring)
    plain = packed(update_of(device, key, plan, name_of(upload)), plan)
    masked = host.machine.state.session is not None or upload.HasField("seeds")
    bare = not masked or upload.vector == plain
    _check(not bare, f"{host.node} shows its update of {name_of(upload)}")


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise OracleFailure("ledger", what)
