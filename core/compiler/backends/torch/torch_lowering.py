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

from ....common.errors import DelianError
from ...ir import Block, DType, ListType, Op, Value
from ...passes.lowering import attention_products
from . import torch_elementwise, torch_lists, torch_moves, torch_products, torch_sums
from .torch_graphs import GraphedLoop
from .torch_options import Options
from .torch_tensors import AS_BITS, TORCH, bitcast, bits16, bits32, convert, to_tensor, unsigned

#: A region ready to be called: tensors (and lists) to a tuple of them.
Body = Callable[..., tuple[Any, ...]]
#: The function that an operation becomes, and its keywords.
Call = tuple[Callable[..., Any], Mapping[str, Any]]

#: Called with the operation's attributes as they are.
_PLAIN: Mapping[str, Callable[..., Any]] = {
    "reshape": torch_moves.reshape,
    "broadcast": torch_moves.broadcast,
    "transpose": torch_moves.transpose,
    "reverse": torch_moves.reverse,
    "slice": torch_moves.slices,
    "concat": torch_moves.concat,
    "take": torch_moves.take,
    "put_add": torch_moves.put_add,
    "take_along": torch_moves.take_along,
    "put_along_add": torch_moves.put_along_add,
    "reduce_sum": torch_sums.reduce_sum,
    "reduce_prod": torch_sums.reduce_prod,
    "reduce_max": torch_sums.reduce_max,
    "reduce_min": torch_sums.reduce_min,
    "argmax": torch_sums.argmax,
    "argmin": torch_sums.argmin,
    "argsort": torch_sums.argsort,
    "cumsum": torch_sums.cumsum,
    "cholesky": torch_products.cholesky,
    "solve": torch_products.solve,
    "triangular_solve": torch_products.triangular_solve,
    "slogdet": torch_products.slogdet,
    "threefry": torch_products.threefry,
    "quantised_conv": torch_products.quantised_conv,
    "list_push": torch_lists.push,
    "list_pop": torch_lists.pop,
    "list_add": torch_lists.add,
    "list_select": torch_lists.select,
    "list_take": torch_lists.take,
}
PRODUCTS: Mapping[str, Callable[..., Any]] = {
    "dot": torch_products.dot,
    "conv": torch_products.conv,
    "conv_input_grad": torch_products.conv_input_grad,
    "conv_weight_grad": torch_products.conv_weight_grad,
    "grouped_conv": torch_products.conv,
    "grouped_conv_input_grad": torch_products.conv_input_grad,
    "grouped_conv_weight_grad": torch_products.conv_weight_grad,
}
_SHIFTS = ("shl", "shr")
#: What depends on the sign: u32 and u16 are given to them as int64.
_SIGNED = frozenset(
    (
        *("abs", "sign", "max", "min", "floordiv", "mod", "lt", "le", "shr", "reduce_max"),
        *("reduce_min", "argmax", "argmin", "argsort"),
    )
)
#: Their indices may be u32 or u16.
_INDEXED = frozenset(("take", "put_add", "take_along", "put_along_add"))
_BITS_A_BYTE = 8


def lower(block: Block, options: Options) -> Body:
    """A callable on the device's tensors. Raises DelianError for a primitive without lowering."""
    if not options.compile:
        return _Graph(options).build(block)
    if is_straight(block):
        compiled: Body = torch.compile(_Graph(options).build(block), fullgraph=True, dynamic=False)
        return compiled
    return _Graph(options, _stretches(block)).build(block)


#: Fewer operations than this in a row are not worth a compiler's time.
_STRETCH_MIN = 4


def _stretches(block: Block) -> dict[Op, Block]:
    """Runs of operations without regions and lists as blocks, by their last operation.

    Blocks take the values from outside and give all that is used later.
    """
    runs: list[list[Op]] = [[]]
    for op in block.ops:
        lists_in = any(isinstance(v.type, ListType) for v in (*op.operands, *op.results))
        if op.regions or lists_in:
            runs.append([])
        else:
            runs[-1].append(op)
    uses: dict[Value, int] = {}
    for v in (*(v for op in block.ops for v in op.operands), *block.results):
        uses[v] = uses.get(v, 0) + 1
    out = {}
    for run in runs:
        if len(run) < _STRETCH_MIN:
            continue
        made = dict.fromkeys(r for op in run for r in op.results)
        inside: dict[Value, int] = {}
        for v in (v for op in run for v in op.operands):
            inside[v] = inside.get(v, 0) + 1
        params = tuple([v for v in inside if v not in made])
        results = tuple([v for v in made if uses.get(v, 0) > inside.get(v, 0)])
        out[run[-1]] = Block(params, run, results)
    return out


def is_straight(block: Block) -> bool:
    """Whether a block has neither regions nor lists."""
    return not any(isinstance(p.type, ListType) for p in block.params) and not any(
        op.regions or any(isinstance(v.type, ListType) for v in op.results) for op in block.ops
    )


class _Graph:
    """Builds one graph. stretches: parts that are compiled apart, by their last operation."""

    def __init__(self, options: Options, stretches: Mapping[Op, Block] | None = None) -> None:
        self.options = options
        self.stretches = stretches or {}
        self.apart = {op for part in self.stretches.values() for op in part.ops}
        self.graph = torch.fx.Graph()
        self.nodes: dict[Value, Any] = {}
        self.constants: dict[str, Any] = {}
        #: Numbers that are known when the program is built.
        self.known: dict[Value, Any] = {}

    def build(self, block: Block) -> Body:
        for i, param in enumerate(block.params):
            self.nodes[param] = self.graph.placeholder(f"p{i}")
        for op in block.ops:
            if op in self.stretches:
                self._stretch(self.stretches[op])
            elif op not in self.apart:
                self._add(op)
        self.graph.output(tuple([self.nodes[r] for r in block.results]))
        module: Body = torch.fx.GraphModule(self.constants, self.graph, "Program")
        return module

    def _stretch(self, part: Block) -> None:
        compiled = torch.compile(_Graph(self.options).build(part), fullgraph=True, dynamic=False)
        operands = tuple([self.nodes[v] for v in part.params])
        made = self.graph.call_function(_fixed(compiled, name="stretch"), operands)
        for k, result in enumerate(part.results):
            self.nodes[result] = self.graph.call_function(_item, (made, k))

    def _add(self, op: Op) -> None:
        if op.name == "constant":
            return self._constant(op)
        function, keywords = self._call(op)
        operands = tuple([self._operand(op, i) for i in range(len(op.operands))])
        made = self.graph.create_node("call_function", function, operands, dict(keywords), op.name)
        if len(op.results) == 1 and not op.regions:
            (result,) = op.results
            if op.name in _SIGNED and result.dtype in AS_BITS:
                narrow = bits32 if result.dtype is DType.U32 else bits16
                made = self.graph.call_function(narrow, (made,))
            self.nodes[result] = made
            return None
        for k, result in enumerate(op.results):
            self.nodes[result] = self.graph.call_function(_item, (made, k))
        return None

    def _operand(self, op: Op, i: int) -> Any:
        value = op.operands[i]
        wide = op.name in _SIGNED or (op.name in _INDEXED and i == 1)
        if wide and value.dtype in AS_BITS:
            return self.graph.call_function(unsigned, (self.nodes[value],))
        return self.nodes[value]

    def _constant(self, op: Op) -> None:
        value = op.attrs["value"]
        name = f"c{len(self.constants)}"
        self.constants[name] = to_tensor(value, self.options.device)
        self.nodes[op.result] = self.graph.get_attr(name)
        if value.shape == () and not op.result.dtype.is_half:
            bits = value.view(AS_BITS.get(op.result.dtype, value.dtype))
            self.known[op.result] = bits.item()

    def _call(self, op: Op) -> Call:
        attrs = op.attrs
        if op.name in _SHIFTS:
            width = op.result.dtype.itemsize * _BITS_A_BYTE
            return torch_elementwise.FUNCTIONS[op.name], {"width": width}
        if op.name in torch_elementwise.FUNCTIONS:
            return torch_elementwise.FUNCTIONS[op.name], {}
        if op.name in _PLAIN:
            return _PLAIN[op.name], attrs
        if op.name in PRODUCTS:
            return PRODUCTS[op.name], {**attrs, "bf16": self.options.bf16}
        if op.name in _REGIONS:
            return _REGIONS[op.name](op, self.options), {}
        return self._special(op)

    def _special(self, op: Op) -> Call:
        attrs, device = op.attrs, self.options.device
        match op.name:
            case "convert":
                return _fixed(convert, source=op.operands[0].dtype, target=attrs["dtype"]), {}
            case "bitcast":
                return _fixed(bitcast, target=attrs["dtype"]), {}
            case "iota":
                kind = TORCH[attrs["dtype"]]
                where = {"shape": attrs["shape"], "axis": attrs["axis"], "device": device}
                return torch_moves.iota, {"dtype": kind, **where}
            case "pad":
                return torch_moves.pad, {**attrs, "number": self.known.get(op.operands[1])}
            case "dynamic_slice":
                known = tuple([self.known.get(v) for v in op.operands[1:]])
                return torch_moves.dynamic_slice, {**attrs, "known": known}
            case "dynamic_update":
                known = tuple([self.known.get(v) for v in op.operands[2:]])
                return torch_moves.dynamic_update, {"known": known}
            case "list_empty":
                return _fixed(torch_lists.zero_of, type_=attrs["type"], device=device), {}
        raise DelianError(
            f"{op.name} has no lowering to torch", 'run the program with backend="native"'
        )


def _item(results: Sequence[Any], k: int) -> Any:
    return results[k]


def _fixed(function: Callable[..., Any], name: str = "", **keywords: Any) -> Callable[..., Any]:
    """The function with keywords that a graph's text cannot show, by a name that it can."""

    def fixed(*args: Any) -> Any:
        return function(*args, **keywords)

    fixed.__name__ = name or function.__name__
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
    """The names of all that has a lowering, attention as other primitives."""
    special = ("constant", "convert", "bitcast", "iota", "pad", "list_empty")
    windows = ("dynamic_slice", "dynamic_update")
    tables = (torch_elementwise.FUNCTIONS, _PLAIN, PRODUCTS, _REGIONS)
    return frozenset(
        (
            *special,
            *windows,
            *attention_products.NAMES,
            *(name for table in tables for name in table),
        )
    )
