"""A device's rows as the arrays that a bundle takes, and a clear word when they cannot be.

A bundle is compiled for one capacity, and says so in its manifest: a SampleSet (`x`, `y` [capacity,
...], `support`, `query`) or an EpisodeTable (`images` [characters, drawers, H, W], `characters`).

Which rows judge and are never trained on is decided by each row's own content: the hash of a row
lies below `query_fraction` of all hashes, or it does not. So a row stays on its side while others
come and go, and equal rows are on one side; the split is the same after every restart. Data that
have a split of their own (`Rows.query`) keep it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.aligned_arrays import distinct
from ...common.errors import DelianError
from ..bundle import Leaf
from .rows import Leaves, NoDataError, Rows, RowType

Array = NDArray[Any]

SAMPLES = ("x", "y", "support", "query")
EPISODES = ("images", "characters")
#: What `y` is where numbers are learnt and no labels.
NUMBERS = "f32"
_DTYPES = {
    name: np.dtype(kind)
    for name, kind in (
        ("f32", "f4"),
        ("f64", "f8"),
        ("i32", "i4"),
        ("i64", "i8"),
        ("u8", "u1"),
        ("u32", "u4"),
        ("bool", "?"),
    )
}


class MisfitError(DelianError):
    """The device's data is not what the bundle was built for."""


def row_type(wanted: Sequence[Leaf]) -> RowType:
    """What a source is asked for, given the leaves of a manifest's data."""
    names = tuple(_short(leaf) for leaf in wanted)
    first = wanted[0]
    shape = first.shape[2:] if names == EPISODES else first.shape[1:]
    numbers = names == SAMPLES and wanted[1].dtype == NUMBERS
    return RowType(shape, first.dtype, names, numbers)


def fit(
    given: Rows | Leaves,
    wanted: Sequence[Leaf],
    *,
    classes: int | None = None,
    query_fraction: float = 0.2,
) -> list[Array]:
    """The arrays that the programs take, in the manifest's order.

    classes: how many labels the model has, where it learns labels. Raises MisfitError when the data
    cannot be made to fit, NoDataError when there is too little of it.
    """
    names = tuple(_short(leaf) for leaf in wanted)
    if isinstance(given, Leaves):
        return [_whole(given.arrays, leaf) for leaf in wanted]
    if names == SAMPLES:
        return _samples(given, wanted, classes, query_fraction)
    if names == EPISODES:
        return _episodes(given, wanted)
    raise MisfitError(
        f"the bundle takes {', '.join(names)}, which rows cannot give",
        "give an .npz file with these very arrays",
    )


def examples(leaves: Sequence[Array], wanted: Sequence[Leaf]) -> int:
    """What a device trains on: rows of its support set, or characters."""
    names = [_short(leaf) for leaf in wanted]
    for name in ("support", "characters"):
        if name in names:
            return int(leaves[names.index(name)])
    return 0


def _short(leaf: Leaf) -> str:
    return leaf.name.rpartition(".")[2]


def _whole(arrays: Any, leaf: Leaf) -> Array:
    name = _short(leaf)
    if name not in arrays:
        raise MisfitError(f"the data has no array `{name}`, which the bundle takes")
    array = np.asarray(arrays[name])
    dtype = _DTYPES[leaf.dtype]
    if array.shape != leaf.shape or array.dtype != dtype:
        raise MisfitError(
            f"the array `{name}` is {array.dtype}{list(array.shape)}, and the bundle takes "
            f"{leaf.dtype}{list(leaf.shape)}",
            "write it for this bundle, or give plain rows x and y",
        )
    return np.asarray(array, order="C")


def _samples(
    rows: Rows, wanted: Sequence[Leaf], classes: int | None, query_fraction: float
) -> list[Array]:
    x_leaf, y_leaf = wanted[0], wanted[1]
    x, y = shaped_rows(rows, wanted, classes)
    if len(x) < 2:
        raise NoDataError(
            f"there are {len(x)} examples; one must be learnt from and one judged by",
            "collect more before taking part",
        )
    hashes = row_hashes(x, y)
    capacity = x_leaf.shape[0]
    if capacity < 2:
        raise MisfitError("the bundle has room for fewer than two examples", "build it larger")
    judges = _judges(hashes, query_fraction) if rows.query is None else rows.query.astype(bool)
    if judges.all() or not judges.any():
        raise NoDataError(
            f"the data's own split has {int(judges.sum())} of {len(x)} rows that only judge",
            "some must be learnt from and some judged by; without `query` they are chosen",
        )
    support, query = np.flatnonzero(~judges), np.flatnonzero(judges)
    if len(x) > capacity:
        room = min(max(1, round(capacity * len(query) / len(x))), capacity - 1)
        query = _lowest(query, hashes, room)
        support = _lowest(support, hashes, capacity - len(query))
    order = np.concatenate([support, query])
    made_x = np.zeros(x_leaf.shape, _DTYPES[x_leaf.dtype])
    made_y = np.zeros(y_leaf.shape, _DTYPES[y_leaf.dtype])
    made_x[: len(order)], made_y[: len(order)] = x[order], y[order]
    return [made_x, made_y, np.array(len(support), np.int64), np.array(len(query), np.int64)]


def shaped_rows(rows: Rows, wanted: Sequence[Leaf], classes: int | None) -> tuple[Array, Array]:
    """All rows in the shapes and dtypes of the bundle's x and y. Raises MisfitError."""
    x_leaf, y_leaf = wanted[0], wanted[1]
    x = _shaped(rows.x, x_leaf)
    if y_leaf.dtype == NUMBERS:
        return x, _numbers(rows.y, y_leaf)
    return x, _labels(rows.y, y_leaf, classes)


def judges_by_content(hashes: NDArray[np.uint64], query_fraction: float) -> NDArray[np.bool_]:
    """Which rows judge, each by its own content alone, bool[n]."""
    judges: NDArray[np.bool_] = hashes < np.uint64(int(query_fraction * 2**64))
    return judges


def dtype_of(leaf: Leaf) -> np.dtype[Any]:
    """A leaf's dtype, in NumPy's words."""
    return _DTYPES[leaf.dtype]


def _judges(hashes: NDArray[np.uint64], query_fraction: float) -> NDArray[np.bool_]:
    """Which rows judge by their content, bool[n]: one at least, and not all."""
    judges = judges_by_content(hashes, query_fraction)
    if not judges.any():
        judges[hashes.argmin()] = True
    if judges.all():
        judges[hashes.argmax()] = False
    return judges


def _episodes(rows: Rows, wanted: Sequence[Leaf]) -> list[Array]:
    """A table of the labels that have a drawing for each place."""
    leaf = wanted[0]
    characters, drawers = leaf.shape[:2]
    x = _shaped(rows.x, Leaf(leaf.name, leaf.dtype, (len(rows.x), *leaf.shape[2:])))
    table = np.zeros(leaf.shape, _DTYPES[leaf.dtype])
    filled = 0
    for label in distinct(rows.y):
        places = np.flatnonzero(rows.y == label)
        if len(places) >= drawers and filled < characters:
            table[filled] = x[places[:drawers]]
            filled += 1
    if filled == 0:
        raise NoDataError(
            f"no label has the {drawers} examples that an episode draws from", "collect more"
        )
    return [table, np.array(filled, np.int64)]


def _lowest(rows: Array, hashes: Array, count: int) -> Array:
    """`count` of the rows, chosen by their hashes, in their own order."""
    chosen = rows[np.argsort(hashes[rows], kind="stable")[:count]]
    return np.sort(chosen)


def row_hashes(x: Array, y: Array) -> NDArray[np.uint64]:
    """u64[n] of each row's content."""
    if not len(x):
        return np.empty(0, np.uint64)
    first, second = (np.ascontiguousarray(array).reshape(len(x), -1) for array in (x, y))
    wide, narrow = (array.view(np.uint8).reshape(-1).data for array in (first, second))
    step, own = len(wide) // len(x), len(narrow) // len(x)
    digests = bytearray()
    for i in range(len(x)):
        digest = hashlib.blake2b(wide[i * step : (i + 1) * step], digest_size=8)
        digest.update(narrow[i * own : (i + 1) * own])
        digests += digest.digest()
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def _shaped(x: Array, leaf: Leaf) -> Array:
    """Rows in the leaf's shape and dtype."""
    wanted = leaf.shape[1:]
    made = as_rows(x, wanted)
    if made is None:
        raise MisfitError(
            f"this device's rows are {list(x.shape[1:])}, and the bundle takes {list(wanted)}",
            "the run is for other data; or choose columns or image sizes that fit",
        )
    dtype = _DTYPES[leaf.dtype]
    if made.dtype == dtype:
        _check_finite(made)
        return np.ascontiguousarray(made)
    if dtype.kind == "f" and made.dtype.kind in "fiub":
        made = made.astype(dtype)
        _check_finite(made)
        return made
    if dtype.kind in "iu" and made.dtype.kind in "fiub":
        limits = np.iinfo(dtype)
        turned = made.astype(np.int64) if made.dtype.kind != "f" else np.rint(made)
        exact = bool((turned == made).all())
        if exact and made.size and limits.min <= turned.min() and turned.max() <= limits.max:
            return turned.astype(dtype)
    raise MisfitError(
        f"this device's rows are {x.dtype}, and the bundle takes {leaf.dtype}",
        "give whole numbers in its range, or run a bundle that takes f32",
    )


def as_rows(x: Array, wanted: tuple[int, ...]) -> Array | None:
    """`x` [n, ...] as [n, *wanted], by axes of one or folded rows; None if impossible."""
    row = x.shape[1:]
    same = [n for n in row if n != 1] == [n for n in wanted if n != 1]
    folds = len(row) <= 1 and int(np.prod(row)) == int(np.prod(wanted))
    return x.reshape(len(x), *wanted) if same or folds else None


def _check_finite(x: Array) -> None:
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        bad = int((~np.isfinite(x.reshape(len(x), -1)).all(axis=1)).argmax())
        raise MisfitError(f"row {bad} holds a number that is not finite", "leave such rows out")


def _numbers(y: Array, leaf: Leaf) -> NDArray[np.float32]:
    """What is learnt of each row, in the leaf's shape."""
    made = as_rows(y, leaf.shape[1:])
    if made is None or made.dtype.kind not in "fiub":
        raise MisfitError(
            f"this device's numbers to learn are {y.dtype}{list(y.shape)}, and the bundle takes "
            f"{leaf.dtype}{list(leaf.shape)}",
            "give as many numbers a row as the model learns",
        )
    numbers = np.ascontiguousarray(made, np.float32)
    _check_finite(numbers)
    return numbers


def _labels(y: Array, leaf: Leaf, classes: int | None) -> NDArray[np.int32]:
    if y.shape[1:] != leaf.shape[1:] or y.dtype.kind not in "iu":
        raise MisfitError(
            f"this device's labels are {y.dtype}{list(y.shape)}, and the bundle takes "
            f"{leaf.dtype}{list(leaf.shape)}",
            "labels are whole numbers, one a row (or one a step of a sequence)",
        )
    if len(y) and classes is not None and (y.min() < 0 or y.max() >= classes):
        wrong = int(((y < 0) | (y >= classes)).reshape(len(y), -1).any(axis=1).argmax())
        raise MisfitError(
            f"row {wrong} has a label that the model does not know; it has {classes} labels",
            f"labels run from 0 to {classes - 1}",
        )
    return np.ascontiguousarray(y, np.int32)
