"""`dot`: products of tensors along any axes, with batch axes.

The result's axes are batch, then the free ones of a, then the free ones of b, each in the order of
their tensor. Both transposes are a `dot` with the cotangent again, contracted over the other
operand's free axes, and put back in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..ir import Array, Block, Builder, Op, TensorType, Type, Value
from . import batching
from .rules import bilinear, one_result, widen
from .table import Attrs, Primitive
from .type_checks import NUMERIC, axes_of, fail, tensor


def _dot_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
    a, b = tensor("dot", types[0], NUMERIC), tensor("dot", types[1], NUMERIC)
    if a.dtype is not b.dtype:
        fail("dot", f"element types of {a} and {b} differ", "convert one of them")
    contract_a = axes_of("dot", attrs, "contract_a", len(a.shape))
    contract_b = axes_of("dot", attrs, "contract_b", len(b.shape))
    batch_a = axes_of("dot", attrs, "batch_a", len(a.shape))
    batch_b = axes_of("dot", attrs, "batch_b", len(b.shape))
    for what, left, right in (("contract", contract_a, contract_b), ("batch", batch_a, batch_b)):
        if len(left) != len(right):
            fail("dot", f"{what}_a {left} and {what}_b {right} differ in length")
        for i, j in zip(left, right, strict=True):
            if a.shape[i] != b.shape[j]:
                sizes = f"{a.shape[i]} along axis {i} of {a} and {b.shape[j]} along axis {j} of {b}"
                fail("dot", f"{what} sizes differ: {sizes}")
    used_a, used_b = contract_a + batch_a, contract_b + batch_b
    if len(set(used_a)) != len(used_a) or len(set(used_b)) != len(used_b):
        fail("dot", f"an axis is both contracted and batch: {dict(attrs)}")
    shape = [a.shape[i] for i in batch_a]
    shape += [d for i, d in enumerate(a.shape) if i not in used_a]
    shape += [d for i, d in enumerate(b.shape) if i not in used_b]
    return (TensorType(a.dtype, tuple(shape)),)


def _free(rank: int, *used: Sequence[int]) -> tuple[int, ...]:
    return tuple([i for i in range(rank) if not any(i in axes for axes in used)])


def _dot(a: Array, b: Array, attrs: Attrs) -> Array:
    contract_a, contract_b = attrs["contract_a"], attrs["contract_b"]
    batch_a, batch_b = attrs["batch_a"], attrs["batch_b"]
    free_a = _free(a.ndim, contract_a, batch_a)
    free_b = _free(b.ndim, contract_b, batch_b)

    def sizes(x: Array, axes: Sequence[int]) -> list[int]:
        return [x.shape[i] for i in axes]

    batch, rows, columns = sizes(a, batch_a), sizes(a, free_a), sizes(b, free_b)
    inner = math.prod(sizes(a, contract_a))
    left = widen(a).transpose(batch_a + free_a + contract_a)
    right = widen(b).transpose(batch_b + contract_b + free_b)
    product: Array = np.matmul(
        left.reshape(math.prod(batch), math.prod(rows), inner),
        right.reshape(math.prod(batch), inner, math.prod(columns)),
    )
    shaped: Array = product.reshape(batch + rows + columns).astype(a.dtype)
    return shaped


def _in_order(b: Builder, value: Value, axes: Sequence[int]) -> Value:
    """Transposes a value whose axes are now those axes of an operand, into the operand's order."""
    perm = tuple([axes.index(i) for i in range(len(axes))])
    return value if perm == tuple(range(len(axes))) else b("transpose", value, perm=perm)


def _first_back(b: Builder, op: Op, g: Value) -> Value:
    """dot(g, y) over y's free axes, as x's axes: batch, free, contracted in y's order."""
    (x, y), attrs = op.operands, op.attrs
    batch, contract_x, contract_y = attrs["batch_a"], attrs["contract_a"], attrs["contract_b"]
    free_x = _free(len(x.shape), contract_x, batch)
    free_y = _free(len(y.shape), contract_y, attrs["batch_b"])
    start = len(batch) + len(free_x)
    back = b(
        "dot",
        g,
        y,
        contract_a=tuple(range(start, start + len(free_y))),
        contract_b=free_y,
        batch_a=tuple(range(len(batch))),
        batch_b=attrs["batch_b"],
    )
    pairs = sorted(zip(contract_y, contract_x, strict=True))
    return _in_order(b, back, (*batch, *free_x, *[i for _, i in pairs]))


def _second_back(b: Builder, op: Op, g: Value) -> Value:
    """dot(x, g) over x's free axes, as y's axes: batch, contracted in x's order, free."""
    (x, y), attrs = op.operands, op.attrs
    batch, contract_x, contract_y = attrs["batch_b"], attrs["contract_a"], attrs["contract_b"]
    free_x = _free(len(x.shape), contract_x, attrs["batch_a"])
    free_y = _free(len(y.shape), contract_y, batch)
    back = b(
        "dot",
        x,
        g,
        contract_a=free_x,
        contract_b=tuple(range(len(batch), len(batch) + len(free_x))),
        batch_a=attrs["batch_a"],
        batch_b=tuple(range(len(batch))),
    )
    pairs = sorted(zip(contract_x, contract_y, strict=True))
    return _in_order(b, back, (*batch, *[i for _, i in pairs], *free_y))


def _cost(op: Op) -> int:
    """A multiplication and an addition for each term of each sum."""
    inner: int = math.prod(op.operands[0].shape[i] for i in op.attrs["contract_a"])
    return 2 * inner * op.result.tensor.size


ROWS = (
    Primitive(
        "dot",
        _dot_type,
        one_result(_dot),
        *bilinear(_first_back, _second_back),
        _cost,
        attrs=("contract_a", "contract_b", "batch_a", "batch_b"),
        operands=2,
        batch=batching.dot,
    ),
)
