"""A scenario whose devices train by a script of the user's, made ready."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...client.weights import named
from ...core.common.errors import DelianError
from ...core.compiler.ir import Array
from ...core.learning.bundle import Bundle
from ...core.learning.runtime import Score
from ...core.learning.scripts.script_bundle import build
from ...core.learning.scripts.script_data import data_of, judged_of, training_loss
from ...core.learning.scripts.script_spec import NAME, OtherArray, ScriptSpec
from ...core.node.scripts.script_process import Purpose, ScriptCommand, ScriptReply
from ...core.protocol.ports import Floats, Outcome, Vector
from ..federation.script_pool import ScriptPool
from ..federation.trace import checksum
from ..federation.training import Trained
from ..federation.training_threads import NoWorkers, Pending, Postponed, Workers
from ..scenario.data_settings import GivenModel, ScriptData, TorchModule
from ..scenario.scenario import Scenario
from .compiled_training import CompiledTraining
from .result import DeviceRecord
from .stage import Stage

#: Bytes of updates that are in flight in addition to those that scripts work on, and how many at
#: most. Scripts take longer than events: all of a round are handed to the pool at once.
AHEAD_BYTES, AHEAD_MAX = 1 << 28, 64


class ScriptStage(Stage):
    """A stage whose devices' data only a script sees. `pool`: its processes.

    processes: how many run at once. Other arguments are those of Stage.
    """

    def __init__(self, scenario: Scenario, *given: Any, processes: int) -> None:
        self.file = script_file(scenario)
        self.round = 0
        self._rows: dict[int, int] = {}
        super().__init__(scenario, *given)
        manifest = self.bundle.manifest
        self.settings = script_settings(scenario)
        self.pool = ScriptPool(
            ScriptCommand(command_of(self.settings, self.file)),
            manifest.state,
            manifest.script,
            processes=processes,
            clients=len(self.data.devices),
            timeout_s=self.settings.timeout_s,
            each=self.settings.process_each,
            ray=self.settings.executor == "ray",
        )

    def _traced(self) -> Bundle:
        return self._build()

    def _build(self) -> Bundle:
        scenario, settings = self.scenario, script_settings(self.scenario)
        weights, others = parted(first_weights(scenario, self._own_model))
        spec = ScriptSpec(
            script_name(scenario), dict(settings.settings), tuple(settings.metrics), others
        )
        plan, chain = scenario.plan(), self.chain()
        noised = chain.get("noise") is not None
        return build(
            weights,
            spec,
            clients_max=plan.selected,
            examples_max=settings.examples_max,
            equal=settings.equal_weights,
            chain=chain,
            releases=plan.rounds if noised else 1,
            survivors=plan.reports_min if noised else 1,
        )

    def ask(
        self, purpose: Purpose, round: int, device: int, weights: Floats, key: Vector
    ) -> list[Array]:
        """What programs take of a device's answer. Raises DelianError."""
        return self.data_of(self.pool.ask(purpose, round, device, weights, key), weights)

    def data_of(self, reply: ScriptReply, weights: Floats) -> list[Array]:
        """The data that programs take of an answer."""
        judged = judged_of(reply.metrics, self.bundle.manifest.metrics)
        loss = training_loss(reply.loss, judged)
        return data_of(self.runtime, weights, reply.weights, reply.examples, loss, judged)

    def trained_on(self, device: int, rows: int) -> None:
        """Notes how many examples a device's script has trained on."""
        self._rows[device] = rows

    def _judge(
        self, device: int, state: Array, model: Array, kept: Array | None
    ) -> tuple[Score, Score]:
        key = self.key(device)
        data = self.ask("evaluate", self.round, device, state, key)
        score = self.runtime.evaluate(model, data, key)
        return score, score

    @property
    def script(self) -> tuple[str, str]:
        command = shlex.join(command_of(self.settings, self.file.absolute()))
        return script_name(self.scenario), command

    def workers(self, threads: int) -> Workers:
        """Threads that judge, one more than processes: each has its next task at once.

        What trains are the pool's.
        """
        return Workers(threads + 1, "delian-judge")

    def card(self) -> dict[str, Any]:
        """What the script said of its data: how many examples each client has trained on."""
        counts = [self._rows.get(device, 0) for device in range(len(self.data.devices))]
        known = {"examples": counts, "examples_total": sum(counts)}
        return {**super().card(), **known}

    def devices(self, rounds_of: Sequence[int]) -> tuple[DeviceRecord, ...]:
        made = super().devices(rounds_of)
        return tuple(replace(each, examples=self._rows.get(each.device, 0)) for each in made)

    def training(
        self, workers: Workers | NoWorkers, on_update: Callable[[int, int], None]
    ) -> ScriptTraining:
        return ScriptTraining(self, *self._trained(workers, on_update))

    def close(self) -> None:
        """Ends the script's processes."""
        self.pool.close()


class ScriptTraining(CompiledTraining):
    """What a script trains, as the federation sees it."""

    def __init__(self, stage: ScriptStage, *given: Any) -> None:
        super().__init__(*given)
        self._stage, self._devices = stage, stage.data.training

    @property
    def pure(self) -> bool:
        return False  # a script may keep what it likes

    @property
    def foreseeable(self) -> bool:
        return True  # as a device's that drops out later, a script's work is lost

    @property
    def ahead(self) -> int:
        return min(max(2, AHEAD_BYTES // self.runtime.ring.nbytes), AHEAD_MAX)

    def flops(self, device: int, program: str) -> float:
        return self._stage.settings.flops

    def _judge(self, device: int, weights: Floats, key: Vector, plan: Any) -> Outcome:
        from ...core.learning import metrics

        data = self._stage.ask("evaluate", self._stage.round, self._of(device), weights, key)
        return metrics.judge(self.runtime, weights, data, key, plan)[1]

    def submit(
        self, device: int, weights: Floats, key: Vector
    ) -> Pending[Outcome] | Postponed[Outcome]:
        stage = self._stage
        made = partial(self._made, device, weights, key)
        whose = (stage.round + 1, self._of(device), weights, key)
        if isinstance(self.workers, NoWorkers):
            return self.workers.submit(lambda: made(stage.pool.ask("train", *whose)))
        return stage.pool.submit("train", *whose, made)

    def _made(self, device: int, weights: Floats, key: Vector, reply: ScriptReply) -> Outcome:
        """The update of an answer."""
        stage = self._stage
        stage.trained_on(self._of(device), int(reply.examples))
        data = stage.data_of(reply, weights)
        update = self.runtime.client_update(weights, data, key)
        self.counted()
        vector = update.vector
        return Trained(vector, int(reply.examples), update.loss, update.finite, checksum(vector))

    def _of(self, device: int) -> int:
        return self._devices[device]

    def round_over(self) -> None:
        super().round_over()
        self._stage.round += 1


def script_settings(scenario: Scenario) -> ScriptData:
    """The scenario's table of the script."""
    assert isinstance(scenario.data, ScriptData)
    return scenario.data


def script_file(scenario: Scenario) -> Path:
    """The scenario's script. Raises DelianError."""
    file = scenario.data_file
    if file is None or not file.is_file():
        raise DelianError(
            f"there is no script {file or ''}".rstrip(), "name a Python file: data.path, or --data"
        )
    return file


def command_of(settings: ScriptData, file: Path) -> tuple[str, ...]:
    """What runs the script."""
    return (settings.python or sys.executable, str(file), *settings.arguments)


def script_name(scenario: Scenario) -> str:
    """A script's name as runs and owners use it: that of its scenario."""
    name = scenario.name.lower()
    return name if NAME.fullmatch(name) else "script"


def first_weights(scenario: Scenario, given: Any) -> dict[str, Array]:
    """All arrays of the model that a script trains, by name. Raises DelianError."""
    if isinstance(scenario.model, GivenModel):
        if given is None:
            return own_first_weights(scenario)
        return named(given() if isinstance(given, type) else given)
    if isinstance(scenario.model, TorchModule):
        from ..scenario.torch_modules import fresh_module

        return named(fresh_module(scenario))
    from ...core.learning.scripts.weight_files import read_weights

    assert scenario.weights_file is not None
    return read_weights(scenario.weights_file)


def own_first_weights(scenario: Scenario) -> dict[str, Array]:
    """What the script itself begins with: `client.tasks(model)`. Raises DelianError."""
    settings, file = script_settings(scenario), script_file(scenario)
    spec = ScriptSpec(script_name(scenario), dict(settings.settings), tuple(settings.metrics))
    with ScriptPool(
        ScriptCommand(command_of(settings, file)),
        (),
        spec.to_json(),
        processes=1,
        clients=scenario.fleet.devices or 1,
        timeout_s=settings.timeout_s,
        each=settings.process_each,
    ) as pool:
        try:
            return pool.first()
        except DelianError as fault:
            raise DelianError(
                f"the script's first weights: {fault.message}",
                "write client.tasks(model); or give --torch model.py:Net, a file (model.name ="
                " script, model.weights), or dl.simulate(..., model=net)",
            ) from None


def parted(arrays: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, OtherArray]]:
    """The floats, which are averaged, and the others, of which each site has its own."""
    floats = {n: a for n, a in arrays.items() if a.dtype.kind == "f"}
    others = {
        n: OtherArray(str(a.dtype), a.shape, tuple(int(v) for v in np.ravel(a)))
        for n, a in arrays.items()
        if a.dtype.kind != "f"
    }
    return floats, others
