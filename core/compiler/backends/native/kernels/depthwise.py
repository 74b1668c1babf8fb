"""Depthwise convolutions: calls to depthwise.h for f32, plain loops for every other type.

`passes.groups` has made all other convolutions in groups into these and dense ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ....ir import DType
from ....passes.schedule.block_steps import Call
from ..names import memory_type

if TYPE_CHECKING:
    from ..emit import FunctionWriter

#: As many floats as the widest vector register holds.
_LANES_MAX = 16
#: Operands, result, and what a pair of pixels under one tap adds to it: all go over the same pairs.
_STEP = {
    "grouped_conv": ("xk", "y", "x[xs] * k[ks]"),
    "grouped_conv_input_grad": ("yk", "x", "y[ys] * k[ks]"),
    "grouped_conv_weight_grad": ("xy", "k", "x[xs] * y[ys]"),
}


def _sizes(call: Call) -> dict[str, int]:
    """The fields of dl_conv."""
    op = call.op
    if op.name == "grouped_conv":
        x, k, y = op.operands[0].shape, op.operands[1].shape, op.result.shape
    elif op.name == "grouped_conv_input_grad":
        y, k, x = op.operands[0].shape, op.operands[1].shape, op.result.shape
    else:
        x, y, k = op.operands[0].shape, op.operands[1].shape, op.result.shape
    assert k[2] == 1 and k[3] == x[3] == y[3], "a channel of input and output to each group"
    (top, _), (left, _) = op.attrs["padding"]
    sh, sw = op.attrs["strides"]
    names = ("n", "h", "w", "c", "kh", "kw", "o", "oh", "ow", "sh", "sw", "top", "left")
    values = (*x, k[0], k[1], y[3], y[1], y[2], sh, sw, top, left)
    return dict(zip(names, values, strict=True))


def scratch_bytes(call: Call) -> int:
    if call.op.result.dtype is not DType.F32:
        return 0
    d = _sizes(call)
    taps = d["kh"] * d["kw"]
    if d["c"] >= _LANES_MAX:
        return 4 * taps * d["c"]
    pixels = d["n"] * (d["h"] * d["w"] + d["oh"] * d["ow"])
    return 4 * _LANES_MAX * (pixels + 2 * taps)


def depthwise(w: FunctionWriter, call: Call) -> list[str]:
    name, dtype = call.op.name, call.op.result.dtype
    w.unit.need("plain")
    arguments = [
        w.unit.sizes(_sizes(call)),
        *(w.pointer(v) for v in call.operands),
        w.pointer(call.op.result),
    ]
    if dtype is DType.F32:
        w.unit.need("depthwise")
        arguments.append(w.scratch(call, "float"))
        function = f"dl_{name}_f32"
    else:
        function = w.unit.function(name, _plain(name, memory_type(dtype)))
    return [f"{function}({', '.join(arguments)});"]


def _plain(name: str, kind: str) -> str:
    """One function for any sizes, its inner loop along channels."""
    inputs, target, product = _STEP[name]
    count = {
        "y": "d->n * d->oh * d->ow * d->c",
        "x": "d->n * d->h * d->w * d->c",
        "k": "d->kh * d->kw * d->c",
    }[target]
    parameters = ", ".join(f"const {kind} *{letter}" for letter in inputs)
    return f"""(const dl_conv *d, {parameters}, {kind} *restrict {target}) {{
  memset({target}, 0, (size_t)({count}) * sizeof({kind}));
  for (int64_t i = 0; i < d->n; i++)
    for (int64_t p = 0; p < d->oh; p++)
      for (int64_t q = 0; q < d->ow; q++)
        for (int64_t u = 0; u < d->kh; u++)
          for (int64_t v = 0; v < d->kw; v++) {{
            const int64_t r = p * d->sh + u - d->top, s = q * d->sw + v - d->left;
            if (r < 0 || r >= d->h || s < 0 || s >= d->w) continue;
            const int64_t x0 = ((i * d->h + r) * d->w + s) * d->c, k0 = (u * d->kw + v) * d->c;
            const int64_t y0 = ((i * d->oh + p) * d->ow + q) * d->c;
            for (int64_t c = 0; c < d->c; c++) {{
              const int64_t xs = x0 + c, ys = y0 + c, ks = k0 + c;
              {target}[{target}s] += {product};
            }}
          }}
}}
"""


KERNELS: Mapping[str, Callable[[FunctionWriter, Call], list[str]]] = dict.fromkeys(_STEP, depthwise)
