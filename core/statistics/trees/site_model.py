"""A site's state in a growing model: bins, margins and leaves of its rows, made again when lost.

All of it follows from the rows and the step: what is kept only saves time. It is used where the
step continues what it was made for, which is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..question import Kept, Step
from ..site_table import Table
from ..sums import StatisticsError
from .bins import F32, I64, U16, Cuts, cuts_of
from .forest import I32, Tree, check_starts, unpacked
from .site_rows import SiteRows

#: Rows' leaves in open trees that a site keeps; of more it keeps none.
LEAVES_KEPT_MAX = 1 << 26


@dataclass
class BinnedRows:
    """A site's rows as bins, by the cuts of a step."""

    cuts: Cuts
    sizes: I64
    """Bins a feature, i64[features]."""
    bins: U16
    """u16[features, rows]."""


def kept_rows(kept: Kept, table: Table) -> SiteRows | None:
    """The site's rows, if they were read from this very table before."""
    return kept["rows"] if kept.get("table") is table else None


def keep_rows(kept: Kept, table: Table, rows: SiteRows) -> None:
    """Begins the state of a table's rows."""
    kept.clear()
    kept["table"], kept["rows"] = table, rows


def binned_rows(step: Step, rows: SiteRows, kept: Kept) -> BinnedRows:
    """The rows by the cuts of a step. Raises StatisticsError."""
    starts, values = step.integers("starts", -1), step.floats("cuts", -1)
    old: BinnedRows | None = kept.get("bins")
    if (
        old is not None
        and np.array_equal(old.cuts.starts, starts)
        and np.array_equal(old.cuts.values, values.astype(np.float32))
    ):
        return old
    if len(starts) == 0:
        raise StatisticsError("a step without cuts")
    cuts = cuts_of(starts, values, len(rows.columns))
    made = BinnedRows(cuts, np.diff(cuts.starts), cuts.binned(rows.columns)[0])
    for name in ("done", "open", "state", "keys"):
        kept.pop(name, None)
    kept["bins"] = made
    return made


@dataclass
class _Done:
    """Finished trees, and what they give."""

    nodes: I64
    starts: I64
    base: npt.NDArray[np.float64]
    margin: F32
    """f32[rows, outputs]."""


def margins(
    nodes: I64,
    starts: I64,
    base: npt.NDArray[np.float64],
    rows: BinnedRows,
    kept: Kept,
) -> F32:
    """The margins of the rows after finished trees, f32[rows, outputs].

    nodes, starts: as in `forest.unpacked`. base: base margins, f64[outputs]. Tree t adds to output
    t modulo their number. Raises StatisticsError.
    """
    check_starts(nodes, starts)
    outputs, count = len(base), len(starts) - 1
    old: _Done | None = kept.get("done")
    first, continues = 0, False
    if old is not None and len(old.starts) <= len(starts):
        whole = len(old.nodes)
        if (
            np.array_equal(old.starts, starts[: len(old.starts)])
            and np.array_equal(old.nodes, nodes[:whole])
            and np.array_equal(old.base, base)
        ):
            first, continues = len(old.starts) - 1, True
    if continues and old is not None:
        margin = old.margin.copy() if first < count else old.margin
    else:
        margin = np.tile(base.astype(np.float32), (rows.bins.shape[1], 1))
    begin = int(starts[first])
    trees = unpacked(nodes[begin:], starts[first:] - begin, rows.sizes)
    finished: list[tuple[Tree, I32]] = kept.get("open", [])
    for t, tree in enumerate(trees, first):
        at = np.zeros(rows.bins.shape[1], np.int32)
        grown = [p for known, p in finished if _is_same(tree, known)]
        if grown:
            at = grown[0].copy()
        tree.descend(rows.bins, rows.sizes, at)
        margin[:, t % outputs] += tree.value[at]
    kept["done"] = _Done(nodes, starts, base, margin)
    return margin


def _is_same(tree: Tree, known: Tree) -> bool:
    """Whether `tree` is `known` after its last splits: rows need not begin at the root."""
    return known.nodes > 1 and tree.begins_as(known)


def leaves(trees: list[Tree], rows: BinnedRows, kept: Kept) -> Iterator[I32]:
    """Each row's leaf in each of the open trees, i32[rows] each, one tree after the other."""
    old: list[tuple[Tree, I32]] = kept.get("open", [])
    made: list[tuple[Tree, I32]] = []
    kept["open"] = made
    count = rows.bins.shape[1]
    for t, tree in enumerate(trees):
        at = np.zeros(count, np.int32)
        if t < len(old) and tree.begins_as(old[t][0]):
            at = old[t][1]
        tree.descend(rows.bins, rows.sizes, at)
        if len(trees) * count <= LEAVES_KEPT_MAX:
            made.append((tree, at))
        yield at
