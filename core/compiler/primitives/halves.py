"""Floats of 16 bits: bf16 and f16.

They are for storage. Arithmetic on them is done in f32 and the result rounded, to nearest and ties
to even, once an operation; sums, products of matrices and convolutions keep f32 (or wider) until
their result is rounded. A conversion between a half and another type goes by way of f32.

`reference_of` applies this to a primitive's NumPy reference; `passes.halves` writes it into a
program, so that back ends need to know nothing of halves but how to move and convert them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir import DType, ListType, Op, Type
from .table import Attrs, ReferenceRule

#: Primitives that move elements about and compute nothing: they take halves as they are.
MOVES = frozenset(
    (
        *("constant", "reshape", "broadcast", "transpose", "reverse", "slice", "pad", "concat"),
        *("dynamic_slice", "dynamic_update", "take", "take_along", "select", "stop_gradient"),
        "bitcast",
        *("list_empty", "list_push", "list_pop", "list_add", "list_select", "list_take"),
    )
)


def is_half(type_: Type) -> bool:
    """Whether a type is a tensor of f16 or bf16."""
    return not isinstance(type_, ListType) and type_.dtype.is_half


def computes_on_halves(op: Op) -> bool:
    """Whether an operation is to be done in f32."""
    if op.name in MOVES or op.regions:
        return False
    return any(is_half(v.type) for v in (*op.operands, *op.results))


def in_f32(attrs: Attrs) -> dict[str, Any]:
    """The attributes of the same operation on f32."""
    return {k: DType.F32 if isinstance(v, DType) and v.is_half else v for k, v in attrs.items()}


def reference_of(op: Op, rule: ReferenceRule) -> ReferenceRule:
    """A primitive's reference for one operation: in f32 and rounded where it is on halves."""
    if not computes_on_halves(op):
        return rule
    results = [r.type for r in op.results]

    def rounded(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
        with np.errstate(all="ignore"):
            wide = [
                np.asarray(a).astype(np.float32) if is_half(v.type) or _to_half(op) else a
                for a, v in zip(args, op.operands, strict=True)
            ]
            made = rule(wide, in_f32(attrs))
            return [
                np.asarray(m).astype(t.dtype.numpy) if is_half(t) else m
                for m, t in zip(made, results, strict=True)
            ]

    return rounded


def _to_half(op: Op) -> bool:
    return op.name == "convert"
