"""Planted bugs of what surrounds a machine: of the order of a driver, of journals and blobs."""

from __future__ import annotations

from typing import Any

from delian.cloud.machine import Coordinator
from delian.core.node.memory import MemoryDisk
from delian.simulations.dst.host import Host

from .planting import Patch, mutant


@mutant("lost", "sum", "order", "attempt", "again", "machine", "once", seed=5)
def acknowledges_before_it_is_durable(patch: Patch) -> None:
    """A driver carries effects out before their events are in the journal."""
    append, carry_out = Host.append, Host.carry_out

    def effects_first(self: Any, batch: Any, crash: float = 2.0) -> None:
        carry_out(self, batch, crash)
        if batch.entries:
            append(self, batch, 2.0)

    patch.setattr(Host, "append", lambda self, batch, crash: None)
    patch.setattr(Host, "carry_out", effects_first)


@mutant("journal", "lost", "sum", "machine", "order", "progress", seed=2)
def does_not_sync(patch: Patch) -> None:
    """A journal writes and does not sync."""
    patch.setattr(MemoryDisk, "sync", lambda self, name: None)


@mutant("journal", "lost", "order", "attempt", "machine", seed=5)
def journals_too_little(patch: Patch) -> None:
    """A coordinator says of every event of a run that it changed nothing."""
    pass_on = Coordinator.pass_on

    def unchanged(self: Any, subject: Any) -> None:
        pass_on(self, subject)
        self.changed = False

    patch.setattr(Coordinator, "pass_on", unchanged)


@mutant("blob", seed=31)
def does_not_check_digests(patch: Patch) -> None:
    """A driver keeps a blob whatever it hashes to."""

    def keep(self: Any, blob: Any) -> bool:
        if blob.content:
            self.blobs[blob.digest] = blob.content
        return blob.digest in self.blobs

    patch.setattr(Host, "keep", keep)
