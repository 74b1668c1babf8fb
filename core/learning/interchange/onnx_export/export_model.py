"""`to_onnx`: a function or a model as a model in ONNX."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ....common.errors import DelianError
from ....common.files import write_whole
from ....common.install_hint import install
from ....compiler import tree
from ....compiler.frontend import trace
from ....compiler.ir import Array, Function, TensorType
from ....compiler.passes.lowering.attention_products import decompose_attention
from ....compiler.passes.lowering.half_storage import widen_halves
from ....compiler.passes.lowering.stacked_lists import lists_to_tensors
from ....compiler.passes.pass_manager import INDEPENDENT, Pass, on_body, run
from ....compiler.passes.simplify import simplify
from ....compiler.traced import Traced, flatten
from . import export_table
from .elimination_loops import eliminate
from .graph_maker import DOMAIN, OPSET_OF_BITCAST, GraphMaker
from .list_loops import unroll_nested_lists

#: Bytes of a model: protobuf ends at 2 GiB, and its tools need room.
MODEL_BYTES_MAX = 3 * 2**29
#: IR versions of ONNX with the operator sets of `graph_maker`.
_IR_VERSION, _IR_VERSION_OF_BITCAST = 10, 13

Weights = Literal["initialisers", "defaults", "inputs"]

#: What becomes of a program before its operations are written.
PASSES = (
    *INDEPENDENT,
    Pass("decompose-attention", decompose_attention, "Attention becomes products and sums."),
    Pass("eliminate", eliminate, "Linear systems become loops of Gaussian elimination."),
    Pass("widen-halves", widen_halves, "Operations on f16 and bf16 are done in f32."),
    Pass("lists-to-tensors", on_body(lists_to_tensors), "Lists of known length become tensors."),
    Pass("simplify-again", on_body(simplify), "What the passes left."),
    Pass("unroll-nested-lists", unroll_nested_lists, "Loops over lists of lists are written out."),
    Pass("simplify-unrolled", on_body(simplify), "What is left of them.", ("unroll-nested-lists",)),
)


def to_onnx(
    function: Callable[..., Any],
    *example_args: Any,
    path: str | os.PathLike[str] | None = None,
    weights: Weights = "initialisers",
) -> Any:
    """A function, or a model, as a model in ONNX.

    The function is traced for the arguments' types (`dl.trace`), and each primitive becomes
    operators of ONNX: whole training steps and gradients too.

    Args:
        function: a function of the language, a derivative of one, or a model that is called.
        example_args: its arguments: arrays, trees of them, `TensorType`s where only the type is
            known, `dl.Static` for what specialises the program. Arrays of models (classes of
            `dl.module`) become initialisers under their dotted names, those of a model made by
            `from_torch` under PyTorch's; all others are inputs of the graph.
        path: a file to write the model to, whole or not at all.
        weights: "initialisers": constants of the graph; "defaults": initialisers that are inputs
            too, so that a caller may pass others, as between training steps; "inputs": no values.

    Returns:
        The model, an `onnx.ModelProto` of opset 21 (26 where numbers are read as other bits), which
        `onnx.checker` has checked.

    Raises:
        DelianError: the package onnx is missing, an operation has no form in ONNX (by name, with
            the reason and the line), the model is beyond 1.5 GiB, or the file cannot be written.
        ProgramError: the function cannot be compiled.
    """
    _package()
    called, args = _called(function, example_args)
    traced = trace(called, *args)
    names, held = _parameters(function, traced, args, weights)
    return program_to_onnx(traced.function, names, held, weights, path)


def program_to_onnx(
    function: Function,
    names: Sequence[str],
    held: Mapping[str, Array],
    weights: Weights = "initialisers",
    path: str | os.PathLike[str] | None = None,
) -> Any:
    """A program of the IR as `to_onnx` writes it.

    Args:
        function: the program.
        names: of its parameters, all different.
        held: arrays of those that are weights, by name.
        weights: as of `to_onnx`.
        path: as of `to_onnx`.
    """
    onnx = _package()
    program = run(function, PASSES)
    export_table.check(program)
    model = _model(onnx, program, names, held, weights)
    onnx.checker.check_model(model, full_check=True)
    if path is not None:
        _write(Path(path), model)
    return model


def _package() -> Any:
    try:
        import onnx
    except ImportError:
        raise DelianError(
            "writing ONNX models needs the package onnx",
            f"install it with: {install('onnx')}",
        ) from None
    return onnx


# What is an input and what is a weight


def _is_model(value: Any) -> bool:
    """Whether it is an object of a module's class, with leaves."""
    is_tree = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_tree and not isinstance(value, TensorType) and bool(tree.leaves(value))


def _applied(model: Any, *inputs: Any) -> Any:
    return model(*inputs)


def _called(function: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """A model that is called is the first argument."""
    if not _is_model(function):
        return function, args
    if not callable(function):
        raise DelianError(
            f"{type(function).__name__} is a tree, and no function: it cannot be exported alone",
            "pass a function first, or a model with __call__",
        )
    return _applied, (function, *args)


def _owners(traced: Traced, args: Sequence[Any]) -> list[int]:
    """Which argument each parameter of the program is of."""
    packs = {pack.first: pack.size for pack in traced.packs}
    owners: list[int] = []
    k = 0
    for number, arg in enumerate(args):
        end = k + len(flatten((arg,))[0])
        while k < end:
            if k not in traced.static:
                owners.append(number)
            k += packs.get(k, 1)
    return owners


def _parameters(
    function: Any, traced: Traced, args: Sequence[Any], weights: Weights
) -> tuple[list[str], dict[str, Array]]:
    """The parameters' names in ONNX, and the arrays of those that are weights, by name."""
    owners = _owners(traced, args)
    leaves = traced.arguments(*args)
    models = [k for k, arg in enumerate(args) if _is_model(arg)]
    inputs = _input_names(function) if args and args[0] is function else []
    names: list[str] = []
    held: dict[str, Array] = {}
    for name, owner, leaf in zip(traced.function.param_names, owners, leaves, strict=True):
        first, _, rest = name.partition(".")
        if owner in models and rest:
            short = _own_name(args[owner], rest) if len(models) == 1 else name
        elif inputs and first == "inputs":
            place, _, below = rest.partition(".")
            short = inputs[int(place)] if int(place) < len(inputs) else f"inputs.{place}"
            short += f".{below}" if below else ""
        else:
            short = name
        short = short if short not in names else name
        names.append(_unique(short, names))
        is_weight = owner in models and isinstance(leaf, np.ndarray | np.generic)
        if is_weight and weights != "inputs":
            held[names[-1]] = np.asarray(leaf)
    return names, held


def _unique(name: str, taken: Sequence[str]) -> str:
    made, count = name, 1
    while made in taken:
        count += 1
        made = f"{name}.{count}"
    return made


def _own_name(model: Any, path: str) -> str:
    """A leaf's name: of models with a `state_dict`, and of those of ONNX, what stands there."""
    if hasattr(model, "state_dict") or hasattr(model, "graph"):
        for field in ("parameters.", "statistics."):
            if path.startswith(field):
                return path.removeprefix(field)
    return path


def _input_names(model: Any) -> list[str]:
    """The names of a model's arguments, as its `__call__` has them."""
    graph = getattr(model, "graph", None)
    if graph is not None and hasattr(graph, "inputs"):
        return list(graph.inputs)
    parameters = list(inspect.signature(type(model).__call__).parameters.values())[1:]
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in plain]


def _output_names(function: Function, names: Sequence[str]) -> list[str]:
    """The results' names; those of a tuple's items, or of an input, get a word in front."""
    out: list[str] = []
    for name in function.result_names:
        plain = name[:1].isdigit() or name in names
        out.append(_unique(f"result.{name}" if plain else name, [*names, *out]))
    return out


# The model


def _model(
    onnx: Any,
    function: Function,
    names: Sequence[str],
    held: Mapping[str, Array],
    weights: Weights,
) -> Any:
    """The ModelProto of a program that `PASSES` and `export_table.check` went through."""
    _check_size(function, held)
    outputs = _output_names(function, names)
    g = GraphMaker(onnx, (*names, *outputs))
    for param, name in zip(function.body.params, names, strict=True):
        g.bind(param, name)
    for op in function.body.ops:
        export_table.lower(g, op)
    g.results([g.value(r) for r in function.body.results], outputs)
    inputs = [
        g.info(name, param.type)
        for name, param in zip(names, function.body.params, strict=True)
        if name not in held or weights == "defaults"
    ]
    infos = [
        g.info(name, result.type)
        for name, result in zip(outputs, function.body.results, strict=True)
    ]
    stored = [onnx.numpy_helper.from_array(np.ascontiguousarray(a), n) for n, a in held.items()]
    helper = onnx.helper
    nodes, tensors = [*g.constants, *g.scope.nodes], [*stored, *g.initializers]
    graph = helper.make_graph(nodes, function.name, inputs, infos, tensors)
    opsets = [helper.make_opsetid("", g.opset)]
    if g.functions:
        opsets.append(helper.make_opsetid(DOMAIN, 1))
    model = helper.make_model(
        graph,
        opset_imports=opsets,
        functions=[make() for make in g.functions.values()],
        producer_name="delian",
    )
    newer = g.opset >= OPSET_OF_BITCAST
    model.ir_version = _IR_VERSION_OF_BITCAST if newer else _IR_VERSION
    return model


def _check_size(function: Function, held: Mapping[str, Array]) -> None:
    """Raises DelianError for a model that protobuf would not hold, before it is built."""
    size = sum(array.nbytes for array in held.values())
    for op in function.body.walk():
        if op.name == "constant":
            size += op.attrs["value"].nbytes
    if size > MODEL_BYTES_MAX:
        raise DelianError(
            f"the model's tensors take {size} bytes; a file of ONNX holds at most"
            f" {MODEL_BYTES_MAX} here",
            'export it with weights="inputs", and write the weights by dl.write_safetensors',
        )


def _write(path: Path, model: Any) -> None:
    try:
        write_whole(path, model.SerializeToString())
    except OSError as error:
        raise DelianError(
            f"{path} cannot be written: {error.strerror or error}", "check the folder"
        ) from error
