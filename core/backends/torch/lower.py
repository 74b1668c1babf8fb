"""From a block to a `torch.fx` graph.

    %2: f32[3] = mul(%0, %1)                          mul = torch.mul(p0, p1)
    %3: f32[] = reduce_sum(%2) {axes=[0]}      =>     reduce_sum = sums.reduce_sum(mul, axes=(0,))
    return %3                                         return (reduce_sum,)

An operation becomes a call of one function, its attributes the keywords; `print(program.code)`
shows them. A region becomes a graph of its own, called from the loop or branch that holds it. Loops
and branches look at their bounds and predicates on the host: that waits for the device, once a loop
or, for `while`, once a round. What has no region and no list waits for nothing, so torch.compile
takes it whole and a CUDA graph can hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...errors import DelianError
from ...ir import Block, DType, ListType, Op, Value
from . import elementwise, lists, moves, products, sums
from .graphs import GraphedLoop
from .options import Options
from .tensors import TORCH, bitcast, convert, low32, to_tensor

#: A region ready to be called: tensors (and lists) to a tuple of them.
Body = Callable[..., tuple[Any, ...]]
#: The function that an operation becomes, and its keywords.
Call = tuple[Callable[..., Any], Mapping[str, Any]]

#: Called with the operation's attributes as they are.
_PLAIN: Mapping[str, Callable[..., Any]] = {
    "reshape": moves.reshape,
    "broadcast": moves.broadcast,
    "transpose": moves.transpose,
    "reverse": moves.reverse,
    "slice": moves.slices,
    "concat": moves.concat,
    "take": moves.take,
    "put_add": moves.put_add,
    "take_along": moves.take_along,
    "put_along_add": moves.put_along_add,
    "reduce_sum": sums.reduce_sum,
    "reduce_prod": sums.reduce_prod,
    "reduce_max": sums.reduce_max,
    "reduce_min": sums.reduce_min,
    "argmax": sums.argmax,
    "argmin": sums.argmin,
    "argsort": sums.argsort,
    "cumsum": sums.cumsum,
    "cholesky": products.cholesky,
    "solve": products.solve,
    "triangular_solve": products.triangular_solve,
    "slogdet": products.slogdet,
    "threefry": products.threefry,
    "list_push": lists.push,
    "list_pop": lists.pop,
    "list_add": lists.add,
    "list_select": lists.select,
    "list_take": lists.take,
}
PRODUCTS: Mapping[str, Callable[..., Any]] = {
    "dot": products.dot,
    "conv": products.conv,
    "conv_input_grad": products.conv_input_grad,
    "conv_weight_grad": products.conv_weight_grad,
    "grouped_conv": products.conv,
    "grouped_conv_input_grad": products.conv_input_grad,
    "grouped_conv_weight_grad": products.conv_weight_grad,
}
_SHIFTS = ("shl", "shr")
#: What can leave the range of u32 when done on int64.
_WRAPS = frozenset(
    (
        *("neg", "not", "add", "sub", "mul", "shl", "dot", "reduce_sum", "reduce_prod", "cumsum"),
        *("put_add", "put_along_add"),
    )
)
_BITS_A_BYTE = 8


def lower(block: Block, options: Options) -> Body:
    """The block, ready to be called on tensors of the options' device.

    Raises DelianError for a primitive that has no lowering.
    """
    made = _Graph(options).build(block)
    if options.compile and is_straight(block):
        compiled: Body = torch.compile(made, fullgraph=True, dynamic=False)
        return compiled
    return made


def is_straight(block: Block) -> bool:
    """Whether a block has neither regions nor lists."""
    return not any(isinstance(p.type, ListType) for p in block.params) and not any(
        op.regions or any(isinstance(v.type, ListType) for v in op.results) for op in block.ops
    )


class _Graph:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.graph = torch.fx.Graph()
        self.nodes: dict[Value, Any] = {}
        self.constants: dict[str, Any] = {}
        #: Numbers that are known when the program is built.
        self.known: dict[Value, Any] = {}

    def build(self, block: Block) -> Body:
        for i, param in enumerate(block.params):
            self.nodes[param] = self.graph.placeholder(f"p{i}")
        for op in block.ops:
            self._add(op)
        self.graph.output(tuple([self.nodes[r] for r in block.results]))
        module: Body = torch.fx.GraphModule(self.constants, self.graph, "Program")
        return module

    def _add(self, op: Op) -> None:
        if op.name == "constant":
            return self._constant(op)
        function, keywords = self._call(op)
        operands = tuple([self.nodes[v] for v in op.operands])
        made = self.graph.create_node("call_function", function, operands, dict(keywords), op.name)
        if len(op.results) == 1 and not op.regions:
            (result,) = op.results
            wraps = op.name in _WRAPS and result.dtype is DType.U32
            self.nodes[result] = self.graph.call_function(low32, (made,)) if wraps else made
            return None
        for k, result in enumerate(op.results):
            self.nodes[result] = self.graph.call_function(_item, (made, k))
        return None

    def _constant(self, op: Op) -> None:
        value = op.attrs["value"]
        name = f"c{len(self.constants)}"
        self.constants[name] = to_tensor(value, self.options.device)
        self.nodes[op.result] = self.graph.get_attr(name)
        if value.shape == () and not op.result.dtype.is_half:
            self.known[op.result] = value.item()

    def _call(self, op: Op) -> Call:
        attrs = op.attrs
        if op.name in _SHIFTS:
            width = op.result.dtype.itemsize * _BITS_A_BYTE
            return elementwise.FUNCTIONS[op.name], {"width": width}
        if op.name in elementwise.FUNCTIONS:
            return elementwise.FUNCTIONS[op.name], {}
        if op.name in _PLAIN:
            return _PLAIN[op.name], attrs
        if op.name in PRODUCTS:
            return PRODUCTS[op.name], {**attrs, "bf16": self.options.bf16}
        if op.name in _REGIONS:
            return _REGIONS[op.name](op, self.options), {}
        source = op.operands[0].dtype if op.name in ("convert", "bitcast") else DType.BOOL
        return self._special(op, source)

    def _special(self, op: Op, source: DType) -> Call:
        attrs, device = op.attrs, self.options.device
        match op.name:
            case "convert" | "bitcast":
                function = convert if op.name == "convert" else bitcast
                return _fixed(function, source=source, target=attrs["dtype"]), {}
            case "iota":
                kind = TORCH[attrs["dtype"]]
                where = {"shape": attrs["shape"], "axis": attrs["axis"], "device": device}
                return moves.iota, {"dtype": kind, **where}
            case "pad":
                return moves.pad, {**attrs, "number": self.known.get(op.operands[1])}
            case "dynamic_slice":
                known = tuple([self.known.get(v) for v in op.operands[1:]])
                return moves.dynamic_slice, {**attrs, "known": known}
            case "dynamic_update":
                known = tuple([self.known.get(v) for v in op.operands[2:]])
                return moves.dynamic_update, {"known": known}
            case "list_empty":
                return _fixed(lists.zero_of, type_=attrs["type"], device=device), {}
        raise DelianError(
            f"{op.name} has no lowering to torch", 'run the program with backend="native"'
        )


def _item(results: Sequence[Any], k: int) -> Any:
    return results[k]


def _fixed(function: Callable[..., Any], **keywords: Any) -> Callable[..., Any]:
    """The function with keywords that a graph's text cannot show."""

    def fixed(*args: Any) -> Any:
        return function(*args, **keywords)

    fixed.__name__ = function.__name__
    return fixed


def _if(op: Op, options: Options) -> Body:
    then, otherwise = (lower(region, options) for region in op.regions)

    def branch(pred: Any, *args: Any) -> tuple[Any, ...]:
        return (then if bool(pred) else otherwise)(*args)

    return branch


def _switch(op: Op, options: Options) -> Body:
    cases = [lower(region, options) for region in op.regions]

    def switch(index: Any, *args: Any) -> tuple[Any, ...]:
        return cases[min(max(int(index), 0), len(cases) - 1)](*args)

    return switch


def _while(op: Op, options: Options) -> Body:
    cond, body = (lower(region, options) for region in op.regions)
    count: int = op.attrs["consts"]

    def while_loop(*args: Any) -> tuple[Any, ...]:
        consts, carries = args[:count], args[count:]
        while bool(cond(*consts, *carries)[0]):
            carries = body(*consts, *carries)
        return carries

    return while_loop


def _for(op: Op, options: Options) -> Body:
    region = op.regions[0]
    body = lower(region, options)
    count: int = op.attrs["consts"]
    if options.graphs and is_straight(region):
        return GraphedLoop(body, count)

    def for_loop(lo: Any, hi: Any, *args: Any) -> tuple[Any, ...]:
        consts, carries = args[:count], args[count:]
        index = lo
        for _ in range(int(hi - lo)):
            carries = body(index, *consts, *carries)
            index = index + 1
        return carries

    return for_loop


def _custom_vjp(op: Op, options: Options) -> Body:
    return lower(op.regions[0], options)


_REGIONS: Mapping[str, Callable[[Op, Options], Body]] = {
    "if": _if,
    "switch": _switch,
    "while": _while,
    "for": _for,
    "custom_vjp": _custom_vjp,
}


def primitives() -> frozenset[str]:
    """The names of all that has a lowering."""
    special = ("constant", "convert", "bitcast", "iota", "pad", "list_empty")
    windows = ("dynamic_slice", "dynamic_update")
    tables = (elementwise.FUNCTIONS, _PLAIN, PRODUCTS, _REGIONS)
    return frozenset((*special, *windows, *(name for table in tables for name in table)))
