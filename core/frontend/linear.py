"""NumPy's products: matmul, dot, outer, tensordot, einsum, all as the IR's `dot`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..ir import Value
from . import arithmetic, reductions, shapes
from .arithmetic import tensor
from .operators import static_ints
from .values import Tensor, describe

if TYPE_CHECKING:
    from .specialise import Specialiser


def _pair(s: Specialiser, a: Any, b: Any) -> tuple[Value, Value, bool]:
    kind, weak = arithmetic.result_dtype(s, (a, b))
    x, y = (arithmetic.convert(s, tensor(s, v).value, kind) for v in (a, b))
    return x, y, weak


def _dot(
    s: Specialiser,
    a: Value,
    b: Value,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> Value:
    return s.emit(
        "dot",
        a,
        b,
        contract_a=tuple(contract[0]),
        contract_b=tuple(contract[1]),
        batch_a=tuple(batch[0]),
        batch_b=tuple(batch[1]),
    )


def matmul(s: Specialiser, x1: Any, x2: Any) -> Tensor:
    a, b, weak = _pair(s, x1, x2)
    ra, rb = len(a.shape), len(b.shape)
    if not ra or not rb:
        raise s.error("DL115", f"@ takes no single numbers: {a.type} @ {b.type}", "use *")
    inner = 0 if rb == 1 else rb - 2
    if a.shape[-1] != b.shape[inner]:
        raise s.error(
            "DL115",
            f"@ of shapes {list(a.shape)} and {list(b.shape)}: "
            f"the inner sizes {a.shape[-1]} and {b.shape[inner]} differ",
            "the last axis of the left meets the last but one of the right; x.T transposes",
        )
    if rb <= 2:  # The right side has no batch axes: those of the left are just more rows.
        return Tensor(_dot(s, a, b, ((ra - 1,), (inner,))), weak)
    if ra == 1:
        return Tensor(_dot(s, a, b, ((0,), (inner,))), weak)
    batch = arithmetic.broadcast_shapes(s, [_shaped(a, -2), _shaped(b, -2)])
    a = arithmetic.broadcast(s, a, (*batch, *a.shape[-2:]))
    b = arithmetic.broadcast(s, b, (*batch, *b.shape[-2:]))
    n = len(batch)
    axes = tuple(range(n))
    return Tensor(_dot(s, a, b, ((n + 1,), (n,)), (axes, axes)), weak)


def _shaped(value: Value, stop: int) -> Tensor:
    """A stand-in with the leading axes of a value, to broadcast shapes with."""
    return Tensor(Value(type(value.tensor)(value.dtype, value.shape[:stop])))


def dot(s: Specialiser, a: Any, b: Any) -> Tensor:
    x, y, weak = _pair(s, a, b)
    if not x.shape or not y.shape:
        return arithmetic.multiply(s, arithmetic.strong(a), arithmetic.strong(b))
    inner = max(len(y.shape) - 2, 0)
    if x.shape[-1] != y.shape[inner]:
        text = f"np.dot of shapes {list(x.shape)} and {list(y.shape)}"
        raise s.error("DL115", f"{text}: the sizes {x.shape[-1]} and {y.shape[inner]} differ")
    return Tensor(_dot(s, x, y, ((len(x.shape) - 1,), (inner,))), weak)


def inner(s: Specialiser, a: Any, b: Any) -> Tensor:
    x, y, weak = _pair(s, a, b)
    if not x.shape or not y.shape:
        return arithmetic.multiply(s, arithmetic.strong(a), arithmetic.strong(b))
    if x.shape[-1] != y.shape[-1]:
        raise s.error("DL115", f"np.inner of shapes {list(x.shape)} and {list(y.shape)}")
    return Tensor(_dot(s, x, y, ((len(x.shape) - 1,), (len(y.shape) - 1,))), weak)


def vdot(s: Specialiser, a: Any, b: Any) -> Tensor:
    return inner(s, shapes.ravel(s, a), shapes.ravel(s, b))


def outer(s: Specialiser, a: Any, b: Any) -> Tensor:
    x, y = shapes.ravel(s, a), shapes.ravel(s, b)
    return arithmetic.multiply(s, shapes.expand_dims(s, x, 1), shapes.expand_dims(s, y, 0))


def tensordot(s: Specialiser, a: Any, b: Any, axes: Any = 2) -> Tensor:
    x, y, weak = _pair(s, a, b)
    if isinstance(axes, int):
        if not 0 <= axes <= min(len(x.shape), len(y.shape)):
            raise s.error("DL115", f"np.tensordot over {axes} axes of {x.type} and {y.type}")
        left = list(range(len(x.shape) - axes, len(x.shape)))
        right = list(range(axes))
    else:
        if not isinstance(axes, tuple | list) or len(axes) != 2:
            text = f"np.tensordot takes a number of axes or two lists, not {describe(axes)}"
            raise s.error("DL119", text)
        first, second = axes
        left = [shapes.axis_of(s, Tensor(x), k) for k in static_ints(s, first, "an axis")]
        right = [shapes.axis_of(s, Tensor(y), k) for k in static_ints(s, second, "an axis")]
    if [x.shape[k] for k in left] != [y.shape[k] for k in right]:
        text = f"{x.type} along {left} and {y.type} along {right}"
        raise s.error("DL115", f"np.tensordot: the sizes differ: {text}")
    return Tensor(_dot(s, x, y, (left, right)), weak)


def einsum(s: Specialiser, subscripts: Any, *operands: Any) -> Tensor:
    """Any number of operands, from the left; no ellipsis."""
    if not isinstance(subscripts, str) or "." in subscripts:
        raise s.error("DL119", "np.einsum takes its subscripts as a string without an ellipsis")
    left, arrow, output = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise s.error("DL119", f"np.einsum: {len(terms)} terms and {len(operands)} operands")
    if not arrow:
        letters = sorted(set(left) - {","})
        output = "".join(c for c in letters if left.count(c) == 1)
    values = [tensor(s, v) for v in operands]
    for term, value in zip(terms, values, strict=True):
        if len(term) != len(value.shape) or len(set(term)) != len(term):
            raise s.error(
                "DL115", f"np.einsum: `{term}` does not name the axes of {describe(value)}"
            )
    term, value = terms[0], values[0]
    for k in range(1, len(terms)):
        wanted = set(output).union(*terms[k + 1 :])
        term, value = _contract(s, (term, value), (terms[k], values[k]), wanted)
    if unknown := set(output) - set(term):
        raise s.error("DL115", f"np.einsum: `{min(unknown)}` of the output is in no operand")
    value = _summed(s, term, value, set(output))
    kept = [c for c in term if c in output]
    return shapes.permuted(s, value, [kept.index(c) for c in output])


def _summed(s: Specialiser, term: str, value: Tensor, keep: set[str]) -> Tensor:
    axes = tuple(k for k, c in enumerate(term) if c not in keep)
    return reductions.sum_(s, value, axes, value.dtype.numpy) if axes else value


def _contract(
    s: Specialiser, a: tuple[str, Tensor], b: tuple[str, Tensor], wanted: set[str]
) -> tuple[str, Tensor]:
    """The product of two terms, summed over what nobody wants any more."""
    (p, x), (q, y) = a, b
    x, p = _summed(s, p, x, wanted | set(q)), "".join(c for c in p if c in wanted or c in q)
    y, q = _summed(s, q, y, wanted | set(p)), "".join(c for c in q if c in wanted or c in p)
    shared = [c for c in p if c in q]
    for c in shared:
        if x.shape[p.index(c)] != y.shape[q.index(c)]:
            raise s.error("DL115", f"np.einsum: `{c}` has two sizes: {describe(x)}, {describe(y)}")
    batch = [c for c in shared if c in wanted]
    summed = [c for c in shared if c not in wanted]
    u, v, weak = _pair(s, x, y)
    value = _dot(
        s,
        u,
        v,
        ([p.index(c) for c in summed], [q.index(c) for c in summed]),
        ([p.index(c) for c in batch], [q.index(c) for c in batch]),
    )
    rest = [c for c in p if c not in shared] + [c for c in q if c not in shared]
    return "".join(batch + rest), Tensor(value, weak)
