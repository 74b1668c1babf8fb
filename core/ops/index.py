"""Primitives that read and write at places known only when the program runs.

Every place is clamped into range, so that a program can never read or write outside a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Block, DType, TensorType, Type
from .checks import INTS, NUMERIC, axis_of, differ, fail, int_tuple, scalar, tensor
from .table import Attrs, Primitive


def _starts(name: str, x: TensorType, starts: Sequence[Type]) -> None:
    if len(starts) != len(x.shape):
        fail(name, f"{x} needs {len(x.shape)} starts, not {len(starts)}")
    for start in starts:
        scalar(name, start, DType.I64, "a start")


def _dynamic_slice_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    if not types:
        fail("dynamic_slice", "needs a tensor to slice")
    x = tensor("dynamic_slice", types[0])
    _starts("dynamic_slice", x, types[1:])
    sizes = int_tuple("dynamic_slice", attrs, "sizes", len(x.shape))
    if any(s > d for s, d in zip(sizes, x.shape, strict=True)):
        fail("dynamic_slice", f"sizes {sizes} exceed {x}")
    return (TensorType(x.dtype, sizes),)


def _dynamic_update_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    if len(types) < 2:
        fail("dynamic_update", "needs a tensor and its update")
    x, update = tensor("dynamic_update", types[0]), tensor("dynamic_update", types[1])
    _starts("dynamic_update", x, types[2:])
    if update.dtype is not x.dtype:
        differ("dynamic_update", x, update)
    if len(update.shape) != len(x.shape) or any(
        s > d for s, d in zip(update.shape, x.shape, strict=True)
    ):
        fail("dynamic_update", f"the update {update} does not fit in {x}")
    return (x,)


def _take_shape(name: str, types: Sequence[Type], attrs: Attrs) -> tuple[TensorType, TensorType]:
    """What taking these indices of this tensor gives, and the tensor."""
    x = tensor(name, types[0])
    indices = tensor(name, types[1], INTS, "the indices")
    axis = axis_of(name, attrs, len(x.shape))
    if x.shape[axis] == 0 and indices.size:
        fail(name, f"{x} has nothing to index along axis {axis}")
    shape = x.shape[:axis] + indices.shape + x.shape[axis + 1 :]
    return TensorType(x.dtype, shape), x


def _take_along_shape(
    name: str, types: Sequence[Type], attrs: Attrs
) -> tuple[TensorType, TensorType]:
    x = tensor(name, types[0])
    indices = tensor(name, types[1], INTS, "the indices")
    axis = axis_of(name, attrs, len(x.shape))
    if (
        len(indices.shape) != len(x.shape)
        or indices.shape[:axis] != x.shape[:axis]
        or indices.shape[axis + 1 :] != x.shape[axis + 1 :]
    ):
        fail(name, f"{x} and the indices {indices} must have one shape off axis {axis}")
    if x.shape[axis] == 0 and indices.size:
        fail(name, f"{x} has nothing to index along axis {axis}")
    return TensorType(x.dtype, indices.shape), x


def _take_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
    return (_take_shape("take", types, attrs)[0],)


def _take_along_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    return (_take_along_shape("take_along", types, attrs)[0],)


def _put_add_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    taken, x = _take_shape("put_add", types, attrs)
    tensor("put_add", x, NUMERIC)
    if types[2] != taken:
        fail("put_add", f"the updates must be {taken} for {x} and {types[1]}, not {types[2]}")
    return (x,)


def _put_along_add_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    taken, x = _take_along_shape("put_along_add", types, attrs)
    tensor("put_along_add", x, NUMERIC)
    if types[2] != taken:
        fail("put_along_add", f"the updates must be {taken} for {x} and {types[1]}, not {types[2]}")
    return (x,)


def _row(name: str, rule: object, operands: int | None, *attrs: str) -> Primitive:
    return Primitive(
        name,
        rule,
        None,
        None,
        None,
        lambda op: 0,
        attrs=attrs,
        operands=operands,  # type: ignore[arg-type]
    )


ROWS = (
    _row("dynamic_slice", _dynamic_slice_type, None, "sizes"),
    _row("dynamic_update", _dynamic_update_type, None),
    _row("take", _take_type, 2, "axis"),
    _row("put_add", _put_add_type, 3, "axis"),
    _row("take_along", _take_along_type, 2, "axis"),
    _row("put_along_add", _put_along_add_type, 3, "axis"),
)
