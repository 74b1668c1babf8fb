"""`dot` as batches of matrix products: which axes run together, and by which strides."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir import Op
from .views import View, collapse


@dataclass(frozen=True, slots=True)
class Product:
    """C[m][n] = sum over k of A[m am + k ak] * B[k bk + n bn], once for each batch."""

    batch: tuple[tuple[int, int, int], ...]
    """(size, stride in A, stride in B), outermost first."""
    m: int
    """Rows of A and C."""
    n: int
    """Columns of B and C."""
    k: int
    """Columns of A, rows of B."""
    am: int
    """Stride of A's rows, in elements as the others."""
    ak: int
    """Stride of A's columns."""
    bk: int
    """Stride of B's rows."""
    bn: int
    """Stride of B's columns."""


def _axes(op: Op, side: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The batch, free and contracted axes of one operand."""
    which = "ab"[side]
    batch, contract = op.attrs[f"batch_{which}"], op.attrs[f"contract_{which}"]
    rank = op.operands[side].tensor.rank
    free = tuple(i for i in range(rank) if i not in batch and i not in contract)
    return batch, free, contract


def axis_order(op: Op, side: int) -> tuple[int, ...]:
    """The axes of one operand in an order that runs as matrices."""
    batch, free, contract = _axes(op, side)
    return batch + (free + contract if side == 0 else contract + free)


def _run(op: Op, side: int, view: View, axes: tuple[int, ...]) -> tuple[int, int] | None:
    """The size and the stride of axes that run as one, or None."""
    shape = op.operands[side].shape
    size = 1
    for i in axes:
        size *= shape[i]
    if size == 0:
        return 0, 0
    merged = collapse([(shape[i], view.strides[i]) for i in axes])
    if not merged:
        return 1, 1
    return (merged[0][0], merged[0][1]) if len(merged) == 1 else None


def runs_as_matrix(op: Op, side: int, view: View) -> bool:
    """Whether an operand's free and contracted axes each run by one stride."""
    _, free, contract = _axes(op, side)
    return _run(op, side, view, free) is not None and _run(op, side, view, contract) is not None


def product(op: Op, a: View, b: View) -> Product:
    """The matrix products of a `dot` whose operands run as matrices."""
    batch_a, free_a, contract_a = _axes(op, 0)
    batch_b, free_b, contract_b = _axes(op, 1)
    rows, depth = _run(op, 0, a, free_a), _run(op, 0, a, contract_a)
    depth_b, columns = _run(op, 1, b, contract_b), _run(op, 1, b, free_b)
    assert rows and depth and depth_b and columns, "the operands run as matrices"
    shape = op.operands[0].shape
    batch = collapse(
        [(shape[i], a.strides[i], b.strides[j]) for i, j in zip(batch_a, batch_b, strict=True)]
    )
    return Product(
        tuple((size, sa, sb) for size, sa, sb in batch),
        rows[0],
        columns[0],
        depth[0],
        rows[1],
        depth[1],
        depth_b[1],
        columns[1],
    )
