"""The table as a whole: every row is full, or what it lacks is lacking on purpose."""

from __future__ import annotations

import re
from typing import Any

import pytest
from delian.core.compiler.ir import DType, Op, TensorType, Value
from delian.core.compiler.primitives import PRIMITIVES, unary

#: Run by interpreters, differentiated by the transforms: their rows hold types and costs alone.
REGIONS = {"if", "switch", "while", "for", "custom_vjp"}
#: Flat wherever they have a derivative, or their results or operands are not floats.
NO_DERIVATIVE = {
    *("sign", "floor", "ceil", "round", "floordiv", "stop_gradient", "opaque"),
    *("not", "and", "or", "xor", "shl", "shr", "bitcast", "threefry"),
    *("is_finite", "eq", "ne", "lt", "le", "argmax", "argmin", "argsort"),
    *("constant", "iota", "list_empty", "list_take", "quantised_conv"),
}
ELEMENTWISE = {
    *("neg", "abs", "sign", "floor", "ceil", "round", "exp", "log", "log1p", "expm1"),
    *("sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf", "not", "is_finite"),
    *(
        "stop_gradient",
        "opaque",
        "atan2",
        "convert",
        "bitcast",
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "pow",
        "floordiv",
    ),
    *("mod", "and", "or", "xor", "shl", "shr", "eq", "ne", "lt", "le", "select"),
}
#: What a back end that writes C has to provide, for each element type that the primitive takes.
C_HELPERS = {
    *("dl_abs", "dl_floor", "dl_ceil", "dl_exp", "dl_log", "dl_log1p", "dl_expm1", "dl_sqrt"),
    *("dl_sin", "dl_cos", "dl_tanh", "dl_sigmoid", "dl_erf", "dl_not", "dl_to", "dl_bitcast"),
    *("dl_pow", "dl_atan2", "dl_round", "dl_floordiv", "dl_mod"),
}


@pytest.mark.parametrize("row", PRIMITIVES.values(), ids=PRIMITIVES)
def test_row_is_full(row: Any) -> None:
    assert PRIMITIVES[row.name] is row and row.version >= 1
    assert (row.reference is None) == (row.name in REGIONS) == (row.regions != 0)
    derivative = row.name not in NO_DERIVATIVE | REGIONS
    assert (row.vjp is not None) == (row.jvp is not None) == derivative
    assert (row.c is not None) == (row.name in ELEMENTWISE)
    assert len(set(row.attrs)) == len(row.attrs)


def test_every_primitive_is_tried(primitive_names: set[str]) -> None:
    assert primitive_names == set(PRIMITIVES) - REGIONS


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_c_expression_uses_its_operands_and_known_helpers(name: str) -> None:
    row = PRIMITIVES[name]
    assert row.c is not None and row.operands is not None
    names = ["a", "b", "c"][: row.operands]
    text = row.c.format(*names, t="float", s="f32", s0="i32", w="")
    assert "{" not in text and "}" not in text
    assert text.count("(") == text.count(")")
    words = set(re.findall(r"\b[a-z_]\w*", text))
    assert set(names) <= words
    helpers = {w.removesuffix("_f32").removesuffix("_i32") for w in words if w.startswith("dl_")}
    assert helpers <= C_HELPERS


def test_cost_is_a_count_from_types_alone(primitive_case: Any) -> None:
    for op in primitive_case.block().ops:
        cost = PRIMITIVES[op.name].cost(op)
        assert type(cost) is int and cost >= 0


def test_costs_worked_out_by_hand() -> None:
    Shape = tuple[int, ...]

    def cost(name: str, shapes: list[Shape], result: Shape, **attrs: Any) -> int:
        operands = tuple(Value(TensorType(DType.F32, s)) for s in shapes)
        return PRIMITIVES[name].cost(
            Op(name, operands, (Value(TensorType(DType.F32, result)),), attrs)
        )

    axes = {"contract_a": (2,), "contract_b": (1,), "batch_a": (0,), "batch_b": (0,)}
    assert cost("dot", [(5, 2, 3), (5, 3, 4)], (5, 2, 4), **axes) == 5 * 2 * 4 * (2 * 3)
    assert cost("add", [(2, 3), (2, 3)], (2, 3)) == 6
    assert cost("exp", [(2, 3)], (2, 3)) == 6 * unary.FUNCTION_COST
    assert cost("reduce_sum", [(2, 3)], (2,), axes=(1,)) == 6
    assert cost("reshape", [(2, 3)], (6,), shape=(6,)) == 0
    image = {"strides": (1, 1), "padding": ((0, 0), (0, 0))}
    work = 2 * (1 * 3 * 4 * 7) * (3 * 2 * 5)
    x, k, y = (1, 5, 5, 5), (3, 2, 5, 7), (1, 3, 4, 7)
    assert cost("conv", [x, k], y, **image) == work
    assert cost("conv_input_grad", [y, k], x, **image, input_size=(5, 5)) == work
    assert cost("conv_weight_grad", [x, y], k, **image, kernel_size=(3, 2)) == work
    parted = {**image, "groups": 5}
    work, k, y = 2 * (1 * 3 * 4 * 10) * (3 * 2), (3, 2, 1, 10), (1, 3, 4, 10)
    assert cost("grouped_conv", [x, k], y, **parted) == work
    assert cost("grouped_conv_input_grad", [y, k], x, **parted, input_size=(5, 5)) == work
    assert cost("grouped_conv_weight_grad", [x, y], k, **parted, kernel_size=(3, 2)) == work
