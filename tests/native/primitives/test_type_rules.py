"""What `infer` gives and refuses, and that its refusals are worth reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import TypeRuleError
from delian.core.compiler.ir import Block, Builder, DType, ListType, TensorType, Type, Value
from delian.core.compiler.primitives import PRIMITIVES, infer


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


def i64(*shape: int) -> TensorType:
    return TensorType(DType.I64, shape)


def flag(*shape: int) -> TensorType:
    return TensorType(DType.BOOL, shape)


def types_of(name: str, types: Sequence[Type], *regions: Block, **attrs: Any) -> tuple[Type, ...]:
    return infer(name, [Value(t) for t in types], attrs, regions)


def body(*params: Type, gives: Sequence[int] = ()) -> Block:
    b = Builder(params)
    return b.finish([b.params[i] for i in gives])


F64 = TensorType(DType.F64, (3,))
LIST = ListType(f32(2))
DOT = {"contract_a": (1,), "contract_b": (0,), "batch_a": (), "batch_b": ()}
CONV: dict[str, Any] = {"strides": (1, 1), "padding": ((0, 0), (0, 0))}

REFUSED: list[tuple[str, list[Type], dict[str, Any], str]] = [
    ("ad", [], {}, "ad: there is no such primitive\n  hint: the nearest name is"),
    ("add", [f32(3)], {}, "add: takes 2 operands, not 1"),
    ("add", [f32(3), f32(4)], {}, "add: shapes [3] and [4] differ (f32[3] and f32[4])"),
    ("add", [f32(3), F64], {}, "add: element types f32 and f64 differ (f32[3] and f64[3])"),
    ("add", [flag(3), flag(3)], {}, "add: operand must hold numbers, not bool[3]"),
    ("add", [LIST, LIST], {}, "add: operand must be a tensor, not list<f32[2]>"),
    ("exp", [i64()], {}, "exp: operand must hold floating point, not i64[]"),
    ("exp", [f32()], {"axis": 0}, "exp: attributes: does not know axis"),
    ("reshape", [f32(3)], {}, "reshape: attributes: lacks shape"),
    ("reshape", [f32(3)], {"shape": (2,)}, "f32[3] has 3 elements and f32[2] has 2"),
    ("reshape", [f32(3)], {"shape": [3]}, "shape must be a tuple of ints"),
    ("broadcast", [f32(2)], {"shape": (3,), "dims": (0,)}, "f32[2] does not fit shape [3]"),
    ("broadcast", [f32(2, 2)], {"shape": (2, 2), "dims": (1, 0)}, "must grow"),
    ("transpose", [f32(2, 3)], {"perm": (0,)}, "perm (0,) must name each axis of f32[2,3]"),
    ("transpose", [f32(2, 3)], {"perm": (0, 0)}, "name an axis twice"),
    ("slice", [f32(3)], {"start": (1,), "stop": (4,), "step": (1,)}, "do not fit f32[3]"),
    (
        "slice",
        [f32(3)],
        {"start": (0,), "stop": (3,), "step": (0,)},
        "step must be a tuple of ints from 1",
    ),
    (
        "pad",
        [f32(3), F64],
        {"low": (0,), "high": (0,), "interior": (0,)},
        "must be f32[], not f64[3]",
    ),
    ("concat", [f32(2, 3), f32(2, 4)], {"axis": 0}, "f32[2,3] and f32[2,4] differ off axis 0"),
    ("concat", [], {"axis": 0}, "needs at least one operand"),
    ("select", [f32(3), f32(3), f32(3)], {}, "the predicate must be bool, not f32[3]"),
    ("select", [flag(2), f32(3), f32(3)], {}, "bool[2] and the operands f32[3] differ in shape"),
    ("bitcast", [f32(3)], {"dtype": DType.F64}, "f32[3] and f64 differ in width"),
    ("dynamic_slice", [f32(3), f32()], {"sizes": (1,)}, "a start must be i64[], not f32[]"),
    ("dynamic_slice", [f32(3)], {"sizes": (1,)}, "f32[3] needs 1 starts, not 0"),
    ("dynamic_slice", [f32(3), i64()], {"sizes": (4,)}, "sizes (4,) exceed f32[3]"),
    ("dynamic_update", [f32(3), f32(4), i64()], {}, "the update f32[4] does not fit in f32[3]"),
    ("take", [f32(3), f32(2)], {"axis": 0}, "the indices must hold integers, not f32[2]"),
    ("take", [f32(0), i64(2)], {"axis": 0}, "f32[0] has nothing to index along axis 0"),
    ("take", [f32(3), i64(2)], {"axis": 1}, "axis must be an int from 0 to 0"),
    ("put_add", [f32(3), i64(2), f32(3)], {"axis": 0}, "the updates must be f32[2]"),
    ("take_along", [f32(2, 3), i64(3, 3)], {"axis": 1}, "must have one shape off axis 1"),
    ("reduce_sum", [f32(2, 3)], {"axes": (1, 0)}, "axes (1, 0) must be sorted"),
    ("reduce_sum", [f32(2, 3)], {"axes": (2,)}, "axes (2,) go beyond rank 2"),
    ("reduce_max", [f32(2, 0)], {"axes": (1,)}, "f32[2,0] has no elements along axes (1,)"),
    ("argmax", [f32(0)], {"axis": 0}, "f32[0] has no elements along axis 0"),
    ("dot", [f32(2, 3), f32(4, 5)], DOT, "contract sizes differ: 3 along axis 1 of f32[2,3]"),
    ("cholesky", [f32(2, 3)], {}, "takes square matrices, not f32[2,3]"),
    ("cholesky", [i64(2, 2)], {}, "must hold floating point"),
    ("slogdet", [f32(0, 0)], {}, "has no elements"),
    ("solve", [f32(2, 2), f32(3, 1)], {}, "shapes [2, 2] and [3, 1] differ"),
    ("triangular_solve", [f32(2, 2), f32(2, 1)], {"lower": 1}, "lower must be a bool, not 1"),
    ("dot", [f32(2, 3), F64], DOT, "element types of f32[2,3] and f64[3] differ"),
    ("conv", [f32(1, 5, 5, 2), f32(3, 3, 1, 4)], CONV, "has 2 channels, the kernel"),
    ("conv", [f32(1, 2, 5, 1), f32(3, 3, 1, 4)], CONV, "a kernel of 3 does not fit 2 elements"),
    (
        "conv_input_grad",
        [f32(1, 3, 3, 1), f32(3, 3, 2, 1)],
        {**CONV, "input_size": (9, 9)},
        "an input of (9, 9) does not give f32[1,3,3,1]",
    ),
    (
        "grouped_conv",
        [f32(1, 5, 5, 4), f32(3, 3, 1, 4)],
        {**CONV, "groups": 3},
        "4 and 4 channels do not fall into 3 groups",
    ),
    (
        "grouped_conv",
        [f32(1, 5, 5, 4), f32(3, 3, 2, 4)],
        {**CONV, "groups": 4},
        "has 4 channels, the kernel f32[3,3,2,4] takes 2 in each of 4 groups",
    ),
    (
        "grouped_conv_weight_grad",
        [f32(1, 5, 5, 4), f32(1, 3, 3, 4)],
        {**CONV, "kernel_size": (3, 3), "groups": 0},
        "groups must be an int from 1 to",
    ),
    ("threefry", [f32(), f32(), f32(), f32()], {}, "the first half of the key must be u32[]"),
    ("list_push", [LIST, f32(3)], {}, "list<f32[2]> cannot hold f32[3]"),
    ("list_pop", [f32(3)], {}, "operand must be a list, not f32[3]"),
    ("constant", [], {"value": 3.0}, "value must be a ndarray, not 3.0"),
    ("constant", [], {"value": np.zeros(2, np.complex128)}, "no element type complex128"),
    ("iota", [], {"dtype": DType.BOOL, "shape": (2,), "axis": 0}, "dtype must be one of"),
    ("if", [flag()], {}, "if: takes 2 regions, not 0"),
]


@pytest.mark.parametrize(
    ("name", "types", "attrs", "words"), REFUSED, ids=[f"{r[0]}-{i}" for i, r in enumerate(REFUSED)]
)
def test_refusal_says_what_is_wrong(
    name: str, types: list[Type], attrs: dict[str, Any], words: str
) -> None:
    with pytest.raises(TypeRuleError) as caught:
        types_of(name, types, **attrs)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{name}: ")


def test_if_gives_what_both_branches_give() -> None:
    good = body(f32(2), i64(), gives=[1, 0])
    assert types_of("if", [flag(), f32(2), i64()], good, good) == (i64(), f32(2))


@pytest.mark.parametrize(
    ("types", "then", "otherwise", "words"),
    [
        ([flag(2)], body(), body(), "the predicate must be bool[], not bool[2]"),
        ([flag(), f32()], body(), body(), "the then region takes 0 values and is given 1"),
        (
            [flag(), f32()],
            body(f32()),
            body(f32(3)),
            "the else region's parameter 0 is f32[3] and is given f32[]",
        ),
        (
            [flag(), f32(), i64()],
            body(f32(), i64(), gives=[0]),
            body(f32(), i64(), gives=[1]),
            "the else region's result 0 is i64[] where f32[] is wanted",
        ),
        (
            [flag(), f32()],
            body(f32(), gives=[0]),
            body(f32()),
            "the else region gives 0 values where 1 are wanted",
        ),
    ],
)
def test_if_refuses(types: list[Type], then: Block, otherwise: Block, words: str) -> None:
    with pytest.raises(TypeRuleError) as caught:
        types_of("if", types, then, otherwise)
    assert words in str(caught.value)


def test_switch_gives_what_all_cases_give() -> None:
    case = body(f32(2), i64(), gives=[1, 0])
    for count in (1, 2, 5):
        assert types_of("switch", [i64(), f32(2), i64()], *[case] * count) == (i64(), f32(2))


@pytest.mark.parametrize(
    ("types", "cases", "words"),
    [
        ([], [body()], "needs an index"),
        ([flag()], [body()], "the index must be i64[], not bool[]"),
        ([i64()], [], "takes 1 to 1024 cases, not 0"),
        ([i64()], [body()] * 1025, "takes 1 to 1024 cases, not 1025"),
        ([i64()], [body(), body(), body(f32())], "the case2 region takes 1 values and is given 0"),
        (
            [i64(), f32()],
            [body(f32(), gives=[0]), body(f32())],
            "the case1 region gives 0 values where 1 are wanted",
        ),
    ],
)
def test_switch_refuses(types: list[Type], cases: list[Block], words: str) -> None:
    with pytest.raises(TypeRuleError) as caught:
        types_of("switch", types, *cases)
    assert words in str(caught.value)


def test_loops_give_their_carries() -> None:
    types = [f32(3), i64(), LIST]
    cond = body(flag(), *types, gives=[0])
    step = body(flag(), *types, gives=[1, 2, 3])
    assert types_of("while", [flag(), *types], cond, step, consts=1) == tuple(types)
    step = body(i64(), f32(3), *types, gives=[2, 3, 4])
    assert types_of("for", [i64(), i64(), f32(3), *types], step, consts=1) == tuple(types)


@pytest.mark.parametrize(
    ("name", "types", "regions", "consts", "words"),
    [
        ("while", [f32()], [body(f32(), gives=[0]), body(f32(), gives=[0])], 0, "the cond region"),
        ("while", [flag()], [body(flag(), gives=[0]), body(flag())], 0, "the body region gives 0"),
        ("while", [flag()], [body(flag(), gives=[0])] * 2, 2, "consts must be an int from 0 to 1"),
        ("while", [flag()], [body(flag(), gives=[0])] * 2, True, "consts must be an int"),
        ("for", [i64()], [body(i64())], 0, "needs its bounds"),
        ("for", [i64(), f32()], [body(i64())], 0, "the upper bound must be i64[], not f32[]"),
        ("for", [i64(), i64()], [body()], 0, "the body region takes 0 values and is given 1"),
        ("for", [i64(), i64(), f32()], [body(i64(), f32(), gives=[0])], 0, "result 0 is i64[]"),
    ],
)
def test_loops_refuse(
    name: str, types: list[Type], regions: list[Block], consts: int, words: str
) -> None:
    with pytest.raises(TypeRuleError) as caught:
        types_of(name, types, *regions, consts=consts)
    assert words in str(caught.value)


RUBBISH: list[Any] = [
    *(None, -1, 0, 1.5, "x", True, (), (-1,), (1.0,), (99,), (0, 0), [0], (None, None)),
    *(DType.F32, f32(2), LIST, np.zeros(2), np.array("text"), ((0,), (0,)), (2**70,) * 2),
]


@pytest.mark.parametrize("name", PRIMITIVES)
def test_rubbish_is_refused_or_typed_never_a_crash(name: str) -> None:
    """A program from outside may hold anything at all."""
    row = PRIMITIVES[name]
    some: list[Type] = [f32(), f32(2, 3), f32(1, 4, 4, 2), i64(), i64(2), flag(), LIST]
    counts = range(4) if row.operands is None else [row.operands]
    regions = [body(), body(i64(), gives=[0])][: row.regions]
    for count in counts:
        for offset in range(len(some)):
            types = [some[(offset * (i + 1)) % len(some)] for i in range(count)]
            for i, value in enumerate(RUBBISH):
                attrs = {key: RUBBISH[(i + j) % len(RUBBISH)] for j, key in enumerate(row.attrs)}
                attrs = attrs if i % 2 else dict.fromkeys(row.attrs, value)
                try:
                    given = types_of(name, types, *regions, **attrs)
                except TypeRuleError:
                    continue
                assert all(isinstance(t, TensorType | ListType) for t in given)


def test_an_eager_primitive_says_what_is_no_number() -> None:
    x = np.zeros((1, 2, 1, 3), np.float32)
    with pytest.raises(TypeRuleError, match="takes numbers and bools, not float32"):
        dl.ops.attend(x, x, x, mask="x")
