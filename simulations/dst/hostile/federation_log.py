"""The certificate log of a world with masks: it has all devices, and grows while runs go on.

The coordinator learns of newer heads at drawn times, and devices are offered them between sessions,
as with the pages of the deny list. Draws are from a sequence of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ....core.privacy.secagg.logged import REASONS, LogHead, LogRules, update_from
from ....core.privacy.secagg.simulated_log import SimulatedLog, leaf_of, verify_head
from ....core.protocol.ports import CLOUD, SECOND, Node, Ordered, Tier
from ....core.wire.log_pb2 import Checkpoint, LogProof, LogUpdate
from ..draws import Rng
from . import log_attacks

if TYPE_CHECKING:
    from ..world import World

#: Certificates that are issued during the runs, of devices that never come.
LATER: Final = 6
LATER_FROM: Final = 2**20
#: Times at which devices are offered a head, a device.
OFFERS: Final = 2
_SPAN_S: Final = 60


class FederationLog:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world, self._devices = world, world.shape.devices
        later = range(LATER_FROM, LATER_FROM + LATER)
        self.copy = SimulatedLog(world.seed, [*range(self._devices), *later])

    def signed(self, size: int) -> Checkpoint:
        """The head of the tree when it had `size` leaves, as it was signed."""
        signed = self.copy.head(size).signed
        assert signed is not None
        return signed

    @property
    def first(self) -> LogHead:
        """The head of the log that has the devices and nothing else."""
        return self.copy.head(self._devices)

    def plan(self) -> None:
        """Lays out when the log grows, and when devices are offered a head."""
        world = self._world
        rng = Rng(world.seed, "log")
        times = sorted(rng.between(1, _SPAN_S) for _ in range(LATER))
        for size, at in enumerate(times, self._devices + 1):
            world.at(int(at * SECOND), world.order, CLOUD, self.signed(size))
        for device in range(self._devices):
            for _ in range(OFFERS):
                world.at(int(rng.between(1, _SPAN_S) * SECOND), self._offer, device)

    def _offer(self, device: int) -> None:
        """Offers a device the head that the coordinator goes by."""
        hosts = self._world.hosts
        host, cloud = hosts[Node(Tier.DEVICE, device)], hosts[CLOUD]
        if not (host.up and cloud.up):
            return
        known, head = host.machine.state.log, cloud.machine.state.log
        if known.size <= head.size:
            host.post(Ordered(update_from(self.copy.tree(), known.size, head)))

    def look_at_end(self) -> None:
        """No device has refused a head or a proof of an operator that shows the true log."""
        world = self._world
        if not any(s.attack.name in log_attacks.WAYS for s in world.faults.schemes):
            refused = [reason for reason in REASONS if world.counts[f"session {reason}"]]
            world.check(not refused, "log", f"devices refuse the true log: {', '.join(refused)}")

    def size_of(self, update: LogUpdate) -> int:
        """Of the tree that an update has the head of."""
        return verify_head(self._world.seed, update.checkpoint, LogRules()).size

    def proof(self, update: LogUpdate, devices: Sequence[int]) -> LogProof:
        """The proof that these devices are in the log.

        A hostile coordinator makes it: devices that are not in the log are claimed to be at other
        devices' places. An update of a forked log, which another party shows and this one does not
        have, gets a proof from the true log.
        """
        size = min(self.size_of(update), self.copy.tree().size)
        leaves = [leaf_of(device, self._world.seed) for device in devices]
        places = [self.copy.place(leaf) for leaf in leaves]
        free = iter(sorted(set(range(size)).difference(places)))
        indices: list[int] = []
        for at in places:
            if at is None or at >= size or at in indices:
                at = next(free)
            indices.append(at)
        inclusion = self.copy.tree().inclusion(sorted(indices), size)
        return LogProof(update=update, indices=indices, inclusion=inclusion)
