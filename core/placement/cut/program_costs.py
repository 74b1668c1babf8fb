"""A program as a placement problem, and a placement as a cut of the program.

    operations of a program   ->  items, tensors      (`problem_of`)
    labels of items           ->  labels of operations, wires of values   (`Model.cut`)

Items are the steps of the program, so that what is predicted is what runs: a fused loop is never
cut apart, which costs no good cut, since all that is computed in one runs over the same elements,
and what it reduces comes out small. Views, which cost nothing, are items of their own, so that a
slice can be made below a link and a broadcast above it; but a view of the same elements that one
item alone reads stays with its reader, where it is free, for a part's result is written out in a
row.

Operations that depend on no input (`value_graph.depends`) are no items: each part computes them for
itself, and their time counts with the first that reads them. The bytes of a weight count with the
first item that reads it, for items that share one nearly always share a tier; what the parts of a
cut really hold, working memory included, `memory_of` says, and `placed` keeps to it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...compiler.backends.native.kernels.kernels import scratch_bytes
from ...compiler.ir import Function, Op, TensorType, unshared
from ...compiler.passes.pipeline import lowered
from ...compiler.passes.schedule import memory_plan as memory
from ...compiler.passes.schedule.fuse import schedule
from ...compiler.passes.schedule.views import VIEWS
from .costs import op_seconds, steps_of
from .cut import SHARED, Cut
from .link_model import LinkProfile
from .price import price
from .problem import Hop, Item, Objective, Placement, PlacementError, Problem, Tensor, Wire
from .profile import NodeProfile
from .program_split import Parts, split
from .value_graph import Graph, bound_pairs, graph_of
from .wire_formats import wire_bytes, wires_of

#: Views of all elements of what they look at.
_SAME_ELEMENTS = frozenset(["reshape", "transpose", "reverse", "stop_gradient"])
_SAME_ORDER = frozenset(["reshape", "stop_gradient"])
#: How often limits are tightened where the parts need more than the items said.
TIGHTER_MAX = 8
MEMORY_HINT = "raise --memory, or let more tiers take part"


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked of a placement."""

    objective: Objective = field(default_factory=Objective)
    """What is least."""
    wires: tuple[str, ...] = ("f32",)
    """How tensors may be written where they cross; "f32" stands for as they are. Results always
    are.
    """
    ceilings: Mapping[int, int] = field(default_factory=dict)
    """By value's number, the highest tier that may see it: 0 for an input that must not leave the
    device.
    """
    pins: Mapping[int, int] = field(default_factory=dict)
    """By operation's number, the only tier that may run it."""
    memory: tuple[int | None, ...] = ()
    """By tier, bytes; None: no limit; empty: those of the profiles."""
    returns: bool = False
    """Whether work may come back down (training)."""
    owned: tuple[int, ...] = ()
    """Numbers of parameters that one tier has, which are trained."""
    updates: Mapping[int, int] = field(default_factory=dict)
    """By result, the owned parameter that it is the new value of: it stays where it is made."""
    ties: tuple[tuple[int, int], ...] = ()
    """Pairs of operations that must be on one tier."""


@dataclass(frozen=True, slots=True)
class Model:
    """A program and the problem that it is."""

    graph: Graph
    problem: Problem
    groups: tuple[tuple[int, ...], ...]
    """By item, the numbers of its operations."""
    values: tuple[int, ...]
    """By tensor, the number of its value."""
    options: Options

    def labels(self, items: Sequence[int]) -> tuple[int, ...]:
        """The labels of operations, from those of items."""
        out = [SHARED] * len(self.graph.moves)
        for item, ops in enumerate(self.groups):
            for op in ops:
                out[op] = items[item]
        return tuple(out)

    def cut(self, placement: Placement, bundle: str = "", program: str = "") -> Cut:
        """The cut that a placement is. A value has one wire: that of the first link it crosses."""
        wires = {
            self.values[t]: self.problem.tensors[t].wires[w].dtype
            for t, w in _first_wires(placement).items()
        }
        return Cut(self.labels(placement.labels), wires, bundle, program)

    def of_cut(self, cut: Cut) -> Placement:
        """The costs of a cut. Raises PlacementError for one that breaks a rule."""
        items = []
        for ops in self.groups:
            found = {cut.labels[op] for op in ops}
            if len(found) != 1:
                raise PlacementError("a cut through the middle of a fused loop")
            items.append(found.pop())
        return price(self.with_wires(cut.wires), items)

    def with_wires(self, wires: Mapping[int, str]) -> Problem:
        """The problem in which each value has the wire that a cut gives it."""
        tensors = tuple(
            replace(t, wires=tuple(w for w in t.wires if w.dtype == wires[v]) or t.wires[:1])
            if v in wires
            else replace(t, wires=t.wires[:1])
            for v, t in zip(self.values, self.problem.tensors, strict=True)
        )
        return replace(self.problem, tensors=tensors)

    def parts(self, cut: Cut) -> Parts:
        """The parts of a cut."""
        return split(
            self.graph.function,
            self.graph.resident,
            cut,
            returns=self.options.returns,
            owned=self.graph.owned,
            updates=self.options.updates,
            ceilings=self.options.ceilings,
        )


def _first_wires(placement: Placement) -> dict[int, int]:
    """By tensor that crosses, the wire on the first link that it crosses."""
    out: dict[int, int] = {}
    for c in sorted(placement.crossings, key=lambda c: (c.hop if c.up else -c.hop, not c.up)):
        out.setdefault(c.tensor, c.wire)
    return out


@dataclass(frozen=True, slots=True)
class Placed:
    """A placement whose parts fit."""

    model: Model
    """The model, with the limits that were needed."""
    placement: Placement
    """Priced with the wires of its cut."""
    cut: Cut
    memory: tuple[int, ...]
    """By tier, the bytes that its parts hold."""

    def wire(self, tensor: int) -> Wire:
        """How a tensor that crosses is written."""
        (wire,) = self.model.with_wires(self.cut.wires).tensors[tensor].wires
        return wire


def hop_of(link: LinkProfile, call_s: float, joules_per_byte: float) -> Hop:
    """A link as the problem has it: half of what calling the part above takes is on each way."""
    return Hop(link.up, link.down, link.latency_s + call_s / 2, joules_per_byte)


def problem_of(
    function: Function,
    resident: Collection[int],
    profiles: Sequence[NodeProfile],
    links: Sequence[LinkProfile],
    options: Options | None = None,
    seconds: Sequence[Sequence[float]] = (),
) -> Model:
    """The placement problem of a program.

    Args:
        resident: the numbers of parameters that every tier has.
        profiles: by tier, from the device up. links: by hop, one fewer.
        seconds: by tier, those of each operation; empty: what the profiles say (`op_seconds`).

    Raises PlacementError where profiles, links or limits do not fit one another.
    """
    options = options or Options()
    tiers = len(profiles)
    if len(links) != tiers - 1:
        raise PlacementError(f"{len(links)} links between {tiers} tiers")
    limits = options.memory or tuple(p.memory for p in profiles)
    if len(limits) != tiers:
        raise PlacementError(f"{len(limits)} memory limits for {tiers} tiers")
    graph = graph_of(function, resident, options.owned)
    found = seconds or [op_seconds(function, p) for p in profiles]
    times = [_of_moving(graph, s) for s in found]
    constants = _of_moving(graph, [_constant_bytes(op) for op in function.body.ops])
    groups = _groups(graph)
    item_of = {op: i for i, ops in enumerate(groups) for op in ops}
    items = _items(graph, groups, times, constants, profiles, options)
    values, tensors = _tensors(graph, item_of, profiles, options)
    pairs = ((item_of[a], item_of[b]) for a, b in (*bound_pairs(graph), *options.ties))
    ties = {(a, b) for a, b in pairs if a != b}
    work = arena_bytes(function) if any(m is not None for m in limits) else 0
    problem = Problem(
        items=tuple(items),
        tensors=tuple(tensors),
        hops=tuple(
            hop_of(link, upper.call_s, profiles[0].joules_per_byte or 0.0)
            for link, upper in zip(links, profiles[1:], strict=True)
        ),
        memory=tuple(None if m is None else max(m - work, 0) for m in limits),
        ties=tuple(sorted(ties)),
        returns=options.returns,
        objective=options.objective,
        start_s=profiles[0].call_s,
    )
    return Model(graph, problem, groups, values, replace(options, memory=tuple(limits)))


def memory_of(parts: Parts, tiers: int) -> tuple[int, ...]:
    """Bytes that each tier's parts hold: weights, boundary values, the largest arena."""
    out = [0] * tiers
    for tier in range(tiers):
        weights: dict[int, int] = {}
        work = constants = 0
        for part in parts.of(tier):
            for number, param in zip(part.resident, part.program.body.params, strict=False):
                weights[number] = param.tensor.nbytes
            ports = sum(p.type.nbytes for p in (*part.inputs, *part.outputs))
            work = max(work, ports + arena_bytes(part.program))
            constants += sum(map(_constant_bytes, part.program.body.ops))
        out[tier] = sum(weights.values()) + constants + work
    return tuple(out)


def arena_bytes(function: Function) -> int:
    """The working memory of one call, constants apart."""
    function = lowered(function)
    body = unshared(function.body)
    donated = memory.donations(function)
    taken = {j: body.params[i] for i, j in donated.items()}
    steps = schedule(body, [taken.get(j) for j in range(len(body.results))])
    place = memory.Place("constant", 0)
    return memory.plan(steps, lambda _: place, scratch_bytes, donated).arena_bytes


def placed(model: Model, solve: Callable[[Problem], Placement]) -> Placed:
    """Solves a problem so that the parts really fit.

    What they hold, weights and working memory, is looked at, and limits are tightened by what was
    too much.

    Raises PlacementError where no placement is found that fits.
    """
    for _ in range(TIGHTER_MAX):
        best = solve(model.problem)
        cut = model.cut(best)
        held = memory_of(model.parts(cut), model.problem.tiers)
        tighter = tightened(model, best, held)
        if tighter is model:
            exact = replace(model.of_cut(cut), bound=best.bound, optimal=best.optimal)
            return Placed(model, exact, cut, held)
        model = tighter
    raise PlacementError("no placement was found whose parts fit the memory", MEMORY_HINT)


def tightened(model: Model, placement: Placement, held: Sequence[int]) -> Model:
    """The model with the limits of tiers lowered by what a placement's parts hold beyond them.

    It is the same object where they fit. Raises PlacementError where nothing could fit.
    """
    wanted, now = model.options.memory, model.problem.memory
    if all(m is None or h <= m for h, m in zip(held, wanted, strict=True)):
        return model
    out: list[int | None] = []
    for limit, own, used, has in zip(wanted, now, placement.memory, held, strict=True):
        if limit is None or own is None or has <= limit:
            out.append(own)
            continue
        lower = min(own, used) - (has - limit)
        if lower < 0:
            raise PlacementError(
                f"a tier's {limit:,} bytes hold no part: one takes {has:,}", MEMORY_HINT
            )
        out.append(lower)
    return replace(model, problem=replace(model.problem, memory=tuple(out)))


# -- items


def _of_moving(graph: Graph, figures: Sequence[float]) -> list[float]:
    """Figures by operation; those of operations that do not move go to their first reader."""
    out = list(figures)
    reader: dict[int, int] = {}
    for n, read in enumerate(graph.operands):
        for v in read:
            reader.setdefault(graph.producer[v], n)
    for n, moves in enumerate(graph.moves):
        if not moves:
            if n in reader:
                out[reader[n]] += out[n]
            out[n] = 0.0
    return out


def _constant_bytes(op: Op) -> int:
    return op.result.tensor.nbytes if op.name == "constant" else 0


def _groups(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """The operations of each item, items in an order in which they could run."""
    count = len(graph.moves)
    root = list(range(count))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    for step in steps_of(graph.function):
        moving = [i for i in step.ops if graph.moves[i]]
        for i in moving[1:]:
            root[find(i)] = find(moving[0])
    _join_views(graph, root, find)
    for _ in range(2):
        groups: dict[int, list[int]] = {}
        for i in range(count):
            if graph.moves[i]:
                groups.setdefault(find(i), []).append(i)
        order, stuck = _ordered(graph, groups, find)
        if not stuck:
            return tuple(tuple(groups[g]) for g in order)
        for g in stuck:  # items that wait for one another come apart
            for i in groups[g]:
                root[i] = i
    raise AssertionError("operations are in order")


def _join_views(graph: Graph, root: list[int], find: Callable[[int], int]) -> None:
    """Views within an item are of it, and so are those of the same elements that it alone reads."""
    ops = graph.function.body.ops
    first = len(graph.function.body.params)
    results = set(graph.results)
    numbers: list[int] = []
    value = first
    for op in ops:
        numbers.append(value)
        value += len(op.results)
    made = list(graph.producer)  # by value: what computed it, before any view
    for i, op in enumerate(ops):
        if op.name in VIEWS:
            made[numbers[i]] = made[graph.operands[i][0]]
    for i in range(len(ops) - 1, -1, -1):
        if ops[i].name not in VIEWS or not graph.moves[i]:
            continue
        readers = {find(n) for n in graph.consumers[numbers[i]]}
        maker = made[numbers[i]]
        if maker >= 0 and find(maker) in readers:
            root[find(i)] = find(maker)
        elif len(readers) == 1 and ops[i].name in _SAME_ELEMENTS and numbers[i] not in results:
            root[find(i)] = readers.pop()
        elif ops[i].name in _SAME_ORDER and len(graph.consumers[graph.operands[i][0]]) == 1:
            # Several items read it: it is the same bytes as what it looks at, which nothing else
            # reads.
            maker = graph.producer[graph.operands[i][0]]
            if maker >= 0:
                root[find(i)] = find(maker)


def _ordered(
    graph: Graph, groups: Mapping[int, list[int]], find: Callable[[int], int]
) -> tuple[list[int], list[int]]:
    """Groups in an order in which they could run, and those that wait for one another."""
    after: dict[int, set[int]] = {g: set() for g in groups}
    waits: dict[int, set[int]] = {g: set() for g in groups}
    for g, ops in groups.items():
        for n in ops:
            for v in graph.operands[n]:
                maker = graph.producer[v]
                if maker >= 0 and graph.moves[maker] and find(maker) != g:
                    after[find(maker)].add(g)
                    waits[g].add(find(maker))
    ready = [(ops[0], g) for g, ops in groups.items() if not waits[g]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, g = heapq.heappop(ready)
        order.append(g)
        for h in after[g]:
            waits[h].discard(g)
            if not waits[h]:
                heapq.heappush(ready, (groups[h][0], h))
    done = set(order)
    return order, [g for g in groups if g not in done]


def _items(
    graph: Graph,
    groups: Sequence[Sequence[int]],
    times: Sequence[Sequence[float]],
    constants: Sequence[float],
    profiles: Sequence[NodeProfile],
    options: Options,
) -> list[Item]:
    counted: set[int] = set()
    items = []
    watts = [p.joules_per_second for p in profiles]
    roots = weight_roots(graph)
    for ops in groups:
        weights = {w for n in ops for v in graph.operands[n] for w in roots[v]} - counted
        counted |= weights
        held = sum(t.nbytes for t in _tensor_types(graph, weights))
        held += int(sum(constants[n] for n in ops))
        seconds = tuple(
            math.fsum(own[n] for n in ops) + len(weights) * p.argument_s
            for own, p in zip(times, profiles, strict=True)
        )
        pins = {options.pins[n] for n in ops if n in options.pins}
        if len(pins) > 1:
            raise PlacementError("operations of one fused loop are pinned to different tiers")
        # The device's battery is what energy is about: what other tiers use comes from a wall.
        joules = (seconds[0] * watts[0], *(0.0 for _ in seconds[1:])) if watts[0] else ()
        items.append(Item(seconds, held, joules, pins.pop() if pins else None))
    return items


def weight_roots(graph: Graph) -> list[frozenset[int]]:
    """The weights that reading each value takes: itself, or those that it is made of."""
    none: frozenset[int] = frozenset()
    count = len(graph.function.body.params)
    held = graph.resident | graph.owned
    out = [frozenset([v]) if v in held else none for v in range(count)]
    for n, op in enumerate(graph.function.body.ops):
        found = none.union(*(out[v] for v in graph.operands[n])) if not graph.moves[n] else none
        out.extend([found] * len(op.results))
    return out


def _tensor_types(graph: Graph, values: Collection[int]) -> list[TensorType]:
    return [t for v in values if isinstance(t := graph.values[v].type, TensorType)]


def _tensors(
    graph: Graph,
    item_of: Mapping[int, int],
    profiles: Sequence[NodeProfile],
    options: Options,
) -> tuple[tuple[int, ...], list[Tensor]]:
    results = {v for k, v in enumerate(graph.results) if k not in options.updates}
    values, tensors = [], []
    for v, readers in enumerate(graph.consumers):
        if graph.shared(v) or not graph.travels(v):
            continue
        op = graph.producer[v]
        producer = None if op < 0 else item_of[op]
        consumers = tuple(sorted({item_of[n] for n in readers} - {producer}))
        if not consumers and v not in results:
            continue
        values.append(v)
        wires = _wires(graph.values[v].tensor, profiles, options, v in results)
        ceiling = options.ceilings.get(v)
        tensors.append(Tensor(producer, consumers, wires, ceiling, v in results))
    return tuple(values), tensors


def _wires(
    type_: TensorType, profiles: Sequence[NodeProfile], options: Options, result: bool
) -> tuple[Wire, ...]:
    """The ways to write a tensor that are allowed; as it is where none of them fits."""
    own, *narrow = wires_of(type_)
    allowed = [own] if "f32" in options.wires or not narrow or result else []
    allowed += [] if result else [w for w in narrow if w in options.wires]
    out = []
    for wire in allowed or [own]:
        rates = [p.encode_s.get(wire, p.encode_s.get("f32", 0.0)) for p in profiles]
        nbytes = wire_bytes(type_, wire)
        out.append(Wire(wire, nbytes, type_.nbytes * math.fsum(rates) / len(rates)))
    return tuple(out)
