"""What a device does: the actions of the rows of `machine`'s table.

Its parts act on the same state: `acceptance` says which tasks it takes, `secure_session` has the
session of a masked task, `one_shot_session` the masks of one that helpers unmask.
"""

from __future__ import annotations

import numpy as np
from google.protobuf.message import Message

from ...core.privacy.mechanisms.post_processing import finished
from ...core.privacy.mechanisms.ring import RingPlan, carried
from ...core.privacy.mechanisms.sparse import sent
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.privacy.task_limits import left_ms
from ...core.protocol import ports
from ...core.protocol.machine import Output, Part
from ...core.protocol.random_streams import device_key
from ...core.protocol.run_names import least_useful
from ...core.protocol.task_blobs import kept_with, refs_of, sizes_of, window
from ...core.wire import admission_pb2, round_pb2
from ...core.wire.blob_pb2 import Blob, FetchBlob
from ...core.wire.journal_pb2 import Conditions, DeniedVersion
from ...core.wire.log_pb2 import LogUpdate
from . import device_state, device_triggers, releases
from .acceptance import Acceptance
from .one_shot_session import HelpedTasks
from .secure_session import Sessions

_T = device_triggers.Trigger


class Device(Part[device_state.DeviceState]):
    """The actions of a device.

    key_secret: as in `DeviceMachine`.
    """

    def __init__(
        self,
        state: device_state.DeviceState,
        out: Output,
        owner: device_state.Owner,
        rng: ports.Rng,
        key_secret: bytes,
    ) -> None:
        super().__init__(state, out)
        self.owner = owner
        self.rng = rng
        self.acceptance = Acceptance(state, out, owner)
        self.sessions = Sessions(state, out, owner)
        self.helped = HelpedTasks(state, out, owner)
        self._key_secret = key_secret

    # ------------------------------------------------ checking in

    def start(self, stored: tuple[bytes, ...]) -> None:
        self.state.have = list(stored)
        self.check_in(None)

    def check_in(self, _: object) -> None:
        state = self.state
        if state.home not in state.homes:
            self._move(state.homes[0])
        state.sequence += 1
        state.tries = 0
        self.repeat_check_in(None)

    def repeat_check_in(self, _: object) -> None:
        state = self.state
        self.send(
            self.state.home_node,
            admission_pb2.CheckIn(
                device=state.device,
                sequence=state.sequence,
                protocol=ports.PROTOCOL,
                facts=state.facts,
                eligibility=state.eligibility,
            ),
        )
        self._repeat(0)

    def wait(self, message: admission_pb2.Accept) -> None:
        state = self.state
        state.after_task_ms = ports.window(message.after_task)
        state.turned_away = 0
        self.cancel_timer("repeat")
        lease_ms = min(max(message.lease_ms, device_state.LEASE_MS_MIN), ports.RETRY_MS_MAX)
        self.set_timer("lease", self.now + lease_ms * ports.MS)

    def rest(self, message: admission_pb2.Reject) -> None:
        self.state.turned_away = 0
        self._withdraw_offer()
        self._come_back(self._retry(message))

    def come_back_soon(self, message: admission_pb2.Reject) -> None:
        self._come_back(self._retry(message))

    # ------------------------------------------------ changing homes

    def rehome(self, _: object) -> None:
        # The pauses go on growing: when all homes are silent, it is not they that are missing.
        self._move_on()
        self.state.sequence += 1
        self.repeat_check_in(None)

    def leave(self, message: admission_pb2.Reject) -> None:
        state = self.state
        state.turned_away += 1
        self._withdraw_offer()
        self._move_on()
        if state.turned_away < len(state.homes):
            self._come_back(self.owner.policy.rehome_ms)
        else:
            # No home takes it: as after any other Reject.
            state.turned_away = 0
            self._come_back(self._retry(message))

    def _move_on(self) -> None:
        state = self.state
        at = state.homes.index(state.home) if state.home in state.homes else -1
        self._move(state.homes[(at + 1) % len(state.homes)])

    def _move(self, home: int) -> None:
        self.state.home = home
        self.record("rehomed", device=self.state.device, home=home)

    def keep_homes(self, homes: list[int]) -> None:
        state = self.state
        left = dict.fromkeys([*state.former, *state.homes, state.home])
        state.former = [h for h in left if h not in homes][-device_state.HOMES_MAX :]
        state.homes, state.turned_away = homes, 0

    def leave_home(self, homes: list[int]) -> None:
        self._withdraw_offer()
        self.keep_homes(homes)
        self.check_in(None)

    def keep_conditions(self, order: Conditions) -> None:
        self.state.facts, self.state.eligibility = order.facts, order.eligibility

    def check_in_again(self, order: Conditions) -> None:
        self._withdraw_offer()
        self.keep_conditions(order)
        self.check_in(None)

    def come_back_now(self, order: Conditions) -> None:
        self.cancel_timer("retry")
        self.keep_conditions(order)
        self.check_in(None)

    def _withdraw_offer(self) -> None:
        self.cancel_timer("repeat")
        self.cancel_timer("lease")

    def _retry(self, message: admission_pb2.Reject) -> tuple[int, int]:
        return (
            ports.window(message.retry) if message.HasField("retry") else self.owner.policy.retry_ms
        )

    # ------------------------------------------------ working

    def take(self, task: round_pb2.Task) -> None:
        state = self.state
        state.task = task
        state.done.pop(task.run, None)
        state.done[task.run] = (task.round, task.attempt)
        while len(state.done) > device_state.RUNS_REMEMBERED:
            del state.done[least_useful(state.done)]
        state.ends_ns = self.now + left_ms(task) * ports.MS
        for name in ("repeat", "lease", "retry"):
            self.cancel_timer(name)
        self._make_room(task)
        state.helped = b""
        part = self.helped if task.secure.helpers else self.sessions
        refusal = part.begin(task)
        if refusal is None:
            self._begin()
        else:
            self.post(_T.SESSION_FAILED, refusal)

    def _make_room(self, task: round_pb2.Task) -> None:
        """Lets go of what the task does not need and the store would have no room for."""
        state, bundle = self.state, task.bundle.digest
        bundles = [*(b for b in state.bundles if b != bundle), bundle]
        over = bundles[: -device_state.BUNDLES_KEPT]
        # A snapshot of a former version has no sizes of bundles.
        before = {d: 0 for d in bundles if d not in state.kept} | state.kept
        before = {d: size for d, size in before.items() if d not in over}
        state.kept = kept_with(task, before, {}, self.owner.policy.blobs_bytes_max)
        state.bundles = [b for b in bundles if b in state.kept]
        wanted = {*state.kept, task.weights.digest}
        for digest in state.have:
            if digest not in wanted:
                self.emit(ports.DropBlob(digest))
        state.have = [d for d in state.have if d in wanted]

    def decline(self, task: round_pb2.Task) -> None:
        reason = (
            round_pb2.DEADLINE if self.state.eligibility.consented else round_pb2.PROGRAM_FAILED
        )
        self.send(self.state.home_node, self._failure(task, reason))

    def restart(self, stored: tuple[bytes, ...]) -> None:
        self.state.have = list(stored)
        self.sessions.say()
        self._begin()

    def _begin(self) -> None:
        self.set_timer("task", self.state.ends_ns)
        self.state.tries = 0
        self.fetch_again(None)

    def fetch_again(self, _: object) -> None:
        missing = self.missing()
        if not missing:
            self.post(_T.ALL_HERE)
            return
        self._ask(window(missing, device_state.FETCHES_MAX))

    def _ask(self, asked: dict[bytes, int], under_way: int = 0) -> None:
        """Asks its home for blobs. under_way: bytes of those that it was asked for before."""
        for digest in asked:
            self.send(self.state.home_node, FetchBlob(digest=digest))
        self._repeat(sum(asked.values()) + under_way)

    def keep(self, blob: Blob) -> None:
        self.emit(ports.StoreBlob(blob))

    def note(self, digest: bytes) -> None:
        before = window(self.missing(), device_state.FETCHES_MAX)
        self.state.have.append(digest)
        missing = self.missing()
        if not missing:
            self.post(_T.ALL_HERE)
            return
        after = window(missing, device_state.FETCHES_MAX)
        more = {d: size for d, size in after.items() if d not in before}
        if more:
            self.state.tries = 0
            self._ask(more, sum(after.values()) - sum(more.values()))

    def forget(self, digest: bytes) -> None:
        self.state.have.remove(digest)

    def refetch(self, digest: bytes) -> None:
        self.forget(digest)
        self._begin()

    def train(self, _: object) -> None:
        state, task = self.state, self.state.at_hand
        self.cancel_timer("repeat")
        state.ticket += 1
        key = self._key(task)
        program = "evaluate" if task.purpose == round_pb2.EVALUATE else "client_update"
        blobs = tuple(ref.digest for ref in refs_of(task))
        self.emit(ports.RunProgram(state.ticket, program, blobs, (key, task.ring), task))

    def _key(self, task: round_pb2.Task) -> ports.Vector:
        """The device's random key for a task, u32[2]."""
        words = device_key(task.rng_key, self.state.device, self._key_secret)
        return np.array(words, np.uint32)

    def upload(self, outcome: ports.Outcome) -> None:
        self.state.split = outcome.split
        assert outcome.vector is not None
        self._upload(outcome.vector)

    def _upload(self, vector: ports.Vector) -> None:
        task = self.state.at_hand
        upload = round_pb2.Upload(
            run=task.run,
            round=task.round,
            attempt=task.attempt,
            device=self.state.device,
            split=self.state.split,
        )
        plan = RingPlan.of(task.ring)
        whole = finished(vector, plan, task.rng_key, self._key(task))
        helped = bool(self.state.helped)
        masked = self.helped.mask_into(upload, whole) if helped else self.sessions.mask(whole)
        if masked is None:
            self.post(_T.SESSION_FAILED)
            return
        self._charge()
        state = self.state
        if self.out.carries_vectors:
            state.beside = sent(masked, plan) if plan.top else carried(masked, plan)
            state.upload_size = ports.wire_size(upload, len(state.beside))
        else:
            content = sent(masked, plan)
            state.upload_size = ports.wire_size(upload, len(content))
            upload.vector = content
        state.upload = upload
        self.resume_upload(None)

    def upload_held(self, _: object) -> None:
        vector, self.state.trained = self.state.trained, None
        assert vector is not None
        self._upload(vector)

    def refuse(self, reason: round_pb2.FailureReason) -> None:
        self._forget_masks()
        self.state.failure = self._failure(self.state.at_hand, reason)
        self.resume_upload(None)

    def resume_upload(self, _: object) -> None:
        self.set_timer("task", self.state.ends_ns)
        self.state.tries = 0
        self.send_answer(None)

    def send_answer(self, _: object) -> None:
        state = self.state
        if state.upload is not None:
            self.send(self.state.home_node, state.upload, state.upload_size, state.beside or None)
            self._repeat(state.upload_size)
        else:
            assert state.failure is not None
            self.send(self.state.home_node, state.failure)
            self._repeat(0)

    def refuse_task(self, subject: tuple[round_pb2.Task, str]) -> None:
        """The task is not taken, so the true one still may be."""
        task, reason = subject
        refusal = self.acceptance.refuse(reason)
        self.send(self.state.home_node, self._failure(task, refusal))

    def await_list(self, subject: tuple[round_pb2.Task, str]) -> None:
        self.acceptance.await_list(subject[0])

    def keep_denied(self, order: DeniedVersion) -> None:
        self.acceptance.keep_denied(order)

    def keep_log(self, update: LogUpdate) -> None:
        self.acceptance.keep_log(update)

    def _charge(self) -> None:
        """Charges the update at hand to the device's own account, once an attempt."""
        task, state = self.state.at_hand, self.state
        if state.releases is None:
            state.releases = releases.Releases()
        state.releases.charge(task, releases.cost_of(task, self.owner.policy.floor))

    # ------------------------------------------------ masks

    def attend(self, message: Message) -> None:
        try:
            moved = self.sessions.take(message)
        except SecureError:
            self.post(_T.SESSION_FAILED)
            return
        if moved and self.state.phase is device_triggers.SEALING and not self.sessions.is_early:
            self.post(_T.CAN_MASK)

    def poll(self, _: object) -> None:
        self.sessions.poll()

    def poll_elsewhere(self, _: object) -> None:
        # The pauses go on growing: when all homes are silent, it is not they that are missing.
        self._move_on()
        self.sessions.poll()

    def resume_session(self, _: object) -> None:
        self.set_timer("task", self.state.ends_ns)
        self.sessions.say()

    def reset_silence(self, _: object) -> None:
        self.state.unheard = 0

    def hold(self, outcome: ports.Outcome) -> None:
        self.state.trained, self.state.split = outcome.vector, outcome.split

    def leave_cohort(self, refusal: round_pb2.FailureReason | None) -> None:
        """Reports that there is no update. refusal: why, where it is not the session's course."""
        state = self.state
        if state.phase is device_triggers.TRAINING:
            self.emit(ports.CancelProgram(state.ticket))
        self._forget_masks()
        self.cancel_timer("repeat")
        state.upload, state.beside = None, b""
        state.failure = self._failure(state.at_hand, refusal or round_pb2.NOT_IN_COHORT)
        self.resume_upload(None)

    def stay(self, message: round_pb2.UploadAck) -> None:
        state, task = self.state, self.state.at_hand
        self._record_answer(message)
        state.upload, state.beside, state.failure = None, b"", None
        self.cancel_timer("repeat")
        # From the end of its time on: as long again, in which the sums go up, and some more.
        state.ends_ns += task.time_ms * ports.MS + self.owner.policy.unmask_ns
        self.resume_session(None)

    def part(self, _: object) -> None:
        self.record("session_over", device=self.state.device)
        self._end()

    def _forget_masks(self) -> None:
        self.state.helped = b""
        self.sessions.forget()

    # ------------------------------------------------ ending

    def finish(self, message: round_pb2.UploadAck) -> None:
        self._record_answer(message)
        self._end()

    def give_up(self, _: object) -> None:
        self.send(self.state.home_node, self._failure(self.state.at_hand, round_pb2.DEADLINE))
        self.stop(None)

    def withdraw(self, order: Conditions) -> None:
        self.keep_conditions(order)
        self.send(self.state.home_node, self._failure(self.state.at_hand, round_pb2.PROGRAM_FAILED))
        self.stop(None)

    def stop(self, _: object) -> None:
        if self.state.phase is device_triggers.TRAINING:
            self.emit(ports.CancelProgram(self.state.ticket))
        self.abandon(None)

    def withhold(self, order: Conditions) -> None:
        self.keep_conditions(order)
        self.abandon(None)

    def abandon(self, _: object) -> None:
        self.record("abandoned", device=self.state.device, phase=self.state.phase.value)
        self._end()

    def _end(self) -> None:
        state = self.state
        # The weights are of no use after their round; bundle and frozen parts serve the next.
        weights = self.state.at_hand.weights.digest
        if weights in state.have and weights not in state.kept:
            state.have.remove(weights)
            self.emit(ports.DropBlob(weights))
        state.task = state.upload = state.failure = None
        state.beside = b""
        if state.session is not None or state.helped:
            self._forget_masks()
        self.cancel_timer("repeat")
        self.cancel_timer("task")
        self._come_back(state.after_task_ms)

    # ------------------------------------------------ of the task

    def _failure(self, task: round_pb2.Task, reason: round_pb2.FailureReason) -> round_pb2.Failure:
        return round_pb2.Failure(
            run=task.run,
            round=task.round,
            attempt=task.attempt,
            device=self.state.device,
            reason=reason,
        )

    def _record_answer(self, message: round_pb2.UploadAck) -> None:
        """What became of an answer, and whether it was an update."""
        self.record(
            "answered",
            device=self.state.device,
            run=message.run,
            round=message.round,
            attempt=message.attempt,
            status=int(message.status),
            update=self.state.upload is not None,
        )

    def missing(self) -> dict[bytes, int]:
        """Digest -> size of what the task names and the store has not got."""
        task, have = self.state.task, set(self.state.have)
        if task is None:
            return {}
        return {d: size for d, size in sizes_of(refs_of(task)).items() if d not in have}

    def _repeat(self, size: int) -> None:
        self.state.tries += 1
        self.set_timer("repeat", self.now + self.owner.policy.backoff.pause(self.state.tries, size))

    def _come_back(self, window_ms: tuple[int, int]) -> None:
        state, (low, high) = self.state, window_ms
        share = self.rng.unit("device retry", state.device, state.draws)
        state.draws += 1
        self.set_timer("retry", self.now + low * ports.MS + int(share * (high - low) * ports.MS))
