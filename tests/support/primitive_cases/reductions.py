"""Cases of the primitives along axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from delian.core.compiler.ir import Array

from .base import INTS, Case, Oracle, extremes, numbers, rng, wrapped


def reductions() -> Iterator[Case]:
    def by_rows(f: Callable[[Array], Any], axes: tuple[int, ...]) -> Oracle:
        def oracle(x: Array) -> Array:
            kept = [i for i in range(x.ndim) if i not in axes]
            shape = [x.shape[i] for i in kept]
            size = int(np.prod([x.shape[i] for i in axes]))
            rows = x.transpose(*kept, *axes).reshape(int(np.prod(shape)), size)
            return np.array([f(row) for row in rows]).reshape(shape)

        return oracle

    def prod(row: Array) -> Any:
        result = row.dtype.type(1)
        for value in row:
            result = result * value
        return result

    def most(row: Array) -> Any:
        return np.nan if np.isnan(row).any() else sorted(row.tolist())[-1]

    def least(row: Array) -> Any:
        return np.nan if np.isnan(row).any() else sorted(row.tolist())[0]

    rules = {"sum": lambda row: sum(row), "prod": prod, "max": most, "min": least}
    for kind, f in rules.items():
        name = f"reduce_{kind}"
        x = numbers(name, (2, 3, 4))
        for axes in ((), (0,), (1, 2), (0, 2), (0, 1, 2)):
            yield Case(name, str(axes), (x,), by_rows(f, axes), {"axes": axes}, smooth=(0,))
        holed = x.copy()
        holed[0, 1, 2] = np.nan
        yield Case(name, "nan", (holed,), by_rows(f, (1, 2)), {"axes": (1, 2)})
        yield Case(name, "0d", (np.array(1.5),), lambda v: v, {"axes": ()}, smooth=(0,))
        yield Case(name, "one", (x[:, :1],), by_rows(f, (1,)), {"axes": (1,)}, smooth=(0,))
        long = numbers(name, (3, 1000), 0.99, 1.01)
        yield Case(name, "long", (long,), by_rows(f, (1,)), {"axes": (1,)})
        kept = np.zeros((0, 3))
        yield Case(name, "kept-empty", (kept,), lambda v: np.zeros(0), {"axes": (1,)})
        for dtype in INTS:
            ints = np.array([extremes(dtype)] * 2, dtype)[:, :6]
            label = np.dtype(dtype).name
            g = {"sum": lambda *v: sum(v), "max": max, "min": min}.get(kind)
            columns = wrapped(g or _product, dtype)
            oracle = lambda v, columns=columns: columns(*v.T)  # noqa: E731
            yield Case(name, label, (ints,), oracle, {"axes": (1,)})
    zeros = np.array([[2.0, 0, 3, 0, 5], [1, 2, 0, 4, 5], [1, 2, 3, 4, 5]])
    yield Case("reduce_prod", "zeros", (zeros,), by_rows(prod, (1,)), {"axes": (1,)}, smooth=(0,))
    empty = np.zeros((2, 0))
    yield Case("reduce_sum", "empty", (empty,), lambda v: np.zeros(2), {"axes": (1,)}, smooth=(0,))
    yield Case("reduce_prod", "empty", (empty,), lambda v: np.ones(2), {"axes": (1,)}, smooth=(0,))
    flags = np.array([[True, False], [True, True], [False, False]])
    yield Case("reduce_max", "bool", (flags,), lambda v: v[:, 0] | v[:, 1], {"axes": (1,)})
    yield Case("reduce_min", "bool", (flags,), lambda v: v[:, 0] & v[:, 1], {"axes": (1,)})
    none = np.zeros((2, 0), np.bool_)
    yield Case("reduce_max", "no-bool", (none,), lambda v: np.zeros(2, bool), {"axes": (1,)})
    yield Case("reduce_min", "no-bool", (none,), lambda v: np.ones(2, bool), {"axes": (1,)})


def _product(*values: int) -> int:
    result = 1
    for value in values:
        result *= value
    return result


def orders() -> Iterator[Case]:
    x = rng("order").integers(-3, 4, (3, 4, 5)).astype(np.float64)
    holed = np.where(rng("holes").random((3, 4, 5)) < 0.2, np.nan, x)
    operands = {"ties": x, "nan": holed, "i32": x.astype(np.int32), "bool": x > 0}
    for dtype in INTS:
        least = np.iinfo(dtype).min
        operands[np.dtype(dtype).name] = (x + 3).astype(dtype) + least
    for label, operand in operands.items():
        for axis in (0, 1, 2):
            attrs, name = {"axis": axis}, f"{label}{axis}"
            for kind, sign in (("argmax", -1), ("argmin", 1)):
                oracle = _along(lambda row, sign=sign: _first(row, sign), axis)
                yield Case(kind, name, (operand,), oracle, attrs)
            oracle = _along(lambda row: sorted(range(len(row)), key=lambda i: _rank(row[i])), axis)
            yield Case("argsort", name, (operand,), oracle, attrs)
    yield Case("argsort", "empty", (np.zeros((2, 0)),), lambda v: v, {"axis": 1})
    y = numbers("cumsum", (3, 4))
    for axis in (0, 1):
        oracle = _along(lambda row: [sum(row[: i + 1]) for i in range(len(row))], axis)
        yield Case("cumsum", f"axis{axis}", (y,), oracle, {"axis": axis}, smooth=(0,))
    yield Case("cumsum", "empty", (np.zeros((0, 4)),), lambda v: v, {"axis": 0}, smooth=(0,))
    for dtype in INTS:
        last = np.iinfo(dtype).max
        oracle = wrapped(lambda *terms: sum(terms), dtype)
        parts = [oracle(*(np.array([t], dtype) for t in (last, 2, 7)[:n])) for n in (1, 2, 3)]
        total = np.concatenate(parts)
        ints, label = np.array([last, 2, 7], dtype), np.dtype(dtype).name
        yield Case("cumsum", label, (ints,), lambda v, total=total: total, {"axis": 0})


def _rank(value: Any) -> tuple[bool, Any]:
    return (bool(np.isnan(value)), 0 if np.isnan(value) else value)


def _first(row: Array, sign: int) -> int:
    holes = [i for i, v in enumerate(row) if np.isnan(v)]
    if holes:
        return holes[0]
    return min(range(len(row)), key=lambda i: (sign * int(row[i]), i))


def _along(f: Callable[[Array], Any], axis: int) -> Oracle:
    return lambda x: np.apply_along_axis(f, axis, x)
