"""Convolution in two dimensions and its two partial derivatives.

The three are one trilinear form T(x, k, y) = sum(conv(x, k) * y), each the gradient of T by one of
its arguments. So the derivatives of each are the other two, and any order stays within the three.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..ir import Array, Blocks, Builder, Op, TensorType, Type, Types, Value
from . import batching
from .rules import bilinear, one_result, widen
from .table import Attrs, CostRule, InferRule, Primitive
from .type_checks import FLOATS, fail, int_tuple, tensor

NumPy: TypeAlias = Callable[[Array, Array, Attrs], Array]


def _geometry(name: str, attrs: Attrs) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Strides and padding, one for each axis of an image."""
    strides, padding = int_tuple(name, attrs, "strides", 2), attrs["padding"]
    if [len(edges) for edges in padding] != [2, 2]:
        fail(name, f"padding must be ((low, high), (low, high)), not {padding}")
    return strides, padding


def out_size(name: str, size: Sequence[int], kernel: Sequence[int], attrs: Attrs) -> list[int]:
    """The two sizes of the output."""
    strides, padding = _geometry(name, attrs)
    out = []
    for n, k, stride, (low, high) in zip(size, kernel, strides, padding, strict=True):
        room = n + low + high - k
        if room < 0 or k < 1:
            fail(name, f"a kernel of {k} does not fit {n} elements with padding ({low}, {high})")
        out.append(room // stride + 1)
    return out


def _operands(name: str, types: Types, first: str, second: str) -> tuple[TensorType, TensorType]:
    a, b = tensor(name, types[0], FLOATS, first), tensor(name, types[1], FLOATS, second)
    if a.dtype is not b.dtype:
        fail(name, f"element types of {a} and {b} differ", "convert one of them")
    if len(a.shape) != 4 or len(b.shape) != 4:
        fail(name, f"{first} and {second} must have rank 4, not {a} and {b}")
    return a, b


def _groups(name: str, attrs: Attrs, channels: int, outputs: int) -> int:
    groups: int = attrs.get("groups", 1)
    if groups > max(outputs, 1):
        fail(name, f"groups must be an int from 1 to {max(outputs, 1)}, not {groups}")
    if channels % groups or outputs % groups:
        fail(name, f"{channels} and {outputs} channels do not fall into {groups} groups")
    return groups


def _type_rules(name: str, layout: str) -> tuple[InferRule, InferRule, InferRule]:
    """The type rules of a convolution, its gradient by the input and that by the kernel."""
    image, kernel, cotangent = (
        "the input [N,H,W,C]",
        f"the kernel {layout}",
        "the cotangent [N,OH,OW,O]",
    )
    of_input, of_kernel = f"{name}_input_grad", f"{name}_weight_grad"

    def output(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
        x, k = _operands(name, types, image, kernel)
        groups = _groups(name, attrs, x.shape[3], k.shape[3])
        if x.shape[3] != k.shape[2] * groups:
            takes = f"{k.shape[2]} in each of {groups} groups" if "groups" in attrs else k.shape[2]
            fail(name, f"the input {x} has {x.shape[3]} channels, the kernel {k} takes {takes}")
        out = out_size(name, x.shape[1:3], k.shape[:2], attrs)
        return (TensorType(x.dtype, (x.shape[0], *out, k.shape[3])),)

    def input_grad(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
        y, k = _operands(of_input, types, cotangent, kernel)
        groups = _groups(of_input, attrs, 0, k.shape[3])
        size = int_tuple(of_input, attrs, "input_size", 2)
        if y.shape[3] != k.shape[3]:
            channels = f"has {y.shape[3]} channels, the kernel {k} gives {k.shape[3]}"
            fail(of_input, f"the cotangent {y} {channels}")
        if tuple(out_size(of_input, size, k.shape[:2], attrs)) != y.shape[1:3]:
            fail(of_input, f"an input of {size} does not give {y} with the kernel {k}")
        return (TensorType(y.dtype, (y.shape[0], *size, k.shape[2] * groups)),)

    def weight_grad(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
        x, y = _operands(of_kernel, types, image, cotangent)
        groups = _groups(of_kernel, attrs, x.shape[3], y.shape[3])
        size = int_tuple(of_kernel, attrs, "kernel_size", 2)
        if x.shape[0] != y.shape[0]:
            fail(of_kernel, f"the input {x} and the cotangent {y} differ in batch size")
        if tuple(out_size(of_kernel, x.shape[1:3], size, attrs)) != y.shape[1:3]:
            fail(of_kernel, f"the input {x} does not give {y} with a kernel of {size}")
        return (TensorType(x.dtype, (*size, x.shape[3] // groups, y.shape[3])),)

    return output, input_grad, weight_grad


def taps(
    kernel: Sequence[int], out: Sequence[int], strides: Sequence[int]
) -> Iterator[tuple[int, int, tuple[slice, ...]]]:
    """For each element of the kernel, the part of the padded input that it meets."""
    (kh, kw), (oh, ow), (sh, sw) = kernel, out, strides
    for i in range(kh):
        for j in range(kw):
            rows = slice(i, i + (oh - 1) * sh + 1, sh)
            yield i, j, (slice(None), rows, slice(j, j + (ow - 1) * sw + 1, sw))


def padded_input(x: Array, padding: Sequence[tuple[int, int]]) -> Array:
    """Images with zeros around them, widened."""
    return np.pad(widen(x), ((0, 0), *padding, (0, 0)))


def _conv(x: Array, k: Array, attrs: Attrs) -> Array:
    out = out_size("conv", x.shape[1:3], k.shape[:2], attrs)
    padded, kernel = padded_input(x, attrs["padding"]), widen(k)
    y = np.zeros((x.shape[0], *out, k.shape[3]), padded.dtype)
    for i, j, part in taps(k.shape[:2], out, attrs["strides"]):
        y += padded[part] @ kernel[i, j]
    return y.astype(x.dtype)


def _input_grad(y: Array, k: Array, attrs: Attrs) -> Array:
    (height, width), padding = attrs["input_size"], attrs["padding"]
    kernel, cotangent = widen(k), widen(y)
    x = np.zeros((y.shape[0], height, width, k.shape[2]), kernel.dtype)
    padded = np.pad(x, ((0, 0), *padding, (0, 0)))
    for i, j, part in taps(k.shape[:2], y.shape[1:3], attrs["strides"]):
        padded[part] += cotangent @ kernel[i, j].T
    top, left = padding[0][0], padding[1][0]
    return padded[:, top : top + height, left : left + width].astype(y.dtype)


def _weight_grad(x: Array, y: Array, attrs: Attrs) -> Array:
    padded, cotangent = padded_input(x, attrs["padding"]), widen(y)
    k = np.zeros((*attrs["kernel_size"], x.shape[3], y.shape[3]), padded.dtype)
    for i, j, part in taps(attrs["kernel_size"], y.shape[1:3], attrs["strides"]):
        k[i, j] = np.tensordot(padded[part], cotangent, axes=((0, 1, 2), (0, 1, 2)))
    return k.astype(x.dtype)


def multiply_adds(y: Sequence[int], k: Sequence[int]) -> int:
    """The work of all three: an element of y meets each of the kernel that leads to its channel."""
    return 2 * math.prod(y) * math.prod(k[:3])


#: Numbers that a row of a packed matrix is padded to, and lanes of the widest vector.
_PANEL, _LANES_MAX = 32, 16
_FLOAT, _DOUBLE = 4, 8


def workspace(op: Op) -> int:
    """The images with their padding, in f64; or one image's frames and the packed kernel, in f32.

    A gradient by the input works in a frame of the cotangent that has a row for each row of x and
    of the kernel.
    """
    inner = op.name.endswith("_input_grad")
    weights = op.name.endswith("_weight_grad")
    x = op.result.shape if inner else op.operands[0].shape
    y = op.operands[0].shape if inner else op.operands[1].shape if weights else op.result.shape
    k = op.result.shape if weights else op.operands[1].shape
    (top, bottom), (left, right) = op.attrs["padding"]
    images = max(x[0], 1)
    taken: int = images * (x[1] + top + bottom) * (x[2] + left + right) * x[3] * _DOUBLE
    if op.name.startswith("grouped") and y[3] < _LANES_MAX:  # with the lanes of a vector
        taken += images * _FLOAT * _LANES_MAX * (x[1] * x[2] + y[1] * y[2])
    if inner:
        taken += _FLOAT * (x[1] + k[0]) * (x[2] + k[1]) * y[3]
    if weights:
        taken += _FLOAT * y[1] * y[2] * (y[3] + _PANEL)
    return taken + 2 * _FLOAT * k[0] * k[1] * (k[2] + _PANEL) * (k[3] + _PANEL)


def family(
    name: str,
    shared: tuple[str, ...],
    layout: str,
    references: tuple[NumPy, NumPy, NumPy],
) -> tuple[Primitive, Primitive, Primitive]:
    """The rows of a convolution and its two gradients, each with the others as derivatives.

    They are (x, k) -> y, by the input (y, k) -> x, and by the kernel (x, y) -> k. shared:
    attributes of all three. layout: the kernel's. references: in that order.
    """

    def again(b: Builder, op: Op, which: str, u: Value, v: Value, **more: Any) -> Value:
        return b(name + which, u, v, **{key: op.attrs[key] for key in shared}, **more)

    def y_of(b: Builder, op: Op, x: Value, k: Value) -> Value:
        return again(b, op, "", x, k)

    def x_of(b: Builder, op: Op, y: Value, k: Value, like: Value) -> Value:
        return again(b, op, "_input_grad", y, k, input_size=like.shape[1:3])

    def k_of(b: Builder, op: Op, x: Value, y: Value, like: Value) -> Value:
        return again(b, op, "_weight_grad", x, y, kernel_size=like.shape[:2])

    rules = (
        bilinear(
            lambda b, op, g: x_of(b, op, g, op.operands[1], op.operands[0]),
            lambda b, op, g: k_of(b, op, op.operands[0], g, op.operands[1]),
        ),
        bilinear(
            lambda b, op, g: y_of(b, op, g, op.operands[1]),
            lambda b, op, g: k_of(b, op, g, op.operands[0], op.operands[1]),
        ),
        bilinear(
            lambda b, op, g: x_of(b, op, op.operands[1], g, op.operands[0]),
            lambda b, op, g: y_of(b, op, op.operands[0], g),
        ),
    )
    costs: tuple[CostRule, CostRule, CostRule] = (
        lambda op: multiply_adds(op.result.shape, op.operands[1].shape),
        lambda op: multiply_adds(op.operands[0].shape, op.operands[1].shape),
        lambda op: multiply_adds(op.operands[1].shape, op.result.shape),
    )
    own: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("", ()),
        ("_input_grad", ("input_size",)),
        ("_weight_grad", ("kernel_size",)),
    )
    first, second, third = (
        Primitive(
            name + which,
            type_,
            one_result(reference),
            *rule,
            cost,
            attrs=(*shared, *more),
            operands=2,
            # Lanes with one kernel are more images; not where the kernel is what is summed.
            batch=None if which == "_weight_grad" else batching.images(1),
            workspace=workspace,
        )
        for (which, more), type_, reference, rule, cost in zip(
            own, _type_rules(name, layout), references, rules, costs, strict=True
        )
    )
    return first, second, third


ROWS = family("conv", ("strides", "padding"), "[KH,KW,C,O]", (_conv, _input_grad, _weight_grad))
