"""Filters of hard examples: what each calls hard, by hand, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.placement.cascade.hard_examples import (
    FILTERS,
    IBT,
    CloudOnly,
    CrossEntropy,
    EdgeOnly,
    Random,
    Says,
    Threshold,
    hard,
    limited,
    make,
)

SURE = [0.9, 0.05, 0.05]
TORN = [0.4, 0.3, 0.3]
CERTAIN = [1.0, 0.0, 0.0]


def probabilities(*rows):
    return np.array(rows, np.float32)


def boxes(*images):
    """Images of boxes by their scores; the shorter ones are filled up with scores of zero."""
    width = max(len(scores) for scores in images)
    out = np.zeros((len(images), width, 6), np.float32)
    for image, scores in zip(out, images, strict=True):
        image[: len(scores), 4] = scores
    return out


def test_the_names_and_defaults_are_sedna_s():
    assert list(FILTERS) == ["Threshold", "CrossEntropy", "IBT", "Random", "CloudOnly", "EdgeOnly"]
    assert Threshold().threshold == CrossEntropy().threshold_cross_entropy == 0.5
    assert (IBT().threshold_img, IBT().threshold_box, Random().random_ratio) == (0.5, 0.5, 0.3)


def test_threshold_reads_the_probability_of_the_class_or_the_mean_of_the_boxes():
    rows = probabilities(SURE, TORN)
    chosen = make("Threshold", threshold=0.8, says=Says.PROBABILITIES)
    assert chosen.confidence(rows) == pytest.approx([0.9, 0.4])
    assert hard(chosen, rows).tolist() == [False, True]
    found = make("Threshold", threshold=0.5, says=Says.BOXES)
    assert found.confidence(boxes([0.9, 0.5], [0.4, 0.5])) == pytest.approx([0.7, 0.45])
    assert hard(found, boxes([0.9, 0.5], [0.4, 0.5])).tolist() == [False, True]


def test_cross_entropy_is_one_less_the_entropy_of_the_largest():
    rows = probabilities(SURE, [1 / 3] * 3, CERTAIN)
    by_hand = [1 + sum(p * math.log(p) for p in SURE) / math.log(3), 0.0, 1.0]
    chosen = CrossEntropy(says=Says.PROBABILITIES)
    assert chosen.confidence(rows) == pytest.approx(by_hand, abs=1e-6)
    assert hard(chosen, rows).tolist() == [by_hand[0] < 0.5, True, False]


def test_ibt_counts_the_boxes_that_are_doubtful():
    # Half of the first image's boxes are doubtful, which is just enough to be hard.
    images = boxes([0.2, 0.9], [0.2, 0.9, 0.8], [0.5, 0.1])
    chosen = IBT(says=Says.BOXES)
    assert hard(chosen, images).tolist() == [True, False, True]
    stricter = make("IBT", threshold_img=0.8, says=Says.BOXES)
    assert hard(stricter, images).tolist() == [True, True, True]


def test_an_image_without_boxes_is_easy():
    for name in ("Threshold", "IBT"):
        assert not hard(make(name, says=Says.BOXES), boxes([], [])).any()


def test_a_sequence_is_judged_by_its_positions():
    rows = np.array([[SURE, SURE, TORN], [TORN, TORN, SURE]], np.float32)
    mean = Threshold(0.7, Says.PROBABILITIES)
    assert mean.confidence(rows) == pytest.approx([2.2 / 3, 1.7 / 3])
    assert hard(mean, rows).tolist() == [False, True]
    assert hard(IBT(says=Says.PROBABILITIES), rows).tolist() == [False, True]


def test_logits_are_made_probabilities_whatever_their_size():
    logits = np.array([[1000.0, 998.0], [-2000.0, -2000.0]], np.float32)
    best = 1 / (1 + math.exp(-2.0))
    assert Threshold().confidence(logits) == pytest.approx([best, 0.5])


@pytest.mark.parametrize("name", ["Threshold", "CrossEntropy", "IBT"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_answer_that_is_not_finite_is_hard(name, bad):
    logits = np.array([[bad, 0.0], [5.0, 0.0]], np.float32)
    chosen = make(name, says=Says.LOGITS)
    assert np.isnan(chosen.confidence(logits)).tolist() == [True, False]
    assert hard(chosen, logits).tolist() == [True, False]


def test_a_score_outside_a_probability_is_hard():
    assert hard(Threshold(says=Says.BOXES), boxes([0.9, 1.5])).tolist() == [True]
    assert hard(Threshold(says=Says.PROBABILITIES), probabilities([1.2, -0.2])).tolist() == [True]


def test_random_is_a_share_and_the_same_again_whatever_the_batches():
    chosen = make("Random", random_ratio=0.25, seed=7)
    rows = np.zeros((4000, 2), np.float32)
    all_at_once = hard(chosen, rows, first=10)
    assert abs(all_at_once.mean() - 0.25) < 0.03
    assert hard(chosen, None, first=10 + 123).tolist() == [all_at_once[123]]
    assert (hard(make("Random", random_ratio=0.25, seed=8), rows, first=10) != all_at_once).any()
    assert not hard(make("Random", random_ratio=0.0), rows).any()
    assert hard(make("Random", random_ratio=1.0), rows).all()


def test_cloud_only_sends_all_and_edge_only_nothing():
    rows = probabilities(SURE, TORN)
    assert hard(CloudOnly(), rows).tolist() == [True, True]
    assert hard(EdgeOnly(), rows).tolist() == [False, False]
    assert hard(CloudOnly(), None).tolist() == [True]


def test_a_limit_that_was_calibrated_means_the_same_to_every_filter():
    images = boxes([0.2, 0.9], [0.9, 0.8])
    for name in ("Threshold", "IBT"):
        chosen = make(name, says=Says.BOXES)
        limit = float(chosen.confidence(images)[1])
        assert hard(limited(chosen, limit), images).tolist() == [True, False]
    with pytest.raises(DelianError, match="no threshold"):
        limited(CloudOnly(), 0.5)


def test_what_is_wrong_is_refused_in_words():
    with pytest.raises(DelianError, match="BertRouter"):
        make("BertRouter")
    with pytest.raises(DelianError, match="no parameter threshold"):
        make("IBT", threshold=0.5)
    with pytest.raises(DelianError, match="from 0 to 1"):
        make("Threshold", threshold=-0.1)
    with pytest.raises(DelianError, match="none yet"):
        hard(Threshold(), None)
    with pytest.raises(DelianError, match="no boxes"):
        hard(Threshold(says=Says.BOXES), np.zeros((2, 3)))
    with pytest.raises(DelianError, match="classes, not boxes"):
        hard(CrossEntropy(says=Says.BOXES), boxes([0.5]))
    with pytest.raises(DelianError, match="no classes"):
        hard(Threshold(), np.zeros(3))
