"""A scenario, run: data, bundle, federation, and what its devices' models are worth after each
round.

The federation trains through the tiers' protocol (`federation`). Accuracy is measured beside it, by
an observer who sees every device, which no coordinator does: the shared model on each device's
query set, and the device's own model, made from the shared one by the bundle's `personalise`.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core import random
from ..core.backends import Backend
from ..core.backends.native import toolchain
from ..core.bundle import Bundle
from ..core.errors import DelianError
from ..core.ir import Array
from ..core.learn import Algorithm, metrics
from ..core.learn.build import build
from ..core.ops.control import block_cost
from ..core.ports import SECOND, Floats, Outcome, Vector
from ..core.privacy.ring import RingPlan
from ..core.runtime import Runtime, Score
from . import recipes, settings
from .datasets import load_data
from .federation import Federation, FederationPlan
from .fleet import Fleet
from .host import cores, machine_facts, peak_rss_mib
from .network import LinkProfile
from .records import RoundRecord as Attempt
from .report import spread_of
from .result import (
    DeviceRecord,
    Event,
    Phase,
    RoundFinished,
    RoundRecord,
    SimulationResult,
    Spread,
    Started,
    UpdateFinished,
)
from .scenario import Link, Scenario

#: Episodes that a device's few-shot accuracy is the mean of.
EPISODES_JUDGED = 5
GAVE_UP_HINT = "lower round.min_reports, raise round.deadline_s, or mend the network"
#: Streams of the scenario's seed, so that evaluation draws nothing that training draws.
EVALUATION_STREAM = 0x6576616C


def simulate(
    scenario: Scenario,
    *,
    algorithm: Algorithm | None = None,
    data_path: Path | None = None,
    threads: int | None = None,
    backend: Backend = "native",
    on_event: Callable[[Event], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
) -> SimulationResult:
    """Runs a scenario to its last round, or until `stop()` says so.

    Args:
        algorithm: stands in for the scenario's. Of the scenario's settings the batch size stays,
        and the number of local steps that virtual time counts. data_path: stands in for the
        scenario's own data file. threads: how many devices train at once; the result is the same
        for any number. backend: "native" (compiled C) or "reference" (NumPy). on_event: told of
        everything that a progress view shows; called from several threads, one at a time. stop:
        asked between devices; the round's bookkeeping is done before the run ends.

    Raises:
        DelianError: the data, the model or the scenario do not fit together.
    """
    run = _Simulation(scenario, algorithm, data_path, threads or cores(), backend, on_event, stop)
    return run.run()


class _Simulation:
    def __init__(
        self,
        scenario: Scenario,
        algorithm: Algorithm | None,
        data_path: Path | None,
        threads: int,
        backend: Backend,
        on_event: Callable[[Event], None],
        stop: Callable[[], bool],
    ) -> None:
        self.began = time.perf_counter()
        self.scenario, self.threads, self.backend, self.stop = scenario, threads, backend, stop
        self.own_algorithm = algorithm
        self._tell, self._telling = on_event, threading.Lock()
        self.walls: dict[str, Any] = {"evaluation_seconds": 0.0}
        self.data = load_data(scenario, data_path)
        self._say(Started(scenario, len(self.data.devices), len(self.data.held_out)))
        self.arrays = [recipes.arrays(scenario, d) for d in self.data.devices]
        self._say(Phase("tracing the algorithm"))
        start = time.perf_counter()
        bundle = self._build()
        # Devices are sent the bundle bare; the first weights are needed in the first round only.
        self.first, self.bundle = bundle.weights, bundle.bare()
        self.walls["trace_seconds"] = time.perf_counter() - start
        self._say(Phase(f"compiling {len(self.bundle.programs)} programs"))
        start = time.perf_counter()
        self.runtime = Runtime(self.bundle, backend)
        self.walls["compile_seconds"] = time.perf_counter() - start
        self._say(Phase("round 1"))
        self.rounds: list[RoundRecord] = []
        self.applied = 0
        self.rounds_of = [0] * len(self.data.devices)
        self.scores: dict[int, tuple[Score, Score]] = {}
        self.judged = self._judged()

    def run(self) -> SimulationResult:
        members = self.data.training
        with ThreadPoolExecutor(self.threads, thread_name_prefix="delian-train") as pool:
            self.pool = pool
            training = CompiledTraining(
                self.runtime,
                self.first,
                [self.arrays[i] for i in members],
                partial(recipes.local_steps, self.scenario),
                pool,
                self._update_finished,
            )
            plan = self._plan(training)
            del self.first
            self.federation = Federation(plan, training, self.scenario.seed, self.threads)
            self.training = training
            start = time.perf_counter()
            result = self.federation.run(self._on_attempt)
            self.walls["rounds_seconds"] = time.perf_counter() - start
        if result.failed and not self.applied:
            raise DelianError(f"the run gave up in its first round: {result.failed}", GAVE_UP_HINT)
        return SimulationResult(
            scenario=self.scenario,
            rounds=tuple(self.rounds),
            devices=self._devices(),
            parameters=self.bundle.manifest.dimension,
            trace_hash=result.trace_hash,
            data=self.data.card.to_json(),
            host=self._host(result.updates),
            stopped_by="failure" if result.failed else "interrupt" if result.stopped else None,
            why=result.failed,
            algorithm=self._own_settings(),
            bundle=replace(self.bundle, weights=self.training.state),
        )

    # ------------------------------------------------------------ before

    def _build(self) -> Bundle:
        task, example = recipes.task(self.scenario, self.data)
        return build(
            task,
            self.own_algorithm or recipes.algorithm(self.scenario.algorithm),
            self.arrays[0],
            example=example,
            clip=self.scenario.privacy.clip,
            clients_max=self._selected(),
            weight_max=recipes.weight_max(self.scenario, self.data),
            seed=self.scenario.seed,
        )

    def _own_settings(self) -> dict[str, Any] | None:
        """The caller's algorithm as a report shows it: its name, and its numbers by name."""
        own = self.own_algorithm
        if own is None:
            return None
        settings = {f.name: getattr(own, f.name) for f in dataclasses.fields(own)}
        numbers = {k: v for k, v in settings.items() if isinstance(v, int | float | str)}
        return {
            "name": type(own).__name__,
            "batch_size": self.scenario.algorithm.batch_size,
            **numbers,
        }

    def _selected(self) -> int:
        """Devices tasked in a round: the most that one ring sum holds."""
        cohort = self.scenario.round
        return max(cohort.devices, int(np.ceil(cohort.devices * cohort.over_selection - 1e-9)))

    def _plan(self, training: CompiledTraining) -> FederationPlan:
        scenario = self.scenario
        mix = scenario.fleet.mix
        fleet = Fleet(
            devices=len(self.data.training),
            edges=min(scenario.fleet.edges, len(self.data.training)),
            shares={"phone": mix.phone, "laptop": mix.laptop, "board": mix.board},
            link=_link(scenario.network.device_edge),
            dropout=scenario.fleet.dropout,
        )
        return FederationPlan(
            rounds=scenario.rounds,
            cohort=scenario.round.devices,
            over_selection=scenario.round.over_selection,
            reports_min=scenario.round.min_reports,
            round_s=scenario.round.deadline_s,
            ring=training.ring,
            fleet=fleet,
            edge_link=_link(scenario.network.edge_cloud),
        )

    def _judged(self) -> tuple[int, ...]:
        """The devices that are evaluated: all, or the held-out ones and then others in order."""
        wanted = self.scenario.evaluation.devices
        everyone = range(len(self.data.devices))
        if wanted is None or wanted >= len(everyone):
            return tuple(everyone)
        held_out = sorted(self.data.held_out)
        return tuple(sorted([*held_out, *self.data.training][:wanted]))

    # ------------------------------------------------------------ while it runs

    def _update_finished(self, done: int, round_size: int) -> None:
        self._say(UpdateFinished(self.applied + 1, done, round_size))
        if self.stop():
            self.federation.stop()

    def _on_attempt(self, attempt: Attempt) -> None:
        members = self.data.training
        for device in attempt.reported:
            self.rounds_of[members[device]] += 1
        last = attempt.round == self.scenario.rounds
        due = attempt.succeeded and (last or attempt.round % self.scenario.evaluation.every == 0)
        scores = self._evaluate(attempt.round) if due and not self.stop() else None
        record = _record(attempt, scores)
        self.rounds.append(record)
        self.applied += record.applied
        if "first_round_seconds" not in self.walls:
            self.walls["first_round_seconds"] = time.perf_counter() - self.began
        self.training.round_over()
        self._say(RoundFinished(record))
        if self.stop():
            self.federation.stop()

    def _evaluate(self, round: int) -> list[tuple[Score, Score]] | None:
        """Every judged device before and after personalisation; None when stopped on the way."""
        start = time.perf_counter()
        state = self.training.state
        model = self.runtime.model_of(state)
        futures = [self.pool.submit(self._judge, d, state, model) for d in self.judged]
        scores = []
        for done, future in enumerate(futures):
            if self.stop():
                for rest in futures[done:]:
                    rest.cancel()
                return None
            scores.append(future.result())
            self._say(UpdateFinished(round, done + 1, len(futures), evaluating=True))
        self.scores = dict(zip(self.judged, scores, strict=True))
        self.walls["evaluation_seconds"] += time.perf_counter() - start
        return scores

    def _judge(self, device: int, state: Array, model: Array) -> tuple[Score, Score]:
        few_shot = isinstance(self.scenario.data, settings.OmniglotData)
        before, after = [], []
        for episode in range(EPISODES_JUDGED if few_shot else 1):
            # The same key each round: curves then differ by what was learnt, not by what was drawn.
            key = _key(self.scenario.seed, EVALUATION_STREAM, device, episode)
            own = self.runtime.personalise(state, self.arrays[device], key)
            before.append(self.runtime.evaluate(model, self.arrays[device], key))
            after.append(self.runtime.evaluate(own, self.arrays[device], key))
        return _total(before), _total(after)

    def _say(self, event: Event) -> None:
        with self._telling:
            self._tell(event)

    # ------------------------------------------------------------ after

    def _devices(self) -> tuple[DeviceRecord, ...]:
        members = {d: i for i, d in enumerate(self.data.training)}
        records = []
        for device, name in enumerate(self.data.names):
            before, after = self.scores.get(device, (None, None))
            records.append(
                DeviceRecord(
                    device=device,
                    name=name,
                    edge=members.get(device, device) % self.scenario.fleet.edges,
                    examples=self.data.devices[device].examples,
                    held_out=device in self.data.held_out,
                    rounds=self.rounds_of[device],
                    accuracy_before=before.accuracy if before else None,
                    accuracy_after=after.accuracy if after else None,
                )
            )
        return tuple(records)

    def _host(self, updates: int) -> dict[str, Any]:
        training = self.walls["rounds_seconds"] - self.walls["evaluation_seconds"]
        return {
            **machine_facts(),
            "threads": self.threads,
            **_computed_by(self.backend),
            "total_seconds": time.perf_counter() - self.began,
            **self.walls,
            "updates": updates,
            "updates_per_second": updates / training if training > 0 else None,
            "peak_rss_mib": peak_rss_mib(),
        }


class CompiledTraining:
    """A compiled bundle as the federation sees it; `state` is the newest. Devices are numbered as
    the fleet's.
    """

    def __init__(
        self,
        runtime: Runtime,
        weights: Array,
        arrays: Sequence[Any],
        local_steps: Callable[[Any], int],
        pool: ThreadPoolExecutor,
        on_update: Callable[[int, int], None],
    ) -> None:
        self.runtime, self.pool, self.on_update = runtime, pool, on_update
        self.arrays, self.local_steps = arrays, local_steps
        self.state = weights
        self.ring = runtime.ring
        programs = runtime.bundle.programs
        cost = {name: float(block_cost(program.body)) for name, program in programs.items()}
        judged = cost["personalise"] + 2 * cost["evaluate"]
        self._flops = {"client_update": cost["client_update"], "evaluate": judged}
        self._done, self._counting = 0, threading.Lock()

    @property
    def bundle(self) -> bytes:
        return self.runtime.bundle.to_bytes()

    def initial(self) -> Floats:
        return self.state

    def flops(self, device: int, program: str) -> float:
        """The cost model counts one round of each loop, which is one local step."""
        steps = self.local_steps(self.arrays[device]) if program == "client_update" else 1
        return self._flops[program] * steps

    def submit(self, device: int, weights: Floats, key: Vector) -> Future[Outcome]:
        return self.pool.submit(self._train, device, weights, key)

    def evaluate(
        self, device: int, weights: Floats, key: Vector, plan: RingPlan
    ) -> Future[Outcome]:
        return self.pool.submit(self._judge, device, weights, key, plan)

    def _judge(self, device: int, weights: Floats, key: Vector, plan: RingPlan) -> Outcome:
        return metrics.judge(self.runtime, weights, self.arrays[device], key, plan)[1]

    def server_update(
        self, weights: Floats, memory: bytes, mean: Floats, weight: float
    ) -> tuple[Floats, bytes]:
        remembered = self.runtime.memory_from(memory)
        self.state, remembered = self.runtime.server_update(weights, remembered, mean)
        return self.state, self.runtime.memory_bytes(remembered)

    def round_over(self) -> None:
        """Starts counting the next round's updates."""
        with self._counting:
            self._done = 0

    def _train(self, device: int, weights: Floats, key: Vector) -> Outcome:
        update = self.runtime.client_update(weights, self.arrays[device], key)
        with self._counting:
            self._done += 1
            done = self._done
        self.on_update(done, self.runtime.manifest.clients_max)
        return Outcome(
            vector=update.vector,
            examples=recipes.examples(self.arrays[device]),
            loss=update.loss,
            finite=update.finite,
        )


def _computed_by(backend: Backend) -> dict[str, str]:
    """The back end that ran, which is not the one asked for where there is no compiler."""
    found = toolchain.find() if backend == "native" else None
    if found is None:
        return {"backend": "reference"}
    return {"backend": "native", "compiler": found.name}


def _link(link: Link) -> LinkProfile:
    return LinkProfile(
        latency_ms=link.latency_ms,
        jitter_ms=link.jitter_ms,
        up_mbps=link.bandwidth_mbps,
        down_mbps=link.bandwidth_mbps,
        loss=link.loss,
    )


def _key(seed: int, *names: int) -> Array:
    key = random.key(seed)
    for name in names:
        key = random.fold_in(key, name)
    return key


def _total(scores: Sequence[Score]) -> Score:
    return Score(
        sum(s.loss for s in scores), sum(s.correct for s in scores), sum(s.count for s in scores)
    )


def _record(attempt: Attempt, scores: list[tuple[Score, Score]] | None) -> RoundRecord:
    """A round as reports show it: the protocol's facts, and the observer's."""
    virtual = (attempt.ended_ns - attempt.started_ns) / SECOND
    seconds = dict(attempt.seconds)
    seconds["waiting"] = max(0.0, virtual * len(attempt.selected) - sum(seconds.values()))
    judged: dict[str, Any] = {}
    if scores:
        for name, column in (("global", 0), ("personalised", 1)):
            counted = [pair[column] for pair in scores if pair[column].count]
            accuracies = [s.accuracy for s in counted]
            judged[f"{name}_accuracy"] = sum(accuracies) / len(accuracies)
            judged[f"{name}_loss"] = sum(s.loss / s.count for s in counted) / len(counted)
            judged[f"{name}_spread"] = Spread(*spread_of(accuracies))
    return RoundRecord(
        round=attempt.round,
        selected=len(attempt.selected),
        reported=len(attempt.reported),
        dropped=len(attempt.dropped),
        late=len(attempt.late),
        refused=len(attempt.refused),
        spare=len(attempt.spare),
        applied=attempt.succeeded,
        bytes=dict(attempt.bytes),
        seconds=seconds,
        virtual_seconds=virtual,
        training_loss=attempt.loss,
        **judged,
    )
