"""Planted bugs of an edge: of what it counts, sums and remembers."""

from __future__ import annotations

from typing import Any

from delian.core.wire.round_pb2 import COUNTED, Failure
from delian.edge.protocol import collection, edge_actions
from delian.edge.protocol import machine as edge
from delian.edge.protocol.collection import Attempt, Collection
from delian.edge.protocol.edge_actions import Edge
from delian.edge.protocol.machine import EdgeMachine

from .planting import Patch, mutant, replace_action


@mutant("sum", seed=6)
def counts_twice(patch: Patch) -> None:
    """An edge adds a repeated upload again."""

    def again(self: Any, message: Any) -> None:
        if getattr(message, "vector", None) and self.state.total is not None:
            self._add(message.vector)

    replace_action(patch, Collection, Attempt, "ack_again", again)


@mutant("sum", "lost", seed=21)
def counts_late(patch: Patch) -> None:
    """An edge takes an answer of an earlier attempt for one of this."""
    read = EdgeMachine._read_device

    def read_any(self: Any, sender: Any, message: Any) -> Any:
        trigger, subject = read(self, sender, message)
        at_work = self.edge.at_work(sender.number)
        if trigger is edge.Trigger.LATE_ANSWER and at_work is not None:
            return edge.Trigger.ATTEMPT, at_work
        return trigger, subject

    patch.setattr(EdgeMachine, "_read_device", read_any)


@mutant("sum", "lost", "refused", "bounds", seed=1)
def counts_failures(patch: Patch) -> None:
    """An edge names a device in its sum that has said that there is no update."""
    count = Attempt.count

    def count_any(self: Any, message: Any) -> None:
        count(self, message)
        if isinstance(message, Failure):
            self.state.answers[message.device] = collection.IN_SUM

    replace_action(patch, Collection, Attempt, "count", count_any)


@mutant("lost", seed=1)
def says_counted_to_all(patch: Patch) -> None:
    """An edge tells COUNTED whatever became of the update."""
    ack = collection.ack
    patch.setattr(edge_actions, "ack", lambda message, status: ack(message, COUNTED))
    patch.setattr(collection, "ack", lambda message, status: ack(message, COUNTED))


@mutant("lost", "sum", "machine", seed=6)
def opens_closed_attempts(patch: Patch) -> None:
    """An edge opens an attempt again that is over, when its task comes again."""
    read = EdgeMachine._read_cloud

    def read_any(self: Any, message: Any) -> Any:
        trigger, subject = read(self, message)
        if trigger is edge.Trigger.STALE and isinstance(message, edge.EdgeTask):
            return edge.Trigger.TASK, message
        return trigger, subject

    patch.setattr(EdgeMachine, "_read_cloud", read_any)


@mutant("sum", "machine", "bounds", seed=13)
def loses_the_total_on_restart(patch: Patch) -> None:
    """An edge that starts again has forgotten its running sums."""
    restart = Edge.restart

    def forget(self: Any, stored: Any) -> None:
        for one in self.state.collections.values():
            one.total = None
        restart(self, stored)

    replace_action(patch, EdgeMachine, Edge, "restart", forget)


@mutant("progress", seed=89)
def repeats_no_sum(patch: Patch) -> None:
    """An edge sends each sum once."""

    def send(self: Any, _: object) -> None:
        """Whatever was lost is lost."""

    replace_action(patch, Collection, Attempt, "send_sums", send)


@mutant("lost", "progress", seed=27)
def drops_all_sums_at_one_ack(patch: Patch) -> None:
    """An edge forgets all parts of its sum when one is acknowledged."""
    drop = Attempt.drop_sum

    def drop_all(self: Any, message: Any) -> None:
        part = message.part
        self.state.outgoing = {part: self.state.outgoing[part]}
        self.state.sizes = {part: self.state.sizes[part]}
        drop(self, message)

    replace_action(patch, Collection, Attempt, "drop_sum", drop_all)


@mutant("bounds", seed=1)
def remembers_for_ever(patch: Patch) -> None:
    """An edge never forgets an attempt."""

    def remember(self: Any, name: str, closed: Any) -> None:
        self.state.closed[name] = closed

    patch.setattr(Edge, "_remember", remember)
