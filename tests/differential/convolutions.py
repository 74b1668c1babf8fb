"""Random convolutions of every geometry, and what follows them: activations, norms, pools, sums."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType, Value

from .cases import Case, as_function, donations, transformed

_WORK_MAX = 6_000_000
_CHANNELS = [1, 2, 3, 4, 5, 8, 12, 16, 17, 20, 24, 32, 33, 40, 48]
_KERNELS = [(1, 1), (3, 3), (3, 3), (5, 5), (7, 7), (1, 3), (3, 1), (2, 2), (4, 4), (3, 5), (6, 1)]
Pair = tuple[int, int]


def case(name: str, seed: int) -> Case:
    """The program of a seed: one to three convolutions."""

    def build() -> Function:
        r = random.Random(seed)
        block = _Network(r).block()
        block = transformed(r, block, small=False)
        return as_function(name, block, donations(r, block))

    return Case(name, build)


class _Network:
    def __init__(self, r: random.Random) -> None:
        self.r = r
        self.dtype = r.choice([DType.F32] * 14 + [DType.F16, DType.F64])
        self.types: list[TensorType] = []
        self.b = Builder([])
        self.kept: list[Value] = []  # what may be a result beside the last
        self.work = 0
        #: Whether kernels fill vectors, and so may go by tiles.
        self.filled = r.random() < 0.6

    def block(self) -> Block:
        r = self.r
        n = r.choice([1, 1, 2, 2, 3, 4, 5, 7, 8, 10, 11, 16, 17, 32, 33])
        h, w = (r.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, 20, 28]) for _ in "hw")
        c = self.channels()
        while n * h * w * c > 60_000:
            n, h, w = max(1, n // 2), max(1, h * 3 // 4), max(1, w * 3 // 4)
        y = self.parameter((n, h, w, c))
        for _ in range(r.choice([1, 1, 1, 2, 2, 3])):
            y = self.convolution(y)
            for _ in range(r.randint(0, 5)):
                y = self.step(y)
                if len(y.shape) != 4:
                    break
            if len(y.shape) != 4:
                break
        results = [y]
        if self.kept and r.random() < 0.4:
            results.append(r.choice(self.kept))
        if r.random() < 0.15:
            results.append(self.b("lt", y, self.b.full(y.tensor, 0.3125)))
        return self.b.finish(results)

    def channels(self) -> int:
        return self.r.choice([16, 16, 32, 32, 48, 64]) if self.filled else self.r.choice(_CHANNELS)

    def parameter(self, shape: tuple[int, ...]) -> Value:
        """A parameter more."""
        value = Value(TensorType(self.dtype, shape))
        self.b.params = (*self.b.params, value)
        return value

    def convolution(self, x: Value) -> Value:
        r = self.r
        n, h, w, c = x.shape
        kh, kw = r.choice([(3, 3), (3, 3), (5, 5)]) if self.filled else r.choice(_KERNELS)
        strides = (1, 1) if self.filled and r.random() < 0.8 else (r.choice([1, 2, 3]),) * 2
        if r.random() < 0.1:
            strides = (r.choice([1, 2, 3]), r.choice([1, 2]))
        padding = (self.padding(h, kh), self.padding(w, kw))
        oh, ow = (
            (m + sum(p) - k) // s + 1
            for m, p, k, s in zip((h, w), padding, (kh, kw), strides, strict=True)
        )
        o = self.channels()
        groups = 1
        if not self.filled and r.random() < 0.3:
            groups = r.choice([g for g in range(1, c + 1) if c % g == 0])
            if r.random() < 0.5:
                groups = c
            o = groups * r.choice([1, 1, 2, 3])
        while n * oh * ow * kh * kw * (c // groups) * o > _WORK_MAX and o > groups:
            o = max(groups, o // 2 // groups * groups)
        k = self.parameter((kh, kw, c // groups, o))
        scale = self.dtype.numpy.type((1 / (kh * kw * c // groups)) ** 0.5)
        k = self.b("mul", k, self.b.full(k.tensor, float(scale)))
        how: dict[str, Any] = {"strides": strides, "padding": padding}
        if r.random() < 0.12 and groups == 1:  # as a transposed one: y's channels are c here
            return self.transposed(x, k, how, (kh, kw))
        if groups > 1 or r.random() < 0.05:
            return self.b("grouped_conv", x, k, groups=groups, **how)
        return self.b("conv", x, k, **how)

    def transposed(self, y: Value, k: Value, how: dict[str, Any], size: Pair) -> Value:
        k = self.b("transpose", k, perm=(0, 1, 3, 2))
        sizes = []
        for m, (low, high), kernel, stride in zip(
            y.shape[1:3], how["padding"], size, how["strides"], strict=True
        ):
            made = (m - 1) * stride + kernel - low - high
            if made < 1:
                how["padding"] = ((0, 0), (0, 0))
                return self.transposed(y, self.b("transpose", k, perm=(0, 1, 3, 2)), how, size)
            sizes.append(made + self.r.randint(0, stride - 1))
        made = self.b("conv_input_grad", y, k, input_size=tuple(sizes), **how)
        if made.tensor.size > 80_000:
            return self.b(
                "slice",
                made,
                start=(0, 0, 0, 0),
                stop=(1, *made.shape[1:]),
                step=(1, 1, 1, 1),
            )
        return made

    def padding(self, size: int, kernel: int) -> Pair:
        low, high = (self.r.randint(0, kernel - 1) for _ in "lh")
        if self.r.random() < 0.6:
            low, high = (kernel - 1) // 2, kernel // 2
        missing = max(0, kernel - size - low - high)
        return low + missing, high

    # -- what follows

    def step(self, y: Value) -> Value:
        steps = [
            *[self.bias] * 4,
            *[self.activation] * 6,
            *[self.affine, self.affine, self.residual, self.residual, self.norm, self.pool],
            *[self.pool, self.pool, self.windows, self.crop, self.turn, self.mask, self.joined],
            *[self.doubled, self.total, self.shift, self.looped],
        ]
        if self.r.random() < 0.2:
            self.kept.append(y)
        made = self.r.choice(steps)(y)
        return made if made.tensor.size else y

    def across(self, y: Value, dims: tuple[int, ...]) -> Value:
        """A parameter along some axes, over all others."""
        if self.r.random() < 0.1:
            return self.b.full(y.tensor, 0.5)
        v = self.parameter(tuple(y.shape[d] for d in dims))
        return self.b("broadcast", v, shape=y.shape, dims=dims)

    def bias(self, y: Value) -> Value:
        dims = self.r.choice([(3,), (3,), (3,), (0, 3), (1, 3), (2, 3), (0,), (), (1,), (1, 2, 3)])
        if y.tensor.size > 40_000 and len(dims) > 2:
            dims = (3,)
        return self.b(self.r.choice(["add", "add", "sub"]), y, self.across(y, dims))

    def affine(self, y: Value) -> Value:
        y = self.b("mul", y, self.across(y, (3,)))
        return self.b("add", y, self.across(y, (3,)))

    def number(self, y: Value, x: float) -> Value:
        return self.b.full(y.tensor, x)

    def activation(self, y: Value) -> Value:
        b = self.b
        kind = self.r.choice(["relu", "relu", "max", "relu6", "leaky", "tanh", "silu", "gelu"])
        zero = self.number(y, 0)
        if kind == "relu":
            return b("select", b("le", y, zero), zero, y)
        if kind == "max":
            return b("max", y, zero)
        if kind == "relu6":
            return b("min", b("max", y, zero), self.number(y, 1.5))
        if kind == "leaky":
            return b("select", b("lt", y, zero), b("mul", y, self.number(y, 0.125)), y)
        if kind == "tanh":
            return b("tanh", y)
        if kind == "silu":
            return b("mul", y, b("sigmoid", y))
        half = b("mul", y, self.number(y, 0.5))
        bell = b("erf", b("mul", y, self.number(y, 0.70703125)))
        return b("mul", half, b("add", bell, self.number(y, 1)))

    def residual(self, y: Value) -> Value:
        same = [v for v in self.kept if v.type == y.type]
        if same and self.r.random() < 0.6:
            other = self.r.choice(same)
        elif y.tensor.size < 40_000:
            other = self.parameter(y.shape)
        else:
            other = self.across(y, (3,))
        pair = (y, other) if self.r.random() < 0.5 else (other, y)
        return self.b(self.r.choice(["add", "add", "sub", "mul", "max"]), *pair)

    def doubled(self, y: Value) -> Value:
        self.kept.append(y)
        return self.b("mul", y, y) if self.r.random() < 0.5 else self.b("add", y, y)

    def norm(self, y: Value) -> Value:
        """By the batch, by images, by pixels, or by groups of channels."""
        b = self.b
        n, h, w, c = y.shape
        shape = y.shape
        axes = self.r.choice([(0, 1, 2), (0, 1, 2), (1, 2), (3,), (1, 2, 3)])
        groups = self.r.choice([g for g in (1, 2, 4, 8) if c % g == 0])
        if self.r.random() < 0.3:
            y, axes = b("reshape", y, shape=(n, h, w, groups, c // groups)), (1, 2, 4)
        kept = tuple(i for i in range(len(y.shape)) if i not in axes)
        count = 1
        for i in axes:
            count *= y.shape[i]

        def mean(v: Value) -> Value:
            total = b("reduce_sum", v, axes=axes)
            small = b("mul", total, b.full(total.tensor, float(np.float16(1 / count)) or 1e-3))
            return b("broadcast", small, shape=v.shape, dims=kept)

        centred = b("sub", y, mean(y))
        spread = b("add", mean(b("mul", centred, centred)), b.full(y.tensor, 0.0625))
        normal = b("mul", centred, b("rsqrt", spread))
        return normal if normal.shape == shape else b("reshape", normal, shape=shape)

    def pool(self, y: Value) -> Value:
        b = self.b
        n, h, w, c = y.shape
        size = self.r.choice([(2, 2), (2, 2), (2, 2), (3, 3), (1, 2), (2, 1), (4, 4)])
        if h < size[0] or w < size[1]:
            return y
        if self.r.random() < 0.3:
            return self.overlapping(y, size)
        high, wide = h // size[0], w // size[1]
        if (high * size[0], wide * size[1]) != (h, w):
            stop = (n, high * size[0], wide * size[1], c)
            y = b("slice", y, start=(0, 0, 0, 0), stop=stop, step=(1, 1, 1, 1))
        y = b("reshape", y, shape=(n, high, size[0], wide, size[1], c))
        kind = self.r.choice(["reduce_max", "reduce_max", "reduce_min", "reduce_sum"])
        y = b(kind, y, axes=(2, 4))
        few = 1 / (size[0] * size[1])
        return b("mul", y, self.number(y, few)) if kind == "reduce_sum" else y

    def overlapping(self, y: Value, size: Pair) -> Value:
        """The largest of windows that overlap, or stick out."""
        b = self.b
        if self.r.random() < 0.5:
            edge = (0, size[0] // 2, size[1] // 2, 0)
            y = b("pad", y, b.constant(0, y.dtype), low=edge, high=edge, interior=(0,) * 4)
        n, h, w, c = y.shape
        step = self.r.choice([1, 2])
        parts = []
        for i in range(size[0]):
            for j in range(size[1]):
                stop = (n, h - size[0] + i + 1, w - size[1] + j + 1, c)
                part = b("slice", y, start=(0, i, j, 0), stop=stop, step=(1, step, step, 1))
                parts.append(part)
        kind = self.r.choice(["max", "add"])
        made = parts[0]
        for part in parts[1:]:
            made = b(kind, made, part)
        return made

    def windows(self, y: Value) -> Value:
        """Two pixels of each window."""
        n, h, w, c = y.shape
        if h < 2 or w < 2:
            return y
        stop = (n, h // 2 * 2, w // 2 * 2, c)
        places = [(self.r.randint(0, 1), self.r.randint(0, 1)) for _ in range(2)]
        a, d = (
            self.b("slice", y, start=(0, i, j, 0), stop=stop, step=(1, 2, 2, 1)) for i, j in places
        )
        return self.b(self.r.choice(["sub", "add", "max", "mul"]), a, d)

    def crop(self, y: Value) -> Value:
        start = tuple(self.r.choice([0, 0, 1]) if m > 1 else 0 for m in y.shape)
        stop = tuple(m - self.r.choice([0, 0, 1]) if m > 2 else m for m in y.shape)
        return self.b("slice", y, start=start, stop=stop, step=(1, 1, 1, 1))

    def turn(self, y: Value) -> Value:
        if self.r.random() < 0.5:
            axes = tuple(i for i in range(4) if self.r.random() < 0.4)
            return self.b("reverse", y, axes=axes)
        return self.b("transpose", y, perm=self.r.choice([(0, 2, 1, 3), (1, 0, 2, 3)]))

    def mask(self, y: Value) -> Value:
        b = self.b
        flags = b("lt", self.across(y, self.r.choice([(3,), (0,), (1, 2)])), self.number(y, 0.5))
        return b("select", flags, y, self.number(y, self.r.choice([0, 1])))

    def joined(self, y: Value) -> Value:
        same = [v for v in self.kept if v.type == y.type] or [y]
        pair = [y, self.r.choice(same)]
        self.r.shuffle(pair)
        return self.b("concat", *pair, axis=self.r.choice([3, 3, 0, 1]))

    def shift(self, y: Value) -> Value:
        """Zeros around, or rows moved by one."""
        b = self.b
        edge = [tuple(self.r.choice([0, 1]) for _ in range(3)) for _ in range(2)]
        low, high = ((0, *e[:2], 0) for e in edge)
        return b("pad", y, b.constant(0, y.dtype), low=low, high=high, interior=(0,) * 4)

    def total(self, y: Value) -> Value:
        """The end: a sum over some axes, and perhaps a product with what is left."""
        b, r = self.b, self.r
        n, h, w, c = y.shape
        if r.random() < 0.4:
            flat = b("reshape", y, shape=(n, h * w * c))
            weight = self.parameter((h * w * c, r.choice([1, 3, 10, 16])))
            small = b("mul", flat, b.full(flat.tensor, 1 / 64))
            dims: dict[str, Any] = {"batch_a": (), "batch_b": ()}
            return b("dot", small, weight, contract_a=(1,), contract_b=(0,), **dims)
        axes = r.choice([(1, 2), (1, 2), (0, 1, 2), (3,), (1,), (2, 3), (0, 1, 2, 3)])
        return b(r.choice(["reduce_sum", "reduce_max"]), y, axes=axes)

    def looped(self, y: Value) -> Value:
        """Another convolution of the same size, a few times: its kernel changes from trip to trip,
        or not.
        """
        n, h, w, c = y.shape
        if n * h * w * c * c * 9 > _WORK_MAX // 2 or self.r.random() < 0.5:
            return y
        trips = self.r.choice([1, 2, 3])
        many = self.r.random() < 0.6
        k = self.parameter((trips, 3, 3, c, c) if many else (3, 3, c, c))
        index = TensorType(DType.I64)
        inner = Builder([index, k.type, y.type])
        i, kernel, x = inner.params
        if many:
            zero = inner.constant(0, DType.I64)
            starts = (i, zero, zero, zero, zero)
            kernel = inner("dynamic_slice", kernel, *starts, sizes=(1, 3, 3, c, c))
            kernel = inner("reshape", kernel, shape=(3, 3, c, c))
        small = inner("mul", kernel, inner.full(kernel.tensor, 1 / 16))
        how: dict[str, Any] = {"strides": (1, 1), "padding": ((1, 1), (1, 1))}
        made = inner("conv", x, small, **how)
        made = inner("max", made, inner.full(made.tensor, 0))
        if self.r.random() < 0.5:
            made = inner("add", made, x)
        body = inner.finish([made])
        bounds = [self.b.constant(m, DType.I64) for m in (0, trips)]
        return self.b.emit("for", (*bounds, k, y), {"consts": 1}, (body,))[0]
