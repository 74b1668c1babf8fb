"""Boxes of detectors: eager and native alike, against plain loops over the papers' rules."""

from __future__ import annotations

import math

import delian as dl
import numpy as np
import pytest
from delian.core.compiler import ops

RNG = np.random.default_rng(5)


def some_boxes(count, grid=False):
    """Boxes with an area; on a grid many overlaps and scores tie."""
    low = RNG.integers(0, 8, (count, 2)) if grid else RNG.uniform(0, 20, (count, 2))
    sides = RNG.integers(1, 5, (count, 2)) if grid else RNG.uniform(1, 15, (count, 2))
    return np.concatenate([low, low + sides], axis=1).astype(np.float32)


def iou(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    both = max(width, 0) * max(height, 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both
    return both / union if union else math.nan


def suppressed(boxes, scores, threshold, count, classes=None, least=-math.inf):
    """Greedily, one pair at a time."""
    kept = []
    for k in np.argsort(-scores, kind="stable"):
        rivals = [j for j in kept if classes is None or classes[j] == classes[k]]
        if scores[k] > least and not any(iou(boxes[j], boxes[k]) > threshold for j in rivals):
            kept.append(int(k))
    return [*kept, *[-1] * count][:count]


def run(f, *args, atol=0.0):
    """Native, after checking that plain Python gives the same.

    GCC may fuse a product and a sum: where like numbers cancel, `atol` is their rounding.
    """
    got, want = dl.compile(f)(*args), f(*args)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=atol)
    return got


@pytest.mark.parametrize("grid", [False, True], ids=["plane", "grid"])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 1.0])
def test_suppression_is_the_greedy_rule(grid, threshold):
    boxes = some_boxes(60, grid)
    scores = (RNG.integers(0, 9, 60) / 8).astype(np.float32)
    classes = RNG.integers(0, 3, 60)
    for count in (5, 70):

        def all_alike(boxes, scores, count=count):
            return ops.non_max_suppression(boxes, scores, threshold, count)

        def by_class(boxes, scores, classes, count=count):
            return ops.non_max_suppression(boxes, scores, threshold, count, classes, 0.25)

        got = run(all_alike, boxes, scores)
        assert got.tolist() == suppressed(boxes, scores, threshold, count)
        got = run(by_class, boxes, scores, classes)
        assert got.tolist() == suppressed(boxes, scores, threshold, count, classes, 0.25)


def test_suppression_compares_with_the_threshold_itself():
    """11 / 20 in f32 is greater than 0.55, as torchvision finds."""
    boxes = np.array([[0, 0, 20, 1], [0, 0, 11, 1]], np.float32)
    scores = np.array([0.5, 0.4], np.float32)
    got = run(lambda b, s: ops.non_max_suppression(b, s, 0.55, 2), boxes, scores)
    assert got.tolist() == [0, -1]


def test_suppression_of_images_in_lanes_and_of_nothing():
    boxes = np.stack([some_boxes(30) for _ in range(3)])
    scores = RNG.uniform(size=(3, 30)).astype(np.float32)

    def one(boxes, scores):
        return ops.non_max_suppression(boxes, scores, 0.4, 8)

    got = run(dl.vmap(one), boxes, scores)
    for k in range(3):
        assert got[k].tolist() == suppressed(boxes[k], scores[k], 0.4, 8)
    assert run(one, boxes[0, :0], scores[0, :0]).tolist() == [-1] * 8
    flat = np.zeros((2, 4), np.float32)  # boxes without area suppress none
    assert run(one, flat, scores[0, :2]).tolist()[2:] == [-1] * 6


def test_a_nan_is_the_largest_score_as_in_pytorch():
    scores = np.array([0.5, np.nan, 0.9], np.float32)
    boxes = np.array([[0, 0, 1, 1], [0, 0, 1, 1], [5, 5, 6, 6]], np.float32)
    got = run(lambda b, s: ops.non_max_suppression(b, s, 0.5, 3), boxes, scores)
    assert got.tolist() == [1, 2, -1]


def test_slopes_pass_through_the_boxes_that_are_taken():
    boxes, scores = some_boxes(12), RNG.uniform(size=12).astype(np.float32)

    def total(boxes, scores):
        places = ops.non_max_suppression(boxes, scores, 0.4, 5)
        taken = np.where(places[:, None] < 0, 0, boxes[np.maximum(places, 0)])
        return np.sum(taken) + np.sum(scores[places[:1]])

    slope, of_scores = dl.compile(dl.grad(total, argnums=(0, 1)))(boxes, scores)
    kept = [k for k in suppressed(boxes, scores, 0.4, 5) if k >= 0]
    want = np.zeros(12)
    want[kept] = 1
    np.testing.assert_array_equal(slope, np.repeat(want[:, None], 4, 1))
    np.testing.assert_array_equal(np.flatnonzero(of_scores), kept[:1])


def test_what_does_not_fit_is_refused():
    boxes, scores = some_boxes(3), np.ones(3, np.float32)
    with pytest.raises(ValueError, match=r"boxes \[\.\.\., 4\]"):
        ops.non_max_suppression(boxes[:, :3], scores, 0.5, 3)
    with pytest.raises(ValueError, match="positive count"):
        ops.non_max_suppression(boxes, scores[:2], 0.5, 3)
    with pytest.raises(ValueError, match="positive count"):
        ops.non_max_suppression(boxes, scores, 0.5, 0)
    with pytest.raises(ValueError, match="a class for each box"):
        ops.non_max_suppression(boxes, scores, 0.5, 3, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="forced is"):
        ops.match_anchors(np.ones((1, 2)), np.ones(1, bool), 0.5, 0.4, "all")


def test_overlaps_of_all_pairs():
    a, b = some_boxes(4), some_boxes(3)
    want = [[iou(x, y) for y in b] for x in a]
    np.testing.assert_allclose(run(ops.box_iou, a, b), want, rtol=1e-5)
    np.testing.assert_array_equal(run(ops.box_iou, a[None], b[None])[0], ops.box_iou(a, b))


def test_codes_and_boxes_are_inverses():
    boxes, anchors = some_boxes(6), some_boxes(6)
    weights = (10.0, 10.0, 5.0, 5.0)
    codes = run(lambda b, a: ops.encode_boxes(b, a, weights), boxes, anchors, atol=1e-5)
    sides = anchors[:, 2] - anchors[:, 0]
    middle, of_anchor = boxes[:, ::2].mean(1), anchors[:, ::2].mean(1)
    np.testing.assert_allclose(codes[:, 0], 10 * (middle - of_anchor) / sides, rtol=1e-4, atol=1e-5)
    back = run(lambda c, a: ops.decode_boxes(c, a, weights), codes, anchors, atol=1e-5)
    np.testing.assert_allclose(back, boxes, rtol=1e-4, atol=1e-4)
    wild = ops.decode_boxes(np.array([0, 0, 99, 0], np.float32), np.array([0, 0, 1, 1], np.float32))
    np.testing.assert_allclose(wild[2] - wild[0], 1000 / 16, rtol=1e-5)


def test_boxes_are_cut_at_the_edges_of_an_image():
    boxes = np.array([[-3, 2, 50, 40], [1, -1, 2, 3]], np.float32)
    got = run(lambda b: ops.clip_boxes(b, 30, 20), boxes)
    np.testing.assert_array_equal(got, [[0, 2, 20, 30], [1, 0, 2, 3]])


OVERLAPS = np.array(
    [[0.6, 0.45, 0.1, 0.0, 0.3], [0.2, 0.1, 0.3, 0.0, 0.3], [0.9, 0.9, 0.9, 0.9, 0.9]], np.float32
)
VALID = np.array([True, True, False])


@pytest.mark.parametrize(
    ("forced", "want"),
    [
        ("none", [0, -2, -1, -1, -1]),
        ("ties", [0, -2, 1, -1, 0]),  # box 1 overlaps anchors 2 and 4 most; 4 is nearest to box 0
        ("best", [0, -2, 1, -1, -1]),
    ],
)
def test_anchors_are_matched(forced, want):
    got = run(lambda q, v: ops.match_anchors(q, v, 0.5, 0.4, forced), OVERLAPS, VALID)
    assert got.tolist() == want
    nothing = ops.match_anchors(OVERLAPS, np.zeros(3, bool), 0.5, 0.4, forced)
    assert nothing.tolist() == [-1] * 5


def test_hard_negatives_are_the_largest():
    losses = np.array([[5, 1, 4, 2, 4, 3], [1, 2, 3, 4, 5, 6]], np.float32)
    positives = np.array([[1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]], bool)
    got = run(lambda x, p: ops.hard_negatives(x, p, 2.5), losses, positives)
    assert got.astype(int).tolist() == [[0, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0]]
    every = ops.hard_negatives(losses, positives, 99)
    assert every.astype(int).tolist() == [[0, 1, 1, 1, 1, 1], [0] * 6]


def test_focal_loss_is_a_weighted_cross_entropy():
    x = np.array([-2.0, 0.5, 3.0, 60.0], np.float32)
    t = np.array([0.0, 1.0, 1.0, 1.0], np.float32)
    p = 1 / (1 + np.exp(-x.astype(np.float64)))
    right = np.where(t == 1, p, 1 - p)
    want = np.where(t == 1, 0.25, 0.75) * (1 - right) ** 2 * -np.log(right)
    np.testing.assert_allclose(run(ops.sigmoid_focal, x, t), want, rtol=1e-5, atol=1e-12)
    slope = dl.compile(dl.grad(lambda x: np.sum(ops.sigmoid_focal(x, t))))(x)
    assert np.isfinite(slope).all()
