"""Kernels of the primitives that solve linear systems: a loop over the batch around solve.h."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ....passes.schedule.block_steps import Call

if TYPE_CHECKING:
    from ..emit import FunctionWriter

_DOUBLE_BYTES = 8


def scratch_bytes(call: Call) -> int:
    """A matrix and its right side, in f64."""
    *_, n, k = call.operands[-1].shape
    return _DOUBLE_BYTES * (n * n + n * k)


def _batched(w: FunctionWriter, call: Call, line: str) -> list[str]:
    """The line for each matrix; `i` counts them."""
    w.unit.need("solve")
    count = math.prod(call.operands[0].shape[:-2])
    if count == 1:
        return ["{", "  const int64_t i = 0;", f"  {line}", "}"]
    return [f"for (int64_t i = 0; i < {count}; i++) {{", f"  {line}", "}"]


def cholesky(w: FunctionWriter, call: Call) -> list[str]:
    (a,) = call.operands
    n = a.shape[-1]
    at = f" + i * {n * n}"
    places = f"{w.pointer(a)}{at}, {w.pointer(call.op.result)}{at}, {w.scratch(call, 'double')}"
    return _batched(w, call, f"dl_cholesky_{a.dtype.value}({n}, {places});")


def solve(w: FunctionWriter, call: Call) -> list[str]:
    a, b = call.operands
    n, k = b.shape[-2:]
    at = f" + i * {n * k}"
    places = f"{w.pointer(a)} + i * {n * n}, {w.pointer(b)}{at}, {w.pointer(call.op.result)}{at}"
    kind, sizes = "solve", f"{n}, {k}"
    if call.op.name == "triangular_solve":
        kind, sizes = "triangular", f"{sizes}, {int(call.op.attrs['lower'])}"
    line = f"dl_{kind}_{a.dtype.value}({sizes}, {places}, {w.scratch(call, 'double')});"
    return _batched(w, call, line)


def slogdet(w: FunctionWriter, call: Call) -> list[str]:
    (a,) = call.operands
    n = a.shape[-1]
    sign, size = (f"{w.pointer(r)} + i" for r in call.op.results)
    places = f"{w.pointer(a)} + i * {n * n}, {sign}, {size}, {w.scratch(call, 'double')}"
    return _batched(w, call, f"dl_slogdet_{a.dtype.value}({n}, {places});")


KERNELS: Mapping[str, Callable[[FunctionWriter, Call], list[str]]] = {
    "cholesky": cholesky,
    "solve": solve,
    "triangular_solve": solve,
    "slogdet": slogdet,
}
