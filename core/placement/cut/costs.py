"""What each operation of a program costs on a node, by the steps that the back end makes of it.

A program does not run operation by operation: views cost nothing, chains of arithmetic and the
reductions at their ends are one loop, a product gives its tiles to the loop that reads it
(`passes.fuse`). So the program is fused here as the native back end fuses it, each step is
described by its class and sizes,

    product             rows, depth, columns, batch          2 * rows * depth * columns * batch
    convolution[_back]  pixels, inputs, outputs, window      2 * their product
    depthwise[_back]    pixels, channels, window             2 * their product
    loop                elements, inner, units               elements * units
    tile                elements, units                      elements * units
    rows, columns       elements, inner, units               elements
    move                bytes                                bytes

and takes the amount in the last column over the rate of the samples of that class nearest to it in
the logarithms of the sizes, the nearer the heavier (Shepard, "A two-dimensional interpolation
function for irregularly-spaced data", 1968). The unit of a loop is what the IR's cost rows count,
and one for each number read or written, twice as much where numbers are twice as wide; `inner` is
how far its innermost loop runs. Rows and columns are loops that end in reductions, over the
innermost loop or over outer ones alone; there additions wait for one another, and arithmetic
besides them is nearly free. A tile is what a product's tiles go through. Functions such as exp have
seconds an element of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...common.errors import DelianError, Loc
from ...compiler.ir import Array, Block, DType, Function, ListType, Op, Value, unshared
from ...compiler.passes.lowering.attention_products import NAMES as ATTENTION
from ...compiler.passes.pipeline import lowered
from ...compiler.passes.schedule.block_steps import (
    Call,
    Loop,
    Schedule,
    is_elementwise,
    operands_of,
)
from ...compiler.passes.schedule.fuse import schedule
from ...compiler.passes.schedule.memory_plan import donations
from ...compiler.passes.schedule.product_layouts import product
from ...compiler.passes.schedule.views import collapse, contiguous_strides, strides_in
from ...compiler.primitives import PRIMITIVES
from .profile import CLASSES, NodeProfile, Sample

#: The neighbours that a rate is worked out from, and how near two are alike: where memory happened
#: to lie makes one sample by itself uncertain.
_NEIGHBOURS = 4
_NEAR = 0.02
#: How much each size counts in a distance, where not 1: how many pixels, elements or batches there
#: are changes a rate less than how wide they are.
_WEIGHTS: Mapping[str, tuple[float, ...]] = {
    "product": (1.0, 0.6, 0.6, 0.3),
    "convolution": (0.3, 1.0, 1.0, 1.0),
    "convolution_back": (0.3, 1.0, 1.0, 1.0),
    "depthwise": (0.3, 1.0, 1.0),
    "depthwise_back": (0.3, 1.0, 1.0),
    "loop": (0.5, 1.0, 1.0),
    "tile": (0.5, 1.0),
    "rows": (0.5, 1.0, 1.0),
    "columns": (0.5, 1.0, 1.0),
    "move": (1.0,),
}
#: An operation that costs as many additions an element or more is timed by itself.
_FUNCTION_UNITS = 4
#: No step takes less.
STEP_S = 2e-8
#: Trips of a loop whose end is not in the program. A guess; a measurement knows.
TRIPS = 10
#: Numbers of f32 in the widest vector.
_LANES = 16
#: How many times as long a function takes one number after the other.
_ONE_BY_ONE = 5.0
#: Bytes of the number that a unit is about.
_WIDTH = 4
_TAG = "#"
_PRODUCTS = ("conv", "grouped_conv")
#: What reads or writes only some places of its first operand.
_IN_PLACE = {"put_add": 2, "put_along_add": 2, "dynamic_update": 1}


@dataclass(frozen=True, slots=True)
class Work:
    """What a step does, by class."""

    kind: str
    sizes: tuple[float, ...]
    functions: tuple[tuple[str, float], ...] = ()
    """(name, elements) of what is timed by itself."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a program."""

    ops: tuple[int, ...]
    """Numbers of the body's operations that it computes; empty for a copy for the results."""
    works: tuple[Work, ...]
    """What it does each time."""
    trips: float
    """How often a call runs it."""
    names: tuple[str, ...]
    """As the timed program has them."""
    timed: bool
    """Whether that times it."""


def amount(kind: str, sizes: Sequence[float]) -> float:
    """What a rate is a rate of: the last column of the table above."""
    if kind in ("loop", "tile"):
        return sizes[0] * sizes[-1]
    if kind in ("rows", "columns"):
        return sizes[0]
    return math.prod(sizes) * (1.0 if kind == "move" else 2.0)


def nominal(name: str, flops: float) -> NodeProfile:
    """A node that was not measured: so many operations a second, whatever they are.

    Memory of a byte an operation, and no time for calls. Where the cut matters, measure.
    """
    ones = {kind: (1.0,) * len(sizes) for kind, sizes in CLASSES.items()}
    samples = {kind: (Sample(one, amount(kind, one) / flops),) for kind, one in ones.items()}
    every = {"f32": 0.0, "f16": 1.0 / flops, "i8": 1.0 / flops}
    return NodeProfile(name, "", "", 1, samples, {}, flops, None, 0.0, 0.0, every)


class Rates:
    """A profile made ready to be asked."""

    def __init__(self, profile: NodeProfile) -> None:
        self._element_s = profile.element_s
        self._known: dict[str, tuple[Array, Array]] = {}
        for kind, samples in profile.samples.items():
            if not samples:
                continue
            sizes = np.array([s.sizes for s in samples], np.float64)
            rates = [amount(kind, s.sizes) / s.seconds for s in samples]
            self._known[kind] = np.log(sizes), np.log(np.array(rates))
        self._asked: dict[Work, float] = {}

    def seconds(self, work: Work) -> float:
        """The seconds of a piece of work."""
        found = self._asked.get(work)
        if found is None:
            found = self._asked[work] = self._seconds(work)
        return found

    def _seconds(self, work: Work) -> float:
        total = 0.0
        sizes = work.sizes
        for name, elements in work.functions:
            each = self._element_s.get(name)
            if each is None:  # no such sample: as long as its row says
                sizes = (*sizes[:-1], sizes[-1] + 2 * _FUNCTION_UNITS)
            else:
                total += each * elements * _filled(work)
        todo = amount(work.kind, sizes)
        if not todo:
            return total
        if "loop" not in self._known:
            raise DelianError("a node's profile without loops", "measure it with delian profile")
        logs, rates = self._known.get(work.kind, self._known["loop"])
        if work.kind not in self._known:
            return total + todo / math.exp(float(np.median(rates)))
        point = np.log(np.maximum(np.array(sizes), 1e-9))
        distances = (((logs - point) * _WEIGHTS[work.kind]) ** 2).sum(axis=1)
        near = np.argsort(distances, kind="stable")[:_NEIGHBOURS]
        weights = 1.0 / (distances[near] + _NEAR)
        rate = math.exp(float((weights * rates[near]).sum() / weights.sum()))
        return total + todo / rate


def _filled(work: Work) -> float:
    """How many times as long functions take where the innermost loop does not fill its vectors."""
    inner = work.sizes[1] if work.kind != "tile" else _LANES
    if inner < _LANES:
        return _ONE_BY_ONE
    return math.ceil(inner / _LANES) * _LANES / inner


def op_seconds(function: Function, profile: NodeProfile) -> tuple[float, ...]:
    """The seconds that each operation of a program's body takes on a node.

    Measured ones where the profile has them, else by class. A step's are shared among its
    operations: a product in it has all, else each has as much. Views have none.
    """
    from ...compiler.ir_codec import content_hash

    found = profile.programs.get(content_hash(function))
    if found is not None and len(found) == len(function.body.ops):
        return found
    return modelled_seconds(function, profile)


def modelled_seconds(function: Function, profile: NodeProfile) -> tuple[float, ...]:
    """As `op_seconds`, always by class."""
    rates = Rates(profile)
    out = [0.0] * len(function.body.ops)
    for step in steps_of(function):
        seconds = step.trips * max(sum(map(rates.seconds, step.works)), STEP_S)
        share(function, step, seconds, out)
    return tuple(out)


def share(function: Function, step: Step, seconds: float, out: list[float]) -> None:
    """Adds the seconds of a step to those of its operations."""
    ops = function.body.ops
    chosen = [i for i in step.ops if ops[i].name == "dot" or ops[i].name.startswith(_PRODUCTS)]
    chosen = chosen[:1] or list(step.ops)
    for i in chosen:
        out[i] += seconds / len(chosen)


def steps_of(function: Function) -> list[Step]:
    """The steps of a program, in order, as the native back end runs them."""
    small = lowered(tagged(function))
    block = unshared(small.body)
    maker = {r: op for op in block.ops for r in op.results}
    taken = {j: block.params[i] for i, j in donations(small).items()}
    plan = schedule(block, [taken.get(j) for j in range(len(block.results))])
    out: list[Step] = []
    for n, step in enumerate(plan.steps):
        own = ops_of(step)
        makers = [maker[v] for v in operands_of(step) if v in maker]
        for candidates in (own, _readers(plan, n) if not own else [], makers):
            ops = {p.line for op in candidates for p in op.locs if p.file == _TAG}
            if ops:
                break
        out += _flat(step, plan, tuple(sorted(ops)), 1.0)
    return out


def tagged(function: Function) -> Function:
    """The program with each operation's number as its place in the source, for all passes."""

    def tag(op: Op, place: tuple[Loc, ...]) -> Op:
        regions = tuple(
            Block(r.params, [tag(inner, place) for inner in r.ops], r.results) for r in op.regions
        )
        return Op(op.name, op.operands, op.results, op.attrs, regions, place)

    body = function.body
    ops = [tag(op, (Loc(_TAG, i, 0, i, 0),)) for i, op in enumerate(body.ops)]
    return function.with_body(Block(body.params, ops, body.results))


# -- steps


def ops_of(step: Loop | Call) -> list[Op]:
    """What a step computes; nothing in a copy."""
    if isinstance(step, Call):
        return [step.op]
    calls = [c.op for c in (step.fused, step.product) if c is not None]
    return [*calls, *step.ops, *step.reductions]


def _readers(plan: Schedule, n: int) -> list[Op]:
    """What a copy is made for."""
    copy = plan.steps[n]
    assert isinstance(copy, Loop), "a call is no copy"
    bases = {c for c, _ in copy.stores}
    for step in plan.steps[n + 1 :]:
        views = (plan.views[v].base for v in operands_of(step) if v in plan.views)
        if not bases.isdisjoint(views):
            return ops_of(step)[:1]
    return []


def _flat(step: Loop | Call, plan: Schedule, ops: tuple[int, ...], trips: float) -> Iterator[Step]:
    """A step, or those of its regions, in the order of the text."""
    if isinstance(step, Loop) and step.blank:
        return
    if isinstance(step, Call) and step.bodies:
        rounds = trips * _trips(step, plan)
        for body in step.bodies:
            for inner in body.steps:
                yield from _flat(inner, body, ops, rounds)
        return
    names = tuple(op.name for op in ops_of(step)) or ("copy",)
    timed = not (isinstance(step, Call) and is_elementwise(step.op))
    yield Step(ops, tuple(_works(step, plan)) if timed else (), trips, names, timed)


def _trips(call: Call, plan: Schedule) -> float:
    """How often the regions of an operation run."""
    if call.op.name in ("if", "switch"):
        return 1.0 / len(call.bodies) if call.op.name == "switch" else 0.5
    if call.op.name == "for":
        ends = [plan.views[v].base for v in call.op.operands[:2]]
        if all(v in plan.constants for v in ends):
            low, high = (int(plan.constants[v]) for v in ends)
            return float(max(high - low, 0))
    return float(TRIPS) if call.op.name in ("for", "while") else 1.0


def _works(step: Loop | Call, plan: Schedule) -> Iterator[Work]:
    if isinstance(step, Loop):
        for call in (step.fused, step.product):
            if call is not None:
                yield _call_work(call, plan)
        yield _loop_work(step, plan)
    elif step.op.name in ATTENTION:
        yield from _attention(step.op)
    else:
        yield _call_work(step, plan)


def _call_work(call: Call, plan: Schedule) -> Work:
    op = call.op
    if op.name == "dot":
        p = product(op, *(plan.views[v] for v in call.operands))
        batch = math.prod(size for size, _, _ in p.batch)
        rows, columns = (p.m, p.n) if p.n > 1 else (p.n, p.m)
        return Work("product", (rows, max(p.k, 1), columns, batch))
    if op.name.startswith(_PRODUCTS):
        return _convolution(op)
    if op.name in _IN_PLACE:
        moved = float(op.operands[_IN_PLACE[op.name]].tensor.nbytes)
        return Work("move", (max(moved, 1.0),))
    moved = sum(r.tensor.nbytes for r in op.results if not isinstance(r.type, ListType))
    cost = float(PRIMITIVES[op.name].cost(op))
    if cost > moved:
        return Work("loop", (cost, cost, 1.0))
    return Work("move", (max(float(moved), 1.0),))


def _attention(op: Op) -> Iterator[Work]:
    """Products of each head, and what becomes of its scores; with `causal`, of those seen alone."""
    (n, t, h, d), (_, s, _, e) = op.operands[0].shape, op.operands[2].shape
    heads, square = n * h, min(s, t)
    seen = s * t
    if op.attrs["causal"]:
        seen = square * max(s - t, 0) + square * (square + 1) // 2
    keys, back = max(seen / t, 1.0), op.name == "attention_grad"
    for _ in range(3 if back else 1):
        yield Work("product", (t, d, keys, heads))
    for _ in range(2 if back else 1):
        yield Work("product", (t, keys, e, heads))
    scores = float(heads * t * keys)
    yield Work("loop", (scores, keys, 6.0 if back else 3.0), (("exp", scores),))


def _convolution(op: Op) -> Work:
    """Pixels are those of the output, whichever of the three tensors is computed."""
    back = "" if op.name in _PRODUCTS else "_back"
    if op.name.endswith("_weight_grad"):
        kernel, output = op.result.shape, op.operands[1].shape
    else:
        kernel = op.operands[1].shape
        output = op.operands[0].shape if back else op.result.shape
    window, pixels = float(kernel[0] * kernel[1]), float(math.prod(output[:3]))
    if op.name.startswith("grouped"):
        return Work(f"depthwise{back}", (pixels, float(output[3]), window))
    return Work(f"convolution{back}", (pixels, float(kernel[2]), float(kernel[3]), window))


def function_name(op: Op) -> str:
    """What a profile calls a function: "exp", and "exp.f64" where numbers are not f32."""
    dtype = op.operands[0].dtype
    return op.name if dtype is DType.F32 else f"{op.name}.{dtype.value}"


def _loop_work(loop: Loop, plan: Schedule) -> Work:
    elements = float(math.prod(loop.extents)) or 1.0
    made = None if loop.product is None else loop.product.op.result
    loads = [v for v in loop.loads if v is not made]
    units, functions = 0.0, []
    for op in (*loop.ops, *loop.reductions):
        each = PRIMITIVES[op.name].cost(op) / elements
        if each >= _FUNCTION_UNITS or op.name in ("div", "sqrt"):
            functions.append((function_name(op), elements))
        else:
            units += each * op.operands[0].dtype.itemsize / _WIDTH
    moved = [v for v in loads if any(plan.views[v].strides)] + [copy for copy, _ in loop.stores]
    units += sum(v.dtype.itemsize for v in moved) / _WIDTH
    if made is not None:
        return Work("tile", (elements, max(units, 1.0)), tuple(functions))
    reduced = loop.reduced
    if not loop.reductions:
        kind = "loop"
    else:
        kind = "rows" if reduced[-1] else "columns"
    inner = _inner(loop, plan, loads, reduced)
    return Work(kind, (elements, float(inner), max(units, 1.0)), tuple(functions))


def _inner(loop: Loop, plan: Schedule, loads: Sequence[Value], reduced: tuple[bool, ...]) -> int:
    """How far the innermost loop runs, after those that can be were made one."""
    sizes = loop.extents
    if not sizes:
        return 1
    columns = [strides_in(loop.space, v.shape, plan.views[v].strides) for v in loads]
    columns.append(contiguous_strides(sizes))
    last = reduced[-1]
    rows: list[tuple[int, ...]] = []
    for size, flag, *strides in zip(sizes, reduced, *columns, strict=True):
        if flag is not last:
            rows = []  # what lies outside of a loop of the other sort is not merged with it
        else:
            rows.append((size, *strides))
    merged = collapse(rows)
    return merged[-1][0] if merged else 1
