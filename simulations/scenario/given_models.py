"""Models that a caller of `dl.simulate` brings as objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...core.common.errors import DelianError
from ...core.common.foreign_formats import is_torch_module, way_of
from ...core.compiler.ir import Array, TensorType
from ...core.learning.data.tokens.token_facts import TokenFacts
from .scenario import Scenario

_HINT = (
    "a model is a torch.nn.Module, a class of them, what dl.from_onnx gives, a tree of arrays that"
    " is called as model(x), or a function init(key, shape, classes) that makes one"
)
_INIT = ("key", "shape", "classes")


def kind_of(model: Any) -> str:
    """What a report calls it."""
    return str(getattr(model, "__name__", type(model).__name__))[:64]


def init_of(
    scenario: Scenario,
    model: Any,
    batch: TensorType,
    classes: int,
    tokens: TokenFacts | None = None,
) -> tuple[Callable[[Array], Any], bool]:
    """The function that makes the first model, and whether it draws random numbers in training.

    batch: what the model takes. tokens: of rows of ids. Raises DelianError for an object that is
    no model, and names the way for estimators of scikit-learn.
    """
    if is_torch_module(model):
        from .torch_modules import module_of_rows

        made = module_of_rows(scenario, model, batch.shape[1:], batch.dtype.numpy, tokens)
        return (lambda key: made), made.graphs.training.draws
    if hasattr(model, "for_task"):
        own = model.for_task(batch.rank == 4)
        return (lambda key: own), False
    if foreign := way_of(model):
        raise DelianError(f"{kind_of(model)} is {foreign[0]}", foreign[1])
    if inspect.isfunction(model) or isinstance(model, type):
        names = [*inspect.signature(model).parameters]
        if len(names) != len(_INIT):
            raise DelianError(f"{kind_of(model)} takes {', '.join(names) or 'nothing'}", _HINT)
        shape = batch.shape[1:]
        return (lambda key: model(key, shape, classes)), False
    if not callable(model):
        raise DelianError(f"{type(model).__name__} is no model", _HINT)
    return (lambda key: model), False
