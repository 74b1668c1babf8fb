"""A task: a module, its loss, and a batch; what the judge task_table.py compares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn


@dataclass(frozen=True)
class Task:
    """One row of the table."""

    module: nn.Module
    batch: Callable[[int, torch.Generator], tuple[tuple[torch.Tensor, ...], torch.Tensor | None]]
    """(the module's inputs, the target of its loss) of so many rows."""
    loss: Callable[..., torch.Tensor]
    """Of (outputs, target), or of the outputs alone where the batch has no target."""


class WithLoss(nn.Module):
    """Gives (loss, outputs) of up to four inputs and a target."""

    def __init__(self, module: nn.Module, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, a=None, b=None, c=None, d=None, target=None):
        outputs = self.module(*[x for x in (a, b, c, d) if x is not None])
        return self.loss(outputs, *(() if target is None else (target,))), outputs


def drawn(task: Task, rows: int, seed: int) -> dict[str, torch.Tensor]:
    """A batch as `WithLoss` takes it, by name."""
    inputs, target = task.batch(rows, torch.Generator().manual_seed(seed))
    named = dict(zip("abcd", inputs, strict=False))
    return named if target is None else {**named, "target": target}


def ids(g: torch.Generator, count: int, *shape: int) -> torch.Tensor:
    """Whole numbers 0..count-1."""
    return torch.randint(0, count, shape, generator=g)


def numbers(g: torch.Generator, *shape: int) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=g)


def flags(g: torch.Generator, *shape: int) -> torch.Tensor:
    """Zeros and ones, as floats."""
    return torch.randint(0, 2, shape, generator=g).float()


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
