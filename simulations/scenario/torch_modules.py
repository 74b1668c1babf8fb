"""PyTorch modules of users as models of a scenario."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.common.errors import DelianError
from ...core.common.user_code import load_class
from ...core.learning import Algorithm
from ...core.learning.interchange.torch.torch_export import torch_module
from ...core.learning.interchange.torch.torch_model import TorchModel, from_torch
from .data_settings import TorchModule
from .scenario import Scenario

_HINT = (
    "model.file is relative to the scenario's folder; model.module names a torch.nn.Module in it,"
    " and model.settings has the arguments of its constructor"
)


def imported(scenario: Scenario, rows: tuple[int, ...], dtype: npt.DTypeLike) -> TorchModel:
    """The scenario's module with the weights of its seed, for rows of this shape.

    Raises DelianError for a module that cannot be made or imported, and for one with running
    statistics under an algorithm that does not update them.
    """
    chosen = scenario.model
    assert isinstance(chosen, TorchModule) and scenario.model_file is not None
    torch = torch_module()
    kind = load_class(scenario.model_file, torch.nn.Module, chosen.module, _HINT)
    torch.manual_seed(scenario.seed)
    try:
        module = kind(**chosen.settings)
    except Exception as fault:
        raise DelianError(
            f"{scenario.model_file}: {kind.__name__} cannot be made:"
            f" {type(fault).__name__}: {fault}",
            _HINT,
        ) from fault
    turned = len(rows) == 3 and chosen.images == "channels_first"
    shape = (rows[2], rows[0], rows[1]) if turned else rows
    ids = chosen.inputs == "ids"
    example = torch.from_numpy(np.zeros((2, *shape), np.int64 if ids else dtype))
    model = from_torch(module, (example,), batch_norm=chosen.batch_norm, channels_last=turned)
    _check_statistics(scenario, model)
    return model if scenario.weights_file is None else model.load(scenario.weights_file)


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
