"""NumPy's products: matmul, dot, outer, tensordot, einsum, all as the IR's `dot`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...ir import DType, Value
from ..definitions import np_arrays
from ..operators import static_int, static_ints
from ..values import Tensor, describe
from . import arithmetic, elementwise, indexing, reductions, shapes
from .arithmetic import tensor

if TYPE_CHECKING:
    from ..specialise import Specialiser


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
    if a.dtype is DType.BOOL:  # A sum of truths is whether any holds.
        counted = [arithmetic.convert(s, v, DType.I32) for v in (a, b)]
        return arithmetic.convert(s, _dot(s, counted[0], counted[1], contract, batch), DType.BOOL)
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
        return _times_number(s, a, b)
    inner = max(len(y.shape) - 2, 0)
    if x.shape[-1] != y.shape[inner]:
        text = f"np.dot of shapes {list(x.shape)} and {list(y.shape)}"
        raise s.error("DL115", f"{text}: the sizes {x.shape[-1]} and {y.shape[inner]} differ")
    if max(len(x.shape), len(y.shape)) <= _BLAS_RANK:
        x, y = (v.value for v in _skipped(s, Tensor(x), Tensor(y)))
    return Tensor(_dot(s, x, y, ((len(x.shape) - 1,), (inner,))), weak)


#: BLAS has products of floats of these types, and of arrays up to this rank.
_BLAS_TYPES, _BLAS_RANK = (DType.F32, DType.F64), 2


def _times_number(s: Specialiser, a: Any, b: Any) -> Tensor:
    """A product with one number."""
    x, y = arithmetic.strong(a), arithmetic.strong(b)
    if max(len(arithmetic.shape_of(v)) for v in (x, y)) > _BLAS_RANK:
        return arithmetic.multiply(s, x, y)
    return arithmetic.multiply(s, *_skipped(s, x, y))


def _skipped(s: Specialiser, a: Any, b: Any) -> tuple[Any, Any]:
    """The operands of a product. BLAS leaves multiples by one number out where that is 0.

    So an infinity or NaN is taken as 0 there. A product of two single numbers is not by BLAS.
    """
    pair = sorted((a, b), key=lambda v: math.prod(arithmetic.shape_of(v)))
    one, others = pair
    sizes = [math.prod(arithmetic.shape_of(v)) for v in pair]
    if sizes[0] != 1 or sizes[1] == 1 or not arithmetic.dtype_of(s, others)[0].is_float:
        return a, b
    if arithmetic.result_dtype(s, (a, b))[0] not in _BLAS_TYPES or _is_known(one):
        return a, b
    number = Tensor(indexing.reshape(s, arithmetic.tensor(s, one).value, ()))
    kept = arithmetic.select(s, elementwise.isfinite(s, others), others, 0.0)
    kept = arithmetic.select(s, arithmetic.equal(s, number, 0), kept, others)
    return (kept, b) if others is a else (a, kept)


def _is_known(number: Any) -> bool:
    """Whether it is surely not 0."""
    return type(number) is not Tensor and bool(number != 0)


def inner(s: Specialiser, a: Any, b: Any) -> Tensor:
    x, y, weak = _pair(s, a, b)
    if not x.shape or not y.shape:
        return _times_number(s, a, b)
    if x.shape[-1] != y.shape[-1]:
        raise s.error("DL115", f"np.inner of shapes {list(x.shape)} and {list(y.shape)}")
    return Tensor(_dot(s, x, y, ((len(x.shape) - 1,), (len(y.shape) - 1,))), weak)


def vdot(s: Specialiser, a: Any, b: Any) -> Tensor:
    return inner(s, shapes.ravel(s, a), shapes.ravel(s, b))


def outer(s: Specialiser, a: Any, b: Any) -> Tensor:
    x, y = shapes.ravel(s, a), shapes.ravel(s, b)
    return arithmetic.multiply(s, shapes.expand_dims(s, x, 1), shapes.expand_dims(s, y, 0))


def tensordot(s: Specialiser, a: Any, b: Any, axes: Any = 2) -> Tensor:
    x, y, weak = _pair(s, arithmetic.strong(a), arithmetic.strong(b))
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
    x, y = (v.value for v in _skipped(s, Tensor(x), Tensor(y)))
    return Tensor(_dot(s, x, y, (left, right)), weak)


def einsum(s: Specialiser, subscripts: Any, *operands: Any, optimize: Any = False) -> Tensor:
    """Any subscripts and any number of operands, which are multiplied from the left."""
    if not isinstance(subscripts, str):
        subscripts, operands = _from_lists(s, (subscripts, *operands))
    left, arrow, output = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise s.error("DL119", f"np.einsum: {len(terms)} terms and {len(operands)} operands")
    values = [arithmetic.strong(tensor(s, v)) for v in operands]  # NumPy makes arrays of them.
    # It multiplies and sums in the type of all: one of two operands may be too narrow.
    kind = arithmetic.result_dtype(s, values)[0]
    values = [tensor(s, v, kind) for v in values]
    terms, dots = _without_dots(s, terms, values)
    if not arrow:
        letters = sorted(set("".join(terms)) - set(dots))
        output = dots + "".join(c for c in letters if "".join(terms).count(c) == 1)
    if dots and "..." not in output and arrow:
        text = f"np.einsum: `{output}` has no place for the axes of `...`"
        raise s.error("DL115", text, "begin it with `...`, or sum the result")
    output = output.replace("...", dots)
    if "." in output or len(set(output)) != len(output):
        raise s.error("DL119", f"np.einsum: `{output}` is no output: each letter once")
    if optimize is not False and not output:
        text = (
            "np.einsum with `optimize` gives a number or an array of rank 0, by the path it finds"
        )
        raise s.error("DL119", text, "leave `optimize` out")
    terms, values = _plain_terms(s, terms, values, output)
    term, value = terms[0], values[0]
    for k in range(1, len(terms)):
        wanted = set(output).union(*terms[k + 1 :])
        term, value = _contract(s, (term, value), (terms[k], values[k]), wanted)
    if unknown := set(output) - set(term):
        raise s.error("DL115", f"np.einsum: `{min(unknown)}` of the output is in no operand")
    value = _summed(s, term, value, set(output))
    kept = [c for c in term if c in output]
    return shapes.permuted(s, value, [kept.index(c) for c in output])


def _from_lists(s: Specialiser, items: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """`einsum(a, [0, 1], b, [1, 2], [0, 2])` in letters."""

    def letters(axes: Any) -> str:
        if not isinstance(axes, list | tuple):
            text = f"np.einsum takes subscripts as text or as lists of axes, not {describe(axes)}"
            raise s.error("DL119", text)
        return "".join(
            "..." if k is Ellipsis else letter(static_int(s, k, "an axis")) for k in axes
        )

    def letter(axis: int) -> str:
        if not 0 <= axis < _AXES_MAX:
            raise s.error("DL119", f"np.einsum numbers axes from 0 to {_AXES_MAX - 1}, not {axis}")
        return chr(_FIRST_LETTER + axis)

    count = len(items) // 2
    terms = [letters(items[2 * k + 1]) for k in range(count)]
    text = ",".join(terms)
    if len(items) % 2:
        text += "->" + letters(items[-1])
    return text, tuple(items[2 * k] for k in range(count))


_FIRST_LETTER = ord("A")
#: NumPy's limit: as many as there are letters.
_AXES_MAX = 52
#: Letters for the axes that an ellipsis stands for: no keyboard has them.
_FIRST_DOT = 0x1000


def _without_dots(
    s: Specialiser, terms: Sequence[str], values: Sequence[Tensor]
) -> tuple[list[str], str]:
    """Terms whose ellipses are letters, counted from the last, and the longest ellipsis."""
    out, longest = [], 0
    for term, value in zip(terms, values, strict=True):
        free = len(value.shape) - len(term.replace("...", ""))
        strange = "." in term.replace("...", "", 1)
        if strange or free < 0 or (free > 0 and "..." not in term):
            text = f"np.einsum: `{term}` does not name the axes of {describe(value)}"
            raise s.error("DL115", text)
        longest = max(longest, free)
        out.append(term.replace("...", _dots(free)))
    return out, _dots(longest)


def _dots(count: int) -> str:
    return "".join(chr(_FIRST_DOT + k) for k in reversed(range(count)))


def _plain_terms(
    s: Specialiser, terms: Sequence[str], values: Sequence[Tensor], output: str
) -> tuple[list[str], list[Tensor]]:
    """Terms that name each letter once, and axes of size 1 only where a letter has that size.

    A letter that stands twice is a diagonal; an axis of size 1 broadcasts, so it is dropped.
    """
    sizes: dict[str, int] = {}
    for term, value in zip(terms, values, strict=True):
        for c, n in zip(term, value.shape, strict=True):
            if n != 1 and sizes.get(c, 1) not in (1, n):
                text = f"np.einsum: `{c}` has two sizes, {sizes[c]} and {n}"
                raise s.error("DL115", text)
            sizes[c] = n if sizes.get(c, 1) == 1 else sizes[c]
    out_terms, out_values = [], []
    for term, value in zip(terms, values, strict=True):
        twice = [c for c in set(term) if term.count(c) > 1]
        sides = {c: {n for d, n in zip(term, value.shape, strict=True) if d == c} for c in twice}
        if wrong := [c for c in twice if len(sides[c]) > 1]:
            text = f"np.einsum: `{wrong[0]}` has the sizes {sorted(sides[wrong[0]])} in one operand"
            raise s.error("DL115", text)
        thin = [k for k, c in enumerate(term) if value.shape[k] == 1 and sizes[c] != 1]
        if thin:
            value = shapes.squeeze(s, value, tuple(thin))
            term = "".join(c for k, c in enumerate(term) if k not in thin)
        while len(set(term)) != len(term):
            c = next(c for c in term if term.count(c) > 1)
            i = term.index(c)
            j = term.index(c, i + 1)
            value = s.call(np_arrays.diagonal, value, 0, i, j)
            term = "".join(x for k, x in enumerate(term) if k not in (i, j)) + c
        out_terms.append(term)
        out_values.append(value)
    return out_terms, out_values


def _summed(s: Specialiser, term: str, value: Tensor, keep: set[str]) -> Tensor:
    axes = tuple(k for k, c in enumerate(term) if c not in keep)
    return reductions.sum_(s, value, axes, value.dtype.numpy) if axes else value


def _contract(
    s: Specialiser, a: tuple[str, Tensor], b: tuple[str, Tensor], wanted: set[str]
) -> tuple[str, Tensor]:
    """The product of two terms, summed over the axes that are not used later."""
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
