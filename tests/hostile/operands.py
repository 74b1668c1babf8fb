"""Builds one program of a primitive: operands of sizes at the corners, as views of others."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from delian.core.compiler.ir import Builder, DType, ListType, TensorType, Value
from delian.core.compiler.primitives.attributes import SIZE_MAX
from delian.core.compiler.primitives.type_checks import NUMERIC

#: Sizes about which lanes, tiles, panels and blocks end.
SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 100)
#: Programs stay this small: sanitizers are slow, and the corners are not large.
ELEMENTS_MAX = 1 << 15
WORK_MAX = 1 << 22
HERE = tuple(d for d in DType.here())
I64, F32 = DType.I64, DType.F32


class Misfit(Exception):
    """These sizes do not go together."""


class Draw:
    """Builds one program. `params` grow as operands are asked for."""

    def __init__(self, r: random.Random) -> None:
        self.r = r
        self.b = Builder()
        self.names: list[str] = []

    def size(self, most: int = ELEMENTS_MAX, least: int = 0) -> int:
        found = [n for n in SIZES if least <= n <= most]
        return self.r.choice(found) if found else least

    def shape(self, rank: int, most: int = ELEMENTS_MAX) -> tuple[int, ...]:
        sizes: list[int] = []
        for _ in range(rank):
            sizes.append(self.size(max(1, most // max(1, math.prod(n or 1 for n in sizes)))))
        return tuple(sizes)

    def param(self, type_: TensorType, small: bool = False) -> Value:
        value = Value(type_)
        self.b.params = (*self.b.params, value)
        self.names.append(f"{'small' if small else 'x'}{len(self.names)}")
        return value

    def operand(self, dtype: DType, shape: Sequence[int]) -> Value:
        """A value of this type: a parameter, or a view of one."""
        shape = tuple(shape)
        way = self.r.randrange(10) if shape else 0
        if way == 1:
            return self._sliced(dtype, shape)
        if way == 2:
            perm = list(range(len(shape)))
            self.r.shuffle(perm)
            x = self.param(TensorType(dtype, tuple(shape[perm.index(i)] for i in range(len(perm)))))
            return self.b("transpose", x, perm=tuple(perm))
        if way == 3:
            kept = [i for i in range(len(shape)) if self.r.random() < 0.6]
            x = self.param(TensorType(dtype, tuple(shape[i] for i in kept)))
            return self.b("broadcast", x, shape=shape, dims=tuple(kept))
        if way == 4:
            axes = tuple(i for i in range(len(shape)) if self.r.random() < 0.5)
            return self.b("reverse", self.param(TensorType(dtype, shape)), axes=axes)
        if way == 5 and dtype in NUMERIC and not dtype.is_half:
            x = self.param(TensorType(dtype, shape))
            return self.b("add", x, self.param(TensorType(dtype, shape)))
        if way == 6:
            x = self.param(TensorType(dtype, (math.prod(shape),)))
            return self.b("reshape", x, shape=shape)
        return self.param(TensorType(dtype, shape))

    def _sliced(self, dtype: DType, shape: tuple[int, ...]) -> Value:
        start, stop, step, whole = [], [], [], []
        for n in shape:
            lo, by, after = self.r.choice([0, 0, 1, 3]), self.r.choice([1, 1, 2, 3]), 0
            end = lo + (n - 1) * by + 1 if n else lo
            after = self.r.choice([0, 0, 1, 5])
            if n <= 1 and self.r.random() < 0.3:
                by = self.r.choice([SIZE_MAX, SIZE_MAX - 1, 2**33])
            start.append(lo), stop.append(end), step.append(by), whole.append(end + after)
        x = self.param(TensorType(dtype, tuple(whole)))
        return self.b("slice", x, start=tuple(start), stop=tuple(stop), step=tuple(step))

    def starts(self, count: int) -> list[Value]:
        return [self.param(TensorType(I64)) for _ in range(count)]

    def followed(self, made: Value) -> Value:
        """The value, or what an operation makes of it."""
        way = self.r.randrange(8)
        if isinstance(made.type, ListType) or made.dtype is DType.BOOL or made.dtype.is_half:
            return made
        if way == 0:
            return self.b("neg", made)
        if way == 1:
            return self.b("add", made, self.param(made.tensor))
        if way == 2:
            axes = tuple(i for i in range(len(made.shape)) if self.r.random() < 0.5)
            return self.b("reduce_sum", made, axes=axes)
        if way == 3 and made.shape:
            perm = tuple(reversed(range(len(made.shape))))
            return self.b("abs", self.b("transpose", made, perm=perm))
        return made
