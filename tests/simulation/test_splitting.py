"""Split training under federated rounds: what is added, averaged, hidden and charged."""

from __future__ import annotations

import json
from dataclasses import replace

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler import random, tree
from delian.core.learning import Classification, Episodes, Samples, SampleSet
from delian.core.learning.leaf_roles import leaf_names
from delian.core.learning.nn import Mlp, sgd
from delian.core.placement.cut.problem import PlacementError
from delian.core.placement.split_training.step_sides import Sharing
from delian.core.privacy.mechanisms.activation_noise import BoundaryError, Shield
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.simulations.federation.secure_sum import secure_sum
from delian.simulations.runs.split_federation import SplitPlan, SplitRun

INPUTS, CLASSES, CAPACITY = 6, 3, 20
MIDDLE = ("layers.1.",)
TASK = Classification(
    "blobs", lambda key: Mlp.init(key, INPUTS, (5, 7), CLASSES), Samples(4, 1.0, query_size=8)
)
PLAN = SplitPlan(MIDDLE, rounds=2, local_steps=3, edges=2, optimizer=sgd(0.2))


def device(seed, support=12):
    """Rows about one of three centres; the rest of the capacity is not to be seen by anybody."""
    rng = np.random.default_rng([5, seed])
    y = rng.integers(0, CLASSES, CAPACITY)
    centres = np.random.default_rng(9).normal(size=(CLASSES, INPUTS)) * 2
    x = (centres[y] + rng.normal(size=(CAPACITY, INPUTS))).astype(np.float32)
    x[support + 4 :] = np.nan
    return SampleSet(x, y, np.array(support), np.array(4))


DEVICES = [device(seed, support) for seed, support in enumerate((12, 9, 12, 2, 10, 12))]


def trained(plan=PLAN, devices=DEVICES, task=TASK):
    run = SplitRun(plan, task, devices, backend="reference")
    return run, run.run()


def leaves(run):
    return [np.asarray(leaf) for leaf in tree.leaves(run.model)]


def apart(one, other):
    return max(np.abs(a - b).max() for a, b in zip(leaves(one), leaves(other), strict=True))


def test_masked_sums_give_the_same_model_to_the_bit():
    masked, _ = trained(replace(PLAN, secure=True))
    plain, _ = trained(replace(PLAN, secure=False))
    assert apart(masked, plain) == 0.0


ADAPTED = replace(
    TASK, init=lambda key: dl.lora(Mlp.init(key, INPUTS, (5, 7), CLASSES), 2, ("0", "1", "2"), 4)
)


@pytest.mark.parametrize("sharing", list(Sharing))
def test_rounds_of_adapters_leave_the_base_as_it_is(sharing):
    """Below and above: in the device's masked updates, in copies and in the edges' means."""
    # Labels go up: below a frozen head they could not stay with an adapter above.
    plan = replace(PLAN, sharing=sharing, labels_stay=False)
    masked, report = trained(plan, task=ADAPTED)
    plain, _ = trained(replace(plan, secure=False), task=ADAPTED)
    assert apart(masked, plain) == 0.0
    first = tree.leaves(ADAPTED.init(random.key(plan.seed)))
    frozen = dl.adapters.adapter_roles(masked.model)
    for name, leaf, was in zip(leaf_names(masked.model), leaves(masked), first, strict=True):
        assert np.array_equal(leaf, was) == (name in frozen), name
    assert report["numbers_above"] == 5 * 2 + 2 * 7
    assert masked.ring.dimension == INPUTS * 2 + 2 * 5 + 7 * 2 + 2 * CLASSES
    accuracies = [r["accuracy"] for r in report["rounds"]]
    assert all(0.0 <= a <= 1.0 for a in accuracies)


def test_those_who_fall_silent_are_in_no_sum_and_in_no_average():
    plan = replace(PLAN, dropout=0.1, rounds=1)
    masked, report = trained(plan)
    plain, _ = trained(replace(plan, secure=False))
    assert apart(masked, plain) == 0.0
    (record,) = report["rounds"]
    assert (record["reported"], record["devices"], record["failed"]) == (5, 6, "")
    everybody, _ = trained(replace(plan, dropout=0.0))
    assert apart(masked, everybody) > 1e-4


def test_a_round_whose_sum_cannot_be_unmasked_moves_nothing():
    plan = replace(PLAN, dropout=0.3, rounds=1)
    run, report = trained(plan)
    assert "must give shares" in report["rounds"][0]["failed"]
    assert apart(run, SplitRun(plan, TASK, DEVICES, backend="reference")) == 0.0
    plain, report = trained(replace(plan, secure=False))
    assert apart(plain, run) > 0.0 and not report["rounds"][0]["failed"]


def test_with_copies_it_is_federated_averaging_of_the_whole_model():
    whole, alone = trained(replace(PLAN, above=()))
    for stays, above in ((True, MIDDLE), (False, ("layers.1.", "layers.2."))):
        split, report = trained(replace(PLAN, above=above, labels_stay=stays))
        # The ring rounds what it adds; what is averaged above it does not.
        assert apart(split, whole) < 1e-5
        assert report["numbers_below"] + report["numbers_above"] == alone["numbers_below"]
    assert alone["up"] == alone["down"] == []


def test_ways_of_sharing_differ_and_all_learn():
    ends = {}
    for sharing in Sharing:
        run, report = trained(replace(PLAN, sharing=sharing, rounds=8))
        ends[sharing] = leaves(run)
        assert report["rounds"][-1]["loss"] < 0.6 * report["rounds"][0]["loss"]
        assert report["rounds"][-1]["accuracy"] > 0.8
    assert len({leaf[2].tobytes() for leaf in ends.values()}) == 3


@pytest.mark.parametrize("sharing", list(Sharing))
def test_one_device_at_an_edge_is_the_same_in_all_ways(sharing):
    plan = replace(PLAN, edges=1, secure=False)
    copies, _ = trained(plan, DEVICES[:1])
    other, _ = trained(replace(plan, sharing=sharing), DEVICES[:1])
    assert apart(copies, other) == 0.0


def test_bytes_are_those_of_the_tensors_and_of_the_parts():
    _, report = trained(replace(PLAN, wire="i8"))
    record = report["rounds"][0]
    steps = 6 * PLAN.local_steps
    assert record["boundary_bytes_up"] == steps * 4 * (5 + 7)
    assert record["boundary_bytes_down"] == steps * 4 * (7 + 5)
    below = INPUTS * 5 + 5 + 7 * CLASSES + CLASSES
    assert report["numbers_below"] == below
    assert record["part_bytes_up"] == 6 * 4 * (below + 1)
    assert record["part_bytes_down"] == 6 * 4 * below
    # Between each of two edges and the cloud.
    assert record["edge_bytes_up"] == record["edge_bytes_down"] == 2 * 4 * (5 * 7 + 7)
    assert json.loads(json.dumps(report)) == report


def test_the_same_seed_is_the_same_run_and_another_is_not():
    first, again, other = (trained(replace(PLAN, seed=s, cohort=4))[0] for s in (1, 1, 2))
    assert apart(first, again) == 0.0
    assert apart(first, other) > 0.0


def test_rows_beyond_a_device_s_own_are_never_sent():
    # Device 3 has two rows of four: the others in its batches are zeros. (Its capacity's rest is
    # not a number, and would show.)
    _, report = trained(replace(PLAN, shields=(Shield(4.0, 2.0**-6),)))
    assert report["rounds"][-1]["loss"] < 10.0


def test_a_shield_charges_every_pass_and_ends_what_it_cannot_pay():
    shield = Shield(1.0, 4.0)
    free, report = trained(replace(PLAN, shields=(shield,)))
    spent = [record["epsilon"] for record in report["rounds"]]
    assert 0.0 < spent[0] < spent[1]
    # Enough for one round of those who go through their data once a round, not of device 3,
    # whose two rows are in every batch.
    plan = replace(PLAN, shields=(shield,), epsilon=spent[0] * 0.9, rounds=3)
    run, report = trained(plan)
    counts = [record["devices"] for record in report["rounds"]]
    assert 0 < counts[0] < 6 and counts[-1] == 0
    assert max(record["epsilon"] for record in report["rounds"]) <= plan.epsilon
    assert report["rounds"][-1]["loss"] is None
    assert apart(run, free) > 0.0


def test_each_tensor_has_its_own_shield_or_all_have_one():
    shields = (Shield(2.0, 4.0), Shield(0.125, 4.0))
    plan = replace(PLAN, shields=shields, rounds=1)
    run, report = trained(plan)
    assert [t.shape for t in run.up] == [(4, 5), (4, 7)]
    _, alike = trained(replace(plan, shields=shields[:1]))
    # What a release costs depends on the noise in clips, hardly on the clip.
    wanted = pytest.approx(alike["rounds"][0]["epsilon"], rel=1e-2)
    assert report["rounds"][0]["epsilon"] == wanted
    with pytest.raises(DelianError, match="3 shields for 2 tensors"):
        trained(replace(plan, shields=shields + shields[:1]))


def test_noise_is_what_reaches_the_edge():
    narrow, wide = (
        trained(replace(PLAN, shields=(Shield(64.0, z),), rounds=1))[0] for z in (2.0**-6, 1.0)
    )
    plain, _ = trained(replace(PLAN, rounds=1))
    assert 0 < apart(narrow, plain) < apart(wide, plain)


def test_what_cannot_be_run_is_refused():
    with pytest.raises(DelianError, match="no weight's name begins with nothing"):
        trained(replace(PLAN, above=("nothing.",)))
    with pytest.raises(PlacementError):  # raw rows would have to go up
        trained(replace(PLAN, above=("layers.",)))
    with pytest.raises(DelianError, match="2 devices a round, whose sum is masked"):
        trained(replace(PLAN, cohort=2))
    with pytest.raises(BoundaryError, match="batch itself"):
        trained(
            replace(
                PLAN,
                above=("layers.1.", "layers.2."),
                labels_stay=False,
                shields=(Shield(1.0, 1.0),),
            )
        )
    with pytest.raises(DelianError, match="mini-batches"):
        trained(task=replace(TASK, source=Episodes(2, 1, 1, 1)))


def test_a_sum_of_fewer_than_three_cannot_be_masked():
    plan = RingPlan(1.0, 8, 4)
    vectors = {d: np.full(5, d, np.uint32) for d in range(4)}
    assert secure_sum(vectors, plan, 0, 1).tolist() == [6] * 5
    assert secure_sum(vectors, plan, 0, 2, silent=[1]).tolist() == [5] * 5
    with pytest.raises(SecureError):
        secure_sum(vectors, plan, 0, 3, silent=[0, 1])
