"""Cases of the primitives of lists: programs, since a list lives inside of one only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from delian.core.compiler.ir import Builder, DType, ListType, TensorType, Value

from .base import INTS, Case, numbers, wrapped


def stacks() -> Iterator[Case]:
    """Lists live inside programs only: these push and pop tensors."""
    x, y, z = (numbers(k, (2,)) for k in "xyz")
    kind = ListType(TensorType(DType.F64, (2,)))

    def pushed(b: Builder, *values: Value) -> Value:
        stack = b("list_empty", type=ListType(values[0].tensor))
        for value in values:
            stack = b("list_push", stack, value)
        return stack

    def last_in_first_out(b: Builder) -> Sequence[Value]:
        rest, top = b.emit("list_pop", (pushed(b, *b.params),))
        rest, middle = b.emit("list_pop", (rest,))
        _, bottom = b.emit("list_pop", (rest,))
        return top, middle, bottom

    def below_empty(b: Builder) -> Sequence[Value]:
        rest, top = b.emit("list_pop", (pushed(b, b.params[0]),))
        rest, zero = b.emit("list_pop", (rest,))
        rest, again = b.emit("list_pop", (rest,))
        return top, zero, again

    def persistent(b: Builder) -> Sequence[Value]:
        shared = pushed(b, b.params[0])
        left = b("list_push", shared, b.params[1])
        right = b("list_push", shared, b.params[2])
        below, top = b.emit("list_pop", (left,))
        return top, b.emit("list_pop", (right,))[1], b.emit("list_pop", (below,))[1]

    def summed(b: Builder) -> Sequence[Value]:
        both = b("list_add", pushed(b, b.params[0], b.params[1]), pushed(b, b.params[2]))
        rest, top = b.emit("list_pop", (both,))
        return top, b.emit("list_pop", (rest,))[1]

    lanes = ListType(TensorType(DType.F64), (2,))

    def chosen(b: Builder) -> Sequence[Value]:
        """Lane 0 gets one more, lane 1 does not: their tops are of different pushes."""
        short = b("list_push", b("list_empty", type=lanes), b.params[0])
        long = b("list_push", short, b.params[1])
        both = b("list_select", b.constant([True, False], DType.BOOL), long, short)
        rest, top = b.emit("list_pop", (both,))
        rest, below = b.emit("list_pop", (rest,))
        return top, below

    def lanes_taken(b: Builder) -> Sequence[Value]:
        stack = b("list_push", b("list_empty", type=lanes), b.params[0])
        turned = b("list_take", stack, b.constant([1, 0, 9], DType.I64))
        plain = b("list_push", b("list_empty", type=kind), b.params[0])
        spread = b("list_take", plain, b.constant([0, 0], DType.I64))
        return b.emit("list_pop", (turned,))[1], b.emit("list_pop", (spread,))[1]

    all_ = (0, 1, 2)
    args = (x, y, z)
    nothing = np.zeros(2)
    yield Case("list_pop", "order", args, lambda x, y, z: (z, y, x), {}, all_, last_in_first_out)
    yield Case("list_empty", "zeros", (x,), lambda x: (x, nothing, nothing), {}, (0,), below_empty)
    yield Case("list_push", "shared", args, lambda x, y, z: (y, z, x), {}, all_, persistent)
    yield Case("list_add", "from-top", args, lambda x, y, z: (y + z, x), {}, all_, summed)
    for dtype in INTS:
        name, last = np.dtype(dtype).name, np.iinfo(dtype).max
        p, q, r = (np.array(v, dtype) for v in ([1, last], [5, 6], [7, last]))
        total = wrapped(lambda v, w: v + w, dtype)
        oracle = lambda p, q, r, total=total: (total(q, r), p)  # noqa: E731
        yield Case("list_add", name, (p, q, r), oracle, {}, (), summed)
    yield Case(
        "list_select",
        "lanes",
        (x, y),
        lambda x, y: (np.stack([y[0], x[1]]), np.stack([x[0], 0])),
        {},
        (0, 1),
        chosen,
    )
    yield Case(
        "list_take",
        "lanes",
        (x,),
        lambda x: (np.stack([x[1], x[0], x[1]]), np.stack([x, x])),
        {},
        (),
        lanes_taken,
    )
