"""What a case is, and the pieces that cases are made of."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from delian.core.compiler.ir import Array, Block, Builder, TensorType, Value

FLOATS = (np.float64, np.float32)
SIGNED = (np.int64, np.int32, np.int16, np.int8)
UNSIGNED = (np.uint64, np.uint32, np.uint16, np.uint8)
INTS = (*SIGNED, *UNSIGNED)
Oracle = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One primitive on certain operands.

    `oracle` gives the results from the operands, floats widened to f64. `smooth` are the operands
    that it may be differentiated by there. `build` makes the program where it is more than one
    operation.
    """

    name: str
    label: str
    args: tuple[Array, ...]
    oracle: Oracle
    attrs: dict[str, Any] = field(default_factory=dict)
    smooth: tuple[int, ...] = ()
    build: Callable[[Builder], Sequence[Value]] | None = None

    def __str__(self) -> str:
        return f"{self.name}-{self.label}"

    def block(self) -> Block:
        """A program that takes the operands and gives the primitive's results."""
        b = Builder([TensorType.of(a) for a in self.args])
        if self.build is not None:
            return b.finish(self.build(b))
        return b.finish(b.emit(self.name, b.params, self.attrs))

    def expected(self) -> list[Array]:
        wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in self.args]
        with np.errstate(all="ignore"):
            results = self.oracle(*wide)
            if not isinstance(results, tuple):
                results = (results,)
            types = [r.tensor for r in self.block().results]
            return [
                np.asarray(r).astype(t.dtype.numpy) for r, t in zip(results, types, strict=True)
            ]

    def in_f32(self) -> Case:
        args = tuple(a.astype(np.float32) if a.dtype == np.float64 else a for a in self.args)
        return replace(self, label=f"{self.label}-f32", args=args, smooth=())


def rng(*key: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def numbers(key: str, shape: tuple[int, ...], low: float = -2, high: float = 2) -> Array:
    return rng(key, shape).uniform(low, high, shape)


def grid(*columns: Sequence[Any], dtype: Any = np.float64) -> tuple[Array, ...]:
    """Every combination, as one vector an operand."""
    rows = list(product(*columns))
    return tuple(np.array(column, dtype=dtype) for column in zip(*rows, strict=True))


def extremes(dtype: Any) -> list[int]:
    info = np.iinfo(dtype)
    ends = [info.min, info.min + 1, info.max - 1, info.max]
    return sorted({v for v in [*ends, -7, -2, -1, 0, 1, 2, 3, 7] if info.min <= v <= info.max})


def wrapped(f: Callable[..., int], dtype: Any) -> Oracle:
    """Python's integers, brought into the type's range by its width."""
    info = np.iinfo(dtype)

    def one(*values: int) -> int:
        return (f(*values) - info.min) % (1 << info.bits) + info.min

    def oracle(*arrays: Array) -> Array:
        rows = zip(*[a.ravel().tolist() for a in arrays], strict=True)
        return np.array([one(*row) for row in rows], dtype=dtype).reshape(arrays[0].shape)

    return oracle
