"""Packing: every bit where it belongs, and sums of packed vectors are sums."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.privacy.mechanisms import bit_packing
from delian.core.privacy.mechanisms.bit_packing import PackingError
from hypothesis import given
from hypothesis import strategies as st


def drawn(length, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, length, dtype=np.uint32)


@given(st.integers(0, 70), st.integers(1, 32), st.integers(0, 2**32 - 1))
def test_packed_elements_are_the_digits_of_one_long_number(length, bits, seed):
    vector = drawn(length, seed)
    whole = sum((int(v) % 2**bits) << (i * bits) for i, v in enumerate(vector))
    packed = bit_packing.pack(vector, bits)
    assert packed == whole.to_bytes(bit_packing.packed_bytes(length, bits), "little")
    assert np.array_equal(bit_packing.unpack(packed, length, bits), vector & np.uint32(2**bits - 1))


def test_27_bits_of_a_million_elements_are_3_54_megabytes():
    vector = drawn(1 << 20)
    packed = bit_packing.pack(vector, 27)
    assert len(packed) == 3_538_944
    # Longer than one block of groups.
    assert np.array_equal(bit_packing.unpack(packed, 1 << 20, 27), vector & np.uint32(2**27 - 1))


def test_masks_of_32_bits_cancel_in_what_was_cut_to_fewer():
    bits, length = 22, 1000
    values = np.random.default_rng(1).integers(-(2**18), 2**18, (3, length))
    masks = [drawn(length, 2), drawn(length, 3)]
    masked = [values[0] + masks[0], values[1] - masks[0] + masks[1], values[2] - masks[1]]
    total = np.zeros(length, np.uint32)
    for vector in masked:
        cut = bit_packing.pack(vector.astype(np.uint32), bits)
        total += bit_packing.unpack(cut, length, bits)
    # The lower bits as a signed number.
    signed = (total << np.uint32(32 - bits)).view(np.int32) >> (32 - bits)
    assert np.array_equal(signed, values.sum(0))


@pytest.mark.parametrize("change", [1, -1])
def test_bytes_of_another_length_are_refused(change):
    with pytest.raises(PackingError, match="bytes"):
        bit_packing.unpack(bytes(bit_packing.packed_bytes(10, 27) + change), 10, 27)


def test_bits_after_the_last_element_are_refused():
    packed = bytearray(bit_packing.pack(drawn(3), 5))
    bit_packing.unpack(bytes(packed), 3, 5)
    packed[-1] |= 0x80
    with pytest.raises(PackingError, match="after"):
        bit_packing.unpack(bytes(packed), 3, 5)


@pytest.mark.parametrize("bits", [0, -1, 33])
def test_a_width_that_is_none_is_refused(bits):
    for work in (
        lambda: bit_packing.pack(drawn(1), bits),
        lambda: bit_packing.unpack(b"", 0, bits),
    ):
        with pytest.raises(PackingError, match="bits"):
            work()
