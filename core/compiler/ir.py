"""The IR: typed, structured, first-order SSA.

A `Function` has one `Block`. A block has parameters, a list of operations in order, and results. An
operation takes values, gives values, carries attributes (compile-time data) and may hold closed
regions: blocks that see nothing of the outside but their own parameters, so that differentiating,
hashing, cutting and serialising one is a local act.

    fn scale(%0: f32[3], %1: f32[]) -> (f32[3]) {
      %2: f32[3] = broadcast(%1) {shape=[3], dims=[]}
      %3: f32[3] = mul(%0, %2)
      return %3
    }

What an operation means is not here: one row of `core.compiler.primitives` per primitive says it.
What is well formed is in `core.compiler.verify`; how it prints and parses in `core.compiler.text`;
how it travels in `core.wire`.

Values are compared by identity. Operations are never changed after they are built: a pass builds a
new block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from ..common.errors import DelianError, Loc

Array: TypeAlias = npt.NDArray[Any]
#: A tensor of the compiled language: NumPy's array or scalar where a function runs as plain Python,
#: an abstract value where it is compiled.
Tensor: TypeAlias = Any


class DType(Enum):
    """The element types. `value` is the name in text, `numpy.name` NumPy's."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U64 = "u64"
    U32 = "u32"
    U16 = "u16"
    U8 = "u8"
    BOOL = "bool"

    #: Members are compared by identity; Enum's own hash is a function of Python's.
    __hash__ = object.__hash__

    @property
    def numpy(self) -> np.dtype[Any]:
        """NumPy's type; bf16's is of ml_dtypes. Raises DelianError where that is missing."""
        found = _NUMPY.get(self)
        return _bfloat16() if found is None else found

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return _ITEMSIZE[self]

    @property
    def is_float(self) -> bool:
        return self in _FLOATS

    @property
    def is_half(self) -> bool:
        """Whether it is a float of 16 bits: arithmetic on it is done in f32, and rounded."""
        return self is DType.F16 or self is DType.BF16

    @property
    def is_int(self) -> bool:
        return self in _INTS

    @property
    def is_unsigned(self) -> bool:
        """Whether it is an integer that is never below zero."""
        return self in _UNSIGNED

    @property
    def largest(self) -> float:
        """A float type's largest finite number."""
        return (2 - 2.0**-7) * 2.0**127 if self is DType.BF16 else float(np.finfo(self.numpy).max)

    @classmethod
    def names(cls) -> list[str]:
        """NumPy's names of all of them."""
        return ["bfloat16" if d is cls.BF16 else d.numpy.name for d in cls]

    @classmethod
    def here(cls) -> list[DType]:
        """Those whose arrays NumPy can hold here: bf16 needs the package ml_dtypes."""
        try:
            _bfloat16()
        except DelianError:
            return [d for d in cls if d is not cls.BF16]
        return list(cls)

    @classmethod
    def of(cls, dtype: npt.DTypeLike) -> DType:
        """The element type of a NumPy dtype; raises KeyError for one that the IR has not."""
        made = np.dtype(dtype)
        found = _FROM_NUMPY.get(made)
        if found is not None:
            return found
        if made.name == "bfloat16":
            return cls.BF16
        raise KeyError(made)


_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.F64: np.dtype(np.float64),
    DType.F32: np.dtype(np.float32),
    DType.F16: np.dtype(np.float16),
    DType.I64: np.dtype(np.int64),
    DType.I32: np.dtype(np.int32),
    DType.I16: np.dtype(np.int16),
    DType.I8: np.dtype(np.int8),
    DType.U64: np.dtype(np.uint64),
    DType.U32: np.dtype(np.uint32),
    DType.U16: np.dtype(np.uint16),
    DType.U8: np.dtype(np.uint8),
    DType.BOOL: np.dtype(np.bool_),
}
_FROM_NUMPY: dict[np.dtype[Any], DType] = {n: d for d, n in _NUMPY.items()}
_ITEMSIZE = {DType.BF16: 2, **{d: n.itemsize for d, n in _NUMPY.items()}}
_FLOATS = (DType.F64, DType.F32, DType.F16, DType.BF16)
_UNSIGNED = (DType.U32, DType.U8, DType.U64, DType.U16)
_INTS = (DType.I64, DType.I32, *_UNSIGNED, DType.I16, DType.I8)


@functools.cache
def _bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise DelianError(
            "arrays of bf16 need the package ml_dtypes, which is not installed",
            "install delian[bf16], or use f16 or f32",
        ) from None
    made: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return made


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor. `shape` is static: every size is known when a program is built."""

    tree_leaf: ClassVar[bool] = True

    dtype: DType
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def rank(self) -> int:
        return len(self.shape)

    @classmethod
    def of(cls, array: npt.ArrayLike) -> TensorType:
        a = np.asarray(array)
        return cls(DType.of(a.dtype), tuple(a.shape))

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class ListType:
    """A persistent stack: push and pop make new lists and leave the old one as it was.

    The empty list stands for "all zeros" of unknown length: popping it gives zeros and the empty
    list again, and adding it to a list gives that list. With that, push and pop are each other's
    adjoints, and reverse mode through a loop of unknown trip count is closed under reverse mode.
    """

    element: Type
    """What one push adds, in one lane."""
    lanes: tuple[int, ...] = ()
    """Shape of an array of such stacks, each of a length of its own: what `vmap` makes of a list
    that a masked loop carries. A push or pop does one to every lane at once. Empty: one stack.
    """

    @property
    def dtype(self) -> DType:
        """Of the tensors at the bottom, where lists hold lists."""
        return self.element.dtype

    @property
    def item(self) -> Type:
        """What is pushed and popped: the element, for each lane."""
        return in_lanes(self.element, self.lanes)

    def __str__(self) -> str:
        lanes = f"[{','.join(map(str, self.lanes))}]" if self.lanes else ""
        return f"list<{self.element}>{lanes}"


def in_lanes(type: Type, lanes: tuple[int, ...]) -> Type:
    """The type of one value of a type for each lane: more axes in front."""
    if not lanes:
        return type
    if isinstance(type, ListType):
        return ListType(type.element, (*lanes, *type.lanes))
    return TensorType(type.dtype, (*lanes, *type.shape))


Type: TypeAlias = TensorType | ListType
Types: TypeAlias = Sequence[Type]
Values: TypeAlias = Sequence["Value"]
Blocks: TypeAlias = Sequence["Block"]
#: What an attribute may be. Tuples nest; an ndarray only in `constant`.
Attr: TypeAlias = (
    "int | float | bool | str | DType | TensorType | ListType | Array | tuple[Attr, ...]"
)


class Value:
    """One SSA value: a result of an operation or a parameter of a block."""

    __slots__ = ("type",)

    def __init__(self, type: Type) -> None:
        self.type = type

    @property
    def tensor(self) -> TensorType:
        """Its type, known to be a tensor's."""
        assert isinstance(self.type, TensorType), f"expected a tensor, not {self.type}"
        return self.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    def __repr__(self) -> str:
        return f"<{self.type} at {id(self):#x}>"


@dataclass(slots=True, eq=False)
class Op:
    """One operation. `locs` are its source spans, the innermost call last; several after fusion."""

    name: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attrs: Mapping[str, Any]
    regions: tuple[Block, ...] = ()
    locs: tuple[Loc, ...] = ()

    @property
    def result(self) -> Value:
        assert len(self.results) == 1, f"{self.name} has {len(self.results)} results"
        return self.results[0]

    def with_regions(self, regions: Iterable[Block]) -> Op:
        """The operation with these regions; the same object where they are its own."""
        made = tuple(regions)
        if all(a is b for a, b in zip(made, self.regions, strict=True)):
            return self
        return Op(self.name, self.operands, self.results, self.attrs, made, self.locs)


@dataclass(slots=True, eq=False)
class Block:
    """A closed region: uses its own parameters and what it computes, nothing else."""

    params: tuple[Value, ...]
    ops: list[Op]
    results: tuple[Value, ...]

    def walk(self) -> Iterator[Op]:
        """Every operation, those of nested regions after the one that holds them."""
        for op in self.ops:
            yield op
            for region in op.regions:
                yield from region.walk()


@dataclass(slots=True, eq=False)
class Function:
    """A program. `donated` are the parameters whose memory the results may take."""

    name: str
    body: Block
    param_names: tuple[str, ...]
    result_names: tuple[str, ...]
    donated: frozenset[int] = field(default_factory=frozenset)

    @property
    def param_types(self) -> tuple[Type, ...]:
        return tuple(p.type for p in self.body.params)

    @property
    def result_types(self) -> tuple[Type, ...]:
        return tuple(r.type for r in self.body.results)

    def with_body(self, body: Block) -> Function:
        return Function(self.name, body, self.param_names, self.result_names, self.donated)

    def __str__(self) -> str:
        from .text import print_function

        return print_function(self)


@functools.cache
def _infer() -> Callable[..., tuple[Type, ...]]:
    from .primitives import infer

    return infer


class Builder:
    """Builds one block, an operation at a time, each checked by its primitive's type rule.

    >>> from delian.core.compiler.ir import *
    >>> b = Builder([TensorType(DType.F32, (3,))])
    >>> y = b("mul", b.params[0], b.params[0])
    >>> b.finish([y]).ops[0].name
    'mul'
    """

    def __init__(self, params: Sequence[Type | Value] = (), locs: tuple[Loc, ...] = ()) -> None:
        self.params = tuple(p if isinstance(p, Value) else Value(p) for p in params)
        self.ops: list[Op] = []
        self.locs = locs

    def emit(
        self,
        name: str,
        operands: Sequence[Value],
        attrs: Mapping[str, Any] | None = None,
        regions: Sequence[Block] = (),
        locs: tuple[Loc, ...] | None = None,
    ) -> tuple[Value, ...]:
        """Adds an operation and gives its results. Raises TypeRuleError for wrong operands."""
        attrs = attrs or {}
        results = tuple([Value(t) for t in _infer()(name, operands, attrs, regions)])
        self.ops.append(
            Op(
                name,
                tuple(operands),
                results,
                attrs,
                tuple(regions),
                self.locs if locs is None else locs,
            )
        )
        return results

    def __call__(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """Adds an operation of one result; gives that result."""
        return self.emit(name, operands, attrs)[0]

    def constant(self, value: npt.ArrayLike, dtype: DType | None = None) -> Value:
        """A constant tensor. Python numbers need `dtype`."""
        array = np.array(value, dtype=None if dtype is None else dtype.numpy)
        array.setflags(write=False)
        return self("constant", value=array)

    def full(self, type: TensorType, value: float | int | bool) -> Value:
        """A tensor of one repeated number: a rank-0 constant, broadcast."""
        scalar = self.constant(value, type.dtype)
        return scalar if type.shape == () else self("broadcast", scalar, shape=type.shape, dims=())

    def zeros(self, type: Type) -> Value:
        """Zero of any type; for a list, the empty one."""
        return self("list_empty", type=type) if isinstance(type, ListType) else self.full(type, 0)

    def inline(self, block: Block, args: Sequence[Value]) -> tuple[Value, ...]:
        """Copies a block's operations here for these arguments and gives its results."""
        assert len(args) == len(block.params), (
            f"{len(args)} arguments for {len(block.params)} parameters"
        )
        mapping = dict(zip(block.params, args, strict=True))
        for op in block.ops:
            self.copy(op, mapping)
        return tuple(mapping[r] for r in block.results)

    def copy(
        self, op: Op, mapping: dict[Value, Value], operands: Sequence[Value] | None = None
    ) -> tuple[Value, ...]:
        """Copies one operation with its operands mapped; enters its new results in the mapping."""
        results = tuple([Value(r.type) for r in op.results])
        operands = tuple([mapping[v] for v in op.operands] if operands is None else operands)
        self.ops.append(Op(op.name, operands, results, op.attrs, op.regions, op.locs))
        mapping.update(zip(op.results, results, strict=True))
        return results

    @contextmanager
    def at(self, locs: tuple[Loc, ...]) -> Iterator[None]:
        """Within, operations are stamped with these source spans."""
        before, self.locs = self.locs, locs
        try:
            yield
        finally:
            self.locs = before

    def finish(self, results: Iterable[Value]) -> Block:
        return Block(self.params, self.ops, tuple(results))


def replaced(
    block: Block,
    applies: Callable[[Op], bool],
    replace: Callable[[Builder, Op, list[Value]], Values],
) -> Block:
    """The block with the operations that `applies` names replaced, those of regions first.

    replace: (builder, operation, its operands) -> what takes the place of its results.
    """
    b = Builder(block.params)
    mapping: dict[Value, Value] = {p: p for p in block.params}
    for op in block.ops:
        op = op.with_regions(replaced(r, applies, replace) for r in op.regions)
        if not applies(op):
            b.copy(op, mapping)
            continue
        with b.at(op.locs):
            made = replace(b, op, [mapping[v] for v in op.operands])
        mapping.update(zip(op.results, made, strict=True))
    return b.finish([mapping[r] for r in block.results])


def replaced_in(
    function: Function,
    applies: Callable[[Op], bool],
    replace: Callable[[Builder, Op, list[Value]], Values],
) -> Function:
    """The function with such operations `replaced`; the same object where there are none."""
    if not any(map(applies, function.body.walk())):
        return function
    return function.with_body(replaced(function.body, applies, replace))


def count_ops(block: Block) -> int:
    """The number of operations, nested regions included."""
    return sum(1 for _ in block.walk())


def unshared(block: Block) -> Block:
    """The same program with each value defined in one place.

    A pass may let operations share a region, or parts of one.

    Where values are the keys of a table, as in a memory plan, that would mix them up.
    """
    seen: set[Value] = set()

    def visit(region: Block) -> Block:
        own = [*region.params, *(r for op in region.ops for r in op.results)]
        clone = not seen.isdisjoint(own)
        seen.update(own)
        mapping = {p: Value(p.type) for p in region.params} if clone else {}
        ops = []
        for op in region.ops:
            regions = tuple(visit(r) for r in op.regions)
            if clone:
                fresh = tuple(Value(r.type) for r in op.results)
                mapping.update(zip(op.results, fresh, strict=True))
                operands = tuple(mapping[v] for v in op.operands)
                op = Op(op.name, operands, fresh, op.attrs, regions, op.locs)
            else:
                op = op.with_regions(regions)
            ops.append(op)
        if not clone:
            return (
                region
                if all(a is b for a, b in zip(ops, region.ops, strict=True))
                else Block(region.params, ops, region.results)
            )
        params = tuple(mapping[p] for p in region.params)
        return Block(params, ops, tuple(mapping[r] for r in region.results))

    return visit(block)
