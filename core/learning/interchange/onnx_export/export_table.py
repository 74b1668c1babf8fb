"""Every primitive of the IR and how ONNX says it: one row a primitive.

`ROWS` holds those that have a form in ONNX, `WITHIN` those with regions, `REFUSED` the others with
the reason; together they are all primitives. Attention, linear systems and derivatives of a
function's own are written as other primitives before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ....common.errors import DelianError
from ....compiler.ir import Function, Op, Value
from . import (
    elimination_loops,
    rows_control,
    rows_elementwise,
    rows_indices,
    rows_moves,
    rows_products,
    rows_sums,
)
from .graph_maker import GraphMaker
from .rows_control import Lower
from .rows_elementwise import Made, Row, by_type, plain

#: Primitives without regions.
ROWS: Mapping[str, Row] = MappingProxyType(
    {
        # one operand
        "neg": rows_elementwise.neg,
        "abs": rows_elementwise.absolute,
        "sign": plain("Sign"),
        "floor": plain("Floor"),
        "ceil": plain("Ceil"),
        "round": plain("Round"),
        "exp": plain("Exp"),
        "log": plain("Log"),
        "log1p": rows_elementwise.log1p,
        "expm1": rows_elementwise.expm1,
        "sqrt": plain("Sqrt"),
        "rsqrt": rows_elementwise.rsqrt,
        "sin": plain("Sin"),
        "cos": plain("Cos"),
        "tanh": plain("Tanh"),
        "sigmoid": plain("Sigmoid"),
        "erf": plain("Erf"),
        "not": by_type("Not", "BitwiseNot"),
        "is_finite": rows_elementwise.is_finite,
        "stop_gradient": rows_elementwise.alias,
        "opaque": rows_elementwise.alias,
        "convert": rows_elementwise.convert,
        "bitcast": rows_elementwise.bitcast,
        # two operands
        "add": plain("Add"),
        "sub": plain("Sub"),
        "mul": plain("Mul"),
        "div": plain("Div"),
        "max": rows_elementwise.extreme("Max"),
        "min": rows_elementwise.extreme("Min"),
        "pow": plain("Pow"),
        "atan2": rows_elementwise.atan2,
        "floordiv": rows_elementwise.floordiv,
        "mod": rows_elementwise.mod,
        "and": by_type("And", "BitwiseAnd"),
        "or": by_type("Or", "BitwiseOr"),
        "xor": by_type("Xor", "BitwiseXor"),
        "shl": rows_elementwise.shift("LEFT"),
        "shr": rows_elementwise.shift("RIGHT"),
        "eq": plain("Equal"),
        "ne": rows_elementwise.not_equal,
        "lt": rows_elementwise.less("Less"),
        "le": rows_elementwise.less("LessOrEqual"),
        "select": rows_elementwise.select,
        # moves
        "constant": rows_moves.constant,
        "iota": rows_moves.iota,
        "reshape": rows_moves.reshape,
        "broadcast": rows_moves.broadcast,
        "transpose": rows_moves.transpose,
        "reverse": rows_moves.reverse,
        "slice": rows_moves.slices,
        "pad": rows_moves.pad,
        "concat": rows_moves.concat,
        # places
        "dynamic_slice": rows_indices.dynamic_slice,
        "dynamic_update": rows_indices.dynamic_update,
        "take": rows_indices.take,
        "take_along": rows_indices.take_along,
        "put_add": rows_indices.put_add,
        "put_along_add": rows_indices.put_along_add,
        # along axes
        "reduce_sum": rows_sums.reduce_sum,
        "reduce_prod": rows_sums.reduce_prod,
        "reduce_max": rows_sums.extreme("ReduceMax"),
        "reduce_min": rows_sums.extreme("ReduceMin"),
        "argmax": rows_sums.first("ArgMax"),
        "argmin": rows_sums.first("ArgMin"),
        "argsort": rows_sums.argsort,
        "cumsum": rows_sums.cumsum,
        # products
        "dot": rows_products.dot,
        "conv": rows_products.conv,
        "conv_input_grad": rows_products.input_grad,
        "conv_weight_grad": rows_products.weight_grad,
        "grouped_conv": rows_products.conv,
        "grouped_conv_input_grad": rows_products.input_grad,
        "grouped_conv_weight_grad": rows_products.weight_grad,
        "quantised_conv": rows_products.quantised_conv,
        "threefry": rows_products.threefry,
        # lists
        "list_empty": rows_control.list_empty,
        "list_push": rows_control.list_push,
        "list_pop": rows_control.list_pop,
        "list_add": rows_control.list_add,
        "list_select": rows_control.list_select,
    }
)
#: Primitives with regions.
WITHIN: Mapping[str, Callable[[GraphMaker, Op, Lower], list[str]]] = MappingProxyType(
    {
        "if": rows_control.if_,
        "switch": rows_control.switch,
        "while": rows_control.while_,
        "for": rows_control.for_,
    }
)
#: Primitives that are written as others before (`export_model`).
COMPOSED = frozenset(("attention", "attention_grad", "custom_vjp")) | elimination_loops.NAMES
#: Primitives without a form in ONNX, and why.
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "list_take": "an array of lists has no form in ONNX, whose sequences are single",
    }
)
_SHOWN = 5


def lower(g: GraphMaker, op: Op) -> None:
    """Writes an operation's nodes."""
    if _is_empty(op):
        (result,) = op.results
        g.bind(result, g.zeros(result.dtype, result.shape))
        return
    if op.name in WITHIN:
        made: Made = WITHIN[op.name](g, op, lower) if op.results else []
    else:
        made = ROWS[op.name](g, op)
    if made is None:
        return
    if isinstance(made, Value):
        g.alias(op.result, made)
        return
    names = [made] if isinstance(made, str) else made
    for result, name in zip(op.results, names, strict=True):
        g.bind(result, name)


def _is_empty(op: Op) -> bool:
    """Whether its one result has no elements."""
    if len(op.results) != 1 or op.regions or op.name.startswith("list_"):
        return False
    return op.result.tensor.size == 0


def refusals(function: Function) -> list[tuple[Op, str]]:
    """The operations that have no form in ONNX, and why."""
    found = []
    for op in function.body.walk():
        values = (*op.operands, *op.results)
        lists = [why for v in values if (why := rows_control.list_refusal(v.type))]
        why = REFUSED.get(op.name) or (lists[0] if lists else "")
        if not why and op.name not in ROWS and op.name not in WITHIN:
            why = "it has no row in the table of the export"
        if why:
            found.append((op, why))
    return found


def check(function: Function) -> None:
    """Raises DelianError that names the operations without a form in ONNX, with their lines."""
    found = refusals(function)
    if not found:
        return
    op, why = found[0]
    names = sorted({op.name for op, _ in found})
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    own = [loc for loc in op.locs if not loc.is_own()] or list(op.locs)
    where = f" ({own[0]})" if own else ""
    raise DelianError(
        f"`{function.name}` has {len(found)} operations without a form in ONNX ({shown}):"
        f" `{op.name}`{where}: {why}",
        "export the part of the function that is without them, or keep it as a bundle",
    )
