"""`dot`: products of tensors along any axes, with batch axes."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Block, TensorType, Type
from .checks import NUMERIC, axes_of, fail, tensor
from .table import Attrs, Primitive


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


ROWS = (
    Primitive(
        "dot",
        _dot_type,
        None,
        None,
        None,
        lambda op: 0,
        attrs=("contract_a", "contract_b", "batch_a", "batch_b"),
        operands=2,
    ),
)
