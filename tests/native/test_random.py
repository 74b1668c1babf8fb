"""Random numbers: the paper's vectors, jax.random's values, and the same ones compiled."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from delian.core.compiler import random
from delian.core.compiler.api import Static
from delian.core.compiler.api import compile as compile_

#: Random123's known answers for threefry2x32, 20 rounds: key, counter, result.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize("key, counter, result", KNOWN)
def test_threefry_gives_the_known_answers(key, counter, result):
    words = np.array(key, np.uint32)
    high, low = (np.uint32(c) for c in counter)
    assert tuple(int(y) for y in random.threefry2x32(words, high, low)) == result
    f = compile_(random.threefry2x32, backend="reference")
    assert tuple(int(y) for y in f(words, high, low)) == result


#: jax 0.10.2, jax_threefry_partitionable=True: bits(key, (2, 3)), split(key, 3), fold_in(key, 7),
#: uniform(key, (3,)).
JAX = {
    0: (
        [[4070199207, 4202968722, 1427181096], [2012915765, 2447653815, 710830403]],
        [[1797259609, 2579123966], [928981903, 3453687069], [4146024105, 2718843009]],
        [2716826189, 292468403],
    ),
    42: (
        [[2098992034, 2919706841, 2646866425], [2409546199, 1935504149, 2516274904]],
        [[1832780943, 270669613], [64467757, 2916123636], [2465931498, 255383827]],
        [2547012911, 1371500959],
    ),
    2**31 + 7: (
        [[156003529, 580388532, 607661855], [509402580, 75657222, 3537543209]],
        [[4017098595, 3862717354], [3841818962, 3328542694], [1338217492, 1811659531]],
        [634596618, 884108325],
    ),
}


@pytest.mark.parametrize("seed", JAX)
def test_bits_split_and_fold_in_equal_jax(seed):
    bits, split, folded = JAX[seed]
    key = random.key(seed)
    assert random.bits(key, (2, 3)).tolist() == bits
    assert random.split(key, 3).tolist() == split
    assert random.fold_in(key, 7).tolist() == folded


def test_a_key_holds_both_halves_of_its_seed():
    assert random.key(2**32 * 5 + 9).tolist() == [5, 9]
    compiled = compile_(random.key, backend="reference")
    assert compiled(np.int64(2**32 * 5 + 9)).tolist() == [5, 9]
    assert random.key(np.int64(7)).tolist() == [0, 7]


def draws(key, n):
    a, b = random.split(key)
    return {
        "bits": random.bits(a, (5,)),
        "uniform": random.uniform(a, (3, 2)),
        "range": random.uniform(a, 4, -2.0, 3.0),
        "normal": random.normal(b, (4, 3)),
        "permutation": random.permutation(random.fold_in(b, n), n, 12),
        "coins": random.bernoulli(b, 0.3, 9),
        "dice": random.randint(b, (9,), 1, 7),
        "scalar": random.uniform(b),
        "static": random.fold_in(b, 3),
        "category": random.categorical(a, np.array([0.1, 2.0, -1.0], np.float32), 6),
        "chosen": random.choice(a, np.arange(20.0).reshape(10, 2), (2, 2)),
        "once": random.choice(b, 9, (3, 3), replace=False),
        "weighted": random.choice(b, 4, 3, False, np.array([0.1, 0.2, 0.3, 0.4], np.float32)),
    }


def test_compiled_draws_equal_eager_ones():
    key = random.key(3)
    eager = draws(key, np.int32(7))
    compiled = compile_(draws, backend="reference")(key, np.int32(7))
    for name, want in eager.items():
        got = compiled[name]
        assert got.dtype == want.dtype, name
        if name == "normal":  # Goes through log: the one draw that is not made of exact operations.
            np.testing.assert_allclose(got, want, rtol=1e-6)
        else:
            np.testing.assert_array_equal(got, want)


def test_bits_are_f32_uniform_in_the_unit_interval():
    x = random.uniform(random.key(1), 100_000)
    assert x.dtype == np.float32
    assert x.min() >= 0
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 0.005
    assert np.all(x * 2**24 == np.floor(x * 2**24))


def test_normal_numbers_have_the_moments_of_the_normal_distribution():
    x = random.normal(random.key(2), 200_000).astype(np.float64)
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    assert abs((x**3).mean()) < 0.03
    assert abs((x**4).mean() - 3) < 0.08
    # Phi(1.96) = 0.975 and Phi(3) = 0.99865: the central polynomial and the tail's.
    assert abs((x < 1.959964).mean() - 0.975) < 0.002
    assert abs((x < 3).mean() - 0.99865) < 0.0005


@pytest.mark.parametrize("count", [0, 1, 5, 12])
def test_a_permutation_holds_each_number_once(count):
    order = random.permutation(random.key(count), count, 12)
    assert order.dtype == np.int64
    assert sorted(order[:count]) == list(range(count))
    assert order[count:].tolist() == list(range(count, 12))


def test_permutations_of_different_keys_differ():
    orders = {tuple(random.permutation(k, 8, 8)) for k in random.split(random.key(0), 50)}
    assert len(orders) > 45


@pytest.mark.parametrize("count", [1, 2, 7, 5000])
def test_an_order_made_entry_by_entry_holds_each_number_once(count):
    order = random.permuted(random.key(count), np.int64(count), np.arange(count))
    assert order.dtype == np.int64
    assert sorted(order) == list(range(count))


def test_an_order_made_entry_by_entry_is_as_likely_as_any_other():
    keys, counted = 600, Counter[tuple[int, ...]]()
    for seed in range(keys):
        counted[tuple(random.permuted(random.key(seed), np.int64(3), np.arange(3)).tolist())] += 1
    assert len(counted) == 6
    # Chi-square of 5 degrees of freedom: above 20.5 once in a thousand draws.
    assert sum((n - keys / 6) ** 2 for n in counted.values()) / (keys / 6) < 20.5


def test_an_order_made_entry_by_entry_keeps_no_trace_of_the_first_one():
    count = 20_000
    order = random.permuted(random.key(3), np.int64(count), np.arange(count)).astype(np.float64)
    assert abs(np.corrcoef(order, np.arange(count))[0, 1]) < 0.03
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.03
    assert np.count_nonzero(np.abs(np.diff(order)) == 1) < 20


def test_dice_are_fair_and_in_range():
    x = random.randint(random.key(5), 60_000, 1, 7)
    assert set(np.unique(x)) == set(range(1, 7))
    assert np.abs(np.bincount(x)[1:] - 10_000).max() < 400


def test_categories_are_drawn_by_their_weights():
    p = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    drawn = random.categorical(random.key(8), np.log(p), 40_000)
    assert drawn.shape == (40_000,)
    assert np.abs(np.bincount(drawn) / 40_000 - p).max() < 0.01
    rows = random.categorical(random.key(8), np.log(np.stack([p, p[::-1]])), 3)
    assert rows.shape == (3, 2)
    chosen = random.choice(random.key(9), 4, 40_000, p=p)
    assert np.abs(np.bincount(chosen) / 40_000 - p).max() < 0.01


def test_a_choice_without_replacement_holds_each_once():
    p = np.array([0.6, 0.1, 0.1, 0.1, 0.1], np.float32)
    firsts = []
    for key in random.split(random.key(0), 300):
        drawn = random.choice(key, 5, 4, replace=False, p=p)
        assert len(set(drawn.tolist())) == 4
        firsts.append(int(drawn[0]))
    assert 0.5 < np.mean(np.array(firsts) == 0) < 0.7
    names = np.array([10.0, 20.0, 30.0])
    assert sorted(random.choice(random.key(1), names, 3, replace=False)) == [10, 20, 30]
    with pytest.raises(ValueError, match="4 of 3"):
        random.choice(random.key(1), names, 4, replace=False)


def test_gumbel_and_exponential_numbers_have_their_moments():
    x = random.exponential(random.key(4), 100_000).astype(np.float64)
    assert x.min() > 0 and abs(x.mean() - 1) < 0.02 and abs(x.var() - 1) < 0.05
    g = random.gumbel(random.key(4), 100_000).astype(np.float64)
    assert abs(g.mean() - np.euler_gamma) < 0.02 and abs(g.var() - np.pi**2 / 6) < 0.05


def test_keys_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="u32"):
        random.bits(np.zeros(3, np.uint32), 2)


def test_shapes_may_be_static_arguments():
    f = compile_(lambda key, shape: random.bits(key, shape), backend="reference")
    assert f(random.key(0), Static((2, 3))).tolist() == JAX[0][0]
