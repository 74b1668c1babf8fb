"""Arithmetic on tensors of one element becomes arithmetic on numbers, which need no memory.

    %2: f64[1,1] = add(%0, %1)     =>     %2 = reshape(add(reshape(%0), reshape(%1)))

Unrolled loops over the elements of small matrices are full of it.
"""

from __future__ import annotations

from ...ir import Builder, Function, Op, TensorType, Value, Values, replaced_in
from ..schedule.block_steps import is_elementwise


def scalarize(function: Function) -> Function:
    """The function with such arithmetic on numbers; the same one where there is none."""
    return replaced_in(function, _is_one, _as_number)


def _is_one(op: Op) -> bool:
    if op.name == "constant":
        return op.result.shape != () and op.result.tensor.size == 1
    if not op.operands or not is_elementwise(op):
        return False
    types = [v.type for v in (*op.operands, *op.results)]
    return all(isinstance(t, TensorType) and t.shape and t.size == 1 for t in types)


def _as_number(b: Builder, op: Op, operands: list[Value]) -> Values:
    if op.name == "constant":
        made: Values = [b.constant(op.attrs["value"].reshape(()))]
    else:
        made = b.emit(op.name, [b("reshape", v, shape=()) for v in operands], op.attrs)
    return [b("reshape", m, shape=r.shape) for m, r in zip(made, op.results, strict=True)]
