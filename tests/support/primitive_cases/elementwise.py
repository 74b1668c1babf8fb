"""Cases of the primitives that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
from delian.core.compiler.ir import Array, DType

from .base import FLOATS, INTS, Case, Oracle, extremes, grid, numbers, wrapped

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 80.0, -80.0])


def _erf(x: Array) -> Any:
    """The integral, by Gauss and Legendre's rule on 60 points: right to 1e-14 within +-8."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    ends = np.clip(np.asarray(x, np.float64), -8, 8)[..., None]
    inside = np.exp(-((ends * (nodes + 1) / 2) ** 2))
    return (inside * weights).sum(-1) * ends[..., 0] / np.sqrt(np.pi)


#: name -> (oracle, lower and upper end of where it is smooth).
SMOOTH_UNARY: dict[str, tuple[Oracle, float, float]] = {
    "neg": (lambda x: 0 - x, -2, 2),
    "abs": (lambda x: np.where(x < 0, -x, x), 0.5, 2),
    "exp": (lambda x: np.e**x, -2, 2),
    "log": (np.log, 0.3, 3),
    "log1p": (np.log1p, -0.5, 3),
    "expm1": (np.expm1, -2, 2),
    "sqrt": (lambda x: x**0.5, 0.3, 3),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.3, 3),
    "sin": (np.sin, -30, 30),
    "cos": (np.cos, -30, 30),
    "tanh": (lambda x: 1 - 2 / (np.exp(2 * x) + 1), -3, 3),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), -5, 5),
    "erf": (_erf, -2, 2),
}
FLAT_UNARY: dict[str, Oracle] = {
    "sign": lambda x: np.where(np.isnan(x), x, (x > 0) * 1.0 - (x < 0) * 1.0),
    "floor": lambda x: -np.ceil(-x),
    "ceil": lambda x: -np.floor(-x),
    "round": lambda x: np.array(
        [np.nan if v != v else v if abs(v) == np.inf else round(v) for v in x.ravel().tolist()]
    ).reshape(x.shape),
    "is_finite": lambda x: np.abs(x) < np.inf,
    "stop_gradient": lambda x: x,
}


def unary() -> Iterator[Case]:
    for name, (oracle, low, high) in SMOOTH_UNARY.items():
        for shape in ((2, 3), (), (0, 3), (33,)):
            x = numbers(name, shape, low, high)
            yield Case(name, f"{len(shape)}d{x.size}", (x,), oracle, smooth=(0,))
        special = SPECIAL if name != "erf" else SPECIAL[3:]
        yield Case(name, "special", (special,), oracle)
    yield Case("abs", "negative", (numbers("abs", (5,), -2, -0.5),), np.abs, smooth=(0,))
    for name in ("exp", "expm1", "tanh", "sigmoid"):
        far = np.array([-1000.0, -700.0, -20.0, -1e-9, 1e-9, 20.0, 700.0, 1000.0])
        oracle = {
            "exp": np.exp,
            "expm1": np.expm1,
            "tanh": np.tanh,
            "sigmoid": lambda x: np.exp(-np.logaddexp(0, -x)),
        }[name]
        yield Case(name, "far", (far,), oracle)
    for name, oracle in FLAT_UNARY.items():
        halves = np.array([-2.5, -2.0, -0.5, 0.5, 1.5, 3.0])
        yield Case(name, "special", (np.concatenate([SPECIAL, halves]),), oracle)
        yield Case(name, "0d", (np.array(1.5),), oracle)
        yield Case(name, "empty", (np.zeros((2, 0)),), oracle)
    for dtype in INTS:
        x = np.array(extremes(dtype), dtype)
        label = np.dtype(dtype).name
        yield Case("neg", label, (x,), wrapped(lambda a: -a, dtype))
        yield Case("abs", label, (x,), wrapped(abs, dtype))
        yield Case("sign", label, (x,), wrapped(lambda a: (a > 0) - (a < 0), dtype))
        yield Case("not", label, (x,), wrapped(lambda a: ~a, dtype))
    yield Case("not", "bool", (np.array([True, False]),), lambda x: ~x)
    yield Case("stop_gradient", "bool", (np.array([True, False]),), lambda x: x)
    yield Case("opaque", "integers", (np.array([3, -1]),), lambda x: x)


def conversions() -> Iterator[Case]:
    types = (*FLOATS, *INTS, np.bool_)
    for source, target in product(types, types):
        if source in FLOATS:
            low = [] if np.dtype(target).kind == "u" else [-3.7, -0.5]
            x = np.array([*low, 0.0, -0.0, 0.9, 2.5, 100.25], source)
        elif source is np.bool_:
            x = np.array([True, False])
        else:
            x = np.array(extremes(source), source)
        name = f"{np.dtype(source).name}-{np.dtype(target).name}"
        yield Case("convert", name, (x,), _converted(target), {"dtype": DType.of(target)})
    f64 = {"dtype": DType.F64}
    yield Case("convert", "same", (numbers("same", (3, 2)),), lambda x: x, f64, smooth=(0,))
    for source, target in (
        *((np.float32, np.uint32), (np.float32, np.int32), (np.int32, np.float32)),
        *((np.float64, np.int64), (np.int64, np.float64), (np.uint32, np.int32)),
        *((np.float64, np.uint64), (np.uint64, np.float64), (np.uint64, np.int64)),
        *((np.int16, np.uint16), (np.uint16, np.int16), (np.float16, np.int16)),
        *((np.int16, np.float16), (np.uint16, np.float16), (np.float16, np.uint16)),
        *((np.int8, np.uint8), (np.uint8, np.int8), (np.int64, np.uint64)),
    ):
        x = np.array([[-1.5, 0.0, 3.25], [1e30, -0.0, 7.0]], np.float64)
        floats = (*FLOATS, np.float16)
        with np.errstate(over="ignore"):
            x = x.astype(source) if source in floats else np.arange(6, dtype=source).reshape(2, 3)
        name = f"{np.dtype(source).name}-{np.dtype(target).name}"
        oracle = _bits(source, target)
        yield Case("bitcast", name, (x,), oracle, {"dtype": DType.of(target)})


def _converted(target: Any) -> Oracle:
    if np.dtype(target).kind in "iu":
        return wrapped(lambda v: int(v), target)
    if target is np.bool_:
        return lambda x: x != 0
    return lambda x: np.array([float(v) for v in x.tolist()])


def _bits(source: Any, target: Any) -> Oracle:
    return lambda x: np.frombuffer(x.astype(source).tobytes(), target).reshape(x.shape)


FLOAT_BINARY: dict[str, Oracle] = {
    "add": lambda x, y: x - (0 - y),
    "sub": lambda x, y: x + (0 - y),
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "max": lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x > y, x, y)),
    "min": lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x < y, x, y)),
    "pow": np.power,
    "atan2": lambda y, x: np.array(list(map(math.atan2, y.ravel(), x.ravel()))).reshape(y.shape),
    "floordiv": np.floor_divide,
    "mod": np.remainder,
}
INT_BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "max": max,
    "min": min,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}


def _compared(f: Callable[[Any, Any], bool]) -> Oracle:
    return lambda x, y: np.array(
        [f(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)], np.bool_
    )


def binary() -> Iterator[Case]:
    lattice = [np.nan, np.inf, -np.inf, -7.5, -2.0, -0.5, 0.0, 0.5, 3.0, 7.5]
    for name, oracle in FLOAT_BINARY.items():
        yield Case(name, "special", grid(lattice, lattice), oracle)
        for shape in ((2, 3), (), (3, 0), (33,)):
            x, y = numbers(f"{name}x", shape, 0.3, 3), numbers(f"{name}y", shape, 0.3, 3)
            smooth = () if name == "floordiv" else (0, 1)
            yield Case(name, f"{len(shape)}d{x.size}", (x, y), oracle, smooth=smooth)
    x, y = numbers("modx", (9,), -9, 9), numbers("mody", (9,), -3, -1)
    yield Case("mod", "negative", (x, y), lambda x, y: x - y * np.floor(x / y), smooth=(0, 1))
    y, x = grid([-2.0, -0.5, 0.7], [-1.5, 0.4, 3.0])
    yield Case("atan2", "quadrants", (y, x), lambda y, x: np.angle(x + 1j * y), smooth=(0, 1))
    zeros = grid([0.0, -0.0], [1.0, -1.0, 0.0, -0.0])
    yield Case("atan2", "zeros", zeros, lambda y, x: np.arctan2(y, x))
    bases, exponents = grid([-1.5, -0.7, 2.0], [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0])
    yield Case("pow", "negative", (bases, exponents), np.power, smooth=(0,))
    yield Case("pow", "zero", (np.zeros(4), np.array([1.0, 2, 3, 4])), np.power)
    for dtype in INTS:
        info, label = np.iinfo(dtype), np.dtype(dtype).name
        pair = grid(extremes(dtype), extremes(dtype), dtype=dtype)
        for name, f in INT_BINARY.items():
            yield Case(name, label, pair, wrapped(f, dtype))
        for name, g in COMPARISONS.items():
            yield Case(name, label, pair, _compared(g))
        counts = [0, 1, 3, info.bits - 1, info.bits, info.bits + 1]
        shifted = grid(extremes(dtype), counts, dtype=dtype)
        yield Case("shl", label, shifted, wrapped(lambda a, n: a << n, dtype))
        yield Case("shr", label, shifted, wrapped(lambda a, n: a >> n, dtype))
    flags = grid([False, True], [False, True], dtype=np.bool_)
    for name, f in {**COMPARISONS, "and": min, "or": max, "xor": lambda a, b: a != b}.items():
        yield Case(name, "bool", flags, _compared(f))
    for name, g in COMPARISONS.items():
        yield Case(name, "float", grid(lattice, lattice), _compared(g))


def selections() -> Iterator[Case]:
    pred = np.array([[True, False, True], [False, False, True]])
    x, y = numbers("sx", (2, 3)), numbers("sy", (2, 3))

    def oracle(p: Array, a: Array, b: Array) -> Array:
        rows = zip(p.ravel(), a.ravel(), b.ravel(), strict=True)
        return np.array([u if q else v for q, u, v in rows], a.dtype).reshape(a.shape)

    yield Case("select", "2d", (pred, x, y), oracle, smooth=(1, 2))
    yield Case("select", "0d", (np.array(False), x[0, 0], y[0, 0]), oracle, smooth=(1, 2))
    yield Case("select", "nan", (pred, x, np.full((2, 3), np.nan)), oracle)
    yield Case("select", "i32", (pred, x.astype(np.int32), y.astype(np.int32)), oracle)
    yield Case("select", "bool", (pred, x > 0, y > 0), oracle)
