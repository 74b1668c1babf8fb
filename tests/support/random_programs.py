"""Random well-typed programs for property tests: straight lines, `if`, `switch`, `for`, `while`,
lists.

Tests reach this module through the fixture `random_programs` (tests/support/program_fixtures.py):

    @given(data=st.data())
    def test_something(random_programs, data):
        program = data.draw(random_programs.programs())
        run_block(program.block, program.args)

A program takes float64 tensors and one i64 number (a trip count), and gives float64 tensors. It is
smooth almost everywhere and its values stay small (each value's bound is known as it is built), so
that finite differences can judge its derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from delian.core.compiler.ir import Block, Builder, DType, ListType, TensorType, Value
from hypothesis import strategies as st

F64 = TensorType(DType.F64)
I64 = TensorType(DType.I64)
SHAPES = [(), (3,), (2, 3), (3, 2)]
#: No value is larger, so that a step of 1e-5 measures a derivative to about 1e-6.
BOUND = 20.0


@dataclass
class Program:
    """A block, arguments for it, and which parameters are floats."""

    block: Block
    args: list[Any]
    wrt: list[int]


@dataclass
class _Tensor:
    value: Value
    bound: float


class _Maker:
    """Grows one block: a pool of tensors, a pool of i64 numbers, and steps that add to them."""

    def __init__(self, draw: Callable[..., Any], b: Builder, depth: int) -> None:
        self.draw = draw
        self.b = b
        self.depth = depth
        self.pool: list[_Tensor] = []
        self.ints: list[Value] = []

    def pick(self, shape: tuple[int, ...] | None = None) -> _Tensor:
        fitting = [t for t in self.pool if shape is None or t.value.shape == shape]
        if not fitting:
            assert shape is not None
            number = self.draw(st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0]))
            return self.put(self.b.full(TensorType(DType.F64, shape), number), abs(number))
        return self.draw(st.sampled_from(fitting))

    def put(self, value: Value, bound: float) -> _Tensor:
        """Enters a value in the pool, squashed when it may be large."""
        made = _Tensor(value, bound)
        if bound > BOUND:
            made = _Tensor(self.b("tanh", value), 1.0)
        self.pool.append(made)
        return made

    def step(self) -> None:
        steps = [
            *(self.unary, self.unary, self.binary, self.binary, self.binary, self.constant),
            *(self.move, self.move, self.reduce, self.dot, self.select, self.integer, self.stack),
        ]
        if self.depth > 0:
            steps += [self.branch, self.count, self.loop]
        self.draw(st.sampled_from(steps))()

    # -- straight lines

    def constant(self) -> None:
        shape = self.draw(st.sampled_from(SHAPES))
        number = self.draw(st.sampled_from([0.0, 1.0, -1.0, 0.5, 3.0]))
        self.put(self.b.full(TensorType(DType.F64, shape), number), abs(number))

    def unary(self) -> None:
        t = self.pick()
        name = self.draw(st.sampled_from(["sin", "cos", "tanh", "sigmoid", "neg", "abs", "erf"]))
        self.put(self.b(name, t.value), t.bound if name in ("neg", "abs") else 1.0)

    def binary(self) -> None:
        x = self.pick()
        y = self.pick(x.value.shape)
        name = self.draw(st.sampled_from(["add", "sub", "mul", "max", "min", "div"]))
        if name == "div":
            # The denominator stays away from zero.
            two = self.b.full(y.value.tensor, 2.0)
            y = _Tensor(self.b("add", two, self.b("sin", y.value)), 3.0)
        bound = x.bound * y.bound if name == "mul" else x.bound + y.bound
        self.put(self.b(name, x.value, y.value), bound)

    def move(self) -> None:
        x = self.pick()
        shape = x.value.shape
        if shape == ():
            out = self.draw(st.sampled_from(SHAPES[1:]))
            self.put(self.b("broadcast", x.value, shape=out, dims=()), x.bound)
        elif len(shape) == 1:
            self._move_vector(x)
        else:
            self._move_matrix(x)

    def _move_vector(self, x: _Tensor) -> None:
        b, v = self.b, x.value
        kind = self.draw(
            st.sampled_from(["broadcast", "across", "reverse", "cumsum", "roll", "take"])
        )
        if kind == "broadcast":
            v = b("broadcast", v, shape=(2, 3), dims=(1,))
        elif kind == "across":
            v = b("broadcast", v, shape=(3, 2), dims=(0,))
        elif kind == "reverse":
            v = b("reverse", v, axes=(0,))
        elif kind == "cumsum":
            v = b("cumsum", v, axis=0)
        elif kind == "roll":
            head = b("slice", v, start=(0,), stop=(1,), step=(1,))
            tail = b("slice", v, start=(1,), stop=(3,), step=(1,))
            v = b("concat", tail, head, axis=0)
        else:
            rows = self.draw(st.lists(st.integers(-1, 4), min_size=3, max_size=3))
            v = b("take", v, b.constant(np.array(rows)), axis=0)
        self.put(v, x.bound * (3 if kind == "cumsum" else 1))

    def _move_matrix(self, x: _Tensor) -> None:
        b, v = self.b, x.value
        rows, columns = v.shape
        kind = self.draw(st.sampled_from(["transpose", "reshape", "reverse", "row", "pad", "at"]))
        if kind == "transpose":
            v = b("transpose", v, perm=(1, 0))
        elif kind == "reshape":
            v = b("reshape", v, shape=(columns, rows))
        elif kind == "reverse":
            v = b("reverse", v, axes=self.draw(st.sampled_from([(0,), (1,), (0, 1)])))
        elif kind == "row":
            i = self.draw(st.integers(0, rows - 1))
            row = b("slice", v, start=(i, 0), stop=(i + 1, columns), step=(1, 1))
            v = b("broadcast", row, shape=(rows, columns), dims=(0, 1))
        elif kind == "pad":
            zero = b.constant(0.0)
            wide = b("pad", v, zero, low=(0, 1), high=(1, 0), interior=(0, 0))
            v = b("slice", wide, start=(1, 0), stop=(rows + 1, columns), step=(1, 1))
        else:
            start = self.draw(st.sampled_from(self.ints)) if self.ints else b.constant(1)
            cut = b("dynamic_slice", v, start, b.constant(0), sizes=(1, columns))
            v = b("broadcast", cut, shape=(rows, columns), dims=(0, 1))
        self.put(v, x.bound)

    def reduce(self) -> None:
        x = self.pick()
        rank = len(x.value.shape)
        axes = (0,) if rank == 1 else self.draw(st.sampled_from([(0, 1), (), (1,)]))
        if rank == 0 or (axes == (1,) and x.value.shape[0] != 3):
            axes = tuple(range(rank))
        name = self.draw(st.sampled_from(["reduce_sum", "reduce_max", "reduce_min", "reduce_prod"]))
        if name == "reduce_prod":
            x = _Tensor(self.b("tanh", x.value), 1.0)
        self.put(self.b(name, x.value, axes=axes), x.bound * (6 if name == "reduce_sum" else 1))

    def dot(self) -> None:
        x, y = self.pick((2, 3)), self.pick((3, 2))
        a, c = (y, x) if self.draw(st.booleans()) else (x, y)
        inner = self.b(
            "dot", a.value, c.value, contract_a=(1,), contract_b=(0,), batch_a=(), batch_b=()
        )
        shape = inner.shape
        if shape == (2, 2):
            wide = self.b(
                "pad", inner, self.b.constant(0.0), low=(0, 0), high=(0, 1), interior=(0, 0)
            )
        else:
            wide = self.b("slice", inner, start=(0, 1), stop=(3, 3), step=(1, 1))
        self.put(wide, 3 * x.bound * y.bound)

    def select(self) -> None:
        x = self.pick()
        y = self.pick(x.value.shape)
        z = self.pick(x.value.shape)
        less = self.b("lt", z.value, y.value)
        if self.draw(st.booleans()):
            less = self.b("not", less)
        self.put(self.b("select", less, x.value, y.value), max(x.bound, y.bound))

    def integer(self) -> None:
        """Arithmetic on numbers that stay within 0..5."""
        if not self.ints:
            self.ints.append(self.b.constant(self.draw(st.integers(0, 5))))
            return
        x = self.draw(st.sampled_from(self.ints))
        kind = self.draw(st.sampled_from(["mod", "count", "float"]))
        if kind == "mod":
            three = self.b("add", x, self.b.constant(3))
            self.ints.append(self.b("mod", three, self.b.constant(4)))
        elif kind == "count":
            t = self.pick()
            positive = self.b("lt", self.b.full(t.value.tensor, 0.0), t.value)
            bits = self.b("convert", positive, dtype=DType.I64)
            total = self.b("reduce_sum", bits, axes=tuple(range(len(t.value.shape))))
            self.ints.append(self.b("min", total, self.b.constant(4)))
        else:
            self.put(self.b("convert", x, dtype=DType.F64), 5.0)

    def stack(self) -> None:
        """A few pushes and pops, as many as there are or one more."""
        x = self.pick()
        stack = self.b("list_empty", type=ListType(x.value.type))
        stack = self.b("list_push", stack, x.value)
        y = self.pick(x.value.shape)
        stack = self.b("list_push", stack, y.value)
        for bound in [y.bound, x.bound, 0.0][: self.draw(st.integers(1, 3))]:
            stack, top = self.b.emit("list_pop", (stack,))
            self.put(top, bound)

    # -- regions

    def _inner(self, args: list[_Tensor], ints: list[Value], index: bool = False) -> _Maker:
        types = [t.value.type for t in args] + [v.type for v in ints]
        b = Builder([I64, *types] if index else types)
        maker = _Maker(self.draw, b, self.depth - 1)
        params = list(b.params)
        if index:
            maker.ints.append(params.pop(0))
        maker.pool = [_Tensor(p, t.bound) for p, t in zip(params, args, strict=False)]
        maker.ints += params[len(args) :]
        return maker

    def _steps(self, least: int, most: int) -> None:
        for _ in range(self.draw(st.integers(least, most))):
            self.step()

    def branch(self) -> None:
        args = [self.pick() for _ in range(self.draw(st.integers(1, 3)))]
        ints = self.ints[:1]
        shapes = [self.pick().value.shape for _ in range(self.draw(st.integers(1, 2)))]
        regions, bounds = [], [0.0] * len(shapes)
        cases = self.draw(st.sampled_from([0, 0, 1, 2, 3]))  # 0 stands for an `if`
        for _ in range(cases or 2):
            inner = self._inner(args, ints)
            args_inside = inner.pool[: len(args)]
            inner._steps(2, 5)
            if self.draw(st.booleans()):
                inner.pool = args_inside  # a branch that gives its arguments as they came
            outs = [inner.pick(shape) for shape in shapes]
            bounds = [max(bound, t.bound) for bound, t in zip(bounds, outs, strict=True)]
            regions.append(inner.b.finish([t.value for t in outs]))
        name, chooser = ("switch", self._index()) if cases else ("if", self._predicate())
        made = self.b.emit(name, (chooser, *(t.value for t in args), *ints), {}, regions)
        for value, bound in zip(made, bounds, strict=True):
            self.put(value, bound)

    def _index(self) -> Value:
        """Of a `switch`: perhaps known, perhaps outside of its cases."""
        if self.ints and self.draw(st.booleans()):
            return self.b("sub", self.draw(st.sampled_from(self.ints)), self.b.constant(1))
        return self.b.constant(self.draw(st.integers(-1, 4)))

    def _predicate(self) -> Value:
        kind = self.draw(st.sampled_from(["float", "float", "int", "true", "false"]))
        if kind == "int" and self.ints:
            return self.b("lt", self.draw(st.sampled_from(self.ints)), self.b.constant(2))
        if kind in ("true", "false"):
            return self.b.constant(kind == "true", DType.BOOL)
        t = self.pick()
        total = self.b("reduce_sum", t.value, axes=tuple(range(len(t.value.shape))))
        return self.b("lt", total, self.b.constant(self.draw(st.sampled_from([0.1234, -0.7]))))

    def _carried(self) -> tuple[list[_Tensor], list[_Tensor]]:
        consts = [self.pick() for _ in range(self.draw(st.integers(0, 2)))]
        carries = [self.pick() for _ in range(self.draw(st.integers(1, 3)))]
        # What a carry may become: at most 1 once squashed, else what one of them was.
        bound = max(1.0, *(t.bound for t in carries))
        return consts, [_Tensor(t.value, bound) for t in carries]

    def _next(self, inner: _Maker, carries: list[_Tensor], offset: int) -> list[Value]:
        """The carries' next values: a squashed value of the shape, or some carry as it is."""
        outs = []
        for j, t in enumerate(carries):
            kind = self.draw(st.sampled_from(["squashed", "squashed", "squashed", "same", "other"]))
            k = self.draw(st.integers(0, len(carries) - 1)) if kind == "other" else j
            if kind == "squashed" or carries[k].value.shape != t.value.shape:
                outs.append(inner.b("tanh", inner.pick(t.value.shape).value))
            else:
                outs.append(inner.b.params[offset + k])
        return outs

    def count(self) -> None:
        """A `for` of a known or unknown number of trips, none included."""
        consts, carries = self._carried()
        lo = self.b.constant(self.draw(st.integers(-1, 1)))
        if self.ints and self.draw(st.booleans()):
            hi = self.draw(st.sampled_from(self.ints))
        else:
            hi = self.b.constant(self.draw(st.integers(-1, 5)))
        inner = self._inner([*consts, *carries], [], index=True)
        inner._steps(2, 5)
        body = inner.b.finish(self._next(inner, carries, 1 + len(consts)))
        values = [t.value for t in (*consts, *carries)]
        made = self.b.emit("for", (lo, hi, *values), {"consts": len(consts)}, (body,))
        for value, t in zip(made, carries, strict=True):
            self.put(value, t.bound)

    def loop(self) -> None:
        """A `while` that counts to a limit or stops when its first carry grows small."""
        consts, carries = self._carried()
        count = self.b.constant(0)
        types = [*(t.value.type for t in (*consts, *carries)), I64]
        cond = Builder(types)
        go = cond("lt", cond.params[-1], cond.constant(self.draw(st.integers(0, 4))))
        if self.draw(st.booleans()):
            first = cond.params[len(consts)]
            size = cond("reduce_sum", first, axes=tuple(range(len(first.shape))))
            go = cond("and", go, cond("lt", cond.constant(-2.345), size))
        inner = self._inner([*consts, *carries], [count])
        inner._steps(2, 5)
        outs = self._next(inner, carries, len(consts))
        outs.append(inner.b("add", inner.b.params[-1], inner.b.constant(1)))
        regions = (cond.finish([go]), inner.b.finish(outs))
        values = [t.value for t in (*consts, *carries)]
        made = self.b.emit("while", (*values, count), {"consts": len(consts)}, regions)
        for value, t in zip(made, carries, strict=False):
            self.put(value, t.bound)


@st.composite
def programs(draw: Callable[..., Any], steps: int = 12, depth: int = 2) -> Program:
    """Programs of up to so many steps at the top and regions nested so deep, with arguments."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    b = Builder([*(TensorType(DType.F64, s) for s in shapes), I64])
    maker = _Maker(draw, b, depth)
    maker.pool = [_Tensor(p, 2.0) for p in b.params[:-1]]
    maker.ints = [b.params[-1]]
    maker._steps(steps // 2, steps)
    results = [t.value for t in maker.pool[-draw(st.integers(1, 5)) :]]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    args: list[Any] = [rng.uniform(-2, 2, s) for s in shapes]
    args.append(np.asarray(draw(st.integers(0, 4))))
    return Program(b.finish(results), args, list(range(len(shapes))))
