"""Boxes of detectors."""

from __future__ import annotations

import numpy as np

from .....compiler import ops
from .....compiler.ir import Tensor
from ..operator_rows import Row, Rows
from .shape_rows import ints


def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    limit: Tensor = None,
    iou_threshold: Tensor = None,
    score_threshold: Tensor = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    """NonMaxSuppression: boxes [N, S, 4], scores [N, C, S] -> i64[found, 3].

    Rows are (image, class, box), those of a class by falling scores. How many are found is known
    when the program runs; their limit, the boxes of a class, when it is compiled.
    """
    images, classes, count = scores.shape
    most = 0 if limit is None else min(ints(limit)[0], count)
    if most <= 0 or images * classes == 0:
        return np.zeros((0, 3), np.int64)
    # No overlap, and no area, suppresses nothing, whatever the threshold.
    overlap = 0.0 if iou_threshold is None else np.maximum(iou_threshold.reshape(-1)[0], 0)
    least = None if score_threshold is None else score_threshold.reshape(-1)[0]
    corners = _corners(boxes, center_point_box == 1)
    kept = np.zeros((images, classes, most), np.int64)
    for n in range(images):
        for c in range(classes):
            kept[n, c] = ops.non_max_suppression(
                corners[n], scores[n, c], overlap, most, score_threshold=least
            )
    image = np.broadcast_to(np.arange(images)[:, None, None], kept.shape)
    kind = np.broadcast_to(np.arange(classes)[:, None], kept.shape)
    rows = np.stack([image, kind, kept], axis=-1).reshape(-1, 3)
    return rows[rows[:, 2] >= 0]


def _corners(boxes: Tensor, centred: bool) -> Tensor:
    """Boxes by their lower and upper corner: from a centre and sides, or from any two corners."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if centred:
        return np.concatenate([first - second / 2, first + second / 2], axis=-1)
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)


BOX_ROWS: Rows = {"NonMaxSuppression": Row(non_max_suppression, known=(2,))}
