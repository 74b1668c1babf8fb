"""PyTorch modules of users as models of a scenario."""

from __future__ import annotations

import difflib
import inspect
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.common.errors import DelianError
from ...core.common.foreign_formats import refuse_file
from ...core.common.user_code import load_class
from ...core.learning import Algorithm
from ...core.learning.data.tokens.token_facts import TokenFacts
from ...core.learning.interchange.torch.modules.row_losses import OneLogit, RowLosses, row_losses
from ...core.learning.interchange.torch.torch_export import torch_module
from ...core.learning.interchange.torch.torch_model import TorchModel, from_torch
from .data_settings import TorchModule
from .scenario import Scenario

_HINT = (
    "model.file is relative to the scenario's folder; model.module names a torch.nn.Module in it,"
    " and model.settings has the arguments of its constructor"
)
_LOSS_HINT = (
    "model.loss is a class of torch.nn, such as SmoothL1Loss, or FILE:CLASS in a file of the"
    " scenario's folder; model.loss_settings has the arguments of its constructor"
)
#: Losses of torch.nn that take the classes of [B, ..., C] as the second axis.
_CLASSES_SECOND = ("CrossEntropyLoss", "NLLLoss")


def imported(
    scenario: Scenario,
    rows: tuple[int, ...],
    dtype: npt.DTypeLike,
    tokens: TokenFacts | None = None,
) -> TorchModel:
    """The scenario's module with the weights of its seed, for rows of this shape.

    tokens: of rows of ids; a module whose second input is `attention_mask` or `mask` gets it.

    Raises DelianError for a module that cannot be made or imported, and for one with running
    statistics under an algorithm that does not update them.
    """
    chosen = scenario.model
    assert isinstance(chosen, TorchModule)
    module = fresh_module(scenario)
    torch = torch_module()
    turned = len(rows) == 3 and chosen.images == "channels_first"
    shape = (rows[2], rows[0], rows[1]) if turned else rows
    ids = chosen.inputs == "ids" or tokens is not None
    example = torch.from_numpy(np.zeros((2, *shape), np.int64 if ids else dtype))
    given: tuple[Any, ...] = (example,)
    options: dict[str, Any] = {"batch_norm": chosen.batch_norm, "channels_last": turned}
    if tokens is not None:
        given, more = _of_tokens(module, example, tokens)
        options |= more
    model = from_torch(module, given, **options)
    _check_statistics(scenario, model)
    if scenario.weights_file is None:
        return model
    if scenario.weights_file.suffix != ".safetensors":
        refuse_file(scenario.weights_file, "model")
    return model.load(scenario.weights_file)


def _of_tokens(module: Any, ids: Any, tokens: TokenFacts) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Examples of a module of ids and options of `from_torch`.

    Raises DelianError for a module whose embeddings have fewer rows than there are ids.
    """
    torch = torch_module()
    tables = [each for each in module.modules() if isinstance(each, torch.nn.Embedding)]
    rows = max((table.num_embeddings for table in tables), default=tokens.vocabulary)
    if rows < tokens.vocabulary:
        raise DelianError(
            f"{type(module).__name__} embeds {rows} ids, and the tokenizer has"
            f" {tokens.vocabulary}: it is another model's",
            "give the tokenizer that the module was made for, or a larger embedding",
        )
    options: dict[str, Any] = {"output": "logits"} if hasattr(module, "config") else {}
    parameters = [*inspect.signature(module.forward).parameters]
    masked = len(parameters) > 1 and parameters[1] in ("attention_mask", "mask")
    if not masked:
        return (ids,), options
    # An id that there is not: every place is a token's.
    padding = -1 if tokens.padding is None else tokens.padding
    return (ids, torch.ones_like(ids)), {**options, "padding": padding}


def fresh_module(scenario: Scenario) -> Any:
    """The scenario's module with the weights of its seed. Raises DelianError."""
    chosen = scenario.model
    assert isinstance(chosen, TorchModule) and scenario.model_file is not None
    refuse_file(scenario.model_file, "model")  # first: the answer needs no PyTorch
    torch = torch_module()
    kind = load_class(scenario.model_file, torch.nn.Module, chosen.module, _HINT)
    torch.manual_seed(scenario.seed)
    if (keras := sys.modules.get("keras")) is not None:
        # Keras draws by a seed of its own, and numbers layers in a process: names must not depend
        # on what it has made before.
        keras.utils.set_random_seed(scenario.seed)
        keras.utils.clear_session()
    return _made(kind, str(scenario.model_file), chosen.settings, _HINT)


def module_of_rows(
    scenario: Scenario,
    module: Any,
    rows: tuple[int, ...],
    dtype: npt.DTypeLike,
    tokens: TokenFacts | None = None,
) -> TorchModel:
    """A caller's module, or a class of them made under the seed, for rows of this shape.

    Images [H, W, C] go to it as [C, H, W]. tokens, and what is raised: as of `imported`.
    """
    torch = torch_module()
    if isinstance(module, type):
        torch.manual_seed(scenario.seed)
        module = _made(module, module.__name__, {}, "pass an instance: Net(...)")
    turned = len(rows) == 3
    shape = (rows[2], rows[0], rows[1]) if turned else rows
    example = torch.from_numpy(np.zeros((2, *shape), dtype if tokens is None else np.int64))
    given: tuple[Any, ...] = (example,)
    options: dict[str, Any] = {"channels_last": turned}
    if tokens is not None:
        given, more = _of_tokens(module, example, tokens)
        options |= more
    model = from_torch(module, given, **options)
    _check_statistics(scenario, model)
    return model


def criterion(
    scenario: Scenario, model: TorchModel, targets: tuple[int, ...]
) -> RowLosses | OneLogit | None:
    """The scenario's own loss for this model; None for the task's usual one.

    targets: axes of the targets after the batch's.

    Raises DelianError for a loss that cannot be made, does not fit the model and the data, or mixes
    the rows of a batch.
    """
    chosen = scenario.model
    assert isinstance(chosen, TorchModule)
    if not chosen.loss:
        return None
    torch = torch_module()
    outputs = model.graphs.inference.results
    if len(outputs) != 1 or None in outputs[0][1:] or not outputs[0]:
        raise DelianError(
            f"a loss is of one tensor with a row a row of the data; {model.graphs.name} gives"
            f" {len(outputs)}",
            "let the module return one tensor",
        )
    sizes = tuple(int(n or 0) for n in outputs[0][1:])
    settings = {
        name: torch.tensor(value) if isinstance(value, list) else value
        for name, value in chosen.loss_settings.items()
    }
    kind, own = _loss_class(torch, scenario, chosen.loss)
    if "reduction" in settings:
        raise DelianError(
            "`model.loss_settings` has a reduction: it is the mean over the rows that count",
            "leave it out",
        )
    if not own or "reduction" in inspect.signature(kind).parameters:
        settings["reduction"] = "none"
    loss = _made(kind, chosen.loss, settings, _LOSS_HINT)
    labels = not scenario.regression
    if labels and not targets and math.prod(sizes) == 1:
        return OneLogit(row_losses(loss, (), (), labels=False))
    second = kind.__name__ in _CLASSES_SECOND and not own and labels and len(sizes) > 1
    return row_losses(
        loss, sizes if labels else targets, targets, labels=labels, classes_second=second
    )


def _loss_class(torch: Any, scenario: Scenario, name: str) -> tuple[Any, bool]:
    """The class of a loss, and whether it is the user's own. Raises DelianError."""
    if scenario.loss_file is not None:
        return load_class(
            scenario.loss_file, torch.nn.Module, name.rpartition(":")[2], _LOSS_HINT
        ), True
    losses = {n for n in dir(torch.nn) if n.endswith("Loss")}
    if name not in losses:
        close = difflib.get_close_matches(name, sorted(losses), 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise DelianError(f"torch.nn has no loss {name}", hint + _LOSS_HINT)
    return getattr(torch.nn, name), False


def _made(kind: Any, where: str, settings: Mapping[str, Any], hint: str) -> Any:
    try:
        return kind(**settings)
    except Exception as fault:
        raise DelianError(
            f"{where}: {kind.__name__} cannot be made: {type(fault).__name__}: {fault}", hint
        ) from fault


def _check_statistics(scenario: Scenario, model: TorchModel) -> None:
    """Running statistics are updated by the shared loop, in a state that is the model itself."""
    kind: Any = scenario.algorithm.algorithm_class
    shared = kind.init is Algorithm.init and kind.client_update is Algorithm.client_update
    if model.statistics and not shared:
        raise DelianError(
            f"{scenario.algorithm.name} does not update the running statistics of"
            f" {model.graphs.name}: {', '.join([*model.statistics][:3])}",
            'set model.batch_norm = "batch", or choose another algorithm, such as fedavg',
        )
