"""Robust aggregation: what each rule gives, that attackers break the mean and not the rules, and
where the rules end.
"""

from __future__ import annotations

import tracemalloc
from statistics import NormalDist

import numpy as np
import pytest
from delian.core.learning.aggregate import robust as r
from delian.core.privacy.mechanisms import ring
from delian.core.wire import operator_pb2

N, F, D = 20, 4, 50
RULES = {
    "krum": lambda u: r.krum(u, F),
    "multi-krum": lambda u: r.multi_krum(u, F),
    "trimmed mean": lambda u: r.trimmed_mean(u, F),
    "median": r.median,
    "geometric median": r.geometric_median,
}


@pytest.fixture(params=RULES)
def rule(request):
    return RULES[request.param]


@pytest.fixture(params=[1 << 20, 64])
def small_blocks(request, monkeypatch):
    """Results must not depend on how columns are cut into blocks."""
    monkeypatch.setattr(r, "BLOCK_NUMBERS", request.param)


def arrays(*rows) -> r.Arrays:
    return r.Arrays([np.asarray(row, np.float32) for row in rows])


def honest(count: int = N - F, seed: int = 0) -> np.ndarray:
    """Updates around (1, 1, ..., 1), each coordinate with standard deviation 1."""
    return 1.0 + np.random.default_rng(seed).standard_normal((count, D)).astype(np.float32)


# ---------------------------------------------------------------- by hand


def test_by_hand():
    few = arrays([0, 0], [1, 0], [2, 3], [100, -7], [3, 1])
    assert r.mean(few).tolist() == pytest.approx([21.2, -0.6])
    assert r.mean(few, np.array([1.0, 0, 0, 0, 3])).tolist() == pytest.approx([2.25, 0.75])
    assert r.median(few).tolist() == [2, 0]
    assert r.trimmed_mean(few, 1).tolist() == pytest.approx([2, 1 / 3])
    assert r.trimmed_mean(few, 0).tolist() == pytest.approx([21.2, -0.6])
    assert r.median(arrays([0, 1], [2, 3])).tolist() == [1, 2]
    # Five updates, one hostile: the score of each counts its two nearest.
    line = arrays([0, 0], [1, 0], [1.5, 0], [2.5, 0], [50, 0])
    assert r.krum(line, 1).tolist() == [1, 0]  # 0.25 + 1, before 1.5's 0.25 + 1
    assert r.multi_krum(line, 1, 2).tolist() == [1.25, 0]
    assert r.multi_krum(line, 1).tolist() == [1.25, 0]
    # The Fermat point of a triangle with an angle over 120 degrees is that corner.
    assert r.geometric_median(arrays([0, 0], [2, 0.1], [-2, 0.1])).tolist() == pytest.approx(
        [0, 0], abs=1e-4
    )
    assert r.clipped_mean(arrays([3, 4], [0, 1]), 1.0).tolist() == pytest.approx([0.3, 0.9])
    assert r.clipped_mean(arrays([6, 8], [3, 4], [0, 1])).tolist() == pytest.approx([2, 3])
    assert r.clipped_mean(arrays([0, 0], [0, 0])).tolist() == [0, 0]


def test_fltrust_by_hand():
    reference = np.array([2, 0], np.float32)
    found = r.fltrust(arrays([10, 0], [-5, 0], [3, 3], [0, 7]), reference)
    trust = np.sqrt(0.5)  # of the third; the first's is 1, the others' 0
    wanted = (np.array([2, 0]) + trust * 2 * np.array([trust, trust])) / (1 + trust)
    assert found.tolist() == pytest.approx(wanted.tolist())
    assert r.fltrust(arrays([-1, 0]), reference).tolist() == [0, 0]
    with pytest.raises(r.RobustError, match="points nowhere"):
        r.fltrust(arrays([1, 0]), np.zeros(2, np.float32))
    with pytest.raises(r.RobustError, match="a reference of 3"):
        r.fltrust(arrays([1, 0]), np.zeros(3, np.float32))


def test_the_geometric_median_is_the_least_sum_of_distances(small_blocks):
    points = np.random.default_rng(3).standard_normal((9, 7)) * 5 + 1e4

    def cost(z):
        return np.linalg.norm(points - z, axis=1).sum()

    found = r.geometric_median(r.Arrays(list(points))).astype(np.float64)
    slow = points.mean(axis=0)
    for _ in range(2000):
        pulls = 1 / np.linalg.norm(points - slow, axis=1)
        slow = pulls @ points / pulls.sum()
    assert cost(found) <= cost(slow) * (1 + 1e-6)
    for nudge in np.eye(7) * 0.05:
        assert cost(found + nudge) > cost(slow) and cost(found - nudge) > cost(slow)


def test_distances_of_updates_that_are_long_and_alike_are_exact(small_blocks):
    rows = 1e6 + np.random.default_rng(1).standard_normal((6, 300))
    found = r.squared_distances(r.Arrays(list(rows)))
    wanted = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    assert np.allclose(found, wanted, rtol=1e-9) and (np.diagonal(found) == 0).all()


def test_rules_do_not_depend_on_order_or_on_blocks(rule, small_blocks):
    rows = honest(N)
    whole = rule(r.Arrays(list(rows)))
    order = np.random.default_rng(5).permutation(N)
    assert np.allclose(rule(r.Arrays(list(rows[order]))), whole, atol=1e-5)
    assert np.allclose(rule(r.Arrays(list(rows + 3))), whole + 3, atol=1e-4)
    assert np.allclose(rule(r.Arrays([rows[0]] * N)), rows[0])


# ---------------------------------------------------------------- attackers


def sign_flip(good: np.ndarray) -> np.ndarray:
    return np.repeat(-4 * good.mean(axis=0)[None], F, axis=0)


def scaled(good: np.ndarray) -> np.ndarray:
    return np.repeat(100 * good[:1], F, axis=0)


def noise(good: np.ndarray) -> np.ndarray:
    return np.random.default_rng(9).standard_normal((F, D)).astype(np.float32) * 200


def one_by_one(good: np.ndarray) -> np.ndarray:
    """Each its own way, none near another: no cluster to be found."""
    return np.eye(F, D, dtype=np.float32) * 1e4


@pytest.mark.parametrize("attack", [sign_flip, scaled, noise, one_by_one])
def test_attackers_break_the_mean_and_not_the_rule(attack, rule, small_blocks):
    good = honest()
    centre = good.mean(axis=0)
    radius = np.linalg.norm(good - centre, axis=1).mean()
    everything = r.Arrays(list(np.concatenate([attack(good), good]).astype(np.float32)))

    def off(found) -> float:
        return float(np.linalg.norm(found - centre)) / radius

    clean = off(rule(r.Arrays(list(good)))) if rule is not RULES["krum"] else 1.3
    assert off(rule(everything)) < max(clean, 0.35) + 0.35
    # At the least (a flipped mean that stays small) the mean is off by the honest mean itself.
    assert off(r.mean(everything)) > (0.9 if attack is sign_flip else 4.0)


@pytest.mark.parametrize("far", [1.0, 3.0, 100.0])
def test_the_bounds_that_the_table_states_hold(far):
    good = honest()
    draw = np.random.default_rng(int(far))
    for f in (1, 4, 7):
        bad = draw.standard_normal((f, D)) * far + far
        everything = r.Arrays(list(np.concatenate([bad, good]).astype(np.float32)))
        for found in (r.trimmed_mean(everything, f), r.median(everything)):
            assert (found >= good.min(axis=0) - 1e-5).all()
            assert (found <= good.max(axis=0) + 1e-5).all()
        share = f / everything.count
        radius = np.linalg.norm(good - good.mean(axis=0), axis=1).max()
        off = np.linalg.norm(r.geometric_median(everything) - good.mean(axis=0))
        assert off <= (1 - share) / np.sqrt(1 - 2 * share) * radius


def alie(good: np.ndarray, z: float) -> np.ndarray:
    """Baruch et al. 2019, algorithm 3: all at the mean, less z standard deviations."""
    return np.repeat((good.mean(axis=0) - z * good.std(axis=0))[None], F, axis=0)


def test_a_little_is_enough_to_shift_a_rule_but_never_beyond_the_honest_spread(rule):
    """The attack that is made for these rules: it hides among the honest. What it can do is bounded
    by their spread, whatever z is; what it does to the mean grows with z.
    """
    good = honest()
    spread = good.std(axis=0).mean()
    supporters = N // 2 + 1 - F
    z_max = NormalDist().inv_cdf((N - F - supporters) / (N - F))
    assert z_max == pytest.approx(0.157, abs=1e-3)  # for 4 of 20

    def shift(found) -> float:
        return float((good.mean(axis=0) - found).mean()) / spread

    for z in (z_max, 1.5, 10.0, 1000.0):
        everything = r.Arrays(list(np.concatenate([alie(good, z), good])))
        assert abs(shift(rule(everything))) < 1.6
        assert shift(r.mean(everything)) == pytest.approx(z * F / N, rel=0.05, abs=0.05)
    assert abs(shift(rule(everything))) < 0.5  # at z = 1000 it does not hide any more


def test_a_clipped_mean_limits_what_attackers_do_and_rejects_nothing():
    good = honest()
    everything = r.Arrays(list(np.concatenate([scaled(good), good])))
    bound = float(np.median(r.norms(everything)))
    moved = np.linalg.norm(r.clipped_mean(everything) - r.clipped_mean(r.Arrays(list(good))))
    assert moved <= 2 * bound * F / N
    assert np.linalg.norm(r.mean(everything) - good.mean(axis=0)) > 50 * moved


def test_fltrust_holds_when_most_are_hostile():
    good = honest(4)
    hostile = np.repeat(-4 * good.mean(axis=0)[None], 16, axis=0)
    reference = honest(1, seed=7)[0]
    found = r.fltrust(r.Arrays(list(np.concatenate([hostile, good]))), reference)
    centre = good.mean(axis=0)
    cosine = found @ centre / np.linalg.norm(found) / np.linalg.norm(centre)
    assert cosine > 0.9
    assert np.linalg.norm(found) <= np.linalg.norm(reference) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("attack", "wins"),
    [("sign flip", "the mean"), ("scaled", "the mean"), ("none", "nobody")],
)
def test_a_model_is_trained_among_attackers(attack, wins, rule):
    """Logistic regression, twenty devices, four of them hostile, fifteen rounds."""
    draw = np.random.default_rng(2)
    truth = draw.standard_normal(10)
    data = []
    for _ in range(N):
        x = draw.standard_normal((40, 10))
        data.append((x, (x @ truth > 0).astype(float)))

    def trained(combine) -> float:
        w = np.zeros(10)
        for _ in range(15):
            updates = []
            for x, y in data:
                updates.append(0.5 * x.T @ (y - 1 / (1 + np.exp(-x @ w))) / len(y))
            for device in range(F if attack != "none" else 0):
                updates[device] = updates[device] * (-8 if attack == "sign flip" else -100)
            w = w + combine(r.Arrays([u.astype(np.float32) for u in updates]))
        return float(np.mean([((x @ w > 0) == y).mean() for x, y in data]))

    assert trained(rule) > 0.9
    assert (trained(r.mean) < 0.5) == (wins == "the mean")


def test_each_rule_says_when_there_are_too_few():
    few = arrays(*np.eye(6, 3))
    for f in (0, 1):
        assert r.krum(few, f).shape == (3,)
    for call in (
        lambda: r.krum(few, 2),
        lambda: r.multi_krum(few, 2),
        lambda: r.trimmed_mean(few, 3),
        lambda: r.trimmed_mean(few, -1),
        lambda: r.Arrays([]),
        lambda: r.Arrays([np.zeros(2), np.zeros(3)]),
    ):
        with pytest.raises(r.RobustError):
            call()
    assert r.trimmed_mean(few, 2).shape == (3,)


def test_no_rule_holds_beyond_its_breakdown_point():
    """What is promised ends there: half of the updates decide, whoever sends them."""
    good = honest(8)
    most = np.full((12, D), 1e3, np.float32)
    everything = r.Arrays(list(np.concatenate([most, good])))
    for found in (r.median(everything), r.geometric_median(everything), r.krum(everything, F)):
        assert np.linalg.norm(found - good.mean(axis=0)) > 1e3


# ---------------------------------------------------------------- from the ring


def in_ring(deltas, weights, plan, keys=None):
    keys = keys or range(len(deltas))
    made = []
    for d, w, k in zip(deltas, weights, keys, strict=True):
        delta, key = np.asarray(d, np.float32), np.array([k, 1], np.uint32)
        made.append(np.asarray(ring.encode(delta, np.float32(w), key, plan)))
    return made


def test_updates_are_read_from_the_ring_without_what_no_honest_device_says(small_blocks):
    plan = ring.RingPlan(clip=5.0, clients_max=10, dimension=D)
    good = honest(6) / np.sqrt(D)
    weights = [1.0, 0.5, 0.25, 1.0, 0.125, 0.75]
    vectors = in_ring(good, weights, plan)
    read = r.RingUpdates(vectors, plan)
    assert read.used == list(range(6)) and np.allclose(read.weights, weights, atol=1e-6)
    assert np.allclose(read.block(0, D), good, atol=1e-5)
    total = np.sum(vectors, axis=0, dtype=np.uint32)
    assert np.allclose(r.mean(read, read.weights), ring.decode(total, plan)[0], atol=1e-5)

    heavy, light, negative, long = (vectors[0].copy() for _ in range(4))
    heavy[-1] = int(2 * plan.weight_scale)
    light[-1] = 0
    negative[-1] = np.uint32(2**32 - 5)
    long[:-1] = (np.int64(2**31 - 1)) // 2
    read = r.RingUpdates([heavy, vectors[1], light, negative, long], plan)
    assert read.used == [1, 4]
    assert r.norms(read)[1] == pytest.approx(plan.clip)
    with pytest.raises(r.RobustError, match="no update has a weight"):
        r.RingUpdates([light], plan)
    with pytest.raises(r.RobustError, match="elements long"):
        r.RingUpdates([light[:-1]], plan)


def test_a_tiny_weight_makes_no_update_larger_than_the_clip():
    """One step of weight under a long vector would divide it up to 2^30 times its length."""
    plan = ring.RingPlan(clip=5.0, clients_max=10, dimension=4)
    liar = np.array([2**30, 0, 0, 0, 1], np.uint32)
    read = r.RingUpdates([liar], plan)
    assert r.norms(read)[0] == pytest.approx(5.0)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("rule", operator_pb2.AggregationRule.values())
def test_each_rule_of_a_plan_makes_one_update_of_devices_vectors(rule, rotated):
    plan = ring.RingPlan(clip=5.0, clients_max=20, dimension=D, rotated=rotated)
    good = honest(16) / np.sqrt(D)
    hostile = np.repeat(-4 * good.mean(axis=0)[None], F, axis=0)
    vectors = in_ring([*hostile, *good], [1.0] * N, plan)
    made, weight = r.combine(vectors, plan, rule, 0.2)
    assert made.shape == (D,) and made.dtype == np.float32 and weight == pytest.approx(N)
    cosine = made @ np.ones(D) / np.linalg.norm(made) / np.sqrt(D)
    assert (cosine > 0.5) == (rule != operator_pb2.WEIGHTED_MEAN)


def test_a_plan_s_weighted_mean_is_that_of_the_sum():
    plan = ring.RingPlan(clip=5.0, clients_max=20, dimension=D, rotated=True)
    vectors = in_ring(honest(5) / np.sqrt(D), [1.0, 0.5, 0.25, 0.75, 0.125], plan)
    made, weight = r.combine(vectors, plan, operator_pb2.WEIGHTED_MEAN, 0.0)
    mean, said = ring.decode(np.sum(vectors, axis=0, dtype=np.uint32), plan)
    assert np.allclose(made, mean, atol=1e-5) and weight == pytest.approx(said)


def test_what_a_rule_needs_is_known_beforehand():
    assert [r.hostile_of(0.2, n) for n in (4, 5, 35)] == [0, 1, 7]
    for rule in operator_pb2.AggregationRule.values():
        for corrupt in (0.0, 0.2, 0.4, 0.49):
            for count in range(1, 12):
                plan = ring.RingPlan(clip=5.0, clients_max=20, dimension=D)
                vectors = in_ring(honest(count) / np.sqrt(D), [1.0] * count, plan)
                try:
                    r.combine(vectors, plan, rule, corrupt)
                    works = True
                except r.RobustError:
                    works = False
                assert works == r.is_enough(rule, corrupt, count), (rule, corrupt, count)


def cohorts_of(vectors, count):
    """Their sums over so many cohorts, and how many are in each."""
    parts = [vectors[start::count] for start in range(count)]
    return [np.sum(part, axis=0, dtype=np.uint32) for part in parts], [len(p) for p in parts]


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("rule", [operator_pb2.MEDIAN, operator_pb2.TRIMMED_MEAN])
def test_a_rule_over_cohorts_means_holds_where_hostile_devices_are_in_few_of_them(rule, rotated):
    plan = ring.RingPlan(clip=5.0, clients_max=30, dimension=D, rotated=rotated)
    good = honest(28) / np.sqrt(D)
    vectors = in_ring(good, [1.0, 0.5] * 14, plan)
    vectors[0][: plan.dimension] = 2**30  # nobody sees that it is longer than the clip
    vectors[5][-1] = np.uint32(2**32 - 2**25)  # and that this one's weight is below zero
    sums, sizes = cohorts_of(vectors, 5)
    made = r.Combination.of(sums, plan, rule, 0.2, sizes)[0].update()
    assert made.shape == (D,) and np.linalg.norm(made - good.mean(axis=0)) < 0.5
    everything = np.sum(vectors, axis=0, dtype=np.uint32)
    with pytest.raises(ring.RingError):
        ring.decode(everything, plan)
    # A cohort's mean is what its sum says: the weights of those in it count.
    read = r.RingUpdates(sums[1:], plan, sizes[1:])
    if not rotated:
        mean, said = ring.decode(sums[1], plan)
        assert np.allclose(read.block(0, D)[0], mean, atol=1e-6) and read.weights[0] == said


def test_a_cohort_whose_weight_no_honest_devices_could_have_is_left_out():
    plan = ring.RingPlan(clip=5.0, clients_max=30, dimension=D)
    vectors = in_ring(honest(12) / np.sqrt(D), [1.0] * 12, plan)
    vectors[0][-1] = np.uint32(30 * plan.weight_scale)
    sums, sizes = cohorts_of(vectors, 4)
    combination, weight = r.Combination.of(sums, plan, operator_pb2.MEDIAN, 0.0, sizes)
    assert combination.sizes == (3, 3, 3) and weight == pytest.approx(9)
    with pytest.raises(r.RobustError, match=r"median needs 3 cohorts .* there are 2"):
        r.Combination.of(sums[:3], plan, operator_pb2.MEDIAN, 0.0, sizes[:3])


# ---------------------------------------------------------------- memory


def test_updates_are_never_copied_to_f64_as_a_whole(rule, monkeypatch):
    monkeypatch.setattr(r, "BLOCK_NUMBERS", 1 << 15)
    rows = [np.full(1 << 16, i, np.float32) for i in range(N)]
    updates = r.Arrays(rows)
    rule(updates)
    tracemalloc.start()
    try:
        rule(updates)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    whole = N * (1 << 16) * 8
    assert peak < whole / 5  # the result, and a few blocks of 256 KiB
