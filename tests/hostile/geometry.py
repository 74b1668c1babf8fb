"""Draws programs of one primitive, its sizes at the corners and its operands views of others.

A maker builds the operation from operands that it asks `Draw` for; what it asks for may come as it
is, or as a slice, a transpose, a broadcast or a reversal of something larger, and what it gives may
be read by another operation, so that views, fused loops and epilogues are drawn, too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import Builder, DType, Function, ListType, TensorType, Type, Value
from delian.core.compiler.ir_codec import decode_function, encode_function
from delian.core.compiler.primitives import PRIMITIVES
from delian.core.compiler.primitives.attributes import PADDING_MAX, SIZE_MAX, STRIDE_MAX
from delian.core.compiler.primitives.type_checks import INTS, NUMERIC
from delian.core.compiler.verify import Limits

from .operands import ELEMENTS_MAX, F32, HERE, I64, WORK_MAX, Draw, Misfit

#: How often a program is drawn again whose sizes do not fit.
_TRIES = 200

Maker: TypeAlias = Callable[[Draw, str], Sequence[Value]]


def _dtypes(d: Draw, name: str, count: int) -> DType:
    """An element type that an elementwise primitive takes."""
    found = list(HERE)
    d.r.shuffle(found)
    for dtype in found:
        values = [Value(TensorType(dtype))] * count
        if name == "select":
            values = [Value(TensorType(DType.BOOL)), *values[1:]]
        try:
            PRIMITIVES[name].infer([v.type for v in values], {"dtype": dtype}, [])
        except DelianError:
            continue
        return dtype
    raise Misfit


def _elementwise(d: Draw, name: str) -> Sequence[Value]:
    count = PRIMITIVES[name].operands or 1
    shape, dtype = d.shape(d.r.randrange(4)), _dtypes(d, name, count)
    operands = [d.operand(dtype, shape) for _ in range(count)]
    attrs: dict[str, Any] = {}
    if name == "select":
        operands[0] = d.operand(DType.BOOL, shape)
    if name == "convert":
        attrs["dtype"] = d.r.choice(HERE)
    if name == "bitcast":
        attrs["dtype"] = d.r.choice([k for k in HERE if k.itemsize == dtype.itemsize])
    return [d.b(name, *operands, **attrs)]


def _threefry(d: Draw, name: str) -> Sequence[Value]:
    shape = d.shape(d.r.randrange(3))
    key = shape if d.r.random() < 0.3 else ()
    types = [(DType.U32, s) for s in (key, key, shape, shape)]
    return d.b.emit("threefry", [d.operand(*t) for t in types])


def _constant(d: Draw, name: str) -> Sequence[Value]:
    dtype = d.r.choice(HERE)
    shape = d.shape(d.r.randrange(3), 512)
    value = d.b.constant(np.full(shape, 3).astype(dtype.numpy))
    return [d.b("concat", value, d.operand(dtype, shape), axis=0)] if shape else [value]


def _iota(d: Draw, name: str) -> Sequence[Value]:
    shape = d.shape(d.r.randrange(1, 4))
    dtype = d.r.choice([t for t in NUMERIC if t in HERE])
    made = d.b("iota", dtype=dtype, shape=shape, axis=d.r.randrange(len(shape)))
    return [made if dtype.is_half else d.b("add", made, d.operand(dtype, shape))]


def _reshape(d: Draw, name: str) -> Sequence[Value]:
    shape = list(d.shape(d.r.randrange(4)))
    new = list(shape)
    d.r.shuffle(new)
    if len(new) > 1 and d.r.random() < 0.6:
        new = [new[0] * new[1], *new[2:]]
    return [d.b("reshape", d.operand(d.r.choice(HERE), shape), shape=(*new, 1))]


def _view(d: Draw, name: str) -> Sequence[Value]:
    shape, dtype = d.shape(d.r.randrange(1, 5)), d.r.choice(HERE)
    x = d.operand(dtype, shape)
    axes = list(range(len(shape)))
    if name == "transpose":
        d.r.shuffle(axes)
        return [d.b(name, x, perm=tuple(axes))]
    if name == "reverse":
        return [d.b(name, x, axes=tuple(a for a in axes if d.r.random() < 0.6))]
    wider = [d.r.choice([n, d.size(64)]) if n == 1 else n for n in shape]
    return [d.b("broadcast", x, shape=(*wider, d.size(16)), dims=tuple(axes))]


def _slice(d: Draw, name: str) -> Sequence[Value]:
    shape = d.shape(d.r.randrange(1, 4))
    start = [d.r.choice([0, n, d.r.randint(0, n)]) for n in shape]
    stop = [d.r.choice([n, a, d.r.randint(a, n)]) for a, n in zip(start, shape, strict=True)]
    step = [d.r.choice([1, 1, 2, 3, n + 1, SIZE_MAX, 2**33 + 1]) for n in shape]
    x = d.operand(d.r.choice(HERE), shape)
    return [d.b("slice", x, start=tuple(start), stop=tuple(stop), step=tuple(step))]


def _pad(d: Draw, name: str) -> Sequence[Value]:
    shape, dtype = d.shape(d.r.randrange(1, 4), 512), d.r.choice(HERE)
    low, high = ([d.r.choice([0, 0, 1, 2, 17]) for _ in shape] for _ in range(2))
    ends = (SIZE_MAX, SIZE_MAX - 1, 2**33)
    interior = [d.r.choice([0, 0, 1, 3, *(ends if n <= 1 else ())]) for n in shape]
    attrs = {"low": tuple(low), "high": tuple(high), "interior": tuple(interior)}
    return [d.b("pad", d.operand(dtype, shape), d.operand(dtype, ()), **attrs)]


def _concat(d: Draw, name: str) -> Sequence[Value]:
    shape, dtype = list(d.shape(d.r.randrange(1, 4), 2048)), d.r.choice(HERE)
    axis, parts = d.r.randrange(len(shape)), []
    for _ in range(d.r.randrange(1, 5)):
        shape[axis] = d.size(33)
        parts.append(d.operand(dtype, shape))
    return [d.b("concat", *parts, axis=axis)]


def _window(d: Draw, name: str) -> Sequence[Value]:
    shape, dtype = d.shape(d.r.randrange(4)), d.r.choice(HERE)
    sizes = tuple(d.r.choice([n, 0, d.r.randint(0, n)]) for n in shape)
    x = d.operand(dtype, shape)
    if name == "dynamic_slice":
        return [d.b(name, x, *d.starts(len(shape)), sizes=sizes)]
    return [d.b(name, x, d.operand(dtype, sizes), *d.starts(len(shape)))]


def _indexed(d: Draw, name: str) -> Sequence[Value]:
    shape = list(d.shape(d.r.randrange(1, 4), 4096))
    axis = d.r.randrange(len(shape))
    dtype = d.r.choice([k for k in HERE if not name.startswith("put") or k in NUMERIC])
    index = d.r.choice(INTS)
    if name.endswith(("along", "along_add")):
        at = [*shape]
        at[axis] = d.size(33)
        updates = tuple(at)
    else:
        at = list(d.shape(d.r.randrange(3), 64))
        updates = (*shape[:axis], *at, *shape[axis + 1 :])
    operands = [d.operand(dtype, shape), d.operand(index, at)]
    if name.startswith("put"):
        operands.append(d.operand(dtype, updates))
    return [d.b(name, *operands, axis=axis)]


def _reduced(d: Draw, name: str) -> Sequence[Value]:
    shape = d.shape(d.r.randrange(1, 5))
    dtype = d.r.choice([k for k in HERE if k in NUMERIC or name in ("reduce_max", "argmax")])
    x = d.operand(dtype, shape)
    if name.startswith("reduce"):
        axes = tuple(i for i in range(len(shape)) if d.r.random() < 0.5)
        return [d.b(name, x, axes=axes)]
    return [d.b(name, x, axis=d.r.randrange(len(shape)))]


_ROWS_BY_COLUMNS: Mapping[str, Any] = {
    **{"contract_a": (1,), "contract_b": (0,)},
    **{"batch_a": (), "batch_b": ()},
}


def _dot(d: Draw, name: str) -> Sequence[Value]:
    way = d.r.randrange(8)
    if way < 3:
        return (_repeated, _trained, _expanded)[way](d)
    dtype = d.r.choice([F32] * 6 + [k for k in NUMERIC if k in HERE])
    m, n, k = (d.size(128) for _ in range(3))
    if d.r.random() < 0.3:
        m, n, k = (d.r.choice([a, b]) for a, b in ((m, 1), (n, 1), (k, 300)))
    batch = () if d.r.random() < 0.6 else d.shape(d.r.randrange(1, 3), 16)
    turned = d.r.random() < 0.5, d.r.random() < 0.5
    x, y = (k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n)
    at = len(batch)
    made = d.b(
        "dot",
        d.operand(dtype, (*batch, *x)),
        d.operand(dtype, (*batch, *y)),
        contract_a=(at if turned[0] else at + 1,),
        contract_b=(at + 1 if turned[1] else at,),
        batch_a=tuple(range(at)),
        batch_b=tuple(range(at)),
    )
    if dtype is F32 and not batch and d.r.random() < 0.4:
        return [_descended(d, made)]
    return [made]


def _descended(d: Draw, made: Value) -> Value:
    """A step of descent: a matrix less a multiple of the product."""
    matrix, rate = d.param(made.tensor), d.param(TensorType(F32))
    scaled = d.b("mul", made, d.b("broadcast", rate, shape=made.shape, dims=()))
    return d.b("sub" if d.r.random() < 0.7 else "add", matrix, scaled)


def _repeated(d: Draw) -> Sequence[Value]:
    """A loop in which one matrix meets few rows in every trip: it is packed before the loop."""
    rows, n = d.size(64, 1), d.size(100, 1)
    state, kernel = TensorType(F32, (rows, n)), TensorType(F32, (n, n))
    body = Builder([TensorType(I64), kernel, state])
    _, w, h = body.params
    region = body.finish([body("tanh", body("dot", h, w, **_ROWS_BY_COLUMNS))])
    lo, hi = d.b.constant(0, I64), d.param(TensorType(I64), small=True)
    operands = [lo, hi, d.operand(F32, kernel.shape), d.operand(F32, state.shape)]
    return d.b.emit("for", operands, {"consts": 1}, (region,))


def _trained(d: Draw) -> Sequence[Value]:
    """Both gradients of a dense layer: its weights are read for one product, and another is added
    to them where they lie.
    """
    rows, inputs, outputs = d.size(33, 1), d.size(65, 1), d.size(100, 1)
    shapes = ((inputs, outputs), (rows, inputs), (rows, outputs), ())
    w, x, y, rate = (d.param(TensorType(F32, shape)) for shape in shapes)
    columns: dict[str, Any] = {"contract_a": (1,), "contract_b": (1,), "batch_a": (), "batch_b": ()}
    batch: dict[str, Any] = {"contract_a": (0,), "contract_b": (0,), "batch_a": (), "batch_b": ()}
    back = d.b("dot", y, w, **columns)
    g = d.b("mul", d.b("broadcast", rate, shape=w.shape, dims=()), d.b("dot", x, y, **batch))
    return [d.b(d.r.choice(["sub", "add"]), w, g), back]


def _expanded(d: Draw) -> Sequence[Value]:
    """A weight in few bits, or a part of it, as the second operand of one product or of two: each
    computes it while it is packed.
    """
    rows, columns = d.r.choice([(64, 64), (33, 130), (300, 17), (100, 65), (48, 100), (2, 2500)])
    if d.r.random() < 0.3:
        codes = d.operand(DType.U8, (rows, 1, -(-columns // 2)))
        weight = _nibbles(d, codes)
        weight = d.b("slice", weight, start=(0, 0), stop=(rows, columns), step=(1, 1))
    else:
        narrow = d.r.choice([k for k in HERE if k in NUMERIC and k.itemsize <= 2])
        weight = d.b("convert", d.operand(narrow, (rows, columns)), dtype=F32)
        scales, dims = d.r.choice([((rows,), (0,)), ((columns,), (1,)), ((), ())])
        scale = d.b("broadcast", d.param(TensorType(F32, scales)), shape=weight.shape, dims=dims)
        weight = d.b("mul", weight, scale)
    if d.r.random() < 0.4:
        start = tuple(d.r.randint(0, n // 3) for n in weight.shape)
        stop = tuple(n - d.r.randint(0, n // 3) for n in weight.shape)
        weight = d.b("slice", weight, start=start, stop=stop, step=(1, 1))
    made = []
    for contracted in d.r.choice([(0,), (1,), (0, 1)]):
        x = d.operand(F32, (d.size(65), weight.shape[contracted]))
        attrs = {"contract_a": (1,), "contract_b": (contracted,), "batch_a": (), "batch_b": ()}
        made.append(d.b("dot", x, weight, **attrs))
    return made


def _nibbles(d: Draw, codes: Value) -> Value:
    """Codes of 4 bits, two a byte, u8[rows, groups, half], as f32[rows, groups * 2 * half]."""
    rows, groups, half = codes.shape
    whole = (rows, groups, 2, half)
    pairs = d.b("convert", d.b("broadcast", codes, shape=whole, dims=(0, 1, 3)), dtype=DType.I32)
    shifts = d.b.constant(np.array([0, 4], np.int32))
    low = d.b("shr", pairs, d.b("broadcast", shifts, shape=whole, dims=(2,)))
    mask = d.b("broadcast", d.b.constant(np.int32(15)), shape=whole, dims=())
    made = d.b("convert", d.b("and", low, mask), dtype=F32)
    scales = d.b("broadcast", d.operand(F32, (rows, groups)), shape=whole, dims=(0, 1))
    return d.b("reshape", d.b("mul", made, scales), shape=(rows, groups * 2 * half))


def _attention(d: Draw, name: str) -> Sequence[Value]:
    dtype = d.r.choice([F32, F32, F32, DType.F64])
    n, h = d.r.choice([1, 1, 2, 3]), d.r.choice([1, 2, 3])
    t, s = d.r.choice([1, 2, 5, 31, 33, 47, 65, 97]), d.r.choice([1, 3, 8, 33, 64, 129, 257, 260])
    k, e = d.r.choice([1, 3, 8, 16, 17, 33]), d.r.choice([1, 4, 9, 16, 33])
    shapes = [(n, t, h, k), (n, s, h, k), (n, s, h, e)]
    if name == "attention_grad":
        shapes += [(n, t, h), (n, t, h), (n, t, h, e)]
    operands = [d.operand(dtype, shape) for shape in shapes]
    if d.r.random() < 0.5:
        mask = (d.r.choice([1, n]), d.r.choice([1, h]), d.r.choice([1, t]), s)
        operands.append(d.operand(DType.BOOL, mask))
    return d.b.emit(name, operands, {"causal": d.r.random() < 0.5})


def _solved(d: Draw, name: str) -> Sequence[Value]:
    dtype, n = d.r.choice([F32, DType.F64]), d.r.choice([1, 2, 3, 7, 16, 33])
    batch = d.shape(d.r.randrange(3), 6)
    operands = [d.operand(dtype, (*batch, n, n))]
    attrs = {"lower": d.r.random() < 0.5} if name == "triangular_solve" else {}
    if name.endswith("solve"):
        operands.append(d.operand(dtype, (*batch, n, d.size(33))))
    return d.b.emit(name, operands, attrs)


def _axis(d: Draw, window: int) -> tuple[int, int, tuple[int, int]]:
    """The size, the stride and the padding of one axis of an image; some far from all sense."""
    size = d.r.choice([0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24])
    kind = d.r.randrange(8)
    pads = [0, 0, 1, 2, window - 1, window, 9, 30]
    stride, low, high = d.r.choice([1, 1, 1, 2, 3, 4]), d.r.choice(pads), d.r.choice(pads)
    if kind == 0:
        stride = d.r.choice([STRIDE_MAX, STRIDE_MAX - 1, 4096, size + 1, size + low or 1, window])
    if kind == 1:
        low = d.r.choice([window + size, size, 100, 257])
        stride = d.r.choice([stride, low, low + 1, 50])
    if kind == 2:
        high = d.r.choice([100, 257, 4096])
        stride = d.r.choice([stride, 64, 4095, 4096, 4097])
    if kind == 3 and d.r.random() < 0.2:
        low, high = d.r.choice([PADDING_MAX, 2**20, 4097]), d.r.choice([PADDING_MAX, 0])
        stride = d.r.choice([STRIDE_MAX, STRIDE_MAX - 1])
    return size, max(stride, 1), (low, high)


def _image(d: Draw) -> tuple[list[int], list[int], list[int], dict[str, Any]]:
    """Sizes of an image, a kernel, and what comes of them; strides and padding."""
    windows = [d.r.choice([1, 2, 3, 3, 3, 5, 7]) for _ in range(2)]
    if d.r.random() < 0.3:  # as by tiles
        windows = [d.r.choice([3, 5])] * 2
    axes = [_axis(d, w) for w in windows]
    if d.r.random() < 0.3:
        axes = [(d.r.choice([4, 5, 8, 11, 17]), 1, (w // 2, w // 2)) for w in windows]
    out = [
        (size + sum(pads) - w) // stride + 1
        for (size, stride, pads), w in zip(axes, windows, strict=True)
    ]
    if min(out) < 1:
        raise Misfit
    attrs = {"strides": tuple(a[1] for a in axes), "padding": tuple(a[2] for a in axes)}
    return [a[0] for a in axes], windows, out, attrs


def _convolution(d: Draw, name: str) -> Sequence[Value]:
    dtype = d.r.choice([F32] * 7 + [DType.F64, DType.F16])
    size, windows, out, attrs = _image(d)
    n, c, o = d.r.choice([0, 1, 1, 2, 3]), d.size(40), d.size(40)
    if d.r.random() < 0.3:
        c, o = d.r.choice([16, 32]), d.r.choice([16, 32, 48])
    each = c
    if name.startswith("grouped"):
        groups = d.r.choice([1, 2, 3, 5, 16, 17, 33])
        each, times = d.r.choice([(1, 1), (1, 1), (1, 1), (1, 2), (2, 3), (0, 1)])
        c, o = groups * each, groups * times
        attrs["groups"] = groups
    x, k, y = (n, *size, c), (*windows, each, o), (n, *out, o)
    if name.endswith("input_grad"):
        operands, attrs["input_size"] = (y, k), tuple(size)
    elif name.endswith("weight_grad"):
        operands, attrs["kernel_size"] = (x, y), tuple(windows)
    else:
        operands = (x, k)
    return [d.b(name, *(d.operand(dtype, s) for s in operands), **attrs)]


def _quantised(d: Draw, name: str) -> Sequence[Value]:
    n, c, o = d.r.choice([0, 1, 2]), 4 * d.r.choice([0, 1, 1, 2, 4]), d.size(40)
    size, windows = ([d.r.choice([1, 2, 3, 5]) for _ in range(2)] for _ in range(2))
    size = [w + d.r.choice([0, 0, 1, 7]) for w in windows]
    strides = tuple(d.r.choice([1, 1, 2, 3, STRIDE_MAX]) for _ in range(2))
    x, k = (n, *size, c), (*windows, c // 4, o, 4)
    return [d.b(name, d.operand(DType.U8, x), d.operand(DType.U8, k), strides=strides)]


# Lists and regions


def _list_type(d: Draw, depth: int = 0) -> ListType:
    dtype = d.r.choice([k for k in HERE if k in NUMERIC])
    element: Type = TensorType(dtype, d.shape(d.r.randrange(3), 64))
    if depth < 1 and d.r.random() < 0.25:
        element = _list_type(d, depth + 1)
    lanes = tuple(d.r.choice([1, 2, 3, 7]) for _ in range(d.r.choice([0, 0, 1, 2])))
    return ListType(element, lanes)


def _item(d: Draw, type_: Type) -> Value:
    """A value to push: a tensor, or a list with something in it."""
    if isinstance(type_, TensorType):
        return d.operand(type_.dtype, type_.shape)
    return _filled(d, type_, d.r.choice([0, 1, 2]))


def _filled(d: Draw, type_: ListType, count: int) -> Value:
    stack = d.b("list_empty", type=type_)
    for _ in range(count):
        stack = d.b("list_push", stack, _item(d, type_.item))
    return stack


def _tensors_of(d: Draw, stack: Value, count: int) -> list[Value]:
    """What is popped of a list, down to tensors."""
    found: list[Value] = []
    for _ in range(count):
        stack, top = d.b.emit("list_pop", (stack,))
        found += [top] if isinstance(top.type, TensorType) else _tensors_of(d, top, 2)
    return found


def _list(d: Draw, name: str) -> Sequence[Value]:
    type_ = _list_type(d)
    if name == "list_take" and not math.prod(type_.lanes):
        raise Misfit
    stack = _filled(d, type_, d.r.choice([0, 1, 2, 4]))
    if name == "list_add":
        stack = d.b(name, stack, _filled(d, type_, d.r.choice([0, 1, 3])))
    elif name == "list_select":
        other = _filled(d, type_, d.r.choice([0, 1, 3]))
        stack = d.b(name, d.operand(DType.BOOL, type_.lanes), stack, other)
    elif name == "list_take":
        at = tuple(d.r.choice([1, 2, 5]) for _ in range(d.r.choice([1, 2])))
        stack = d.b(name, stack, d.operand(I64, at))
    elif d.r.random() < 0.5:
        stack = _looped(d, stack)
    return _tensors_of(d, stack, d.r.choice([1, 2, 5]))


def _looped(d: Draw, stack: Value) -> Value:
    """Pushes in a loop of a number of rounds that only the running program knows."""
    assert isinstance(stack.type, ListType)
    item = _item(d, stack.type.item)
    body = Builder([TensorType(I64), item.type, stack.type])
    _, one, carry = body.params
    region = body.finish([body("list_push", carry, one)])
    lo, hi = d.b.constant(0, I64), d.param(TensorType(I64), small=True)
    return d.b.emit("for", (lo, hi, item, stack), {"consts": 1}, (region,))[0]


def _region(d: Draw, types: Sequence[TensorType], index: bool = False) -> Any:
    """A block that changes each of some tensors."""
    b = Builder([*([TensorType(I64)] if index else []), *types])
    results = []
    for x in b.params[1:] if index else b.params:
        way = d.r.randrange(3)
        if x.dtype not in NUMERIC or x.dtype.is_half or way == 0:
            results.append(x)
        elif way == 1 or not x.shape:
            results.append(b("neg", x))
        else:
            results.append(b("reverse", b("add", x, x), axes=(0,)))
    return b.finish(results)


def _control(d: Draw, name: str) -> Sequence[Value]:
    types = [
        TensorType(d.r.choice(HERE), d.shape(d.r.randrange(3), 256))
        for _ in range(d.r.randrange(1, 4))
    ]
    args = [d.operand(t.dtype, t.shape) for t in types]
    if name == "if":
        pred = d.param(TensorType(DType.BOOL))
        return d.b.emit(name, (pred, *args), {}, [_region(d, types) for _ in range(2)])
    if name == "switch":
        index = d.param(TensorType(I64))
        count = d.r.randrange(1, 5)
        return d.b.emit(name, (index, *args), {}, [_region(d, types) for _ in range(count)])
    if name == "for":
        hi = d.param(TensorType(I64), small=True)
        lo = d.r.choice([d.b.constant(0, I64), d.param(TensorType(I64), small=True)])
        region = _region(d, types, index=True)
        return d.b.emit(name, (lo, hi, *args), {"consts": 0}, (region,))
    if name == "while":
        left = d.param(TensorType(I64), small=True)
        cond = Builder([left.type, *types])
        zero = cond.constant(0, I64)
        test = cond.finish([cond("lt", zero, cond.params[0])])
        body = Builder([left.type, *types])
        less = body("sub", body.params[0], body.constant(1, I64))
        inner = body.inline(_region(d, types), body.params[1:])
        return d.b.emit(name, (left, *args), {"consts": 0}, (test, body.finish([less, *inner])))
    floats = [t for t in types if t.dtype.is_float]
    primal = _region(d, types)
    reverse = Builder([*floats, *floats])
    back = reverse.finish(reverse.params[: len(floats)])
    forward = Builder(types)
    made = forward.inline(primal, forward.params)
    kept = [p for p in forward.params if p.dtype.is_float]
    regions = (primal, forward.finish([*made, *kept]), back)
    return d.b.emit("custom_vjp", args, {}, regions)


_OTHERS: Mapping[str, Maker] = {
    "threefry": _threefry,
    "constant": _constant,
    "iota": _iota,
    "reshape": _reshape,
    **dict.fromkeys(("transpose", "reverse", "broadcast"), _view),
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    **dict.fromkeys(("dynamic_slice", "dynamic_update"), _window),
    **dict.fromkeys(("take", "put_add", "take_along", "put_along_add"), _indexed),
    **dict.fromkeys(("reduce_sum", "reduce_prod", "reduce_max", "reduce_min"), _reduced),
    **dict.fromkeys(("argmax", "argmin", "argsort", "cumsum"), _reduced),
    "dot": _dot,
    **dict.fromkeys(("attention", "attention_grad"), _attention),
    **dict.fromkeys(("cholesky", "solve", "triangular_solve", "slogdet"), _solved),
    **{
        f"{family}{which}": _convolution
        for family in ("conv", "grouped_conv")
        for which in ("", "_input_grad", "_weight_grad")
    },
    "quantised_conv": _quantised,
    **dict.fromkeys(("list_empty", "list_push", "list_pop"), _list),
    **dict.fromkeys(("list_add", "list_select", "list_take"), _list),
    **dict.fromkeys(("if", "switch", "while", "for", "custom_vjp"), _control),
}
#: What draws programs of each primitive.
MAKERS: Mapping[str, Maker] = {
    **{name: _elementwise for name, row in PRIMITIVES.items() if row.c is not None},
    **_OTHERS,
}
#: How many times as often as others these are drawn: they have kernels of their own.
OFTEN: Mapping[str, int] = {
    **{name: 6 for name in MAKERS if "conv" in name},
    "dot": 18,
    **dict.fromkeys(("attention", "attention_grad", "quantised_conv"), 3),
}


def draw(name: str, seed: int) -> Function:
    """The program of a primitive and a seed, as a device takes one: encoded, decoded, verified."""
    r = random.Random(f"{name} {seed}")
    for _ in range(_TRIES):
        d = Draw(r)
        try:
            made = list(MAKERS[name](d, name))
            made = [d.followed(v) for v in made] if len(made) < 2 else made
            tensors = [v for v in made if isinstance(v.type, TensorType)]
            if d.b.params and _fits(d):
                block = d.b.finish(tensors)
                names = tuple(d.names), tuple(f"r{i}" for i in range(len(tensors)))
                types = [v.type for v in tensors]
                own = [i for i, p in enumerate(d.b.params) if p.type in types]
                donated = frozenset(i for i in own if r.random() < 0.7)
                function = Function(f"{name}_{seed}", block, *names, donated)
                return decode_function(encode_function(function), LIMITS)
        except (Misfit, DelianError):
            continue
    raise AssertionError(f"no sizes fit {name} and seed {seed}")


#: What a program may take here: working memory and all.
LIMITS = Limits(tensor_bytes_max=64 * ELEMENTS_MAX, working_bytes_max=1 << 26)


def _fits(d: Draw) -> bool:
    work = sum(PRIMITIVES[op.name].cost(op) for op in d.b.ops if not op.regions)
    shapes = [v.shape for op in d.b.ops for v in op.results if isinstance(v.type, TensorType)]
    return work <= WORK_MAX and all(math.prod(s) <= 4 * ELEMENTS_MAX for s in shapes)
