"""Cases of the primitives that read and write where indices say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from delian.core.compiler.ir import Array

from .base import INTS, Case, numbers, rng, wrapped


def indexing() -> Iterator[Case]:
    x = numbers("index", (3, 4, 2))
    for label, starts in (("inside", (1, 0, 0)), ("above", (9, 3, 0)), ("below", (-5, -1, -1))):
        sizes = (2, 3, 1)
        at = [min(max(s, 0), n - w) for s, n, w in zip(starts, x.shape, sizes, strict=True)]
        picks = np.ix_(*[range(a, a + w) for a, w in zip(at, sizes, strict=True)])
        scalars = tuple(np.array(s, np.int64) for s in starts)
        taken = lambda v, *_, picks=picks: v[picks]  # noqa: E731
        yield Case("dynamic_slice", label, (x, *scalars), taken, {"sizes": sizes}, smooth=(0,))

        def written(v: Array, update: Array, *_: Any, picks: Any = picks) -> Array:
            result = np.array(v)
            result[picks] = update
            return result

        args = (x, numbers("update", sizes), *scalars)
        yield Case("dynamic_update", label, args, written, smooth=(0, 1))
    yield Case("dynamic_slice", "0d", (np.array(2.0),), lambda v: v, {"sizes": ()}, smooth=(0,))
    i8 = np.arange(6, dtype=np.uint8)
    one = np.array(4, np.int64)
    yield Case("dynamic_slice", "u8", (i8, one), lambda v, s: v[3:], {"sizes": (3,)})
    yield from _takes(x)


def _takes(x: Array) -> Iterator[Case]:
    for label, indices in (
        ("some", np.array([2, 0, 2], np.int64)),
        ("clamped", np.array([[-3, 1], [99, 0]], np.int32)),
        ("one", np.array(1, np.uint8)),
        ("none", np.zeros((0, 2), np.int64)),
    ):
        for axis in (0, 1, 2):
            attrs, name = {"axis": axis}, f"{label}{axis}"
            taken = lambda v, i, axis=axis: _gathered(v, i, axis)  # noqa: E731
            yield Case("take", name, (x, indices), taken, attrs, smooth=(0,))
            updates = numbers(name, x.shape[:axis] + indices.shape + x.shape[axis + 1 :])

            def put(v: Array, i: Array, u: Array, axis: int = axis) -> Array:
                result = np.moveaxis(np.array(v), axis, 0)
                rows = np.moveaxis(u, range(axis, axis + i.ndim), range(i.ndim))
                for index in np.ndindex(i.shape):
                    result[min(max(int(i[index]), 0), v.shape[axis] - 1)] += rows[index]
                return np.moveaxis(result, 0, axis)

            yield Case("put_add", name, (x, indices, updates), put, attrs, smooth=(0, 2))
    for axis, count in ((0, 2), (1, 5), (2, 1)):
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        indices = rng("along", axis).integers(-1, x.shape[axis] + 1, shape)
        attrs, name = {"axis": axis}, f"axis{axis}"

        def along(v: Array, i: Array, axis: int = axis) -> Array:
            result = np.zeros(i.shape, v.dtype)
            for index in np.ndindex(i.shape):
                result[index] = v[_moved(index, i, v, axis)]
            return result

        def put_along(v: Array, i: Array, u: Array, axis: int = axis) -> Array:
            result = np.array(v)
            for index in np.ndindex(i.shape):
                result[_moved(index, i, v, axis)] += u[index]
            return result

        yield Case("take_along", name, (x, indices), along, attrs, smooth=(0,))
        args = (x, indices, numbers(name, shape))
        yield Case("put_along_add", name, args, put_along, attrs, smooth=(0, 2))
    ints = np.array([250, 1, 2], np.uint8)
    twice = np.array([0, 0], np.int64)
    args = (ints, twice, np.array([3, 4], np.uint8))
    result = np.array([1, 1, 2], np.uint8)
    yield Case("put_add", "wraps", args, lambda *_: result, {"axis": 0})
    yield Case("put_along_add", "wraps", args, lambda *_: result, {"axis": 0})
    for dtype in INTS:
        yield from _of_integers(dtype)
    flags = np.array([True, False, True])
    yield Case("take", "bool", (flags, twice), lambda v, i: v[[0, 0]], {"axis": 0})


def _of_integers(dtype: Any) -> Iterator[Case]:
    """Numbers of a type up to its end, where sums wrap, and places of that type."""
    name, last = np.dtype(dtype).name, np.iinfo(dtype).max
    x, at = np.array([last, 1, 2], dtype), np.array([2, 0, 2, 0], dtype)
    updates = np.array([3, 4, 5, last], dtype)
    total = wrapped(lambda *terms: sum(terms), dtype)
    first, third = (
        total(*(np.array([term], dtype) for term in terms))
        for terms in ((last, 4, last), (2, 3, 5))
    )
    put = np.concatenate([first, x[1:2], third])
    yield Case("take", name, (x, at), lambda v, i: v[[2, 0, 2, 0]], {"axis": 0})
    yield Case("take", f"one-{name}", (x, at[1]), lambda v, i: v[0], {"axis": 0})
    yield Case("take_along", name, (x, at), lambda v, i: v[[2, 0, 2, 0]], {"axis": 0})
    yield Case("put_add", name, (x, at, updates), lambda *_: put, {"axis": 0})
    yield Case("put_along_add", name, (x, at, updates), lambda *_: put, {"axis": 0})
    place, seven = np.array(1), np.array([7], dtype)
    yield Case("dynamic_slice", name, (x, place), lambda v, _: v[1:], {"sizes": (2,)})
    changed = np.array([last, 7, 2], dtype)
    yield Case("dynamic_update", name, (x, seven, place), lambda *_: changed)


def _moved(index: tuple[int, ...], i: Array, v: Array, axis: int) -> tuple[int, ...]:
    place = min(max(int(i[index]), 0), v.shape[axis] - 1)
    return (*index[:axis], place, *index[axis + 1 :])


def _gathered(v: Array, i: Array, axis: int) -> Array:
    places = [min(max(int(k), 0), v.shape[axis] - 1) for k in i.ravel()]
    picked = np.moveaxis(v, axis, 0)[places].reshape(i.shape + np.moveaxis(v, axis, 0).shape[1:])
    return np.moveaxis(picked, range(i.ndim), range(axis, axis + i.ndim))
