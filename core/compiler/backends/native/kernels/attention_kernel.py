"""Attention on f32: calls to attention.h, a chunk for each head of each sequence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ....passes.schedule.block_steps import Call

if TYPE_CHECKING:
    from ..emit import FunctionWriter

#: Columns that a panel is padded to, at most, as in gemm.h.
_PANEL = 32
#: Queries of a block, and keys forwards and back: whole panels. Of few queries, most of which see
#: only some of the keys, a block has fewer.
_QUERIES, _FEW_QUERIES = 48, 32
_KEYS, _KEYS_BACK = 256, 128


def _padded(columns: int) -> int:
    return -(-columns // _PANEL) * _PANEL


def _sizes(call: Call) -> dict[str, int]:
    """The fields of dl_heads."""
    (n, t, h, d), (_, s, _, e) = call.op.operands[0].shape, call.op.operands[2].shape
    queries = min(t, _FEW_QUERIES if t <= 2 * _FEW_QUERIES else _QUERIES)
    keys = min(_padded(s), _KEYS if call.op.name == "attention" else _KEYS_BACK)
    sizes = {"n": n, "h": h, "t": t, "s": s, "d": d, "e": e, "queries": queries, "keys": keys}
    mask = call.op.operands[3 if call.op.name == "attention" else 6 :]
    sizes["causal"] = int(call.op.attrs["causal"])
    for m in mask:
        for axis, name in enumerate(("mn", "mh", "mt")):
            sizes[name] = math.prod(m.shape[axis + 1 :]) if m.shape[axis] > 1 else 0
    return sizes


def scratch_bytes(call: Call) -> int:
    z = _sizes(call)
    scores, wide = z["queries"] * z["keys"], max(_padded(z["d"]), _padded(z["e"]))
    if call.op.name == "attention":
        panels = z["d"] * _padded(z["s"]) + z["s"] * _padded(z["e"])
        return 4 * (scores + 2 * z["queries"] + panels)
    return 4 * (2 * scores + (3 * z["keys"] + z["queries"]) * wide)


def attention(w: FunctionWriter, call: Call) -> list[str]:
    op, z = call.op, _sizes(call)
    w.unit.need("attention")
    names = ("q", "k", "v", "mask") if op.name == "attention" else _GRAD_OPERANDS
    results = ("out", "logs") if op.name == "attention" else ("dq", "dk", "dv")
    pairs = [*zip(names, call.operands, strict=False), *zip(results, op.results, strict=True)]
    sizes = ", ".join(f".{name} = {value}" for name, value in z.items())
    places = ", ".join(f".{name} = {w.pointer(value)}" for name, value in pairs)
    body = "dl_attention_head" + ("" if op.name == "attention" else "_grad")
    room = w.scratch(call, "float"), scratch_bytes(call)
    return [
        "{",
        f"  static const dl_heads sizes = {{{sizes}}};",
        f"  const dl_attending context = {{.sizes = &sizes, {places}}};",
        f"  dl_parallel({z['n'] * z['h']}, {body}, (void *)&context, {room[0]}, {room[1]});",
        "}",
    ]


_GRAD_OPERANDS = ("q", "k", "v", "lse", "delta", "g", "mask")

KERNELS: Mapping[str, Callable[[FunctionWriter, Call], list[str]]] = {
    "attention": attention,
    "attention_grad": attention,
}
