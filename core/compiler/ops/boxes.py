"""Boxes of detectors: overlaps, codes, matches and suppression, all of sizes that are known.

A box is (left, top, right, bottom), f32[..., 4]. Where the data decide how many boxes there are,
there is room for the most, and -1 or a mask says which places are empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..intrinsics import stop_gradient
from ..ir import Array

#: Decoded sides are no more times as long as the anchor's (Detectron's bound, and torchvision's).
GROWTH_MAX = 1000.0 / 16


def box_area(boxes: Array) -> Array:
    """Areas: f32[..., 4] -> f32[...]."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])  # type: ignore[no-any-return]


def box_iou(a: Array, b: Array) -> Array:
    """Intersection over union of all pairs: f32[..., A, 4], f32[..., B, 4] -> f32[..., A, B].

    NaN for two boxes without area.
    """
    _check_boxes("box_iou", a)
    _check_boxes("box_iou", b)
    low = np.maximum(a[..., :, None, :2], b[..., None, :, :2])
    high = np.minimum(a[..., :, None, 2:], b[..., None, :, 2:])
    sides = np.maximum(high - low, 0)
    both = sides[..., 0] * sides[..., 1]
    return both / (box_area(a)[..., :, None] + box_area(b)[..., None, :] - both)  # type: ignore[no-any-return]


def clip_boxes(boxes: Array, height: float, width: float) -> Array:
    """The part of each box that is within an image: f32[..., 4] -> f32[..., 4]."""
    _check_boxes("clip_boxes", boxes)
    across = np.clip(boxes[..., 0::2], 0, width)
    down = np.clip(boxes[..., 1::2], 0, height)
    return np.stack([across, down], axis=-1).reshape(boxes.shape)


def encode_boxes(
    boxes: Array, anchors: Array, weights: Sequence[float] = (1.0, 1.0, 1.0, 1.0)
) -> Array:
    """What a detector has to say of an anchor so that it means a box.

    f32[..., 4], f32[..., 4] -> f32[..., 4] (Girshick et al. 2014, appendix C).

    Shifts of the centre by sides of the anchor, and logarithms of the sides' ratios, each times its
    weight (x, y, width, height). All boxes and anchors have an area.
    """
    centre, sides = _centres(boxes)
    from_centre, from_sides = _centres(anchors)
    scale = np.asarray(weights, boxes.dtype)
    shifts = scale[:2] * (centre - from_centre) / from_sides
    return np.concatenate([shifts, scale[2:] * np.log(sides / from_sides)], axis=-1)


def decode_boxes(
    codes: Array,
    anchors: Array,
    weights: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
    growth: float = GROWTH_MAX,
) -> Array:
    """The boxes that codes of anchors mean, the inverse of `encode_boxes`.

    f32[..., 4], f32[..., 4] -> f32[..., 4].

    growth: the largest ratio of a box's side to the anchor's.
    """
    centre, sides = _centres(anchors)
    scale = np.asarray(weights, codes.dtype)
    codes = codes / scale
    middle = codes[..., :2] * sides + centre
    half = 0.5 * np.exp(np.minimum(codes[..., 2:], math.log(growth))) * sides
    return np.concatenate([middle - half, middle + half], axis=-1)


def match_anchors(
    overlaps: Array, valid: Array, high: float, low: float, forced: str = "none"
) -> Array:
    """The box that each anchor is trained for: f32[G, A], bool[G] -> i64[A].

    Args:
        overlaps: of boxes with anchors, as `box_iou` gives them.
        valid: False for rows of `overlaps` that are no box.
        high: an anchor is matched to the box that it overlaps most, where the overlap is at least
            this.
        low: it is background (-1) where the overlap is less, and counts as neither (-2) between.
        forced: "none"; "ties": the anchors that overlap a box most, all that tie, are matched to
            whichever box each overlaps most (Ren et al. 2015); "best": the first of them is matched
            to this box (Liu et al. 2016).

    Raises:
        ValueError: `forced` is something else.
    """
    if forced not in ("none", "ties", "best"):
        raise ValueError(f"match_anchors: forced is 'none', 'ties' or 'best', not {forced!r}")
    quality = np.where(valid[:, None], overlaps, -1)
    nearest, best = np.argmax(quality, axis=0), np.max(quality, axis=0)
    found = np.where(best < low, -1, np.where(best < high, -2, nearest))
    if forced == "ties":
        top = np.max(quality, axis=1, keepdims=True)
        kept = np.any(valid[:, None] & (quality == top), axis=0)
        return np.where(kept, nearest, found)
    if forced == "best":
        # One place more takes what rows that are no box write.
        count, anchors = quality.shape
        room = np.concatenate([found, np.zeros(1, found.dtype)])
        room[np.where(valid, np.argmax(quality, axis=1), anchors)] = np.arange(count)
        return room[:anchors]
    return found


def hard_negatives(losses: Array, positives: Array, ratio: float) -> Array:
    """The negatives with the largest losses: f32[N, A], bool[N, A] -> bool[N, A].

    In each row fewer than `ratio` times as many as positives, rounded up (Liu et al. 2016, section
    2.2). Of equal losses the first counts as larger.
    """
    value = np.where(positives, -np.inf, stop_gradient(losses))
    order = np.argsort(-value, axis=-1, kind="stable")
    ranks = np.argsort(order, axis=-1, kind="stable")
    wanted = ratio * np.sum(positives, axis=-1, keepdims=True)
    return (ranks < wanted) & ~positives  # type: ignore[no-any-return]


def non_max_suppression(
    boxes: Array,
    scores: Array,
    iou_threshold: float,
    count: int,
    classes: Array | None = None,
    score_threshold: float | None = None,
) -> Array:
    """The boxes that remain where each suppresses those of lower scores that overlap it.

    The results are torchvision's `nms`, or its `batched_nms` class by class, cut to `count`; work
    and memory are those of `count` times N overlaps, and of no matrix of N times N.

    Args:
        boxes: f32[N, 4].
        scores: f32[N]. Of equals the first counts as larger; NaN is larger than every number.
        iou_threshold: a box goes where its overlap with one that remains is greater.
        count: how many boxes there may be.
        classes: integers [N]; boxes suppress those of their own class alone. None: all are of one.
        score_threshold: boxes whose scores are not greater take no part. None: all do.

    Returns:
        i64[count]: the places of the boxes, by falling scores; -1 after the last.

    Raises:
        ValueError: shapes do not fit one another, or `count` is not positive.
    """
    _check_boxes("non_max_suppression", boxes)
    rows = scores.shape[0]
    if boxes.ndim != 2 or scores.shape != boxes.shape[:1] or count < 1:
        raise ValueError(
            f"non_max_suppression takes boxes [N, 4], scores [N] and a positive count, not shapes "
            f"{list(boxes.shape)} and {list(scores.shape)} and {count}"
        )
    if classes is not None and classes.shape != scores.shape:
        raise ValueError(
            f"non_max_suppression takes a class for each box, not shape {list(classes.shape)}"
        )
    if rows == 0:
        return np.full(count, -1, np.int64)
    # The stable falling order is the rising one of the reversed array, reversed.
    order = rows - 1 - np.flip(np.argsort(np.flip(scores), kind="stable"))
    left, top, right, bottom = stop_gradient(boxes)[order].T
    areas = (right - left) * (bottom - top)
    kinds = None if classes is None else classes[order]
    places = np.arange(rows)
    alive = np.ones(rows, np.bool_)
    if score_threshold is not None:
        alive = scores[order] > score_threshold
    kept = np.full(count, -1, np.int64)
    found = 0
    while found < count and np.any(alive):
        best = np.argmax(alive)
        width = np.minimum(right, right[best]) - np.maximum(left, left[best])
        height = np.minimum(bottom, bottom[best]) - np.maximum(top, top[best])
        both = np.maximum(width, 0) * np.maximum(height, 0)
        union = areas[best] + areas - both
        overlap = np.where(union == 0, 0, both / np.where(union == 0, 1, union))
        # The threshold is no f32: the comparison is of f64, as torchvision's.
        gone = overlap.astype(np.float64) > iou_threshold
        if kinds is not None:
            gone = gone & (kinds == kinds[best])
        alive = alive & ~gone & (places != best)
        kept[found] = order[best]
        found = found + 1
    return kept


def _check_boxes(name: str, boxes: Array) -> None:
    if boxes.ndim < 2 or boxes.shape[-1] != 4:
        raise ValueError(f"{name} takes boxes [..., 4], not shape {list(boxes.shape)}")


def _centres(boxes: Array) -> tuple[Array, Array]:
    """(centres, sides), f32[..., 2] each."""
    sides = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + 0.5 * sides, sides
