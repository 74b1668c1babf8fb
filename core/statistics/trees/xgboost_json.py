"""Forests as XGBoost's JSON (`save_model`), without what describes the training data.

Sums of Hessians say how many rows reach each node (Haag and others 2025, arXiv 2506.07605): they
are 0 here, and so are the weights of nodes that are no leaves. Predictions need neither; SHAP
values of XGBoost (`pred_contribs`) do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .bins import F32
from .forest import Forest

#: The version whose schema this is.
VERSION = (3, 2, 0)
_NO_PARENT = 2147483647
_WHOLE = np.float32(1)
_PARAMETERS = {
    "reg:squarederror": ("reg_loss_param", {"scale_pos_weight": "1"}),
    "binary:logistic": ("reg_loss_param", {"scale_pos_weight": "1"}),
    "count:poisson": ("poisson_regression_param", {"max_delta_step": "0.7"}),
}


def _number(value: np.float32) -> str:
    return np.format_float_scientific(value, unique=True, trim="0")


def xgboost_model(
    forest: Forest, names: Sequence[str], objective: str, base_score: F32
) -> dict[str, Any]:
    """A model as XGBoost's JSON has it. base_score: f32[outputs], as users give it."""
    outputs, several = forest.outputs, objective == "multi:softprob"
    parameter, settings = (
        ("softmax_multiclass_param", {"num_class": str(outputs)})
        if several
        else _PARAMETERS[objective]
    )
    trees = [_tree(forest, t, len(names)) for t in range(forest.trees)]
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(forest.trees)},
        "iteration_indptr": list(range(0, forest.trees + 1, outputs)),
        "tree_info": list(forest.output_of),
        "trees": trees,
    }
    said = {"name": objective, parameter: settings}
    return _learner(names, model, said, base_score, classes=outputs if several else 0, targets=1)


def xgboost_forest(forest: Forest, names: Sequence[str]) -> dict[str, Any]:
    """A random forest as XGBoost's JSON: its predictions are the means of the trees.

    Each output has its own copy of the trees: classes are targets of a regression.
    """
    outputs, count = forest.outputs, forest.trees
    share = np.float32(1 / count)
    trees = [
        {**_tree(forest, t, len(names), k, share), "id": k * count + t}
        for k in range(outputs)
        for t in range(count)
    ]
    model = {
        "gbtree_model_param": {"num_parallel_tree": str(count), "num_trees": str(len(trees))},
        "iteration_indptr": [0, len(trees)],
        "tree_info": np.repeat(np.arange(outputs), count).tolist(),
        "trees": trees,
    }
    parameter, settings = _PARAMETERS["reg:squarederror"]
    said = {"name": "reg:squarederror", parameter: settings}
    return _learner(names, model, said, np.zeros(outputs, np.float32), classes=0, targets=outputs)


def _learner(
    names: Sequence[str],
    model: dict[str, Any],
    objective: dict[str, Any],
    base_score: F32,
    *,
    classes: int,
    targets: int,
) -> dict[str, Any]:
    none: dict[str, list[Any]] = {"enc": [], "feature_segments": [], "sorted_idx": []}
    return {
        "learner": {
            "attributes": {},
            "feature_names": list(names),
            "feature_types": ["float"] * len(names),
            "gradient_booster": {"model": {"cats": none, **model}, "name": "gbtree"},
            "learner_model_param": {
                "base_score": f"[{','.join(_number(v) for v in base_score)}]",
                "boost_from_average": "1",
                "num_class": str(classes),
                "num_feature": str(len(names)),
                "num_target": str(targets),
            },
            "objective": objective,
        },
        "version": list(VERSION),
    }


def _tree(
    forest: Forest, tree: int, features: int, output: int = 0, share: np.float32 = _WHOLE
) -> dict[str, Any]:
    part = slice(int(forest.starts[tree]), int(forest.starts[tree + 1]))
    feature, left = forest.feature[part], forest.left[part].astype(np.int64)
    inner = feature >= 0
    nodes = len(feature)
    value = forest.value[part, output] * share
    parents = np.full(nodes, _NO_PARENT)
    parents[left[inner]] = parents[left[inner] + 1] = np.flatnonzero(inner)
    return {
        "base_weights": np.where(inner, 0.0, value).tolist(),
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
        "default_left": forest.missing_left[part].astype(int).tolist(),
        "id": tree,
        "left_children": np.where(inner, left, -1).tolist(),
        "loss_changes": forest.gain[part].tolist(),
        "parents": parents.tolist(),
        "right_children": np.where(inner, left + 1, -1).tolist(),
        # f32 as f64: read back, it is the same f32.
        "split_conditions": np.where(inner, forest.threshold[part], value).tolist(),
        "split_indices": np.where(inner, feature, 0).tolist(),
        "split_type": [0] * nodes,
        "sum_hessian": [0.0] * nodes,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(features),
            "num_nodes": str(nodes),
            "size_leaf_vector": "1",
        },
    }
