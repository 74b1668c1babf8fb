"""Integers and the movement of elements are kept to the bit."""

from __future__ import annotations

import numpy as np
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Builder, DType, TensorType
from delian.core.compiler.passes.simplify import simplify
from delian.core.compiler.verify import verify
from hypothesis import given, settings
from hypothesis import strategies as st

INTS = [DType.I64, DType.I32, DType.U32, DType.U8]
WORDS = [*INTS, DType.BOOL]
BINARY = ["add", "sub", "mul", "max", "min", "floordiv", "mod"]
BITS = ["and", "or", "xor"]
ORDER = ["eq", "ne", "lt", "le"]


def agree(block, args):
    smaller = simplify(block)
    verify(smaller)
    for a, b in zip(run_block(block, args), run_block(smaller, args), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)


def integer_step(draw, b, pool):
    """Adds one operation on integers or booleans to the pool."""
    x = draw(st.sampled_from(pool))
    same = [v for v in pool if v.type == x.type]
    y = draw(st.sampled_from(same))
    if draw(st.integers(0, 2)) == 0:
        number = draw(st.sampled_from([0, 1, 2, 255, 8]))
        y = b.full(x.tensor, np.asarray(number).astype(x.dtype.numpy)[()])
        if draw(st.booleans()):
            x, y = y, x
    kind = draw(st.sampled_from(["unary", "binary", "binary", "bits", "order", "shift", "other"]))
    if kind == "unary":
        names = ["not"] if x.dtype is DType.BOOL else ["not", "neg", "abs", "sign"]
        return b(draw(st.sampled_from(names)), x)
    if kind == "binary" and x.dtype is not DType.BOOL:
        return b(draw(st.sampled_from(BINARY)), x, y)
    if kind == "bits":
        return b(draw(st.sampled_from(BITS)), x, y)
    if kind == "order":
        return b(draw(st.sampled_from(ORDER)), x, y)
    if kind == "shift" and x.dtype is not DType.BOOL:
        return b(draw(st.sampled_from(["shl", "shr"])), x, b("and", y, b.full(y.tensor, 7)))
    preds = [v for v in pool if v.dtype is DType.BOOL and v.shape == x.shape]
    if preds and draw(st.booleans()):
        return b("select", draw(st.sampled_from(preds)), x, y)
    to = draw(st.sampled_from(WORDS))
    if x.dtype is not DType.BOOL and to is not DType.BOOL and to.itemsize == x.dtype.itemsize:
        return b(draw(st.sampled_from(["bitcast", "convert"])), x, dtype=to)
    return b("convert", x, dtype=to)


@st.composite
def integer_programs(draw):
    types = [TensorType(d, draw(st.sampled_from([(), (4,)]))) for d in WORDS]
    b = Builder(types)
    pool = list(b.params)
    for _ in range(draw(st.integers(3, 15))):
        pool.append(integer_step(draw, b, pool))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    args = [rng.integers(-300, 300, t.shape).astype(t.dtype.numpy) for t in types]
    return b.finish(pool[len(types) :]), args


@given(integer_programs())
@settings(max_examples=100, deadline=None)
def test_integer_arithmetic_wraps_as_before(program):
    agree(*program)


def split(total):
    """Shapes of so many elements, with axes of size 1 here and there."""
    if total == 1:
        return st.lists(st.just(1), max_size=3).map(tuple)
    factors = {2: [(2,)], 6: [(6,), (2, 3), (3, 2)], 12: [(12,), (2, 6), (3, 4), (2, 3, 2)]}
    found = factors.get(total, [(total,)])

    def with_ones(shape, places):
        shape = list(shape)
        for at in places:
            shape.insert(min(at, len(shape)), 1)
        return tuple(shape)

    return st.builds(with_ones, st.sampled_from(found), st.lists(st.integers(0, 3), max_size=2))


def move_step(draw, b, x):
    """Adds one operation that moves the elements of x, or adds some up."""
    shape, rank = x.shape, len(x.shape)
    kinds = ["reshape", "broadcast", "transpose", "reverse", "slice", "pad", "concat", "take"]
    kind = draw(st.sampled_from([*kinds, "reduce", "dynamic", "scatter"]))
    if kind == "reshape":
        return b("reshape", x, shape=draw(split(x.tensor.size)))
    if kind == "broadcast" and x.tensor.size <= 40:
        return broadcast_step(draw, b, x)
    if kind == "transpose":
        return b("transpose", x, perm=tuple(draw(st.permutations(range(rank)))))
    if rank == 0:
        return x
    axis = draw(st.integers(0, rank - 1))
    if kind == "reverse":
        return b("reverse", x, axes=(axis,))
    if kind == "slice":
        start = [draw(st.integers(0, d)) for d in shape]
        stop = [draw(st.integers(s, d)) for s, d in zip(start, shape, strict=True)]
        if draw(st.booleans()):
            start, stop = [0] * rank, list(shape)
            start[axis] = draw(st.integers(0, shape[axis]))
        step = tuple(draw(st.integers(1, 3)) for _ in shape)
        return b("slice", x, start=tuple(start), stop=tuple(stop), step=step)
    if kind == "pad":
        edges = [tuple(draw(st.integers(0, 1)) for _ in shape) for _ in range(3)]
        low, high, interior = edges
        value = b.constant(draw(st.sampled_from([0, 7])))
        return b("pad", x, value, low=low, high=high, interior=interior)
    if kind == "concat" and x.tensor.size <= 40:
        return b("concat", x, b("neg", x), axis=axis)
    if kind == "take" and shape[axis]:
        rows = draw(st.lists(st.integers(-1, 6), max_size=3)) if rank < 4 else 1
        return b("take", x, b.constant(np.array(rows, np.int64)), axis=axis)
    if kind == "dynamic":
        sizes = tuple(draw(st.integers(0, d)) for d in shape)
        starts = [b.constant(draw(st.integers(-1, 3))) for _ in shape]
        return b("dynamic_slice", x, *starts, sizes=sizes)
    if kind == "scatter" and 0 not in shape:
        wide = tuple(4 if i == axis else d for i, d in enumerate(shape))
        zeros = b.full(TensorType(DType.I64, wide), draw(st.sampled_from([0, 0, 1])))
        places = b("mod", b("iota", dtype=DType.I64, shape=shape, axis=axis), b.full(x.tensor, 5))
        places = b("min", places, b.full(x.tensor, draw(st.integers(0, 4))))
        return b("put_along_add", zeros, places, x, axis=axis)
    if kind == "reduce" and 0 not in shape:
        axes = tuple(sorted(draw(st.sets(st.integers(0, rank - 1)))))
        name = draw(st.sampled_from(["reduce_sum", "reduce_max", "reduce_min", "reduce_prod"]))
        return b(name, x, axes=axes)
    return x


def broadcast_step(draw, b, x):
    """To a shape with axes added anywhere, and axes of size 1 stretched or not."""
    shape, dims = [], []
    for d in x.shape:
        shape += [draw(st.sampled_from([1, 2])) for _ in range(draw(st.integers(0, 1)))]
        dims.append(len(shape))
        shape.append(d if d != 1 else draw(st.sampled_from([1, 1, 3])))
    shape += [2] * draw(st.integers(0, 1))
    return b("broadcast", x, shape=tuple(shape), dims=tuple(dims))


@st.composite
def moving_programs(draw):
    """Two tensors that move alike, and are combined now and then."""
    shape = draw(split(draw(st.sampled_from([1, 6, 12]))))
    kind = TensorType(DType.I64, shape)
    b = Builder([kind, kind])
    x, y = b.params
    for _ in range(draw(st.integers(2, 9))):
        made = move_step(draw, b, x)
        if made is x:
            continue
        op = b.ops[-1]
        twin = [y if v is x else v for v in op.operands]
        x, y = made, b(op.name, *twin, **op.attrs)
        if x.tensor.size == 0:
            break
        how = draw(st.sampled_from(["none", "neg", "sub", "splat"]))
        if how == "neg":
            x = b("neg", x)
        elif how == "sub":
            x = b("sub", x, y)
        elif how == "splat":
            x = b("mul", b.full(x.tensor, 3), x)
    args = [np.arange(1, kind.size + 1).reshape(shape), np.arange(kind.size).reshape(shape) * 7]
    return b.finish([x, y]), args


@given(moving_programs())
@settings(max_examples=150, deadline=None)
def test_every_element_ends_up_where_it_did(program):
    agree(*program)


@st.composite
def dots(draw):
    """A dot of transposed operands, transposed again."""
    b = Builder([TensorType(DType.I64, (2, 3, 4)), TensorType(DType.I64, (2, 3, 4))])
    x = b("transpose", b.params[0], perm=tuple(draw(st.permutations(range(3)))))
    y = b("transpose", b.params[1], perm=tuple(draw(st.permutations(range(3)))))
    pairs = draw(st.permutations([(x.shape.index(d), y.shape.index(d)) for d in (2, 3, 4)]))
    batch = pairs[: draw(st.integers(0, 1))]
    contract = pairs[len(batch) : len(batch) + draw(st.integers(0, 2))]
    z = b(
        "dot",
        x,
        y,
        contract_a=tuple(i for i, _ in contract),
        contract_b=tuple(j for _, j in contract),
        batch_a=tuple(i for i, _ in batch),
        batch_b=tuple(j for _, j in batch),
    )
    rank = len(z.shape)
    perm = draw(st.permutations(range(rank)))
    free = (rank - len(batch)) // 2
    if draw(st.booleans()):
        k = len(batch)
        perm = [*range(k), *range(k + free, rank), *range(k, k + free)]
    rng = np.random.default_rng(0)
    args = [rng.integers(-9, 9, (2, 3, 4)) for _ in range(2)]
    return b.finish([b("transpose", z, perm=tuple(perm))]), args


@given(dots())
@settings(max_examples=150, deadline=None)
def test_dots_read_through_transposes(program):
    agree(*program)
