"""What both ways to run a scenario share.

Its data, its compiled programs, and an observer that evaluates every device, which no coordinator
does.

The observer judges the shared model on each device's query set, and the device's own model, made
from the shared one by the bundle's `personalise`.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from ...core.common.errors import DelianError
from ...core.compiler import debugging, random
from ...core.compiler.backends import TORCH, Backend
from ...core.compiler.backends.native.toolchain import toolchain
from ...core.compiler.ir import Array, TensorType
from ...core.learning.aggregate.chains import Chain
from ...core.learning.bundle import Bundle
from ...core.learning.cohort_program import gathers, runtime_of
from ...core.learning.data import FederatedData
from ...core.learning.leaf_roles import Roles
from ...core.learning.runtime import Runtime, Score
from ...core.learning.sampling import SampleSet
from ...core.learning.windows.window_rows import WindowRows
from ...core.learning.windows.window_training import first_rows, scores
from ...core.privacy.mechanisms.ring import RingPlan
from ...core.wire.blob_pb2 import BlobRef
from ...edge.protocol.edge_state import EdgePolicy
from ..federation.fleet import Fleet
from ..federation.network import LinkProfile
from ..federation.training import are_helped
from ..federation.training_threads import NoWorkers, Workers
from ..report import own_metrics
from ..report.adapting import Adapted, Adapting, total
from ..report.measures import ACCURACY, SQUARED_ERROR, Measure, measure_of
from ..report.run_warnings import drowned
from ..resume.traced_bundles import bundle_of
from ..scenario import data_settings as settings
from ..scenario import recipes
from ..scenario.composition import chain_of
from ..scenario.datasets import load_data, on_data
from ..scenario.federation_plan import FederationPlan
from ..scenario.scenario import Link, Scenario
from .compiled_training import CompiledTraining
from .confidence import spread_of
from .host_facts import machine_facts, peak_rss_mib
from .result import DeviceRecord, Event, Notice, Phase, Spread, Started, UpdateFinished
from .windowed_data import sampled, stored_windows, windows_of

if TYPE_CHECKING:
    from ...core.learning import Algorithm
    from ...core.learning.build.bundle_builder import Split
    from ...core.learning.task import Task

#: Streams of the scenario's seed, so that evaluation draws nothing that training draws.
EVALUATION_STREAM = 0x6576616C


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Judging(Protocol[T_co]):
    """What a judge is about to say."""

    def result(self) -> T_co: ...

    def cancel(self) -> bool: ...


class Pool(Protocol):
    """Threads that judge: `training_threads.Workers`, or an executor's."""

    def submit(self, work: Callable[[], T], /) -> Judging[T]: ...


def _results(judged: Sequence[Judging[T]], stop: Callable[[], bool]) -> Iterator[T]:
    """What judges say, in their order. Where it is stopped it ends, and the rest is called off."""
    for done, one in enumerate(judged):
        if stop():
            for rest in judged[done:]:
                rest.cancel()
            return
        yield one.result()


class Stage:
    """A scenario made ready, of what its devices hold or the file that it is in.

    composition: what updates go through. data: every device's examples. arrays: the same as
    programs take them. bundle: the programs, without weights; first: the weights to begin with,
    f32[D]. walls: seconds that steps took. began: when, by `time.perf_counter`; now.
    """

    def __init__(
        self,
        scenario: Scenario,
        algorithm: Algorithm | None,
        data: FederatedData | Path | None,
        backend: Backend,
        say: Callable[[Event], None],
        began: float | None = None,
        model: Any = None,
    ) -> None:
        self.began = time.perf_counter() if began is None else began
        self.scenario, self.backend, self.say = scenario, backend, say
        self._given, self._own_model = algorithm, model
        self.walls: dict[str, Any] = {"evaluation_seconds": 0.0}
        self.data = data if isinstance(data, FederatedData) else load_data(scenario, data)
        self.scenario = scenario = on_data(scenario, self.data)
        # A file's is as much the caller's own as one that was given.
        self.own_algorithm = algorithm
        if algorithm is None and scenario.algorithm_file is not None:
            self.own_algorithm = recipes.algorithm(scenario, self.data)
        self.composition = self.chain()
        say(Started(scenario, len(self.data.devices), len(self.data.held_out)))
        self.whole = [recipes.arrays(scenario, d) for d in self.data.devices]
        self.arrays = sampled(self.whole, self.room)
        say(Phase("tracing the algorithm"))
        start = time.perf_counter()
        bundle = self._traced()
        # Devices are sent the bundle bare; the first weights are needed in the first round only.
        self.first, self.bundle = bundle.weights, replace(bundle, weights=np.empty(0, np.float32))
        self.walls["trace_seconds"] = time.perf_counter() - start
        self.rows = self._windows()
        if why := drowned(scenario, self.bundle.manifest.ring):
            say(Notice(why))
        compiled = f"compiling {len(self.bundle.programs)} programs"
        say(Phase("running as plain Python" if debugging.on else compiled))
        start = time.perf_counter()
        self.runtime = self._runtime()
        self.walls["compile_seconds"] = time.perf_counter() - start
        self.scores: dict[int, tuple[Score, Score]] = {}
        self.judged = self._judged()
        self.measure = measure_of(scenario.to_json())
        self.adapted: dict[int, Adapted] = {}

    def training(
        self, workers: Workers | NoWorkers, on_update: Callable[[int, int], None]
    ) -> CompiledTraining:
        """What the federation trains; on_update: called with each update's number."""
        return CompiledTraining(*self._trained(workers, on_update))

    def _trained(self, *given: Any) -> tuple[Any, ...]:
        arrays = [self.held(i) for i in self.data.training]
        steps = functools.partial(recipes.local_steps, self.scenario)
        return self.runtime, self.first, arrays, steps, *given

    @property
    def script(self) -> tuple[str, str] | None:
        """The name and the command of the user's training script; None: there is none."""
        return None

    def card(self) -> dict[str, Any]:
        """What a report says of the data."""
        return self.data.card.to_json()

    def close(self) -> None:
        """Ends what the stage has started."""

    @property
    def room(self) -> int:
        """Rows that a device has in memory at once; zero: all of them."""
        return int(getattr(self.scenario.data, "rows_in_memory", 0))

    def _windows(self) -> dict[int, WindowRows]:
        """The devices that train in windows, by number."""
        manifest, room = self.bundle.manifest, self.room
        if not self.data.stored:
            return windows_of(self.whole, room, manifest)
        classes = None if self.scenario.regression else self.data.classes
        fraction = float(getattr(self.scenario.data, "query_fraction", 0.0))
        return stored_windows(self.data.stored, room, manifest, classes, fraction)

    def workers(self, threads: int) -> Workers:
        """The threads that train, of which the one that handles events may be one."""
        helped = are_helped(threads, self.runtime.ring.nbytes) and not gathers(self.backend)
        return Workers(threads, "delian-train", helped)

    def held(self, device: int) -> Any:
        """What a device trains on: its arrays, or windows of its rows."""
        return self.rows.get(device, self.arrays[device])

    def _runtime(self) -> Runtime:
        """What runs the programs; where one debugs, what they are made of."""
        if not debugging.on:
            return runtime_of(self.bundle, self.backend)
        from ...core.learning.build.plain import PlainRuntime

        task, _, chosen = self._parts
        return PlainRuntime(self.bundle, task, chosen, self.arrays[0], self.chain(), self.roles)

    @functools.cached_property
    def _parts(self) -> tuple[Task, TensorType, Algorithm]:
        """The task, a batch's type and the algorithm. A file of the user's is run once for it."""
        task, example = recipes.task(self.scenario, self.data, self._own_model)
        return task, example, self.own_algorithm or recipes.algorithm(self.scenario, self.data)

    def _traced(self) -> Bundle:
        """The bundle; an earlier run's, where nothing in it is the user's own."""
        own_model = self._own_model is not None or self.scenario.model_file is not None
        # A step's cuts depend on profiles in files and on the link.
        if self.own_algorithm is not None or own_model or self.scenario.split.enabled:
            return self._build()
        read = recipes.what_is_read(self.scenario, self.data)
        facts = [read, str(self.chain()), self._of_the_run]
        return bundle_of(self.arrays[0], facts, self._build)

    @functools.cached_property
    def _of_the_run(self) -> dict[str, Any]:
        """What `build` takes of the run; rounds and reports count only where noise is planned."""
        plan, chosen = self.scenario.plan(), self._parts[2]
        noised = self.chain().get("noise") is not None
        return {
            "clients_max": plan.selected,
            "weight_max": self._weight_max(chosen),
            "seed": plan.seed,
            "releases": plan.rounds if noised else 1,
            "survivors": plan.reports_min if noised else 1,
            **({"windows": True} if self.room else {}),
        }

    @functools.cached_property
    def roles(self) -> Roles:
        """Which leaves of the model the scenario freezes or keeps on devices."""
        task, _, chosen = self._parts
        return recipes.roles(self.scenario, chosen.task(task))

    def _weight_max(self, chosen: Algorithm) -> float:
        """The largest weight of a device; of rows in files, if it trained on all of them."""
        most = max((rows.rows for rows in self.data.stored), default=0)
        no = np.array(0)
        return max(
            recipes.weight_max(chosen, self.data),
            float(chosen.weight(SampleSet(no, no, np.array(most), no))) if most else 0.0,
        )

    def _build(self) -> Bundle:
        from ...core.learning.analytics import Query
        from ...core.learning.build.bundle_builder import build  # and with it the front end

        task, example, chosen = self._parts
        data, chain = self.arrays[0], self.chain()
        bundle = build(
            *(task, chosen, data),
            example=example,
            chain=chain,
            roles=self.roles,
            split=self._split(),
            **self._of_the_run,
        )
        if not isinstance(chosen, Query):  # which has answers, and no model
            recipes.check_labels(self.scenario, self.data, bundle)
        return bundle

    def _split(self) -> Split | None:
        """What adds the step that devices and their edges cut, where the scenario wants one."""
        chosen = self.scenario.split
        if not chosen.enabled:
            return None
        if debugging.on or self.backend.startswith(TORCH):
            raise DelianError(
                "devices that train with their edges run compiled programs",
                "use the native or the reference back end, or leave split.enabled out",
            )
        from ...core.placement.split_training.run_step import with_step

        task, _, algorithm = self._parts
        model = algorithm.task(task).init(random.key(self.scenario.seed))
        link = self.scenario.network.device_edge
        return with_step(chosen.settings(self.scenario.folder, link), model, self.roles.frozen)

    def chain(self, masked: bool = False) -> Chain:
        """What an update goes through.

        masked: whether updates are, where the scenario does not say. A caller's algorithm brings a
        server's optimiser of its own.
        """
        made = chain_of(self.scenario, masked)
        own = [stage for stage in made.stages if stage.group != "server"]
        return made if self._given is None else Chain(tuple(own))

    @property
    def edges(self) -> int:
        """Edges that gather devices; helpers have the numbers after theirs."""
        return min(self.scenario.fleet.edges, len(self.data.training))

    def plan(self, ring: RingPlan, masked: bool = False) -> FederationPlan:
        """The federation of the scenario's training devices.

        masked: whether updates are, where the scenario does not say.
        """
        scenario = self.scenario
        chain = self.composition = self.chain(masked)
        fleet = Fleet(
            devices=len(self.data.training),
            edges=self.edges,
            shares=scenario.fleet.mix.shares,
            classes=scenario.fleet.classes,
            link=_link(scenario.network.device_edge),
            dropout=scenario.fleet.dropout,
        )
        return FederationPlan(
            plan=scenario.plan(masked),
            ring=chain.finished(ring),
            fleet=fleet,
            edge_link=_link(scenario.network.edge_cloud),
            # A round does not wait for devices whose batteries are spent.
            pool_share=0.0 if fleet.has_batteries else FederationPlan.pool_share,
            own_metrics=self.bundle.manifest.metrics,
            frozen=tuple(
                BlobRef(digest=bytes.fromhex(part.digest), size=part.size)
                for part in self.bundle.manifest.frozen_parts
            ),
            split=bool(self.bundle.manifest.split),
            edge_policy=EdgePolicy(splits=bool(self.bundle.manifest.split)),
        )

    def _judged(self) -> tuple[int, ...]:
        """The devices that are evaluated: all, or the held-out ones and then others in order."""
        wanted = self.scenario.evaluation.devices
        everyone = range(len(self.data.devices))
        if wanted is None or wanted >= len(everyone):
            return tuple(everyone)
        held_out = sorted(self.data.held_out)
        return tuple(sorted([*held_out, *self.data.training][:wanted]))

    @functools.cached_property
    def variance(self) -> float:
        """Of the numbers that models are judged by, over all judged devices; zero of labels."""
        if not self.scenario.regression:
            return 0.0
        ends = [(self.arrays[d], self.data.devices[d].examples) for d in self.judged]
        queries = [a.y[int(a.support) : examples].reshape(-1) for a, examples in ends]
        return float(np.var(np.concatenate(queries), dtype=np.float64))

    def due(self, round: int) -> bool:
        """Whether the scenario wants this round's model judged."""
        return round == self.scenario.rounds or round % self.scenario.evaluation.every == 0

    def adapt(
        self,
        state: Array,
        pool: Pool,
        stop: Callable[[], bool],
        kept: Callable[[int], Array | None] = lambda device: None,
    ) -> bool:
        """Every judged device after each of `evaluation.steps`, where there are any.

        False: it was stopped on the way.
        """
        if not self.scenario.evaluation.steps:
            return True
        if stop():
            return False
        start = time.perf_counter()
        self.say(Phase("adapting by steps"))
        task, _, chosen = self._parts
        steps = self.scenario.evaluation.steps
        given = task, chosen, self.arrays[0], self.runtime, steps, self.backend
        adapting = Adapting(*given, self.roles)

        def of(device: int) -> Adapted:
            data, own = self.arrays[device], kept(device)
            return total([adapting.judge(state, data, key, own) for key in self._keys(device)])

        futures = [pool.submit(functools.partial(of, device)) for device in self.judged]
        adapted = list(_results(futures, stop))
        if len(adapted) < len(futures):
            return False
        self.adapted = dict(zip(self.judged, adapted, strict=True))
        self.walls["evaluation_seconds"] += time.perf_counter() - start
        return True

    def evaluate(
        self,
        round: int,
        state: Array,
        pool: Pool,
        stop: Callable[[], bool],
        kept: Callable[[int], Array | None] = lambda device: None,
    ) -> list[tuple[Score, Score]] | None:
        """Every judged device before and after personalisation; None when stopped on the way.

        kept: the client state of a device of the data, None where it has none yet.
        """
        start = time.perf_counter()
        model = self.runtime.model_of(state)
        futures = [
            pool.submit(functools.partial(self._judge, d, state, model, kept(d)))
            for d in self.judged
        ]
        scores = []
        for score in _results(futures, stop):
            scores.append(score)
            self.say(UpdateFinished(round, len(scores), len(futures), evaluating=True))
        if len(scores) < len(futures):
            return None
        self.scores = dict(zip(self.judged, scores, strict=True))
        self.walls["evaluation_seconds"] += time.perf_counter() - start
        return scores

    def judge(self, device: int, state: Array, kept: Array | None) -> tuple[Score, Score]:
        """A device with the model of a state, and with its own made from it."""
        return self._judge(device, state, self.runtime.model_of(state), kept)

    def judgements(self, scores: list[tuple[Score, Score]] | None) -> dict[str, Any]:
        """What devices' scores are in a round's record."""
        names = self.bundle.manifest.metrics
        return judgements(scores, self.measure, self.variance, names)

    def _judge(
        self, device: int, state: Array, model: Array, kept: Array | None
    ) -> tuple[Score, Score]:
        held, pairs = self.held(device), []
        for key in self._keys(device):
            own = self.runtime.personalise(state, first_rows(held, key), key, kept)
            pairs.append(scores(self.runtime, [model, own], held, key))
        before, after = zip(*pairs, strict=True)
        return _total(before), _total(after)

    def _keys(self, device: int) -> list[Array]:
        """A key for each of a device's episodes, and one where there are none.

        They are the same each round: curves then differ by what was learnt, not by what was drawn.
        """
        few_shot = isinstance(self.scenario.data, settings.OmniglotData)
        episodes = self.scenario.evaluation.episodes if few_shot else 1
        seed = self.scenario.seed
        return [_key(seed, EVALUATION_STREAM, device, episode) for episode in range(episodes)]

    def key(self, device: int) -> Array:
        """The random key of a device's evaluation, its first episode's."""
        return self._keys(device)[0]

    def devices(self, rounds_of: Sequence[int]) -> tuple[DeviceRecord, ...]:
        members = {d: i for i, d in enumerate(self.data.training)}
        records = []
        for device, name in enumerate(self.data.names):
            before, after = self.scores.get(device, (None, None))
            adapted = self.adapted.get(device, Adapted((), ()))
            records.append(
                DeviceRecord(
                    device=device,
                    name=name,
                    edge=members.get(device, device) % self.scenario.fleet.edges,
                    examples=self._examples(device),
                    held_out=device in self.data.held_out,
                    rounds=rounds_of[device],
                    accuracy_before=self.measure.of(before) if before else None,
                    accuracy_after=self.measure.of(after) if after else None,
                    steps_query=tuple(self.measure.of(s) for s in adapted.query),
                    steps_support=tuple(self.measure.of(s) for s in adapted.support),
                )
            )
        return tuple(records)

    def _examples(self, device: int) -> int:
        """How many examples a device has."""
        stored = self.data.stored
        return stored[device].rows if stored else self.data.devices[device].examples

    def own_settings(self) -> dict[str, Any] | None:
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

    def computed_by(self) -> dict[str, str]:
        """The back end that runs the programs, and its compiler where it has one."""
        return _computed_by(self.backend)

    def host(self, threads: int, updates: int) -> dict[str, Any]:
        """What differs between machines and runs."""
        training = self.walls["rounds_seconds"] - self.walls["evaluation_seconds"]
        return {
            **machine_facts(),
            "threads": threads,
            **self.computed_by(),
            "total_seconds": time.perf_counter() - self.began,
            **self.walls,
            "updates": updates,
            "updates_per_second": updates / training if training > 0 else None,
            "peak_rss_mib": peak_rss_mib(),
        }


def stage_of(scenario: Scenario, *given: Any, processes: int) -> Stage:
    """The stage of a scenario. given: as of Stage. processes: of a training script, at once."""
    if scenario.data.source != "script":
        return Stage(scenario, *given)
    from .script_stage import ScriptStage

    return ScriptStage(scenario, *given, processes=processes)


def judgements(
    scores: list[tuple[Score, Score]] | None,
    measure: Measure = ACCURACY,
    variance: float = 0.0,
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """A round's accuracies and losses as its record has them; nothing where nothing was judged.

    measure: what stands for accuracy. variance: of the numbers that a regression is judged by.
    names: of the task's own metrics.
    """
    judged: dict[str, Any] = {}
    if scores:
        for name, column in (("global", 0), ("personalised", 1)):
            counted = [pair[column] for pair in scores if pair[column].count]
            accuracies = [measure.of(s) for s in counted]
            judged[f"{name}_accuracy"] = sum(accuracies) / len(accuracies)
            pooled = _total(counted)
            judged[f"{name}_pooled_accuracy"] = measure.of(pooled)
            judged[f"{name}_loss"] = sum(s.loss / s.count for s in counted) / len(counted)
            judged[f"{name}_spread"] = Spread(*spread_of(accuracies))
            if names:
                judged[f"{name}_metrics"] = own_metrics.figures(names, pooled)
            if measure == SQUARED_ERROR:
                judged[f"{name}_absolute_error"] = pooled.accuracy
                explained = 1.0 - measure.of(pooled) / variance if variance else None
                judged[f"{name}_r_squared"] = explained
    return judged


def _computed_by(backend: Backend) -> dict[str, str]:
    """The back end that ran.

    It is not the requested one where there is no compiler, or while debugging.
    """
    if debugging.on:
        return {"backend": "plain Python"}
    if backend.startswith(TORCH):
        return {"backend": backend}
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
    more = zip(*(s.more for s in scores), strict=True)
    return Score(
        sum(s.loss for s in scores),
        sum(s.correct for s in scores),
        sum(s.count for s in scores),
        tuple((sum(above for above, _ in m), sum(below for _, below in m)) for m in more),
    )
