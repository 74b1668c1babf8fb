"""What is in a model's file, what would be refused of it, and its other forms.

Files are those of ONNX, of safetensors, and bundles. Nothing is compiled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.common.errors import DelianError
from ...core.common.foreign_formats import refuse_file

if TYPE_CHECKING:
    from ...core.compiler.ir import Array, Function
    from ...core.learning.bundle import Bundle

Facts = dict[str, Any]
KINDS = (".onnx", ".safetensors", ".bundle")


def is_model_file(name: str) -> bool:
    """Whether a name is that of a model's file."""
    return Path(name).suffix in KINDS


def kind_of(path: Path) -> str:
    """The suffix of a model's file. Raises DelianError for another one."""
    if path.suffix not in KINDS:
        refuse_file(path, "model")
        raise DelianError(f"{path} is no model's file by its name", f"one of: {', '.join(KINDS)}")
    return path.suffix


def facts_of(path: Path) -> Facts:
    """The file's parameters and programs. Raises DelianError where it cannot be read."""
    read: dict[str, Callable[[Path], Facts]] = {
        ".onnx": _onnx_facts,
        ".safetensors": _safetensors_facts,
        ".bundle": _bundle_facts,
    }
    found = read[kind_of(path)](path)
    elements = sum(each["elements"] for each in found["parameters"])
    return {
        "file": str(path),
        "format": path.suffix[1:],
        "bytes": path.stat().st_size,
        "elements": elements,
        **found,
    }


def _parameters(arrays: Mapping[str, Array]) -> list[Facts]:
    from ...core.compiler.ir import DType

    return [
        {
            "name": name,
            "dtype": DType.of(array.dtype).value,
            "shape": list(array.shape),
            "elements": array.size,
        }
        for name, array in arrays.items()
    ]


def _safetensors_facts(path: Path) -> Facts:
    from ...core.learning.interchange.safetensors_file import read_safetensors

    arrays, metadata = read_safetensors(path)
    return {"parameters": _parameters(arrays), "programs": [], "metadata": metadata}


def _program(name: str, function: Function, operators: Mapping[str, int]) -> Facts:
    from ...core.compiler.primitives.control import block_cost

    named = zip(function.param_names, function.param_types, strict=True)
    given = zip(function.result_names, function.result_types, strict=True)
    return {
        "name": name,
        "inputs": [{"name": n, "type": str(t)} for n, t in named],
        "outputs": [{"name": n, "type": str(t)} for n, t in given],
        "operators": dict(sorted(operators.items())),
        "flops": block_cost(function.body),
    }


def _bundle_facts(path: Path) -> Facts:
    from ...core.learning.bundle import load

    bundle = load(path)
    parameters = [
        {"name": leaf.name, "dtype": leaf.dtype, "shape": list(leaf.shape), "elements": leaf.size}
        for leaf in (*bundle.manifest.state, *bundle.manifest.frozen)
    ]
    programs = [
        _program(name, function, Counter(op.name for op in function.body.walk()))
        for name, function in bundle.programs.items()
    ]
    facts = {"task": bundle.manifest.task, "algorithm": bundle.manifest.algorithm}
    return {"parameters": parameters, "programs": programs, **facts}


# ONNX


def _onnx_facts(path: Path) -> Facts:
    """With the costs of the program for inputs whose unknown sizes are 1."""
    from ...core.learning.interchange.onnx import from_onnx
    from ...core.learning.interchange.onnx.model_files import read_model

    proto, _ = read_model(path)
    operators = Counter(_operator(node) for node in _nodes(proto))
    model = from_onnx(path)
    parameters = _parameters(model.parameters)
    try:
        function = _traced(model, proto)
    except DelianError as error:
        program = {"name": proto.graph.name, "operators": dict(sorted(operators.items()))}
        program.update(inputs=_ends(proto.graph.input), outputs=_ends(proto.graph.output))
        why = str(error).partition("\n")[0]
        return {"parameters": parameters, "programs": [{**program, "flops": None, "why": why}]}
    program = _program(proto.graph.name, function, operators)
    program["inputs"] = [
        each for each in program["inputs"] if not each["name"].startswith("model.")
    ]
    for each, name in zip(program["inputs"], model.graph.inputs, strict=True):
        each["name"] = name
    for each, name in zip(program["outputs"], model.graph.outputs, strict=True):
        each["name"] = name
    return {"parameters": parameters, "programs": [program]}


def _ends(values: Any) -> list[Facts]:
    return [{"name": value.name, "type": "?"} for value in values]


def _operator(node: Any) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)


def _nodes(proto: Any) -> Iterator[Any]:
    """All nodes, those of graphs within and of functions too."""
    from ...core.learning.interchange.onnx.model_files import graphs_of

    waiting = [*proto.graph.node, *(node for f in proto.functions for node in f.node)]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [inner for graph in graphs_of(node) for inner in graph.node]


def _applied(model: Any, *inputs: Any) -> Any:
    return model(*inputs)


def _traced(model: Any, proto: Any) -> Function:
    """The model's program. Raises DelianError where it cannot be known."""
    from ...core.compiler.frontend import trace
    from ...core.compiler.ir import DType, TensorType
    from ...core.learning.interchange.onnx.element_types import numpy_type

    if model.graph.static_inputs:
        names = ", ".join(model.graph.static_inputs)
        raise DelianError(f"inputs decide shapes: {names}", "bind them: dl.from_onnx(...).bind")
    declared = {value.name: value.type.tensor_type for value in proto.graph.input}
    types = []
    for name in model.graph.inputs:
        tensor = declared[name]
        if not tensor.HasField("shape"):
            raise DelianError(f"the input {name[:100]!r} has no shape in the file")
        sizes = tuple(
            max(d.dim_value, 1) if d.dim_value or d.dim_param else 1 for d in tensor.shape.dim
        )
        types.append(TensorType(DType.of(numpy_type(tensor.elem_type)), sizes))
    return trace(_applied, model, *types).function


# What would be refused


def refusals_of(path: Path) -> list[Facts]:
    """What an import of the file refuses; of a bundle, what its export to ONNX refuses.

    Raises DelianError where the file cannot be read at all.
    """
    if kind_of(path) == ".safetensors":
        _safetensors_facts(path)
        return []
    if path.suffix == ".bundle":
        return _bundle_refusals(path)
    return _onnx_refusals(path)


def _bundle_refusals(path: Path) -> list[Facts]:
    from ...core.compiler.passes.pass_manager import run
    from ...core.learning.bundle import load
    from ...core.learning.interchange.onnx_export.export_model import PASSES
    from ...core.learning.interchange.onnx_export.export_table import refusals

    found = Counter(
        (f"{name}: {op.name}", why)
        for name, function in load(path).programs.items()
        for op, why in refusals(run(function, PASSES))
    )
    return [{"what": what, "why": why, "times": n} for (what, why), n in sorted(found.items())]


def _onnx_refusals(path: Path) -> list[Facts]:
    from ...core.learning.interchange.onnx import from_onnx
    from ...core.learning.interchange.onnx.graph_writer import Library
    from ...core.learning.interchange.onnx.model_files import Tensors, read_model
    from ...core.learning.interchange.onnx.rows import REASONS
    from ...core.learning.interchange.onnx.rows.control_rows import CONTROLS

    proto, folder = read_model(path)
    library = Library(proto, Tensors(folder))
    found: Counter[tuple[str, str]] = Counter()
    for node in _nodes(proto):
        inner = node.op_type in CONTROLS
        if inner or library.row(node, library.opsets) or library.body(node, library.opsets):
            continue
        found[_operator(node), REASONS.get(node.op_type, "there is no row for it")] += 1
    if not found:
        try:
            model = from_onnx(path)
            if not model.graph.static_inputs:
                _traced(model, proto)
        except DelianError as error:
            found["the model", str(error).partition("\n")[0]] += 1
    return [{"what": what, "why": why, "times": n} for (what, why), n in sorted(found.items())]


# Other forms


def convert(source: Path, target: Path) -> Facts:
    """Writes the file in another form. Raises DelianError for a pair that has none."""
    pair = kind_of(source), kind_of(target)
    forms: dict[tuple[str, str], Callable[[Path, Path], int]] = {
        (".onnx", ".safetensors"): _onnx_to_safetensors,
        (".bundle", ".safetensors"): _bundle_to_safetensors,
        (".bundle", ".onnx"): _bundle_to_onnx,
    }
    if pair not in forms:
        raise DelianError(
            f"a {pair[0]} does not become a {pair[1]}",
            ".onnx and .bundle become .safetensors, .bundle becomes .onnx",
        )
    count = forms[pair](source, target)
    return {"file": str(target), "parameters": count, "bytes": target.stat().st_size}


def _onnx_to_safetensors(source: Path, target: Path) -> int:
    from ...core.learning.interchange.onnx import from_onnx
    from ...core.learning.interchange.safetensors_file import write_safetensors

    arrays = from_onnx(source).parameters
    write_safetensors(target, arrays)
    return len(arrays)


def _bundle_to_safetensors(source: Path, target: Path) -> int:
    """A bundle's first state and its frozen leaves, by their names."""
    from ...core.learning.bundle import load
    from ...core.learning.interchange.safetensors_file import write_safetensors

    bundle = load(source)
    arrays = [*_leaves(bundle), *bundle.frozen]
    names = [leaf.name for leaf in (*bundle.manifest.state, *bundle.manifest.frozen)]
    write_safetensors(target, dict(zip(names, arrays, strict=True)))
    return len(arrays)


def _leaves(bundle: Bundle) -> list[Array]:
    """The arrays of a bundle's state. Raises DelianError for a bundle without weights."""
    if bundle.weights.size != bundle.manifest.dimension:
        raise DelianError("the bundle has no weights in it", "fetch it with: delian model export")
    arrays, place = [], 0
    for leaf in bundle.manifest.state:
        arrays.append(bundle.weights[place : place + leaf.size].reshape(leaf.shape))
        place += leaf.size
    return arrays


def _bundle_to_onnx(source: Path, target: Path) -> int:
    """The program `infer`, with the model's weights and frozen leaves as initialisers."""
    from ...core.learning.bundle import load
    from ...core.learning.interchange.onnx_export.export_model import program_to_onnx

    bundle = load(source)
    function, leaves = bundle.inference, [*_leaves(bundle), *bundle.frozen]
    names = [name.removeprefix("model.") for name in function.param_names]
    model = [leaves[k] for k in bundle.manifest.model]
    held = dict(zip(names, (*model, *bundle.frozen), strict=False))
    program_to_onnx(function, names, held, path=target)
    return len(held)
