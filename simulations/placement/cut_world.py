"""Devices, edges and a cloud that run a cut model together, under a virtual clock.

The machines are those of real nodes (`core/placement/subgraphs`); here are their drivers. What a
part takes is predicted (a plan's seconds, times a node's speed and some noise); what travels takes
as long as its link's trace says. Nodes vanish and come back as the scenario says: an edge that
vanishes forgets everything, and those below notice after `detect_s`.

A world is a function of its seed: all that is random comes from named streams, and each event that
reaches a machine goes into a hash (`trace`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...core.placement.subgraphs.machines import part_ports
from ...core.placement.subgraphs.machines.asker import Asker, AskerSettings
from ...core.placement.subgraphs.machines.part_server import Server, ServerSettings
from ...core.placement.subgraphs.machines.request_table import Local
from ...core.protocol.ports import SECOND, Record, SetTimer, TimerFired
from ...core.protocol.random_streams import Streams
from ..federation.virtual_time import Schedule
from .cut_links import Action, Direction, Faults
from .links_over_time import LinkTrace


@dataclass(frozen=True, slots=True)
class Outage:
    """A node above the devices is away."""

    tier: int
    """1 an edge, 2 the cloud."""
    number: int
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Setup:
    """What a world is made of."""

    courses: tuple[part_ports.Course, ...]
    """The plan's cuts as the device sees them, of three tiers or two."""
    local: Local
    """The device's own programs.

    devices, edges: their numbers; a device's edge is its number modulo the edges'.
    """
    device_links: tuple[LinkTrace, ...]
    """By device, the trace of its link upwards."""
    edge_links: tuple[LinkTrace, ...]
    """By edge, the trace of its link upwards."""
    requests: tuple[tuple[int, ...], ...]
    """By device, when each is made (ns)."""
    nominal: part_ports.Link
    """What the device's machine assumes of its link before it has measured."""
    beyond: tuple[part_ports.Link, ...] = ()
    """What machines assume of the links above that one."""
    deadline_s: float = 1.0
    """After a request, when its answer is due."""
    noise: float = 0.02
    """Standard deviation of a run's time, as a share."""
    alike: float = 0.5
    """The share of a run's time that a batch pays once."""
    edge_rest: float = 4.0
    """How many times longer the cloud's part takes on an edge; inf: an edge cannot."""
    prepare_s: float = 0.1
    """To make a cut ready."""
    detect_s: float = 0.2
    outages: tuple[Outage, ...] = ()
    faults: Faults = field(default_factory=Faults)
    asker: AskerSettings = field(default_factory=AskerSettings)
    server: ServerSettings = field(default_factory=ServerSettings)


@dataclass(slots=True)
class Served:
    """One request of a device."""

    device: int
    ticket: int
    asked: int
    deadline: int
    answered: int | None = None
    by: part_ports.Work | None = None
    """None where it was refused (`failure`)."""
    fallback: bool = False
    cut: bytes = b""
    failure: part_ports.Failure | None = None
    answers: int = 0


@dataclass(frozen=True, slots=True)
class Switch:
    """A device's cut for its next requests changed."""

    device: int
    at: int
    before: bytes
    after: bytes
    up: float
    """The bandwidth that it estimated, bytes/s."""


class World:
    """Runs a setup; `served` and `switches` are what came of it."""

    def __init__(self, setup: Setup, seed: int) -> None:
        self.setup = setup
        self.streams = Streams(seed)
        self.schedule: Schedule[Action] = Schedule()
        self.served: list[Served] = []
        self.switches: list[Switch] = []
        self.hedged = 0
        #: (device, ns, estimated bytes a second up) whenever a request is made.
        self.estimated: list[tuple[int, int, float]] = []
        self._hash = hashlib.sha256(b"delian cut world v1")
        tiers = max((len(c.legs) for c in setup.courses), default=0)
        self.cloud = ServerNode(self, 2, 0, None) if tiers == 2 else None
        self.edges = [ServerNode(self, 1, e, self.cloud) for e in range(len(setup.edge_links))]
        if tiers == 0:
            self.edges = []
        self.devices = [
            DeviceNode(self, d, self.edges[d % len(self.edges)] if self.edges else None)
            for d in range(len(setup.device_links))
        ]

    def run(self) -> None:
        """Until nothing of the devices' requests is open any more."""
        for node in (*self.edges, *self.devices):
            if node.upper is not None:
                node.connect()
        for outage in self.setup.outages:
            nodes = self.edges if outage.tier == 1 else [self.cloud] if self.cloud else []
            if outage.number < len(nodes):
                node = nodes[outage.number]
                self.schedule.at(round(outage.from_s * SECOND), node.crash)
                self.schedule.at(round(outage.to_s * SECOND), node.restart)
        for device in self.devices:
            for at in self.setup.requests[device.number]:
                self.schedule.at(at, device.request)
        wanted = sum(map(len, self.setup.requests))
        while len(self.schedule) and (
            len(self.served) < wanted or any(len(d.machine) for d in self.devices)
        ):
            _, action = self.schedule.pop()
            action()

    def trace(self) -> str:
        """The hash of all that reached a machine."""
        return self._hash.hexdigest()

    def note(self, node: Node, event: part_ports.Event) -> None:
        line = f"{self.schedule.now} {node.tier} {node.number} {event!r}\n"
        self._hash.update(line.encode())

    def noise(self, node: Node) -> float:
        """A factor for one run's time."""
        node.draws += 1
        normal = self.streams.normal("cut noise", node.tier, node.number, node.draws)
        return max(0.2, 1.0 + self.setup.noise * normal)


class Node:
    """What nodes have in common: a machine, timers, runs, and the way up."""

    machine: Asker | Server

    def __init__(self, world: World, tier: int, number: int, upper: ServerNode | None) -> None:
        self.world, self.tier, self.number, self.upper = world, tier, number, upper
        self.draws = 0
        self.life = 0
        self.alive = True
        self._running: dict[int, bool] = {}
        self.up: Direction | None = None
        self.down: Direction | None = None
        if upper is not None:
            setup = world.setup
            links = setup.device_links if tier == 0 else setup.edge_links
            trace, ids = links[number], (tier, number)
            faults, streams, at = setup.faults, world.streams, world.schedule
            self.up = Direction(at, trace, True, streams, (*ids, 0), faults, self._taken)
            self.down = Direction(at, trace, False, streams, (*ids, 1), faults)

    # ------------------------------------------------ the machine

    def hear(self, event: part_ports.Event) -> None:
        """Lets the machine handle an event, and carries out what it wants."""
        if not self.alive:
            return
        self.world.note(self, event)
        for effect in self.machine.handle(event, self.world.schedule.now):
            self.carry(effect)

    def later(self, at: int, event: part_ports.Event) -> None:
        """An event at a time, unless the node has gone by then."""
        life = self.life
        self.world.schedule.at(at, lambda: self.hear(event) if self.life == life else None)

    def carry(self, effect: part_ports.Effect) -> None:
        match effect:
            case SetTimer(name, at):
                self.later(at, TimerFired(name))
            case part_ports.Run():
                seconds = self.seconds(effect) * self.world.noise(self)
                self.later(
                    self.world.schedule.now + round(seconds * SECOND),
                    part_ports.RunFinished(effect.run),
                )
            case part_ports.CancelRun():
                pass  # what runs cannot be stopped
            case part_ports.OpenCut(cut):
                self._open_above(cut)
            case part_ports.SendRequest():
                self._send(effect)
            case part_ports.CancelRequest(ticket):
                self._call_off(ticket)
            case part_ports.Probe(number, nbytes):
                self._probe(number, nbytes)
            case _:
                self.own(effect)

    def own(self, effect: part_ports.Effect) -> None:
        raise AssertionError(f"{type(effect).__name__} at tier {self.tier}")

    def course(self, cut: bytes) -> part_ports.Course:
        """A cut as this tier sees it."""
        whole = next(c for c in self.world.setup.courses if c.cut == cut)
        return seen_from(whole, self.tier, self.world.setup.edge_rest)

    def seconds(self, run: part_ports.Run) -> float:
        """What a run takes, but for noise."""
        setup = self.world.setup
        if run.work is part_ports.Work.WHOLE:
            alone = setup.local.whole
        elif run.work is part_ports.Work.SMALLER:
            alone = setup.local.smaller
        else:
            course = self.course(run.cut)
            alone = course.rest if run.work is part_ports.Work.REST else course.seconds[0]
        lanes = len(run.tickets)
        return alone * (setup.alike + (1.0 - setup.alike) * lanes)

    # ------------------------------------------------ upwards

    def connect(self) -> None:
        """There is a link upwards (again)."""
        assert self.up is not None and self.down is not None
        if self.upper is not None and self.upper.alive and self.alive:
            self.up.mended()
            self.down.mended()
            self.upper.peers[self.peer()] = self
            self.hear(part_ports.UpperBack())

    def lose(self) -> None:
        """The link upwards broke; noticed later."""
        assert self.up is not None and self.down is not None
        self.up.broke()
        self.down.broke()
        at = self.world.schedule.now + round(self.world.setup.detect_s * SECOND)
        self.later(at, part_ports.UpperGone())

    def peer(self) -> int:
        """This node's number for the tier above."""
        return self.number

    def _open_above(self, cut: bytes) -> None:
        assert self.upper is not None and self.up is not None
        upper, peer = self.upper, self.peer()
        self.up.tell(lambda: upper.hear(part_ports.OpenAsked(peer, cut)))

    def _send(self, effect: part_ports.SendRequest) -> None:
        assert self.upper is not None and self.up is not None
        upper, peer = self.upper, self.peer()
        ticket, cut, time = effect.ticket, effect.cut, effect.time
        first: list[int] = []
        leg = self.course(cut).legs[0]

        def arrived() -> None:
            upper.take(peer, ticket, cut, first[0] + time)

        self.up.send(ticket, leg.up, arrived, first.append)

    def _call_off(self, ticket: int) -> None:
        assert self.upper is not None and self.up is not None
        upper, peer = self.upper, self.peer()
        self.up.call_off(ticket)
        self.up.tell(lambda: upper.hear(part_ports.RequestCancelled(peer, ticket)))

    def _probe(self, number: int, nbytes: int) -> None:
        assert self.upper is not None and self.up is not None and self.down is not None
        upper, down = self.upper, self.down

        def arrived() -> None:
            above = upper.above()
            down.tell(lambda: self.hear(part_ports.ProbeAnswered(number, above)))

        self.up.send(("probe", number), nbytes, arrived)

    def _taken(self, taken: int, waiting: int, at: int) -> None:
        self.hear(part_ports.Taken(taken, waiting, at))


class DeviceNode(Node):
    """A device: requests come here, and answers."""

    machine: Asker

    def __init__(self, world: World, number: int, upper: ServerNode | None) -> None:
        super().__init__(world, 0, number, upper)
        setup = world.setup
        self.machine = Asker(setup.courses, setup.local, setup.nominal, setup.beyond, setup.asker)
        self._open: dict[int, Served] = {}
        self._tickets = 0

    def request(self) -> None:
        world = self.world
        self._tickets += 1
        now = world.schedule.now
        deadline = now + round(world.setup.deadline_s * SECOND)
        served = Served(self.number, self._tickets, now, deadline)
        world.served.append(served)
        self._open[self._tickets] = served
        world.estimated.append((self.number, now, self.machine.upper.link(now).up))
        self.hear(part_ports.Requested(self._tickets, deadline))

    def carry(self, effect: part_ports.Effect) -> None:
        if isinstance(effect, part_ports.SendRequest) or (
            isinstance(effect, part_ports.Run) and effect.work is part_ports.Work.PART
        ):
            for ticket in (
                effect.tickets if isinstance(effect, part_ports.Run) else (effect.ticket,)
            ):
                self._open[ticket].cut = effect.cut
        super().carry(effect)

    def own(self, effect: part_ports.Effect) -> None:
        now = self.world.schedule.now
        match effect:
            case part_ports.Answer(ticket, by, fallback):
                served = self._open[ticket]
                served.answered, served.by, served.fallback = now, by, fallback
                served.answers += 1
            case part_ports.Refuse(ticket, failure):
                served = self._open[ticket]
                served.failure = failure
                served.answers += 1
            case Record("switched", fields):
                self.world.switches.append(
                    Switch(self.number, now, fields["before"], fields["after"], fields["up"])
                )
            case Record("hedged", _):
                self.world.hedged += 1
            case _:
                super().own(effect)


class ServerNode(Node):
    """An edge or the cloud."""

    machine: Server

    def __init__(self, world: World, tier: int, number: int, upper: ServerNode | None) -> None:
        super().__init__(world, tier, number, upper)
        self.peers: dict[int, Node] = {}
        self._from: dict[int, tuple[int, int, bytes]] = {}  # ticket: (peer, sequence, cut)
        self._tickets = 0
        #: How many requests each run had.
        self.batches: list[int] = []
        self.machine = self._fresh()

    def _fresh(self) -> Server:
        setup = self.world.setup
        beyond = setup.beyond[0] if setup.beyond else part_ports.Link(125e6, 125e6, 0.01)
        return Server(setup.server, None if self.upper is None else beyond)

    def above(self) -> part_ports.Link | None:
        """Its own link upwards as it finds it."""
        upper = self.machine.upper
        return upper.link(self.world.schedule.now) if upper is not None and upper.present else None

    def crash(self) -> None:
        """The node is away, and has lost its state."""
        if not self.alive:
            return
        self.alive = False
        self.life += 1
        for node in self.peers.values():
            node.lose()
        self.peers.clear()
        self._from.clear()
        if self.upper is not None and self.up is not None and self.down is not None:
            self.up.broke()
            self.down.broke()
            upper, peer = self.upper, self.peer()
            upper.peers.pop(peer, None)
            later = self.world.schedule.now + round(self.world.setup.detect_s * SECOND)
            upper.later(later, part_ports.PeerGone(peer))

    def restart(self) -> None:
        """The node is back; those below dial it again once they know that it was away."""
        if self.alive:
            return
        self.alive = True
        self.machine = self._fresh()
        world = self.world
        again = world.schedule.now + round(2 * world.setup.detect_s * SECOND) + 1
        if self.upper is not None:
            world.schedule.at(again, self.connect)
        below: Sequence[Node] = world.devices if self.tier == 1 else world.edges
        for node in below:
            if node.upper is self:
                world.schedule.at(again, node.connect)

    def take(self, peer: int, sequence: int, cut: bytes, deadline: int) -> None:
        """A request is here."""
        if not self.alive:
            return
        self._tickets += 1
        self._from[self._tickets] = (peer, sequence, cut)
        self.hear(part_ports.RequestReceived(self._tickets, peer, sequence, cut, deadline))

    def carry(self, effect: part_ports.Effect) -> None:
        if isinstance(effect, part_ports.Run):
            cuts = {self._from[ticket][2] for ticket in effect.tickets}
            assert cuts == {effect.cut}, "a batch of several cuts"
            self.batches.append(len(effect.tickets))
        super().carry(effect)

    def own(self, effect: part_ports.Effect) -> None:
        match effect:
            case part_ports.Prepare(cut):
                self._prepare(cut)
            case part_ports.Opened(peer, cut, failure):
                self._tell(
                    peer,
                    part_ports.CutOpened(cut)
                    if failure is None
                    else part_ports.CutRefused(cut, failure),
                )
            case part_ports.Reply(ticket, spent, above):
                self._reply(ticket, spent, above)
            case part_ports.Refuse(ticket, failure):
                peer, sequence, _ = self._from.pop(ticket)
                self._tell(peer, part_ports.ReplyFailed(sequence, failure))
            case part_ports.Drop(ticket):
                del self._from[ticket]
            case Record() | part_ports.Unprepare():
                pass
            case _:
                super().own(effect)

    def _prepare(self, cut: bytes) -> None:
        world = self.world
        later = world.schedule.now + round(world.setup.prepare_s * SECOND)
        if any(c.cut == cut for c in world.setup.courses):
            self.later(later, part_ports.Prepared(self.course(cut)))
        else:
            self.later(later, part_ports.Unprepared(cut, part_ports.Failure.UNKNOWN))

    def _tell(self, peer: int, event: part_ports.Event) -> None:
        node = self.peers.get(peer)
        if node is not None and node.down is not None:
            node.down.tell(lambda: node.hear(event))

    def _reply(self, ticket: int, spent: int, above: part_ports.Link | None) -> None:
        peer, sequence, cut = self._from.pop(ticket)
        node = self.peers.get(peer)
        if node is None or node.down is None:
            return
        leg = node.course(cut).legs[0]
        node.down.send(
            sequence, leg.down, lambda: node.hear(part_ports.ReplyReceived(sequence, spent, above))
        )


def seen_from(course: part_ports.Course, tier: int, edge_rest: float) -> part_ports.Course:
    """A device's course as a tier further up sees it."""
    if tier == 0:
        return course
    above = course.legs[tier:]
    return replace(
        course,
        before=0 if course.seconds[tier] > 0 or not above else None,
        after=None,
        seconds=course.seconds[tier:],
        legs=above,
        rest=sum(course.seconds[tier + 1 :]) * edge_rest,
    )
