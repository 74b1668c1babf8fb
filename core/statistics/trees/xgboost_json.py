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
    base = [_number(v) for v in base_score]
    return {
        "learner": {
            "attributes": {},
            "feature_names": list(names),
            "feature_types": ["float"] * len(names),
            "gradient_booster": {
                "model": {
                    "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
                    "gbtree_model_param": {
                        "num_parallel_tree": "1",
                        "num_trees": str(forest.trees),
                    },
                    "iteration_indptr": list(range(0, forest.trees + 1, outputs)),
                    "tree_info": list(forest.output_of),
                    "trees": [_tree(forest, t, len(names)) for t in range(forest.trees)],
                },
                "name": "gbtree",
            },
            "learner_model_param": {
                "base_score": f"[{','.join(base)}]",
                "boost_from_average": "1",
                "num_class": str(outputs if several else 0),
                "num_feature": str(len(names)),
                "num_target": "1",
            },
            "objective": {"name": objective, parameter: settings},
        },
        "version": list(VERSION),
    }


def _tree(forest: Forest, tree: int, features: int) -> dict[str, Any]:
    part = slice(int(forest.starts[tree]), int(forest.starts[tree + 1]))
    feature, left = forest.feature[part], forest.left[part].astype(np.int64)
    inner = feature >= 0
    nodes = len(feature)
    value = forest.value[part, 0]
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
