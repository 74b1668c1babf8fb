"""What of a program can be cut as a cut says, and the way of the token that runs it.

`split` describes the walk. Here it is values' numbers alone: where the token stops and which
operations it finds ready there, and what it carries over each link.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ...compiler.ir import Function, ListType, TensorType
from .cut import DEVICE, SHARED, TIERS_MAX, Cut, CutError
from .value_graph import Graph, graph_of
from .wire_formats import wires_of

#: More parts than this a program is not cut into: each is a turn on a link.
PARTS_MAX = 64
_HINT = "make the plan again with delian partition plan"


# ---------------------------------------------------------------- what can be cut so


@dataclass(frozen=True, slots=True)
class Planned:
    """A graph whose labels were looked at, one at a time."""

    graph: Graph
    homes: dict[int, int]
    updates: dict[int, int]


def planned(
    function: Function,
    resident: Collection[int],
    cut: Cut,
    returns: bool,
    owned: Collection[int],
    updates: Mapping[int, int] | None,
) -> Planned:
    """What `split` is asked for, once it is known to be possible but for lists and ceilings."""
    renewed = dict(sorted((updates or {}).items()))
    graph = graph_of(function, resident, {*owned, *renewed.values()})
    if any(not 0 <= k < len(graph.results) for k in renewed):
        raise ValueError(f"{function.name} has {len(graph.results)} results, not those given")
    if any(isinstance(graph.values[v].type, ListType) for v in graph.inputs):
        raise CutError(f"{function.name} takes a list, which cannot travel", "cut another program")
    _check_labels(graph, cut, returns)
    _check_wires(graph, cut)
    homes = _homes(graph, cut)
    for k, param in renewed.items():
        value = graph.results[k]
        made = graph.producer[value]
        fits = value == param if made < 0 else cut.labels[made] == homes[param]
        if not fits:
            name = function.param_names[param]
            raise CutError(f"the new value of `{name}` is not made on the tier that has it", _HINT)
    return Planned(graph, homes, renewed)


def _check_labels(graph: Graph, cut: Cut, returns: bool) -> None:
    function = graph.function
    ops, labels = function.body.ops, cut.labels
    if len(labels) != len(ops):
        raise CutError(
            f"a cut of {len(labels)} operations, where {function.name} has {len(ops)}",
            "it belongs to another program",
        )
    for n, (label, moves) in enumerate(zip(labels, graph.moves, strict=True)):
        if (label != SHARED) != moves:
            raise CutError(
                f"operation {n} of {function.name}, {ops[n].name},"
                + (" has no tier" if moves else " has a tier, and depends on nothing that moves"),
                _HINT,
            )
    for value, readers in enumerate(graph.consumers):
        made = graph.producer[value]
        if made < 0 or not readers or graph.shared(value):
            continue
        lowest = min([labels[n] for n in readers])
        if not returns and lowest < labels[made]:
            raise CutError(
                f"operation {made} of {function.name}, {ops[made].name}, is on tier {labels[made]}"
                f" and read on tier {lowest}: work comes back down",
                "only a cut for training may have that",
            )


def _check_wires(graph: Graph, cut: Cut) -> None:
    for value, wire in cut.wires.items():
        type = graph.values[value].type if value < len(graph.values) else None
        if not isinstance(type, TensorType) or wire not in wires_of(type):
            what = f"is {type}" if type is not None else "is not there"
            raise CutError(f"value {value} cannot travel as {wire}: it {what}", _HINT)


def _homes(graph: Graph, cut: Cut) -> dict[int, int]:
    homes = {}
    for param in sorted(graph.owned):
        tiers = {cut.labels[n] for n in graph.consumers[param]}
        if len(tiers) > 1:
            name = graph.function.param_names[param]
            raise CutError(f"`{name}` stays on one tier and is read on several", _HINT)
        homes[param] = tiers.pop() if tiers else DEVICE
    return homes


def check_ceilings(walk: Walk, ceilings: Mapping[int, int]) -> None:
    """Raises CutError where a value is made or goes above the highest tier that may see it."""
    graph = walk.graph
    for value in sorted(ceilings):
        made = graph.producer[value] if 0 <= value < len(graph.producer) else -1
        tier = walk.cut.labels[made] if made >= 0 else DEVICE
        for event in walk.events:
            if isinstance(event, Pass) and event.up and value in event.values:
                tier = max(tier, event.hop + 1)
        if tier > ceilings[value]:
            raise CutError(
                f"value {value} would be seen by tier {tier},"
                f" and may go no higher than {ceilings[value]}",
                "make a plan that keeps it below",
            )


# ---------------------------------------------------------------- the walk


@dataclass(slots=True)
class Visit:
    """The token at a tier: the operations that are run."""

    tier: int
    ops: list[int]
    extra: list[int] = field(default_factory=list)
    """Values that do not move, wanted as outputs."""


@dataclass(slots=True)
class Pass:
    """The token on a link."""

    hop: int
    up: bool
    turn: int
    values: set[int] = field(default_factory=set)


class Walk:
    """The token's way, and what it carries.

    Attributes:
        wanted: the values that are results and do not stay where they are.
        visits: in order. visit_of: by operation, the number of its visit.
        events: visits and passes in order.
    """

    def __init__(self, planned: Planned, cut: Cut) -> None:
        self.graph, self.homes, self.updates = planned.graph, planned.homes, planned.updates
        self.cut = cut
        self.wanted = [v for k, v in enumerate(self.graph.results) if k not in self.updates]
        self.visits = self._visits()
        self.visit_of = {n: k for k, visit in enumerate(self.visits) for n in visit.ops}
        self.events: list[Visit | Pass] = []
        self._starts: list[int] = []  # by visit, its place among the events
        self._lay_out()
        self._carry()

    def needs(self, visit: Visit) -> list[int]:
        """The values that a visit's operations read and others give, in order."""
        graph, own = self.graph, set(visit.ops)
        read = {v for n in visit.ops for v in graph.operands[n]}
        return sorted(
            v
            for v in read
            if graph.producer[v] not in own and not graph.shared(v) and v not in graph.owned
        )

    def _visits(self) -> list[Visit]:
        """Where the token goes, and what runs there."""
        graph, labels = self.graph, self.cut.labels
        waits = [0] * len(labels)
        feeds: list[set[int]] = [set() for _ in labels]
        for n, read in enumerate(graph.operands):
            if graph.moves[n]:
                made = {graph.producer[v] for v in read if not graph.shared(v)} - {-1}
                waits[n] = len(made)
                for m in made:
                    feeds[m].add(n)
        tiers = max(labels, default=DEVICE) + 1
        ready: list[list[int]] = [[] for _ in range(max(tiers, 1))]
        for n, moves in enumerate(graph.moves):
            if moves and not waits[n]:
                ready[labels[n]].append(n)
        first = [v for v in self.wanted if graph.shared(v)]
        visits = []
        if first or ready[DEVICE]:
            visits.append(Visit(DEVICE, [], list(dict.fromkeys(first))))
        here, up = DEVICE, True
        while any(ready):
            here, up = next_tier(here, up, ready)
            if not (visits and visits[-1].tier == here):
                visits.append(Visit(here, []))
            todo = ready[here]
            while todo:
                n = todo.pop()
                visits[-1].ops.append(n)
                for m in feeds[n]:
                    waits[m] -= 1
                    if not waits[m]:
                        ready[labels[m]].append(m)
            if len(visits) > PARTS_MAX:
                raise CutError(f"a cut into more than {PARTS_MAX} parts", _HINT)
        return self._put_off(visits)

    def _put_off(self, visits: list[Visit]) -> list[Visit]:
        """Defers what reads only values that its tier owns until its result is first read."""
        graph, labels = self.graph, self.cut.labels
        at = {n: k for k, visit in enumerate(visits) for n in visit.ops}
        wanted = {graph.producer[v] for v in self.wanted}
        last = {visit.tier: k for k, visit in enumerate(visits)}
        for n in reversed(range(len(labels))):
            if not graph.moves[n] or graph.fed[n] or n in wanted:
                continue
            readers = [c for v in graph.gives[n] for c in graph.consumers[v]]
            if all(labels[c] == labels[n] for c in readers):
                at[n] = min([at[c] for c in readers], default=last[labels[n]])
        for visit in visits:
            visit.ops = []
        for n in sorted(at):
            visits[at[n]].ops.append(n)
        kept: list[Visit] = []
        for visit in visits:
            if kept and kept[-1].tier == visit.tier:  # what was between them is put off
                kept[-1].ops += visit.ops
            elif visit.ops or visit.extra:
                kept.append(visit)
        return kept

    def _lay_out(self) -> None:
        """The visits with the passes between them, from the device and back to it."""
        here, turns = DEVICE, dict.fromkeys(range(TIERS_MAX), -1)
        stops: list[Visit | None] = [*self.visits, None]
        for visit in stops:
            target = DEVICE if visit is None else visit.tier
            while here != target:
                up = target > here
                hop = here if up else here - 1
                turns[hop] += up
                self.events.append(Pass(hop, up, turns[hop]))
                here += 1 if up else -1
            if visit is not None:
                self._starts.append(len(self.events))
                self.events.append(visit)

    def _carry(self) -> None:
        """Puts each value into the passes that it needs."""
        # Where a value is by now, and the tiers between: a stretch, for it travels along the line.
        stretch: dict[int, tuple[int, int]] = {}
        for k, visit in enumerate(self.visits):
            for value in self.needs(visit):
                self._bring(value, visit.tier, self._starts[k], stretch)
        for value in self.wanted:
            if not self.graph.shared(value) or not self.graph.travels(value):
                self._bring(value, DEVICE, len(self.events), stretch)

    def _bring(
        self, value: int, tier: int, before: int, stretch: dict[int, tuple[int, int]]
    ) -> None:
        if not self.graph.travels(value):  # nor from one part of a tier to another
            raise CutError(
                f"value {value} of {self.graph.function.name} stays within a part, and another"
                " needs it",
                "operations that share a list must be in one part",
            )
        made = self.graph.producer[value]
        home = DEVICE if made < 0 else self.cut.labels[made]
        low, high = stretch.get(value, (home, home))
        stretch[value] = min(low, tier), max(high, tier)
        up = tier > high
        hops = range(tier - 1, high - 1, -1) if up else range(tier, low)
        at = before
        for hop in hops:  # from where it is needed back to where it is
            at -= 1
            while not _is_pass(self.events[at], hop, up):
                at -= 1
            found = self.events[at]
            assert isinstance(found, Pass)
            found.values.add(value)


def _is_pass(event: Visit | Pass, hop: int, up: bool) -> bool:
    return isinstance(event, Pass) and event.hop == hop and event.up == up


def next_tier(here: int, up: bool, ready: Sequence[Sequence[int]]) -> tuple[int, bool]:
    """The nearest tier with work in the token's direction, else the nearest in the other."""
    if ready[here]:
        return here, up
    above = [k for k in range(here + 1, len(ready)) if ready[k]]
    below = [k for k in range(here - 1, -1, -1) if ready[k]]
    if above and (up or not below):
        return above[0], True
    return below[0], False
