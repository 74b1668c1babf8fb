"""What a well-formed program is, as code that checks it.

A block is well formed when
  - each value it uses is one of its own parameters or a result of an earlier operation of its own:
    regions are closed, definitions come first;
  - no value is defined twice in it;
  - each operation is a known primitive with the attributes of its row, no more and no fewer, and
    its results have the types that its type rule gives;
  - its regions are well formed;
  - no tensor has more than EXTENT_MAX elements, its sizes of 0 counted as 1: an empty tensor's
    other sizes are loops and strides in the compiled program, too.
A function also names each parameter and result once and donates only parameters that it has.

A program that comes from outside is checked against `Limits` too, before anything is built from it.
How often a loop runs cannot be derived from the program unless its bounds are constants; a deadline
ends the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..common.errors import DelianError, MemoryLimitError, VerifyError
from .ir import Block, Function, ListType, Op, TensorType, Type, Value
from .primitives import PRIMITIVES, infer
from .primitives.attributes import EXTENT_MAX, SIZE_MAX

_POINTER_BYTES = 8
_BLOCK_TIMES = 8
_SMALLER = (
    "use smaller batches, images or padding, or raise the limit of this machine"
    " (worker.memory_mib, worker.operations_max)"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program from outside may ask for. The defaults hold any model a device would train."""

    encoded_bytes_max: int = 256 * 2**20
    """The serialised program."""
    ops_max: int = 200_000
    """Operations, those of regions included."""
    nesting_max: int = 64
    """Regions within regions."""
    rank_max: int = 16
    """Axes of a tensor."""
    tensor_bytes_max: int = 2**30
    """One tensor, its sizes of 0 counted as 1."""
    block_bytes_max: int = 16 * 2**30
    """All tensors that one run of a block makes, its regions' apart, before memory is reused."""
    working_bytes_max: int = 4 * 2**30
    """Working memory of one operation, as its row says; a compiled program's arena is checked
    against the same number (`core.learning.runtime`).
    """
    operations_max: int = 2**50
    """Arithmetic operations of one call. A loop counts as often as it runs where its bounds are
    constants, else once; a branch as its longest case. Sizes of 0 count as 1, and what only moves
    elements as one operation an element.
    """
    constant_bytes_max: int = 256 * 2**20
    """All constants together."""
    list_nesting_max: int = 8
    """Lists within lists."""
    names_max: int = 1000
    """Characters of a name."""

    @classmethod
    def of_memory(cls, memory_bytes: int, operations_max: int = operations_max) -> Limits:
        """The limits of a machine that gives a program so many bytes.

        The tensors of a block may take eight times as much before memory is reused: fused
        operations store few of them.
        """
        return cls(
            tensor_bytes_max=min(cls().tensor_bytes_max, memory_bytes),
            block_bytes_max=_BLOCK_TIMES * memory_bytes,
            working_bytes_max=memory_bytes,
            operations_max=operations_max,
        )


def verify(program: Function | Block, limits: Limits | None = None) -> None:
    """Raises VerifyError for a broken rule, MemoryLimitError for too much memory."""
    verifier = _Verifier(limits)
    if isinstance(program, Function):
        _verify_names(program, limits)
        program = program.body
    verifier.block(program, depth=0)


def verify_arena(function: Function, arena_bytes: int, limits: Limits) -> None:
    """Raises MemoryLimitError, naming the largest operation, for too much working memory."""
    if arena_bytes <= limits.working_bytes_max:
        return

    def part(op: Op) -> int:
        rule = PRIMITIVES[op.name].workspace
        made = sum([v.type.nbytes for v in op.results if isinstance(v.type, TensorType)])
        return made + (rule(op) if rule is not None else 0)

    most = max(function.body.walk(), key=part)
    at = f" from {most.locs[0]}" if most.locs else ""
    raise MemoryLimitError(
        f"{function.name[:100]}: needs {arena_bytes} bytes of working memory, and this machine"
        f" gives it {limits.working_bytes_max}; the largest part is of {most.name}{at}",
        _SMALLER,
    )


def verify_type(type: Type, limits: Limits) -> None:
    """Raises VerifyError when a type goes beyond the limits."""
    depth, lanes = 0, 1
    while isinstance(type, ListType):
        if len(type.lanes) > limits.rank_max or any(size < 1 for size in type.lanes):
            raise VerifyError(f"a list has lanes {list(type.lanes)[: limits.rank_max]}")
        _verify_extent(type.lanes)
        lanes *= math.prod(type.lanes)
        type, depth = type.element, depth + 1
        if depth > limits.list_nesting_max:
            raise VerifyError(f"lists nest more than {limits.list_nesting_max} deep")
    if len(type.shape) > limits.rank_max:
        raise VerifyError(f"a tensor of rank {len(type.shape)}; at most {limits.rank_max}")
    # Each lane takes a pointer, however small its elements are.
    own = _verify_extent(type.shape) * type.dtype.itemsize
    nbytes = own if lanes == 1 else lanes * max(own, _POINTER_BYTES)
    if nbytes > limits.tensor_bytes_max:
        times = f", {lanes} times," if lanes > 1 else ""
        raise MemoryLimitError(
            f"{type}{times} takes {nbytes} bytes; at most {limits.tensor_bytes_max}"
        )


def _verify_extent(shape: Sequence[int]) -> int:
    """The product of some sizes, those of 0 counted as 1. Raises VerifyError beyond the bounds."""
    extent = 1
    for size in shape:
        if not 0 <= size <= SIZE_MAX:
            raise VerifyError(f"a size of {size}; sizes are from 0 to {SIZE_MAX}")
        extent *= size or 1
        if extent > EXTENT_MAX:
            raise VerifyError(f"sizes {list(shape[:16])} make more than {EXTENT_MAX} elements")
    return extent


def _verify_names(fn: Function, limits: Limits | None) -> None:
    where = f"function {fn.name[:100]!r}"
    if len(fn.param_names) != len(fn.body.params):
        raise VerifyError(
            f"{where} names {len(fn.param_names)} parameters and has {len(fn.body.params)}"
        )
    if len(fn.result_names) != len(fn.body.results):
        raise VerifyError(
            f"{where} names {len(fn.result_names)} results and has {len(fn.body.results)}"
        )
    for i in fn.donated:
        if not 0 <= i < len(fn.body.params):
            raise VerifyError(f"{where} donates parameter {i} of {len(fn.body.params)}")
    if limits is not None:
        longest = max(map(len, (fn.name, *fn.param_names, *fn.result_names)))
        if longest > limits.names_max:
            raise VerifyError(f"a name of {longest} characters; at most {limits.names_max}")


class _Verifier:
    def __init__(self, limits: Limits | None) -> None:
        self.limits = limits
        self.ops = 0
        self.constant_bytes = 0
        #: Bytes of types that were looked at, by identity: values share them, and keep them alive.
        self._nbytes: dict[int, int] = {}

    def block(self, block: Block, depth: int) -> int:
        """Verifies a block; gives the operations of one run of it, 0 without limits."""
        limits, work, trips = self.limits, 0, _Trips()
        if limits is not None and depth > limits.nesting_max:
            raise VerifyError(f"regions nest more than {limits.nesting_max} deep")
        defined: set[Value] = set()
        self._define(block.params, defined, "the block's parameters")
        total = 0
        for n, op in enumerate(block.ops):
            where = _where(op, n)
            for i, v in enumerate(op.operands):
                if v not in defined:
                    raise VerifyError(
                        f"{where}: operand {i} is not defined before it in its block",
                        "a region sees nothing but its own parameters",
                    )
            self._count(op, where)
            inner = [self.block(region, depth + 1) for region in op.regions]
            _verify_op(op, where)
            self._define(op.results, defined, where)
            if limits is not None:
                total += sum([self._nbytes[id(v.type)] for v in op.results])
                if total > limits.block_bytes_max:
                    raise MemoryLimitError(
                        f"{where}: a block makes more than {limits.block_bytes_max} bytes", _SMALLER
                    )
                _verify_workspace(op, where, limits)
                work += trips.work(op, inner)
                if work > limits.operations_max:
                    raise VerifyError(
                        f"{where}: a call does {work} operations up to here; at most"
                        f" {limits.operations_max}",
                        _SMALLER,
                    )
        for i, v in enumerate(block.results):
            if v not in defined:
                raise VerifyError(f"result {i} of a block is not defined in it")
        return work

    def _define(self, values: Sequence[Value], defined: set[Value], where: str) -> None:
        for v in values:
            if v in defined:
                raise VerifyError(f"{where}: a value is defined twice")
            defined.add(v)
            if id(v.type) in self._nbytes:
                continue
            if self.limits is not None:
                verify_type(v.type, self.limits)
            elif isinstance(v.type, TensorType):
                _verify_extent(v.type.shape)
            self._nbytes[id(v.type)] = v.type.nbytes if isinstance(v.type, TensorType) else 0

    def _count(self, op: Op, where: str) -> None:
        self.ops += 1
        value = op.attrs.get("value") if op.name == "constant" else None
        if isinstance(value, np.ndarray):
            self.constant_bytes += value.nbytes
        if self.limits is None:
            return
        if self.ops > self.limits.ops_max:
            raise VerifyError(f"more than {self.limits.ops_max} operations")
        if self.constant_bytes > self.limits.constant_bytes_max:
            raise VerifyError(f"{where}: constants exceed {self.limits.constant_bytes_max} bytes")


class _Trips:
    """The operations of a block's operations, one after the other."""

    def __init__(self) -> None:
        #: Whole numbers that are constants of the block.
        self._known: dict[Value, int] = {}

    def work(self, op: Op, inner: Sequence[int]) -> int:
        """What one run of an operation does. inner: its regions' operations."""
        if op.name in ("if", "switch"):
            return max(inner, default=0) + 1
        if op.name == "for":
            lo, hi = (self._known.get(v) for v in op.operands[:2])
            rounds = 1 if lo is None or hi is None else max(hi - lo, 0)
            return rounds * (inner[0] + 1)
        if op.regions:
            return sum(inner) + 1
        value = op.attrs.get("value")
        if op.name == "constant" and isinstance(value, np.ndarray):
            if value.shape == () and value.dtype.kind in "iu":
                self._known[op.result] = int(value)
            return _extent_of(op.result.type)
        moved = sum([_extent_of(v.type) for v in op.results])
        return max(PRIMITIVES[op.name].cost(_without_zeros(op)), moved)


def _extent_of(type: Type) -> int:
    """Elements of a value, sizes of 0 counted as 1; of a list those of one element."""
    lanes = 1
    while isinstance(type, ListType):
        lanes, type = lanes * math.prod(type.lanes), type.element
    return lanes * _verify_extent(type.shape)


def _without_zeros(op: Op) -> Op:
    """The operation with 1 for each size of 0: a loop around nothing runs as often."""
    values = (*op.operands, *op.results)
    if not any(isinstance(v.type, TensorType) and 0 in v.type.shape for v in values):
        return op

    def filled(value: Value) -> Value:
        type = value.type
        if not isinstance(type, TensorType):
            return value
        return Value(TensorType(type.dtype, tuple([n or 1 for n in type.shape])))

    operands, results = tuple(map(filled, op.operands)), tuple(map(filled, op.results))
    return Op(op.name, operands, results, op.attrs, (), op.locs)


def _verify_workspace(op: Op, where: str, limits: Limits) -> None:
    rule = PRIMITIVES[op.name].workspace
    if rule is None or (needed := rule(op)) <= limits.working_bytes_max:
        return
    raise MemoryLimitError(
        f"{where}: takes up to {needed} bytes of working memory; at most"
        f" {limits.working_bytes_max}",
        _SMALLER,
    )


def _verify_op(op: Op, where: str) -> None:
    if op.name not in PRIMITIVES:
        raise VerifyError(f"{where}: there is no such primitive")
    try:
        types = infer(op.name, op.operands, op.attrs, op.regions)
    except DelianError as error:
        raise VerifyError(f"{where}: {error.message}", error.hint) from error
    if types != tuple(r.type for r in op.results):
        said = ", ".join(str(r.type) for r in op.results)
        raise VerifyError(f"{where}: gives ({', '.join(map(str, types))}) but says ({said})")


def _where(op: Op, n: int) -> str:
    at = f" from {op.locs[0]}" if op.locs else ""
    return f"operation {n}, {op.name[:100]!r}{at}"
