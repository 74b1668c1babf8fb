"""What the type rules share: classes of element types, and refusals that name both types.

A type rule runs each time that an operation is built, so it costs a few comparisons: element types
are distinguished by identity, and words are put together only once something is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ...common.errors import TypeRuleError
from ..ir import Block, DType, ListType, TensorType, Type, Types
from .table import Attrs, InferRule

FLOATS = (DType.F32, DType.F64, DType.F16, DType.BF16)
INTS = (
    *(DType.I64, DType.I32, DType.I16, DType.I8),
    *(DType.U64, DType.U32, DType.U16, DType.U8),
)
NUMERIC = FLOATS + INTS
BITS = (*INTS, DType.BOOL)
ALL = (*NUMERIC, DType.BOOL)

_WORDS = {
    FLOATS: "floating point",
    INTS: "integers",
    NUMERIC: "numbers",
    BITS: "integers or bool",
}


def fail(name: str, message: str, hint: str = "") -> NoReturn:
    """Raises TypeRuleError for the primitive of this name."""
    raise TypeRuleError(f"{name}: {message}", hint)


def shape_text(shape: Sequence[int]) -> str:
    """A shape as messages have it."""
    return f"[{', '.join(map(str, shape))}]"


def tensor(name: str, type_: Type, kinds: tuple[DType, ...] = ALL, what: str = "") -> TensorType:
    """The type itself, when it is a tensor of one of these element types."""
    if type(type_) is not TensorType:
        fail(name, f"{what or 'operand'} must be a tensor, not {type_}")
    if type_.dtype not in kinds:
        fail(name, f"{what or 'operand'} must hold {_WORDS[kinds]}, not {type_}", _cast_hint(kinds))
    return type_


def scalar(name: str, type_: Type, dtype: DType, what: str) -> None:
    """Refuses all but a rank-0 tensor of this element type."""
    if type(type_) is not TensorType or type_.dtype is not dtype or type_.shape != ():
        fail(name, f"{what} must be {dtype.value}[], not {type_}")


def list_of(name: str, type_: Type) -> ListType:
    """The type of a list operand. Raises TypeRuleError for another type."""
    if type(type_) is not ListType:
        fail(name, f"operand must be a list, not {type_}")
    return type_


def differ(name: str, a: Type, b: Type) -> NoReturn:
    """Says how two types that must be equal are not."""
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        if a.dtype is b.dtype:
            words = f"shapes {shape_text(a.shape)} and {shape_text(b.shape)} differ"
            fail(name, f"{words} ({a} and {b})", "broadcast one of them to the other's shape")
        if a.shape == b.shape:
            words = f"element types {a.dtype.value} and {b.dtype.value} differ"
            fail(name, f"{words} ({a} and {b})", "convert one of them to the other's element type")
    fail(name, f"types {a} and {b} differ")


def same(name: str, kinds: tuple[DType, ...], result: DType | None = None) -> InferRule:
    """The rule of elementwise primitives: operands of one type, a result of it or of `result`."""

    def rule(types: Types, attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
        first = types[0]
        if type(first) is not TensorType or first.dtype not in kinds:
            tensor(name, first, kinds)
            raise AssertionError(name)
        for other in types:
            if other is not first and other != first:
                differ(name, first, other)
        return (first,) if result is None else (TensorType(result, first.shape),)

    return rule


def int_tuple(name: str, attrs: Attrs, key: str, length: int) -> tuple[int, ...]:
    """An attribute that must be a tuple of `length` ints; `attributes` bounds them."""
    value: tuple[int, ...] = attrs[key]
    if len(value) != length:
        fail(name, f"{key} must have {length} entries, not {len(value)}: {value}")
    return value


def axis_of(name: str, attrs: Attrs, rank: int) -> int:
    """The attribute `axis`, within a rank; negative ones are the front end's to resolve."""
    axis: int = attrs["axis"]
    if axis >= rank:
        fail(name, f"axis must be an int from 0 to {rank - 1} for rank {rank}, not {axis}")
    return axis


def axes_of(name: str, attrs: Attrs, key: str, rank: int) -> tuple[int, ...]:
    """An attribute that names axes: each once, within the rank, in any order."""
    axes: tuple[int, ...] = attrs[key]
    if axes and max(axes) >= rank:
        fail(name, f"{key} {axes} go beyond rank {rank}")
    if len(set(axes)) != len(axes):
        fail(name, f"{key} {axes} name an axis twice")
    return axes


def dtype_of(name: str, attrs: Attrs, kinds: tuple[DType, ...] = ALL) -> DType:
    """The attribute `dtype`. Raises TypeRuleError for one that is not among `kinds`."""
    dtype: DType = attrs["dtype"]
    if dtype not in kinds:
        fail(name, f"dtype must be one of {', '.join(d.value for d in kinds)}, not {dtype.value}")
    return dtype


def params_are(name: str, region: Block, what: str, types: Types) -> None:
    """Refuses a region whose parameters are not of these types."""
    params = region.params
    if len(params) != len(types):
        fail(name, f"the {what} region takes {len(params)} values and is given {len(types)}")
    for i, (param, given) in enumerate(zip(params, types, strict=True)):
        if param.type != given:
            fail(name, f"the {what} region's parameter {i} is {param.type} and is given {given}")


def results_are(name: str, region: Block, what: str, types: Types) -> None:
    """Refuses a region whose results are not of these types."""
    results = region.results
    if len(results) != len(types):
        fail(name, f"the {what} region gives {len(results)} values where {len(types)} are wanted")
    for i, (result, wanted) in enumerate(zip(results, types, strict=True)):
        if result.type != wanted:
            fail(name, f"the {what} region's result {i} is {result.type} where {wanted} is wanted")


def _cast_hint(kinds: tuple[DType, ...]) -> str:
    return "convert it first" if kinds != ALL else ""
