"""A scenario run by real daemons on this machine.

A coordinator, edges and devices, each a process of its own, speaking gRPC and MQTT over loopback
with certificates of their own.

The plan, the bundle and the devices' data are those of the virtual simulation, and so are the
protocol's machines; when the same devices report, the models are the same, bit for bit. What cannot
be the same is time. As in the virtual mode an observer, this process, judges every device's model
after each round; it reads the rounds from the coordinator as an operator does.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from ...core.common.errors import DelianError
from ...core.common.processors import cores
from ...core.compiler.backends import Backend
from ...core.node.identity.artifacts.artifact_keys import OnlineFolder, sign_plan
from ...core.node.identity.pki.certificates import channel_credentials, channel_options
from ...core.node.identity.pki.identity_folder import IdentityFolder
from ...core.node.net.blob_upload import parts_of
from ...core.node.net.mqtt.broker import choose as choose_broker
from ...core.privacy.secagg.limits import COHORT_MIN
from ...core.protocol.ports import CLOUD
from ...core.wire import operator_pb2
from ...core.wire.admission_pb2 import RetryWindow
from ...core.wire.blob_pb2 import BlobRef
from ...core.wire.operator_pb2 import RunEvent, WatchRequest
from ...core.wire.operator_pb2_grpc import OperatorStub
from ...core.wire.round_pb2 import FailureReason
from ...device.agent.status_file import read_status
from ..federation.round_records import LATE, Evaluation
from ..runs.result import TIMES, Event, Phase, RoundFinished, RoundRecord, SimulationResult
from ..runs.stage import stage_of
from ..runs.windowed_data import device_file
from ..scenario.federation_plan import FederationPlan
from ..scenario.scenario import Scenario
from ..scenario.scenario_file import override
from .fleet_files import FEDERATION, FleetFiles, Layout, OwnFolder, OwnScript
from .launcher import Children
from .scrape import Scrape

#: What a small machine carries: each device is two processes.
DEVICES, EDGES = 6, 2
DEVICES_MAX = 64
#: What is said of devices that were too slow: for their task, or for the keys of a masked round.
LATE_REASONS = tuple(FailureReason.Name(reason).lower() for reason in LATE)
#: How long a call of the operator may take.
CALL_S = 30.0
#: A run that does nothing for so long will do nothing any more.
SILENCE_S = 180.0


#: The keys that `fitted` may change.
FITTED = (
    *("fleet.devices", "fleet.edges", "fleet.dropout", "round.cohort", "round.reports_min"),
    *("round.over_selection", "privacy.cohort_min", "data.held_out_devices"),
)


@dataclass(frozen=True)
class Shape:
    """What stands for the scenario's fleet."""

    devices: int = DEVICES
    edges: int = EDGES
    by_mqtt: int | None = None
    """How many of the devices use MQTT; None: half, where a broker is installed."""
    store: str = ""
    """The coordinator's database, as a SQLAlchemy URL; "": SQLite."""
    folder: Path | None = None
    """Where everything goes, and stays; None: into a folder that goes when the run has ended well.
    """


def fitted(scenario: Scenario, shape: Shape) -> Scenario:
    """The scenario for a fleet of this size.

    Fewer devices, no more in a round than there are, none held out, and none that vanish by
    themselves; `fitting` says what that changes. Raises DelianError when that is no scenario.
    """
    if not 1 <= shape.devices <= DEVICES_MAX or not 1 <= shape.edges <= shape.devices:
        raise DelianError(
            f"{shape.edges} edges and {shape.devices} devices as processes",
            f"1 to {DEVICES_MAX} devices, and no more edges than devices",
        )
    round = scenario.round
    wanted = round.cohort
    if "cohort" not in round.model_fields_set:
        # It has followed the scenario's fleet, which may be smaller than this one.
        wanted = type(round).model_fields["cohort"].default
    cohort = min(wanted, shape.devices)
    changes = [
        f"fleet.devices={shape.devices}",
        f"fleet.edges={shape.edges}",
        "fleet.dropout=0.0",
        f"round.cohort={cohort}",
        f"round.reports_min={min(round.reports_min, cohort)}",
    ]
    if scenario.privacy.aggregation == "secure" or scenario.privacy.helpers:
        half = cohort // scenario.plan().cohorts // 2
        least = min(scenario.privacy.cohort_min or half, half)
        if scenario.privacy.noise == "distributed":
            least = min(round.reports_min, cohort)  # what the noise is planned for
        changes.append(f"privacy.cohort_min={max(COHORT_MIN, least)}")
    if cohort == shape.devices:
        changes.append("round.over_selection=1.0")
    if getattr(scenario.data, "held_out_devices", 0):
        changes.append("data.held_out_devices=0")
    return override(scenario, changes)


def fitting(scenario: Scenario, shape: Shape) -> dict[str, tuple[Any, Any]]:
    """What `fitted` changes: keys of the scenario, each with its value before and after."""
    after = fitted(scenario, shape)
    changes = {}
    for key in FITTED:
        table, _, name = key.partition(".")
        was, now = (getattr(getattr(each, table), name, None) for each in (scenario, after))
        if was != now:
            changes[key] = (was, now)
    return changes


def simulate_processes(
    scenario: Scenario,
    shape: Shape = Shape(),
    *,
    data_path: Path | None = None,
    threads: int | None = None,
    backend: Backend = "native",
    on_event: Callable[[Event], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
    meddle: Callable[[Children, RoundRecord], None] = lambda children, record: None,
) -> SimulationResult:
    """Runs a scenario, fitted to `shape`, by daemons; none of them is left when it returns.

    Args: as of `simulate`. threads: of the observer. meddle: called after each round with the
    daemons, for tests that kill some.

    Raises:
        DelianError: as `simulate`, or a daemon did not start or ended by itself; its log's end is
            in the message, and the folder stays.
    """
    run = _Processes(scenario, shape, data_path, backend, on_event, stop, meddle)
    return run.run(threads or cores())


class _Processes:
    def __init__(
        self,
        scenario: Scenario,
        shape: Shape,
        data_path: Path | None,
        backend: Backend,
        on_event: Callable[[Event], None],
        stop: Callable[[], bool],
        meddle: Callable[[Children, RoundRecord], None],
    ) -> None:
        self.fitting = fitting(scenario, shape)
        self.scenario, self.shape = fitted(scenario, shape), shape
        self.say, self.stop = on_event, stop
        self.backend, self.meddle = backend, meddle
        given = (None, data_path, backend, on_event)
        self.stage = stage_of(self.scenario, *given, processes=cores())
        self.rounds: list[RoundRecord] = []
        self.evaluations: list[Evaluation] = []
        self.rounds_of = [0] * len(self.stage.data.devices)
        self.weights = self.stage.first
        self.why, self.failed, self.stopped = "", False, False

    def run(self, threads: int) -> SimulationResult:
        with contextlib.closing(self.stage):
            return self._run(threads)

    def _run(self, threads: int) -> SimulationResult:
        stage = self.stage
        with _folder(self.shape.folder) as folder:
            with Children(folder) as children:
                files = FleetFiles(self._layout(folder))
                self._start_cloud(files, children)
                with ThreadPoolExecutor(threads) as pool, _Operator(files) as operator:
                    # Before the devices come: they would be sent away for a while.
                    run = self._submit(operator)
                    self._start_others(files, children)
                    start = time.perf_counter()
                    self._follow(run, operator, children, pool, Scrape(files))
                    self.stopped |= not stage.adapt(self.weights, pool, self.stop)
                stage.walls["rounds_seconds"] = time.perf_counter() - start
            self._count_rounds(folder)
            applied = sum(record.applied for record in self.rounds)
            if self.failed and not applied:
                why = f"the run gave up in its first round: {self.why}{_stopped(folder)}"
                raise DelianError(why, "--keep DIR keeps the logs of devices and of their scripts")
        return SimulationResult(
            scenario=self.scenario,
            rounds=tuple(self.rounds),
            devices=stage.devices(self.rounds_of),
            parameters=stage.bundle.manifest.dimension,
            # Real time leaves no trace that could be the same twice.
            trace_hash="",
            data=stage.card(),
            host=stage.host(threads, sum(r.reported for r in self.rounds)),
            stopped_by="failure" if self.failed else "interrupt" if self.stopped else None,
            why=self.why,
            evaluations=tuple(self.evaluations),
            algorithm=stage.own_settings(),
            bundle=replace(stage.bundle, weights=self.weights),
            chain=str(stage.composition),
            fitting=self.fitting,
        )

    def _layout(self, folder: Path) -> Layout:
        devices = len(self.stage.data.training)
        by_mqtt = self.shape.by_mqtt
        if by_mqtt is None:
            by_mqtt = devices // 2 if _has_broker() else 0
        # The odd ones, so that each edge has devices of both kinds where it has two.
        odd_first = [*range(1, devices, 2), *range(0, devices, 2)]
        return Layout(
            folder,
            self.shape.edges,
            devices,
            frozenset(odd_first[:by_mqtt]),
            self.shape.store,
            helpers=self.scenario.privacy.helpers,
            plain=self._plan().secure is None,
            split=self.scenario.split.enabled,
        )

    # ------------------------------------------------ starting

    def _start_cloud(self, files: FleetFiles, children: Children) -> None:
        """The coordinator, and before it the broker."""
        layout = files.layout
        count = 1 + len(layout.all_edges) + layout.devices
        self.say(Phase(f"starting {count} daemons"))
        files.make_identities()
        if layout.uses_broker:
            port, folder = str(files.ports["broker"]), str(files.folder / "broker")
            options = ["--port", port, "--tls-dir", folder, "--federation", FEDERATION, "--json"]
            children.add("broker", ["broker", "up", *options])
            children.wait_ready(["broker"])
        files.write_cloud()
        children.add("cloud", ["cloud", "run", "--config", str(files.config("cloud"))])
        children.wait_ready(["cloud"])

    def _start_others(self, files: FleetFiles, children: Children) -> None:
        """The edges, then all devices at once."""
        layout, manifest = files.layout, self.stage.bundle.manifest
        names = [leaf.name.rpartition(".")[2] for leaf in manifest.data]
        edges = [f"edge-{e}" for e in layout.all_edges]
        for number, name in enumerate(edges, 1):
            files.write_edge(number)
            children.add(name, ["edge", "run", "--config", str(files.config(name))])
        children.wait_ready(edges)
        devices = [f"device-{d}" for d in range(layout.devices)]
        for number, name in enumerate(devices):
            files.write_device(number, self._given(number, names), self.backend)
            children.add(name, ["device", "run", "--config", str(files.config(name))])
        children.wait_ready(devices)
        self.say(Phase("round 1"))

    def _given(
        self, number: int, names: Sequence[str]
    ) -> Mapping[str, Any] | OwnScript | OwnFolder:
        """What a device trains on: its data's arrays by name, its folder, or the user's script."""
        if (script := self.stage.script) is not None:
            return OwnScript(*script, len(self.stage.data.devices))
        device = self.stage.data.training[number]
        if self.stage.data.stored:
            fraction = float(getattr(self.scenario.data, "query_fraction", 0.0))
            return OwnFolder(self.stage.data.folders[device], fraction)
        arrays = self.stage.whole[device]
        return device_file(arrays, names, self.stage.room)

    # ------------------------------------------------ the run

    def _submit(self, operator: _Operator) -> int:
        """Brings bundle, weights and plan to the coordinator; the run's number."""
        stage = self.stage
        bundle = operator.put(stage.bundle.bare().to_bytes())
        for part in stage.bundle.frozen_contents():
            operator.put(part)
        weights = operator.put(stage.first.astype("<f4").tobytes())
        # All devices are there and wait for one another: selection is that of the virtual mode.
        asked = self._plan().but(pool_share=1.0, rest_ms=0)
        plan = asked.run_plan(bundle, weights, self.scenario.seed)
        plan = replace(
            plan,
            name=self.scenario.name,
            helpers=tuple(edge + 1 for edge in plan.helpers),  # edges are numbered from 1 here
            after_task=RetryWindow(min_ms=20, max_ms=100),
        )
        return operator.submit(replace(plan, manifest=operator.sign(plan.message())).message())

    def _plan(self) -> FederationPlan:
        masked = self.scenario.round.cohort >= COHORT_MIN
        return self.stage.plan(self.stage.runtime.ring, masked)

    def _follow(
        self,
        run: int,
        operator: _Operator,
        children: Children,
        pool: ThreadPoolExecutor,
        scrape: Scrape,
    ) -> None:
        gone = ""
        for event in operator.watch(run, children.check):
            facts = json.loads(event.facts)
            if event.kind == "round":
                wall_s = (event.time_ms - facts["opened_ms"]) / 1000
                try:
                    weights = self._weights_of(facts, operator)
                except GoneError:
                    if facts["model"] != gone:
                        # The coordinator was restored from a copy that is older than this event.
                        # It makes the round again, so its event is awaited again.
                        gone = facts["model"]
                        operator.rewind(event.sequence - 1)
                        continue
                    weights = None  # it keeps the newest models only, and this process is late
                record = self._on_round(facts, wall_s, scrape.traffic(), weights, pool)
                self.say(RoundFinished(record))
                self.meddle(children, record)
            elif event.kind == "evaluation":
                self.evaluations.append(Evaluation.of(facts))
            elif event.kind == "rolled_back":
                self.evaluations[-1] = replace(self.evaluations[-1], rolled_back_to=facts["to"])
            elif event.kind == "phase" and facts["phase"] in ("done", "failed"):
                self.failed = facts["phase"] == "failed"
                self.why = facts.get("why") or ("the coordinator gave up" if self.failed else "")
            if self.stop():
                self.stopped = True
                operator.cancel(run)
                return

    def _count_rounds(self, folder: Path) -> None:
        """How often each device has answered since it started.

        Only it knows, and reported it when it ended.
        """
        for number, device in enumerate(self.stage.data.training):
            with contextlib.suppress(DelianError):
                status = read_status(folder / f"device-{number}")
                self.rounds_of[device] = int(status["answered"])

    def _weights_of(self, facts: Mapping[str, Any], operator: _Operator) -> Any | None:
        """The model that a round has made; None: it made none. Raises GoneError."""
        if not facts["succeeded"]:
            return None
        # Every model of a run is as long as the first.
        model = BlobRef(digest=bytes.fromhex(facts["model"]), size=self.weights.nbytes)
        return np.frombuffer(operator.get(model), "<f4").astype(np.float32)

    def _on_round(
        self,
        facts: Mapping[str, Any],
        wall_s: float,
        moved: Mapping[str, int],
        weights: Any | None,
        pool: ThreadPoolExecutor,
    ) -> RoundRecord:
        """weights: the model that the round has made, where this process has it."""
        stage, number = self.stage, facts["round"]
        scores = None
        if weights is not None:
            self.weights = weights
            if stage.due(number) and not self.stop():
                scores = stage.evaluate(number, self.weights, pool, self.stop)
        if "first_round_seconds" not in stage.walls:
            stage.walls["first_round_seconds"] = time.perf_counter() - stage.began
        judged = stage.judgements(scores)
        record = _record(facts, wall_s, moved, judged)
        self.rounds.append(record)
        return record


def _record(
    facts: Mapping[str, Any], wall_s: float, moved: Mapping[str, int], judged: Mapping[str, Any]
) -> RoundRecord:
    """A round as its coordinator reports it.

    It does not know which missing devices dropped out and which are late. moved: bytes sent since
    the round before.
    """
    refused = sum(n for reason, n in facts["refused"].items() if reason not in LATE_REASONS)
    missing = facts["selected"] - facts["reported"] - refused
    spare = missing if facts["target_met"] else 0
    return RoundRecord(
        round=facts["round"],
        selected=facts["selected"],
        reported=facts["reported"],
        dropped=0,
        late=missing - spare,
        refused=refused,
        spare=spare,
        applied=facts["succeeded"],
        bytes=moved,
        seconds=dict.fromkeys(TIMES, 0.0),
        virtual_seconds=0.0,
        wall_seconds=wall_s,
        epsilon=facts["privacy"]["epsilon"] if facts.get("privacy") else None,
        **judged,
    )


def _stopped(folder: Path) -> str:
    """What stopped the program or the script of some device, as its log has it; or nothing."""
    for log in sorted(folder.glob("device-*.log")):
        for line in log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError, AttributeError):
                if " stopped: " in (said := str(json.loads(line).get("event"))):
                    return f"; {log.stem}: {said}"
    return ""


class GoneError(DelianError):
    """A coordinator lacks what it had reported."""


class _Operator:
    """The coordinator's operator, over mutual TLS."""

    def __init__(self, files: FleetFiles) -> None:
        material = IdentityFolder(files.folder / "operator" / "identity").material()
        self._channel = grpc.secure_channel(
            files.address("cloud"),
            channel_credentials(material),
            options=[
                *channel_options(FEDERATION, CLOUD),
                ("grpc.max_receive_message_length", 4 << 20),
            ],
        )
        self._stub = OperatorStub(self._channel)
        self._signing = OnlineFolder(files.signing)
        self._rewound: int | None = None

    def __enter__(self) -> _Operator:
        return self

    def __exit__(self, *exception: object) -> None:
        self._channel.close()

    def put(self, content: bytes) -> BlobRef:
        _, parts = parts_of(content)
        ref_there: BlobRef = self._stub.PutBlob(parts, timeout=CALL_S)
        return ref_there

    def get(self, ref: BlobRef) -> bytes:
        """A blob.

        A coordinator that was killed comes back: it is asked again. Raises GoneError where it came
        back without the blob.
        """
        return b"".join(p.content for p in self._again(lambda: list(self._get(ref))))

    def _get(self, ref: BlobRef) -> Iterator[Any]:
        yield from self._stub.GetBlob(ref, timeout=CALL_S, wait_for_ready=True)

    def submit(self, plan: operator_pb2.PlanMessage) -> int:
        request = operator_pb2.SubmitRequest(plan=plan)
        return int(self._stub.Submit(request, timeout=CALL_S).run)

    def sign(self, plan: operator_pb2.PlanMessage) -> bytes:
        """The signed manifest of a plan's bundle, as `delian run submit` makes it."""
        return sign_plan(self._signing, plan)

    def cancel(self, run: int) -> None:
        control = operator_pb2.RunControl(run=run, action="cancel")
        self._again(lambda: self._stub.ControlRun(control, timeout=CALL_S, wait_for_ready=True))

    def rewind(self, sequence: int) -> None:
        """`watch` goes on with the events after this number, as the coordinator has them now."""
        self._rewound = sequence

    def watch(self, run: int, check: Callable[[], None]) -> Iterator[RunEvent]:
        """The run's events until it is over, each once, whatever becomes of the coordinator."""
        after, silent_since = 0, time.monotonic()
        while True:
            request = WatchRequest(run=run, after=after)
            call = self._stub.WatchRun(request, timeout=CALL_S, wait_for_ready=True)
            try:
                for event in call:
                    after, silent_since = event.sequence, time.monotonic()
                    yield event
                    if self._rewound is not None:
                        break  # what the call has buffered may be older than the restore
                else:
                    return
                call.cancel()
                after, self._rewound = self._rewound, None
            except grpc.RpcError as error:
                if not _passes(error):
                    raise DelianError(f"the coordinator refused: {error.details()}") from error
            check()
            if time.monotonic() - silent_since > SILENCE_S:
                raise DelianError(f"nothing has happened in the run for {SILENCE_S:g} s")

    def _again(self, call: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + SILENCE_S
        while True:
            try:
                return call()
            except grpc.RpcError as error:
                if not _passes(error) or time.monotonic() > deadline:
                    if error.code() is grpc.StatusCode.NOT_FOUND:
                        raise GoneError("the coordinator lacks what it had reported") from error
                    raise DelianError(f"the coordinator refused: {error.details()}") from error


def _has_broker() -> bool:
    """Whether a broker is installed that `delian broker up` would run."""
    try:
        return bool(choose_broker("any"))
    except DelianError:
        return False


def _passes(error: grpc.RpcError) -> bool:
    """Whether a call failed for a reason that goes by."""
    passing = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return error.code() in passing


@contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
    """Where the daemons' files go.

    A folder that was not named is removed, unless something went wrong: the logs are in it.
    """
    if wanted is not None:
        wanted.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield wanted.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="delian-processes-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
