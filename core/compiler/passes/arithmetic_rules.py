"""Rewriting rules for elementwise arithmetic: one small function a primitive, collected in `RULES`.

Floating point keeps its NaNs and infinities: x * 0 and x - x stay. What may change is the sign of a
zero (x + 0 is x). Nothing is reassociated but integers, whose arithmetic wraps and is therefore
exact.

A broadcast, reshape or transpose moves out past arithmetic, exp(broadcast(x)) => broadcast(exp(x)),
when it is the same for every operand: repeated numbers are computed once, and where the movements
meet they cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..ir import DType, Op, TensorType, Value
from .rewrite import COMMUTATIVE, Rewriter, Rule

#: Every elementwise primitive, whose operands and result have one shape.
ELEMENTWISE = frozenset(
    (
        *("neg", "abs", "sign", "floor", "ceil", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt"),
        *("sin", "cos", "tanh", "sigmoid", "erf", "not", "is_finite", "stop_gradient"),
        *("add", "sub", "mul", "max", "min", "div", "pow", "floordiv", "mod"),
        *("and", "or", "xor", "shl", "shr", "eq", "ne", "lt", "le"),
        *("select", "convert", "bitcast"),
    )
)

#: What moves out past arithmetic, with the attribute that must agree in addition to the shapes.
_LAYOUTS = {"broadcast": "dims", "reshape": "shape", "transpose": "perm"}

#: Conversions that lose nothing, so that a second one may start from the first one's operand.
_LOSSLESS = {
    DType.BOOL: frozenset(DType),
    DType.U8: frozenset(
        {
            *(DType.I16, DType.I32, DType.I64, DType.U16, DType.U32, DType.U64),
            *(DType.F32, DType.F64),
        }
    ),
    DType.U16: frozenset(
        {DType.I32, DType.I64, DType.U32, DType.U64, DType.F32, DType.F64},
    ),
    DType.U32: frozenset({DType.I64, DType.U64, DType.F64}),
    DType.I8: frozenset({DType.I16, DType.I32, DType.I64, DType.F32, DType.F64}),
    DType.I16: frozenset({DType.I32, DType.I64, DType.F32, DType.F64}),
    DType.I32: frozenset({DType.I64, DType.F64}),
    DType.F32: frozenset({DType.F64}),
    DType.F16: frozenset({DType.F32, DType.F64}),
    DType.BF16: frozenset({DType.F32, DType.F64}),
}


def _neg(r: Rewriter, op: Op) -> Value | None:
    (x,) = op.operands
    if inner := r.origin(x, "neg"):
        return inner.operands[0]
    if inner := r.origin(x, "sub"):
        return r("sub", inner.operands[1], inner.operands[0])
    return _on_rows(r, op)


def _abs(r: Rewriter, op: Op) -> Value | None:
    (x,) = op.operands
    if r.origin(x, "abs"):
        return x
    inner = r.origin(x, "neg")
    if inner is not None and not x.dtype.is_unsigned:  # theirs wraps to a large one
        return r("abs", inner.operands[0])
    return None


def _again(r: Rewriter, op: Op) -> Value | None:
    """f(f(x)) => f(x)."""
    (x,) = op.operands
    return x if r.origin(x, op.name) else None


def _not(r: Rewriter, op: Op) -> Value | None:
    inner = r.origin(op.operands[0], "not")
    return inner.operands[0] if inner else None


def _add(r: Rewriter, op: Op) -> Value | None:
    x, y = op.operands
    if r.is_splat(y, 0):
        return x
    if minus := r.origin(y, "neg"):
        return r("sub", x, minus.operands[0])
    if minus := r.origin(x, "neg"):
        return r("sub", y, minus.operands[0])
    return (
        _add_scattered(r, x, y)
        or _add_scattered(r, y, x)
        or _add_padded(r, x, y)
        or _add_padded(r, y, x)
        or _integer_chain(r, op)
    )


def _add_padded(r: Rewriter, x: Value, y: Value) -> Value | None:
    """pad(a) + pad(b) => pad(concat(a, b)) where each lies on the other's zeros and they meet."""
    pads = [r.origin(v, "pad") for v in (x, y)]
    if any(p is None or not r.is_splat(p.operands[1], 0) for p in pads):
        return None
    first, second = (p for p in pads if p is not None)
    a, b = first.operands[0], second.operands[0]
    rows = list(zip(a.shape, b.shape, first.attrs["low"], second.attrs["low"], strict=True))
    apart = [d for d, (n, m, at, other) in enumerate(rows) if (n, at) != (m, other)]
    if len(apart) != 1 or any(first.attrs["interior"]) or any(second.attrs["interior"]):
        return None
    (axis,) = apart
    size, _, at, other = rows[axis]
    if size == 0 or b.shape[axis] == 0 or at < 0 or at + size != other:
        return None
    pieces = (*_pieces(r, a, axis), *_pieces(r, b, axis))
    joined = r("concat", *pieces, axis=axis)
    high = tuple(
        n - at - m for n, at, m in zip(x.shape, first.attrs["low"], joined.shape, strict=True)
    )
    if any(n < 0 for n in high):
        return None
    return r(
        "pad",
        joined,
        first.operands[1],
        low=first.attrs["low"],
        high=high,
        interior=(0,) * len(high),
    )


def _pieces(r: Rewriter, value: Value, axis: int) -> tuple[Value, ...]:
    """What a value is concatenated of along an axis."""
    made = r.origin(value, "concat")
    return made.operands if made is not None and made.attrs["axis"] == axis else (value,)


def _add_scattered(r: Rewriter, x: Value, y: Value) -> Value | None:
    """x + put_add(0, i, u) => put_add(x, i, u): a gather's cotangent is added up where it falls."""
    made = _scattered(r, y)
    return None if made is None else r(made.name, x, *made.operands[1:], **made.attrs)


def _scattered(r: Rewriter, value: Value) -> Op | None:
    """The operation that puts rows into zeros, when that is all that a value is used for."""
    for name in ("put_add", "put_along_add"):
        made = r.origin(value, name)
        if made is not None and r.used_once(value) and r.is_splat(made.operands[0], 0):
            return made
    return None


def _on_rows(r: Rewriter, op: Op) -> Value | None:
    """f(put_add(0, i, u)) => put_add(0, i, f(u)): a sparse gradient stays sparse.

    f is a negation, or a product or quotient with one number.
    """
    x, *rest = op.operands
    made = _scattered(r, x)
    if made is None and rest and op.name == "mul":
        x, rest = rest[0], [x]
        made = _scattered(r, x)
    if made is None:
        return None
    zeros, indices, rows = made.operands
    numbers = [_number_like(r, v, rows) for v in rest]
    if any(v is None for v in numbers):
        return None
    scaled = r(op.name, rows, *[v for v in numbers if v is not None])
    return r(made.name, zeros, indices, scaled, **made.attrs)


def _number_like(r: Rewriter, value: Value, rows: Value) -> Value | None:
    """A tensor that repeats one number, in the shape of another; None when it repeats none."""
    known = r.splat(value)
    if known is not None:
        return r.full(rows.tensor, known) if np.isfinite(known) and known != 0 else None
    made = r.origin(value, "broadcast")
    if made is None or made.operands[0].shape != ():
        return None
    return r("broadcast", made.operands[0], shape=rows.shape, dims=())


def _sub(r: Rewriter, op: Op) -> Value | None:
    x, y = op.operands
    if r.is_splat(y, 0):
        return x
    if r.is_splat(x, 0):
        return r("neg", y)
    if minus := r.origin(y, "neg"):
        return r("add", x, minus.operands[0])
    if made := _scattered(r, y):
        rows = r("neg", made.operands[2])
        return r(made.name, x, made.operands[1], rows, **made.attrs)
    if op.results[0].dtype.is_float:
        return None
    if x is y:
        return r.full(op.results[0].tensor, 0)
    number = r.splat(y)
    if number is not None:
        # So that chains of both fold into one addition.
        with np.errstate(over="ignore"):
            return r("add", x, r.full(y.tensor, np.negative(number)))
    return None


def _integer_chain(r: Rewriter, op: Op) -> Value | None:
    """(x op c) op d => x op (c op d), for integers."""
    x, y = op.operands
    inner = r.origin(x, op.name)
    if inner is None or op.results[0].dtype.is_float or r.splat(y) is None:
        return None
    if r.splat(inner.operands[1]) is None:
        return None
    return r(op.name, inner.operands[0], r(op.name, inner.operands[1], y))


def _mul(r: Rewriter, op: Op) -> Value | None:
    x, y = op.operands
    out = op.results[0].tensor
    if r.is_splat(y, 1):
        return x
    if r.is_splat(y, -1):
        return r("neg", x)
    if not out.dtype.is_float and r.is_splat(y, 0):
        return r.full(out, 0)
    a, b = r.origin(x, "neg"), r.origin(y, "neg")
    if a and b:
        return r("mul", a.operands[0], b.operands[0])
    number = r.splat(y)
    if a and number is not None:
        return (
            r("mul", a.operands[0], r.full(out, np.negative(number)))
            if out.dtype.is_float
            else None
        )
    return _on_rows(r, op) or _integer_chain(r, op)


def _div(r: Rewriter, op: Op) -> Value | None:
    x, y = op.operands
    if r.is_splat(y, 1):
        return x
    number = r.splat(y)
    if number is not None and np.isfinite(number) and number != 0:
        mantissa, exponent = math.frexp(float(number))
        # A power of two whose inverse is a normal number of either width: multiplying by it is
        # exact.
        if abs(mantissa) == 0.5 and abs(exponent) < 120:
            return r("mul", x, r.full(y.tensor, 1.0 / float(number)))
    return _on_rows(r, op)


def _pow(r: Rewriter, op: Op) -> Value | None:
    x, y = op.operands
    if r.is_splat(y, 1):
        return x
    if r.is_splat(y, 2):
        return r("mul", x, x)
    if r.is_splat(y, 0):
        return r.full(op.results[0].tensor, 1)
    return None


def _floordiv(r: Rewriter, op: Op) -> Value | None:
    x, y = op.operands
    return x if x.dtype.is_int and r.is_splat(y, 1) else None


def _mod(r: Rewriter, op: Op) -> Value | None:
    x, y = op.operands
    return r.full(x.tensor, 0) if x.dtype.is_int and r.is_splat(y, 1) else None


def _idempotent(r: Rewriter, op: Op) -> Value | None:
    x, y = op.operands
    return x if x is y else None


def _and(r: Rewriter, op: Op) -> Value | None:
    x, y = op.operands
    if x is y or (x.dtype is DType.BOOL and r.is_splat(y, 1)):
        return x
    return y if r.is_splat(y, 0) else None


def _or(r: Rewriter, op: Op) -> Value | None:
    x, y = op.operands
    if x is y or r.is_splat(y, 0):
        return x
    return y if x.dtype is DType.BOOL and r.is_splat(y, 1) else None


def _xor(r: Rewriter, op: Op) -> Value | None:
    x, y = op.operands
    if r.is_splat(y, 0):
        return x
    if x.dtype is DType.BOOL and r.is_splat(y, 1):
        return r("not", x)
    return r.full(x.tensor, 0) if x is y else None


def _shift(r: Rewriter, op: Op) -> Value | None:
    x, y = op.operands
    return x if r.is_splat(y, 0) else None


def _compare(equal: bool) -> Rule:
    """x == x, x <= x are true and x != x, x < x false, but for NaN."""

    def rule(r: Rewriter, op: Op) -> Value | None:
        x, y = op.operands
        if x is y and not x.dtype.is_float:
            return r.full(op.results[0].tensor, equal)
        return None

    return rule


def _select(r: Rewriter, op: Op) -> Value | None:
    pred, yes, no = op.operands
    if yes is no:
        return yes
    known = r.splat(pred)
    if known is not None:
        return yes if known else no
    if flipped := r.origin(pred, "not"):
        return r("select", flipped.operands[0], no, yes)
    return None


def _convert(r: Rewriter, op: Op) -> Value | None:
    (x,) = op.operands
    to: DType = op.attrs["dtype"]
    if x.dtype is to:
        return x
    inner = r.origin(x, "convert")
    if inner is None:
        return None
    source = inner.operands[0]
    held = _LOSSLESS.get(source.dtype, ())
    # An integer that does not fit another one wraps, and a float that does not becomes another one.
    fits = not x.dtype.is_float or source.dtype.is_float or to.is_float or to in held
    if x.dtype in held and (fits or source.dtype is to):
        return source if source.dtype is to else r("convert", source, dtype=to)
    return None


def _bitcast(r: Rewriter, op: Op) -> Value | None:
    (x,) = op.operands
    if x.dtype is op.attrs["dtype"]:
        return x
    inner = r.origin(x, "bitcast")
    return r("bitcast", inner.operands[0], dtype=op.attrs["dtype"]) if inner else None


def _move_layout(r: Rewriter, op: Op) -> Value | None:
    """f(broadcast(x), broadcast(y), number) => broadcast(f(x, y, number)), and others alike."""
    how: Op | None = None
    sources: list[Value | None] = []
    for v in op.operands:
        if r.splat(v) is not None:
            sources.append(None)
            continue
        made = r.maker(v)
        if made is None or made.name not in _LAYOUTS:
            return None
        if how is None:
            how = made
        elif not _same_layout(how, made):
            return None
        sources.append(made.operands[0])
    out = op.results[0].tensor
    if how is None and out.shape == ():
        return None  # constants: folding does it
    shape = () if how is None else how.operands[0].shape
    small = [
        r.full(TensorType(v.dtype, shape), r.splat(v)) if source is None else source
        for v, source in zip(op.operands, sources, strict=True)
    ]
    result = Value(TensorType(out.dtype, shape))
    (value,) = r.add(Op(op.name, tuple(small), (result,), op.attrs, (), op.locs))
    if how is None:
        return r("broadcast", value, shape=out.shape, dims=())
    return r(how.name, value, **how.attrs)


def _same_layout(a: Op, b: Op) -> bool:
    return (
        a.name == b.name
        and a.operands[0].shape == b.operands[0].shape
        and a.attrs.get(_LAYOUTS[a.name]) == b.attrs.get(_LAYOUTS[a.name])
    )


_OWN: dict[str, Callable[[Rewriter, Op], Value | None]] = {
    "neg": _neg,
    "abs": _abs,
    "sign": _again,
    "floor": _again,
    "ceil": _again,
    "stop_gradient": _again,
    "not": _not,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "floordiv": _floordiv,
    "mod": _mod,
    "max": _idempotent,
    "min": _idempotent,
    "and": _and,
    "or": _or,
    "xor": _xor,
    "shl": _shift,
    "shr": _shift,
    "eq": _compare(True),
    "le": _compare(True),
    "ne": _compare(False),
    "lt": _compare(False),
    "select": _select,
    "convert": _convert,
    "bitcast": _bitcast,
}


def _rule(name: str) -> Rule:
    own = _OWN.get(name)

    def rule(r: Rewriter, op: Op) -> Value | None:
        if name in COMMUTATIVE and _constant_first(r, op):
            swapped = (op.operands[1], op.operands[0])
            r.changed = True
            return r.add(Op(name, swapped, op.results, op.attrs, (), op.locs))[0]
        value = own(r, op) if own is not None else None
        return _move_layout(r, op) if value is None else value

    return rule


def _constant_first(r: Rewriter, op: Op) -> bool:
    x, y = op.operands
    return _is_constant(r, x) and not _is_constant(r, y)


def _is_constant(r: Rewriter, value: Value) -> bool:
    return r.splat(value) is not None or r.origin(value, "constant") is not None


RULES: dict[str, Rule] = {name: _rule(name) for name in sorted(ELEMENTWISE)}
