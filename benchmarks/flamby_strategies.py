"""FLamby's strategies as Delian's algorithms, and their runs, for `flamby.py`.

What they differ in from Delian's own is here, as a user would write it: the loss of a Cox model
over a batch, batches of fresh order in each pass, server optimisers without bias corrections (and
AdaGrad with momentum), and SCAFFOLD with devices that weigh by their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import delian as dl
import numpy as np
from delian.core.learning.data import FederatedData
from delian.core.learning.data.federated_data import DataCard, DeviceData
from delian.core.learning.task import Metrics, in_training, outputs_of
from flamby_data import Centre, Suite

#: Local updates of a round, in all of their benchmarks.
UPDATES = 100
#: No update is as long.
CLIP = 1000.0
FAR = np.float32(-1e30)


@dataclass(frozen=True)
class Survival(dl.learn.Regression):
    """Cox's partial likelihood within each batch, with y as `flamby_data.times_of` has it.

    Rows of one time are in each other's risk sets; theirs are in those of later rows alone.
    """

    def loss(self, model: Any, batch: Any) -> Any:
        scores = in_training(model, batch).reshape(batch.y.shape)
        return np.sum(self.rows(scores, batch)) / np.maximum(np.sum(batch.weight), 1.0)

    def rows(self, scores: Any, batch: Any) -> Any:
        """The negative log likelihood of each row's event, f32[B]."""
        time = np.abs(batch.y)
        event = (batch.y > 0).astype(np.float32) * batch.weight
        at_risk = (time[None, :] >= time[:, None]) & (batch.weight[None, :] > 0)
        gaps = np.where(at_risk, scores[None, :] - scores[:, None], FAR)
        top = np.max(gaps, axis=1)
        return event * (top + np.log(np.sum(np.exp(gaps - top[:, None]), axis=1)))

    def metrics(self, model: Any, batch: Any) -> Metrics:
        scores = outputs_of(model, batch.x, batch.weight).reshape(batch.y.shape)
        total = np.sum(self.rows(scores, batch))
        return Metrics(total, total, np.sum(batch.weight))


@dataclass(frozen=True)
class Disease(dl.learn.Regression):
    """Logistic regression, with y of 0 and 1."""

    def loss(self, model: Any, batch: Any) -> Any:
        z = in_training(model, batch).reshape(batch.y.shape)
        losses = np.maximum(z, 0.0) - z * batch.y + np.log(1.0 + np.exp(-np.abs(z)))
        return np.sum(losses * batch.weight) / np.maximum(np.sum(batch.weight), 1.0)

    def metrics(self, model: Any, batch: Any) -> Metrics:
        z = outputs_of(model, batch.x, batch.weight).reshape(batch.y.shape)
        right = ((z > 0) == (batch.y > 0)).astype(np.float32)
        count = np.sum(batch.weight)
        return Metrics(self.loss(model, batch) * count, np.sum(right * batch.weight), count)


class Linear(NamedTuple):
    """One output a row."""

    weight: Any
    bias: Any

    def __call__(self, x: Any) -> Any:
        return x @ self.weight + self.bias


@dataclass(frozen=True)
class Theirs(dl.learn.Algorithm):
    """What their loops share: the loss, and batches in another order in each pass."""

    loss: str = "survival"

    def task(self, task: Any) -> Any:
        kind = Survival if self.loss == "survival" else Disease
        return kind(task.name, task.init, task.source)

    def batch(self, task: Any, data: Any, order: Any, step: Any) -> Any:
        if not self.local_steps:
            return task.source.batch(data, order, step)
        size, rows = task.source.batch_size, data.support
        batches = (rows + size - 1) // size
        key = dl.random.key(1)
        for place in range(3):
            key = dl.random.fold_in(key, order[place])
        key = dl.random.fold_in(key, step // batches)
        shuffled = dl.random.permutation(key, rows, data.x.shape[0])
        position = (step % batches) * size + np.arange(size)
        picked = shuffled[np.minimum(position, data.x.shape[0] - 1)]
        return task.source.rows(data, picked, position < rows, step)


@dataclass(frozen=True)
class FedAvg(Theirs, dl.learn.FedAvg):
    """FedAvg, and with a server's optimiser FedAdam, FedYogi and FedAdagrad."""


@dataclass(frozen=True)
class FedProx(Theirs, dl.learn.FedProx):
    """FedProx."""


@dataclass(frozen=True)
class Scaffold(Theirs, dl.learn.Scaffold):
    """SCAFFOLD, where devices weigh by their rows as in theirs."""

    def weight(self, data: Any) -> Any:
        return data.support.astype(np.float32)


def server(kind: str, rate: float, beta1: float, beta2: float, tau: float) -> Any:
    """Their server optimisers: kind is FedAdam, FedYogi or FedAdagrad."""

    def init(params: Any) -> Any:
        zeros = dl.tree.map(np.zeros_like, params)
        return zeros, zeros

    def squared(v: Any, g: Any) -> Any:
        if kind == "FedAdam":
            return beta2 * v + (1 - beta2) * g * g
        if kind == "FedYogi":
            return v - (1 - beta2) * g * g * np.sign(v - g * g)
        return v + g * g

    def update(gradient: Any, state: Any, params: Any) -> Any:
        mean = dl.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state[0], gradient)
        square = dl.tree.map(squared, state[1], gradient)
        step = dl.tree.map(lambda m, v: -rate * m / (np.sqrt(v) + tau), mean, square)
        return step, (mean, square)

    return dl.nn.Optimizer(init, update)


def _optimised(kind: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    def made(given: Mapping[str, Any]) -> dict[str, Any]:
        numbers = (given[k] for k in ("server_learning_rate", "beta1", "beta2", "tau"))
        return {"server": server(kind, *numbers)}

    return made


#: By their name: the algorithm, and what it takes of their hyperparameters.
STRATEGIES: dict[str, tuple[Any, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "FedAvg": (FedAvg, lambda given: {}),
    "FedProx": (FedProx, lambda given: {"proximal_mu": given["mu"]}),
    "Scaffold": (Scaffold, lambda given: {"local_learning_rate": given["learning_rate"]}),
    "FedAdam": (FedAvg, _optimised("FedAdam")),
    "FedYogi": (FedAvg, _optimised("FedYogi")),
    "FedAdagrad": (FedAvg, _optimised("FedAdagrad")),
}


def first_model(features: int, seed: int) -> Linear:
    """PyTorch's first weights of a linear layer, as theirs; without PyTorch of the same law."""
    try:
        import torch
    except ImportError:
        draw = np.random.default_rng(seed)
        bound = 1 / np.sqrt(features)
        values = draw.uniform(-bound, bound, features + 1).astype(np.float32)
        return Linear(values[:-1], values[-1])
    torch.manual_seed(seed)
    layer = torch.nn.Linear(features, 1)
    weight, bias = (p.detach().numpy().copy() for p in (layer.weight, layer.bias))
    return Linear(weight.reshape(-1), bias.reshape(()))


def federated(centres: tuple[Centre, ...]) -> FederatedData:
    """One device a centre; test rows are those that judge."""
    capacity = max(len(c.y) + len(c.test_y) for c in centres)
    devices = []
    for centre in centres:
        x = np.zeros((capacity, centre.x.shape[1]), np.float32)
        y = np.zeros(capacity, np.float32)
        rows = len(centre.y) + len(centre.test_y)
        x[:rows] = np.concatenate([centre.x, centre.test_x])
        y[:rows] = np.concatenate([centre.y, centre.test_y])
        devices.append(DeviceData(x, y, len(centre.y), len(centre.test_y)))
    counts = tuple(d.examples for d in devices)
    names = tuple(f"centre {k}" for k in range(len(devices)))
    card = DataCard(
        "FLamby", "centres", "patients", counts, ("all",), tuple((n,) for n in counts), True
    )
    features = centres[0].x.shape[1]
    return FederatedData(tuple(devices), frozenset(), (features,), 1, names, card)


SCENARIO = {
    "name": "flamby",
    "rounds": 1,
    "data": {
        "source": "npz",
        "targets": "numbers",
        "standardise": False,
        "partition": "natural",
        "last_batch": "full",
    },
    "model": {"name": "mlp", "hidden": []},
    "algorithm": {"name": "fedavg"},
    "fleet": {"dropout": 0.0},
    "round": {"over_selection": 1.0},
    "evaluation": {"every": 1000},
}


def _run(
    centres: tuple[Centre, ...], algorithm: Any, suite: Suite, rounds: int, seed: int
) -> Callable[[Any], Any]:
    """Trains; gives the function that scores rows [n, k]."""
    first = first_model(centres[0].x.shape[1], seed)
    masked = "secure" if len(centres) > 1 else "plain"
    run = dl.simulate(
        SCENARIO,
        data=federated(centres),
        model=lambda key, shape, classes: first,
        algorithm=algorithm,
        rounds=rounds,
        seed=seed,
        progress=False,
        settings={
            "algorithm.batch_size": suite.batch,
            "round.cohort": len(centres),
            "round.reports_min": len(centres),
            "privacy.clip": CLIP,
            "privacy.aggregation": masked,
        },
    )
    return lambda x: np.asarray(run.model.outputs(x.astype(np.float32))).reshape(-1)


def strategy(suite: Suite, name: str, seed: int) -> Callable[[Any], Any]:
    """A strategy with their hyperparameters."""
    kind, more = STRATEGIES[name]
    given = suite.settings[name]
    algorithm = kind(
        loss="survival" if suite.metric == "C-index" else "disease",
        local_steps=UPDATES,
        local=dl.nn.sgd(given["learning_rate"]),
        **more(given),
    )
    return _run(suite.centres, algorithm, suite, suite.rounds, seed)


def pooled(suite: Suite, seed: int) -> Callable[[Any], Any]:
    """All rows in one place: a federation of one device, with Adam."""
    algorithm = FedAvg(
        loss="survival" if suite.metric == "C-index" else "disease",
        epochs=suite.pooled_epochs,
        local=dl.nn.adam(suite.pooled_rate),
    )
    return _run((suite.pooled,), algorithm, suite, 1, seed)
