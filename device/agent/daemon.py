"""The device agent: one device of a federation, for as long as its owner lets it run.

It hosts the device's state machine with its journal and its store, the links to its homes, the
training process, the watch over the device's conditions, the renewal of its certificate and, when
asked, a server for the personal model. Killed at any moment and started again it goes on where its
journal ends.

    FOLDER/journal    what the device has promised    FOLDER/personal   its own model
    FOLDER/blobs      bundles and weights             FOLDER/consent    the owner's yes or no
    FOLDER/status.json   for `delian device status`   FOLDER/trained.json
    FOLDER/artifacts.json   which signed bundles it has taken
    FOLDER/key-secret       what its random keys are made of, with a round's key
    FOLDER/questions        which questions were answered, and about which rows
    FOLDER/scripts          what the owner's training scripts keep, and what they print
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...core.common.errors import DelianError
from ...core.compiler.backends.native.toolchain import cache, toolchain
from ...core.learning.data.sources import check_source, version_of
from ...core.node.driver.driver import Driver
from ...core.node.driver.traces import Spans, Traces
from ...core.node.identity.authority.deny_list import DenyList
from ...core.node.identity.enrolment.kept_deny_list import DEVICE_ASKS_EVERY_S, KnownDenied
from ...core.node.identity.pki.identity_folder import HomeAddress
from ...core.node.identity.pki.roles import Guard
from ...core.node.identity.pki.signing import CertificateIdentity
from ...core.node.net.switch import Switch
from ...core.node.sandbox import walls
from ...core.node.scripts.script_process import ScriptCommand
from ...core.node.service.hosting import Tasks, Who, merge_homes, run_daemon, who_is
from ...core.node.service.known_log import LogSink, keep_fork
from ...core.node.service.uplinks import Distrust, Transport, Uplinks, keep_denied, trust_all
from ...core.node.storage.blobs import FolderBlobs
from ...core.node.storage.codec import address
from ...core.node.storage.journal import FileJournal
from ...core.privacy.secagg import messages, native
from ...core.protocol.ports import Node, Ordered, Record, Tier
from ...core.protocol.random_streams import Streams
from ...core.protocol.run_names import number_of, shown
from ...core.statistics.site_rules import OwnerRules
from ...core.wire.journal_pb2 import Conditions, Connected, DeniedVersion, Homes
from ...core.wire.log_pb2 import LogUpdate
from ..protocol.device_state import DevicePolicy, DeviceState
from ..protocol.machine import DeviceMachine, restore
from ..protocol.releases import Cap, Releases
from ..protocol.secure_session import SECRET_BYTES
from .artifact_gate import SEEN_FILE, Gate, gate_of
from .conditions import ConditionSettings, Watch
from .key_secret import key_secret
from .owner_limits import WorkerSettings
from .personal_model import PersonalStore, Slot, stamp
from .question_desk import QuestionDesk
from .refusal_log import OWNER_REFUSES
from .runner import WorkerRunner
from .script_desk import ScriptDesk
from .split_desk import SplitDesk
from .status_file import StatusFile
from .window_checkpoints import WindowCheckpoints

log = logging.getLogger("delian.device")

#: How long the inference server may take to stop.
SERVER_STOP_S = 5.0
#: How often it is looked whether there is a newer certificate to sign with.
SIGN_ANEW_S = 3600.0
#: Pauses before an inference server that ended is started again.
SERVER_AGAIN_S, SERVER_AGAIN_S_MAX = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What a device's owner sets."""

    folder: Path
    """Where the device keeps everything."""
    identity: Path | None = None
    """What `delian join` wrote."""
    homes: tuple[HomeAddress, ...] = ()
    """Where it goes, in order of preference; empty: where its enrolment said."""
    transport: Transport = "auto"
    """Transport where a home offers both."""
    broker_authority: Path | None = None
    """PEM of the CA of the broker's certificate, where that is not the federation's CA."""
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    questions: OwnerRules = field(default_factory=OwnerRules)
    """What questions to the owner's tables may do."""
    scripts: Mapping[str, ScriptCommand] = field(default_factory=dict)
    """Commands that train for the runs that name them."""
    conditions: ConditionSettings = field(default_factory=ConditionSettings)
    policy: DevicePolicy = field(default_factory=DevicePolicy)
    policy_now: Callable[[], DevicePolicy] | None = None
    """Makes the policy of the owner's word and of the terms that the device has now.

    Blocks; None: the policy stays.
    """
    personal_margin: float = 0.05
    split: bool = False
    """Whether it may train with its edge, which can read activations of single examples then."""
    inference: Path | None = None
    """A Unix socket to serve the personal model on; None: it is not served."""
    artifact_root: Path | None = None
    """The public key that says which bundles may run; None: that of the federation's terms."""
    signed: bool = True
    """Whether only signed bundles run, where a root key or the federation's terms are known."""
    insecure: bool = False
    """Without an identity, on loopback alone."""
    number: int | None = None
    """The device's number, where it has no identity."""
    federation: str = ""
    """The federation's name, where it has no identity."""


async def serve(
    settings: DeviceSettings,
    stop: asyncio.Event | None = None,
    ready: Callable[[dict[str, Any]], None] = lambda facts: None,
    spans: Spans | None = None,
) -> None:
    """Runs a device until `stop` is set, or SIGTERM or SIGINT comes.

    ready: called once when the device has recovered its state. Raises DelianError for what its
    owner can mend.
    """
    await run_daemon(lambda: _Agent(settings, spans), settings.folder, stop, ready)


class _Agent:
    """The parts of a running device. Made on a thread: it reads files."""

    def __init__(self, settings: DeviceSettings, spans: Spans | None = None) -> None:
        self.settings = settings = _with_consent_file(settings)
        self._spans = spans
        folder = settings.folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.who: Who = who_is(
            Tier.DEVICE,
            settings.identity,
            insecure=settings.insecure,
            number=settings.number,
            federation=settings.federation,
        )
        self.homes = merge_homes(settings.homes or self.who.homes)
        if self.who.identity is not None:
            native.library()  # on a new machine it compiles: not when the first update is masked
        else:
            log.warning("without a certificate it takes no task whose updates are masked")
        trains_alone = bool(settings.worker.data.source) or not settings.scripts
        if trains_alone and (odd := check_source(settings.worker.data)):
            log.warning(odd)
        walls.check(settings.worker.sandbox)
        walls.tell_lacking()
        self.tasks = Tasks()
        self.key_secret = key_secret(folder)
        self.denied: KnownDenied | None = None
        if self.who.identity is not None:
            self.denied = KnownDenied(
                self.who.identity, self._denied_changed, LogSink(self._log_size, self._offer_log)
            )
        self._denied_asked, self._renewed = asyncio.Event(), asyncio.Event()
        self.personal = PersonalStore(folder / "personal", settings.personal_margin)
        self.personal.prepare()
        self.blobs = FolderBlobs(folder / "blobs", settings.policy.blobs_bytes_max)
        self.gate = self._gate_now()
        self.switch = Switch()
        self.runner = WorkerRunner(
            settings.worker,
            self.blobs.path,
            self.personal,
            folder / "trained.json",
            gate=self.gate,
            kept=folder / "kept",
            questions=QuestionDesk(
                settings.questions, settings.worker.limits, folder / "questions", self.blobs.path
            ),
            windows=WindowCheckpoints(folder / "windows", settings.worker.checkpoint_s),
            scripts=ScriptDesk(
                settings.scripts,
                folder / "scripts",
                self.blobs.path,
                self.who.node.number,
                settings.worker.nice,
            ),
            split=SplitDesk(self.who, self.homes, lambda: self.driver.machine, self.switch.traffic)
            if settings.split
            else None,
        )
        self.watch = Watch(
            settings.conditions,
            folder,
            settings.worker.memory_mib,
            self._is_fresh,
            stored=lambda: self.blobs.used,
        )
        seen = self.watch.changed()
        assert seen is not None
        self.seen: Conditions = seen
        self.status = StatusFile(folder / "status.json", self._status)
        self.began = time.time()
        self.answered = 0
        self.sessions_failed: Counter[str] = Counter()  # by reason
        self.has_model = asyncio.Event()
        self._slot_at: tuple[int, Slot | None] = (0, None)
        self._refusals: dict[Node, str] = {}  # homes that do not let it connect -> why

    # ------------------------------------------------ start and end

    async def start(self) -> None:
        settings, node = self.settings, self.who.node
        self.driver = Driver(
            self._make,
            FileJournal(settings.folder / "journal"),
            self.switch,
            self.blobs,
            self.runner,
            on_record=self._recorded,
            traces=Traces(node, self._spans),
        )
        self.switch.attach(node, self.driver.post, self.blobs, _limit, offer=self.driver.offer)
        self.uplinks = Uplinks(
            self.switch,
            self.who,
            self.homes,
            settings.transport,
            settings.broker_authority,
            on_connected=self._connected,
            on_renewed=self._renewed.set,
            on_refused=self._refused,
            denied=self.denied,
            distrust=self._distrust(),
        )
        self._loop = asyncio.get_running_loop()
        self.uplinks.start()
        self.runner.allow(self.seen.eligibility.consented)
        # Before what the journal brings back is acted upon.
        self.driver.post(Ordered(self.seen))
        self._tell_homes()
        listed = DenyList() if self.denied is None else self.denied()
        issued_s = listed.issued_s if listed.version else int(time.time())
        self.driver.post(Ordered(DeniedVersion(version=listed.version, issued_s=issued_s)))
        self.tasks.start("the device", self.driver.run())
        await self.driver.started()
        self.tasks.start("the watch", self.watch.run(self._conditions_changed))
        self.tasks.start("renewal", self.uplinks.keep_identity())
        self.tasks.start("signing", self._keep_signing())
        own, relayed = self.who.identity, self.uplinks.relayed
        if own is not None and self.denied is not None and relayed is not None:
            keeping = keep_denied(
                own,
                self.denied,
                self._denied_asked,
                relayed,
                every_s=DEVICE_ASKS_EVERY_S,
                home_first=True,
            )
            self.tasks.start("the deny list", keeping)
        self.tasks.start("status", self.status.run())
        if settings.inference is not None:
            self.tasks.start("inference", self._serve_model(settings.inference))
        log.info("%s runs", node, extra=self.facts())
        if not self.seen.eligibility.consented:
            log.warning(self._problem())

    async def close(self) -> None:
        """Ends in order: nothing new comes in, the state is put away, training stops.

        In this order a task that is cut short is begun again by the next start, and not given up.
        """
        if hasattr(self, "uplinks"):
            await self.uplinks.close()
        if hasattr(self, "driver"):
            await self.driver.close()
        await self.runner.close()
        await self.tasks.close()
        await self.switch.close()
        await self.blobs.close()
        await asyncio.to_thread(self.status.write, "stopped")

    async def _serve_model(self, path: Path) -> None:
        """A process more, from when there is something to serve."""
        if stamp(self.personal.folder) == 0:
            await self.has_model.wait()
        await _keep_serving(self.personal.folder, path, self.settings.worker)

    def _make(self, snapshot: bytes | None) -> DeviceMachine:
        node = self.who.node
        state = DeviceState(node.number) if snapshot is None else restore(snapshot)
        if state.device != node.number:
            raise DelianError(
                f"{self.settings.folder} belongs to device {state.device}, and this is {node}",
                "give each device a folder of its own",
            )
        machine = DeviceMachine(
            state,
            tuple(h.node for h in self.homes),
            Streams(node.number),
            self.seen.facts,
            self.seen.eligibility,
            self.settings.policy,
            os.urandom(SECRET_BYTES),
            key_secret=self.key_secret,
        )
        machine.owner.identity = self._identity_of(machine)
        return machine

    def _identity_of(self, machine: DeviceMachine) -> CertificateIdentity | None:
        """Signs for the device, and looks at certificates by the machine's time.

        A journal that is handled again finds them as valid as they were. None: it has no
        certificate, and takes no part where updates are masked. Blocks.

        The deny list is the newest, also for a journal that is handled again: a session that was
        refused then is refused now, and one in which a neighbour has been revoked meanwhile ends.
        """
        own = self.who.identity
        if own is None:
            return None
        listed = self.denied or DenyList
        return CertificateIdentity(own.material(), lambda: machine.now / 1e9, listed)

    def _gate_now(self) -> Gate | None:
        own, settings = self.who.identity, self.settings
        return gate_of(
            self.who.federation,
            settings.folder / SEEN_FILE,
            joined=own is not None,
            terms=own.terms() if own is not None else None,
            root=settings.artifact_root,
            signed=settings.signed,
        )

    async def _keep_signing(self) -> None:
        """Goes by the newest certificate and the newest terms, when there are some."""
        while self.who.identity is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SIGN_ANEW_S):
                    await self._renewed.wait()
            self._renewed.clear()
            try:
                await self._sign_anew()
            except DelianError as error:
                log.warning("the newest certificate or terms cannot be taken: %s", error)

    async def _sign_anew(self) -> None:
        """Takes them between two tasks: a session goes on by those that it began with."""
        machine, now = self.driver.machine, self.settings.policy_now
        assert isinstance(machine, DeviceMachine) and self.who.identity is not None
        newest = await asyncio.to_thread(self._identity_of, machine)
        policy = self.settings.policy if now is None else await asyncio.to_thread(now)
        has_terms = await asyncio.to_thread(self.who.identity.terms) is not None
        if self.gate is None and self.settings.signed and has_terms:
            self.gate = self.runner.gate = await asyncio.to_thread(self._gate_now)
        if machine.state.session is None:
            machine.owner.identity, machine.owner.policy = newest, policy
            self.settings = replace(self.settings, policy=policy)

    # ------------------------------------------------ what happens

    def _distrust(self) -> Distrust:
        """Why a home's certificate is not trusted, or None."""
        if self.denied is None:
            return trust_all
        return Guard(self.who.federation, Tier.DEVICE, self.denied).distrust

    def _denied_changed(self, listed: DenyList) -> None:
        """From the thread that stores the deny list."""
        self._loop.call_soon_threadsafe(self._take_denied, listed)

    def _log_size(self) -> int:
        machine = self.driver.machine
        assert isinstance(machine, DeviceMachine)
        return machine.state.log.size

    def _offer_log(self, update: LogUpdate) -> None:
        self._loop.call_soon_threadsafe(self.driver.post, Ordered(update))

    def _take_denied(self, listed: DenyList) -> None:
        order = DeniedVersion(version=listed.version, issued_s=listed.issued_s)
        self.driver.post(Ordered(order))
        self.uplinks.review()
        self._tell_homes()
        self.status.changed()

    def _tell_homes(self) -> None:
        """Has the device go to homes that are not revoked, where there are any."""
        listed = DenyList() if self.denied is None else self.denied()
        trusted = [h for h in self.homes if not listed.revoked(h.node)]
        homes = [address(h.node) for h in trusted or self.homes]
        self.driver.post(Ordered(Homes(homes=homes)))

    def _refused(self, home: Node, why: str) -> None:
        if self._refusals.get(home) != why:
            self._refusals[home] = why
            log.error("%s", self._problem())
            self.status.changed()

    def _connected(self, home: Node) -> None:
        if self._refusals.pop(home, None) is not None:
            self.status.changed()
        self._denied_asked.set()
        self.driver.post(Ordered(Connected(home=address(home))))

    def _conditions_changed(self, seen: Conditions) -> None:
        self.seen = seen
        self.runner.allow(seen.eligibility.consented)
        self.driver.post(Ordered(seen))
        self.status.changed()

    def _is_fresh(self) -> bool | None:
        """Whether the data has changed since it was trained on."""
        version = version_of(self.settings.worker.data)
        trained = self.runner.trained_version
        return None if version is None else version != trained

    def _recorded(self, record: Record) -> None:
        if record.kind == "answered":
            self.answered += 1
        elif record.kind == "session":
            self._session_failed(record.fields["reason"])
        elif record.kind == "deny_list_awaited" and self.denied is not None:
            self.denied.wanted = record.fields["version"]
            self._denied_asked.set()
        elif record.kind == "log_fork":
            assert self.who.identity is not None
            keep_fork(self.who.identity.folder, record.fields)
            return
        if record.kind != "ignored":
            log.info(record.kind, extra=shown(record.fields))
        if not self.has_model.is_set() and stamp(self.personal.folder):
            self.has_model.set()
        self.status.changed()

    def _floor(self) -> dict[str, Any]:
        floor = self.settings.policy.floor
        return {"cohort_min": floor.cohort_min, "corrupt": floor.corrupt}

    def _session_failed(self, reason: str) -> None:
        self.sessions_failed[reason] += 1
        if reason in OWNER_REFUSES and self.sessions_failed[reason] == 1:
            log.warning(OWNER_REFUSES[reason], extra={"reason": reason})

    # ------------------------------------------------ what it says of itself

    def facts(self) -> dict[str, Any]:
        """For the one line that a daemon says when it serves."""
        return {
            "node": str(self.who.node),
            "pid": os.getpid(),
            "folder": str(self.settings.folder),
            "homes": [h.grpc or h.mqtt for h in self.homes],
            "inference": str(self.settings.inference or ""),
        }

    def _problem(self) -> str:
        """Why it takes part in nothing, where its owner can see to that; else empty."""
        own = self.who.node
        listed = None if self.denied is None else self.denied()
        if (listed is not None and listed.revoked(own)) or "revoked" in self._refusals.values():
            return (
                "this device was revoked: the federation gives it no more tasks. To take part again"
                " it joins with a new token (`delian join -`) and another --state"
            )
        if self._refusals:
            return "; ".join(f"{h} refuses it: {why}" for h, why in self._refusals.items())
        if not self.seen.eligibility.consented:
            return (
                "it takes no task before its owner agrees: delian device consent yes --state"
                f" {self.settings.folder}"
            )
        return ""

    def _slot(self) -> Slot | None:
        """The personal model that is served; read again only when it is another."""
        now = stamp(self.personal.folder)
        if now != self._slot_at[0]:
            self._slot_at = now, self.personal.current()
        return self._slot_at[1]

    def _released(self, state: DeviceState | None) -> dict[str, Any]:
        """The device's own privacy account.

        Epsilon at delta of the updates with noise, and the numbers of updates that left with the
        devices' noise and without.
        """
        cap = min(self.settings.policy.caps, key=lambda cap: cap.epsilon, default=Cap())
        spent = Releases() if state is None or state.releases is None else state.releases
        return {
            "epsilon": round(spent.epsilon(cap.delta), 4),
            "delta": cap.delta,
            "epsilon_max": None if math.isinf(cap.epsilon) else cap.epsilon,
            "with_noise": spent.bounded,
            "without_noise": spent.unbounded,
        }

    def _status(self) -> dict[str, Any]:
        told, state = self.seen.eligibility, None
        with contextlib.suppress(AssertionError, AttributeError):
            machine = self.driver.machine
            state = machine.state if isinstance(machine, DeviceMachine) else None
        slot = self._slot()
        task = None if state is None else state.task
        return {
            **self.facts(),
            "phase": None if state is None else state.phase.value,
            "problem": self._problem(),
            "home": None if state is None else str(Node(Tier.EDGE, state.home)),
            "run": None if task is None else number_of(task.run),
            "round": None if task is None else task.round,
            "answered": self.answered,
            "sessions_failed": dict(sorted(self.sessions_failed.items())),
            "traffic": self.switch.traffic.to_json(),
            "eligibility": {
                n: bool(getattr(told, n))
                for n in ("powered", "unmetered", "idle", "consented", "fresh")
            },
            "memory_mib": self.seen.facts.memory_mib,
            "storage_mib": self.seen.facts.storage_mib,
            "training_pid": self.runner.pid,
            "plain_tasks": "refused" if self.settings.policy.secure_required else "allowed",
            "masks_floor": self._floor(),
            "released": self._released(state),
            "deny_list": 0 if self.denied is None else self.denied().version,
            "deny_list_issued_ms": 0 if self.denied is None else self.denied().issued_s * 1000,
            "signed_only": self.gate is not None,
            "bundles_refused": 0 if self.gate is None else self.gate.counts.total(),
            "personal_model": None if slot is None else slot.digest,
            "personal_loss": None if slot is None else slot.judgement.loss_after,
            "shared_loss": None if slot is None else slot.judgement.loss_before,
            "started_ms": int(self.began * 1000),
        }


def _limit(sender: Node) -> int:
    """Bytes of the largest message that it takes: blobs apart, a Cohort of a thousand."""
    return messages.DOWN_BYTES_MAX


def _with_consent_file(settings: DeviceSettings) -> DeviceSettings:
    """Consent is read from the device's folder unless the owner names another file."""
    if settings.conditions.consent_file is not None:
        return settings
    file = settings.folder / "consent"
    return replace(settings, conditions=replace(settings.conditions, consent_file=file))


async def _keep_serving(folder: Path, path: Path, worker: WorkerSettings) -> None:
    """Keeps the inference server running in a process of its own."""
    command = (
        sys.executable,
        "-P",
        "-m",
        "delian.device.serving.inference",
        str(folder),
        str(path),
    )
    pause = SERVER_AGAIN_S
    while True:
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *command,
            *("--backend", worker.backend, "--parent", str(os.getpid())),
            *(part for artifact in worker.artifacts for part in ("--artifact", artifact)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            # What it compiles is not what the agent loads.
            env={**os.environ, toolchain.PART: cache.WORKERS},
            start_new_session=True,
        )
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), SERVER_STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()
            path.unlink(missing_ok=True)  # the server itself may remove nothing
            raise
        lived = time.monotonic() - began
        pause = SERVER_AGAIN_S if lived > SERVER_AGAIN_S_MAX else min(2 * pause, SERVER_AGAIN_S_MAX)
        log.warning("the inference server ended", extra={"code": code, "again_s": pause})
        await asyncio.sleep(pause)
