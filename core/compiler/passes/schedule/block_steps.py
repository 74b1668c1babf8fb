"""What a block becomes before it is written in some language: steps, in the order they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ...ir import Array, Op, TensorType, Value
from ...primitives import PRIMITIVES
from .views import Cuts, View, axes_in, extents

REDUCTIONS = frozenset(["reduce_sum", "reduce_max", "reduce_min", "reduce_prod"])
#: Calls that give their first operand, changed in some places.
UPDATES = frozenset(["put_add", "put_along_add", "dynamic_update"])


@dataclass(slots=True, eq=False)
class Loop:
    """A fused group: one nest of loops."""

    space: Cuts
    """What the loops run over, as cuts (`views`)."""
    ops: list[Op] = field(default_factory=list)
    """Element by element, in order."""
    reductions: list[Op] = field(default_factory=list)
    """What ends in this nest; all run over the same loops."""
    loads: dict[Value, None] = field(default_factory=dict)
    """The values read, each through the schedule's view of it."""
    stores: list[tuple[Value, Value]] = field(default_factory=list)
    """(stored value, the value that it is a copy of: itself where the loop computes it)."""
    product: Call | None = None
    """A `dot` or a convolution whose result, which nothing else reads, this loop takes as it is
    computed, tile by tile or by some rows of pixels; it is never stored.
    """
    fused: Call | None = None
    """With a product that goes into a matrix where it lies, another `dot` by that very matrix,
    turned: the gradients of a dense layer by its weights and by its input, in one pass over the
    weights. Its result is stored, and is that of the weights as they were.
    """
    blank: bool = False
    """It has memory for what it stores, and nothing to do: all of it is written elsewhere."""

    @property
    def extents(self) -> tuple[int, ...]:
        return extents(self.space)

    @property
    def reduced(self) -> tuple[bool, ...]:
        """Which loops the reductions run over."""
        if not self.reductions:
            return (False,) * len(self.extents)
        return reduced_loops(self.reductions[0], self.space)


@dataclass(slots=True, eq=False)
class Call:
    """Any other operation: a kernel, rank-0 arithmetic, a list operation, or one with regions."""

    op: Op
    """The operation."""
    operands: tuple[Value, ...]
    """What it reads, which may be copies of the operation's own operands."""
    bodies: tuple[Schedule, ...] = ()
    """Of its regions, in order."""
    window: bool = False
    """The result is not copied but lies in the first operand, a constant of a loop."""
    opens: Value | None = None
    """Of a `dynamic_update`, the value that it takes: a later step writes it right to its place,
    which this call finds. It is no operand then.
    """
    taken: bool = False
    """It is the product of a loop."""
    expands: Loop | None = None
    """Of a `dot`, the group that computes its second operand: the product's packing has it compute
    the part that it packs, so that the whole is never stored.
    """

    @property
    def read(self) -> tuple[Value, ...]:
        """What it reads from memory."""
        if self.expands is None:
            return self.operands
        return (self.operands[0], *self.expands.loads)


@dataclass(slots=True, eq=False)
class Schedule:
    """A block in the order in which it runs."""

    params: tuple[Value, ...]
    """Those of the block."""
    results: tuple[Value, ...]
    """Those of the block; each is stored whole and row by row."""
    steps: list[Loop | Call]
    """What runs, in order."""
    views: dict[Value, View]
    """Of every tensor, where its elements lie."""
    origin: dict[Value, Value]
    """For a value that is another in the same order under another shape, that other."""
    iotas: set[Value]
    """Bases that are not stored, because element k of them is k."""
    constants: dict[Value, Array]
    """Bases that are stored with the program."""

    def source(self, value: Value) -> Value:
        """The value before any reshape."""
        return source_of(self.origin, value)


@dataclass(frozen=True, slots=True)
class Descent:
    """A loop that adds a multiple of its product to a matrix: matrix -+ factor * product."""

    matrix: Value
    factor: Value
    minus: bool


def descent(loop: Loop, source: Callable[[Value], Value]) -> Descent | None:
    """Whether that is all that a loop does. `source` gives a value before any reshape."""
    if len(loop.ops) != 2 or loop.product is None or loop.product.op.name != "dot":
        return None
    scale, step = loop.ops
    if scale.name != "mul" or step.name not in ("add", "sub"):
        return None
    factors = [v for v in scale.operands if source(v) is not loop.product.op.result]
    terms = [v for v in step.operands if source(v) is not scale.result]
    minus = step.name == "sub"
    if len(factors) != 1 or len(terms) != 1 or (minus and step.operands[0] not in terms):
        return None
    return Descent(terms[0], factors[0], minus)


def operands_of(step: Loop | Call) -> Iterator[Value]:
    """All that a step reads."""
    if isinstance(step, Call):
        yield from step.read
        return
    for call in (step.product, step.fused):
        yield from () if call is None else call.read
    made = None if step.product is None else step.product.op.result
    yield from (v for v in step.loads if v is not made)


def is_scalar(value: Value) -> bool:
    """Whether a value is a tensor of rank 0."""
    return isinstance(value.type, TensorType) and value.type.shape == ()


def is_elementwise(op: Op) -> bool:
    """Whether an operation computes element by element."""
    return op.name == "threefry" or PRIMITIVES[op.name].c is not None


def source_of(origin: dict[Value, Value], value: Value) -> Value:
    """The value before any reshape."""
    while value in origin:
        value = origin[value]
    return value


def reduced_loops(op: Op, space: Cuts) -> tuple[bool, ...]:
    """Which loops of a space a reduction runs over."""
    return axes_in(space, op.operands[0].shape, op.attrs["axes"])
