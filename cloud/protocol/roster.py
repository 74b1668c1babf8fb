"""The edges that the coordinator knows, and their ready devices: one pool for all runs.

It decides how many devices a run gets. Runs that want devices stand in a line, the one that took
devices longest ago first (a new run has never taken any), and then by number.

1. A run is offered what is ready, less what the runs before it in the line still wait for.
2. A synchronous run takes its whole cohort as soon as its offer is enough. Where fewer devices are
   there than it selects, all that are there are enough: it waits for no device that does not exist.
3. A run that can do with fewer (a buffered one, or a synchronous one that has waited its time)
   takes at most its equal part: the ready devices by the number of runs in the line, rounded up.
4. A run that has taken devices goes to the end of the line.

So none starves. A run's place only gets better until it takes; the first in the line holds the
others up for no longer than its waiting time, after which it takes its part; and while devices work
for other runs, too few ready ones do not count as a failed attempt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from ...core.privacy.secagg.helper import is_card
from ...core.protocol.ports import DEVICES_PER_EDGE_MAX, SECOND
from ...core.wire.admission_pb2 import NOT_CONSENTED, EdgeHello
from .coordinator_state import EdgeView
from .outlook import COULD_WORK, UNBOUNDED, Attendance

#: How long a device is remembered that is seen no more: one that comes back within this time is
#: not new. Longer than any usual task.
REMEMBERED_NS = 600 * SECOND
#: And so many devices of an edge, at most.
SEEN_MAX = 2 * DEVICES_PER_EDGE_MAX


@dataclass(frozen=True, slots=True)
class Offer:
    """What a run may take now."""

    devices: int  # at most so many
    part: int  # its equal part of the ready ones
    others: int  # devices that work for other runs or are kept for them; they will come back
    there: int = UNBOUNDED  # devices that are worth waiting for (`Attendance.bound`)


class Roster:
    """The devices behind the edges. Works on the coordinator's state.

    draining: edges that are taken out of service: no device is selected there.
    """

    def __init__(
        self, edges: dict[int, EdgeView], silence_ns: int, draining: Container[int] = ()
    ) -> None:
        self.edges = edges
        self._silence_ns = silence_ns
        self._draining = draining

    def is_new(self, message: EdgeHello) -> bool:
        """Whether it is the newest of its edge."""
        view = self.edges.get(message.edge)
        seen = (0, 0) if view is None else (view.incarnation, view.sequence)
        return (message.incarnation, message.sequence) > seen

    def keep(self, message: EdgeHello, now: int) -> bool:
        """Takes in an edge's newest view; returns whether the edge has restarted."""
        before = self.edges.get(message.edge)
        ready = list(message.ready)
        view = EdgeView(message.incarnation, message.sequence, now, ready)
        view.told_draining = message.told_draining
        card = message.helper
        if message.HasField("helper") and card.edge == message.edge and is_card(card):
            view.helper = card
        self.edges[message.edge] = view
        view.away = {device: away.reason for away in message.away for device in away.devices}
        view.idle = sum(len(away.devices) for away in message.away if away.reason in COULD_WORK)
        _remember(view, before, now)
        if before is None:
            return False
        if message.incarnation > before.incarnation:
            return True
        # One that is named in spite of its task may have been named before the task came.
        view.taken = {d: run for d, run in before.taken.items() if _holds(ready, d)}
        return False

    def ready(self, now: int) -> dict[int, int]:
        """Device -> its edge, of those that can be selected."""
        oldest = now - self._silence_ns
        ready: dict[int, int] = {}
        for edge, view in sorted(self.edges.items()):
            if view.heard_ns >= oldest and edge not in self._draining:
                taken = view.taken
                for device in view.ready:
                    if device not in taken:
                        ready.setdefault(device, edge)
        return ready

    def at_most(self) -> int:
        """No more than so many are ready; sooner known than how many."""
        return sum(len(v.ready) for e, v in self.edges.items() if e not in self._draining)

    def listed(self) -> int:
        """About so many are ready or idle, as edges say; sooner known than `attendance`."""
        views = (v for e, v in self.edges.items() if e not in self._draining)
        return sum(len(view.ready) + view.idle for view in views)

    def attendance(self, now: int, at_work: Mapping[int, int], absence_ns: int) -> Attendance:
        """All devices that are there.

        at_work: device -> the run that it works for. absence_ns: how long a device may take to come
        back from a task.
        """
        ready, idle, unconsented, unfit = self.ready(now), set[int](), set[int](), set[int]()
        oldest, grown, expires = now - self._silence_ns, 0, 0
        for edge, view in self.edges.items():
            if view.heard_ns < oldest or edge in self._draining:
                continue
            grown = max(grown, view.grown_ns)
            for device, reason in view.away.items():
                kind = unconsented if reason == NOT_CONSENTED else unfit
                (idle if reason in COULD_WORK else kind).add(device)
            for device, ended in view.due.items():
                if ended > now - absence_ns and device not in ready and device not in at_work:
                    idle.add(device)
                    expires = min(expires or ended + absence_ns, ended + absence_ns)
        working: dict[int, int] = {}
        for run in at_work.values():
            working[run] = working.get(run, 0) + 1
        taken = at_work.keys()
        idle -= ready.keys() | taken
        unconsented -= ready.keys() | taken | idle
        unfit -= ready.keys() | taken | idle | unconsented
        return Attendance(
            ready=len(ready.keys() - taken),
            idle=len(idle),
            unconsented=len(unconsented),
            unfit=len(unfit),
            working=working,
            grown_ns=grown,
            expires_ns=expires,
        )

    def take(self, run: int, chosen: dict[int, list[int]]) -> None:
        """These devices, by edge, work for the run from now on."""
        for edge, devices in chosen.items():
            view, taken = self.edges[edge], set(devices)
            view.ready = [d for d in view.ready if d not in taken]
            view.taken.update(dict.fromkeys(devices, run))

    def release(
        self, run: int, edge: int, devices: Iterable[int], there: Iterable[int], now: int
    ) -> None:
        """The run has no more use for these devices: they may be selected when they are ready.

        there: those of them that have answered, or could not any more; they will come back.
        """
        view = self.edges.get(edge)
        if view is not None:
            back = dict.fromkeys(there, now)
            view.seen.update(back)
            view.due.update(back)
            for device in devices:
                if view.taken.get(device) == run:
                    del view.taken[device]

    def release_all(self, run: int) -> None:
        """The run is over."""
        for view in self.edges.values():
            view.taken = {d: r for d, r in view.taken.items() if r != run}


def _remember(view: EdgeView, before: EdgeView | None, now: int) -> None:
    """Notes when the devices of a hello were seen, and whether some of them are new."""
    if before is not None:
        view.seen, view.grown_ns = before.seen, before.grown_ns
        view.due = {
            device: ended
            for device, ended in before.due.items()
            if device not in view.away and not _holds(view.ready, device)
        }
    known = len(view.seen)
    view.seen.update(dict.fromkeys(view.ready, now))
    view.seen.update(dict.fromkeys(view.away, now))
    if len(view.seen) > known:
        view.grown_ns = now
    listed = len(view.ready) + len(view.away)
    if len(view.seen) > 2 * listed:  # not at each hello: it takes as long as there are devices
        oldest = now - REMEMBERED_NS
        if len(view.seen) > SEEN_MAX:
            oldest = now - 1  # an edge that names ever other devices: those of this hello alone
        view.seen = {device: at for device, at in view.seen.items() if at > oldest}
        view.due = {device: at for device, at in view.due.items() if device in view.seen}


def _holds(ordered: list[int], device: int) -> bool:
    at = bisect_left(ordered, device)
    return at < len(ordered) and ordered[at] == device
