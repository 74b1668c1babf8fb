"""FlexLoRA.

Bai, Chen, Qian, Yao and Li, "Federated Fine-tuning of Large Language Models under Heterogeneous
Tasks and Client Resources", NeurIPS 2024 (arXiv 2402.11505), section 4: devices train adapters of
different ranks; the server averages the products A_i B_i, and takes the best approximation of the
mean of each rank, which is the first part of its singular value decomposition:

    P = mean A_i B_i = U S V,   A = U sqrt(S),   B = sqrt(S) V,   device i takes the first r_i

The server sees sums alone, also under masks, so a device uploads its product, which is dense. A
device's rank follows from its number of examples: r_i = R min(1, n_i / rows_full).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ....compiler import tree
from ....compiler.api import value_and_grad
from ....compiler.ir import Tensor
from ...adapters.lora_roles import lora_roles
from ...adapters.trained_factors import factors, with_factors
from ...algorithm import About, Algorithm, ClientResult
from ...hyperparameters import Bounds
from ...leaf_roles import Role
from ...partial import Trained
from ...sampling import Batch
from ...task import Task


class Products(NamedTuple):
    """The state, whose form uploads have."""

    model: Trained
    """Adapters of the largest rank, R; zero in an upload."""
    products: list[Tensor]
    """Zero; in an upload the change of A B of each adapter, f32[inputs, outputs]."""


@dataclass(frozen=True)
class FlexLora(Algorithm):
    """FlexLoRA: adapters of a rank for each device, averaged as products (Bai et al. 2024)."""

    about: ClassVar[About] = About(
        "FlexLoRA", "Bai et al. 2024", "the change of A B, which is dense"
    )

    rows_full: Annotated[int, Bounds(ge=1, le=10_000_000)] = 100
    """Examples from which on a device trains adapters of the whole rank."""
    rank_min: Annotated[int, Bounds(ge=1, le=1024)] = 1
    """The smallest rank of a device."""

    def roles(self, model: Any) -> Sequence[Role]:
        return lora_roles(model, {})

    def init(self, task: Task, key: Tensor) -> Products:
        model = task.init(key)
        return Products(model, [np.zeros_like(a @ b) for a, b in factors(model)])

    def model(self, state: Products) -> Trained:
        return state.model

    def starts(self, task: Task, state: Products, kept: Any) -> tuple[Any, Any]:
        return state.model, state.model

    def gradient(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        def loss(model: Trained, batch: Batch) -> Tensor:
            return task.loss(self._cut(model, data), batch)

        return value_and_grad(loss)(current, self.batch(task, data, order, step))

    def result(
        self, task: Task, state: Products, end: Trained, loss: Tensor, data: Any, kept: Any
    ) -> ClientResult:
        plain = Algorithm.result(self, task, state.model, end, loss, data, kept)
        own = factors(self._cut(end, data))
        change = [
            a @ b - a0 @ b0 for (a, b), (a0, b0) in zip(own, factors(state.model), strict=True)
        ]
        return plain._replace(update=Products(_without(plain.update), change))

    def memory(self, state: Products) -> Any:
        return self.server.init(state.model)

    def server_update(self, state: Products, memory: Any, mean: Products) -> tuple[Products, Any]:
        model, memory = Algorithm.server_update(self, state.model, memory, mean.model)
        made = []
        for (a, b), change in zip(factors(state.model), mean.products, strict=True):
            u, s, v = np.linalg.svd(a @ b + change, full_matrices=False)
            root = np.sqrt(s[: a.shape[1]])
            made.append((u[:, : a.shape[1]] * root, root[:, None] * v[: a.shape[1]]))
        return Products(with_factors(model, made), tree.map(np.zeros_like, state.products)), memory

    def fine_tuned(self, task: Task, model: Trained, data: Any, key: Tensor) -> Trained:
        """The part of the device's rank, fine-tuned."""
        made: Trained = Algorithm.fine_tuned(self, task, self._cut(model, data), data, key)
        return made

    def _cut(self, model: Trained, data: Any) -> Trained:
        """The model with zeros beyond the device's rank."""
        share = np.minimum(data.support.astype(np.float32) / self.rows_full, 1.0)
        made = []
        for a, b in factors(model):
            rank = a.shape[1]
            own = np.maximum(np.ceil(rank * share), float(min(self.rank_min, rank)))
            kept = (np.arange(rank) < own).astype(np.float32)
            made.append((a * kept, kept[:, None] * b))
        return with_factors(model, made)


def _without(update: Trained) -> Trained:
    """An upload without A and B: their products are in it."""
    return with_factors(update, [(np.zeros_like(a), np.zeros_like(b)) for a, b in factors(update)])
