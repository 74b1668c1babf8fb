"""`from_onnx`: a model's file as an `OnnxModel`, a tree of parameters that is called.

    model = dl.from_onnx("net.onnx")
    y = model(x)                        plain Python, on NumPy
    step = dl.compile(lambda model, x: ...)
    model.run(x)                        compiled, takes and gives arrays of ONNX's types

A program knows its shapes. Where an input decides one (a shape, an axis, the number of trips), the
model is specialised for its values: `bind` makes them constants, and `run` does so by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from ....compiler.api import compile, module
from ....compiler.ir import Array, DType, Tensor
from ....compiler.tree import static_field
from ..straight_line import Ref, StraightLine
from .element_types import STRING, as_array, as_program_value
from .graph_order import in_order
from .graph_writer import GraphWriter, Library, dense
from .known_inputs import KnownInputs
from .model_files import Tensors, read_model
from .onnx_errors import OnnxError

#: What reading a file with nonsense in it may raise.
_MALFORMED = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
#: Graphs that are kept for values of their bound inputs.
_GRAPHS_MAX = 64


class OnnxGraph:
    """A graph that was read: what it takes and gives, and the function that it is."""

    def __init__(
        self,
        model: Any,
        tensors: Tensors,
        bound: Mapping[str, Any],
        trainable: Callable[[str, Array], bool] | None = None,
    ) -> None:
        """What a model is to be.

        Args:
            model: of ONNX.
            tensors: reads its tensors.
            bound: values of inputs that are constants of the program, by name.
            trainable: as of `from_onnx`.
        """
        graph = model.graph
        self._trainable = trainable
        self._model, self._tensors, self.bound = model, tensors, dict(bound)
        self._compiled: dict[Any, Any] = {}
        self._specialised: dict[Any, OnnxGraph] = {}
        library = Library(model, tensors)
        held = {t.name: tensors.array(t) for t in graph.initializer}
        held.update((t.values.name, dense(tensors, t)) for t in graph.sparse_initializer)
        given = [value.name for value in graph.input if value.name not in held]
        for value in graph.input:
            if value.type.tensor_type.elem_type == STRING:
                raise OnnxError(
                    f"the input {value.name[:200]!r} holds strings, no numbers of a program",
                    "encode strings before the model",
                )
        nodes = in_order(graph.node, {*given, *held})
        needed = KnownInputs(
            lambda node: library.row(node, library.opsets),
            lambda node: library.body(node, library.opsets),
        ).names(nodes)
        self.inputs = tuple(name for name in given if name not in self.bound)
        #: Inputs that decide shapes: `bind` them before compiling.
        self.static_inputs = tuple(name for name in self.inputs if name in needed)
        self.outputs = tuple(value.name for value in graph.output)
        fixed = _fixed_names(nodes, library)
        self.parameters = {}
        for name, array in held.items():
            chosen = name not in fixed and array.ndim > 0
            if trainable is not None:
                chosen = trainable(name, array)
            if chosen and name not in needed and _is_float(array):
                self.parameters[name] = array
        self.function = self._written(library, held, nodes)

    def _written(self, library: Library, held: dict[str, Array], nodes: list[Any]) -> FunctionType:
        places = [f"x{k}" for k in range(len(self.inputs))]
        program = StraightLine(self._model.graph.name or "model", ["weights", *places])
        scope: dict[str, Any] = {
            name: Ref(f"weights[{name!r}]") if name in self.parameters else as_program_value(array)
            for name, array in held.items()
        }
        scope.update((n, Ref(place)) for n, place in zip(self.inputs, places, strict=True))
        scope.update((name, as_program_value(value)) for name, value in self.bound.items())
        GraphWriter(library, program, library.opsets).write(nodes, scope, {}, self.outputs)
        for name in self.outputs:
            if name not in scope:
                raise OnnxError(f"the graph's output {name[:200]!r} is given by no node")
        results = tuple(scope[name] for name in self.outputs)
        return program.function(results[0] if len(results) == 1 else results)

    def compiled(self, backend: Any) -> Any:
        """The function, of the parameters and the inputs, compiled; None for plain Python."""
        if backend is None:
            return self.function
        if backend not in self._compiled:
            self._compiled[backend] = compile(self.function, backend=backend)
        return self._compiled[backend]

    def specialised(self, values: Mapping[str, Any]) -> OnnxGraph:
        """As `bind`; the graphs of the latest values are kept, with their programs."""
        if not values:
            return self
        arrays = {name: np.asarray(value) for name, value in values.items()}
        key = tuple((n, a.dtype.str, a.shape, a.tobytes()) for n, a in sorted(arrays.items()))
        if key not in self._specialised:
            while len(self._specialised) >= _GRAPHS_MAX:
                self._specialised.pop(next(iter(self._specialised)))
            self._specialised[key] = self.bind(arrays)
        return self._specialised[key]

    def bind(self, values: Mapping[str, Any]) -> OnnxGraph:
        """The graph with some of its inputs as constants."""
        unknown = sorted(set(values) - set(self.inputs))
        if unknown:
            raise OnnxError(
                f"the model has no input {unknown[0]!r}", f"its inputs: {', '.join(self.inputs)}"
            )
        return OnnxGraph(self._model, self._tensors, {**self.bound, **values}, self._trainable)


def _is_float(array: Array) -> bool:
    return array.dtype in [d.numpy for d in DType.here() if d.is_float]


def _fixed_names(nodes: list[Any], library: Library) -> set[str]:
    """Tensors that a training does not move: statistics, and steps of quantisation."""
    found: set[str] = set()
    for node in nodes:
        row = library.row(node, library.opsets)
        if row is not None:
            found.update(node.input[k] for k in row.fixed if k < len(node.input))
    return found


@module
class OnnxModel:
    """A model of ONNX: its parameters by name, and its graph.

    Whole numbers, and tensors that decide shapes, are constants of the program.
    """

    parameters: dict[str, Tensor]
    """What is trained, by ONNX's names; the leaves of the tree."""
    graph: OnnxGraph = static_field()
    """What is called; static."""

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The graph's output, or a tuple of its outputs, of its inputs in order."""
        return self.graph.function(self.parameters, *inputs)

    def for_task(self, channels_last: bool = False) -> OnnxTaskModel:
        """The model as a task calls it, `model(x, weight)`.

        Args:
            channels_last: rows are images [H, W, C], which the model takes as [C, H, W].

        Raises:
            OnnxError: it has not one input.
        """
        if len(self.graph.inputs) != 1:
            raise OnnxError(
                f"a task's model takes rows alone, not {len(self.graph.inputs)} inputs",
                "bind the others: model.bind(name=value)",
            )
        return OnnxTaskModel(self, channels_last)

    def bind(self, **values: Any) -> OnnxModel:
        """The model with inputs as constants: those of `graph.static_inputs`, or others.

        Raises:
            OnnxError: there is no input of this name.
        """
        graph = self.graph.bind(values)
        kept = {name: self.parameters[name] for name in graph.parameters}
        return OnnxModel(kept, graph)

    def run(self, *inputs: Any, backend: Any = "native") -> list[Any]:
        """The outputs, compiled: arrays of ONNX's types in and out, those of ml_dtypes among them.

        Args:
            inputs: arrays, lists of them (sequences) or None (optionals), in the graph's order;
                those that decide shapes specialise the program for their values.
            backend: as of `dl.compile`; None runs plain Python.
        """
        graph = self.graph
        if len(inputs) > len(graph.inputs):
            raise OnnxError(f"the model takes {len(graph.inputs)} inputs, not {len(inputs)}")
        given = dict(zip(graph.inputs, inputs, strict=False))
        fixed = {name: given.pop(name) for name in graph.static_inputs if name in given}
        chosen = graph.specialised(fixed)
        values = [_programs_value(value) for value in given.values()]
        result = chosen.compiled(backend)(self.parameters, *values)
        return as_array(result if len(graph.outputs) > 1 else [result])  # type: ignore[no-any-return]


def _programs_value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_programs_value(each) for each in value]
    return None if value is None else as_program_value(np.asarray(value))


@module
class OnnxTaskModel:
    """A model of ONNX as a task has one: it is called with rows, and with the weight of each."""

    model: OnnxModel
    channels_last: bool = static_field(default=False)
    """Whether rows are images [H, W, C], where the model takes [C, H, W]."""

    def __call__(self, x: Tensor, weight: Tensor = None) -> Tensor:
        """The model's first output, of rows [N, ...]; each counts by itself, whatever `weight`."""
        rows = np.moveaxis(x, -1, 1) if self.channels_last else x
        found = self.model(rows)
        return found[0] if isinstance(found, tuple) else found


def from_onnx(
    source: str | Path | bytes | Any,
    trainable: Callable[[str, Array], bool] | None = None,
) -> OnnxModel:
    """Reads a model in ONNX.

    Args:
        source: the path of a file, its bytes, or an `onnx.ModelProto`. Data outside the file is
            read from the file's own folder.
        trainable: of a tensor's name and value, whether it is a parameter; others are constants of
            the program. None: all tensors of floats but single numbers (rank 0), statistics of
            batch normalisation and steps of quantisation. What decides a shape is none.

    Returns:
        the model: a tree whose leaves are its parameters.

    Raises:
        DelianError: the package onnx is missing, the file is no model, breaks a limit, or has an
            operator, or an attribute of one, that is refused by name.
    """
    model, folder = read_model(source)
    try:
        graph = OnnxGraph(model, Tensors(folder), {}, trainable)
    except _MALFORMED as error:  # names that are no text, attributes of other kinds, huge numbers
        raise OnnxError(
            f"the model is malformed: {type(error).__name__}: {str(error)[:200]}",
            "check it with onnx.checker.check_model",
        ) from error
    return OnnxModel(dict(graph.parameters), graph)
