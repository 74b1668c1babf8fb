"""16-bit floats as storage: every operation that computes on them is done in f32.

    %2: bf16[3] = mul(%0, %1)      =>      %2: f32[3] = convert(%0) {dtype=f32}
                                           %3: f32[3] = convert(%1) {dtype=f32}
                                           %4: f32[3] = mul(%2, %3)
                                           %5: bf16[3] = convert(%4) {dtype=bf16}

What is left on halves moves them about, or converts between them and f32 (`ops.halves`). Each
result is rounded as the reference rounds it, so what comes out is the same.
"""

from __future__ import annotations

from ...ir import Block, Builder, DType, Function, ListType, Op, Type, Value
from ...primitives.halves import computes_on_halves, in_f32, is_half


def widen_halves(function: Function, kept: frozenset[str] = frozenset()) -> Function:
    """The function with f32 in place of arithmetic on halves; the same one where there is none.

    kept: primitives that the back end does on halves itself, and rounds once.
    """
    if not any(
        _holds_half(v.type) for op in function.body.walk() for v in (*op.operands, *op.results)
    ):
        return function
    return function.with_body(_widened(function.body, kept))


def _holds_half(type_: Type) -> bool:
    while isinstance(type_, ListType):
        type_ = type_.element
    return type_.dtype.is_half


def _widened(block: Block, kept: frozenset[str]) -> Block:
    b = Builder(block.params)
    mapping: dict[Value, Value] = {p: p for p in block.params}
    for op in block.ops:
        if op.regions:
            regions = tuple(_widened(r, kept) for r in op.regions)
            op = Op(op.name, op.operands, op.results, op.attrs, regions, op.locs)
        if not computes_on_halves(op) or _is_plain_convert(op) or op.name in kept:
            b.copy(op, mapping)
            continue
        with b.at(op.locs):
            _compute(b, op, mapping)
    return b.finish([mapping[r] for r in block.results])


def _is_plain_convert(op: Op) -> bool:
    """Between a half and f32."""
    return op.name == "convert" and DType.F32 in (op.operands[0].dtype, op.results[0].dtype)


def _compute(b: Builder, op: Op, mapping: dict[Value, Value]) -> None:
    wide = [
        b("convert", x, dtype=DType.F32) if is_half(v.type) or op.name == "convert" else x
        for v in op.operands
        for x in (mapping[v],)
    ]
    if op.name == "convert":
        made: tuple[Value, ...] = (b("convert", wide[0], dtype=op.attrs["dtype"]),)
    else:
        made = b.emit(op.name, wide, in_f32(op.attrs))
    for r, value in zip(op.results, made, strict=True):
        narrow = is_half(r.type) and value.dtype is DType.F32
        mapping[r] = b("convert", value, dtype=r.dtype) if narrow else value
