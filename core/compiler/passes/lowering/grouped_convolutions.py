"""Convolutions in groups as what back ends have kernels for: dense ones and depthwise ones.

one group         the dense convolution
a channel each    depthwise, and one output a channel: left as it is. With m outputs a channel,
                  each channel stands m times in the input, side by side
in between        a loop over the groups, each a dense convolution of its channels
"""

from __future__ import annotations

from ...ir import Builder, DType, Function, Op, TensorType, Value, replaced_in

#: What each primitive is within one group.
_DENSE = {
    "grouped_conv": "conv",
    "grouped_conv_input_grad": "conv_input_grad",
    "grouped_conv_weight_grad": "conv_weight_grad",
}
_I64 = TensorType(DType.I64)


def split_grouped_convolutions(function: Function) -> Function:
    """The function with dense and depthwise convolutions alone; the same one where that is so."""
    return replaced_in(function, _is_grouped, lambda b, op, given: (_lowered(b, op, given),))


def _is_grouped(op: Op) -> bool:
    return op.name in _DENSE and _per_group(op) != (1, 1)


def _per_group(op: Op) -> tuple[int, int]:
    """Input and output channels of one group."""
    kernel = op.result if op.name == "grouped_conv_weight_grad" else op.operands[1]
    return kernel.shape[2], kernel.shape[3] // int(op.attrs["groups"])


def _lowered(b: Builder, op: Op, operands: list[Value]) -> Value:
    attrs = {k: v for k, v in op.attrs.items() if k != "groups"}
    if op.attrs["groups"] == 1:
        return b.emit(_DENSE[op.name], operands, attrs)[0]
    inputs, outputs = _per_group(op)
    if inputs == 1:
        return _repeated(b, op, operands, outputs)
    return _group_by_group(b, op, operands, attrs)


def _repeated(b: Builder, op: Op, operands: list[Value], times: int) -> Value:
    """Depthwise with several outputs a channel, as one with one: the input's channels repeat."""
    first, second = operands
    attrs = {**op.attrs, "groups": int(op.attrs["groups"]) * times}
    if op.name == "grouped_conv_input_grad":
        (wide,) = b.emit(op.name, (first, second), attrs)
        channels = op.result.shape[-1]
        parted = b("reshape", wide, shape=(*wide.shape[:-1], channels, times))
        return b("reduce_sum", parted, axes=(4,))
    *outer, channels = first.shape
    axes = tuple(range(len(outer) + 1))
    repeated = b("broadcast", first, shape=(*outer, channels, times), dims=axes)
    repeated = b("reshape", repeated, shape=(*outer, channels * times))
    return b.emit(op.name, (repeated, second), attrs)[0]


def _group_by_group(b: Builder, op: Op, operands: list[Value], attrs: dict[str, object]) -> Value:
    """A loop over the groups.

    The last axis of every operand and of the result falls into groups, but for the input's
    gradient, where the kernel's does too and the third is whole: all alike.
    """
    groups = int(op.attrs["groups"])
    out = op.result.tensor
    body = Builder([_I64, *(v.type for v in operands), out], op.locs)
    group, *rest = body.params
    *sources, carry = rest
    zero = body.constant(0, DType.I64)
    parts = []
    for x in sources:
        width = x.shape[3] // groups
        start = body("mul", group, body.constant(width, DType.I64))
        sizes = (*x.shape[:3], width)
        parts.append(body("dynamic_slice", x, zero, zero, zero, start, sizes=sizes))
    (made,) = body.emit(_DENSE[op.name], parts, attrs)
    start = body("mul", group, body.constant(out.shape[3] // groups, DType.I64))
    result = body("dynamic_update", carry, made, zero, zero, zero, start)
    bounds = b.constant(0, DType.I64), b.constant(groups, DType.I64)
    region = body.finish([result])
    return b.emit("for", (*bounds, *operands, b.zeros(out)), {"consts": 2}, (region,))[0]
