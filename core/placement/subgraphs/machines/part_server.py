"""An edge's or the cloud's side of partitioned execution: parts for many askers, in batches.

A cut is opened before it is used. The driver derives its parts and makes them ready (`Prepare`);
where the cut goes on above, it is opened there too, and the asker is informed when both is done, or
when this node can run the rest itself. What was prepared stays while there is room.

A request is taken or refused at once: `UNKNOWN` where its asker has not opened the cut, `BUSY` when
too much is under way for it or in all, `LATE` when the answer could not be ready by its deadline.
One that comes twice is taken once. What is taken is answered once, replied to or refused; what is
past its deadline is not computed any more. Where the tier above fails, this node runs the rest if
it can.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from ....protocol.ports import SECOND
from . import part_ports as ports
from .cut_choice import predicted_s
from .request_table import Local, Request
from .run_queue import RunQueue
from .tier import TierRunner
from .upstream import Upper

#: Of each asker, the numbers of so many answered requests are remembered.
ANSWERED_MAX = 256


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits of a node that runs parts for others."""

    lanes: int = 16
    """Most requests in one run."""
    wait_ns: int = 0
    """How long the first request of a batch may wait for others."""
    workers: int = 1
    """Most runs at a time."""
    requests: int = 1024
    """Most requests at a time in all."""
    requests_per_peer: int = 64
    """Most requests at a time of one peer."""
    cuts: int = 256
    """Most cuts prepared in all."""
    cuts_per_peer: int = 64
    """Most cuts open for one peer."""
    peers: int = 10_000
    """Most peers at a time."""

    def __post_init__(self) -> None:
        limits = (self.lanes, self.workers, self.requests, self.requests_per_peer, self.cuts)
        assert min(*limits, self.cuts_per_peer, self.peers) >= 1 and self.wait_ns >= 0


@dataclass(slots=True)
class _Peer:
    """An asker."""

    cuts: set[bytes] = field(default_factory=set)
    tickets: dict[int, int] = field(default_factory=dict)
    """Tickets of its requests under way, by its own numbers for them."""
    answered: deque[int] = field(default_factory=lambda: deque(maxlen=ANSWERED_MAX))


@dataclass(slots=True)
class _Cut:
    """A cut."""

    course: ports.Course | None = None
    """None until it is prepared."""
    asked: set[int] = field(default_factory=set)
    """Askers that wait until it is open."""
    open: set[int] = field(default_factory=set)


class Server:
    """`handle(event, now) -> effects`. upper: the assumed link up; None for the cloud."""

    def __init__(
        self, settings: ServerSettings | None = None, upper: ports.Link | None = None
    ) -> None:
        self._settings = s = settings or ServerSettings()
        self.upper = Upper(upper) if upper is not None else None
        queue = RunQueue(s.lanes, s.wait_ns, s.workers)
        self._tier = TierRunner(
            self.upper, Local(), self._reply, self._refused, late=False, queue=queue
        )
        self._peers: dict[int, _Peer] = {}
        self._cuts: dict[bytes, _Cut] = {}  # in the order in which they were last opened
        self._of: dict[int, tuple[int, int]] = {}  # ticket: (peer, sequence)
        self.now = 0

    def __len__(self) -> int:
        """Requests that are not answered yet."""
        return len(self._tier.table)

    def handle(self, event: ports.Event, now: int) -> list[ports.Effect]:
        """What to do about an event at `now` ns."""
        assert now >= self.now, "time never falls"
        self.now = now
        if self.upper is not None:
            self.upper.use(now)  # askers choose by how it is; and an edge has no battery
        match event:
            case ports.OpenAsked(peer, cut):
                effects = self._open(peer, cut)
            case ports.CutClosed(peer, cut):
                effects = self._close(peer, cut)
            case ports.Prepared(course):
                effects = self._prepared(course)
            case ports.Unprepared(cut, failure):
                effects = self._unprepared(cut, failure)
            case ports.RequestReceived():
                effects = self._take(event)
            case ports.RequestCancelled(peer, sequence):
                effects = self._cancel(peer, sequence)
            case ports.PeerGone(peer):
                effects = self._peer_gone(peer)
            case _:
                effects = self._tier.hear(event, now)
                effects += self._tell_open()
        effects += self._tier.table.look(now)
        return effects + self._tier.settle(now)

    # ------------------------------------------------ cuts

    def _open(self, peer: int, cut: bytes) -> list[ports.Effect]:
        limits = self._settings
        known = self._peers.get(peer)
        if known is None:
            if len(self._peers) >= limits.peers:
                return [ports.Opened(peer, cut, ports.Failure.BUSY)]
            known = self._peers[peer] = _Peer()
        if cut not in known.cuts and len(known.cuts) >= limits.cuts_per_peer:
            return [ports.Opened(peer, cut, ports.Failure.BUSY)]
        effects: list[ports.Effect] = []
        entry = self._cuts.pop(cut, None)
        if entry is None:
            room = self._evict()
            if room is None:
                return [ports.Opened(peer, cut, ports.Failure.BUSY)]
            effects += [*room, ports.Prepare(cut)]
            entry = _Cut()
        self._cuts[cut] = entry
        known.cuts.add(cut)
        entry.asked.add(peer)
        return effects + self._tell_open()

    def _close(self, peer: int, cut: bytes) -> list[ports.Effect]:
        known, entry = self._peers.get(peer), self._cuts.get(cut)
        if known is not None:
            known.cuts.discard(cut)
        if entry is not None:
            entry.asked.discard(peer)
            entry.open.discard(peer)
        return []

    def _evict(self) -> list[ports.Effect] | None:
        """Room for one more cut; None where all are in use."""
        if len(self._cuts) < self._settings.cuts:
            return []
        busy = {request.course.cut for request in self._tier.table.requests.values()}
        for cut, entry in self._cuts.items():
            unused = not entry.asked and not entry.open and cut not in busy
            if entry.course is not None and unused:
                del self._cuts[cut]
                if self.upper is not None:
                    self.upper.forget(cut)
                return [ports.Unprepare(cut)]
        return None

    def _prepared(self, course: ports.Course) -> list[ports.Effect]:
        entry = self._cuts.get(course.cut)
        if entry is None or entry.course is not None:
            return []
        if not course.legs and course.before is None:
            return self._unprepared(course.cut, ports.Failure.MISFIT)
        entry.course = course
        effects: list[ports.Effect] = []
        if course.legs and self.upper is not None:
            effects += self.upper.want([course.cut], self.now)
        return effects + self._tell_open()

    def _unprepared(self, cut: bytes, failure: ports.Failure) -> list[ports.Effect]:
        entry = self._cuts.pop(cut, None)
        if entry is None:
            return []
        effects: list[ports.Effect] = []
        for peer in sorted(entry.asked):
            self._peers[peer].cuts.discard(cut)
            effects.append(ports.Opened(peer, cut, failure))
        return effects

    def _tell_open(self) -> list[ports.Effect]:
        """Informs askers of cuts whose state is known now."""
        effects: list[ports.Effect] = []
        for cut, entry in self._cuts.items():
            course = entry.course
            if not entry.asked or course is None:
                continue
            if course.legs and self.upper is not None and not self.upper.settled(cut):
                continue
            above = not course.legs or (self.upper is not None and self.upper.is_open(cut))
            can = above or course.rest < math.inf
            for peer in sorted(entry.asked):
                effects.append(ports.Opened(peer, cut, None if can else ports.Failure.LOST))
                if can:
                    entry.open.add(peer)
                else:
                    self._peers[peer].cuts.discard(cut)
            entry.asked.clear()
        return effects

    # ------------------------------------------------ requests

    def _take(self, event: ports.RequestReceived) -> list[ports.Effect]:
        peer = self._peers.get(event.peer)
        entry = self._cuts.get(event.cut)
        if peer is None or entry is None or entry.course is None or event.peer not in entry.open:
            return [ports.Refuse(event.ticket, ports.Failure.UNKNOWN)]
        if event.sequence in peer.tickets or event.sequence in peer.answered:
            return [ports.Drop(event.ticket)]
        failure = self._why_not(entry.course, peer, event.deadline)
        if failure is not None:
            return [ports.Refuse(event.ticket, failure)]
        peer.tickets[event.sequence] = event.ticket
        self._of[event.ticket] = (event.peer, event.sequence)
        return self._tier.table.begin(event.ticket, event.deadline, entry.course, self.now)

    def _why_not(self, course: ports.Course, peer: _Peer, deadline: int) -> ports.Failure | None:
        """Why a request is not taken."""
        limits, table, queue = self._settings, self._tier.table, self._tier.queue
        if len(table) >= limits.requests or len(peer.tickets) >= limits.requests_per_peer:
            return ports.Failure.BUSY
        if self.now >= deadline:
            return ports.Failure.LATE
        if not len(table):
            return None  # predictions may be wrong: an idle node tries
        upper, now = self.upper, self.now
        needs = queue.expected_s(course.seconds[0], now)
        if course.legs and upper is not None and upper.usable(course.cut):
            needs = predicted_s(course, upper.link(now), needs, upper.above_s(course, now))
        elif course.legs:
            needs += queue.expected_s(course.rest, now)
        ready = self.now + (queue.delay_s(self.now, deadline) + needs) * SECOND
        return ports.Failure.LATE if ready > deadline else None

    def _cancel(self, peer: int, sequence: int) -> list[ports.Effect]:
        known = self._peers.get(peer)
        ticket = known.tickets.get(sequence) if known is not None else None
        return [] if ticket is None else self._drop(ticket)

    def _drop(self, ticket: int) -> list[ports.Effect]:
        self._forget(ticket)
        return [*self._tier.table.forget(ticket, self.now), ports.Drop(ticket)]

    def _peer_gone(self, number: int) -> list[ports.Effect]:
        peer = self._peers.get(number)
        if peer is None:
            return []
        effects: list[ports.Effect] = []
        for ticket in list(peer.tickets.values()):
            effects += self._drop(ticket)
        for entry in self._cuts.values():
            entry.asked.discard(number)
            entry.open.discard(number)
        del self._peers[number]
        return effects

    def _forget(self, ticket: int) -> None:
        """The ticket is answered."""
        number, sequence = self._of.pop(ticket)
        peer = self._peers[number]
        del peer.tickets[sequence]
        peer.answered.append(sequence)

    # ------------------------------------------------ what the table says

    def _reply(self, request: Request) -> ports.Effect:
        self._forget(request.ticket)
        above = None
        if self.upper is not None and self.upper.present:
            above = self.upper.link(self.now)
        return ports.Reply(request.ticket, self.now - request.begun, above)

    def _refused(self, request: Request, failure: ports.Failure) -> ports.Effect:
        self._forget(request.ticket)
        return ports.Refuse(request.ticket, failure)
