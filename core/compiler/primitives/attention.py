"""Scaled dot-product attention, and its derivative (Vaswani et al. 2017, section 3.2.1).

Layouts: q [N,T,H,D], k [N,S,H,D], v [N,S,H,E], for N sequences and H heads.

    s = q k'        w = exp(s - lse)        lse = log sum over keys of exp(s)        out = w v

`attention` gives out [N,T,H,E] and lse [N,T,H]; halves are too coarse for that, so the front end
gives it f32. A mask, bool[N,H,T,S], of which the first three axes may be 1, says where a query may
look; `causal` lets query t look at keys up to t + S - T. A query that may look nowhere has zeros
for out, and `UNSEEN` for lse.

`attention_grad` is the derivative with out and lse held apart (Dao et al. 2022, "FlashAttention",
section 3.1 and algorithm 4): of q, k, v, lse, delta [N,T,H] and g [N,T,H,E] it gives

    dw = g v' - delta       dq = (w dw) k       dk = (w dw)' q       dv = w' g

where delta is the sum of g out along E, less what comes back to lse. So no tensor of scores is ever
kept: a back end may compute a block of them at a time, once forwards and once back. Of these
operands it is a sum of products, whose own derivatives are written out here in `dot`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir import Array, Blocks, Builder, DType, Op, TensorType, Type, Types, Value, Values
from .batching import spread
from .rules import filled, number, total, widen
from .table import Attrs, InferRule, JvpRule, Maybe, Primitive, ReferenceRule, VjpRule
from .type_checks import FLOATS, fail, tensor
from .unary import FUNCTION_COST

#: In place of minus infinity, and lse of a query that may look nowhere: finite, so that no
#: derivative is NaN.
UNSEEN = 1e30
#: Axes of [N,T,H,...] as [N,H,T,...].
_HEADS_FIRST = (0, 2, 1)


# Types


def _sizes(name: str, types: Types, attrs: Attrs, mask: int) -> TensorType:
    """Checks q, k, v and the mask, which is operand `mask` if it is there; gives q's type."""
    if len(types) not in (mask, mask + 1):
        fail(name, f"takes {mask} operands, or {mask + 1} with a mask, not {len(types)}")
    q, k, v = (
        tensor(name, t, FLOATS, what) for t, what in zip(types, ("q", "k", "v"), strict=False)
    )
    if not q.dtype is k.dtype is v.dtype:
        fail(name, f"element types of {q}, {k} and {v} differ", "convert them to one")
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        fail(name, f"takes q [N,T,H,D], k [N,S,H,D] and v [N,S,H,E], not {q}, {k} and {v}")
    (n, t, h, d), s = q.shape, k.shape[1]
    if k.shape != (n, s, h, d) or v.shape[:3] != (n, s, h):
        fail(name, f"takes q [N,T,H,D], k [N,S,H,D] and v [N,S,H,E], not {q}, {k} and {v}")
    if 0 in (*q.shape, *k.shape, *v.shape):
        fail(name, f"{q}, {k} or {v} has no elements")
    if len(types) > mask:
        seen = tensor(name, types[mask], what="the mask")
        full = (n, h, t, s)
        if seen.dtype is not DType.BOOL or len(seen.shape) != 4 or seen.shape[3] != s:
            fail(name, f"the mask must be bool[N,H,T,{s}], not {seen}")
        if any(a not in (1, b) for a, b in zip(seen.shape, full, strict=True)):
            fail(name, f"the mask {seen} does not fit scores {list(full)}")
    return q


def _per_query(q: TensorType) -> TensorType:
    """The type of lse and delta."""
    return TensorType(q.dtype, q.shape[:3])


def _type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    q = _sizes("attention", types, attrs, 3)
    v = types[2]
    assert isinstance(v, TensorType)
    return (TensorType(q.dtype, (*q.shape[:3], v.shape[3])), _per_query(q))


def _grad_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    name = "attention_grad"
    q = _sizes(name, types, attrs, 6)
    k, v, lse, delta, g = types[1:6]
    assert isinstance(v, TensorType)
    for what, given in (("lse", lse), ("delta", delta)):
        if given != _per_query(q):
            fail(name, f"{what} must be {_per_query(q)}, not {given}")
    wanted = TensorType(q.dtype, (*q.shape[:3], v.shape[3]))
    if g != wanted:
        fail(name, f"the cotangent must be {wanted}, not {g}")
    return (q, k, v)


# Meaning


def _heads(x: Array) -> Array:
    """[N,T,H,...] as [N,H,T,...], widened."""
    return np.swapaxes(widen(x), 1, 2)


def _seen(shape: tuple[int, ...], mask: Sequence[Array], attrs: Attrs) -> Array:
    seen = np.ones(shape, bool)
    if attrs["causal"]:
        seen = np.tril(seen, shape[3] - shape[2])
    for m in mask:
        seen = seen & m
    return seen


def _attention(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
    q, k, v = (_heads(x) for x in args[:3])
    with np.errstate(all="ignore"):
        scores = q @ np.swapaxes(k, 2, 3)
        seen = _seen(scores.shape, args[3:], attrs)
        scores = np.where(seen, scores, -UNSEEN)
        top = scores.max(axis=3, keepdims=True)
        raised = np.where(seen, np.exp(scores - top), 0)
        sums = raised.sum(axis=3, keepdims=True)
        nowhere = ~seen.any(axis=3, keepdims=True)
        out = (raised / np.where(nowhere, 1, sums)) @ v
        lse = np.where(nowhere, UNSEEN, top + np.log(sums))[..., 0]
        one = args[0].dtype
        return np.swapaxes(out, 1, 2).astype(one), np.swapaxes(lse, 1, 2).astype(one)


def _grad(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
    q, k, v, lse, delta, g = (_heads(x) for x in args[:6])
    with np.errstate(all="ignore"):
        scores = q @ np.swapaxes(k, 2, 3)
        seen = _seen(scores.shape, args[6:], attrs)
        w = np.exp(np.where(seen, scores - lse[..., None], -UNSEEN))
        s = w * (g @ np.swapaxes(v, 2, 3) - delta[..., None])
        made = s @ k, np.swapaxes(s, 2, 3) @ q, np.swapaxes(w, 2, 3) @ g
        return tuple(np.swapaxes(x, 1, 2).astype(args[0].dtype) for x in made)


# The same in other primitives


def _pairs(b: Builder, x: Maybe, y: Maybe) -> Maybe:
    """Each query's number for each key: [N,T,H,D], [N,S,H,D] -> [N,H,T,S]."""
    if x is None or y is None:
        return None
    axes: dict[str, Any] = {"contract_a": (3,), "contract_b": (3,)}
    return b("dot", x, y, **axes, batch_a=(0, 2), batch_b=(0, 2))


def _gathered(b: Builder, w: Maybe, x: Maybe, over: int) -> Maybe:
    """Sums over keys (3): [N,H,T,S], [N,S,H,E] -> [N,T,H,E]; queries (2): the reverse."""
    if w is None or x is None:
        return None
    axes: dict[str, Any] = {"contract_a": (over,), "contract_b": (1,)}
    made = b("dot", w, x, **axes, batch_a=(0, 1), batch_b=(0, 2))
    return b("transpose", made, perm=(0, 2, 1, 3))


def _over_keys(b: Builder, x: Value, like: Value) -> Value:
    """[N,T,H] repeated to [N,H,T,S]."""
    turned = b("transpose", x, perm=_HEADS_FIRST)
    return b("broadcast", turned, shape=like.shape, dims=(0, 1, 2))


def _sums(b: Builder, x: Value) -> Value:
    """[N,H,T,S] -> [N,T,H]."""
    return b("transpose", b("reduce_sum", x, axes=(3,)), perm=_HEADS_FIRST)


def _mul(b: Builder, x: Maybe, y: Maybe) -> Maybe:
    return None if x is None or y is None else b("mul", x, y)


def _less(b: Builder, x: Maybe, y: Maybe) -> Maybe:
    return x if y is None else total(b, [x, b("neg", y)])


def seen_by(b: Builder, op: Op, like: Value, mask: Values) -> Maybe:
    """bool[N,H,T,S]: where queries may look; None: everywhere."""
    shape, seen = like.shape, None
    if op.attrs["causal"]:
        at = [b("iota", dtype=DType.I64, shape=shape, axis=axis) for axis in (2, 3)]
        last = b("add", at[0], number(b, at[0], shape[3] - shape[2]))
        seen = b("le", at[1], last)
    for m in mask:
        axes = tuple(i for i in range(4) if m.shape[i] == shape[i])
        flat = b("reshape", m, shape=tuple(m.shape[i] for i in axes))
        wide = b("broadcast", flat, shape=shape, dims=axes)
        seen = wide if seen is None else b("and", seen, wide)
    return seen


def _weights(b: Builder, op: Op, q: Value, k: Value, lse: Value, mask: Values) -> Value:
    scores = _pairs(b, q, k)
    assert scores is not None
    power = b("sub", scores, _over_keys(b, lse, scores))
    seen = seen_by(b, op, scores, mask)
    if seen is not None:
        power = b("select", seen, power, number(b, power, -UNSEEN))
    return b("exp", power)


def composed(b: Builder, op: Op, operands: Values) -> list[Value]:
    """Either primitive in others, whole tensors of scores and all."""
    if op.name == "attention":
        return _composed_attention(b, op, operands)
    q, k, v, lse, delta, g = operands[:6]
    w = _weights(b, op, q, k, lse, operands[6:])
    dw = _pairs(b, g, v)
    assert dw is not None
    s = b("mul", w, b("sub", dw, _over_keys(b, delta, dw)))
    made = _gathered(b, s, k, 3), _gathered(b, s, q, 2), _gathered(b, w, g, 2)
    return [x for x in made if x is not None]


def _composed_attention(b: Builder, op: Op, operands: Values) -> list[Value]:
    q, k, v = operands[:3]
    scores = _pairs(b, q, k)
    assert scores is not None
    seen = seen_by(b, op, scores, operands[3:])
    if seen is not None:
        scores = b("select", seen, scores, number(b, scores, -UNSEEN))

    def repeated(x: Value) -> Value:
        return b("broadcast", x, shape=scores.shape, dims=(0, 1, 2))

    top = b("reduce_max", scores, axes=(3,))
    raised = b("exp", b("sub", scores, repeated(top)))
    if seen is not None:
        raised = b("select", seen, raised, number(b, raised, 0))
    sums = b("reduce_sum", raised, axes=(3,))
    lse = b("add", top, b("log", sums))
    if seen is not None:
        nowhere = b("eq", sums, number(b, sums, 0))
        sums = b("select", nowhere, number(b, sums, 1), sums)
        lse = b("select", nowhere, number(b, sums, UNSEEN), lse)
    out = _gathered(b, b("div", raised, repeated(sums)), v, 3)
    assert out is not None
    return [out, b("transpose", lse, perm=_HEADS_FIRST)]


# Derivatives


def _back(b: Builder, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
    g, g_lse = cotangents
    q, k, v, *mask = op.operands
    if g is None and g_lse is None:
        return (None,) * len(op.operands)
    out, lse = op.results
    delta = b.zeros(lse.type)
    if g is not None:
        delta = b("reduce_sum", b("mul", g, out), axes=(3,))
    if g_lse is not None:
        delta = b("sub", delta, g_lse)
    g = b.zeros(out.type) if g is None else g
    made = b.emit("attention_grad", (q, k, v, lse, delta, g, *mask), op.attrs)
    return (*made, *(None for _ in mask))


def _forward(b: Builder, op: Op, tangents: Sequence[Maybe]) -> Sequence[Maybe]:
    tq, tk, tv = tangents[:3]
    if tq is None and tk is None and tv is None:
        return (None, None)
    q, k, v = op.operands[:3]
    lse = op.results[1]
    w = _weights(b, op, q, k, lse, op.operands[3:])
    moved = _mul(b, w, total(b, [_pairs(b, tq, k), _pairs(b, q, tk)]))
    t_lse = None if moved is None else _sums(b, moved)
    if moved is not None and t_lse is not None:
        moved = b("sub", moved, b("mul", w, _over_keys(b, t_lse, w)))
    t_out = total(b, [_gathered(b, moved, v, 3), _gathered(b, w, tv, 3)])
    return (t_out, t_lse)


def _parts(b: Builder, op: Op) -> tuple[Values, Value, Value, Value]:
    """A derivative's operands, the weights, dw less delta, and their product."""
    q, k, v, lse, delta, g = wide = op.operands[:6]
    w = _weights(b, op, q, k, lse, op.operands[6:])
    dw = _pairs(b, g, v)
    assert dw is not None
    rest = b("sub", dw, _over_keys(b, delta, dw))
    return wide, w, rest, b("mul", w, rest)


def _grad_forward(b: Builder, op: Op, tangents: Sequence[Maybe]) -> Sequence[Maybe]:
    if all(t is None for t in tangents[:6]):
        return (None, None, None)
    tq, tk, tv, t_lse, t_delta, tg = filled(b, op, tangents[:6])
    (q, k, v, _, _, g), w, rest, s = _parts(b, op)
    power = total(b, [_pairs(b, tq, k), _pairs(b, q, tk)])
    tw = _mul(b, w, _less(b, power, _over_keys(b, t_lse, w)))
    t_rest = total(b, [_pairs(b, tg, v), _pairs(b, g, tv)])
    t_rest = _less(b, t_rest, _over_keys(b, t_delta, w))
    ts = total(b, [_mul(b, tw, rest), _mul(b, w, t_rest)])
    made = (
        total(b, [_gathered(b, ts, k, 3), _gathered(b, s, tk, 3)]),
        total(b, [_gathered(b, ts, q, 2), _gathered(b, s, tq, 2)]),
        total(b, [_gathered(b, tw, g, 2), _gathered(b, w, tg, 2)]),
    )
    return made


def _grad_back(b: Builder, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
    if all(c is None for c in cotangents):
        return (None,) * len(op.operands)
    cq, ck, cv = cotangents
    (q, k, v, _, _, g), w, rest, s = _parts(b, op)
    c_s = total(b, [_pairs(b, cq, k), _pairs(b, q, ck)])
    c_rest = _mul(b, c_s, w)
    c_w = total(b, [_mul(b, c_s, rest), _pairs(b, g, cv)])
    c_power = _mul(b, c_w, w)
    assert c_power is not None
    made: list[Maybe] = [
        total(b, [_gathered(b, c_power, k, 3), _gathered(b, s, ck, 3)]),
        total(b, [_gathered(b, c_power, q, 2), _gathered(b, s, cq, 2)]),
        _gathered(b, c_rest, g, 2),
        b("neg", _sums(b, c_power)),
        None if c_rest is None else b("neg", _sums(b, c_rest)),
        total(b, [_gathered(b, c_rest, v, 3), _gathered(b, w, cv, 3)]),
    ]
    return [*made, *(None for _ in op.operands[6:])]


# Lanes and costs


def _batch(b: Builder, op: Op, operands: Values, flags: Sequence[bool], size: int) -> Values:
    """Lanes are more sequences."""
    count = op.operands[0].shape[0]
    many = [_as_sequences(b, v, flag, size, count) for v, flag in zip(operands, flags, strict=True)]
    made = b.emit(op.name, many, op.attrs)
    return [b("reshape", r, shape=(size, count, *r.shape[1:])) for r in made]


def _as_sequences(b: Builder, value: Value, flag: bool, size: int, count: int) -> Value:
    """[L,N,...] as [L N,...]. A mask that is the same for all sequences of all lanes stays."""
    shape = value.shape[1:] if flag else value.shape
    if not flag and shape[0] == 1 != count:
        return value
    value = spread(b, value, flag, size)
    if shape[0] != count:  # a lane's own mask, the same for its sequences
        flat = b("reshape", value, shape=(size, *shape[1:]))
        dims = (0, *range(2, len(shape) + 1))
        value = b("broadcast", flat, shape=(size, count, *shape[1:]), dims=dims)
    return b("reshape", value, shape=(size * count, *shape[1:]))


def _work(op: Op, products: tuple[int, int]) -> int:
    """Products of each pair of a query and a key: so many along D, and along E."""
    (n, t, h, d), (_, s, _, e) = op.operands[0].shape, op.operands[2].shape
    pairs, square = n * h * t * s, min(s, t)
    if op.attrs["causal"]:
        pairs = n * h * (square * max(s - t, 0) + square * (square + 1) // 2)
    return pairs * (2 * products[0] * d + 2 * products[1] * e + FUNCTION_COST + 4)


def _workspace(op: Op) -> int:
    """Keys and values of one head in panels; of f64 the scores of all, a few times over."""
    (n, t, h, d), (_, s, _, e) = op.operands[0].shape, op.operands[2].shape
    if op.operands[0].dtype is DType.F64:
        return 3 * 8 * n * h * t * s
    return 4 * ((s + _PADDED) * (d + e + 2 * _PADDED) + _BLOCK)


#: Numbers that a panel is padded to, and those of a block of scores.
_PADDED, _BLOCK = 32, 1 << 16


def _row(
    name: str, rule: InferRule, f: ReferenceRule, vjp: VjpRule, jvp: JvpRule, work: tuple[int, int]
) -> Primitive:
    options: dict[str, Any] = {"attrs": ("causal",), "batch": _batch, "workspace": _workspace}
    return Primitive(name, rule, f, vjp, jvp, lambda op: _work(op, work), **options)


ROWS = (
    _row("attention", _type, _attention, _back, _forward, (1, 1)),
    _row("attention_grad", _grad_type, _grad, _grad_back, _grad_forward, (3, 2)),
)
