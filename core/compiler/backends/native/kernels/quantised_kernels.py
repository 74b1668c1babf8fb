"""Convolutions of bytes: calls to qgemm.h."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ....passes.schedule.block_steps import Call

if TYPE_CHECKING:
    from ..emit import FunctionWriter


def quantised_conv(w: FunctionWriter, call: Call) -> list[str]:
    op = call.op
    x, k, y = op.operands[0].shape, op.operands[1].shape, op.result.shape
    w.unit.need("qgemm")
    names = ("n", "h", "w", "c", "kh", "kw", "o", "oh", "ow", "sh", "sw")
    values = (*x, k[0], k[1], k[3], y[1], y[2], *op.attrs["strides"])
    sizes = ", ".join(f".{n} = {v}" for n, v in zip(names, values, strict=True))
    arguments = ", ".join([*(w.pointer(v) for v in call.operands), w.pointer(op.result)])
    return [
        "{",
        f"  const dl_qsizes sizes = {{{sizes}}};",
        f"  dl_quantised_conv(&sizes, {arguments});",
        "}",
    ]


KERNELS: Mapping[str, Callable[[FunctionWriter, Call], list[str]]] = {
    "quantised_conv": quantised_conv
}
