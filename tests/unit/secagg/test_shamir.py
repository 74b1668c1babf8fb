"""Sharing secrets: any t shares give them, fewer say nothing, compiled or not."""

from __future__ import annotations

from itertools import combinations

import pytest
from delian.core.privacy.secagg import native, shamir
from delian.core.privacy.secagg.secure_errors import SecureError
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(params=["plain", "compiled"])
def code(request, monkeypatch):
    """Which code shares. The property tests compare the two with each other too."""
    kernels = native.library() if request.param == "compiled" else None
    if request.param == "compiled" and kernels is None:
        pytest.skip("no C compiler")
    monkeypatch.setattr(native, "loaded", lambda: kernels)


def multiply(a: int, b: int) -> int:
    """Schoolbook: carry-less product, then the remainder by x^8 + x^4 + x^3 + x + 1."""
    product = 0
    for bit in range(8):
        if b >> bit & 1:
            product ^= a << bit
    for bit in range(14, 7, -1):
        if product >> bit & 1:
            product ^= 0x11B << bit - 8
    return product


def test_the_field_is_that_of_aes():
    assert multiply(0x57, 0x83) == 0xC1  # FIPS 197 section 4.2


def test_a_share_is_the_value_of_the_polynomials(code):
    secret, random = bytes(range(7)), bytes((i * 37 + 5) % 256 for i in range(3 * 7))
    for x, share in enumerate(shamir.split(secret, 255, 4, random), start=1):
        for at, value in enumerate(share):
            expected, power = secret[at], 1
            for j in range(3):
                power = multiply(power, x)
                expected ^= multiply(random[j * 7 + at], power)
            assert value == expected


@pytest.mark.parametrize("threshold", [1, 2, 3, 5])
def test_any_threshold_of_shares_gives_the_secret(code, threshold):
    secret = bytes(range(100, 132))
    random = bytes((i * i + 7) % 256 for i in range(shamir.randomness_bytes(32, threshold)))
    shares = shamir.split(secret, 5, threshold, random)
    for size in range(threshold, 6):
        for points in combinations(range(1, 6), size):
            assert shamir.combine({x: shares[x - 1] for x in points}, threshold) == secret


def test_fewer_shares_fit_every_secret_equally_often(code):
    """Of one byte, with t = 2: for each secret, a share takes every value once over all
    polynomials.
    """
    for secret in (0, 1, 0x53, 255):
        seen = {shamir.split(bytes([secret]), 3, 2, bytes([c]))[2] for c in range(256)}
        assert len(seen) == 256


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_compiled_and_plain_code_give_the_same_bytes(data):
    if native.library() is None:
        pytest.skip("no C compiler")
    count = data.draw(st.integers(1, 255))
    threshold = data.draw(st.integers(1, min(count, 40)))
    secret = data.draw(st.binary(min_size=1, max_size=70))
    size = shamir.randomness_bytes(len(secret), threshold)
    random = data.draw(st.binary(min_size=size, max_size=size))
    points = data.draw(st.permutations(range(1, count + 1)))[:threshold]
    with pytest.MonkeyPatch.context() as patch:
        results = []
        for kernels in (None, native.library()):
            patch.setattr(native, "loaded", lambda kernels=kernels: kernels)
            shares = shamir.split(secret, count, threshold, random)
            found = shamir.combine({x: shares[x - 1] for x in points}, threshold)
            assert found == secret
            results.append(shares)
    assert results[0] == results[1]


def test_nonsense_is_refused():
    for secret, count, threshold, random in [
        (b"", 3, 2, b""),
        (b"a", 3, 4, b"abc"),
        (b"a", 3, 0, b""),
        (b"a", 256, 2, b"a"),
        (b"ab", 3, 2, b"abc"),
    ]:
        with pytest.raises(SecureError):
            shamir.split(secret, count, threshold, random)
    for shares, threshold in [
        ({1: b"a"}, 2),
        ({0: b"a", 1: b"b"}, 2),
        ({1: b"a", 256: b"b"}, 2),
        ({1: b"a", 2: b"bc"}, 2),
        ({1: b"", 2: b""}, 2),
        ({}, 0),
    ]:
        with pytest.raises(SecureError):
            shamir.combine(shares, threshold)
