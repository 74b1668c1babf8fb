"""One run in one process.

Bundle, federation, and what its devices' models are worth after each round.

The federation trains through the tiers' protocol (`federation`); accuracy is measured separately by
the observer of `stage`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.common.errors import DelianError
from ...core.common.processors import cores
from ...core.compiler import debugging
from ...core.compiler.backends import Backend
from ...core.compiler.ir import Array
from ...core.learning.cohort_program import SIZE_DEFAULT, gathers
from ...core.learning.data import FederatedData
from ...core.learning.windows.window_training import first_rows
from ...core.protocol.ports import SECOND
from ...core.wire.round_pb2 import FailureReason
from ..federation.federation import Federation
from ..federation.process_tuning import keep_freed_memory
from ..federation.round_records import Result as Ended
from ..federation.round_records import RoundRecord as Attempt
from ..federation.training_threads import NoWorkers, Workers
from ..resume.history import UNKEPT
from ..resume.kept_run import KeptRun
from ..scenario.scenario import Scenario
from .baselines import baselines
from .class_view import class_view
from .result import (
    Baseline,
    Event,
    Phase,
    Replayed,
    Replaying,
    RoundFinished,
    RoundRecord,
    SimulationResult,
    StoppedBy,
    Unfinished,
    UpdateFinished,
)
from .stage import stage_of

if TYPE_CHECKING:
    from ...core.learning import Algorithm

#: How often a run that goes on says what there is of it, after a round; less often where to keep
#: that takes more than so large a share of its time.
UNFINISHED_S = 60.0
UNFINISHED_SHARE = 0.05
GAVE_UP_HINT = "lower round.reports_min, raise round.timeout_ms, or mend the network"
NOT_FINITE_HINT = (
    "lower algorithm.learning_rate, or look in the model for a division by zero and the like:"
    " DELIAN_DEBUG=1 says at which line"
)


class Simulation:
    """A run to its last round.

    The arguments are those of `simulate`, with data that were read; began: when, by
    `time.perf_counter`; compares: whether there are baselines.
    """

    def __init__(
        self,
        scenario: Scenario,
        algorithm: Algorithm | None,
        data: FederatedData,
        *,
        threads: int | None,
        backend: Backend,
        on_event: Callable[[Event], None],
        stop: Callable[[], bool],
        began: float,
        resume: Path | None,
        forget: bool,
        model: Any = None,
        compares: bool = False,
    ) -> None:
        at_once = threads or (SIZE_DEFAULT if gathers(backend) else cores())
        self.threads = 1 if debugging.on else at_once
        self.stop, self._resume, self._forget = stop, resume, forget
        self._tell, self._telling = on_event, threading.Lock()
        given = (algorithm, data, backend, self._say, began, model)
        self.stage = stage_of(scenario, *given, processes=self.threads)
        self.scenario = self.stage.scenario  # as its data has it
        self._say(Phase("round 1"))
        self.rounds: list[RoundRecord] = []
        self._first = self.stage.first if compares else None
        self.classes: dict[str, Any] | None = None
        self.baselines: dict[str, Baseline] | None = None
        self.kept: KeptRun | None = None
        self.applied, self._diverged = 0, 0
        self._member = {d: i for i, d in enumerate(self.stage.data.training)}
        self.rounds_of = [0] * len(self.stage.data.devices)

    def run(self) -> SimulationResult:
        with contextlib.closing(self.stage):
            return self._run()

    def _run(self) -> SimulationResult:
        stage = self.stage
        keep_freed_memory()
        with self._workers() as workers:
            self.workers = workers
            self.training = stage.training(workers, self._update_finished)
            plan = stage.plan(self.training.ring)
            del stage.first
            if self._resume is not None:
                self.kept = KeptRun(self._resume, stage, self.training)
            history = UNKEPT if self.kept is None else self.kept.log
            if history.replays:
                self._say(Replaying(0, self.kept.rounds if self.kept is not None else 0))
            self.federation = Federation(
                plan, self.training, self.scenario.seed, self.threads, history=history
            )
            self._start = time.perf_counter()
            self._next = self._start + UNFINISHED_S
            try:
                ended = self.federation.run(self._on_attempt)
                if self.kept is not None and history.replays:
                    self.kept.ended_before(ended.stopped)
                stage.walls["rounds_seconds"] = time.perf_counter() - self._start
                adapted = stage.adapt(self.training.state, workers, self.stop, self._own)
                if adapted and not ended.stopped:
                    self._compare(workers)
            except BaseException:
                if self.kept is not None:
                    self.kept.over(resumes=True)
                raise
        stopped = ended.stopped or not adapted
        if self.kept is not None:
            goes_on = not self._forget and not ended.failed
            self.kept.over(resumes=stopped or goes_on, stopped=stopped)
        why, hint = ended.failed, ""
        if why:
            why, hint = gave_up(why, self._diverged)
        if why and not self.applied:
            raise DelianError(f"the run gave up in its first round: {why}", hint)
        stopped_by: StoppedBy | None
        stopped_by = "failure" if ended.failed else "interrupt" if stopped else None
        return self._result(ended, stopped_by, why or ended.early, hint)

    def _compare(self, workers: Workers | NoWorkers) -> None:
        """What is computed once, at the end: accuracies by class, baselines."""
        stage, began = self.stage, time.perf_counter()
        if stage.scores:
            self.classes = class_view(stage, self.training.state, workers, self.stop, self._own)
        stage.walls["classes_seconds"] = time.perf_counter() - began
        if self._first is None:
            return
        began = time.perf_counter()
        updates = sum(r.reported for r in self.rounds if r.applied)
        self.baselines = baselines(stage, self._first, self.applied, updates, workers, self.stop)
        stage.walls["baselines_seconds"] = time.perf_counter() - began

    def personalised(self, device: int, state: Array) -> Array:
        """The model of a device of the data after it adapts the state, f32[M]."""
        key = self.stage.key(device)
        rows = first_rows(self.stage.held(device), key)
        return self.stage.runtime.personalise(state, rows, key, self._own(device))

    def _workers(self) -> Workers | NoWorkers:
        """The threads that train. The same judge: each has memory that programs work in."""
        if debugging.on:
            return NoWorkers()
        return self.stage.workers(self.threads)

    def _result(
        self, result: Ended, stopped_by: StoppedBy | None, why: str = "", hint: str = ""
    ) -> SimulationResult:
        stage, kept = self.stage, self.kept.rounds if self.kept is not None else 0
        return SimulationResult(
            scenario=self.scenario,
            rounds=tuple(self.rounds),
            devices=stage.devices(self.rounds_of),
            parameters=stage.bundle.manifest.dimension,
            trace_hash=result.trace_hash,
            data=stage.card(),
            host=stage.host(self.threads, result.updates),
            stopped_by=stopped_by,
            why=why,
            hint=hint,
            evaluations=result.evaluations,
            algorithm=stage.own_settings(),
            bundle=replace(stage.bundle, weights=self.training.state),
            chain=str(stage.composition),
            classes=self.classes,
            baselines=self.baselines,
            resumable=self.rounds[kept - 1].round if kept else 0,
            not_resumable=self.kept.why_not if self.kept is not None else "",
        )

    def _update_finished(self, done: int, round_size: int) -> None:
        self._say(UpdateFinished(self.applied + 1, done, round_size))
        if self._stops_in_round():
            self.federation.stop()

    def _stops_in_round(self) -> bool:
        """Whether the round that goes on is given up."""
        return self.stop() and not (self.kept is not None and self.kept.needs_the_round)

    def _on_attempt(self, attempt: Attempt) -> None:
        stage = self.stage
        members = stage.data.training
        for device in attempt.reported:
            self.rounds_of[members[device]] += 1
        if self.kept is not None and self.kept.log.replays:
            self._again(self.kept, attempt)
            return
        due = attempt.succeeded and stage.due(attempt.round)
        state, workers = self.training.state, self.workers
        scores = (
            stage.evaluate(attempt.round, state, workers, self._stops_in_round, self._own)
            if due and not self._stops_in_round()
            else None
        )
        judged = stage.judgements(scores)
        record = self._note(attempt, judged)
        if "first_round_seconds" not in stage.walls:
            stage.walls["first_round_seconds"] = time.perf_counter() - stage.began
        self.training.round_over()
        self._say(RoundFinished(record))
        if self.kept is not None and (scores is not None or not due):
            seconds = time.perf_counter() - self._start
            # One that is over within seconds is kept nowhere.
            last = not self._forget and self.kept.rounds > 0
            last &= attempt.round == self.scenario.rounds
            self.kept.round_over(self.federation, judged, seconds, last or self.stop())
        now = time.perf_counter()
        if now >= self._next:
            stage.walls["rounds_seconds"] = now - self._start
            self._say(Unfinished(self._result(self.federation.so_far(), "unfinished")))
            took = time.perf_counter() - now
            self._next = now + max(UNFINISHED_S, took / UNFINISHED_SHARE)
        if self.stop():
            self.federation.stop()

    def _note(self, attempt: Attempt, judged: Mapping[str, Any]) -> RoundRecord:
        record = _record(attempt, judged)
        self.rounds.append(record)
        self.applied += record.applied
        self._diverged = list(attempt.refused.values()).count(FailureReason.NON_FINITE)
        return record

    def _again(self, kept: KeptRun, attempt: Attempt) -> None:
        """A round of a run that is resumed, which was over before.

        Raises KeyboardInterrupt where it is stopped: there is nothing to report on yet.
        """
        if self.stop():
            raise KeyboardInterrupt
        record = self._note(attempt, kept.round_again(self.federation))
        self._say(Replaying(len(self.rounds), kept.rounds))
        if kept.log.replays:
            return
        walls = self.stage.walls
        now = time.perf_counter()
        walls["replayed_rounds"], walls["replay_seconds"] = len(self.rounds), now - self._start
        # As if the time between had not been.
        self._start = now - walls["rounds_seconds"]
        self._next = now + UNFINISHED_S
        self._say(Replayed(record, tuple(self.rounds)))

    def _own(self, device: int) -> Array | None:
        """The client state of a device, by its number in the data: held-out ones have none."""
        member = self._member.get(device)
        return None if member is None else self.training.own(member)

    def _say(self, event: Event) -> None:
        with self._telling:
            self._tell(event)


def gave_up(why: str, diverged: int) -> tuple[str, str]:
    """Why a run gave up, and what to do.

    diverged: in its last attempt, the devices that trained to what is no number.
    """
    if not diverged:
        return why, GAVE_UP_HINT
    return f"{why}; {diverged} trained to numbers that are not finite", NOT_FINITE_HINT


def _record(attempt: Attempt, judged: Mapping[str, Any]) -> RoundRecord:
    """A round as reports show it: the protocol's facts, and the observer's."""
    virtual = (attempt.ended_ns - attempt.started_ns) / SECOND
    seconds = dict(attempt.seconds)
    seconds["waiting"] = max(0.0, virtual * len(attempt.selected) - sum(seconds.values()))
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
        epsilon=attempt.epsilon,
        joules=dict(attempt.joules),
        exhausted=attempt.exhausted,
        **judged,
    )
