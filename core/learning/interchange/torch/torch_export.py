"""`torch.export` of a module, in training and in inference, to the operators of the rows.

Operators that Delian has whole (attention, recurrent networks, losses) are kept from torch's
decompositions, so that they meet Delian's forms and have PyTorch's slopes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from ....common.errors import DelianError, Loc, ProgramError
from ....common.install_hint import install
from .aten_table import ROWS
from .modules.cumulative_statistics import cumulative_statistics

if TYPE_CHECKING:
    import torch

#: The code of what cannot be imported (docs/errors.md).
CODE = "DL123"
#: Held while torch's class of autograd functions is another one.
_patching = Lock()
#: Rows that torch's own decomposition serves better: there they are views of another row.
_DECOMPOSED = frozenset(("dropout", "reshape", "t", "transpose", "split", "unbind", "one_hot"))


def torch_module() -> Any:
    """The package torch. Raises DelianError where it is missing."""
    try:
        import torch
    except ImportError:
        raise DelianError(
            "from_torch needs PyTorch where the model is built", install("torch")
        ) from None
    return torch


@contextmanager
def in_mode(module: torch.nn.Module, training: bool) -> Iterator[None]:
    """The module in training or inference; every part gets back the mode that it had."""
    before = [(part, part.training) for part in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for part, was in before:
            part.training = was


def exported(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    training: bool,
    dynamic: bool,
) -> torch.export.ExportedProgram:
    """The module's graph in core ATen and the operators of the rows.

    Args:
        module: any; its mode is unchanged afterwards.
        args, kwargs: example inputs.
        training: the mode that is exported.
        dynamic: whether the first axis of each input, where it has the first input's size, may have
        another size later.

    Raises:
        ProgramError: DL123, for what torch.export refuses; the line is the user's.
    """
    torch = torch_module()
    args, kwargs = _apart(torch, (args, dict(kwargs)))
    with (
        warnings.catch_warnings(),
        in_mode(module, training),
        _quiet(torch),
        _own_backwards_refused(torch),
        cumulative_statistics(torch, module),
    ):
        warnings.simplefilter("ignore")
        try:
            shapes = _dynamic_shapes(torch, module, args, kwargs) if dynamic else None
            program = torch.export.export(
                module, args, dict(kwargs), dynamic_shapes=shapes, strict=False
            )
            _cut_gradients(torch, program.graph_module)
            _copy_shared_carries(torch, program.graph_module)
            return program.run_decompositions(_decompositions(torch))
        except Exception as fault:
            raise refused_by_torch(fault) from fault


def check_hooks(module: torch.nn.Module) -> None:
    """Raises ProgramError for hooks on gradients, which an exported graph would not run."""
    hooks = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
    holders = [("the module " + (name or "itself"), part) for name, part in module.named_modules()]
    holders += [(name, value) for name, value in module.named_parameters()]
    for name, holder in holders:
        if any(getattr(holder, hook, None) for hook in hooks):
            raise ProgramError(
                CODE,
                f"this module cannot be imported: {name} has a hook on its gradient",
                (),
                "remove it: a program's gradients are those of the forward pass",
            )


@contextmanager
def _own_backwards_refused(torch: Any) -> Iterator[None]:
    """Custom autograd functions end the export: a graph has their forward, with other slopes."""
    function = torch.autograd.Function
    usual = function.__dict__["apply"]

    def apply(kind: type, *args: Any, **kwargs: Any) -> Any:
        if kind.__module__.partition(".")[0] == "torch":
            return usual.__func__(kind, *args, **kwargs)
        raise TypeError(f"the custom autograd function {kind.__name__} has its own backward")

    with _patching:
        function.apply = classmethod(apply)
        try:
            yield
        finally:
            function.apply = usual


@contextmanager
def _quiet(torch: Any) -> Iterator[None]:
    """torch.export logs what it then raises."""
    import logging

    logger = logging.getLogger("torch")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _decompositions(torch: Any) -> Any:
    """torch's table, without the operators that have a row."""
    from torch._decomp import get_decompositions

    table = torch.export.default_decompositions()
    table.update(get_decompositions([torch.ops.aten.grid_sampler_2d]))
    for operator in list(table.keys()):
        space, _, rest = operator.name().partition("::")
        name, _, overload = rest.partition(".")
        if space != "aten" or name in _DECOMPOSED:
            continue
        # A row of a name serves all overloads whose arguments fit it; those it does not fit
        # decompose into ones that it does.
        if f"{name}.{overload or 'default'}" in ROWS or (name in ROWS and _fits(name, overload)):
            table.pop(operator, None)
    return table


def _fits(name: str, overload: str) -> bool:
    """Whether an overload is none that writes into a given tensor."""
    return not name.endswith("_") and not overload.endswith("out")


def _cut_gradients(torch: Any, graph_module: Any) -> None:
    """Detaches what leaves a `no_grad` block: decompositions write such blocks in line.

    Raises TypeError where gradients are switched on again within one: its results have some.
    """
    for inner in graph_module.children():  # blocks, and graphs of control flow
        if isinstance(inner, torch.fx.GraphModule):
            _cut_gradients(torch, inner)
    for node in graph_module.graph.nodes:
        if str(node.target) != "wrap_with_set_grad_enabled":
            continue
        enabled, inner = node.args[0], getattr(graph_module, str(node.args[1].target))
        if enabled:
            continue
        graph = inner.graph
        if any(str(n.target) == "wrap_with_set_grad_enabled" and n.args[0] for n in graph.nodes):
            raise TypeError("gradients are enabled within a block that runs without")
        output = next(n for n in graph.nodes if n.op == "output")
        for value in output.all_input_nodes:
            if value.op == "placeholder" or not value.meta["val"].is_floating_point():
                continue
            with graph.inserting_before(output):
                cut = graph.call_function(torch.ops.aten.detach.default, (value,))
            cut.meta.update(value.meta)
            output.replace_input_with(value, cut)
        inner.recompile()


def _copy_shared_carries(torch: Any, graph_module: Any) -> None:
    """A loop that also reads a carry's first value gets a copy of it.

    Torch's decompositions refuse one tensor as two operands of a while_loop, since a trip could
    change it in place.
    """
    graph = graph_module.graph
    for inner in graph_module.children():
        if isinstance(inner, torch.fx.GraphModule):
            _copy_shared_carries(torch, inner)
    for node in graph.nodes:
        if str(node.target) != "while_loop":
            continue
        test, body, carries, outside = node.args
        seen, own = set(outside), []
        for carry in carries:
            if isinstance(carry, torch.fx.Node) and carry in seen:
                with graph.inserting_before(node):
                    copy = graph.call_function(torch.ops.aten.clone.default, (carry,))
                copy.meta.update(carry.meta)
                carry = copy
            seen.add(carry)
            own.append(carry)
        node.args = (test, body, tuple(own), outside)
    graph_module.recompile()


def _apart(torch: Any, examples: Any) -> Any:
    """Copies of the examples: a tensor that is given twice would be exported as one input."""
    from torch.utils import _pytree as pytree

    def copied(leaf: Any) -> Any:
        return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(copied, examples)


def _dynamic_shapes(
    torch: Any, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves((args, dict(kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    shapes = torch.export.ShapesCollection()
    size = next((t.shape[0] for t in tensors if t.ndim), None)
    seen: set[int] = set()
    for tensor in tensors:
        if tensor.ndim and tensor.shape[0] == size and id(tensor) not in seen:
            seen.add(id(tensor))
            shapes[tensor] = {0: torch.export.Dim.AUTO}
    return shapes.dynamic_shapes(module, args, dict(kwargs))


def refused_by_torch(fault: BaseException) -> ProgramError:
    """What torch.export says of a module, at the user's line."""
    import traceback

    text = str(fault).strip().split("\n\n")[0].replace("\n", " ")
    frames = [
        (frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(fault.__traceback__)
    ]
    frames += _quoted_frames(str(fault))
    loc = users_line(frames)
    return ProgramError(
        CODE,
        f"torch.export refuses this module: {type(fault).__name__}: {text[:400]}",
        [loc] if loc else [],
        "a model is one graph: shapes and branches that the data decide, hooks and custom"
        " autograd functions do not fit; `torch.export.export(module, args)` shows the same",
    )


def _quoted_frames(text: str) -> list[tuple[str, int]]:
    """The frames that a text names as Python's tracebacks do."""
    import re

    return [(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', text)]


def users_line(frames: Sequence[tuple[str, int]]) -> Loc | None:
    """The innermost of these (file, line) that is outside torch and Delian, as a span."""
    import linecache
    from pathlib import Path

    from ....common.errors import is_own

    torch_folder = str(Path(torch_module().__file__).parent)
    for file, line in reversed(frames):
        if file.startswith(torch_folder) or is_own(file) or file.startswith("<"):
            continue
        text = linecache.getline(file, line).rstrip("\n")
        start = len(text) - len(text.lstrip())
        return Loc(file, line, start, line, max(len(text), start + 1))
    return None


def origin_of(node: torch.fx.Node) -> Loc | None:
    """The user's line that a node is from."""
    return users_line(_quoted_frames(node.meta.get("stack_trace") or ""))
