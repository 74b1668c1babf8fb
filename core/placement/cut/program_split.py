"""From a program and a cut to its parts, and what each tier sends to another.

A part is a program of its own, made of the whole's operations as they are: nothing is rewritten, so
what is rounded once in the whole is rounded once, and alike, in a part. Operations that do not move
are copied into every part that reads them. Each part holds the operations of one tier that one
visit can run:

The tiers lie on a line and a token walks along it, from the device and back to it. Where the token
is, everything that can be computed is, and that is a part; then it goes on, first upwards and, when
nothing is ready further up, downwards. A program without work that comes back down (`returns`) is
one walk up and down: at most one part a tier, then the results go down.

    device   [0]──┐              ┌──          [0]──┐              ┌──[0]
    edge          └─[1]──┐    ┌──┘                 └─[1]──┐    ┌─[1]─┘
    cloud                └─[2]┘                           └─[2]┘
               a program that is run            a step of training

Each time that the token passes from a tier to the next it carries a message: the values that are
needed further on and were made, or have come, since. A value crosses a link once in its direction,
however many parts read it, and on the last walk that is early enough. What goes from the device to
the cloud is in a message to the edge, and again in the edge's to the cloud. So messages nest, as
requests and replies do: up on a link asks, down answers, and `Message.turn` counts.

The order of the results is the function's. The device has them all at the end, but for the new
values of what tiers own (`updates`), which stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from ...compiler.ir import Builder, Function, TensorType
from .cut import DEVICE, Cut
from .value_graph import Graph
from .walk import Pass, Visit, Walk, check_ceilings, planned


@dataclass(frozen=True, slots=True)
class Port:
    """A value at the boundary of parts."""

    value: int
    """Its number in the whole program."""
    type: TensorType
    wire: str
    """The number format in which it crosses, such as f16."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one tier computes at one time."""

    tier: int
    """The tier."""
    phase: int
    """Counts the tier's parts from 0."""
    program: Function
    """Its parameters are those of `resident`, then `inputs`; its results `outputs`, then the new
    values of `updates`.
    """
    resident: tuple[int, ...]
    """The numbers of the whole's parameters that this tier has, resident or owned."""
    inputs: tuple[Port, ...]
    """Values that the device was given, that came in a message, or that an earlier part of the tier
    kept.
    """
    outputs: tuple[Port, ...]
    """Values that others need, or a later part of the tier."""
    updates: tuple[int, ...] = ()
    """The numbers of owned parameters that have new values. They hold from the next run on: later
    parts of this one read the old.
    """
    lanes: int = 0
    """0, or how many requests `program` takes at once; then its inputs and results have one more
    axis in front, which the ports do not show.
    """


@dataclass(frozen=True, slots=True)
class Message:
    """What goes over a link at one time."""

    hop: int
    """Between tier `hop` and `hop + 1`."""
    up: bool
    turn: int
    """Counts the requests over this link from 0; the reply has its request's."""
    ports: tuple[Port, ...]
    """In order of their numbers; there may be none."""

    @property
    def sender(self) -> int:
        return self.hop if self.up else self.hop + 1

    @property
    def receiver(self) -> int:
        return self.hop + 1 if self.up else self.hop


Step: TypeAlias = Part | Message


@dataclass(frozen=True, slots=True)
class Parts:
    """A program cut into parts."""

    name: str
    """The whole's."""
    steps: tuple[Step, ...]
    """Parts and messages, in the order in which they happen."""
    resident: tuple[int, ...]
    """The numbers of its parameters that are resident or owned."""
    homes: Mapping[int, int]
    """By the number of an owned parameter, its tier."""
    inputs: tuple[Port, ...]
    """Its other parameters, which the device is given."""
    results: tuple[int, ...]
    """By result of the whole, the number of its value."""
    updates: Mapping[int, int]
    """By result that is the new value of an owned parameter, that parameter's number."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """In the order in which they run."""
        return tuple(s for s in self.steps if isinstance(s, Part))

    @property
    def messages(self) -> tuple[Message, ...]:
        """In the order in which they are sent."""
        return tuple(s for s in self.steps if isinstance(s, Message))

    @property
    def top(self) -> int:
        """The highest tier that takes part."""
        return max((m.receiver for m in self.messages), default=DEVICE)

    def of(self, tier: int) -> tuple[Part, ...]:
        """A tier's parts, by phase."""
        return tuple(p for p in self.parts if p.tier == tier)

    def crossing(self, hop: int, up: bool, turn: int | None = None) -> tuple[Port, ...]:
        """What goes over a link one way, in one turn or in all of them."""
        return tuple(
            port
            for m in self.messages
            if m.hop == hop and m.up == up and (turn is None or m.turn == turn)
            for port in m.ports
        )

    def steps_of(self, tier: int) -> tuple[Step, ...]:
        """What one tier does: its parts, and the messages that it takes or sends."""
        return tuple(
            s
            for s in self.steps
            if (s.tier == tier if isinstance(s, Part) else tier in (s.hop, s.hop + 1))
        )


def check(
    function: Function,
    resident: Collection[int],
    cut: Cut,
    *,
    returns: bool = False,
    owned: Collection[int] = (),
    updates: Mapping[int, int] | None = None,
    ceilings: Mapping[int, int] | None = None,
) -> None:
    """Raises CutError, in words, for a cut that `split` would refuse; makes no program."""
    walk = Walk(planned(function, resident, cut, returns, owned, updates), cut)
    check_ceilings(walk, ceilings or {})


def split(
    function: Function,
    resident: Collection[int],
    cut: Cut,
    *,
    returns: bool = False,
    owned: Collection[int] = (),
    updates: Mapping[int, int] | None = None,
    ceilings: Mapping[int, int] | None = None,
) -> Parts:
    """The parts of a function.

    Args:
        resident: the numbers of parameters that every tier has.
        returns: whether work may come back down, so that a tier runs several parts.
        owned: of parameters that one tier has. updates: by number of a result, the owned parameter
            that it is the new value of; these parameters are owned, whether `owned` names them or
            not.
        ceilings: by value's number, the highest tier that may see it.

    Raises:
        CutError: the cut has not a label for each operation, or one for what does not move; work
            comes back down though it may not; a list or something owned would have to travel; a
            wire does not fit its value; a value would go higher than its ceiling; or there would be
            more than `walk.PARTS_MAX` parts.
        ValueError: a parameter that the function has not.
    """
    walk = Walk(planned(function, resident, cut, returns, owned, updates), cut)
    check_ceilings(walk, ceilings or {})
    graph = walk.graph
    steps: list[Step] = []
    phases: dict[int, int] = {}
    visits = iter(enumerate(walk.visits))
    for event in walk.events:
        if isinstance(event, Pass):
            ports = tuple(_port(walk, v) for v in sorted(event.values))
            steps.append(Message(event.hop, event.up, event.turn, ports))
            continue
        n, visit = next(visits)
        phase = phases.get(visit.tier, 0)
        phases[visit.tier] = phase + 1
        steps.append(_part(walk, n, visit, phase))
    return Parts(
        name=function.name,
        steps=tuple(steps),
        resident=tuple(sorted(graph.resident | graph.owned)),
        homes=MappingProxyType(dict(walk.homes)),
        inputs=tuple(_port(walk, v) for v in graph.inputs),
        results=graph.results,
        updates=MappingProxyType(dict(walk.updates)),
    )


# ---------------------------------------------------------------- a part's program


def _part(walk: Walk, n: int, visit: Visit, phase: int) -> Part:
    graph = walk.graph
    updates = [
        (param, graph.results[k])
        for k, param in walk.updates.items()
        if walk.visit_of.get(graph.producer[graph.results[k]]) == n
    ]
    outputs = _outputs(walk, n, visit)
    inputs = walk.needs(visit)
    ops = sorted({*visit.ops, *_shared_ops(graph, visit.ops, outputs)})
    read = {v for m in ops for v in graph.operands[m]}.union(outputs)
    resident = sorted(read & (graph.resident | graph.owned))
    params = [graph.values[v] for v in (*resident, *inputs)]
    builder = Builder([p.type for p in params])
    mapping = dict(zip(params, builder.params, strict=True))
    for m in ops:
        builder.copy(graph.function.body.ops[m], mapping)
    results = [*outputs, *(v for _, v in updates)]
    program = Function(
        f"{graph.function.name}_tier{visit.tier}_phase{phase}",
        builder.finish([mapping[graph.values[v]] for v in results]),
        tuple(_name(graph, v) for v in (*resident, *inputs)),
        tuple(_name(graph, v) for v in results),
    )
    return Part(
        tier=visit.tier,
        phase=phase,
        program=program,
        resident=tuple(resident),
        inputs=tuple(_port(walk, v) for v in inputs),
        outputs=tuple(_port(walk, v) for v in outputs),
        updates=tuple(param for param, _ in updates),
    )


def _port(walk: Walk, value: int) -> Port:
    type = walk.graph.values[value].tensor
    return Port(value, type, walk.cut.wires.get(value, type.dtype.value))


def _outputs(walk: Walk, n: int, visit: Visit) -> list[int]:
    """The values of a visit that other visits read, or that are results."""
    graph, wanted = walk.graph, set(walk.wanted)
    return sorted(
        {
            v
            for m in visit.ops
            for v in graph.gives[m]
            if v in wanted or any(walk.visit_of[c] != n for c in graph.consumers[v])
        }.union(visit.extra)
    )


def _shared_ops(graph: Graph, ops: list[int], outputs: list[int]) -> set[int]:
    """The operations that do not move and that these operations and outputs need."""
    found: set[int] = set()
    todo = [graph.producer[v] for v in outputs] + [
        graph.producer[v] for m in ops for v in graph.operands[m]
    ]
    while todo:
        m = todo.pop()
        if m >= 0 and not graph.moves[m] and m not in found:
            found.add(m)
            todo += [graph.producer[v] for v in graph.operands[m]]
    return found


def _name(graph: Graph, value: int) -> str:
    """A parameter's or result's name, or the value's number."""
    if graph.producer[value] < 0:
        return graph.function.param_names[value]
    if value in graph.results:
        return graph.function.result_names[graph.results.index(value)]
    return f"v{value}"
