"""Steps of random programs that hold regions: branches, loops, and lists beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delian.core.compiler.ir import Builder, DType, ListType, Value

from .made import Made

if TYPE_CHECKING:
    from .tensors import Maker

I64, BOOL = DType.I64, DType.BOOL


def branch(m: Maker) -> None:
    """An `if`."""
    _choice(m, "if", m.scalar(BOOL), 2)


def cases(m: Maker) -> None:
    """A `switch`."""
    _choice(m, "switch", m.scalar(I64), m.r.choice([1, 2, 3]))


def _choice(m: Maker, name: str, chooser: Value, count: int) -> None:
    args = m.some(1, 3)
    wanted = m.some(1, 2)
    regions, bounds = [], [0.0] * len(wanted)
    for _ in range(count):
        inner = m.inner(args)
        if m.r.random() < 0.8:
            inner.grow(1, 4)
        outs = [inner.like(t) for t in wanted]
        bounds = [max(a, t.bound) for a, t in zip(bounds, outs, strict=True)]
        regions.append(inner.b.finish([t.value for t in outs]))
    made = m.b.emit(name, (chooser, *(t.value for t in args)), {}, regions)
    for value, bound in zip(made, bounds, strict=True):
        m.put(value, bound)


def count(m: Maker) -> None:
    """A `for` of a known or unknown number of trips, none included."""
    consts, carries = m.some(0, 2), m.some(1, 3)
    carries = [Made(t.value, max(t.bound, 1.0)) for t in carries]
    lo = m.b.constant(m.r.choice([0, 0, 0, -1, 1]), I64)
    hi = m.b.constant(m.r.choice([0, 1, 2, 3, 5]), I64)
    if m.r.random() < 0.4:
        some = m.b("mod", m.scalar(I64), m.b.constant(6, I64))
        hi = some
    inner = m.inner([*consts, *carries], index=True)
    inner.grow(1, 5)
    outs = [inner.bounded(inner.like(t), t) for t in carries]
    values = [t.value for t in (*consts, *carries)]
    body = inner.b.finish(outs)
    made = m.b.emit("for", (lo, hi, *values), {"consts": len(consts)}, (body,))
    for value, t in zip(made, carries, strict=True):
        m.put(value, t.bound)


def loop(m: Maker) -> None:
    """A `while` that counts to a limit, or stops when something grows small."""
    consts, carries = m.some(0, 2), m.some(1, 3)
    carries = [Made(t.value, max(t.bound, 1.0)) for t in carries]
    zero = m.b.constant(0, I64)
    every = [*consts, *carries, Made(zero, 0.0)]
    cond = Builder([t.value.type for t in every])
    go = cond("lt", cond.params[-1], cond.constant(m.r.randint(0, 4), I64))
    first = cond.params[len(consts)]
    if first.dtype.is_float and m.r.random() < 0.5:
        size = cond("reduce_sum", first, axes=tuple(range(len(first.shape))))
        go = cond("and", go, cond("lt", cond.full(size.tensor, -2.375), size))
    inner = m.inner(every)
    inner.grow(1, 5)
    outs = [inner.bounded(inner.like(t), t) for t in carries]
    outs.append(inner.b("add", inner.b.params[-1], inner.b.constant(1, I64)))
    regions = (cond.finish([go]), inner.b.finish(outs))
    values = [t.value for t in every]
    made = m.b.emit("while", values, {"consts": len(consts)}, regions)
    for value, t in zip(made, carries, strict=False):
        m.put(value, t.bound)


def stack(m: Maker) -> None:
    """A few pushes and pops, as many as there are or one more."""
    x = m.pick()
    y = m.like(x)
    made = m.b("list_empty", type=ListType(x.value.type))
    for value in (x.value, y.value):
        made = m.b("list_push", made, value)
    for bound in [y.bound, x.bound, 0.0][: m.r.randint(1, 3)]:
        made, top = m.b.emit("list_pop", (made,))
        m.put(top, bound)


REGIONS = (branch, count, loop, cases, stack)
