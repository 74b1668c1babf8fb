"""Sequences and optional values: lists of Python, and None."""

from __future__ import annotations

from typing import Any

import numpy as np

from .....compiler.ir import Tensor
from ..onnx_errors import OnnxError
from ..operator_rows import Row, Rows
from .shape_rows import ints, part


def construct(*items: Tensor) -> list[Tensor]:
    """SequenceConstruct."""
    return [*items]


def empty(*, dtype: int = 1) -> list[Tensor]:
    """SequenceEmpty."""
    return []


def item_at(sequence: list[Tensor], place: Tensor) -> Tensor:
    """SequenceAt."""
    return sequence[ints(place)[0]]


def inserted(sequence: list[Tensor], item: Tensor, place: Tensor = None) -> list[Tensor]:
    """SequenceInsert: at the end where no place is given."""
    if place is None:
        return [*sequence, item]
    k = ints(place)[0]
    k = k + len(sequence) if k < 0 else k
    return [*sequence[:k], item, *sequence[k:]]


def erased(sequence: list[Tensor], place: Tensor = None) -> list[Tensor]:
    """SequenceErase: of the last item where no place is given."""
    k = len(sequence) - 1 if place is None else ints(place)[0]
    k = k + len(sequence) if k < 0 else k
    return [*sequence[:k], *sequence[k + 1 :]]


def length(sequence: list[Tensor]) -> Tensor:
    """SequenceLength: i64[]."""
    return np.array(len(sequence), np.int64)


def split_to_sequence(
    x: Tensor, sizes: Tensor = None, *, axis: int = 0, keepdims: int = 1
) -> list[Tensor]:
    """SplitToSequence: by sizes, or into parts of one size."""
    whole = x.shape[axis]
    if sizes is None:
        parts = (1,) * whole
    elif sizes.ndim == 0:
        size = ints(sizes)[0]
        parts = tuple([min(size, whole - start) for start in range(0, whole, size)])
    else:
        parts = ints(sizes)
    if sum(parts) != whole:
        raise OnnxError(f"SplitToSequence: parts of {list(parts)} are not {whole} elements")
    found = []
    start = 0
    for n in parts:
        one = part(x, axis, start, start + n)
        found.append(np.squeeze(one, axis) if sizes is None and not keepdims else one)
        start = start + n
    return found


def concat_sequence(sequence: list[Tensor], *, axis: int, new_axis: int = 0) -> Tensor:
    """ConcatFromSequence: joined along an axis, or along a new one."""
    if new_axis:
        return np.stack(sequence, axis)
    return np.concatenate(sequence, axis)


def optional(value: Any = None, *, type: Any = None) -> Any:
    """Optional: a value, or none."""
    return value


def has_element(value: Any = None) -> Tensor:
    """OptionalHasElement: bool[]."""
    return np.array(value is not None)


def get_element(value: Any) -> Any:
    """OptionalGetElement."""
    if value is None:
        raise OnnxError("OptionalGetElement of none")
    return value


SEQUENCE_ROWS: Rows = {
    "ConcatFromSequence": Row(concat_sequence),
    "Optional": Row(optional, wide=False),
    "OptionalGetElement": Row(get_element, wide=False),
    "OptionalHasElement": Row(has_element, wide=False, shape_only=True),
    "SequenceAt": Row(item_at, known=(1,), wide=False),
    "SequenceConstruct": Row(construct, wide=False),
    "SequenceEmpty": Row(empty, wide=False),
    "SequenceErase": Row(erased, known=(1,), wide=False),
    "SequenceInsert": Row(inserted, known=(2,), wide=False),
    "SequenceLength": Row(length, wide=False, shape_only=True),
    "SplitToSequence": Row(split_to_sequence, known=(1,), wide=False),
}
