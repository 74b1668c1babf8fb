"""Sequences of samples: differences, integrals, convolution, polynomials."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....common.errors import ProgramError
from ...ir import Tensor
from .np_arrays import place

#: Kinds of types, narrow ones first: NumPy's rule "same_kind" casts to the right.
_KINDS = "buifc"


def ediff1d(ary: Tensor, to_end: Any = None, to_begin: Any = None) -> Tensor:
    ary = np.ravel(ary)
    steps = ary[1:] - ary[:-1]  # NumPy has none of bools, for which np.diff is another thing.
    parts = [] if to_begin is None else [_end_of(steps, to_begin, "to_begin")]
    parts = [*parts, steps]
    if to_end is not None:
        parts = [*parts, _end_of(steps, to_end, "to_end")]
    return np.concatenate(parts)


def _end_of(steps: Tensor, end: Any, name: str) -> Tensor:
    """What `ediff1d` puts before or behind its differences, in their type."""
    end = np.ravel(np.asarray(end))
    if _KINDS.index(end.dtype.kind) > _KINDS.index(steps.dtype.kind):
        raise ProgramError(
            "DL116",
            f"np.ediff1d: {name} is {end.dtype}, which NumPy does not cast to {steps.dtype}",
            hint=f"convert it first: np.asarray({name}, ary.dtype)",
        )
    return end.astype(steps.dtype)


def trapezoid(y: Tensor, x: Any = None, dx: float = 1.0, axis: int = -1) -> Tensor:
    y = np.moveaxis(y, axis, -1)
    if x is None:
        width = dx
    elif np.ndim(x) == 1:
        width = np.diff(x)
    else:
        width = np.diff(np.moveaxis(x, axis, -1))
    return np.sum(width * (y[..., 1:] + y[..., :-1]) / 2.0, axis=-1)


def gradient(f: Tensor, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Second order within, `edge_order` at the ends, on even or uneven spacing."""
    f = np.asarray(f)
    if f.dtype.kind == "b":
        hint = "convert it first: f.astype(np.float64)"
        raise ProgramError("DL116", "np.gradient: NumPy has no differences of bools", hint=hint)
    f = f.astype(np.float64) if f.dtype.kind in "biu" else f
    if axis is None:
        axes = tuple(range(f.ndim))
    else:
        axes = tuple(place(k, f.ndim) for k in (axis if isinstance(axis, tuple) else (axis,)))
    if len(set(axes)) < len(axes):
        raise ProgramError("DL115", "np.gradient: an axis stands there twice")
    single = len(varargs) == 1 and np.ndim(varargs[0]) == 0
    spacing = varargs * len(axes) if single else varargs
    if len(spacing) not in (0, len(axes)):
        raise ProgramError("DL119", "np.gradient: one number for all axes, or a spacing for each")
    if edge_order not in (1, 2) or any(f.shape[k] <= edge_order for k in axes):
        raise ProgramError("DL115", "np.gradient: an axis is too short for its edges")
    slopes = [_slope(f, spacing[n] if spacing else 1.0, k, edge_order) for n, k in enumerate(axes)]
    return slopes[0] if len(slopes) == 1 else tuple(slopes)


def _slope(f: Tensor, spacing: Any, axis: int, edge_order: int) -> Tensor:
    rows = np.moveaxis(f, axis, -1)
    if np.ndim(spacing) == 0:
        made = _even_slope(rows, spacing, edge_order)
    else:
        if np.shape(spacing) != rows.shape[-1:]:
            raise ProgramError("DL115", "np.gradient: as many places as elements along an axis")
        spacing = np.asarray(spacing)
        spacing = spacing.astype(np.float64) if spacing.dtype.kind in "biu" else spacing
        steps = np.diff(spacing)
        if np.all(steps == steps[0]):
            made = _even_slope(rows, steps[0], edge_order).astype(f.dtype)
        else:
            made = _uneven_slope(rows, steps, edge_order).astype(f.dtype)
    return np.moveaxis(made.astype(f.dtype), -1, axis)


def _even_slope(f: Tensor, step: Any, edge_order: int) -> Tensor:
    inner = (f[..., 2:] - f[..., :-2]) / (2.0 * step)
    if edge_order == 1:
        low = (f[..., 1:2] - f[..., :1]) / step
        high = (f[..., -1:] - f[..., -2:-1]) / step
    else:
        a, b, c = 1.5 / step, 2.0 / step, 0.5 / step
        low = -a * f[..., :1] + b * f[..., 1:2] - c * f[..., 2:3]
        high = c * f[..., -3:-2] - b * f[..., -2:-1] + a * f[..., -1:]
    return np.concatenate([low, inner, high], axis=-1)


def _uneven_slope(f: Tensor, steps: Tensor, edge_order: int) -> Tensor:
    left, right, first, last = steps[:-1], steps[1:], steps[0], steps[-1]
    second, third = (steps[1], steps[-2]) if f.shape[-1] > 2 else (first, last)
    inner = (
        -right / (left * (left + right)) * f[..., :-2]
        + (right - left) / (left * right) * f[..., 1:-1]
        + left / (right * (left + right)) * f[..., 2:]
    )
    if edge_order == 1:
        low = (f[..., 1:2] - f[..., :1]) / first
        high = (f[..., -1:] - f[..., -2:-1]) / last
    else:
        a, b, c = _end_weights(first, second)
        low = a * f[..., :1] + b * f[..., 1:2] + c * f[..., 2:3]
        a, b, c = _end_weights(last, third)
        high = -(a * f[..., -1:] + b * f[..., -2:-1] + c * f[..., -3:-2])
    return np.concatenate([low, inner, high], axis=-1)


def _end_weights(h: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the slope at an end, by the three nearest points, h and then k apart."""
    return -(2 * h + k) / (h * (h + k)), (h + k) / (h * k), -h / (k * (h + k))


def convolve(a: Tensor, v: Tensor, mode: Any = "full") -> Tensor:
    """The sequences shifted past each other as a matrix, times the shorter."""
    a, v = np.atleast_1d(a, v)
    if a.ndim > 1 or v.ndim > 1:
        raise ProgramError("DL115", f"np.convolve takes two vectors, not ranks {a.ndim}, {v.ndim}")
    a, v = (v, a) if v.shape[0] > a.shape[0] else (a, v)
    n, m = a.shape[0], v.shape[0]
    if m == 0:
        raise ProgramError("DL115", "np.convolve: a sequence is empty")
    padded = np.pad(a, m - 1)
    places = np.arange(n + m - 1)[:, None] + np.arange(m)
    windows, turned = np.take(padded, places), np.flip(v)
    if v.dtype.kind == "f" and m > 1:
        # What lies beyond the sequence is no zero: an infinity times it would be NaN.
        inside = (places >= m - 1) & (places < n + m - 1)
        front = np.sum(np.where(inside[: m - 1], windows[: m - 1] * turned, 0), axis=1)
        back = np.sum(np.where(inside[n:], windows[n:] * turned, 0), axis=1)
        whole = np.concatenate([front, windows[m - 1 : n] @ turned, back])
    else:
        whole = windows @ turned
    if mode == "full":
        return whole
    if mode == "same":
        return whole[(m - 1) // 2 : (m - 1) // 2 + n]
    if mode != "valid":
        raise ProgramError("DL119", f"np.convolve: no mode {mode!r}: full, same or valid")
    return whole[m - 1 : n]


def correlate(a: Tensor, v: Tensor, mode: Any = "valid") -> Tensor:
    if np.shape(v)[0] > np.shape(a)[0]:
        return np.flip(np.convolve(v, np.flip(a), mode))
    return np.convolve(a, np.flip(v), mode)


def polyval(p: Tensor, x: Tensor) -> Tensor:
    """Horner's rule."""
    p = np.asarray(p)
    if p.shape[0] == 0:
        raise ProgramError("DL115", "np.polyval: a polynomial without coefficients")
    y = np.zeros_like(x)
    for k in range(p.shape[0]):
        y = y * x + p[k]
    return y


def polyadd(a1: Tensor, a2: Tensor) -> Tensor:
    a1, a2 = _of_one_size(a1, a2)
    return a1 + a2


def polysub(a1: Tensor, a2: Tensor) -> Tensor:
    a1, a2 = _of_one_size(a1, a2)
    return a1 - a2


def _of_one_size(a1: Tensor, a2: Tensor) -> tuple[Tensor, Tensor]:
    a1, a2 = np.atleast_1d(a1), np.atleast_1d(a2)
    if a1.ndim != 1 or a2.ndim != 1:
        raise ProgramError("DL115", "a polynomial is a vector")
    size = max(a1.shape[0], a2.shape[0])
    return np.pad(a1, (size - a1.shape[0], 0)), np.pad(a2, (size - a2.shape[0], 0))


def polymul(a1: Tensor, a2: Tensor) -> Tensor:
    return np.convolve(np.atleast_1d(a1), np.atleast_1d(a2))


def _coefficients(p: Tensor, m: int) -> Tensor:
    p = np.asarray(p)
    if p.ndim != 1 or m < 0:
        raise ProgramError("DL115", "a polynomial is a vector, and its order is not below zero")
    return p


def polyder(p: Tensor, m: int = 1) -> Tensor:
    p = _coefficients(p, m)
    for _ in range(m):
        n = p.shape[0]
        p = p[:-1] * np.arange(n - 1, 0, -1)
    return p


def polyint(p: Tensor, m: int = 1, k: Any = None) -> Tensor:
    p = _coefficients(p, m)
    for i in range(m):
        n = p.shape[0]
        p = p / np.arange(n, 0, -1)
        constant = 0.0 if k is None else k if np.ndim(k) == 0 else k[i]
        p = np.append(p, np.asarray(constant, p.dtype))
    return p
