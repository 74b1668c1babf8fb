"""A graph of ONNX as the source of a Python function: a call a node, in Delian's vocabulary.

    scope: name of ONNX -> Ref (a name in the source), array (known), or None (left out)

    node with a row         function(inputs..., attributes...)
    node with inner graphs  If, Loop, Scan, SequenceMap: functions of their own, which get what they
                            read from outside as arguments
    other nodes             the body of the function that ONNX or the model defines, in its place

Each line's origin is a line of a listing of the graph, `Conv conv1 (x, w) -> (y)`, which is what
errors of the compiler underline.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....common.errors import Loc
from ....compiler.ir import Array
from ..channel_axes import channels_first, channels_last
from ..straight_line import Ref, StraightLine
from .element_types import as_program_value, has_bfloat16, in_single
from .graph_order import free_names, in_order, inputs_of
from .model_files import DEPTH_MAX, Tensors, onnx_package, opsets_of
from .onnx_errors import OnnxError, refused
from .operator_rows import Row, row_of
from .rows import DOMAINS, REASONS
from .rows.control_rows import CONTROLS

Scope = dict[str, Any]


class Library:
    """What a model's graphs share: its functions, versions of operators, tensors, types."""

    def __init__(self, model: Any, tensors: Tensors) -> None:
        self.functions = {(f.domain, f.name): f for f in model.functions}
        self.opsets = opsets_of(model.opset_import)
        self.tensors = tensors
        self._model = model
        #: Ranks of the tensors of the model's graph.
        self.ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
        self._types: dict[str, Any] | None = None
        #: Whether there are numbers of bf16, with which NumPy alone computes in other types.
        self.brief = has_bfloat16(model)
        self._listing: list[str] = []
        self.file = f"<nodes of {model.graph.name[:48] or 'a graph'} {_digest(model)}>"

    def row(self, node: Any, opsets: Mapping[str, int]) -> Row | None:
        """A node's row, if there is one. A function of the model comes first."""
        if (node.domain, node.op_type) in self.functions:
            return None
        domain = "" if node.domain == "ai.onnx" else node.domain
        rows = DOMAINS.get(domain)
        if rows is None:
            return None
        return row_of(rows, node.op_type, opsets.get(domain, 1))

    def body(self, node: Any, opsets: Mapping[str, int]) -> Any:
        """The function that a node stands for, of the model or of ONNX; None if there is none."""
        found = self.functions.get((node.domain, node.op_type))
        if found is not None:
            return found
        onnx = onnx_package()
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = opsets.get(domain, 1)
        try:
            schema = onnx.defs.get_schema(node.op_type, version, domain)
        except onnx.defs.SchemaError:
            return None
        if schema.has_function:
            return schema.function_body
        if schema.has_context_dependent_function:
            types = self._types_of(node)
            if types is None:
                return None
            written = schema.get_context_dependent_function(node.SerializeToString(), types)
            body = onnx.FunctionProto()
            body.ParseFromString(written)
            return body if body.node else None
        return None

    def defaults(self, node: Any, opsets: Mapping[str, int]) -> dict[str, Any]:
        """Values of the attributes that a node of ONNX's own leaves out."""
        if (node.domain, node.op_type) in self.functions:
            return {}
        onnx = onnx_package()
        domain = "" if node.domain == "ai.onnx" else node.domain
        schema = onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
        found = {}
        for name, attribute in schema.attributes.items():
            if attribute.default_value.name:
                value = onnx.helper.get_attribute_value(attribute.default_value)
                found[name] = value.decode() if isinstance(value, bytes) else value
        return found

    def _types_of(self, node: Any) -> list[bytes] | None:
        """The types of a node's inputs as ONNX infers them."""
        onnx = onnx_package()
        if self._types is None:
            try:
                graph = onnx.shape_inference.infer_shapes(self._model).graph
            except onnx.shape_inference.InferenceError:
                graph = self._model.graph
            self._types = {
                value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)
            }
            for tensor in graph.initializer:
                made = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
                self._types[tensor.name] = made
        if any(name and name not in self._types for name in node.input):
            return None
        empty = onnx.TypeProto()
        return [(self._types[name] if name else empty).SerializeToString() for name in node.input]

    def listed(self, node: Any) -> Loc:
        """A line of the listing for a node."""
        inputs, outputs = ", ".join(node.input), ", ".join(node.output)
        name = f" {node.name}" if node.name else ""
        text = f"{node.op_type}{name} ({inputs}) -> ({outputs})"[:200]
        text = text.replace("\n", " ").replace("\r", " ")
        self._listing.append(text + "\n")
        lines = self._listing
        linecache.cache[self.file] = (len(lines), None, lines, self.file)
        return Loc(self.file, len(lines), 0, len(lines), len(text))


def _digest(model: Any) -> str:
    """Of a model's nodes and functions: the same listing has the same name."""
    found = hashlib.sha256()
    for each in (*model.graph.node, *model.functions):
        found.update(each.SerializeToString(deterministic=True))
    return found.hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Last:
    """Images that the program holds as [N, space..., C], where the graph has [N, C, space...]."""

    ref: Ref
    rank: int


class GraphWriter:
    """Writes the nodes of one graph into a function."""

    def __init__(
        self, library: Library, program: StraightLine, opsets: Mapping[str, int], depth: int = 0
    ) -> None:
        self.library = library
        self.program = program
        self.opsets = opsets
        self.depth = depth
        if depth > DEPTH_MAX:
            raise OnnxError(f"functions or graphs of the model are more than {DEPTH_MAX} deep")

    def write(
        self,
        nodes: Sequence[Any],
        scope: Scope,
        bound: Mapping[str, Any],
        outputs: Iterable[str],
    ) -> None:
        """Adds the nodes; their results join the scope.

        Args:
            nodes: of a graph or a function, in any order.
            scope: what there is; changed.
            bound: values of a function's attributes, by name.
            outputs: names that are read afterwards.
        """
        for node in in_order(nodes, set(scope)):
            self._node(node, scope, bound)
        self._turn(scope, outputs)

    def _node(self, node: Any, scope: Scope, bound: Mapping[str, Any]) -> None:
        origin = self.library.listed(node)
        inputs = [scope[name] if name else None for name in node.input]
        attributes = self._attributes(node, bound)
        row = self.library.row(node, self.opsets)
        domain = "" if node.domain == "ai.onnx" else node.domain
        rank = self._images_rank(node, row, inputs, attributes)
        if row is not None and rank:
            results = self._on_images(node, row, rank, inputs, attributes, origin)
            scope.update((n, r) for n, r in zip(node.output, results, strict=False) if n)
            return
        self._turn(scope, inputs_of(node))
        inputs = [scope[name] if name else None for name in node.input]
        if row is not None:
            results = self._call(node, row, inputs, attributes, origin)
        elif not domain and node.op_type in CONTROLS:
            results = CONTROLS[node.op_type](self, node, inputs, attributes, scope, origin)
        else:
            results = self._body(node, inputs, attributes)
        for name, result in zip(node.output, results, strict=False):
            if name:
                scope[name] = result

    def _images_rank(
        self, node: Any, row: Row | None, inputs: list[Any], attributes: dict[str, Any]
    ) -> int:
        """The rank of images that a node is to work on with channels last; 0 for none."""
        if row is None or len(node.output) != 1 or not inputs:
            return 0
        if node.op_type == "Conv":
            window = attributes.get("kernel_shape")
            if window:
                return len(window) + 2
            own = self.library.ranks.get(node.input[1], 0) if self.depth == 0 else 0
            return getattr(inputs[1], "ndim", own)
        if row.last is not None:
            return inputs[0].rank if isinstance(inputs[0], Last) else 0
        ranks = {x.rank for x in inputs if isinstance(x, Last)}
        others = [x for x in inputs if not isinstance(x, Last)]
        numbers = all(x is None or (isinstance(x, np.ndarray) and x.ndim == 0) for x in others)
        return ranks.pop() if row.pointwise and len(ranks) == 1 and numbers else 0

    def _on_images(
        self,
        node: Any,
        row: Row,
        rank: int,
        inputs: list[Any],
        attributes: dict[str, Any],
        origin: Loc,
    ) -> list[Any]:
        """A node on images with channels last: a chain of them is transposed once."""
        given = [x.ref if isinstance(x, Last) else x for x in inputs]
        if not isinstance(inputs[0], Last) and row.last is not None:
            given[0] = self.program.call(channels_last, given[0], origin=origin)
        chosen = row if row.last is None else replace(row, function=row.last)
        (result,) = self._call(node, chosen, given, attributes, origin)
        return [Last(result, rank)]

    def _turn(self, scope: Scope, names: Iterable[str]) -> None:
        """Images of these names as the graph has them."""
        for name in names:
            value = scope.get(name)
            if isinstance(value, Last):
                scope[name] = self.program.call(channels_first, value.ref, name=name)

    def _attributes(self, node: Any, bound: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                found[attribute.name] = self._value(node, attribute)
            elif attribute.ref_attr_name in bound:
                found[attribute.name] = bound[attribute.ref_attr_name]
        return found

    def _value(self, node: Any, attribute: Any) -> Any:
        kinds = onnx_package().AttributeProto
        kind = attribute.type
        if kind == kinds.STRING:
            return attribute.s.decode("utf-8", "replace")
        if kind == kinds.STRINGS:
            return tuple(s.decode("utf-8", "replace") for s in attribute.strings)
        if kind == kinds.TENSOR:
            return as_program_value(self.library.tensors.array(attribute.t))
        if kind == kinds.GRAPH:
            return attribute.g
        plain = {kinds.INT: "i", kinds.FLOAT: "f"}.get(kind)
        if plain:
            return getattr(attribute, plain)
        many = {kinds.INTS: "ints", kinds.FLOATS: "floats"}.get(kind)
        if many:
            return tuple(getattr(attribute, many))
        if kind == kinds.TENSORS:
            return tuple(self.library.tensors.array(t) for t in attribute.tensors)
        if kind == kinds.TYPE_PROTO:
            return None  # a type says nothing that the value does not
        raise refused(node, f"its attribute {attribute.name[:100]!r} is of a kind that is not read")

    def _call(
        self, node: Any, row: Row, inputs: list[Any], attributes: dict[str, Any], origin: Loc
    ) -> list[Any]:
        kept = {k: v for k, v in attributes.items() if k not in row.ignored}
        taken, needed = row.attributes()
        unknown = sorted(set(kept) - taken)
        if unknown:
            raise refused(
                node,
                f"its attribute {unknown[0][:100]!r} is not read",
                "export the model without it, or with other operators",
            )
        lacking = sorted(needed - set(kept))
        if lacking:
            raise refused(node, f"its attribute {lacking[0]!r} is missing", "export it again")
        while inputs and inputs[-1] is None:
            inputs.pop()
        if row.counted:
            kept["outputs"] = tuple(bool(name) for name in node.output)
        called = (in_single, row.function) if self.library.brief and row.wide else (row.function,)
        result = self.program.call(
            *called, *inputs, origin=origin, name=node.output[0] or node.op_type, **kept
        )
        if not row.several:
            return [result]
        return [result[k] for k in range(len(node.output))]

    def _body(self, node: Any, inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
        """The nodes of the function that this one stands for, in its place."""
        reason = REASONS.get(node.op_type)
        body = None if reason else self.library.body(node, self.opsets)
        if body is None:
            raise refused(
                node,
                reason or "there is no such operator here",
                "export the model with other operators, or add it as a function of the model",
            )
        bound = {**self.library.defaults(node, self.opsets), **attributes}
        for attribute in body.attribute_proto:
            bound.setdefault(attribute.name, self._value(node, attribute))
        scope: Scope = {
            name: inputs[k] if k < len(inputs) else None for k, name in enumerate(body.input)
        }
        opsets = {**self.opsets, **opsets_of(body.opset_import)}
        writer = GraphWriter(self.library, self.program, opsets, self.depth + 1)
        writer.write(body.node, scope, bound, body.output)
        return [scope.get(name) for name in body.output]

    def inner(self, graph: Any, scope: Scope, name: str) -> tuple[Any, tuple[Any, ...]]:
        """A function for an inner graph, and what it reads from outside.

        The function takes the graph's inputs, then what it reads from outside, and gives a tuple.
        """
        outside = [n for n in free_names(graph) if n in scope]
        places = [f"v{k}" for k in range(len(graph.input) + len(outside))]
        program = StraightLine(name, places)
        names = [*(value.name for value in graph.input), *outside]
        own: Scope = {n: Ref(place) for n, place in zip(names, places, strict=True)}
        for n in outside:
            if not isinstance(scope[n], Ref):
                own[n] = scope[n]
        add_tensors(self.library.tensors, graph, own)
        writer = GraphWriter(self.library, program, self.opsets, self.depth + 1)
        writer.write(graph.node, own, {}, [value.name for value in graph.output])
        missing = [value.name for value in graph.output if value.name not in own]
        if missing:
            raise OnnxError(f"an inner graph gives {missing[0][:200]!r}, which is not there")
        function = program.function(tuple(own[value.name] for value in graph.output))
        captured = tuple(scope[n] if isinstance(scope[n], Ref) else 0 for n in outside)
        return function, captured


def add_tensors(tensors: Tensors, graph: Any, scope: Scope) -> None:
    """The tensors that a graph holds, as known arrays."""
    for tensor in graph.initializer:
        scope[tensor.name] = as_program_value(tensors.array(tensor))
    for tensor in graph.sparse_initializer:
        scope[tensor.values.name] = dense(tensors, tensor)


def dense(tensors: Tensors, sparse: Any) -> Array:
    """A sparse tensor as an array."""
    values, places = tensors.array(sparse.values), tensors.array(sparse.indices)
    shape = tuple(int(n) for n in sparse.dims)
    size = int(np.prod(np.array(shape, np.float64))) * values.itemsize
    if size > 2**31 or any(n < 0 for n in shape):
        raise OnnxError(f"a sparse tensor has the shape {list(shape)[:10]}", "store it as a tensor")
    out = np.zeros(shape, values.dtype)
    flat = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), shape)
    out.reshape(-1)[flat] = values
    out.flags.writeable = False
    return out
