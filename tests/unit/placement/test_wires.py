"""What a narrow wire costs: its error stays within the bound that the module states, and what has
no narrow form travels as it is.
"""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.compiler.ir import DType, TensorType
from delian.core.placement.cut.wire_formats import (
    Encoded,
    WireError,
    decode,
    encode,
    wire_bytes,
    wires_of,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

F32 = TensorType(DType.F32, (3,))
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ANY = st.floats(width=32)


def tensors(elements):
    return arrays.arrays(np.float32, arrays.array_shapes(min_dims=0, max_dims=3), elements=elements)


def there_and_back(array, wire):
    encoded = encode(array, wire)
    return encoded, decode(encoded, TensorType.of(array))


@given(tensors(FINITE))
def test_i8_is_within_half_a_step_and_keeps_zero(array):
    encoded, back = there_and_back(array, "i8")
    assert encoded.dtype == "i8" and len(encoded.content) == array.size
    low, high = min(array.min(), 0), max(array.max(), 0)
    # Half a step of 1/254 of the range, f32's own rounding, and where the range is made of
    # subnormal numbers a whole one of them.
    step = max((float(high) - float(low)) / 254, 1.5e-45)
    error = np.abs(back.astype(np.float64) - array.astype(np.float64))
    assert (error <= 0.501 * step * (1 + 2.0**-22) + 1.5e-45).all()
    assert np.isfinite(back).all()
    assert (back[array == 0] == 0).all()


@given(tensors(FINITE))
def test_f16_is_within_its_bound_or_travels_as_it_is(array):
    encoded, back = there_and_back(array, "f16")
    largest = np.abs(array).max()
    assert (encoded.dtype == "f32") == (largest >= 65_520)
    if encoded.dtype == "f32":
        assert back.tobytes() == array.tobytes()
        return
    wide = array.astype(np.float64)
    error = np.abs(back.astype(np.float64) - wide)
    assert (error <= np.maximum(2.0**-11 * np.abs(wide), 2.0**-25)).all()


@given(tensors(ANY))
def test_what_is_not_finite_arrives_so_over_every_wire(array):
    for wire in wires_of(TensorType.of(array)):
        _, back = there_and_back(array, wire)
        np.testing.assert_array_equal(np.isnan(back), np.isnan(array))
        infinite = np.isinf(array)
        np.testing.assert_array_equal(back[infinite], array[infinite])
        np.testing.assert_array_equal(np.isinf(back), infinite)


@pytest.mark.parametrize("dtype", [d for d in DType.here() if d is not DType.F32])
def test_other_types_travel_as_they_are_and_no_other_way(dtype):
    array = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype.numpy)
    type = TensorType.of(array)
    assert wires_of(type) == (dtype.value,)
    encoded, back = there_and_back(array, dtype.value)
    assert encoded.dtype == dtype.value and len(encoded.content) == array.nbytes
    assert back.dtype == array.dtype and back.tobytes() == array.tobytes()
    other = "f16" if dtype is DType.I8 else "i8"
    with pytest.raises(WireError, match=f"cannot be written as {other}"):
        encode(array, other)


def test_a_transposed_or_empty_or_scalar_tensor_arrives_whole():
    for array in (
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.zeros((0, 3), np.float32),
        np.float32(2.5).reshape(()),
    ):
        for wire in ("f32", "f16"):
            back = there_and_back(array, wire)[1]
            np.testing.assert_array_equal(back, array)
        assert there_and_back(array, "i8")[1].shape == array.shape


def test_what_arrives_may_be_written_to():
    for wire in ("f32", "f16", "i8"):
        back = there_and_back(np.ones(3, np.float32), wire)[1]
        back[0] = 5


def test_bytes_on_a_wire():
    assert [wire_bytes(F32, w) for w in wires_of(F32)] == [12, 6, 3]
    with pytest.raises(WireError):
        wire_bytes(TensorType(DType.I64, (3,)), "f16")


@pytest.mark.parametrize(
    "encoded",
    [
        Encoded("f32", b"12345678"),
        Encoded("f16", b"12345678"),
        Encoded("f64", bytes(24)),
        Encoded("i8", b"123", 0.0, 0),
        Encoded("i8", b"123", float("nan"), 0),
        Encoded("i8", b"123", float("inf"), 0),
        Encoded("i8", b"123", -1.0, 0),
        Encoded("i8", b"123", 1.0, 128),
        Encoded("none", b"123"),
    ],
)
def test_a_tensor_that_is_not_what_it_says_is_refused(encoded):
    with pytest.raises(WireError):
        decode(encoded, F32)


def test_a_bool_is_0_or_1():
    with pytest.raises(WireError, match="neither 0 nor 1"):
        decode(Encoded("bool", b"\0\1\2"), TensorType(DType.BOOL, (3,)))
