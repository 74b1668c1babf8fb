"""Flower's client API: a ClientApp, or a NumPyClient, runs here when its imports are changed.

    from delian.client.flower import ArrayRecord, ClientApp, Context, Message, MetricRecord

and, at the end of the file, `app.run()`, or `start_client(client)`. Records and messages have what
such apps use of Flower 1.2x's (flwr.app, flwr.clientapp). `msg.content["config"]` and
`context.run_config` are the run's settings. Metrics may have prefixes (`eval_loss`, `train_loss`);
`eval_acc` is the accuracy, a share of 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.common.errors import DelianError
from .tasks import Task, tasks
from .trainers import judged
from .weights import named

Array = NDArray[Any]
EXAMPLES = "num-examples"


class ArrayRecord(dict[str, Array]):
    """Arrays by name, of a state_dict, a mapping or a list."""

    def __init__(self, arrays: Any = ()) -> None:
        super().__init__(named(arrays) if len(arrays) else {})

    def to_torch_state_dict(self) -> dict[str, Any]:
        """As tensors, which own their memory."""
        import torch

        return {name: torch.tensor(value) for name, value in self.items()}

    def to_numpy_ndarrays(self) -> list[Array]:
        """In their order."""
        return list(self.values())


class MetricRecord(dict[str, Any]):
    """Numbers by name."""


class ConfigRecord(dict[str, Any]):
    """Settings by name."""


class RecordDict(dict[str, Any]):
    """Records by name."""


@dataclass
class Message:
    """What an app is given, and what it answers."""

    content: RecordDict
    reply_to: Message | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Context:
    """Where an app runs."""

    node_config: dict[str, Any]
    run_config: Mapping[str, Any]
    node_id: int = 0
    run_id: int = 0
    state: RecordDict = field(default_factory=RecordDict)


Handler = Callable[[Message, Context], Message]


class NumPyClient:
    """A client that has its weights as a list of arrays."""

    def fit(
        self, parameters: list[Array], config: Mapping[str, Any]
    ) -> tuple[list[Array], int, Mapping[str, Any]]:
        """(weights, examples, metrics) after training."""
        raise DelianError("the client does not train", "give it a method fit(parameters, config)")

    def evaluate(
        self, parameters: list[Array], config: Mapping[str, Any]
    ) -> tuple[float, int, Mapping[str, Any]]:
        """(loss, examples, metrics) of the weights."""
        raise DelianError("the client does not judge", "give it evaluate(parameters, config)")

    def to_client(self) -> NumPyClient:
        """Itself."""
        return self


class ClientApp:
    """An app: functions that train and evaluate, or `client_fn(context)` that makes a client."""

    def __init__(self, client_fn: Callable[[Context], NumPyClient] | None = None) -> None:
        self._handlers: dict[str, Handler] = {}
        self._client_fn = client_fn

    def train(self, *_: Any) -> Callable[[Handler], Handler]:
        """Marks the function that trains."""
        return self._marked("train")

    def evaluate(self, *_: Any) -> Callable[[Handler], Handler]:
        """Marks the function that evaluates."""
        return self._marked("evaluate")

    def _marked(self, purpose: str) -> Callable[[Handler], Handler]:
        def mark(handler: Handler) -> Handler:
            self._handlers[purpose] = handler
            return handler

        return mark

    def run(self) -> None:
        """Serves the run's tasks until there are no more. Raises NoHostError, DelianError."""
        contexts: dict[int, Context] = {}
        for task in tasks():
            context = contexts.setdefault(task.client, _context(task))
            if self._client_fn is not None:
                _serve(self._client_fn(context).to_client(), task)
                continue
            handler = self._handlers.get(task.purpose)
            if handler is None:
                task.fail(f"the app has no function to {task.purpose}")
                continue
            arrays = ArrayRecord(task.state_dict() if _has_torch() else task.weights)
            content = {"arrays": arrays, "config": ConfigRecord(task.settings)}
            _answer(task, handler(Message(RecordDict(content)), context))


def start_client(client: NumPyClient, **_: Any) -> None:
    """Serves the run's tasks with one client."""
    for task in tasks():
        _serve(client.to_client(), task)


start_numpy_client = start_client


def _context(task: Task) -> Context:
    node = {"partition-id": task.client, "num-partitions": task.clients}
    return Context(node, task.settings, node_id=task.client, run_id=task.run)


def _answer(task: Task, reply: Any) -> None:
    """Sends what an app's function has answered. Raises DelianError."""
    if not isinstance(reply, Message):
        raise DelianError(f"the app gave {type(reply).__name__}", "return Message(content=...)")
    weights: Any = None
    numbers: dict[str, Any] = {}
    for record in reply.content.values():
        if isinstance(record, ArrayRecord):
            weights = record
        elif isinstance(record, MetricRecord):
            numbers |= record
    examples = float(numbers.pop(EXAMPLES, 1.0))
    found = judged(numbers)
    if task.purpose == "train":
        task.send(weights, examples=examples, loss=found.get("loss"))
    else:
        task.send(examples=examples, metrics=found)


def _serve(client: NumPyClient, task: Task) -> None:
    arrays: Sequence[Array] = [np.array(each) for each in task.arrays()]
    if task.purpose == "train":
        weights, examples, numbers = client.fit(list(arrays), task.settings)
        named_so = dict(zip(task.weights, weights, strict=True))
        task.send(named_so, examples=examples, loss=judged(numbers).get("loss"))
    else:
        loss, examples, numbers = client.evaluate(list(arrays), task.settings)
        task.send(examples=examples, metrics={"loss": loss, **judged(numbers)})


def _has_torch() -> bool:
    return "torch" in sys.modules
