"""Noise: the distribution that is promised, from the key's bits alone, each used once."""

from __future__ import annotations

import functools
import hashlib
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from delian.core.privacy.mechanisms import noise
from delian.core.privacy.mechanisms.noise import Distribution, NoiseError, Table

DRAWS = 1 << 18
BOTH = [noise.skellam, noise.discrete_gaussian]


def key(number):
    return hashlib.sha256(b"noise test %d" % number).digest()


def drawn(distribution, count=DRAWS, number=0):
    vector = np.zeros(count, np.uint32)
    noise.add(vector, distribution, key(number))
    return vector.view(np.int32).astype(np.int64)


def key_stream(number, words):
    cipher = Cipher(AES256(key(number)), CTR(bytes(16))).encryptor()
    return [int(w) for w in np.frombuffer(cipher.update(bytes(8 * words)), "<u8")]


def skellam_mass(k, variance):
    """P(k) by the series of the Bessel function: another way than the table's recurrence."""
    half, total, m = Decimal(variance) / 2, Decimal(0), 0
    term = half**k / math.factorial(k)
    while term > Decimal(10) ** -75:
        total += term
        m += 1
        term = term * half * half / (m * (m + k))
    return total * (-Decimal(variance)).exp()


def gaussian_weight(k, variance):
    return (-Decimal(k * k) / (2 * Decimal(variance))).exp()


@functools.cache
def gaussian_total(variance):
    with localcontext() as context:
        context.prec = 80
        return 1 + 2 * sum(gaussian_weight(k, variance) for k in range(1, 200))


def gaussian_mass(k, variance):
    return gaussian_weight(k, variance) / gaussian_total(variance)


MASSES = {noise.skellam: skellam_mass, noise.discrete_gaussian: gaussian_mass}


@pytest.mark.parametrize("variance", [0.0625, 1.0, 37.5])
@pytest.mark.parametrize("distribution", BOTH)
def test_every_entry_of_a_table_is_right_to_its_last_bit(distribution, variance):
    ((table, multiple),) = distribution(variance).parts
    assert multiple == 1
    with localcontext() as context:
        context.prec = 80
        below = Decimal(0)
        for k, (high, low) in enumerate(zip(table.high, table.low, strict=True)):
            below += MASSES[distribution](k, variance) * (1 if k == 0 else 2)
            # Rounded down: the entry is less than one unit of 2^-127 below the exact value, and
            # not above it but for the 75 digits of this sum.
            short = below * 2**127 - (int(high) * 2**64 + int(low))
            assert Decimal("-1e-20") < short < 1 + Decimal("1e-20")
        # What lies beyond the table is less than its unit.
        rest = MASSES[distribution](len(table.high), variance) * 2
        assert 1 - below - rest < Decimal(2) ** -127


@pytest.mark.parametrize("variance", [0.5, 100.0, 2.0**26])
@pytest.mark.parametrize("distribution", BOTH)
def test_moments_are_the_distribution_s(distribution, variance):
    x = drawn(distribution(variance)).astype(np.float64)
    if variance < 1 and distribution is noise.discrete_gaussian:
        exact = float(sum(2 * k * k * gaussian_mass(k, variance) for k in range(1, 30)))
    else:
        exact = variance
    # The mean strays by sigma / sqrt(n), the variance by sqrt((kurtosis - 1) / n): five of them.
    kurtosis = 3 + 1 / variance
    assert abs(x.mean()) < 5 * math.sqrt(exact / DRAWS)
    assert abs(x.var() / exact - 1) < 5 * math.sqrt((kurtosis - 1) / DRAWS)
    assert abs(np.mean(x**3)) < 5 * math.sqrt(15 * kurtosis**2 * exact**3 / DRAWS)


@pytest.mark.parametrize("variance", [0.5, 9.0, 2500.0])
def test_skellam_numbers_pass_a_chi_square_test_against_the_convolution_of_two_poissons(variance):
    mean = variance / 2
    support = np.arange(int(mean + 12 * math.sqrt(mean) + 30))
    poisson = np.exp(support * math.log(mean) - mean - [math.lgamma(k + 1) for k in support])
    # P(X - Y = k) is the correlation of the two.
    mass = np.correlate(poisson, poisson, "full")
    x = drawn(noise.skellam(variance)) + len(support) - 1
    expected = mass * DRAWS
    observed = np.bincount(x, minlength=len(mass)).astype(float)
    # Cells that expect less than ten are taken together.
    rare = expected < 10
    expected = np.append(expected[~rare], expected[rare].sum())
    observed = np.append(observed[~rare], observed[rare].sum())
    freedom = len(expected) - 1
    statistic = float(np.sum((observed - expected) ** 2 / expected))
    # About normal for many cells: five deviations, of which chi-square has sqrt(2 f).
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom) + 5


def test_a_worse_distribution_would_fail_that_test():
    # A tenth more variance at 2500 moves the sample's by 38 standard deviations.
    x = drawn(noise.skellam(2750.0)).astype(np.float64)
    assert abs(x.var() / 2500.0 - 1) > 10 * math.sqrt(2 / DRAWS)


def test_what_many_devices_add_has_the_variance_of_the_whole():
    devices, count, variance = 50, 1 << 14, 12.5
    total = np.zeros(count, np.uint32)
    for device in range(devices):
        noise.add(total, noise.skellam(variance), key(device))
    x = total.view(np.int32).astype(np.float64)
    assert abs(x.var() / (devices * variance) - 1) < 5 * math.sqrt(2 / count)
    assert abs(x.mean()) < 5 * math.sqrt(devices * variance / count)


@pytest.mark.parametrize("variance", [2.0**26 + 1, 3e8, 1e11, 2.0**46])
def test_a_wide_gaussian_is_a_sum_of_two_that_leaves_no_trace_of_its_grid(variance):
    (fine, one), (coarse, multiple) = noise.discrete_gaussian(variance).parts
    assert one == 1 and fine.variance + multiple**2 * coarse.variance == variance
    # The d of the module's docstring.
    assert fine.variance * coarse.variance / variance >= 60
    x = drawn(noise.discrete_gaussian(variance))
    assert abs(x.var() / variance - 1) < 5 * math.sqrt(2 / DRAWS)
    assert abs(np.mean((x / math.sqrt(variance)) ** 4) - 3) < 5 * math.sqrt(96 / DRAWS)
    # All remainders are as likely: 16 cells, chi-square with 15 degrees of freedom.
    grid = max(multiple, 16)
    counts = np.bincount((x % grid) * 16 // grid, minlength=16)
    statistic = float(np.sum((counts - DRAWS / 16) ** 2 / (DRAWS / 16)))
    assert statistic < 15 + 5 * math.sqrt(30)


def test_the_sum_of_two_gaussians_is_exact_where_it_can_be_computed():
    # The formula of the docstring on small numbers: a = 9, b = 4, m = 2, so v = 25 and d = 1.44.
    def weights(variance, reach):
        return {k: math.exp(-k * k / (2 * variance)) for k in range(-reach, reach + 1)}

    fine, coarse, wide = weights(9.0, 60), weights(4.0, 60), weights(25.0, 60)
    total = {
        z: sum(fine.get(z - 2 * y, 0.0) * c for y, c in coarse.items()) for z in range(-20, 21)
    }
    share = {z: total[z] / wide[z] for z in total}
    spread = max(share.values()) / min(share.values()) - 1
    assert spread < 4.1 * math.exp(-2 * math.pi**2 * 1.44)


def test_neighbouring_numbers_and_other_keys_are_not_correlated():
    x, y = (drawn(noise.skellam(100.0), number=n) / 10.0 for n in (1, 2))
    for lag in (1, 2, 17):
        assert abs(np.mean(x[:-lag] * x[lag:])) < 5 / math.sqrt(DRAWS)
    assert abs(np.mean(x * y)) < 5 / math.sqrt(DRAWS)


def test_equal_keys_give_equal_noise_on_every_machine():
    table = noise.skellam(1000.0)
    first, again, other = drawn(table, 1000), drawn(table, 1000), drawn(table, 1000, number=1)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert list(first[:6]) == RECORDED


def test_noise_is_added_modulo_two_to_the_32():
    vector = np.array([2**32 - 1, 0, 2**31 - 1] * 100, np.uint32)
    before = vector.copy()
    noise.add(vector, noise.skellam(100.0), key(0))
    assert np.array_equal(vector - before, drawn(noise.skellam(100.0), 300).astype(np.uint32))


def test_each_number_takes_its_own_64_bits_of_the_key_stream():
    # Longer than a block, so that the stream goes on from one block to the next.
    count = (1 << 15) + 100
    distribution = noise.skellam(400.0)
    ((table, _),) = distribution.parts
    x = drawn(distribution, count)
    words = key_stream(0, count)
    thresholds = [int(h) for h in table.high]
    for i in (*range(50), *range((1 << 15) - 5, (1 << 15) + 50)):
        magnitude = sum(h <= words[i] >> 1 for h in thresholds)
        assert x[i] == (-magnitude if words[i] & 1 else magnitude)
    assert len(set(words)) == count


def made(high, low):
    table = Table(1.0, np.array(high, np.uint64), np.array(low, np.uint64))
    return Distribution(((table, 1),))


def test_equal_upper_bits_are_decided_by_fresh_lower_ones():
    words = key_stream(0, 6)
    uppers = [w >> 1 for w in words[:3]]
    # A distribution whose steps lie exactly where this key's first three numbers fall. The lower
    # bits are the next three words: one step is put just at, one just above the word drawn for it.
    for low_of, counted in ((lambda w: w, True), (lambda w: w + 1, False)):
        steps = sorted((u, low_of(words[3 + i]), i) for i, u in enumerate(uppers))
        distribution = made([s[0] for s in steps], [s[1] for s in steps])
        rank = {i: place for place, (_, _, i) in enumerate(steps)}
        expected = [rank[i] + counted for i in range(3)]
        assert list(np.abs(drawn(distribution, 3))) == expected


def test_entries_that_share_their_upper_bits_are_told_apart():
    words = key_stream(0, 2)
    upper, lower = words[0] >> 1, words[1]
    distribution = made([upper] * 4, [lower - 2, lower - 1, lower + 1, lower + 2])
    assert abs(drawn(distribution, 1)[0]) == 2


@pytest.mark.parametrize("variance", [0.0, -1.0, 2.0**-5, 2.0**47, math.inf, math.nan])
@pytest.mark.parametrize("distribution", BOTH)
def test_a_variance_out_of_range_is_refused(distribution, variance):
    with pytest.raises(NoiseError, match="variance") as refused:
        distribution(variance)
    assert refused.value.hint


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_key_of_another_length_is_refused(length):
    with pytest.raises(NoiseError, match="key"):
        noise.add(np.zeros(1, np.uint32), noise.skellam(1.0), bytes(length))


RECORDED = [-36, -44, 73, -56, -17, -22]
