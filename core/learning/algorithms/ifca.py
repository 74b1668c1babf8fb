"""IFCA: the iterative federated clustering algorithm.

Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning",
NeurIPS 2020, algorithm 1, option II (model averaging): there are k models; each device finds the
one with the least loss on its data, trains that one and says which it was.

    j = argmin_j F_i(theta_j);    theta_i = local training from theta_j
    theta_j <- mean of theta_i over the devices that chose j

Which model a device chose would reveal something of its data, so under secure aggregation it must
not be seen: an upload has a place for every model, zeros but in the chosen one, and k counts. The
server divides sums by sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ...compiler import random, tree
from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm, ClientResult
from ..hyperparameters import Bounds
from ..task import Task

#: The value of a choice in an upload: small compared with the model's change.
CHOICE = 2.0**-6


class Clusters(NamedTuple):
    """The state, whose form uploads have."""

    models: tuple[Any, ...]
    """k trees."""
    chosen: Tensor
    """f32[k], zeros; in an upload `CHOICE` at the model that the device chose."""


@dataclass(frozen=True)
class Ifca(Algorithm):
    """IFCA: several models, and each device trains the one that fits it (Ghosh et al. 2020).

    The device's own model is the one that fits it best, fine-tuned; the first model is evaluated
    as the shared one.
    """

    about: ClassVar[About] = About(
        "IFCA",
        "Ghosh et al. 2020",
        "a place for each of the models, zeros but in the chosen one",
    )

    clusters: Annotated[int, Bounds(ge=2, le=16)] = 2
    """Number of models (k); an upload has a place for each. 2: the least beyond FedAvg."""

    def init(self, task: Task, key: Tensor) -> Clusters:
        keys = random.split(key, self.clusters)
        models = tuple(task.init(keys[j]) for j in range(self.clusters))
        return Clusters(models, np.zeros(self.clusters, np.float32))

    def model(self, state: Clusters) -> Any:
        return state.models[0]

    def choose(self, task: Task, state: Clusters, data: Any, key: Tensor) -> Any:
        """(f32[k], one for the model of least loss on the support set; that model)."""
        source = task.source.once()
        order = source.order(data, key)
        losses = []
        for model in state.models:
            total = np.float32(0.0)
            for step in range(source.steps(data)):
                batch = source.batch(data, order, step)
                total = total + task.loss(model, batch) * np.sum(batch.weight)
            losses.append(total)
        best = np.argmin(np.stack(losses))
        chosen = (np.arange(self.clusters) == best).astype(np.float32)
        return chosen, tree.map(lambda *same: _picked(chosen, same), *state.models)

    def client_update(
        self, task: Task, state: Clusters, data: Any, key: Tensor, kept: Any = ()
    ) -> ClientResult:
        chosen, start = self.choose(task, state, data, key)
        end, loss = self.descend(task, start, start, data, key)
        moved = tree.map(np.subtract, end, start)
        places = tuple(tree.map(lambda d, j=j: chosen[j] * d, moved) for j in range(self.clusters))
        return ClientResult(Clusters(places, chosen * CHOICE), self.weight(data), loss, kept)

    def memory(self, state: Clusters) -> Any:
        return tuple(self.server.init(model) for model in state.models)

    def server_update(self, state: Clusters, memory: Any, mean: Clusters) -> tuple[Clusters, Any]:
        shares = mean.chosen / CHOICE
        models, memories = [], []
        for j in range(self.clusters):
            # Below the ring's rounding: no device has chosen it.
            share = np.where(shares[j] > 1e-4, shares[j], np.inf)
            step = tree.map(lambda d, share=share: d / share, mean.models[j])
            model, its = Algorithm.server_update(self, state.models[j], memory[j], step)
            models.append(model)
            memories.append(its)
        return Clusters(tuple(models), state.chosen), tuple(memories)

    def personalise(
        self, task: Task, state: Clusters, data: Any, key: Tensor, kept: Any = ()
    ) -> Any:
        _, model = self.choose(task, state, data, key)
        return self.fine_tuned(task, model, data, key)


def _picked(chosen: Tensor, same: Any) -> Tensor:
    """The chosen one of k arrays: the others times zero."""
    total = chosen[0] * same[0]
    for j in range(1, len(same)):
        total = total + chosen[j] * same[j]
    return total
