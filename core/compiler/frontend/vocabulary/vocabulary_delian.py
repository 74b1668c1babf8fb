"""Delian's own functions that are primitives to the compiler.

All the others are inlined from their source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import ops, random, tree
from ...ir import DType
from ...ops import image_resize, pooling
from ...traced import ARRAY
from ...tree import within
from .. import complexes, operators
from ..containers import containers
from ..numpy import arithmetic, shapes
from ..numpy.arithmetic import tensor
from ..values import Tensor, describe
from .vocabulary_table import Row

if TYPE_CHECKING:
    from ..specialise import Specialiser


def _map(s: Specialiser, f: Any, tree_: Any, *others: Any) -> Any:
    leaves, structure = tree.flatten(tree_, complexes.is_any)
    columns = [leaves]
    for other in others:
        more, its = tree.flatten(other, complexes.is_any)
        if its != structure:
            text = f"tree.map: the trees differ: {describe(tree_)} and {describe(other)}"
            raise s.error("DL119", text, "all trees must have the same structure as the first")
        columns.append(more)
    made = [s.call(f, *row) for row in zip(*columns, strict=True)]
    return containers.rebuilt(s, structure, made)


def _leaves(s: Specialiser, tree_: Any, is_leaf: Any = None) -> Any:
    def ends(node: Any) -> bool:
        if complexes.is_any(node) or is_leaf is None:
            return complexes.is_any(node)
        test = s.call(is_leaf, node)
        if type(test) is not bool:
            raise s.needs_static(test, "what `is_leaf` of tree.flatten gives")
        return test

    leaves, structure = tree.flatten(tree_, ends)
    return s.own(leaves), structure


def _unflatten(s: Specialiser, structure: Any, leaves: Any) -> Any:
    return operators.python(s, lambda: tree.unflatten(structure, leaves), "`tree.unflatten`")


def _unary(name: str) -> Any:
    def run(s: Specialiser, x: Any) -> Tensor:
        return arithmetic.floating(s, name, x)

    return run


def _stop_gradient(s: Specialiser, x: Any) -> Tensor:
    value = tensor(s, x)
    return Tensor(s.emit("stop_gradient", value.value))


def _conv(s: Specialiser, x: Any, kernel: Any, strides: Any, padding: Any) -> Tensor:
    dtype, _ = arithmetic.result_dtype(s, (x, kernel))
    image, weights = (tensor(s, v, dtype).value for v in (x, kernel))
    return Tensor(s.emit("conv", image, weights, strides=strides, padding=padding))


def _grouped_conv(
    s: Specialiser, x: Any, kernel: Any, strides: Any, padding: Any, groups: Any
) -> Tensor:
    dtype, _ = arithmetic.result_dtype(s, (x, kernel))
    image, weights = (tensor(s, v, dtype).value for v in (x, kernel))
    attrs = {"strides": strides, "padding": padding, "groups": groups}
    return Tensor(s.emit("grouped_conv", image, weights, **attrs))


def _conv_input_grad(
    s: Specialiser, y: Any, kernel: Any, strides: Any, padding: Any, input_size: Any
) -> Tensor:
    dtype, _ = arithmetic.result_dtype(s, (y, kernel))
    image, weights = (tensor(s, v, dtype).value for v in (y, kernel))
    attrs = {"strides": strides, "padding": padding, "input_size": input_size}
    return Tensor(s.emit("conv_input_grad", image, weights, **attrs))


def _attend(
    s: Specialiser, query: Any, key: Any, value: Any, mask: Any = None, causal: Any = False
) -> Tensor:
    dtype, _ = arithmetic.result_dtype(s, (query, key, value))
    # Logarithms of sums pass from the operation to its derivative: halves are too coarse for them.
    wide = DType.F32 if dtype.is_half else dtype
    operands = [tensor(s, v, wide).value for v in (query, key, value)]
    operands += [] if mask is None else [tensor(s, mask).value]
    return tensor(s, Tensor(s.scope.emit("attention", operands, {"causal": causal})[0]), dtype)


def _put_add(s: Specialiser, x: Any, indices: Any, updates: Any, axis: Any = 0) -> Tensor:
    value = tensor(s, x)
    place = shapes.axis_of(s, value, axis)
    new, at = tensor(s, updates, value.dtype), tensor(s, indices)
    return Tensor(s.emit("put_add", value.value, at.value, new.value, axis=place))


def _known(name: str) -> Any:
    """What Python itself computes while compiling, from sizes; no sizes of arrays are unknown."""

    def run(s: Specialiser, *args: Any) -> Any:
        raise s.error("DL119", f"{name} must be known when the program is compiled")

    return run


def _within(s: Specialiser, model: Any, *kinds: Any) -> Any:
    return s.own(operators.python(s, lambda: within(model, *kinds), "`nn.within`"))


def _dynamic_slice(s: Specialiser, x: Any, starts: Any, sizes: Any) -> Tensor:
    value = tensor(s, x)
    windows = operators.static_ints(s, sizes, "a window's size")
    places = _starts(s, value, starts)
    return Tensor(s.emit("dynamic_slice", value.value, *places, sizes=windows), value.weak)


def _dynamic_update(s: Specialiser, x: Any, update: Any, starts: Any) -> Tensor:
    value = tensor(s, x)
    new = tensor(s, update, value.dtype)
    return Tensor(s.emit("dynamic_update", value.value, new.value, *_starts(s, value, starts)))


def _starts(s: Specialiser, x: Tensor, starts: Any) -> list[Any]:
    given = starts if isinstance(starts, tuple | list) else (starts,)
    if len(given) != len(x.shape):
        raise s.error("DL115", f"{describe(x)} needs {len(x.shape)} starts, not {len(given)}")
    return [tensor(s, v, DType.I64).value for v in given]


def _threefry(s: Specialiser, key: Any, c0: Any, c1: Any) -> Any:
    words = tensor(s, key)
    if words.type.dtype is not DType.U32 or words.shape != (2,):
        hint = "make one with delian.random.key(seed)"
        raise s.error("DL119", f"a random key is u32[2], not {describe(words)}", hint)
    halves = [s.subscript(words, k).value for k in (0, 1)]
    shape = arithmetic.broadcast_shapes(s, (c0, c1))
    counters = [arithmetic.materialise(s, v, DType.U32, shape) for v in (c0, c1)]
    y0, y1 = s.scope.emit("threefry", (*halves, *counters))
    return Tensor(y0), Tensor(y1)


def rows() -> list[Row]:
    """A row for each of these functions."""
    known = (
        (tree.map, "tree.map", _map),
        (tree.flatten, "tree.flatten", _leaves),
        (tree.unflatten, "tree.unflatten", _unflatten),
        (ops.sigmoid, "ops.sigmoid", _unary("sigmoid")),
        (ops.erf, "ops.erf", _unary("erf")),
        (ops.stop_gradient, "ops.stop_gradient", _stop_gradient),
        (ops.conv, "ops.conv", _conv),
        (ops.grouped_conv, "ops.grouped_conv", _grouped_conv),
        (ops.attend, "ops.attend", _attend),
        (ops.conv_input_grad, "ops.conv_input_grad", _conv_input_grad),
        (ops.dynamic_slice, "ops.dynamic_slice", _dynamic_slice),
        (ops.dynamic_update, "ops.dynamic_update", _dynamic_update),
        (ops.put_add, "ops.put_add", _put_add),
        (within, "nn.within", _within),
        (random.threefry2x32, "random.threefry2x32", _threefry),
    )
    sizes = (
        (pooling.window_means, "the sizes of adaptive_avg_pool"),
        (image_resize.nearest_places, "the sizes of resize"),
        (image_resize.linear_weights, "the sizes of resize"),
    )
    trees = ("tree.map", "tree.flatten", "tree.unflatten", "nn.within")
    rows = [Row(f, n, h, False, None if n in trees else ARRAY) for f, n, h in known]
    return rows + [Row(f, n, _known(n), True) for f, n in sizes]
