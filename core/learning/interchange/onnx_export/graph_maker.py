"""Builds a graph of ONNX, a node at a time, for values of the IR.

A value has the name of a tensor that holds it. What `broadcast` and `iota` give is held compact:
the small tensor, which elementwise operators of ONNX repeat by themselves; it is expanded where an
operator needs it whole. A region of the IR is a graph within: it sees the names of the graphs
around it, so constants of a loop need no inputs. What is made within cannot be used outside, so
each graph has its own tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....compiler.ir import Array, Block, DType, ListType, Type, Value
from .export_types import ELEMENT, IN_MOVE, IN_SELECT

#: The operator set of a model; that of one with `bitcast`, whose operator is newer.
OPSET, OPSET_OF_BITCAST = 21, 26
DOMAIN = "delian"


@dataclass(slots=True, eq=False)
class Held:
    """A value's tensor. `compact` has the value's rank or less, and is repeated to its shape."""

    whole: str = ""
    compact: str = ""


@dataclass(slots=True)
class Scope:
    """One graph."""

    outer: Scope | None
    nodes: list[Any] = field(default_factory=list)
    made: set[str] = field(default_factory=set)
    """Names that its nodes give."""
    values: dict[Value, Held] = field(default_factory=dict)
    expanded: dict[Held, str] = field(default_factory=dict)
    turned: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Results of Transpose: of what, and the permutation."""
    same: dict[tuple[Any, ...], str] = field(default_factory=dict)
    """Results of nodes by operator, inputs and attributes."""

    def around(self) -> Iterator[Scope]:
        """The graph, then those around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer


class GraphMaker:
    """The graph of a function, and the graphs within it."""

    def __init__(self, onnx: Any, taken: Iterable[str]) -> None:
        """onnx: the package. taken: names of inputs, outputs and initialisers."""
        self.onnx = onnx
        self.scope = Scope(None)
        self.initializers: list[Any] = []
        #: Nodes that come first: constants that are floats.
        self.constants: list[Any] = []
        #: What makes each function of the model, by its name.
        self.functions: dict[str, Callable[[], Any]] = {}
        self.opset = OPSET
        #: Values of which all elements are one known number.
        self.known: dict[Value, Any] = {}
        #: Bits that whole numbers need where those are fewer than their type's.
        self.bits: dict[Value, int] = {}
        self._taken = set(taken)
        self._constants: dict[tuple[Any, ...], str] = {}
        self._count = 0

    # Names and nodes

    def fresh(self, stem: str) -> str:
        """A name that no other tensor or node has."""
        while True:
            self._count += 1
            name = f"{stem}_{self._count}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def emit(self, op_type: str, inputs: Sequence[str], count: int, **attrs: Any) -> list[str]:
        """Adds a node; gives the names of its results."""
        outputs = [self.fresh(op_type.lower()) for _ in range(count)]
        self.add(op_type, inputs, outputs, **attrs)
        return outputs

    def add(
        self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any
    ) -> None:
        """Adds a node with these results."""
        name = self.fresh(f"node_{op_type.lower()}")
        made = self.onnx.helper.make_node(op_type, list(inputs), list(outputs), name, **attrs)
        self.scope.nodes.append(made)
        self.scope.made.update(outputs)

    def node(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        """Adds a node of one result, unless there is the same one; gives its result's name."""
        named = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in attrs.items())
        key = (op_type, inputs, named)
        for scope in self.scope.around():
            if key in scope.same:
                return scope.same[key]
        made = self.scope.same[key] = self.emit(op_type, inputs, 1, **attrs)[0]
        return made

    def constant(self, array: Array) -> str:
        """A constant tensor; equal ones are held once.

        Floats are results of Constant: an initialiser of floats is a weight to those that read it.
        """
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        key = (array.dtype.name, array.shape, array.tobytes())
        if key in self._constants:
            return self._constants[key]
        name = self._constants[key] = self.fresh("constant")
        tensor = self.onnx.numpy_helper.from_array(array, name)
        if DType.of(array.dtype).is_float:
            node = self.onnx.helper.make_node("Constant", [], [name], f"node_{name}", value=tensor)
            self.constants.append(node)
        else:
            self.initializers.append(tensor)
        return name

    def ints(self, values: Iterable[int]) -> str:
        """A constant i64[n]."""
        return self.constant(np.array(list(values), np.int64))

    def number(self, dtype: DType, value: Any) -> str:
        """A constant of rank 0."""
        return self.constant(np.array(value, dtype.numpy))

    # Values of the IR

    def bind(self, value: Value, name: str) -> None:
        """The tensor of this name holds the value."""
        self.scope.values[value] = Held(name)

    def bind_compact(self, value: Value, name: str) -> None:
        """The tensor of this name, repeated to the value's shape, holds it."""
        self.scope.values[value] = Held("", name)

    def alias(self, value: Value, other: Value) -> None:
        """Both are held by the same tensor."""
        self.scope.values[value] = self._held(other)
        if other in self.known:
            self.known[value] = self.known[other]

    def _held(self, value: Value) -> Held:
        for scope in self.scope.around():
            if value in scope.values:
                return scope.values[value]
        raise AssertionError(f"{value} has no tensor")

    def value(self, value: Value) -> str:
        """The name of the value's tensor, whole."""
        held = self._held(value)
        if held.whole:
            return held.whole
        for scope in self.scope.around():
            if held in scope.expanded:
                return scope.expanded[held]
        made = self.expand(held.compact, value.shape, value.dtype)
        self.scope.expanded[held] = made
        return made

    def compact(self, value: Value) -> str:
        """The name of the value's tensor, or of a smaller one that is repeated to its shape."""
        held = self._held(value)
        return held.whole or held.compact

    def is_compact(self, value: Value) -> bool:
        """Whether the value's tensor is smaller than the value."""
        return not self._held(value).whole

    def together(self, values: Sequence[Value]) -> list[str]:
        """Operands of an elementwise operator: compact ones, unless all of them are."""
        names = [self.compact(v) for v in values]
        if all(self.is_compact(v) for v in values):
            names[0] = self.value(values[0])
        return names

    # Operators that rows share

    def cast(self, x: str, source: DType, target: DType) -> str:
        """Cast; the tensor itself where the types are one."""
        return x if source is target else self.node("Cast", x, to=ELEMENT[target])

    def expand(self, x: str, shape: Sequence[int], dtype: DType) -> str:
        """Repeats a tensor to a shape."""
        wide = IN_MOVE.get(dtype, dtype)
        made = self.node("Expand", self.cast(x, dtype, wide), self.ints(shape))
        return self.cast(made, wide, dtype)

    def full(self, dtype: DType, shape: Sequence[int], value: Any) -> str:
        """A tensor of one number."""
        one = self.number(dtype, value)
        return self.expand(one, shape, dtype) if shape else one

    def zeros(self, dtype: DType, shape: Sequence[int]) -> str:
        """A tensor of zeros; a constant where it has no elements."""
        if 0 in shape:
            return self.constant(np.zeros(shape, dtype.numpy))
        return self.full(dtype, shape, 0)

    def reshape(self, x: str, old: Sequence[int], new: Sequence[int]) -> str:
        """Reshape; the tensor itself where the shapes are one."""
        if tuple(old) == tuple(new):
            return x
        zero = {"allowzero": 1} if 0 in new else {}
        return self.node("Reshape", x, self.ints(new), **zero)

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        """Transpose; of a transposed tensor the one that does both, or what it was made of."""
        for scope in self.scope.around():
            if x in scope.turned:
                x, before = scope.turned[x]
                perm = [before[p] for p in perm]
                break
        if tuple(perm) == tuple(range(len(perm))):
            return x
        made = self.node("Transpose", x, perm=list(perm))
        self.scope.turned[made] = x, tuple(perm)
        return made

    def where(self, pred: str, a: str, b: str, dtype: DType) -> str:
        """Where, in a type that it has."""
        wide = IN_SELECT.get(dtype, dtype)
        made = self.node("Where", pred, self.cast(a, dtype, wide), self.cast(b, dtype, wide))
        return self.cast(made, wide, dtype)

    # Graphs within

    @contextmanager
    def within(self) -> Iterator[Scope]:
        """Nodes go into a graph of their own."""
        outer, self.scope = self.scope, Scope(self.scope)
        try:
            yield self.scope
        finally:
            self.scope = outer

    def inline(self, block: Block, operands: Sequence[str], lower: Any) -> list[str]:
        """A block's nodes here, for these tensors; the names of its results.

        lower: writes one operation (`export_table.lower`).
        """
        for param, name in zip(block.params, operands, strict=True):
            self.bind(param, name)
        for op in block.ops:
            lower(self, op)
        return [self.value(r) for r in block.results]

    def results(self, names: Sequence[str], wanted: Sequence[str] = ()) -> list[str]:
        """Names that this graph's own nodes give, each once, in place of these.

        wanted: the names that they are to have.
        """
        out: list[str] = []
        for k, name in enumerate(names):
            if wanted:
                self.add("Identity", [name], [wanted[k]])
                out.append(wanted[k])
            elif name in out or name not in self.scope.made:
                # Not by `node`, which would give one name for two results.
                out += self.emit("Identity", [name], 1)
            else:
                out.append(name)
        return out

    def info(self, name: str, type_: Type) -> Any:
        """A graph's input or output."""
        helper = self.onnx.helper
        if isinstance(type_, ListType):
            element = type_.element
            assert not isinstance(element, ListType)
            kind = ELEMENT[IN_MOVE.get(element.dtype, element.dtype)]
            return helper.make_tensor_sequence_value_info(name, kind, element.shape)
        return helper.make_tensor_value_info(name, ELEMENT[type_.dtype], type_.shape)

    def graph(self, scope: Scope, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """A finished graph within."""
        name = self.fresh("graph")
        return self.onnx.helper.make_graph(scope.nodes, name, list(inputs), list(outputs))
