"""16-bit floats as storage: every operation that computes on them is done in f32.

    %2: bf16[3] = mul(%0, %1)      =>      %2: f32[3] = convert(%0) {dtype=f32}
                                           %3: f32[3] = convert(%1) {dtype=f32}
                                           %4: f32[3] = mul(%2, %3)
                                           %5: bf16[3] = convert(%4) {dtype=bf16}

What is left on halves moves them about, or converts between them and f32 (`ops.halves`). Each
result is rounded as the reference rounds it, so what comes out is the same.
"""

from __future__ import annotations

from ...ir import Builder, DType, Function, ListType, Op, Type, Value, Values, replaced
from ...primitives.halves import computes_on_halves, in_f32, is_half


def widen_halves(function: Function, kept: frozenset[str] = frozenset()) -> Function:
    """The function with f32 in place of arithmetic on halves; the same one where there is none.

    kept: primitives that the back end does on halves itself, and rounds once.
    """
    if not any(
        _holds_half(v.type) for op in function.body.walk() for v in (*op.operands, *op.results)
    ):
        return function

    def applies(op: Op) -> bool:
        return computes_on_halves(op) and not _is_plain_convert(op) and op.name not in kept

    return function.with_body(replaced(function.body, applies, _compute))


def _holds_half(type_: Type) -> bool:
    while isinstance(type_, ListType):
        type_ = type_.element
    return type_.dtype.is_half


def _is_plain_convert(op: Op) -> bool:
    """Between a half and f32."""
    return op.name == "convert" and DType.F32 in (op.operands[0].dtype, op.results[0].dtype)


def _compute(b: Builder, op: Op, operands: list[Value]) -> Values:
    wide = [
        b("convert", v, dtype=DType.F32) if is_half(v.type) or op.name == "convert" else v
        for v in operands
    ]
    if op.name == "convert":
        made: Values = (b("convert", wide[0], dtype=op.attrs["dtype"]),)
    else:
        made = b.emit(op.name, wide, in_f32(op.attrs))
    return [
        b("convert", m, dtype=r.dtype) if is_half(r.type) and m.dtype is DType.F32 else m
        for r, m in zip(op.results, made, strict=True)
    ]
