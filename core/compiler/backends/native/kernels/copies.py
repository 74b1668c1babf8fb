"""Copies as C, between strided places and into parts of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....ir import DType, Value
from ....passes.schedule.block_steps import Call
from ....passes.schedule.views import collapse, contiguous_strides, is_whole
from ..names import memory_type

if TYPE_CHECKING:
    from ..emit import FunctionWriter

Lines = list[str]


def at(pointer: str, offset: str) -> str:
    """A pointer, so many elements on."""
    offset = offset.removeprefix("0 + ")
    return pointer if offset == "0" else f"{pointer} + {offset}"


def place_of(w: FunctionWriter, value: Value, size: int) -> str:
    """A rank-0 index as an expression that is in 0..size-1."""
    text = f"(int64_t){w.scalar(value)}"
    low, high = w.ranges.get(value, (-1, size))
    return text if low >= 0 and high < size else f"dl_clamp({text}, {size})"


def element(pointer: str) -> str:
    """The element that a pointer points to."""
    return f"({pointer})[0]"


def copy(
    w: FunctionWriter,
    shape: Sequence[int],
    dtype: DType,
    to: tuple[str, Sequence[int]],
    source: tuple[str, Sequence[int]] | str,
) -> str:
    """A call that copies elements between strided places, or fills them with one number."""
    kind = memory_type(dtype)
    to_pointer, to_strides = to
    if math.prod(shape) == 1:
        return f"({to_pointer})[0] = {source if isinstance(source, str) else element(source[0])};"
    fill = isinstance(source, str)
    from_strides = [0] * len(shape) if isinstance(source, str) else source[1]
    axes = collapse(list(zip(shape, to_strides, from_strides, strict=True)))
    if fill:
        parameter = f"const {kind} x"
        value, argument = "x", str(source)
    else:
        parameter = f"const {kind} *restrict from"
        value, argument = f"from[{index_of(axes, 2)}]", source[0]
    body: Lines
    if not fill and axes and axes[-1][1] == axes[-1][2] == 1:
        size = axes[-1][0] * dtype.itemsize
        outer = axes[:-1]
        body = [f"memcpy(to + {index_of(outer, 1)}, from + {index_of(outer, 2)}, {size});"]
        axes = outer
    else:
        body = [f"to[{index_of(axes, 1)}] = {value};"]
        if axes:
            n = len(axes) - 1
            body = [
                "DL_INDEPENDENT",
                f"for (int64_t i{n} = 0; i{n} < {axes[n][0]}; i{n}++) {body[0]}",
            ]
            axes = axes[:-1]
    text = function_text(f"{kind} *restrict to, {parameter}", nested([a[0] for a in axes], body))
    return f"{w.unit.function('copy', text)}({to_pointer}, {argument});"


def index_of(axes: Sequence[tuple[int, ...]], column: int) -> str:
    terms = [f"i{n} * {a[column]}" for n, a in enumerate(axes) if a[column]]
    return " + ".join(terms) or "0"


def nested(sizes: Sequence[int], body: Lines) -> Lines:
    for n in range(len(sizes) - 1, -1, -1):
        head = f"for (int64_t i{n} = 0; i{n} < {sizes[n]}; i{n}++) {{"
        body = [head, *("  " + line for line in body), "}"]
    return body


def function_text(parameters: str, body: Lines) -> str:
    return f"({parameters}) {{\n" + "\n".join("  " + line for line in body) + "\n}\n"


def source_of(w: FunctionWriter, x: Value) -> tuple[str, Sequence[int]] | str:
    """What to copy a value from: its memory and strides, or the number that it repeats."""
    view = w.schedule.views[x]
    if view.base.shape == ():
        return w.scalar(view.base)
    return at(w.base_pointer(x), str(view.offset)), view.strides


def copy_whole(w: FunctionWriter, x: Value, result: Value) -> Lines:
    """The lines that make the result what x is; none where it lies there already."""
    view = w.schedule.views[x]
    if view.base.shape != () and is_whole(view, x) and w.pointer(x) == w.pointer(result):
        return []
    to = (w.pointer(result), contiguous_strides(result.shape))
    return [copy(w, x.shape, x.dtype, to, source_of(w, x))]


def pad(w: FunctionWriter, call: Call) -> Lines:
    x, value = call.operands
    result = call.op.result
    out = w.pointer(result)
    strides = contiguous_strides(result.shape)
    attrs = call.op.attrs
    lines = [copy(w, (result.tensor.size,), x.dtype, (out, (1,)), w.scalar(value))]
    if x.tensor.size:
        offset = sum(s * low for s, low in zip(strides, attrs["low"], strict=True))
        rows = zip(strides, attrs["interior"], x.shape, strict=True)
        apart = [s * (i + 1) if n > 1 else s for s, i, n in rows]
        lines.append(copy(w, x.shape, x.dtype, (at(out, str(offset)), apart), source_of(w, x)))
    return lines


def concat(w: FunctionWriter, call: Call) -> Lines:
    result, axis = call.op.result, call.op.attrs["axis"]
    strides = contiguous_strides(result.shape)
    lines, offset = [], 0
    for x in call.operands:
        if x.tensor.size:
            to = (at(w.pointer(result), str(offset)), strides)
            lines.append(copy(w, x.shape, x.dtype, to, source_of(w, x)))
        offset += x.shape[axis] * strides[axis]
    return lines


def window(
    w: FunctionWriter,
    starts: Sequence[Value],
    shape: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
) -> str:
    """Where a window begins, moved so that it fits."""
    terms = [
        f"{place_of(w, start, n - size + 1)} * {stride}"
        for start, n, size, stride in zip(starts, shape, sizes, strides, strict=True)
        if n != size
    ]
    return " + ".join(terms) or "0"


def place(w: FunctionWriter, value: Value, begin: str, whole: Value | None = None) -> Lines:
    """Notes where a part of a tensor lies that is read or written there.

    whole: the tensor that it is read from, which may be such a part itself.
    """
    outer = None if whole is None else w.windows.get(w.schedule.views[whole].base)
    begin = begin if outer is None else f"{outer} + {begin}"
    w.count += 1
    w.windows[value] = f"at{w.count}"
    return [f"const int64_t at{w.count} = {begin};"]


def dynamic_slice(w: FunctionWriter, call: Call) -> Lines:
    x, *starts = call.operands
    result = call.op.result
    view = w.schedule.views[x]
    if call.window:
        return place(w, result, window(w, starts, x.shape, result.shape, view.strides), x)
    to = (w.pointer(result), contiguous_strides(result.shape))
    source = source_of(w, x)
    if not isinstance(source, str):
        begin = window(w, starts, x.shape, result.shape, view.strides)
        source = (at(source[0], begin), source[1])
    return [copy(w, result.shape, x.dtype, to, source)]


def dynamic_update(w: FunctionWriter, call: Call) -> Lines:
    result = call.op.result
    strides = contiguous_strides(result.shape)
    if call.opens is not None:
        x, *starts = call.operands
        begin = window(w, starts, x.shape, call.op.operands[1].shape, strides)
        return [*copy_whole(w, x, result), *place(w, call.opens, begin)]
    x, update, *starts = call.operands
    lines = copy_whole(w, x, result)
    if update.tensor.size:
        begin = window(w, starts, x.shape, update.shape, strides)
        to = (at(w.pointer(result), begin), strides)
        lines.append(copy(w, update.shape, x.dtype, to, source_of(w, update)))
    return lines
