"""Operations with regions as If and Loop, and lists as sequences.

A region becomes a graph within: its parameters are the outer tensors themselves, so constants of a
loop are no inputs. A loop's carries are the Loop's; a `switch` is a tree of Ifs. A list becomes a
sequence, whose last tensor is the top of the stack; lists in lists and lists with lanes have no
form in ONNX, whose sequences hold tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ....compiler.ir import Block, DType, ListType, Op, TensorType, Type
from .export_types import ELEMENT, IN_MOVE
from .graph_maker import GraphMaker

#: Writes one operation into the graph (`export_table.lower`).
Lower: TypeAlias = Callable[[GraphMaker, Op], None]
#: Nodes of a graph within; gives the names of its results.
Body: TypeAlias = Callable[[], Sequence[str]]


def _branch(g: GraphMaker, body: Body, types: Sequence[Type]) -> Any:
    with g.within() as scope:
        names = g.results(body())
        outputs = [g.info(n, t) for n, t in zip(names, types, strict=True)]
    return g.graph(scope, [], outputs)


def _chosen(
    g: GraphMaker, pred: str, then: Body, otherwise: Body, types: Sequence[Type]
) -> list[str]:
    """An If."""
    branches = {
        "then_branch": _branch(g, then, types),
        "else_branch": _branch(g, otherwise, types),
    }
    return g.emit("If", [pred], len(types), **branches)


def if_(g: GraphMaker, op: Op, lower: Lower) -> list[str]:
    pred, *names = (g.value(v) for v in op.operands)
    types = [r.type for r in op.results]
    bodies = [_inlined(g, region, names, lower) for region in op.regions]
    return _chosen(g, pred, bodies[0], bodies[1], types)


def _inlined(g: GraphMaker, region: Block, names: Sequence[str], lower: Lower) -> Body:
    return lambda: g.inline(region, names, lower)


def switch(g: GraphMaker, op: Op, lower: Lower) -> list[str]:
    """Ifs, halving the cases: the index takes the first where it is small, the last where large."""
    index, *names = (g.value(v) for v in op.operands)
    types = [r.type for r in op.results]
    cases = [_inlined(g, region, names, lower) for region in op.regions]

    def among(first: int, last: int) -> Sequence[str]:
        """The results of one of the cases from `first` to `last` - 1."""
        if last - first == 1:
            return cases[first]()
        middle = (first + last) // 2
        pred = g.node("Less", index, g.number(DType.I64, middle))
        halves = (lambda: among(first, middle)), (lambda: among(middle, last))
        return _chosen(g, pred, *halves, types)

    return list(among(0, len(cases)))


def _loop(
    g: GraphMaker,
    bounds: tuple[str, str],
    carries: Sequence[str],
    types: Sequence[Type],
    body: Callable[[str, Sequence[str]], tuple[str | None, Sequence[str]]],
) -> list[str]:
    """A Loop.

    bounds: the number of trips (or "") and the first condition. body: (trip, carries)
    -> the condition for another trip, None for the same one, and the carries after it.
    """
    with g.within() as scope:
        trip, going = g.fresh("trip"), g.fresh("going")
        held = [g.fresh("carry") for _ in carries]
        condition, after = body(trip, held)
        outputs = g.results([condition or going, *after])
        index, flag = TensorType(DType.I64), TensorType(DType.BOOL)
        inputs = _infos(g, [trip, going, *held], [index, flag, *types])
        made = _infos(g, outputs, [flag, *types])
    graph = g.graph(scope, inputs, made)
    return g.emit("Loop", [*bounds, *carries], len(carries), body=graph)


def _always(g: GraphMaker) -> str:
    """The condition of a loop that only counts; without one, ONNX's own evaluator does no trip."""
    return g.number(DType.BOOL, True)


def _infos(g: GraphMaker, names: Sequence[str], types: Sequence[Type]) -> list[Any]:
    return [g.info(n, t) for n, t in zip(names, types, strict=True)]


def while_(g: GraphMaker, op: Op, lower: Lower) -> list[str]:
    """The condition is computed before the loop, and after each trip."""
    count = op.attrs["consts"]
    names = [g.value(v) for v in op.operands]
    consts, carries = names[:count], names[count:]
    types = [r.type for r in op.results]
    cond, region = op.regions
    (first,) = g.inline(cond, names, lower)

    def body(trip: str, held: Sequence[str]) -> tuple[str, Sequence[str]]:
        after = g.inline(region, [*consts, *held], lower)
        (again,) = g.inline(cond, [*consts, *after], lower)
        return again, after

    return _loop(g, ("", first), carries, types, body)


def for_(g: GraphMaker, op: Op, lower: Lower) -> list[str]:
    count, (low, high) = op.attrs["consts"], op.operands[:2]
    names = [g.value(v) for v in op.operands[2:]]
    consts, carries = names[:count], names[count:]
    types = [r.type for r in op.results]
    (region,) = op.regions
    bounds = [g.known.get(v) for v in (low, high)]
    start = "" if bounds[0] is not None and int(bounds[0]) == 0 else g.value(low)
    if bounds[0] is not None and bounds[1] is not None:
        trips = g.number(DType.I64, max(int(bounds[1]) - int(bounds[0]), 0))
    else:
        difference = g.value(high) if not start else g.node("Sub", g.value(high), g.value(low))
        trips = g.node("Max", difference, g.number(DType.I64, 0))

    def body(trip: str, held: Sequence[str]) -> tuple[None, Sequence[str]]:
        index = g.node("Add", trip, start) if start else trip
        return None, g.inline(region, [index, *consts, *held], lower)

    return _loop(g, (trips, _always(g)), carries, types, body)


# Lists


def list_refusal(type_: Type) -> str:
    """Why a list has no form in ONNX; nothing where it has one."""
    if not isinstance(type_, ListType):
        return ""
    if type_.lanes:
        return "an array of lists has no form in ONNX, whose sequences are single"
    if isinstance(type_.element, ListType):
        return "a list of lists has no form in ONNX, whose sequences hold tensors"
    return ""


def _element(type_: Type) -> tuple[TensorType, DType]:
    """What a list holds, and the type of the sequence's tensors."""
    assert isinstance(type_, ListType) and isinstance(type_.element, TensorType)
    element = type_.element
    return element, IN_MOVE.get(element.dtype, element.dtype)


def list_empty(g: GraphMaker, op: Op) -> str:
    _, held = _element(op.results[0].type)
    return g.node("SequenceEmpty", dtype=ELEMENT[held])


def list_push(g: GraphMaker, op: Op) -> str:
    stack, item = (g.value(v) for v in op.operands)
    element, held = _element(op.results[0].type)
    return g.node("SequenceInsert", stack, g.cast(item, element.dtype, held))


def list_pop(g: GraphMaker, op: Op) -> list[str]:
    """The last tensor and the others; of an empty sequence zeros and itself."""
    stack = g.value(op.operands[0])
    kind = op.results[0].type
    element, held = _element(kind)
    last = g.number(DType.I64, -1)
    some = g.node("Greater", g.node("SequenceLength", stack), g.number(DType.I64, 0))

    def full() -> list[str]:
        top = g.node("SequenceAt", stack, last)
        return [g.node("SequenceErase", stack, last), g.cast(top, held, element.dtype)]

    def empty() -> list[str]:
        return [g.node("Identity", stack), g.zeros(element.dtype, element.shape)]

    return _chosen(g, some, full, empty, [kind, element])


def list_select(g: GraphMaker, op: Op) -> list[str]:
    pred, a, b = (g.value(v) for v in op.operands)
    return _chosen(g, pred, lambda: [a], lambda: [b], [op.results[0].type])


def list_add(g: GraphMaker, op: Op) -> list[str]:
    """Element by element from the top; below the shorter one's end, the longer one's own."""
    a, b = (g.value(v) for v in op.operands)
    kind = op.results[0].type
    element, held = _element(kind)
    zero = g.number(DType.I64, 0)
    sizes = [g.node("SequenceLength", x) for x in (a, b)]
    longest = g.node("Max", *sizes)
    below = [g.node("Sub", longest, size) for size in sizes]
    empty = g.node("SequenceEmpty", dtype=ELEMENT[held])

    def at(stack: str, place: str) -> str:
        return g.node("SequenceAt", stack, place)

    def body(trip: str, carried: Sequence[str]) -> tuple[None, Sequence[str]]:
        places = [g.node("Sub", trip, short) for short in below]
        there = [g.node("Not", g.node("Less", place, zero)) for place in places]

        def both() -> list[str]:
            total = g.node("Add", *[at(x, p) for x, p in zip((a, b), places, strict=True)])
            # Rounded to the element's type, where the sequence holds a wider one.
            return [g.cast(g.cast(total, held, element.dtype), element.dtype, held)]

        def one() -> list[str]:
            return _chosen(
                g, there[0], lambda: [at(a, places[0])], lambda: [at(b, places[1])], [wide]
            )

        wide = TensorType(held, element.shape)
        (total,) = _chosen(g, g.node("And", *there), both, one, [wide])
        return None, [g.node("SequenceInsert", carried[0], total)]

    return _loop(g, (longest, _always(g)), [empty], [kind], body)
