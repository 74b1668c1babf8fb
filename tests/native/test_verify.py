"""The verifier names the rule that a program breaks."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import Loc, VerifyError
from delian.core.compiler.ir import Block, Builder, DType, Function, ListType, Op, TensorType, Value
from delian.core.compiler.verify import Limits, verify

F32 = TensorType(DType.F32, (3,))


def test_a_well_formed_program_passes():
    b = Builder([F32])
    verify(b.finish([b("mul", b.params[0], b.params[0])]))


def test_a_region_sees_nothing_outside_itself():
    b = Builder([F32, TensorType(DType.BOOL)])
    x, pred = b.params
    leak = Block((), [Op("neg", (x,), (Value(F32),), {})], ())
    b.ops.append(Op("if", (pred,), (), {}, (leak, Block((), [], ()))))
    with pytest.raises(VerifyError, match=r"'neg': operand 0 is not defined before it"):
        verify(b.finish([]))


def test_a_value_is_defined_before_it_is_used():
    x, y, z = Value(F32), Value(F32), Value(F32)
    second = Op("neg", (x,), (y,), {})
    first = Op("neg", (y,), (z,), {})
    verify(Block((x,), [second, first], (z,)))
    with pytest.raises(VerifyError, match="not defined"):
        verify(Block((x,), [first, second], (z,)))


def test_a_value_is_defined_once():
    x, y = Value(F32), Value(F32)
    op = Op("neg", (x,), (y,), {})
    with pytest.raises(VerifyError, match="defined twice"):
        verify(Block((x,), [op, op], (y,)))
    with pytest.raises(VerifyError, match="parameters: a value is defined twice"):
        verify(Block((x, x), [], ()))


def test_results_are_defined():
    with pytest.raises(VerifyError, match="result 0 of a block"):
        verify(Block((), [], (Value(F32),)))


def test_result_types_are_the_type_rules():
    x = Value(F32)
    wrong = Op(
        "neg", (x,), (Value(TensorType(DType.F64, (3,))),), {}, (), (Loc("a.py", 3, 4, 3, 6),)
    )
    with pytest.raises(VerifyError, match=r"'neg' from a.py:3:5: gives \(f32\[3\]\) but says"):
        verify(Block((x,), [wrong], ()))


def test_unknown_primitives_and_attributes_are_refused():
    x = Value(F32)
    with pytest.raises(VerifyError, match="no such primitive"):
        verify(Block((x,), [Op("launch", (x,), (), {})], ()))
    with pytest.raises(VerifyError, match="attributes"):
        verify(Block((x,), [Op("neg", (x,), (Value(F32),), {"fast": True})], ()))


def test_a_function_names_what_it_takes_and_gives():
    b = Builder([F32])
    body = b.finish([b.params[0]])
    verify(Function("f", body, ("x",), ("y",), frozenset({0})))
    with pytest.raises(VerifyError, match="names 0 parameters and has 1"):
        verify(Function("f", body, (), ("y",)))
    with pytest.raises(VerifyError, match="names 2 results and has 1"):
        verify(Function("f", body, ("x",), ("y", "z")))
    with pytest.raises(VerifyError, match="donates parameter 1 of 1"):
        verify(Function("f", body, ("x",), ("y",), frozenset({1})))


def nested(depth):
    b = Builder([TensorType(DType.BOOL)])
    inner = nested(depth - 1) if depth else b.finish([b.params[0]])
    if depth:
        (r,) = b.emit("if", (b.params[0], b.params[0]), {}, (inner, inner))
        return b.finish([r])
    return inner


def chain(count):
    b = Builder([F32])
    x = b.params[0]
    for _ in range(count):
        x = b("neg", x)
    return b.finish([x])


def with_constant(size):
    b = Builder()
    return b.finish([b.constant(np.zeros(size))])


def with_param(type):
    b = Builder([type])
    return b.finish(b.params)


@pytest.mark.parametrize(
    ("limits", "fits", "too_much", "words"),
    [
        (Limits(ops_max=4), chain(4), chain(5), "more than 4 operations"),
        (Limits(nesting_max=3), nested(3), nested(4), "nest more than 3 deep"),
        (Limits(constant_bytes_max=80), with_constant(10), with_constant(11), "exceed 80 bytes"),
        (Limits(block_bytes_max=24), chain(2), chain(3), "makes more than 24 bytes"),
        (
            Limits(tensor_bytes_max=12),
            with_param(F32),
            with_param(TensorType(DType.F32, (4,))),
            "takes 16 bytes; at most 12",
        ),
        (
            Limits(rank_max=2),
            with_param(TensorType(DType.F32, (1, 1))),
            with_param(TensorType(DType.F32, (1, 1, 1))),
            "rank 3; at most 2",
        ),
        (
            Limits(list_nesting_max=1),
            with_param(ListType(F32)),
            with_param(ListType(ListType(F32))),
            "lists nest more than 1 deep",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_limits_hold_for_programs_from_outside(limits, fits, too_much, words):
    verify(too_much)
    verify(fits, limits)
    with pytest.raises(VerifyError, match=words):
        verify(too_much, limits)


def test_long_names_are_refused():
    body = with_param(F32)
    with pytest.raises(VerifyError, match="a name of 2000 characters"):
        verify(Function("f", body, ("x" * 2000,), ("y",)), Limits())
