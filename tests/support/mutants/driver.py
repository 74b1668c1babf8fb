"""Planted bugs of what surrounds a machine: of the order of a driver, of journals and blobs."""

from __future__ import annotations

from typing import Any

from delian.cloud.protocol.machine import Coordinator
from delian.cloud.protocol.runs import Runs
from delian.core.node.driver.batches import Append, Batches, CarryOut
from delian.core.node.driver.timers import Timers
from delian.core.node.storage.memory_storage import MemoryDisk
from delian.simulations.dst.simulated_node import Host

from .planting import Patch, mutant, replace_action


@mutant("lost", "sum", "order", "attempt", "again", "machine", "once", seed=5)
def acknowledges_before_it_is_durable(patch: Patch) -> None:
    """A driver carries effects out before their events are in the journal."""
    batch = Batches.batch

    def effects_first(self: Any) -> Any:
        steps = list(batch(self))
        yield from (step for step in steps if isinstance(step, CarryOut))
        yield from (step for step in steps if not isinstance(step, CarryOut))

    patch.setattr(Batches, "batch", effects_first)


@mutant("lost", "sum", "order", "attempt", "again", "machine", "once", seed=5)
def journals_one_entry_less(patch: Patch) -> None:
    """A driver leaves the last entry of a batch of several out of the journal."""
    batch = Batches.batch

    def without_one(self: Any) -> Any:
        for step in batch(self):
            if isinstance(step, Append) and len(step.entries) > 1:
                step = step._replace(entries=step.entries[:-1])
            yield step

    patch.setattr(Batches, "batch", without_one)


@mutant("journal", "lost", "sum", "order", "machine", seed=5)
def checkpoints_before_the_batch(patch: Patch) -> None:
    """A driver takes a snapshot, then handles more, and then writes the snapshot it has taken."""
    checkpoint = Batches._checkpoint

    def stale(self: Any) -> Any:
        for step in checkpoint(self):
            before, self.stale = getattr(self, "stale", step), step
            yield before

    patch.setattr(Batches, "_checkpoint", stale)


@mutant("progress", "bounds", seed=2)
def loses_a_timer_that_is_set_again(patch: Patch) -> None:
    """A driver that is told to set a timer which is set drops both."""
    set_timer = Timers.set

    def drop_both(self: Any, name: str, at: int) -> Any:
        again = name in list(self)
        timer = set_timer(self, name, at)
        if again:
            self.cancel(name)
        return timer

    patch.setattr(Timers, "set", drop_both)


@mutant("journal", "lost", "sum", "machine", "order", "progress", seed=2)
def does_not_sync(patch: Patch) -> None:
    """A journal writes and does not sync."""
    patch.setattr(MemoryDisk, "sync", lambda self, name: None)


@mutant("journal", "lost", "order", "attempt", "machine", seed=5)
def journals_too_little(patch: Patch) -> None:
    """A coordinator says of every event of a run that it changed nothing."""
    pass_on = Runs.pass_on

    def unchanged(self: Any, subject: Any) -> bool:
        pass_on(self, subject)
        self.out.changed = False
        return False

    replace_action(patch, Coordinator, Runs, "pass_on", unchanged)


@mutant("blob", seed=31)
def does_not_check_digests(patch: Patch) -> None:
    """A driver keeps a blob whatever it hashes to."""

    def keep(self: Any, blob: Any) -> bool:
        if blob.content:
            self.blobs[blob.digest] = blob.content
        return blob.digest in self.blobs

    patch.setattr(Host, "keep", keep)
