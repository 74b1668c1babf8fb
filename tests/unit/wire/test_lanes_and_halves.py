"""Lists with lanes and 16-bit floats in text and on the wire, and what is refused of them."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import Builder, DType, Function, ListType, TensorType, in_lanes
from delian.core.compiler.ir_codec import decode_function, encode_function
from delian.core.compiler.parse import ParseError, parse_function
from delian.core.compiler.text import print_function
from delian.core.compiler.transforms.vjp import vjp
from delian.core.compiler.transforms.vmap import vmap
from delian.core.compiler.verify import Limits, VerifyError, verify_type

F64 = TensorType(DType.F64)


def masked_gradient() -> Function:
    """The gradient, for three lanes, of doubling a number until it is 10."""
    cond, body = Builder([F64]), Builder([F64])
    regions = (
        cond.finish([cond("lt", cond.params[0], cond.constant(10.0, DType.F64))]),
        body.finish([body("mul", body.params[0], body.params[0])]),
    )
    b = Builder([F64])
    block = vjp(b.finish(b.emit("while", b.params, {"consts": 0}, regions)), [0])
    many, _ = vmap(block, [True, True], 3)
    return Function("masked", many, ("x", "g"), ("value", "slope"))


def test_lists_with_lanes_round_trip():
    function = masked_gradient()
    text = print_function(function)
    assert "list<f64[]>[3]" in text
    assert print_function(parse_function(text)) == text
    assert print_function(decode_function(encode_function(function))) == text


def test_a_type_in_lanes_has_them_in_front():
    stack = ListType(ListType(TensorType(DType.BF16, (2,)), (4,)), (3,))
    assert str(stack) == "list<list<bf16[2]>[4]>[3]"
    assert stack.item == ListType(TensorType(DType.BF16, (2,)), (3, 4))
    assert in_lanes(TensorType(DType.F16, (2,)), (5,)) == TensorType(DType.F16, (5, 2))


@pytest.mark.parametrize(
    ("type_", "words"),
    [
        (ListType(F64, (0,)), "lanes"),
        (ListType(F64, (1,) * 17), "lanes"),
        (ListType(F64, (2**40,)), "1099511627776 times"),
        (ListType(TensorType(DType.F64, (0,)), (2**40,)), "times"),
        (ListType(ListType(F64, (2**20,)), (2**20,)), "times"),
    ],
)
def test_lanes_have_limits(type_, words):
    with pytest.raises(VerifyError, match=words):
        verify_type(type_, Limits())


def test_broken_lanes_are_refused_in_text():
    text = print_function(masked_gradient())
    for broken in ("list<f64[]>[3", "list<f64[]>[-3]", "list<f64[]>[x]"):
        with pytest.raises((ParseError, DelianError)):
            parse_function(text.replace("list<f64[]>[3]", broken))


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_constants_of_halves_keep_their_bits(dtype):
    odd = np.array([0.1, -1e-7, 3e4, np.inf, -0.0], np.float32).astype(dtype.numpy)
    many = np.arange(1000).astype(np.float32).astype(dtype.numpy)
    b = Builder([])
    body = b.finish([b.constant(odd), b.constant(many)])
    function = Function("halves", body, (), ("odd", "many"))
    text = print_function(function)
    for again in (parse_function(text), decode_function(encode_function(function))):
        for op, want in zip(again.body.ops, (odd, many), strict=True):
            assert op.attrs["value"].dtype == want.dtype
            assert op.attrs["value"].tobytes() == want.tobytes()
