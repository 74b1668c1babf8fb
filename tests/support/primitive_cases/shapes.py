"""Cases of the primitives that make tensors and move elements about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from delian.core.compiler.ir import Array, DType

from .base import FLOATS, INTS, Case, Oracle, numbers


def shapes() -> Iterator[Case]:
    value = np.array([[1.5, -2.0], [0.0, np.nan]])
    for dtype in (*FLOATS, np.int32, np.bool_):
        with np.errstate(invalid="ignore"):
            constant = np.nan_to_num(value).astype(dtype)
        yield Case(
            "constant",
            np.dtype(dtype).name,
            (),
            lambda constant=constant: constant,
            {"value": constant},
        )
    for dtype in (*FLOATS, *INTS):
        attrs = {"dtype": DType.of(dtype), "shape": (2, 3, 4), "axis": 1}
        rows = np.zeros((2, 3, 4)) + np.array([[[0.0], [1.0], [2.0]]])
        yield Case("iota", np.dtype(dtype).name, (), lambda rows=rows: rows, attrs)
    wraps = {"dtype": DType.U8, "shape": (300,), "axis": 0}
    yield Case("iota", "wraps", (), lambda: np.array([i % 256 for i in range(300)]), wraps)
    x = numbers("shape", (2, 3, 4))
    flat = lambda shape: lambda x: np.array(x.ravel().tolist(), x.dtype).reshape(shape)  # noqa: E731
    for shape in ((24,), (4, 6), (1, 2, 1, 12)):
        attrs = {"shape": shape}
        yield Case("reshape", f"{len(shape)}d", (x,), flat(shape), attrs, smooth=(0,))
    yield Case("reshape", "empty", (np.zeros((0, 3)),), flat((3, 0, 2)), {"shape": (3, 0, 2)})
    yield Case("reshape", "0d", (np.full((1, 1), 2.0),), flat(()), {"shape": ()}, smooth=(0,))
    for label, operand, shape, dims, up in (
        ("scalar", x[0, 0, 0], (2, 3), (), (None, None)),
        ("leading", x[0, 0], (2, 3, 4), (2,), (None, None, ...)),
        ("trailing", x[0, :, 0], (3, 4), (0,), (slice(None), None)),
        ("stretched", x[:1, :, :1], (5, 2, 3, 4), (1, 2, 3), (None, ...)),
        ("same", x, (2, 3, 4), (0, 1, 2), (...,)),
        ("empty", x[:, :1, 0], (2, 0, 3), (0, 1), (..., None)),
    ):
        attrs = {"shape": shape, "dims": dims}
        oracle = lambda v, up=up, shape=shape: v[up] + np.zeros(shape)  # noqa: E731
        yield Case("broadcast", label, (operand,), oracle, attrs, smooth=(0,))
    for perm in ((0, 1, 2), (2, 0, 1), (1, 0, 2)):
        oracle = lambda v, perm=perm: np.einsum(v, [0, 1, 2], list(perm))  # noqa: E731
        yield Case("transpose", str(perm), (x,), oracle, {"perm": perm}, smooth=(0,))
    yield Case("transpose", "0d", (x[0, 0, 0],), lambda v: v, {"perm": ()}, smooth=(0,))
    yield Case(
        "transpose",
        "u8",
        (np.arange(6, dtype=np.uint8).reshape(2, 3),),
        np.transpose,
        {"perm": (1, 0)},
    )
    for axes in ((), (0,), (2, 0)):
        index = tuple(slice(None, None, -1) if i in axes else slice(None) for i in range(3))
        oracle = lambda v, index=index: v[index]  # noqa: E731
        yield Case("reverse", str(axes), (x,), oracle, {"axes": axes}, smooth=(0,))
    for label, start, stop, step in (
        ("plain", (0, 1, 1), (2, 3, 3), (1, 1, 1)),
        ("stepped", (1, 0, 0), (2, 3, 4), (1, 2, 3)),
        ("empty", (1, 1, 0), (1, 3, 4), (1, 1, 1)),
        ("whole", (0, 0, 0), (2, 3, 4), (1, 1, 1)),
    ):
        attrs = {"start": start, "stop": stop, "step": step}
        picks = np.ix_(*[range(*row) for row in zip(start, stop, step, strict=True)])
        oracle = lambda v, picks=picks: v[tuple(p.astype(int) for p in picks)]  # noqa: E731
        yield Case("slice", label, (x,), oracle, attrs, smooth=(0,))
    yield from _paddings()
    for axis in (0, 1, 2):
        widths = (1, 0, 3) if axis else (2, 1)
        parts = tuple(
            numbers(f"part{i}", (*(2, 3, 4)[:axis], n, *(2, 3, 4)[axis + 1 :]))
            for i, n in enumerate(widths)
        )
        oracle = lambda *v, axis=axis: _joined(v, axis)  # noqa: E731
        smooth = tuple(range(len(parts)))
        yield Case("concat", f"axis{axis}", parts, oracle, {"axis": axis}, smooth=smooth)
    yield Case("concat", "one", (x,), lambda v: v, {"axis": 1}, smooth=(0,))
    flags = (np.array([True, False]), np.array([True]))
    yield Case("concat", "bool", flags, lambda *v: _joined(v, 0), {"axis": 0})


def _joined(parts: Sequence[Array], axis: int) -> Array:
    rows = [row for part in parts for row in np.moveaxis(part, axis, 0)]
    return np.moveaxis(np.array(rows), 0, axis)


def _paddings() -> Iterator[Case]:
    def oracle(attrs: dict[str, Any]) -> Oracle:
        low, high, gap = attrs["low"], attrs["high"], attrs["interior"]

        def pad(x: Array, value: Array) -> Array:
            sizes = [
                lo + hi + max(0, n + (n - 1) * g)
                for n, lo, hi, g in zip(x.shape, low, high, gap, strict=True)
            ]
            result = np.full(sizes, value)
            for index in np.ndindex(x.shape):
                place = tuple(lo + i * (g + 1) for i, lo, g in zip(index, low, gap, strict=True))
                result[place] = x[index]
            return result

        return pad

    for label, shape, low, high, gap in (
        ("edges", (2, 3), (1, 0), (2, 1), (0, 0)),
        ("gaps", (2, 3), (0, 2), (1, 0), (2, 1)),
        ("nothing", (2, 3), (0, 0), (0, 0), (0, 0)),
        ("from-empty", (0, 3), (1, 0), (1, 0), (3, 1)),
    ):
        attrs = {"low": low, "high": high, "interior": gap}
        args = (numbers("pad", shape), np.array(0.5))
        yield Case("pad", label, args, oracle(attrs), attrs, smooth=(0, 1))
    attrs = {"low": (1,), "high": (1,), "interior": (0,)}
    flags = (np.array([True, False]), np.array(True))
    yield Case("pad", "bool", flags, oracle(attrs), attrs)
