"""Integers in attributes are bounded from both sides, in every primitive that has any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError, TypeRuleError, VerifyError
from delian.core.compiler.ir import Block, Builder, DType, Function, ListType, Op, TensorType, Value
from delian.core.compiler.ir_codec import decode_function, encode_function
from delian.core.compiler.primitives import PRIMITIVES, attributes, infer
from delian.core.compiler.primitives.attributes import ATTRIBUTES, EXTENT_MAX, SIZE_MAX, Ints
from delian.core.compiler.verify import Limits, verify

F32 = DType.F32
#: What a hostile program has in place of an integer: 64 bits, as the wire format carries them.
ENDS = (-(2**63), -(2**62), -1, 2**62, 2**62 + 1, 2**63 - 1)


def test_every_attribute_of_every_primitive_has_a_kind() -> None:
    used = {key for row in PRIMITIVES.values() for key in row.attrs}
    assert used == set(ATTRIBUTES)


def test_all_bounds_leave_room_for_products_in_64_bits() -> None:
    for name, kind in ATTRIBUTES.items():
        if isinstance(kind, Ints):
            assert kind.low in (0, 1) and kind.high <= SIZE_MAX, name
    # A stride times the elements of an image, with room for a sum of 64 such terms.
    assert attributes.STRIDE_MAX * EXTENT_MAX * 64 < 2**63
    assert SIZE_MAX + 2 * attributes.PADDING_MAX < 2**41


def filled(kind: Any, leaf: int) -> Any:
    """An attribute of an integer kind: its last integer is `leaf`, the others are in bounds."""
    value: Any = leaf
    for _ in range(kind.nesting):
        value = (kind.low, value) if type(value) is int else ((kind.low,), value)
    return value


INTEGERS = [
    (row.name, key)
    for row in PRIMITIVES.values()
    for key in row.attrs
    if isinstance(ATTRIBUTES[key], Ints)
]


@pytest.mark.parametrize(("name", "key"), INTEGERS)
def test_an_integer_beyond_its_bounds_is_refused_in_every_primitive(name: str, key: str) -> None:
    row, kind = PRIMITIVES[name], ATTRIBUTES[key]
    assert isinstance(kind, Ints)
    operands = [Value(TensorType(F32)) for _ in range(row.operands or 0)]
    regions = [Block((), [], ()) for _ in range(row.regions or 0)]
    good: dict[str, Any] = {"dtype": F32, "value": np.zeros(1)}
    for other in row.attrs:
        if isinstance(of := ATTRIBUTES[other], Ints):
            good[other] = filled(of, of.low)
    attrs = {other: good[other] for other in row.attrs}
    for leaf in (kind.low - 1, kind.high + 1, *ENDS):
        with pytest.raises(TypeRuleError, match=rf"^{name}: {key} must be .*{kind.high}, not"):
            infer(name, operands, {**attrs, key: filled(kind, leaf)}, regions)


def grouped(strides: Sequence[int], padding: Any, which: str) -> Function:
    """A depthwise convolution or a gradient, built without the type rule, as a peer may send it."""
    shapes = {
        "": ((1, 40, 3, 16), (3, 3, 1, 16), (1, 3, 1, 16)),
        "_weight_grad": ((1, 40, 3, 16), (1, 3, 1, 16), (3, 3, 1, 16)),
        "_input_grad": ((1, 3, 1, 16), (3, 3, 1, 16), (1, 40, 3, 16)),
    }[which]
    x, y, result = (Value(TensorType(F32, shape)) for shape in shapes)
    more: dict[str, Any] = {
        "": {},
        "_weight_grad": {"kernel_size": (3, 3)},
        "_input_grad": {"input_size": (40, 3)},
    }[which]
    attrs = {"strides": tuple(strides), "padding": padding, "groups": 16, **more}
    op = Op(f"grouped_conv{which}", (x, y), (result,), attrs)
    return Function("f", Block((x, y), [op], (result,)), ("x", "y"), ("r",))


@pytest.mark.parametrize("which", ["", "_input_grad", "_weight_grad"])
def test_a_stride_that_wraps_an_address_around_is_refused_from_the_wire(which: str) -> None:
    """These numbers once made the third row of windows begin at -2^63, before all checks."""
    wrapping = grouped((2**62 + 1, 1), ((2, 2**63 - 1), (0, 0)), which)
    with pytest.raises(VerifyError, match=r"grouped_conv.*strides must be a tuple of ints from 1"):
        decode_function(encode_function(wrapping), Limits())
    far = grouped((1, 1), ((2, 2**63 - 1), (0, 0)), which)
    with pytest.raises(VerifyError, match="padding must be a tuple of tuples of ints from 0"):
        decode_function(encode_function(far), Limits())


EXTREME = [
    ((2**41, 0), "a size of 2199023255552; sizes are from 0 to"),
    ((2**63 - 1, 0), "sizes are from 0 to"),
    ((2**21, 2**20, 0), "make more than 1099511627776 elements"),
    ((0, 2**40, 2), "make more than"),
]


@pytest.mark.parametrize(("shape", "words"), EXTREME)
def test_an_empty_tensor_has_bounded_sizes_too(shape: tuple[int, ...], words: str) -> None:
    param = Value(TensorType(F32, shape))
    block = Block((param,), [], (param,))
    with pytest.raises(VerifyError, match=words):
        verify(block)
    with pytest.raises(DelianError, match=words):
        decode_function(encode_function(Function("f", block, ("x",), ("y",))))


def test_an_empty_tensor_counts_as_its_other_sizes_against_the_limit() -> None:
    param = Value(TensorType(F32, (1 << 20, 0, 1 << 10)))
    block = Block((param,), [], (param,))
    verify(block)
    with pytest.raises(VerifyError, match="takes 4294967296 bytes; at most 1073741824"):
        verify(block, Limits())


def test_lanes_of_a_list_are_bounded() -> None:
    list_ = ListType(TensorType(F32), (2**40, 2**40))
    param = Value(list_)
    with pytest.raises(VerifyError, match="make more than"):
        verify(Block((param,), [], (param,)), Limits())


def test_channels_that_are_not_there_do_not_fall_into_many_groups() -> None:
    """A loop over 2^40 groups of nothing would never end."""
    b = Builder([TensorType(F32, (1, 4, 4, 0)), TensorType(F32, (3, 3, 0, 0))])
    how = {"strides": (1, 1), "padding": ((0, 0), (0, 0))}
    with pytest.raises(TypeRuleError, match="groups must be an int from 1 to 1"):
        b("grouped_conv", *b.params, groups=2**40, **how)
    b("grouped_conv", *b.params, groups=1, **how)


def test_a_refusal_does_not_repeat_a_long_value() -> None:
    with pytest.raises(TypeRuleError) as caught:
        infer("iota", [], {"shape": (-1,) * 10_000, "axis": 0, "dtype": F32}, [])
    assert len(str(caught.value)) < 300
