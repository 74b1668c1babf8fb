"""Validates edge sums; excludes edges and devices that sent invalid ones.

A sum that its edge cannot have made honestly is refused, and the attempt goes on without it. There
are three kinds:

- It does not fit: it is of devices that the edge was not given, or of one twice, its counts do not
  agree, or its elements are none of the ring. No device can make an honest edge send one, for an
  edge looks at what it adds up. After `REFUSALS_MAX` in a row the edge is set aside.
- It would fit, but has the update of a device in it that has no part in the attempt's session, and
  whose masks cannot be removed. The device may have uploaded out of turn, and the edge cannot
  know; so the device is suspected, and the edge has lost one attempt's sum. But devices sign
  neither sums nor that they are at an edge: an edge may name devices of others as ready, and forge
  such sums. So a device is suspected at the edge that sent the sum, and excluded at every edge
  when such sums have come from two.
- It would fit, and came before any device could mask: its devices uploaded out of turn, all that
  its edge was given. It is lost, as if they had dropped out, and no device or edge is set aside: a
  coordinator that was restored may have forgotten how far a session was.

Excluded and suspected devices and edges that are set aside are not selected again in this run
where there are enough others. A sum that fits puts an edge back. A coordinator cannot check the
numbers of a sum: nothing of a masked one, and of others only that honest devices may have the mean.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...core.protocol.machine import Output, Part
from ...core.protocol.ports import Node, Tier
from ...core.wire.round_pb2 import EdgeSum, EdgeSumAck
from .coordinator_state import Attempt, RunState
from .run_context import ring_of
from .run_plan import RunPlan
from .secure_rounds import Sessions

#: Devices that one run excludes, and that it suspects: the newest. Each sum has cost an edge's part
#: of an attempt, and a device that was dropped is found again by its next sum.
BARRED_MAX = 1_000
#: Sums in a row that no honest edge makes: then the edge is set aside. A single one may be the end
#: of something that its operator has mended since.
REFUSALS_MAX = 3


class Sums(Part[RunState]):
    """The sums of one run's attempts."""

    def __init__(self, state: RunState, out: Output, plan: RunPlan, sessions: Sessions) -> None:
        super().__init__(state, out)
        self.plan = plan
        self.sessions = sessions

    def is_good(self, attempt: Attempt, message: EdgeSum) -> bool:
        """Whether a sum is what its edge may send, and can be opened."""
        if not self._fits(attempt, message) or self._is_early(attempt, message):
            return False
        return not self.sessions.outsiders(attempt, message.devices)

    def add(self, attempt: Attempt, message: EdgeSum) -> None:
        """Takes in a sum that is good."""
        attempt.add(message, self.out.content(message.sum), ring_of(self.plan, self.state, attempt))
        self.state.refused.pop(message.edge, None)
        self.ack(message)

    def refuse(self, attempt: Attempt, message: EdgeSum) -> None:
        """Goes on without a sum that is not good."""
        edge = message.edge
        outsiders, early = [], False
        if self._fits(attempt, message):
            outsiders = self.sessions.outsiders(attempt, message.devices)
            early = self._is_early(attempt, message)
        self.record("refused_sum", edge=edge, strangers=outsiders)
        self.suspect(outsiders, edge)
        if not outsiders and not early:
            refused = self.state.refused
            refused[edge] = refused.get(edge, 0) + 1
            if refused[edge] == REFUSALS_MAX:
                self.record("edge_set_aside", run=self.plan.run, edge=edge)
        attempt.lose(edge)
        self.ack(message)

    def ack(self, message: EdgeSum) -> None:
        self.send(
            Node(Tier.EDGE, message.edge),
            EdgeSumAck(
                run=message.run, round=message.round, attempt=message.attempt, part=message.part
            ),
        )

    def suspect(self, devices: list[int], edge: int) -> None:
        """Does not select devices at this edge any more, in whose sum they were without a session.

        Devices that were in such a sum of another edge before are excluded everywhere.
        """
        state = self.state
        self.exclude([d for d in devices if state.doubted.get(d, edge) != edge])
        for device in devices:
            state.doubted.pop(device, None)
            state.doubted[device] = edge
        while len(state.doubted) > BARRED_MAX:
            del state.doubted[next(iter(state.doubted))]

    def exclude(self, devices: list[int]) -> None:
        """Selects devices that corrupted a sum only where there are too few others."""
        state = self.state
        if devices:
            self.record("barred", run=self.plan.run, devices=devices)
            newest = dict.fromkeys(sorted(devices))
            others = [d for d in state.barred if d not in newest]
            state.barred = [*others, *newest][-BARRED_MAX:]

    def eligible(self, ready: Mapping[int, int]) -> list[int]:
        """Of devices by their edges, those that may be selected, in increasing order."""
        state = self.state
        barred, doubted = set(state.barred), state.doubted
        aside = {edge for edge, sums in state.refused.items() if sums >= REFUSALS_MAX}
        return sorted(
            d
            for d, edge in ready.items()
            if d not in barred and doubted.get(d) != edge and edge not in aside
        )

    def _fits(self, attempt: Attempt, message: EdgeSum) -> bool:
        ring = ring_of(self.plan, self.state, attempt)
        return attempt.fits(message, self.out.content(message.sum), ring)

    def _is_early(self, attempt: Attempt, message: EdgeSum) -> bool:
        """Whether updates are in a sum although no device can have masked yet."""
        return len(message.devices) > 0 and self.sessions.is_early(attempt)
