"""NVFlare's client API: a script for it runs here when its import is changed.

    import delian.client.nvflare as flare

`receive`, `send` and their kin are those of NVFlare 2.x's `nvflare.client` (its "Client API"). An
accuracy is a share of 1 here. The weight of an answer is its meta's NUM_STEPS_CURRENT_ROUND, as
NVFlare's own aggregators take it; without one all sites weigh the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.common.errors import DelianError
from .tasks import Task, tasks

STEPS = "NUM_STEPS_CURRENT_ROUND"


@dataclass
class FLModel:
    """What is received and sent: weights by name, metrics, and facts about them."""

    params: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    current_round: int | None = None
    total_rounds: int | None = None
    params_type: str | None = "FULL"
    optimizer_params: Mapping[str, Any] | None = None
    start_round: int | None = 0


class _State:
    """The task at hand."""

    def __init__(self) -> None:
        self.tasks: Iterator[Task] | None = None
        self.task: Task | None = None
        self.ended = False

    def go_on(self) -> bool:
        """Waits for the next task, where the last one was answered; False: there are no more."""
        if self.tasks is None:
            self.tasks = tasks()
        if self.task is None or self.task.answered:
            self.task = next(self.tasks, None)
            self.ended = self.task is None
        return not self.ended

    def now(self) -> Task:
        if self.task is None and not self.go_on():
            raise DelianError("there are no more tasks", "call it while flare.is_running()")
        assert self.task is not None
        return self.task


_state = _State()


def init(*_: Any, **__: Any) -> None:
    """Connects to the host. Raises NoHostError where there is none."""
    _state.tasks = tasks()


def is_running() -> bool:
    """Waits for a task; False: there are no more."""
    return _state.go_on()


def receive(timeout: float | None = None) -> FLModel:
    """The task's weights: torch tensors where the script has imported torch, else arrays."""
    task = _state.now()
    params = task.state_dict() if "torch" in sys.modules else task.weights
    return FLModel(params, current_round=task.round - 1)


def send(model: FLModel, clear_cache: bool = True) -> None:
    """Answers the task. Raises DelianError as `Task.send`."""
    examples = float(model.meta.get(STEPS, 1.0))
    metrics = {n: float(v) for n, v in (model.metrics or {}).items()}
    _state.now().send(model.params or None, examples=examples, metrics=metrics)


def is_train() -> bool:
    """Whether the task is to train."""
    return _state.now().purpose == "train"


def is_evaluate() -> bool:
    """Whether the task is to judge the weights."""
    return _state.now().purpose == "evaluate"


def is_submit_model() -> bool:
    """Whether the site's own model is asked for: never, it stays at the site."""
    return False


def system_info() -> dict[str, str]:
    """The run's and the site's names."""
    task = _state.now()
    return {"job_id": str(task.run), "site_name": f"site-{task.client}"}


def get_site_name() -> str:
    """The site's name."""
    return system_info()["site_name"]


def get_job_id() -> str:
    """The run's number."""
    return system_info()["job_id"]


def get_config() -> dict[str, Any]:
    """The run's settings."""
    return dict(_state.now().settings)


def shutdown() -> None:
    """Nothing: the host ends the script."""


class SummaryWriter:
    """Writes scalars into `scalars.jsonl` of the site's own folder: they stay at the site."""

    def add_scalar(self, tag: str, scalar: float, global_step: int | None = None, **_: Any) -> None:
        """One number under a name."""
        folder = _state.now().folder
        if folder is not None:
            line = json.dumps({"tag": tag, "value": float(scalar), "step": global_step})
            with (folder / "scalars.jsonl").open("a", encoding="utf-8") as file:
                print(line, file=file)

    def add_scalars(
        self, tag: str, scalars: Mapping[str, float], global_step: int | None = None, **_: Any
    ) -> None:
        """Several numbers."""
        for name, value in scalars.items():
            self.add_scalar(f"{tag}/{name}", value, global_step)

    def flush(self) -> None:
        """Nothing is held back."""
