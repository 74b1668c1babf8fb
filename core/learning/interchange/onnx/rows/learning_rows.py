"""Operators of ai.onnx.ml on numbers: labels, features, trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from .....compiler.ir import Tensor
from ..onnx_errors import OnnxError
from ..operator_rows import Row, Rows


def feature_extractor(x: Tensor, places: Tensor) -> Tensor:
    """ArrayFeatureExtractor: columns of the last axis."""
    found = x[..., places.reshape(-1)]
    return found.reshape(1, -1) if x.ndim == 1 else found


def binarizer(x: Tensor, *, threshold: float = 0.0) -> Tensor:
    """Binarizer: one above the threshold, else zero."""
    return (x > threshold).astype(x.dtype)


def label_encoder(
    x: Tensor,
    *,
    default_float: float = 0.0,
    default_int64: int = -1,
    default_string: str = "",
    default_tensor: Tensor = None,
    keys_floats: tuple[float, ...] | None = None,
    keys_int64s: tuple[int, ...] | None = None,
    keys_tensor: Tensor = None,
    values_floats: tuple[float, ...] | None = None,
    values_int64s: tuple[int, ...] | None = None,
    values_tensor: Tensor = None,
) -> Tensor:
    """LabelEncoder of numbers: a value for each key, else the default. NaN is equal to NaN."""
    keys = values = None
    if keys_tensor is not None:
        keys = keys_tensor
    elif keys_floats is not None:
        keys = np.array(keys_floats, np.float32)
    elif keys_int64s is not None:
        keys = np.array(keys_int64s, np.int64)
    if values_tensor is not None:
        values = values_tensor
    elif values_floats is not None:
        values = np.array(values_floats, np.float32)
    elif values_int64s is not None:
        values = np.array(values_int64s, np.int64)
    if keys is None or values is None or "O" in (keys.dtype.kind, values.dtype.kind):
        raise OnnxError("LabelEncoder of strings: strings are no numbers of a program")
    if default_tensor is not None:
        rest = default_tensor.reshape(())
    else:
        rest = default_float if values.dtype.kind == "f" else default_int64
    same = x[..., None] == keys
    if x.dtype.kind == "f":
        same = same | (np.isnan(x)[..., None] & np.isnan(keys))
    chosen = values[np.argmax(same, axis=-1)]
    return np.where(np.any(same, axis=-1), chosen, rest).astype(values.dtype)


#: Comparisons of a tree's node by number, and what leaves are put together by.
_LEQ, _LT, _GTE, _GT, _EQ, _NEQ = range(6)
_AVERAGE, _SUM, _MIN, _MAX = range(4)


def tree_ensemble(
    x: Tensor,
    *,
    aggregate_function: int = 1,
    leaf_targetids: tuple[int, ...],
    leaf_weights: Tensor,
    membership_values: Tensor = None,
    n_targets: int,
    nodes_falseleafs: tuple[int, ...],
    nodes_falsenodeids: tuple[int, ...],
    nodes_featureids: tuple[int, ...],
    nodes_hitrates: Tensor = None,
    nodes_missing_value_tracks_true: tuple[int, ...] | None = None,
    nodes_modes: Tensor,
    nodes_splits: Tensor,
    nodes_trueleafs: tuple[int, ...],
    nodes_truenodeids: tuple[int, ...],
    post_transform: int = 0,
    tree_roots: tuple[int, ...],
) -> Tensor:
    """TreeEnsemble without set membership: every leaf's weight, under the conditions to it."""
    if membership_values is not None or post_transform:
        raise OnnxError("TreeEnsemble with set membership or a post transform is not read")

    def leaf(k: int) -> Any:
        return [(leaf_targetids[k], float(leaf_weights[k]), None)]

    def leaves(node: int, under: Any) -> Any:
        """(target, weight, condition) of the leaves below a node."""
        value, split = x[:, nodes_featureids[node]], nodes_splits[node]
        goes = _compared(int(nodes_modes[node]), value, split)
        if nodes_missing_value_tracks_true is not None and nodes_missing_value_tracks_true[node]:
            goes = goes | np.isnan(value)
        found = []
        for way, child, end in (
            (goes, nodes_truenodeids[node], nodes_trueleafs[node]),
            (~goes, nodes_falsenodeids[node], nodes_falseleafs[node]),
        ):
            both = way if under is None else under & way
            below = leaf(child) if end else leaves(child, both)
            found.extend([(t, w, both if c is None else c) for t, w, c in below])
        return found

    trees = [leaves(root, None) for root in tree_roots]
    return _aggregated(x, trees, n_targets, aggregate_function)


def _compared(mode: int, value: Tensor, split: Tensor) -> Tensor:
    if mode == _LEQ:
        return value <= split
    if mode == _LT:
        return value < split
    if mode == _GTE:
        return value >= split
    if mode == _GT:
        return value > split
    if mode == _EQ:
        return value == split
    if mode == _NEQ:
        return value != split
    raise OnnxError("TreeEnsemble with set membership is not read")


def _aggregated(x: Tensor, trees: Any, targets: int, how: int) -> Tensor:
    """The leaves of all trees as [N, targets]."""
    columns = []
    for target in [*range(targets)]:
        start = {_MIN: np.finfo(x.dtype).max, _MAX: np.finfo(x.dtype).min}.get(how, 0.0)
        column = np.full(x.shape[0], start, x.dtype)
        for tree in trees:
            for t, weight, there in tree:
                if t != target:
                    continue
                if how == _MIN:
                    column = np.where(there, np.minimum(column, weight), column)
                elif how == _MAX:
                    column = np.where(there, np.maximum(column, weight), column)
                else:
                    share = weight / len(trees) if how == _AVERAGE else weight
                    column = np.where(there, column + share, column)
        columns.append(column.astype(x.dtype))
    return np.stack(columns, 1)


LEARNING_ROWS: Rows = {
    "ArrayFeatureExtractor": Row(feature_extractor),
    "Binarizer": Row(binarizer),
    "LabelEncoder": Row(label_encoder, since=2),
    "TreeEnsemble": Row(tree_ensemble),
}
