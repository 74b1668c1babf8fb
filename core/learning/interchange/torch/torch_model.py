"""`dl.from_torch`: a PyTorch module as a Delian model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ....common.errors import DelianError, ProgramError
from ....common.foreign_formats import refuse_file, way_of
from ....compiler.api import module
from ....compiler.ir import Array, Tensor
from ....compiler.tree import children, static_field
from ...adapters.adapter_keys import keyed
from ...partial import with_bundle
from ..model_card import RunFacts, card_text, open_folder, write_card, write_text
from ..safetensors_file import read_safetensors, write_safetensors
from . import torch_export, torch_graph, torch_guards, torch_layers, torch_layouts, torch_nodes
from .modules.keras_modules import as_torch_module
from .modules.module_source import ModuleSource, source_of
from .torch_graph import Written

if TYPE_CHECKING:
    import torch

#: Inputs of a module of tokens that takes their mask.
IDS_AND_MASK = 2


@dataclass(frozen=True, eq=False)
class Graphs:
    """A module's programs."""

    name: str
    """The module's class."""
    inference: Written
    training: Written
    order: tuple[str, ...]
    """The parameters' names in the module's order: the head's are the last."""
    others: Mapping[str, Array | str]
    """What else the module's state_dict has: constants, and the first name of a tied parameter."""
    kernels: Mapping[str, tuple[int, ...]]
    """Weights of layers that are stored in other axes: PyTorch's in this order."""
    output: str | int | None = None
    """Which of several outputs the model gives; None: all."""
    channels_last: bool = False
    """Whether images come as [N, H, W, C] and go to the module as [N, C, H, W]."""
    counters: frozenset[str] = frozenset()
    """The statistics that are whole numbers in PyTorch: counters of batches."""
    rows_min: int = 1
    """The smallest batch."""
    by_batch: bool = False
    """Whether batch normalisation takes the batch's statistics in inference too."""
    source: ModuleSource | None = None
    """Where the module is from."""
    layers: Mapping[str, str] = field(default_factory=dict)
    """The kinds of its layers by their names (`torch_layers`)."""
    padding: int | None = None
    """The id that stands for no token: the model takes ids alone, and makes the second input."""


@module
class TorchModel:
    """A model made of a PyTorch module: a tree of its parameters, called as `model(*inputs)`."""

    parameters: dict[str, Tensor]
    """By PyTorch's names; trained. Weights have the axes of Delian's layers (`graphs.kernels`)."""
    statistics: dict[str, Tensor]
    """Float buffers that a training step changes, such as a batch normalisation's running mean."""
    graphs: Graphs = static_field()

    def __call__(self, *inputs: Tensor) -> Any:
        """The module in inference.

        inputs: of the examples' types and shapes; the first axis may have another size, if the
        module allows it. One argument more is the weight of rows, f32[N]: zero for rows that only
        fill up a batch.
        """
        graph = self.graphs.training if self.graphs.by_batch else self.graphs.inference
        inputs, count = _with_mask(self.graphs, inputs), len(graph.shapes)
        weight = inputs[count] if len(inputs) == count + 1 else None
        whole = inputs[:count] if len(inputs) == count + 1 else inputs
        given = _checked(self.graphs, graph, whole, weight)
        found = graph.function(self.parameters, self.statistics, given, weight, None)
        return _picked(self.graphs.output, found[0])

    def in_training(
        self, inputs: tuple[Tensor, ...], weight: Tensor | None = None, draw: Tensor | None = None
    ) -> tuple[Any, dict[str, Tensor]]:
        """The module in training: its outputs, and the statistics after it.

        Args:
            inputs: as of a call.
            weight: f32[N], zero for rows that only fill up a batch: batch normalisation leaves them
                out.
            draw: a random key u32[2] for dropout; None drops nothing.
        """
        graph = self.graphs.training
        given = _checked(self.graphs, graph, _with_mask(self.graphs, inputs), weight)
        parameters = self.parameters if draw is None else keyed(self.parameters, draw)
        found = graph.function(parameters, self.statistics, given, weight, draw)
        return _picked(self.graphs.output, found[0]), {**self.statistics, **found[1]}

    def with_statistics(self, statistics: dict[str, Tensor]) -> TorchModel:
        """The same parameters with other statistics."""
        return TorchModel(self.parameters, statistics, self.graphs)

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and statistics by PyTorch's names and in its shapes.

        Of a gradient, which is a model too, the slopes.

        Raises DelianError for a model with adapters, or with weights in few bits.
        """
        adapted = [name for name, value in self.parameters.items() if children(value) is not None]
        if adapted:
            raise DelianError(
                f"{adapted[0]} is no plain array: the model has adapters or weights in few bits",
                "adapters.merged(model) is a plain model, adapters.save_adapter writes theirs",
            )
        found = {**self.parameters, **self.statistics}
        for name, axes in self.graphs.kernels.items():
            found[name] = np.transpose(found[name], tuple(int(k) for k in np.argsort(axes)))
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> TorchModel:
        """The model with these values.

        state: arrays or tensors by PyTorch's names, f32 after conversion. What is constant in the
        program may be in it, and is not looked at.

        Raises:
            DelianError: names are missing or unknown, or a shape differs.
        """
        if not isinstance(state, Mapping):
            raise DelianError(
                f"a state_dict is a mapping, not {type(state).__name__}", "net.state_dict() is one"
            )
        own = self.state_dict()
        missing = [name for name in own if name not in state]
        unknown = [name for name in state if name not in own and name not in self.graphs.others]
        if missing or unknown:
            raise DelianError(
                f"these weights are not of {self.graphs.name}:"
                f" {len(missing)} names missing ({', '.join(missing[:3]) or 'none'}),"
                f" {len(unknown)} unknown ({', '.join(unknown[:3]) or 'none'})",
                "load weights of the same module and configuration",
            )
        made = {name: _loaded(name, state[name], np.shape(own[name])) for name in own}
        for name, axes in self.graphs.kernels.items():
            made[name] = np.ascontiguousarray(np.transpose(made[name], axes))
        return TorchModel(
            {name: made[name] for name in self.parameters},
            {name: made[name] for name in self.statistics},
            self.graphs,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the whole state_dict as a safetensors file, as PyTorch's tools read it.

        Trained and constant parts under PyTorch's names, in its shapes; tied parameters once, as
        Hugging Face's files have them. Raises DelianError where it cannot be written.
        """
        write_safetensors(path, self._whole_state(), {"format": "pt"})

    def save_folder(self, path: str | os.PathLike[str], run: RunFacts | None = None) -> None:
        """Writes a folder that Hugging Face's tools read: weights, configuration, card.

        `model.safetensors` is that of `save`; `config.json` is there where the module, or the one
        that it wraps, has a `config` with `to_dict`, so that `from_pretrained` takes the folder;
        `README.md` is the model's card, and stays as it is where there is one.

        Args:
            path: of the folder, which is made.
            run: what the card says of the training.

        Raises:
            DelianError: the folder cannot be written.
        """
        folder, source = Path(path), self.graphs.source
        open_folder(folder)
        state, name, library = self._whole_state(), self.graphs.name, "pytorch"
        if source is not None:
            state = {key.removeprefix(source.prefix): value for key, value in state.items()}
            library = source.library
            if source.config:
                write_text(folder / "config.json", source.config)
        write_safetensors(folder / "model.safetensors", state, {"format": "pt"})
        write_card(folder, card_text(name, library, run or RunFacts()))

    def _whole_state(self) -> dict[str, Array]:
        """All of PyTorch's state_dict, in its shapes and types; tied parameters once."""
        constants = {k: v for k, v in self.graphs.others.items() if not isinstance(v, str)}
        found = {**constants, **self.state_dict()}
        for name in self.graphs.counters:
            found[name] = np.rint(found[name]).astype(np.int64)
        return {name: np.array(value, order="C") for name, value in found.items()}

    def load(self, path: str | os.PathLike[str]) -> TorchModel:
        """The model with the values of a safetensors file.

        Raises DelianError for a file that is damaged, and for one of another model.
        """
        return self.load_state_dict(read_safetensors(path)[0])

    def load_bundle(self, path: str | os.PathLike[str]) -> TorchModel:
        """The model with the weights of a run's bundle, such as `model.bundle` of its report.

        Raises DelianError for a bundle without weights, and for one of another model.
        """
        return with_bundle(self, path)

    def last_parameters(self, count: int) -> list[Tensor]:
        """The last parameters in the module's order: those of its head."""
        return [self.parameters[name] for name in self.graphs.order[-count:]]

    def with_last_parameters(self, values: list[Tensor]) -> TorchModel:
        """The model with these for its last parameters."""
        names = self.graphs.order[-len(values) :]
        replaced = dict(zip(names, values, strict=True))
        return TorchModel({**self.parameters, **replaced}, self.statistics, self.graphs)


def _loaded(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    """A value of a state_dict as f32. Raises DelianError for another shape."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()
    try:
        array: Array = np.array(value, np.float32)
    except (TypeError, ValueError):
        raise DelianError(
            f"{name} is no array of numbers: {str(value)[:40]!r}", "pass arrays or tensors"
        ) from None
    if array.shape != shape:
        raise DelianError(
            f"{name} has shape {list(array.shape)}, and the model's has {list(shape)}",
            "load weights of the same configuration",
        )
    return array


def _picked(output: Any, results: Any) -> Any:
    return results if output is None else results[output]


def _with_mask(graphs: Graphs, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs with the mask of tokens after the ids, where the model makes it."""
    if graphs.padding is None:
        return inputs
    mask = (inputs[0] != graphs.padding).astype(graphs.inference.dtypes[1])
    return (inputs[0], mask, *inputs[1:])


def _checked(
    graphs: Graphs, graph: Written, inputs: tuple[Any, ...], weight: Tensor | None
) -> tuple[Any, ...]:
    """The inputs as the module takes them.

    Raises TypeError for other shapes than the examples', and for weights of rows where an operator
    cannot leave rows out.

    Whole numbers come in the example's type: data sets keep ids as i32, and as f32.
    """
    if len(inputs) != len(graph.shapes):
        raise TypeError(f"{graphs.name} takes {len(graph.shapes)} inputs, not {len(inputs)}")
    if weight is not None and graph.unweighted:
        raise TypeError(
            f"{graphs.name}: {graph.unweighted} would count rows that only fill up a batch: its"
            " first axis is not the batch's, or the batch has a fixed size"
        )
    if graphs.channels_last:
        inputs = tuple([np.moveaxis(x, -1, 1) if np.ndim(x) == 4 else x for x in inputs])
    for x, shape in zip(inputs, graph.shapes, strict=True):
        sizes = np.shape(x)
        if len(sizes) != len(shape) or any(
            n is not None and n != m for n, m in zip(shape, sizes, strict=True)
        ):
            wanted = ["any" if n is None else n for n in shape]
            raise TypeError(f"{graphs.name} was exported for inputs {wanted}, not {list(sizes)}")
        if any(n is None and m < graphs.rows_min for n, m in zip(shape, sizes, strict=True)):
            raise TypeError(
                f"{graphs.name} gives something else for one row; it was exported for two or more"
            )
    pairs = zip(inputs, graph.dtypes, strict=True)
    return tuple([x.astype(kind) if kind.kind in "iu" else x for x, kind in pairs])


def from_torch(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    output: str | int | None = None,
    batch_norm: Literal["running", "batch"] = "running",
    channels_last: bool = False,
    dynamic_batch: bool = True,
    padding: int | None = None,
) -> TorchModel:
    """A PyTorch module as a Delian model.

    The module's `forward` is exported (`torch.export`), in training and in inference; the model's
    first parameters are the module's. PyTorch is needed here, and nowhere later.

    Args:
        module: float32 parameters with requires_grad are trained; others are constants. A Keras
            model may stand for it, where Keras runs on PyTorch.
        args: example inputs of `forward`, tensors.
        kwargs: example inputs by name; the model takes them after `args`, in this order.
        output: which output the model gives, where `forward` returns a tuple or a record.
        batch_norm: what batch normalisation takes in inference: the running statistics, which are
            leaves of the model and change with each training step, or the batch's, as in training.
        channels_last: whether the model takes images as [N, H, W, C], as data sets have them here;
            the module gets [N, C, H, W].
        dynamic_batch: whether the first axis of the inputs may have another size later. Modules
            that do not allow it are exported for the examples' sizes.
        padding: of a module of token ids and their mask (`forward(input_ids, attention_mask)`), the
            id that stands for no token. The model then takes ids alone, and makes the mask.

    Returns:
        A model that runs as plain Python and compiles, with derivatives of any order.

    Raises:
        ProgramError: DL123, for what cannot be imported; the line is the module's.
        DelianError: PyTorch is missing, or an argument is wrong.
    """
    if isinstance(module, str | os.PathLike):
        refuse_file(module, "model")
    torch, own = torch_export.torch_module(), module
    module = as_torch_module(torch, module, tuple(args), kwargs or {})
    if not isinstance(module, torch.nn.Module):
        if (foreign := way_of(module)) and not isinstance(module, type):
            raise DelianError(f"{type(module).__name__} is {foreign[0]}", foreign[1])
        raise DelianError(
            f"from_torch takes a torch.nn.Module, not {type(module).__name__}",
            "pass an instance: Net(), not Net",
        )
    if isinstance(args, torch.Tensor) or batch_norm not in ("running", "batch"):
        raise DelianError(
            "from_torch takes its examples as a tuple, and batch_norm is 'running' or 'batch'",
            "dl.from_torch(net, (x,), batch_norm='running')",
        )
    named = dict(kwargs or {})
    if padding is not None and len(args) + len(named) != IDS_AND_MASK:
        raise DelianError(
            "padding is for a module of two inputs, ids and their mask",
            "dl.from_torch(net, (ids, mask), padding=0)",
        )
    given = _examples(torch, tuple(args), dynamic_batch)
    name = type(module).__name__
    torch_export.check_hooks(module)
    ties = _ties(module)
    programs = [
        _exported(module, given, named, training, dynamic_batch) for training in (True, False)
    ]
    by_batch = batch_norm == "batch"
    statistics = () if by_batch else torch_graph.changed_buffers(programs[0])
    kernels = torch_layouts.kernels(programs, ties)
    training, inference = (
        torch_graph.written(program, name, statistics, ties, kernels) for program in programs
    )
    _check_output(name, output, inference)
    if inference.draws:
        raise ProgramError(
            torch_export.CODE,
            f"this module cannot be imported: {name} draws random numbers in inference",
            (),
            "give dropout the mode: functional.dropout(x, p, self.training)",
        )
    trained = [key for key, value in module.named_parameters() if value.requires_grad]
    state = module.state_dict()
    parameters = {key: _f32(torch, key, state[key]) for key in trained}
    kernels = {key: axes for key, axes in kernels.items() if key in parameters}
    for key, axes in kernels.items():
        parameters[key] = np.ascontiguousarray(np.transpose(parameters[key], axes))
    counters = frozenset(key for key in statistics if not state[key].is_floating_point())
    floats = {
        key: _f32(torch, key, state[key].float() if key in counters else state[key])
        for key in statistics
    }
    others = {
        key: ties[key] if ties.get(key, key) != key else torch_nodes.as_array(torch, value)
        for key, value in state.items()
        if key not in parameters and key not in floats
    }
    graphs = Graphs(
        name,
        inference,
        training,
        tuple(parameters),
        MappingProxyType(others),
        MappingProxyType(kernels),
        output,
        channels_last,
        counters,
        _rows_min(torch, module, programs[1], given, named),
        by_batch,
        source_of(own, state),
        MappingProxyType(torch_layers.layer_kinds(torch, module)),
        padding,
    )
    return TorchModel(parameters, floats, graphs)


def _check_output(name: str, output: str | int | None, graph: Written) -> None:
    """Raises DelianError for an output that the module does not give."""
    if output is not None and output not in graph.outputs:
        given = ", ".join(repr(each) for each in graph.outputs) or "one alone"
        raise DelianError(f"{name} has no output {output!r}", f"its outputs: {given}")


def _ties(module: Any) -> dict[str, str]:
    """The first name of each parameter that has several, by the others."""
    first: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: first.setdefault(id(value), name) for name, value in named}


def _exported(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool, dynamic: bool
) -> Any:
    """One graph; for a fixed batch where the module does not allow another."""
    if dynamic:
        try:
            program = torch_export.exported(module, args, kwargs, training, True)
            torch_guards.conditions(program)
            return program
        except ProgramError:
            pass
    return torch_export.exported(module, args, kwargs, training, False)


def _rows_min(
    torch: Any, module: Any, inference: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> int:
    """The smallest batch that a module's graph serves."""
    with torch_export.in_mode(module, False):
        return 1 if torch_guards.serves_one_row(module, inference, args, kwargs) else 2


def _examples(torch: Any, args: tuple[Any, ...], dynamic: bool) -> tuple[Any, ...]:
    """The examples, of two rows where they have one: a batch of one is exported as no batch.

    Raises DelianError for examples without rows.
    """
    from torch.utils import _pytree as pytree

    tensors = [a for a in pytree.tree_leaves(args) if isinstance(a, torch.Tensor)]
    if any(0 in tensor.shape for tensor in tensors):
        raise DelianError("an example of from_torch is empty", "give examples with two rows")
    if not dynamic or not tensors or not tensors[0].ndim or tensors[0].shape[0] != 1:
        return args

    def twice(leaf: Any) -> Any:
        fits = isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == 1
        return torch.cat([leaf, leaf]) if fits else leaf

    doubled: tuple[Any, ...] = pytree.tree_map(twice, args)
    return doubled


def _f32(torch: Any, name: str, tensor: Any) -> Array:
    if tensor.dtype is not torch.float32:
        raise DelianError(
            f"{name} is of {str(tensor.dtype).removeprefix('torch.')}: trained parameters and"
            " statistics are float32",
            "module.float() converts them; requires_grad_(False) makes a parameter a constant",
        )
    array: Array = np.array(tensor.detach().cpu().numpy())
    return array
