"""FedEx-LoRA.

Singhal, Ponkshe and Vepakomma, "FedEx-LoRA: Exact Aggregation for Federated and Efficient
Fine-Tuning of Foundation Models", ACL 2025 (arXiv 2410.09432), section 4: the mean of the products
A_i B_i is not the product of the means. The server adds the difference to the weight:

    A <- mean A_i,   B <- mean B_i,   R <- R + mean (A_i B_i) - A B,   x (W + s R) + s (x A) B

The server sees sums alone, also under masks, so devices upload the change of A_i B_i too, a dense
matrix for each adapted weight. What that buys in accuracy is bought with bytes; FFA-LoRA is exact
without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ....common.errors import DelianError
from ....compiler.ir import Tensor
from ...adapters.lora_roles import lora_roles
from ...adapters.summed_weight import RESIDUAL, with_residuals
from ...adapters.trained_factors import factors
from ...algorithm import About, Algorithm, ClientResult
from ...leaf_roles import Role
from ...partial import Trained
from ...task import Task


@dataclass(frozen=True)
class FedExLora(Algorithm):
    """FedEx-LoRA: adapters whose mean is exact (Singhal et al. 2025)."""

    about: ClassVar[About] = About(
        "FedEx-LoRA",
        "Singhal et al. 2025",
        "the change of A and B, and that of their product, which is dense",
    )

    def task(self, task: Task) -> Task:
        if not is_dataclass(task) or isinstance(task, type):
            raise DelianError(
                f"{type(task).__name__} is no dataclass, and FedEx-LoRA changes its `init`",
                "make it a dataclass with a field `init`, as Classification is",
            )
        inner: Any = task
        first = inner.init
        made: Task = replace(inner, init=lambda key: with_residuals(first(key)))
        return made

    def roles(self, model: Any) -> Sequence[Role]:
        return lora_roles(model, {})

    def gradient(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        loss, slope = Algorithm.gradient(self, task, current, state, data, order, step)
        return loss, slope.replaced(
            _places(slope), [np.zeros_like(slope.values[k]) for k in _places(slope)]
        )

    def result(
        self, task: Task, state: Trained, end: Trained, loss: Tensor, data: Any, kept: Any
    ) -> ClientResult:
        plain = Algorithm.result(self, task, state, end, loss, data, kept)
        pairs = zip(_products(end), _products(state), strict=True)
        update = plain.update.replaced(_places(state), [after - before for after, before in pairs])
        return plain._replace(update=update)

    def server_update(self, state: Trained, memory: Any, mean: Trained) -> tuple[Trained, Any]:
        after, memory = Algorithm.server_update(self, state, memory, mean)
        residuals = [
            state.values[k] + mean.values[k] + before - now
            for k, before, now in zip(
                _places(state), _products(state), _products(after), strict=True
            )
        ]
        return after.replaced(_places(state), residuals), memory

    def fine_tuned(self, task: Task, model: Trained, data: Any, key: Tensor) -> Trained:
        """The residuals stay: a device fine-tunes the adapters."""
        made: Trained = Algorithm.fine_tuned(self, task, model, data, key)
        return made.replaced(_places(model), [model.values[k] for k in _places(model)])


def _places(model: Trained) -> list[int]:
    """The places of the residuals, in the order of the adapters."""
    return [k for k in range(len(model.names)) if model.names[k].endswith(RESIDUAL)]


def _products(model: Trained) -> list[Tensor]:
    """A B of each adapter, f32[inputs, outputs]."""
    return [a @ b for a, b in factors(model)]
