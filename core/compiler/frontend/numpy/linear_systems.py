"""NumPy's linear algebra that needs primitives of its own: Cholesky, solves, determinants."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType
from ..definitions import np_matrices
from ..flow import raises
from ..values import Tensor, describe
from . import arithmetic, elementwise, reductions, shapes
from .arithmetic import tensor
from .formulas import fails

if TYPE_CHECKING:
    from ..specialise import Specialiser


def _float(s: Specialiser, a: Any) -> Tensor:
    x = tensor(s, a)
    if x.dtype is DType.F16:
        raise s.error("DL116", "np.linalg takes no f16", "convert it: x.astype(np.float32)")
    return Tensor(x.value) if x.dtype.is_float else tensor(s, x, DType.F64)


def square(s: Specialiser, a: Any, what: str) -> Tensor:
    """Floats [..., n, n]; `what` names the function in the error."""
    x = _float(s, a)
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2]:
        raise s.error("DL115", f"{what} takes square matrices, not {describe(x)}")
    return x


def _transposed(s: Specialiser, x: Tensor) -> Tensor:
    return shapes.swapaxes(s, x, -1, -2)


def cholesky(s: Specialiser, a: Any, /, *, upper: Any = False) -> Tensor:
    """As NumPy, of the lower or of the upper triangle alone."""
    x = square(s, a, "np.linalg.cholesky")
    if x.type.size == 0:
        return x
    read = shapes.tril(s, _transposed(s, x) if upper else x)
    factor = Tensor(s.emit("cholesky", read.value))
    _check(s, factor, (read,), "Matrix is not positive definite")
    return _transposed(s, factor) if upper else factor


def _check(s: Specialiser, made: Tensor, given: Sequence[Tensor], words: str) -> None:
    """LinAlgError where the result is NaN though what is given is finite."""
    if raises.checks(s) is None:
        raises.not_raised(s, np.linalg.LinAlgError, "this function of np.linalg")
        return
    lost = arithmetic.any_of(s, elementwise.isnan(s, made).value)
    for x in given:
        finite = reductions.all_(s, elementwise.isfinite(s, x))
        lost = s.emit("and", lost, finite.value)
    fails(s, lost, np.linalg.LinAlgError, words)


def solve(s: Specialiser, a: Any, b: Any) -> Tensor:
    x, y = square(s, a, "np.linalg.solve"), _float(s, b)
    vector = len(y.shape) == 1
    if vector:
        y = shapes.expand_dims(s, y, 1)
    if len(y.shape) < 2 or y.shape[-2] != x.shape[-1]:
        text = f"np.linalg.solve: {describe(x)} and {describe(tensor(s, b))} do not fit"
        raise s.error("DL115", text, "b has as many rows as the matrix")
    dtype, _ = arithmetic.result_dtype(s, (x, y))
    batch = arithmetic.broadcast_shapes(s, [_leading(x), _leading(y)])
    left = arithmetic.materialise(s, x, dtype, (*batch, *x.shape[-2:]))
    right = arithmetic.materialise(s, y, dtype, (*batch, *y.shape[-2:]))
    solved = Tensor(s.emit("solve", left, right) if right.tensor.size else right)
    if right.tensor.size:
        _check(s, solved, (Tensor(left), Tensor(right)), "Singular matrix")
    return shapes.squeeze(s, solved, -1) if vector else solved


def _leading(x: Tensor) -> Tensor:
    """A stand-in with the batch axes, to broadcast shapes with."""
    return Tensor(type(x.value)(type(x.type)(x.dtype, x.shape[:-2])))


def inv(s: Specialiser, a: Any) -> Tensor:
    x = square(s, a, "np.linalg.inv")
    return solve(s, x, shapes.eye(s, x.shape[-1], dtype=x.dtype.numpy))


#: NumPy's class for a sign and the logarithm of a size; it has no public name.
_Slogdet: Any = type(np.linalg.slogdet(np.eye(1)))


def slogdet(s: Specialiser, a: Any) -> tuple[Tensor, Tensor]:
    x = square(s, a, "np.linalg.slogdet")
    if x.shape[-1] == 0:  # The product of no factors is one.
        sign, size = (s.scope.number(n, x.dtype, x.shape[:-2]) for n in (1, 0))
    else:
        sign, size = s.scope.emit("slogdet", (x.value,))
    made: tuple[Tensor, Tensor] = _Slogdet(Tensor(sign), Tensor(size))
    return made


def det(s: Specialiser, a: Any) -> Tensor:
    return s.call(np_matrices.det, square(s, a, "np.linalg.det"))  # type: ignore[no-any-return]


def multi_dot(s: Specialiser, arrays: Any) -> Tensor:
    """In the order that multiplies least."""
    values = [tensor(s, v) for v in shapes.sequence(s, arrays)]
    ranks = [len(v.shape) for v in values]
    inner = ranks[1:-1]
    if len(values) < 2 or any(r != 2 for r in inner) or not set(ranks) <= {1, 2}:
        raise s.error("DL115", "np.linalg.multi_dot takes matrices, the first and last or vectors")
    first = values[0].shape[0] if ranks[0] == 2 else 1
    last = values[-1].shape[-1] if ranks[-1] == 2 else 1
    sizes = (first, *(v.shape[0] for v in values[1:]), last)
    return s.call(np_matrices.multi_dot, values, _order(sizes))  # type: ignore[no-any-return]


def _order(sizes: Sequence[int]) -> Any:
    """The cheapest order, by dynamic programming: a place in the chain, or a pair of orders."""

    @cache
    def best(i: int, j: int) -> tuple[int, Any]:
        if j == i + 1:
            return 0, i
        splits = []
        for k in range(i + 1, j):
            (left, a), (right, b) = best(i, k), best(k, j)
            splits.append((left + right + sizes[i] * sizes[k] * sizes[j], k, (a, b)))
        cost, _, order = min(splits, key=lambda split: split[:2])
        return cost, order

    return best(0, len(sizes) - 1)[1]
