"""A loss of PyTorch as a function of rows: one loss a row, or several that are averaged.

A batch may hold rows that only fill it up, with a weight of zero. So a loss must not mix its rows:
it gives a value for each (`reduction="none"`), or one number that is the mean of what it gives for
each row alone. Both are tried on random numbers before the loss is imported.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from .....common.errors import DelianError
from .....compiler.api import vmap
from .....compiler.ir import Tensor
from ..torch_export import torch_module
from ..torch_model import from_torch

if TYPE_CHECKING:
    import torch

#: Rows that a loss is tried on: unlike most numbers of classes, which would fit by accident.
_ROWS = 7
#: What a row's loss may differ by, alone and among others: rounding of f32.
_TOLERANCE = 1e-4
_HINT = (
    'return one loss a row, as the losses of torch.nn do with reduction="none": rows that only fill'
    " up a batch must not count"
)


@dataclass(frozen=True)
class RowLosses:
    """A loss that is called as `loss(outputs, targets)` and gives f32[B, ...]."""

    name: str
    """The class of the loss."""
    function: FunctionType
    """The exported loss: `torch_graph.Written.function`."""
    target: Any
    """The targets' element type, as the loss takes them."""
    alone: bool
    """Whether it is called for each row alone, as a batch of one."""
    classes_second: bool
    """Whether it takes the classes of outputs [B, ..., C] as its second axis."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The rows' losses: outputs f32[B, ...] and targets [B, ...] -> f32[B, ...]."""
        if self.classes_second:
            outputs = np.moveaxis(outputs, -1, 1)
        targets = targets.astype(self.target)
        if self.alone:
            return vmap(lambda x, y: self._of_rows(x[None], y[None]))(outputs, targets)
        return self._of_rows(outputs, targets)

    def _of_rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.function({}, {}, (outputs, targets), None, None)[0]


@dataclass(frozen=True)
class OneLogit:
    """A loss of one logit a row and of labels as numbers, 0.0 and 1.0: `BCEWithLogitsLoss`."""

    losses: RowLosses

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The rows' losses: logits (0, z) f32[B, 2] and labels [B] -> f32[B]."""
        return self.losses(logits[..., 1] - logits[..., 0], labels)


def row_losses(
    loss: torch.nn.Module,
    outputs: tuple[int, ...],
    targets: tuple[int, ...],
    *,
    labels: bool,
    classes_second: bool = False,
) -> RowLosses:
    """A loss of PyTorch for one model and one kind of target.

    Args:
        loss: called as `loss(outputs, targets)`; without parameters.
        outputs: axes of the model's outputs after the batch's; of labels the last is their classes.
        targets: axes of the targets after the batch's.
        labels: whether targets are labels, i64, or numbers, f32.
        classes_second: whether the loss takes the classes as its second axis.

    Raises:
        DelianError: the loss has parameters, does not take these arguments, or mixes its rows.
        ProgramError: DL123, for what cannot be imported.
    """
    torch = torch_module()
    name = type(loss).__name__
    if next(loss.parameters(), None) is not None:
        raise DelianError(
            f"{name} has parameters, and a loss is not trained", "make them parts of the model"
        )
    loss.eval()
    draws = torch.Generator().manual_seed(0)
    x = torch.rand((_ROWS, *outputs), generator=draws)
    y = torch.rand((_ROWS, *targets), generator=draws)
    if labels:
        y = (y * outputs[-1]).to(torch.int64)
    if classes_second:
        x = x.movedim(-1, 1)
    together = _tried(loss, name, x, y)
    alone = [_tried(loss, name, x[k : k + 1], y[k : k + 1]) for k in range(_ROWS)]
    by_itself = _by_itself(torch, name, together, alone)
    model = from_torch(loss, (x, y))
    if by_itself or model.graphs.inference.shapes[0][0] is not None:
        by_itself = True
        model = from_torch(loss, (x[:1], y[:1]), dynamic_batch=False)
    kind = np.int64 if labels else np.float32
    return RowLosses(name, model.graphs.inference.function, kind, by_itself, classes_second)


def _tried(loss: Callable[..., Any], name: str, x: Any, y: Any) -> Any:
    torch = torch_module()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")  # such as of shapes that are made to fit
            found = loss(x, y)
    except Exception as fault:
        raise DelianError(
            f"{name} does not take outputs {list(x.shape)} and targets {list(y.shape)} of"
            f" {str(y.dtype).removeprefix('torch.')}: {type(fault).__name__}: {str(fault)[:300]}",
            "a loss is called as loss(outputs, targets); labels are int64, numbers float32",
        ) from fault
    if not isinstance(found, torch.Tensor) or not found.is_floating_point():
        raise DelianError(f"{name} gives no tensor of floats", _HINT)
    return found


def _by_itself(torch: Any, name: str, together: Any, alone: list[Any]) -> bool:
    """Whether a loss gives one number; each of its rows is then a batch. Raises DelianError."""
    if together.ndim == 0 and all(each.ndim == 0 for each in alone):
        mean = torch.stack(alone).mean()
        if torch.allclose(mean, together, _TOLERANCE, _TOLERANCE, equal_nan=True):
            return True
        raise DelianError(f"{name} gives one number, which is not the mean of its rows'", _HINT)
    whole = together.ndim > 0 and all(each.shape == (1, *together.shape[1:]) for each in alone)
    if not whole or together.shape[0] != len(alone):
        raise DelianError(f"{name} gives {list(together.shape)} for {len(alone)} rows", _HINT)
    if not torch.allclose(torch.cat(alone), together, _TOLERANCE, _TOLERANCE, equal_nan=True):
        raise DelianError(f"{name} gives a row another loss than when it is alone", _HINT)
    return False
