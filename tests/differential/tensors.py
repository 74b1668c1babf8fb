"""Random programs on tensors of every element type: moves, reductions, products, indices, loops."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType, Value

from .cases import Case, as_function, donations, transformed
from .made import Made, Nothing
from .regions import REGIONS

F32, F64, I64, BOOL = DType.F32, DType.F64, DType.I64, DType.BOOL
INTS = tuple(d for d in DType if d.is_int)
_OTHER_SIGN = {d: DType(d.value.translate(str.maketrans("iu", "ui"))) for d in INTS}
#: No float is larger: larger ones are squashed.
BOUND = 30.0
_SIZES = [1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 100]
_ELEMENTS_MAX = 5000
#: Element types of a program's parameters, beside which every one has bools and indices.
_KINDS: list[tuple[DType, ...]] = [
    *[(F32,)] * 5,
    *[(F32, DType.I32), (F32, DType.U8, DType.I64), (F32, F64), (F32, DType.F16)],
    *[(DType.F16,), (DType.BF16, F32), (F64,), (DType.I32, DType.U32), (DType.U8, DType.I64)],
    *[(DType.I8, F32), (DType.I8, DType.U8), (DType.I16, DType.U16), (DType.U64, DType.I64)],
    *[(DType.U64, F64, DType.I16), (DType.U16, DType.F16, DType.I8)],
]


def case(name: str, seed: int) -> Case:
    """The program of a seed."""

    def build() -> Function:
        r = random.Random(seed)
        kinds = r.choice(_KINDS)
        if DType.BF16 in kinds and DType.BF16 not in DType.here():
            kinds = (DType.F16, F32)
        program = Program(r, kinds)
        block = transformed(r, program.block(), small=program.steps_done < 14)
        return as_function(name, block, donations(r, block))

    return Case(name, build)


class Program:
    """Grows a program from a seed."""

    def __init__(self, r: random.Random, kinds: tuple[DType, ...]) -> None:
        self.r = r
        self.kinds = kinds
        self.floats = [k for k in self.kinds if k.is_float]
        self.sizes = r.sample(_SIZES, 3)
        self.depth = r.choice([0, 1, 1, 2])
        self.steps_done = 0

    def block(self) -> Block:
        params = [TensorType(self.r.choice(self.kinds), self.shape()) for _ in range(3)]
        params.append(TensorType(I64))
        maker = Maker(self, Builder(params), self.depth)
        maker.pool = [Made(p, 6.0) for p in maker.b.params]
        for _ in range(self.r.randint(4, 18)):
            maker.step()
        every = [t.value for t in maker.pool]
        count = self.r.randint(1, 4)
        results = every[-count:] + self.r.sample(every, min(len(every), self.r.choice([0, 1, 2])))
        return maker.b.finish(results)

    def shape(self) -> tuple[int, ...]:
        for _ in range(20):
            rank = self.r.choice([0, 1, 1, 2, 2, 2, 3, 3, 4])
            made = tuple(self.r.choice(self.sizes) for _ in range(rank))
            if math.prod(made) <= _ELEMENTS_MAX:
                return made
        return (self.sizes[0],)


class Maker:
    """Grows one block: a pool of tensors, and steps that add to it."""

    def __init__(self, program: Program, b: Builder, depth: int) -> None:
        self.program = program
        self.r = program.r
        self.b = b
        self.depth = depth
        self.pool: list[Made] = []

    # -- the pool

    def put(self, value: Value, bound: float = 0.0) -> Made:
        """Enters a value, squashed when it may be large."""
        made = Made(value, bound)
        if value.dtype.is_float and bound > BOUND:
            small = self.b("mul", value, self.full(value.tensor, 0.125))
            made = Made(self.b("tanh", small), 1.0)
        self.pool.append(made)
        return made

    def full(self, type_: TensorType, number: float) -> Value:
        return self.b.full(type_, number)

    def pick(self, keep: Any = lambda t: True) -> Made:
        """Any that will do, late ones rather than early ones; one that is made if none will."""
        fitting = [t for t in self.pool if keep(t)]
        if not fitting:
            for _ in range(20):
                made = self.source()
                if keep(made):
                    return made
            raise Nothing
        if self.r.random() < 0.5:
            fitting = fitting[-4:]
        return self.r.choice(fitting)

    def a_float(self, keep: Any = lambda t: True) -> Made:
        return self.pick(lambda t: t.dtype.is_float and keep(t))

    def like(self, t: Made) -> Made:
        """One of the same type, made of another one if need be."""
        shape, dtype = t.shape, t.dtype
        choices = [u for u in self.pool if u.value.type == t.value.type]
        if choices and self.r.random() < 0.6:
            return self.r.choice(choices)
        others = [u for u in self.pool if u.dtype is dtype and self.dims(u.shape, shape)]
        if not others or self.r.random() < 0.1:
            number = self.r.choice([0, 1, 2, 0.5, 3] if dtype.is_float else [0, 1, 1, 5, 7])
            if dtype in INTS and self.r.random() < 0.2:
                limits = np.iinfo(dtype.numpy)
                number = self.r.choice([int(limits.min), int(limits.max)])
            if dtype is BOOL:
                number = self.r.choice([0, 1])
            return self.put(self.full(t.value.tensor, number), float(number))
        other = self.r.choice(others)
        dims = self.r.choice(self.dims(other.shape, shape))
        return self.put(self.b("broadcast", other.value, shape=shape, dims=dims), other.bound)

    def dims(self, small: Sequence[int], large: Sequence[int]) -> list[tuple[int, ...]]:
        """The ways of spreading one shape in another."""
        ways: list[tuple[int, ...]] = [()]
        for size in small:
            ways = [
                (*way, d)
                for way in ways
                for d in range((way[-1] if way else -1) + 1, len(large))
                if size in (1, large[d])
            ]
        return ways

    def source(self) -> Made:
        """A table."""
        shape = self.program.shape()
        dtype = self.r.choice([*self.program.kinds, I64, BOOL])
        kind = self.r.choice(["full", "iota", "table"])
        if kind == "iota" and shape and dtype is not BOOL:
            made = self.b("iota", dtype=dtype, shape=shape, axis=self.r.randrange(len(shape)))
            return self.put(made, float(max(shape)))
        if kind == "table":
            rng = np.random.default_rng(self.r.randrange(2**32))
            return self.put(self.b.constant(rng.integers(0, 3, shape), dtype), 3.0)
        return self.put(self.full(TensorType(dtype, shape), 1), 1.0)

    # -- steps

    def step(self) -> None:
        steps = [
            *[self.unary] * 4,
            *[self.binary] * 6,
            *[self.move] * 6,
            *[self.reduce] * 4,
            *[self.product, self.compare, self.choose, self.choose, self.convert, self.integer],
            *[self.take, self.scatter, self.window, self.order, self.running, self.integer],
            *[self.join, self.source],
        ]
        if self.depth > 0:
            steps += [partial(add, self) for add in REGIONS]
        before = len(self.b.ops)
        try:
            self.r.choice(steps)()
        except Nothing:
            del self.b.ops[before:]
            known = {*self.b.params, *(v for op in self.b.ops for v in op.results)}
            self.pool = [t for t in self.pool if t.value in known]
        self.program.steps_done += 1

    def unary(self) -> None:
        t = self.a_float()
        x, kind = t.value, self.r.choice(_UNARY)
        one = self.full(x.tensor, 1)
        if kind in ("neg", "abs", "floor", "ceil", "round", "stop_gradient"):
            self.put(self.b(kind, x), t.bound + 1)
        elif kind in ("log", "log1p", "sqrt", "rsqrt"):
            self.put(self.b(kind, self.b("add", self.b("abs", x), one)), t.bound + 1)
        elif kind in ("exp", "expm1"):
            self.put(self.b(kind, self.b("sin", x)), 3.0)
        else:
            self.put(self.b(kind, x), 1.0)

    def binary(self) -> None:
        x = self.a_float()
        y = self.like(x)
        kind = self.r.choice(["add", "sub", "mul", "mul", "max", "min", "div", "pow", "atan2"])
        two = self.full(x.value.tensor, 2)
        if self.r.random() < 0.1:
            kind = self.r.choice(["mod", "floordiv"])
        if kind in ("div", "mod", "floordiv"):
            below = self.b("add", two, self.b("sin", y.value))
            self.put(self.b(kind, x.value, below), x.bound + 3)
        elif kind == "pow":
            base = self.b("add", two, self.b("sin", x.value))
            power = self.b("cos", y.value) if self.r.random() < 0.5 else two
            self.put(self.b("pow", base, power), 9.0)
        elif kind == "atan2":
            self.put(self.b("atan2", x.value, self.b("add", two, self.b("cos", y.value))), 4.0)
        else:
            bound = x.bound * y.bound if kind == "mul" else x.bound + y.bound
            self.put(self.b(kind, x.value, y.value), bound)

    def integer(self) -> None:
        x = self.pick(lambda t: t.dtype in INTS)
        y = self.like(x)
        kinds = ["add", "sub", "mul", "max", "min", "and", "or", "xor", "mod", "floordiv"]
        kind = self.r.choice([*kinds, "shl", "shr", "neg", "abs", "sign", "not", "bits"])
        if kind in ("neg", "abs", "sign", "not"):
            made = self.b(kind, x.value)
        elif kind == "bits":
            to = self.r.choice([x.dtype, _OTHER_SIGN[x.dtype]])
            made = self.b("bitcast", x.value, dtype=to)
        elif kind in ("shl", "shr"):
            most = self.full(x.value.tensor, self.r.choice([7, 63]))
            made = self.b(kind, x.value, self.b("and", y.value, most))
        else:
            made = self.b(kind, x.value, y.value)
        self.put(made)

    def convert(self) -> None:
        t = self.pick()
        to = self.r.choice([*self.program.kinds, *self.program.kinds, I64, BOOL])
        x = t.value
        if t.dtype.is_float and not to.is_float and to is not BOOL:
            # What an integer type cannot hold is not the same everywhere.
            # What is about a whole number, as a saturated tanh, rounds to either side.
            x = self.b("add", self.b("abs", x), self.full(x.tensor, 0.375))
            self.put(self.b("convert", x, dtype=to))
        elif to.is_float and t.dtype in INTS:
            small = self.b("mod", x, self.full(x.tensor, self.r.choice([7, 11])))
            self.put(self.b("convert", small, dtype=to), 11.0)
        else:
            self.put(self.b("convert", x, dtype=to), max(t.bound, 1.0))

    def compare(self) -> None:
        x = self.pick()
        y = self.like(x)
        self.put(self.b(self.r.choice(["lt", "le", "eq", "ne"]), x.value, y.value))
        if self.r.random() < 0.4:
            p = self.pick(lambda t: t.dtype is BOOL)
            q = self.like(p)
            self.put(self.b(self.r.choice(["and", "or", "xor", "eq"]), p.value, q.value))

    def choose(self) -> None:
        p = self.pick(lambda t: t.dtype is BOOL)
        choices = [t for t in self.pool if t.shape == p.shape and t.dtype is not BOOL]
        dtype = self.r.choice(self.program.kinds)
        x = self.r.choice(choices) if choices else self.like(Made(Value(
            TensorType(dtype, p.shape)), 0.0))  # fmt: skip
        y = self.like(x)
        self.put(self.b("select", p.value, x.value, y.value), max(x.bound, y.bound))

    # -- moves

    def move(self) -> None:
        t = self.pick()
        kinds = ["spread", "reshape", "transpose", "reverse", "slice", "slice", "pad", "reshape"]
        value = getattr(self, f"_{self.r.choice(kinds)}")(t.value)
        if value.tensor.size > 2 * _ELEMENTS_MAX:
            raise Nothing
        self.put(value, t.bound)

    def _spread(self, x: Value) -> Value:
        shape, dims = list(x.shape), list(range(len(x.shape)))
        for _ in range(self.r.choice([1, 1, 2])):
            at = self.r.randint(0, len(shape))
            shape.insert(at, self.r.choice(self.program.sizes))
            dims = [d + (d >= at) for d in dims]
        if math.prod(shape) > _ELEMENTS_MAX or len(shape) > 5:
            raise Nothing
        return self.b("broadcast", x, shape=tuple(shape), dims=tuple(dims))

    def _reshape(self, x: Value) -> Value:
        factors = [p for n in x.shape for p in _primes(n)]
        if self.r.random() < 0.5:
            self.r.shuffle(factors)
        count = self.r.randint(0 if x.tensor.size == 1 else 1, 4)
        shape = [1] * count
        cuts = sorted(self.r.randrange(max(count, 1)) for _ in factors)
        for factor, place in zip(factors, cuts, strict=True):
            shape[place] *= factor
        return self.b("reshape", x, shape=tuple(shape))

    def _transpose(self, x: Value) -> Value:
        perm = list(range(len(x.shape)))
        self.r.shuffle(perm)
        return self.b("transpose", x, perm=tuple(perm))

    def _reverse(self, x: Value) -> Value:
        return self.b("reverse", x, axes=self._axes(x))

    def _axes(self, x: Value) -> tuple[int, ...]:
        return tuple(i for i in range(len(x.shape)) if self.r.random() < 0.5)

    def _slice(self, x: Value) -> Value:
        start, stop, step = [], [], []
        for n in x.shape:
            lo = self.r.randint(0, n - 1) if self.r.random() < 0.4 else 0
            start.append(lo)
            stop.append(self.r.randint(lo + 1, n) if self.r.random() < 0.4 else n)
            step.append(self.r.choice([1, 1, 1, 2, 3]))
        return self.b("slice", x, start=tuple(start), stop=tuple(stop), step=tuple(step))

    def _pad(self, x: Value) -> Value:
        number = self.b.constant(self.r.choice([0, 0, 1]), x.dtype)
        edges = [tuple(self.r.choice([0, 0, 1, 2]) for _ in x.shape) for _ in range(2)]
        inner = tuple(self.r.choice([0, 0, 0, 1]) for _ in x.shape)
        return self.b("pad", x, number, low=edges[0], high=edges[1], interior=inner)

    def join(self) -> None:
        x = self.pick(lambda t: t.shape)
        axis = self.r.randrange(len(x.shape))
        parts = [x]
        for _ in range(self.r.choice([1, 1, 2])):
            parts.append(self.like(x))
        values = [p.value for p in parts]
        if self.r.random() < 0.5:  # of other sizes
            n = x.shape[axis]
            stop = tuple(self.r.randint(1, n) if i == axis else m for i, m in enumerate(x.shape))
            zero, one = (0,) * len(x.shape), (1,) * len(x.shape)
            values[0] = self.b("slice", values[0], start=zero, stop=stop, step=one)
        made = self.b("concat", *values, axis=axis)
        if made.tensor.size > 2 * _ELEMENTS_MAX:
            raise Nothing
        self.put(made, max(p.bound for p in parts))

    # -- along axes

    def reduce(self) -> None:
        x = self.pick(lambda t: t.shape and t.value.tensor.size)
        kinds = ["reduce_sum", "reduce_sum", "reduce_max", "reduce_min", "reduce_prod"]
        kind = self.r.choice(kinds)
        axes = self._axes(x.value)
        count = math.prod(x.shape[i] for i in axes)
        value, bound = x.value, x.bound
        if kind in ("reduce_sum", "reduce_prod") and x.dtype is BOOL:
            kind = "reduce_max"
        elif kind == "reduce_prod" and x.dtype.is_float:
            small = self.b("mul", self.b("tanh", value), self.full(value.tensor, 0.125))
            value, bound = self.b("add", small, self.full(value.tensor, 1)), 1.125
            if count > 20:
                kind, count, bound = "reduce_sum", count, 1.125
            else:
                bound = 1.125**count
        if kind == "reduce_sum" and x.dtype.is_float and count > 4 and self.r.random() < 0.7:
            value = self.b("mul", value, self.full(value.tensor, 1 / count))
            bound = bound / count
        self.put(self.b(kind, value, axes=axes), bound * (count if kind == "reduce_sum" else 1))

    def order(self) -> None:
        x = self.pick(lambda t: t.shape and t.dtype is not BOOL)
        axis = self.r.randrange(len(x.shape))
        kind = self.r.choice(["argmax", "argmin", "argsort", "sorted"])
        if kind == "sorted":
            places = self.b("argsort", x.value, axis=axis)
            self.put(self.b("take_along", x.value, places, axis=axis), x.bound)
        else:
            self.put(self.b(kind, x.value, axis=axis))

    def running(self) -> None:
        x = self.pick(lambda t: t.shape and t.dtype is not BOOL)
        axis = self.r.randrange(len(x.shape))
        self.put(self.b("cumsum", x.value, axis=axis), x.bound * x.shape[axis])

    def product(self) -> None:
        """Axes of one that have the size of an axis of the other are contracted or of a batch."""
        x = self.pick(lambda t: t.shape and t.dtype is not BOOL)
        y = self.pick(lambda t: t.dtype is x.dtype and set(t.shape) & set(x.shape))
        free_x, free_y = list(range(len(x.shape))), list(range(len(y.shape)))
        pairs = []
        while True:
            ways = [(i, j) for i in free_x for j in free_y if x.shape[i] == y.shape[j]]
            if not ways or (pairs and self.r.random() < 0.4):
                break
            i, j = self.r.choice(ways)
            free_x.remove(i), free_y.remove(j)
            pairs.append((i, j, self.r.random() < 0.65))
        inner = [(i, j) for i, j, summed in pairs if summed]
        batch = [(i, j) for i, j, summed in pairs if not summed]
        work = math.prod(x.shape) * math.prod(y.shape[j] for j in free_y)
        size = work // math.prod(x.shape[i] for i, _ in inner)
        if work > 2_000_000 or size > _ELEMENTS_MAX:
            raise Nothing
        count = math.prod(x.shape[i] for i, _ in inner)
        value, bound = x.value, x.bound
        if x.dtype.is_float and count > 2:
            value, bound = self.b("mul", value, self.full(value.tensor, 1 / count)), bound / count
        made = self.b(
            "dot",
            value,
            y.value,
            contract_a=tuple(i for i, _ in inner),
            contract_b=tuple(j for _, j in inner),
            batch_a=tuple(i for i, _ in batch),
            batch_b=tuple(j for _, j in batch),
        )
        self.put(made, bound * y.bound * count)

    # -- indices

    def _places(self, shape: tuple[int, ...], most: int) -> Value:
        """Indices, some of them outside."""
        rng = np.random.default_rng(self.r.randrange(2**32))
        known = [t for t in self.pool if t.dtype in INTS and t.shape == shape]
        if known and self.r.random() < 0.6:
            return self.r.choice(known).value
        dtype = self.r.choice([I64, I64, *INTS])
        low = 0 if dtype.is_unsigned else -1
        return self.b.constant(rng.integers(low, most + 2, shape), dtype)

    def take(self) -> None:
        x = self.pick(lambda t: t.shape)
        axis = self.r.randrange(len(x.shape))
        if self.r.random() < 0.4:
            shape = (*x.shape[:axis], self.r.choice(self.program.sizes), *x.shape[axis + 1 :])
            if math.prod(shape) > _ELEMENTS_MAX:
                raise Nothing
            places = self._places(shape, x.shape[axis])
            self.put(self.b("take_along", x.value, places, axis=axis), x.bound)
            return
        shape = self.r.choice([(), (3,), (2, 2), (self.r.choice(self.program.sizes),)])
        if math.prod(shape) * x.value.tensor.size > _ELEMENTS_MAX * x.shape[axis]:
            raise Nothing
        places = self._places(shape, x.shape[axis])
        self.put(self.b("take", x.value, places, axis=axis), x.bound)

    def scatter(self) -> None:
        x = self.pick(lambda t: t.shape and t.dtype is not BOOL)
        axis = self.r.randrange(len(x.shape))
        count = self.r.choice([1, 2, 3, self.r.choice(self.program.sizes)])
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        if math.prod(shape) > _ELEMENTS_MAX:
            raise Nothing
        updates = self.like(Made(Value(TensorType(x.dtype, shape)), 0.0))
        target = x.value if self.r.random() < 0.6 else self.full(x.value.tensor, 0)
        along = self.r.random() < 0.4
        places = self._places(shape if along else (count,), x.shape[axis])
        name = "put_along_add" if along else "put_add"
        made = self.b(name, target, places, updates.value, axis=axis)
        self.put(made, x.bound + count * updates.bound)

    def window(self) -> None:
        """Part of a tensor at places known when it runs, or one that is changed there."""
        x = self.pick(lambda t: t.shape)
        known = [t.value for t in self.pool if t.value.type == TensorType(I64)]
        starts = [
            self.r.choice(known) if known and self.r.random() < 0.5 else self.b.constant(k, I64)
            for k in (self.r.randint(-1, 4) for _ in x.shape)
        ]
        sizes = tuple(n if self.r.random() < 0.4 else self.r.randint(1, n) for n in x.shape)
        if self.r.random() < 0.5:
            self.put(self.b("dynamic_slice", x.value, *starts, sizes=sizes), x.bound)
            return
        part = self.like(Made(Value(TensorType(x.dtype, sizes)), 0.0))
        made = self.b("dynamic_update", x.value, part.value, *starts)
        self.put(made, max(x.bound, part.bound))

    # -- regions

    def inner(self, args: Sequence[Made], index: bool = False) -> Maker:
        types: list[Any] = [t.value.type for t in args]
        b = Builder([TensorType(I64), *types] if index else types)
        maker = Maker(self.program, b, self.depth - 1)
        params = list(b.params)
        if index:
            maker.pool.append(Made(params.pop(0), 0.0))
        maker.pool += [Made(p, t.bound) for p, t in zip(params, args, strict=True)]
        return maker

    def some(self, least: int, most: int) -> list[Made]:
        return [self.pick() for _ in range(self.r.randint(least, most))]

    def bounded(self, made: Made, wanted: Made) -> Value:
        """What a carry becomes: of its type, and no larger."""
        small = not made.dtype.is_float or made.bound <= wanted.bound
        return made.value if small else self.b("tanh", made.value)

    def grow(self, least: int, most: int) -> None:
        for _ in range(self.r.randint(least, most)):
            self.step()

    def scalar(self, dtype: DType) -> Value:
        """One bool or index, that may be known."""
        known = [t.value for t in self.pool if t.value.type == TensorType(dtype)]
        if known and self.r.random() < 0.7:
            return self.r.choice(known)
        if self.r.random() < 0.3:
            return self.b.constant(self.r.choice([0, 1]), dtype)
        t = self.a_float()
        total = self.b("reduce_sum", t.value, axes=tuple(range(len(t.shape))))
        flag = self.b("lt", total, self.full(total.tensor, self.r.choice([0.125, -0.75])))
        return flag if dtype is BOOL else self.b("convert", flag, dtype=dtype)


_UNARY = ["sin", "cos", "tanh", "sigmoid", "erf", "neg", "abs", "floor", "ceil", "round", "log"]
_UNARY += ["sign", "exp", "expm1", "log1p", "sqrt", "rsqrt", "tanh", "stop_gradient"]


def _primes(n: int) -> list[int]:
    found, p = [], 2
    while n > 1:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return found
