"""Kernels: the calls that are neither fused loops nor control flow.

Each writer gives the lines of C that compute one operation, out of calls to the functions in the
headers and loops in which every size is a constant. All indices are clamped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ....ir import DType, Value
from ....passes.schedule.block_steps import Call, Schedule
from ....passes.schedule.product_layouts import Product, product
from ..epilogues import strip_floats
from ..names import from_memory, literal, local_type, memory_type, wrapping
from . import (
    attention_kernel,
    copies,
    depthwise,
    expanded_products,
    matrix_packing,
    quantised_kernels,
    solver_kernels,
    winograd,
)
from .copies import Lines, at, copy, copy_whole, element, function_text, nested, place, place_of

if TYPE_CHECKING:
    from ..emit import FunctionWriter

#: The sizes of gemm.h, on any processor: columns of a panel, steps of k and panels at a time; the
#: most numbers of a matrix that is packed whole, always, or if it has few rows; the most rows of a
#: result for which the other matrix is.
_PANEL = 32
_PANEL_STEPS = 1024
_PANELS_AT_ONCE = 4
_THIN = 8192
_SHORT, _OUTER = 64, 65536
TURNED_MAX = 32
#: The most rows of a result for which the other matrix is read where it lies, its most numbers
#: there, and the lanes of a vector.
_FEW_ROWS, _CACHE, _LANES = 72, 262144, 16
#: Multiply-adds from which on columns that fill half a vector are worth tiles of their own.
_NARROW_WORK = 1 << 18
#: Multiply-adds of one batch, and of all, from which on batches are given to several threads.
_BATCH_WORK = 1 << 12
_BATCHES_WORK = 1 << 18


# -- working memory


def scratch_bytes(call: Call, schedule: Schedule, tiles: bool = True) -> int:
    """The working memory of a call, in bytes. tiles: as in `emit.Unit`."""
    op = call.op
    if op.name == "dot" and op.result.dtype is DType.F32 and op.result.tensor.size:
        p = product(op, *(schedule.views[v] for v in call.operands))
        if call.expands is not None:
            return 4 * _panels_floats(p.n, p.k)
        if p.m * p.n == 1:
            return 0
        return 4 * _product_scratch(*((1, p.m) if p.n == 1 else (p.m, p.n)), p.k)
    if op.name in _CONVOLUTIONS and op.result.dtype is DType.F32:
        return 4 * _conv_scratch(call, tiles)
    if op.name == "argsort":
        row: int = op.result.shape[op.attrs["axis"]]
        return row * 2 * (8 + op.operands[0].dtype.itemsize)
    if op.name == "for":
        return matrix_packing.scratch_bytes(call)
    if op.name in attention_kernel.KERNELS:
        return attention_kernel.scratch_bytes(call)
    if op.name in depthwise.KERNELS:
        return depthwise.scratch_bytes(call)
    if op.name in solver_kernels.KERNELS:
        return solver_kernels.scratch_bytes(call)
    return 0


def _product_scratch(m: int, n: int, k: int) -> int:
    """Floats that gemm.h packs into, whichever way it goes."""
    most = _panels_floats(n, k)
    if k * n <= (_OUTER if k <= _SHORT else _THIN):
        most = max(most, k * _panels(n))
    if m <= TURNED_MAX and k * m <= _OUTER:
        most = max(most, k * _panels(m))
    if m <= _FEW_ROWS and k * n <= _CACHE:  # the columns that are no whole vector, all steps of k
        most = max(most, k * _LANES)
    return max(most, 1)


def _panels_floats(n: int, k: int) -> int:
    """Floats of a few panels, of as many steps of k as are packed at a time."""
    return min(_panels(n), _PANELS_AT_ONCE * _PANEL) * min(k, _PANEL_STEPS)


_CONVOLUTIONS = frozenset(["conv", "conv_input_grad", "conv_weight_grad"])


def _conv_scratch(call: Call, tiles: bool) -> int:
    """Floats that conv.h works in: packed matrices, then one frame; or winograd.h."""
    d = _conv_sizes(call)
    if tiles and winograd.fits(call.op.name, d):
        return winograd.scratch_floats(call.op.name, d)
    rows, columns = (d["oh"] - 1) * d["sh"] + d["kh"], (d["ow"] - 1) * d["sw"] + d["kw"]
    window = d["kh"] * d["kw"]
    frame = rows * columns * d["c"]
    if call.op.name == "conv":
        strip = strip_floats(d, window * d["c"]) if call.taken else 0
        return window * d["c"] * _panels(d["o"]) + frame + strip
    if call.op.name == "conv_input_grad":
        frame = _reach(d, "h", "kh", "sh", "top") * _reach(d, "w", "kw", "sw", "left") * d["o"]
        kind = -(-d["h"] // d["sh"]) * -(-d["w"] // d["sw"]) * d["c"]
        part = 0 if d["sh"] == d["sw"] == 1 else kind
        return window * d["o"] * (d["c"] + _panels(d["c"])) + frame + part
    return d["oh"] * d["ow"] * _panels(d["o"]) + frame


def _reach(d: Mapping[str, int], size: str, window: str, stride: str, before: str) -> int:
    """One side of the frame of a gradient by the input."""
    first, step = d[before] // d[stride], d[stride]
    return (d[size] - 1 + d[before]) // step - first + -(-d[window] // step)


def _panels(columns: int) -> int:
    return -(-columns // _PANEL) * _PANEL


# -- products


def dot(w: FunctionWriter, call: Call) -> Lines:
    op = call.op
    if call.expands is not None:
        return expanded_products.expanded_dot(w, call)
    if call in w.packed:
        return matrix_packing.packed_dot(w, call)
    a, b = call.operands
    view_a, view_b = w.schedule.views[a], w.schedule.views[b]
    p = product(op, view_a, view_b)
    out, dtype = w.pointer(op.result), op.result.dtype
    at_a, at_b = str(view_a.offset), str(view_b.offset)
    count = p.m * p.n
    place = "0"
    for n, (_, sa, sb) in enumerate(p.batch):
        at_a += f" + b{n} * {sa}"
        at_b += f" + b{n} * {sb}"
        inner = math.prod(size for size, _, _ in p.batch[n + 1 :]) * count
        place += f" + b{n} * {inner}"
    scratch = w.scratch(call, "float")
    pointers = [w.base_pointer(a), w.base_pointer(b), out]
    one, all_ = p.m * p.n * p.k, math.prod(size for size, _, _ in p.batch) * p.m * p.n * p.k
    if dtype is DType.F32 and p.batch and one >= _BATCH_WORK and all_ >= _BATCHES_WORK:
        local = at("a", at_a), at("b", at_b), at("to", place)
        made = _matrix_product(w, p, local, dtype, "(float *)scratch")
        return _batches(w, p, made, pointers, scratch, scratch_bytes(call, w.schedule))
    whole = at(pointers[0], at_a), at(pointers[1], at_b), at(out, place)
    lines = [_matrix_product(w, p, whole, dtype, scratch)]
    for n in range(len(p.batch) - 1, -1, -1):
        head = f"for (int64_t b{n} = 0; b{n} < {p.batch[n][0]}; b{n}++) {{"
        lines = [head, *("  " + line for line in lines), "}"]
    return lines


def _batches(
    w: FunctionWriter, p: Product, made: str, pointers: Lines, scratch: str, room: int
) -> Lines:
    """A product for each batch, each a chunk of its own."""
    w.unit.need("pool")
    sizes = [size for size, _, _ in p.batch]
    places = []
    for n, size in enumerate(sizes):
        inner = math.prod(sizes[n + 1 :])
        places.append(f"const int64_t b{n} = chunk / {inner} % {size};")
    body = [
        "void *const *c = (void *const *)context;",
        "const float *a = (const float *)c[0], *b = (const float *)c[1];",
        "float *to = (float *)c[2];",
        *places,
        "(void)scratch;",
        made,
    ]
    text = function_text("void *context, int64_t chunk, void *scratch", body)
    w.count += 1
    context = f"context{w.count}"
    return [
        f"const void *const {context}[] = {{{', '.join(pointers)}}};",
        f"dl_parallel({math.prod(sizes)}, {w.unit.function('batch', text)}, (void *){context},"
        f" {scratch}, {room});",
    ]


def _matrix_product(
    w: FunctionWriter, p: Product, pointers: tuple[str, str, str], dtype: DType, scratch: str
) -> str:
    a, b, c = pointers
    s = dtype.value
    if dtype is DType.F32:
        need_tiles(w, p)
    else:
        w.unit.need("plain")
        w.unit.plain_types.add(dtype)
        return f"dl_gemm_{s}({p.m}, {p.n}, {p.k}, {a}, {p.am}, {p.ak}, {b}, {p.bk}, {p.bn}, {c});"
    if p.n == 1 and p.m == 1:
        return f"*({c}) = dl_dot_f32({p.k}, {a}, {p.ak}, {b}, {p.bk});"
    if p.n == 1 and p.ak == 1:
        return f"dl_rows_f32({p.m}, {p.k}, {a}, {p.am}, {b}, {p.bk}, {c});"
    if p.n == 1:  # one column is computed as one row of the transposed product
        return f"dl_gemm_f32(1, {p.m}, {p.k}, {b}, 0, {p.bk}, {a}, {p.ak}, {p.am}, {c}, {scratch});"
    return (
        f"dl_gemm_f32({p.m}, {p.n}, {p.k}, {a}, {p.am}, {p.ak}, {b}, {p.bk}, {p.bn}, {c},"
        f" {scratch});"
    )


def product_into(w: FunctionWriter, call: Call, p: Product, target: str) -> str:
    """A product without batches whose tiles go to a `dl_target`."""
    if call.expands is not None:
        return expanded_products.expanded_product(w, call, p, target)
    if call in w.packed:
        w.unit.need("gemm")
        return matrix_packing.packed_product(w, call, target)
    return f"dl_gemm_into({product_arguments(w, call, p)}, {target}, {w.scratch(call, 'float')});"


def need_tiles(w: FunctionWriter, p: Product) -> None:
    """The headers of a product of f32 matrices."""
    w.unit.need("gemm")
    if 0 < p.n % _LANES <= _LANES // 2 and p.m * p.n * p.k >= _NARROW_WORK:
        w.unit.need("narrow")


def product_arguments(w: FunctionWriter, call: Call, p: Product) -> str:
    """The sizes and the operands of a product of f32 matrices."""
    need_tiles(w, p)
    a, b = (at(w.base_pointer(v), str(w.schedule.views[v].offset)) for v in call.operands)
    return f"{p.m}, {p.n}, {p.k}, {a}, {p.am}, {p.ak}, {b}, {p.bk}, {p.bn}"


def _conv_sizes(call: Call) -> dict[str, int]:
    """The fields of dl_conv."""
    op = call.op
    if op.name == "conv":
        x, k, y = op.operands[0].shape, op.operands[1].shape, op.result.shape
    elif op.name == "conv_input_grad":
        x, k, y = op.result.shape, op.operands[1].shape, op.operands[0].shape
    else:
        x, k, y = op.operands[0].shape, op.result.shape, op.operands[1].shape
    (top, _), (left, _) = op.attrs["padding"]
    sh, sw = op.attrs["strides"]
    names = ("n", "h", "w", "c", "kh", "kw", "o", "oh", "ow", "sh", "sw", "top", "left")
    values = (*x, k[0], k[1], k[3], y[1], y[2], sh, sw, top, left)
    return dict(zip(names, values, strict=True))


def conv(w: FunctionWriter, call: Call, then: str = "0") -> Lines:
    """A convolution or a gradient of it. then: a pointer to a dl_then, which takes the result."""
    dtype, d = call.op.result.dtype, _conv_sizes(call)
    name = f"dl_{call.op.name}_{dtype.value}"
    w.unit.need("conv" if dtype is DType.F32 else "plain")
    to = "0" if call.taken else w.pointer(call.op.result)
    args = [w.unit.sizes(d), *(w.pointer(v) for v in call.operands), to]
    if dtype is DType.F32:
        args += [w.scratch(call, "float"), *([then] if call.op.name == "conv" else [])]
        if w.unit.tiles and winograd.fits(call.op.name, d):
            w.unit.need("winograd")
            name, args = f"dl_wino_{call.op.name}", [f"&dl_wino_side_{d['kh']}", *args]
    else:
        w.unit.plain_types.add(dtype)
    return [f"{name}({', '.join(args)});"]


# -- indexed access


def _split(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """The elements outside an axis, along it, and inside it."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _indices(w: FunctionWriter, indices: Value) -> tuple[str, str, str]:
    """A parameter for the indices, the argument for it, and the index at {0}."""
    kind = memory_type(indices.dtype)
    if indices.shape == ():
        return f"const {kind} at", w.scalar(indices), "at"
    return f"const {kind} *restrict at", w.pointer(indices), "at[{0}]"


def take(w: FunctionWriter, call: Call) -> Lines:
    x, indices = call.operands
    kind = memory_type(x.dtype)
    if call.window:
        stride = w.schedule.views[x].strides[0]
        begin = f"{place_of(w, indices, x.shape[0])} * {stride}"
        return place(w, call.op.result, begin, x)
    if call.op.result.shape == ():
        view = w.schedule.views[x]
        begin = f"{view.offset} + {place_of(w, indices, x.shape[0])} * {view.strides[0]}"
        number = from_memory(x.dtype, element(at(w.base_pointer(x), begin)))
        return [f"const {local_type(x.dtype)} {w.local(call.op.result)} = {number};"]
    outer, size, inner = _split(x.shape, call.op.attrs["axis"])
    parameter, argument, index = _indices(w, indices)
    count = indices.tensor.size
    body = [f"const int64_t row = dl_clamp((int64_t){index.format('k')}, {size});"]
    if inner == 1:
        body.append(f"to[i0 * {count} + k] = from[i0 * {size} + row];")
    else:
        body.append(
            f"memcpy(to + (i0 * {count} + k) * {inner}, from + (i0 * {size} + row) * {inner},"
            f" {inner * x.dtype.itemsize});"
        )
    body = [f"for (int64_t k = 0; k < {count}; k++) {{", *("  " + line for line in body), "}"]
    text = function_text(
        f"{kind} *restrict to, const {kind} *restrict from, {parameter}", nested([outer], body)
    )
    name = w.unit.function("take", text)
    return [f"{name}({w.pointer(call.op.result)}, {w.pointer(x)}, {argument});"]


def put_add(w: FunctionWriter, call: Call) -> Lines:
    x, indices, updates = call.operands
    result = call.op.result
    kind, wrap = memory_type(x.dtype), wrapping(x.dtype)
    outer, size, inner = _split(x.shape, call.op.attrs["axis"])
    parameter, argument, index = _indices(w, indices)
    count = indices.tensor.size
    lines = copy_whole(w, x, result)
    if not updates.tensor.size:
        return lines
    if x.tensor.rank == 1 and updates.shape == ():
        begin = place_of(w, indices, size)
        target = element(at(w.pointer(result), begin))
        total = f"({kind})({wrap}{target} + {wrap}{w.scalar(updates)})"
        return [*lines, f"{target} = {total};"]
    body = [
        f"for (int64_t k = 0; k < {count}; k++) {{",
        f"  const int64_t row = dl_clamp((int64_t){index.format('k')}, {size});",
        f"  {kind} *restrict t = to + (i0 * {size} + row) * {inner};",
        f"  const {kind} *restrict u = from + (i0 * {count} + k) * {inner};",
        f"  for (int64_t j = 0; j < {inner}; j++) t[j] = ({kind})({wrap}t[j] + {wrap}u[j]);",
        "}",
    ]
    text = function_text(
        f"{kind} *restrict to, const {kind} *restrict from, {parameter}", nested([outer], body)
    )
    name = w.unit.function("put_add", text)
    return [*lines, f"{name}({w.pointer(result)}, {w.pointer(updates)}, {argument});"]


def take_along(w: FunctionWriter, call: Call) -> Lines:
    x, indices = call.operands
    axis = call.op.attrs["axis"]
    outer, size, inner = _split(x.shape, axis)
    count = indices.shape[axis]
    kind, index_kind = memory_type(x.dtype), memory_type(indices.dtype)
    body = [
        f"const int64_t i = (i0 * {count} + i1) * {inner} + i2;",
        f"const int64_t row = dl_clamp((int64_t)at[i], {size});",
        f"to[i] = from[(i0 * {size} + row) * {inner} + i2];",
    ]
    text = function_text(
        f"{kind} *restrict to, const {kind} *restrict from, const {index_kind} *restrict at",
        nested([outer, count, inner], body),
    )
    name = w.unit.function("take_along", text)
    return [f"{name}({w.pointer(call.op.result)}, {w.pointer(x)}, {w.pointer(indices)});"]


def put_along_add(w: FunctionWriter, call: Call) -> Lines:
    x, indices, updates = call.operands
    result, axis = call.op.result, call.op.attrs["axis"]
    outer, size, inner = _split(x.shape, axis)
    count, wrap = indices.shape[axis], wrapping(x.dtype)
    kind, index_kind = memory_type(x.dtype), memory_type(indices.dtype)
    lines = copy_whole(w, x, result)
    if not updates.tensor.size:
        return lines
    body = [
        f"const int64_t i = (i0 * {count} + i1) * {inner} + i2;",
        f"const int64_t row = dl_clamp((int64_t)at[i], {size});",
        f"{kind} *t = to + (i0 * {size} + row) * {inner} + i2;",
        f"*t = ({kind})({wrap}*t + {wrap}from[i]);",
    ]
    text = function_text(
        f"{kind} *restrict to, const {kind} *restrict from, const {index_kind} *restrict at",
        nested([outer, count, inner], body),
    )
    name = w.unit.function("put_along_add", text)
    args = f"{w.pointer(result)}, {w.pointer(updates)}, {w.pointer(indices)}"
    return [*lines, f"{name}({args});"]


# -- along an axis


def reduce_nothing(w: FunctionWriter, call: Call) -> Lines:
    """A reduction of no elements gives what reductions start from."""
    result = call.op.result
    start = {"reduce_sum": 0, "reduce_prod": 1, "reduce_max": 0, "reduce_min": 1}[call.op.name]
    value = literal(start, result.dtype)
    return [copy(w, (result.tensor.size,), result.dtype, (w.pointer(result), (1,)), value)]


def extreme(w: FunctionWriter, call: Call) -> Lines:
    """argmax and argmin: the first extreme, but a NaN beats every number."""
    (x,) = call.operands
    outer, size, inner = _split(x.shape, call.op.attrs["axis"])
    sign = ">" if call.op.name == "argmax" else "<"
    kind = local_type(x.dtype)
    read = from_memory(x.dtype, f"from[(i0 * {size} + k) * {inner} + i1]")
    nan = " || (v != v && best == best)" if x.dtype.is_float else ""
    body = [
        f"{kind} best = {from_memory(x.dtype, f'from[i0 * {size} * {inner} + i1]')};",
        "int64_t place = 0;",
        f"for (int64_t k = 1; k < {size}; k++) {{",
        f"  const {kind} v = {read};",
        f"  if (v {sign} best{nan}) best = v, place = k;",
        "}",
        f"to[i0 * {inner} + i1] = place;",
    ]
    parameters = f"int64_t *restrict to, const {memory_type(x.dtype)} *restrict from"
    name = w.unit.function(call.op.name, function_text(parameters, nested([outer, inner], body)))
    return [f"{name}({w.pointer(call.op.result)}, {w.pointer(x)});"]


def argsort(w: FunctionWriter, call: Call) -> Lines:
    (x,) = call.operands
    outer, size, inner = _split(x.shape, call.op.attrs["axis"])
    w.unit.need("order")
    w.unit.instance("DL_ARGSORT", x.dtype)
    out, work = w.pointer(call.op.result), w.scratch(call, "int64_t")
    keys = f"({memory_type(x.dtype)} *)({work} + {2 * size})"
    at = f"i0 * {size * inner} + i1"
    name = f"dl_argsort_{x.dtype.value}"
    line = f"{name}({size}, {w.pointer(x)} + {at}, {inner}, {out} + {at}, {keys}, {work});"
    return nested([outer, inner], [line])


def cumsum(w: FunctionWriter, call: Call) -> Lines:
    (x,) = call.operands
    outer, size, inner = _split(x.shape, call.op.attrs["axis"])
    kind, wrap = memory_type(x.dtype), wrapping(x.dtype)
    body = [
        f"{kind} sum = 0;",
        f"for (int64_t k = 0; k < {size}; k++) {{",
        f"  const int64_t i = (i0 * {size} + k) * {inner} + i1;",
        f"  sum = ({kind})({wrap}sum + {wrap}from[i]);",
        "  to[i] = sum;",
        "}",
    ]
    text = function_text(
        f"{kind} *restrict to, const {kind} *restrict from", nested([outer, inner], body)
    )
    return [f"{w.unit.function('cumsum', text)}({w.pointer(call.op.result)}, {w.pointer(x)});"]


KERNELS: Mapping[str, Callable[[FunctionWriter, Call], Lines]] = {
    "dot": dot,
    "conv": conv,
    "conv_input_grad": conv,
    "conv_weight_grad": conv,
    "pad": copies.pad,
    "concat": copies.concat,
    "dynamic_slice": copies.dynamic_slice,
    "dynamic_update": copies.dynamic_update,
    "take": take,
    "put_add": put_add,
    "take_along": take_along,
    "put_along_add": put_along_add,
    "reduce_sum": reduce_nothing,
    "reduce_prod": reduce_nothing,
    "reduce_max": reduce_nothing,
    "reduce_min": reduce_nothing,
    "argmax": extreme,
    "argmin": extreme,
    "argsort": argsort,
    "cumsum": cumsum,
    **attention_kernel.KERNELS,
    **depthwise.KERNELS,
    **quantised_kernels.KERNELS,
    **solver_kernels.KERNELS,
}
