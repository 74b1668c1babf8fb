"""Products, convolutions and random bits as operators of ONNX.

Images are [N, H, W, C] in the IR and [N, C, H, W] in ONNX: transposes stand around each
convolution, and two in a row cancel (`GraphMaker.transpose`). ONNX Runtime convolves f32 alone on
its CPU; a convolution of f64 is a sum of matrix products, one a tap of the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....compiler.ir import DType, Op
from ....compiler.primitives import random_bits
from ....compiler.primitives.quantised import TOGETHER
from .export_types import IN_PRODUCT
from .graph_maker import DOMAIN, GraphMaker

#: [N,H,W,C] to [N,C,H,W] and back.
_TO_CHANNELS_FIRST, _TO_CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
#: A kernel [KH,KW,C,O] to ONNX's [O,C,KH,KW].
_KERNEL = (3, 2, 0, 1)


def dot(g: GraphMaker, op: Op) -> str:
    """MatMul of [batch, rows, inner] and [batch, inner, columns]."""
    a, b = op.operands
    at = op.attrs
    dtype = op.result.dtype
    wide = IN_PRODUCT.get(dtype, dtype)
    inner = math.prod(a.shape[i] for i in at["contract_a"])
    if inner == 0:
        return g.zeros(dtype, op.result.shape)

    def free(rank: int, *used: Sequence[int]) -> tuple[int, ...]:
        return tuple(i for i in range(rank) if not any(i in axes for axes in used))

    free_a = free(len(a.shape), at["contract_a"], at["batch_a"])
    free_b = free(len(b.shape), at["contract_b"], at["batch_b"])
    batch = [a.shape[i] for i in at["batch_a"]]
    rows, columns = [a.shape[i] for i in free_a], [b.shape[i] for i in free_b]
    left = g.transpose(g.value(a), (*at["batch_a"], *free_a, *at["contract_a"]))
    right = g.transpose(g.value(b), (*at["batch_b"], *at["contract_b"], *free_b))
    old_left = (*batch, *rows, *(a.shape[i] for i in at["contract_a"]))
    old_right = (*batch, *(b.shape[i] for i in at["contract_b"]), *columns)
    left = g.reshape(left, old_left, (*batch, math.prod(rows), inner))
    right = g.reshape(right, old_right, (*batch, inner, math.prod(columns)))
    left, right = g.cast(left, dtype, wide), g.cast(right, dtype, wide)
    made = g.cast(g.node("MatMul", left, right), wide, dtype)
    return g.reshape(made, (*batch, math.prod(rows), math.prod(columns)), op.result.shape)


def _pads(op: Op) -> list[int]:
    (top, bottom), (left, right) = op.attrs["padding"]
    return [top, left, bottom, right]


def conv(g: GraphMaker, op: Op) -> str:
    """Conv; of f64 a sum over taps."""
    x, k = op.operands
    if _is_empty(op):
        return g.zeros(op.result.dtype, op.result.shape)
    if op.result.dtype is DType.F64:
        return _conv_by_taps(g, op)
    attrs = {"strides": list(op.attrs["strides"]), "pads": _pads(op), "group": _groups(op)}
    images = g.transpose(g.value(x), _TO_CHANNELS_FIRST)
    kernel = g.transpose(g.value(k), _KERNEL)
    return g.transpose(g.node("Conv", images, kernel, **attrs), _TO_CHANNELS_LAST)


def _groups(op: Op) -> int:
    groups: int = op.attrs.get("groups", 1)
    return groups


def _is_empty(op: Op) -> bool:
    return any(v.tensor.size == 0 for v in op.operands)


def input_grad(g: GraphMaker, op: Op) -> str:
    """ConvTranspose; of f64 a sum over taps."""
    y, k = op.operands
    if _is_empty(op):
        return g.zeros(op.result.dtype, op.result.shape)
    if op.result.dtype is DType.F64:
        return _input_grad_by_taps(g, op)
    strides, padding = op.attrs["strides"], op.attrs["padding"]
    # Rows at the end that no window of the kernel reached.
    rest = [
        size + sum(edges) - kernel - stride * (out - 1)
        for size, edges, kernel, stride, out in zip(
            op.attrs["input_size"], padding, k.shape[:2], strides, y.shape[1:3], strict=True
        )
    ]
    attrs = {"strides": list(strides), "pads": _pads(op), "group": _groups(op)}
    images = g.transpose(g.value(y), _TO_CHANNELS_FIRST)
    kernel = g.transpose(g.value(k), _KERNEL)
    made = g.node("ConvTranspose", images, kernel, output_padding=rest, **attrs)
    return g.transpose(made, _TO_CHANNELS_LAST)


def weight_grad(g: GraphMaker, op: Op) -> str:
    """Conv with channels as images, images as channels, and strides as dilations.

    x [N,H,W,G,C/G] as [C/G,G N,H,W] and y [N,OH,OW,O] as [O,N,OH,OW] give [C/G,O,KH,KW], and more
    rows than the kernel has where the stride left some.
    """
    x, y = op.operands
    dtype, groups = op.result.dtype, _groups(op)
    if _is_empty(op):
        return g.zeros(dtype, op.result.shape)
    if dtype is DType.F64:
        return _weight_grad_by_taps(g, op)
    n, h, w, c = x.shape
    by_group = (n, h, w, groups, c // groups)
    turned = g.reshape(g.value(x), x.shape, by_group)
    turned = g.transpose(turned, (4, 3, 0, 1, 2))
    images = g.reshape(turned, (c // groups, groups, n, h, w), (c // groups, groups * n, h, w))
    kernel = g.transpose(g.value(y), (3, 0, 1, 2))
    dilations = list(op.attrs["strides"])
    made = g.node("Conv", images, kernel, dilations=dilations, pads=_pads(op), group=groups)
    kh, kw = op.attrs["kernel_size"]
    made = g.node("Slice", made, *map(g.ints, ([0, 0], [kh, kw], [2, 3])))
    return g.transpose(made, (2, 3, 0, 1))


# f64: one matrix product a tap


def _edges(op: Op) -> list[int]:
    (top, bottom), (left, right) = op.attrs["padding"]
    return [0, top, left, 0, 0, bottom, right, 0]


def _window(g: GraphMaker, x: str, op: Op, i: int, j: int, out: Sequence[int]) -> str:
    """What one tap meets of padded images: [N,OH,OW,C]."""
    (sh, sw), (oh, ow) = op.attrs["strides"], out
    stop = (i + (oh - 1) * sh + 1, j + (ow - 1) * sw + 1)
    return g.node("Slice", x, *map(g.ints, ((i, j), stop, (1, 2), (sh, sw))))


def _tap(g: GraphMaker, k: str, i: int, j: int, shape: Sequence[int]) -> str:
    """One tap of a kernel: [C/G,O]."""
    cut = g.node("Slice", k, *map(g.ints, ((i, j), (i + 1, j + 1), (0, 1))))
    return g.reshape(cut, (1, 1, *shape[2:]), shape[2:])


def _by_group(g: GraphMaker, x: str, shape: Sequence[int], groups: int) -> str:
    """[N,H,W,C] as [G,N H W,C/G]."""
    n, h, w, c = shape
    made = g.reshape(x, shape, (n * h * w, groups, c // groups))
    return g.transpose(made, (1, 0, 2))


def _kernel_by_group(g: GraphMaker, k: str, shape: Sequence[int], groups: int) -> str:
    """[C/G,O] as [G,C/G,O/G]."""
    c, o = shape
    return g.transpose(g.reshape(k, shape, (c, groups, o // groups)), (1, 0, 2))


def _total(g: GraphMaker, terms: Sequence[str]) -> str:
    made = terms[0]
    for term in terms[1:]:
        made = g.node("Add", made, term)
    return made


def _taps(shape: Sequence[int]) -> list[tuple[int, int]]:
    return [(i, j) for i in range(shape[0]) for j in range(shape[1])]


def _ungrouped(g: GraphMaker, x: str, shape: Sequence[int], groups: int) -> str:
    """[G,N H W,C/G] as [N,H,W,C]."""
    n, h, w, c = shape
    made = g.transpose(x, (1, 0, 2))
    return g.reshape(made, (n * h * w, groups, c // groups), shape)


def _conv_by_taps(g: GraphMaker, op: Op) -> str:
    x, k = op.operands
    groups, out = _groups(op), op.result.shape
    padded = g.node("Pad", g.value(x), g.ints(_edges(op)))
    terms = []
    for i, j in _taps(k.shape):
        seen = _window(g, padded, op, i, j, out[1:3])
        rows = _by_group(g, seen, (*out[:3], x.shape[3]), groups)
        tap = _kernel_by_group(g, _tap(g, g.value(k), i, j, k.shape), k.shape[2:], groups)
        terms.append(g.node("MatMul", rows, tap))
    return _ungrouped(g, _total(g, terms), out, groups)


def _weight_grad_by_taps(g: GraphMaker, op: Op) -> str:
    x, y = op.operands
    groups, kernel = _groups(op), op.attrs["kernel_size"]
    padded = g.node("Pad", g.value(x), g.ints(_edges(op)))
    slopes = _by_group(g, g.value(y), y.shape, groups)
    c, o = op.result.shape[2:]
    terms = []
    for i, j in _taps(kernel):
        seen = _window(g, padded, op, i, j, y.shape[1:3])
        rows = _by_group(g, seen, (*y.shape[:3], x.shape[3]), groups)
        tap = g.node("MatMul", g.transpose(rows, (0, 2, 1)), slopes)
        tap = g.reshape(g.transpose(tap, (1, 0, 2)), (c, groups, o // groups), (1, c, o))
        terms.append(tap)
    made = g.node("Concat", *terms, axis=0) if len(terms) > 1 else terms[0]
    return g.reshape(made, (len(terms), c, o), op.result.shape)


def _input_grad_by_taps(g: GraphMaker, op: Op) -> str:
    y, k = op.operands
    groups, (sh, sw) = _groups(op), op.attrs["strides"]
    n, oh, ow, _ = y.shape
    (h, w), c = op.attrs["input_size"], op.result.shape[3]
    (top, bottom), (left, right) = op.attrs["padding"]
    whole = (n, h + top + bottom, w + left + right, c)
    slopes = _by_group(g, g.value(y), y.shape, groups)
    terms = []
    for i, j in _taps(k.shape):
        tap = _kernel_by_group(g, _tap(g, g.value(k), i, j, k.shape), k.shape[2:], groups)
        part = g.node("MatMul", slopes, g.transpose(tap, (0, 2, 1)))
        part = _ungrouped(g, part, (n, oh, ow, c), groups)
        part = _spread(g, part, (n, oh, ow, c), (sh, sw))
        size = ((oh - 1) * sh + 1, (ow - 1) * sw + 1)
        after = (whole[1] - i - size[0], whole[2] - j - size[1])
        terms.append(g.node("Pad", part, g.ints([0, i, j, 0, 0, *after, 0])))
    made = _total(g, terms)
    return g.node("Slice", made, *map(g.ints, ((top, left), (top + h, left + w), (1, 2))))


def _spread(g: GraphMaker, x: str, shape: Sequence[int], strides: Sequence[int]) -> str:
    """Zeros between neighbours: [N,(OH-1) SH + 1,(OW-1) SW + 1,C]."""
    n, oh, ow, c = shape
    sh, sw = strides
    if (sh, sw) == (1, 1):
        return x
    made = g.reshape(x, shape, (n, oh, 1, ow, 1, c))
    made = g.node("Pad", made, g.ints([0, 0, 0, 0, 0, 0, 0, 0, sh - 1, 0, sw - 1, 0]))
    made = g.reshape(made, (n, oh, sh, ow, sw, c), (n, oh * sh, ow * sw, c))
    stop = ((oh - 1) * sh + 1, (ow - 1) * sw + 1)
    return g.node("Slice", made, *map(g.ints, ((0, 0), stop, (1, 2))))


# Bytes and random bits


def quantised_conv(g: GraphMaker, op: Op) -> str:
    """ConvInteger of u8 and the kernel's bytes as i8."""
    x, k = op.operands
    if _is_empty(op):
        return g.zeros(op.result.dtype, op.result.shape)
    kh, kw, fours, o, _ = k.shape
    signed = g.cast(g.value(k), DType.U8, DType.I8)
    kernel = g.transpose(signed, (3, 2, 4, 0, 1))
    kernel = g.reshape(kernel, (o, fours, TOGETHER, kh, kw), (o, fours * TOGETHER, kh, kw))
    images = g.transpose(g.value(x), _TO_CHANNELS_FIRST)
    made = g.node("ConvInteger", images, kernel, strides=list(op.attrs["strides"]))
    return g.transpose(made, _TO_CHANNELS_LAST)


def threefry(g: GraphMaker, op: Op) -> list[str]:
    """A function of the model: its body is long, and draws are many."""
    if THREEFRY not in g.functions:
        g.functions[THREEFRY] = lambda: _threefry_function(g)
    names = [g.value(v) for v in op.operands]
    return g.emit(THREEFRY, names, 2, domain=DOMAIN)


THREEFRY = "Threefry2x32"


def _threefry_function(g: GraphMaker) -> Any:
    """`primitives.random_bits` in nodes: adds, rotations by two shifts, keys every four rounds."""
    helper = g.onnx.helper
    nodes: list[Any] = []
    numbers: dict[int, str] = {}

    def node(op_type: str, *inputs: str, **attrs: Any) -> str:
        name = f"t{len(nodes)}"
        nodes.append(helper.make_node(op_type, list(inputs), [name], **attrs))
        return name

    def number(value: int) -> str:
        if value not in numbers:
            tensor = helper.make_tensor("value", g.onnx.TensorProto.UINT32, (), [value])
            numbers[value] = node("Constant", value=tensor)
        return numbers[value]

    def rotated(x: str, distance: int) -> str:
        left = node("BitShift", x, number(distance), direction="LEFT")
        right = node("BitShift", x, number(32 - distance), direction="RIGHT")
        return node("BitwiseOr", left, right)

    both = node("BitwiseXor", "k0", "k1")
    keys = ("k0", "k1", node("BitwiseXor", both, number(int(random_bits.PARITY))))
    x, y = node("Add", "c0", "k0"), node("Add", "c1", "k1")
    every, rotations = random_bits.ROUNDS_A_KEY, random_bits.ROTATIONS
    for i in range(random_bits.ROUNDS):
        x = node("Add", x, y)
        y = node("BitwiseXor", rotated(y, rotations[i % len(rotations)]), x)
        if i % every == every - 1:
            n = i // every + 1
            x = node("Add", x, keys[n % 3])
            y = node("Add", node("Add", y, keys[(n + 1) % 3]), number(n))
    nodes.append(helper.make_node("Identity", [x], ["r0"]))
    nodes.append(helper.make_node("Identity", [y], ["r1"]))
    opsets = [helper.make_opsetid("", g.opset)]
    return helper.make_function(
        DOMAIN, THREEFRY, ["k0", "k1", "c0", "c1"], ["r0", "r1"], nodes, opsets
    )
