"""Planted bugs of the protocol: what the oracles must find.

Each is a small change to a machine, to its journal or to the driver's order of doing things,
planted through pytest's MonkeyPatch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from delian.cloud import buffered, helpers, rounds, staleness
from delian.cloud.buffered import BufferedMachine
from delian.cloud.machine import Coordinator
from delian.cloud.roster import Roster
from delian.cloud.rounds import RoundsMachine
from delian.cloud.run import RunMachine
from delian.cloud.state import Attempt, Phase
from delian.core.ports import ProgramFinished, SetTimer, Started
from delian.core.secagg import client, helper, kdf, server
from delian.core.secagg.client import ClientSession
from delian.core.secagg.client import Phase as ClientPhase
from delian.core.secagg.server import ServerSession
from delian.core.wire.round_pb2 import COUNTED, Failure
from delian.core.wire.secure_pb2 import Survivors
from delian.device.machine import DeviceMachine
from delian.device.machine import Trigger as DeviceTrigger
from delian.edge import collection
from delian.edge import machine as edge
from delian.edge.collection import Collection
from delian.edge.machine import EdgeMachine
from delian.simulations.dst.host import Host

Patch = pytest.MonkeyPatch
MUTANTS: list[Mutant] = []


@dataclass(frozen=True)
class Mutant:
    """A planted bug. oracles: those that may find it, the one that is meant to first. seed: one in
    which it shows, as of this writing.
    """

    name: str
    what: str
    plant: Callable[[Patch], None]
    oracles: tuple[str, ...]
    seed: int


def mutant(*oracles: str, seed: int) -> Callable[[Callable[[Patch], None]], Any]:
    def register(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        what = " ".join((plant.__doc__ or "").split())
        MUTANTS.append(Mutant(plant.__name__, what, plant, oracles, seed))
        return plant

    return register


# ---------------------------------------------------------------- the edge


@mutant("sum", seed=6)
def counts_twice(patch: Patch) -> None:
    """An edge adds a repeated upload again."""

    def again(self: Any, message: Any) -> None:
        if getattr(message, "vector", None) and self.state.total is not None:
            self._add(message.vector)

    patch.setattr(Collection, "ack_again", again)


@mutant("sum", "lost", seed=21)
def counts_late(patch: Patch) -> None:
    """An edge takes an answer of an earlier attempt for one of this."""
    read = EdgeMachine._read_device

    def read_any(self: Any, sender: Any, message: Any) -> Any:
        trigger, subject = read(self, sender, message)
        at_work = self._tasked.get(sender.number)
        if trigger is edge.Trigger.LATE_ANSWER and at_work is not None:
            return edge.Trigger.ATTEMPT, at_work
        return trigger, subject

    patch.setattr(EdgeMachine, "_read_device", read_any)


@mutant("sum", "lost", "refused", "bounds", seed=1)
def counts_failures(patch: Patch) -> None:
    """An edge names a device in its sum that has said that there is no update."""
    count = Collection.count

    def count_any(self: Any, message: Any) -> None:
        count(self, message)
        if isinstance(message, Failure):
            self.state.answers[message.device] = collection.IN_SUM

    patch.setattr(Collection, "count", count_any)


@mutant("lost", seed=1)
def says_counted_to_all(patch: Patch) -> None:
    """An edge tells COUNTED whatever became of the update."""
    ack = collection.ack
    patch.setattr(edge, "ack", lambda message, status: ack(message, COUNTED))
    patch.setattr(collection, "ack", lambda message, status: ack(message, COUNTED))


@mutant("lost", "sum", "machine", seed=6)
def opens_closed_attempts(patch: Patch) -> None:
    """An edge opens an attempt again that is over, when its task comes again."""
    read = EdgeMachine._read_cloud

    def read_any(self: Any, message: Any) -> Any:
        trigger, subject = read(self, message)
        if trigger is edge.Trigger.STALE and isinstance(message, edge.EdgeTask):
            return edge.Trigger.TASK, message
        return trigger, subject

    patch.setattr(EdgeMachine, "_read_cloud", read_any)


@mutant("sum", "machine", "bounds", seed=4)
def loses_the_total_on_restart(patch: Patch) -> None:
    """An edge that starts again has forgotten its running sums."""
    restart = EdgeMachine.restart

    def forget(self: Any, stored: Any) -> None:
        for one in self.state.collections.values():
            one.total = None
        restart(self, stored)

    patch.setattr(EdgeMachine, "restart", forget)


@mutant("progress", seed=21)
def repeats_no_sum(patch: Patch) -> None:
    """An edge sends each sum once."""

    def send(self: Any, _: object) -> None:
        """Whatever was lost is lost."""

    patch.setattr(Collection, "send_sums", send)


@mutant("lost", "progress", seed=29)
def drops_all_sums_at_one_ack(patch: Patch) -> None:
    """An edge forgets all parts of its sum when one is acknowledged."""
    drop = Collection.drop_sum

    def drop_all(self: Any, message: Any) -> None:
        part = message.part
        self.state.outgoing = {part: self.state.outgoing[part]}
        self.state.sizes = {part: self.state.sizes[part]}
        drop(self, message)

    patch.setattr(Collection, "drop_sum", drop_all)


@mutant("bounds", seed=1)
def remembers_for_ever(patch: Patch) -> None:
    """An edge never forgets an attempt."""

    def remember(self: Any, name: str, closed: Any) -> None:
        self.state.closed[name] = closed

    patch.setattr(EdgeMachine, "_remember", remember)


# ---------------------------------------------------------------- the coordinator


@mutant("sum", seed=2)
def adds_a_sum_twice(patch: Patch) -> None:
    """A coordinator adds a repeated sum again."""

    read = RoundsMachine._read_message

    def read_again(self: Any, message: Any) -> Any:
        trigger, subject = read(self, message)
        if trigger is rounds.Trigger.SUM_AGAIN and self._is_open(message) and message.count:
            self._at_hand().total += np.frombuffer(message.sum, "<u4")
        return trigger, subject

    patch.setattr(RoundsMachine, "_read_message", read_again)


@mutant("sum", "lost", "bounds", seed=4)
def carries_over_a_failed_sum(patch: Patch) -> None:
    """A coordinator carries the sum of a failed attempt into the next."""
    try_again, select = RoundsMachine.try_again, RoundsMachine.select
    kept: dict[int, Any] = {}

    def keep(self: Any, subject: object) -> None:
        if self.state.open and not self.state.open[0].evaluates:
            kept[self.plan.run] = self.state.open[0].total
        try_again(self, subject)

    def select_and_keep(self: Any, count: int) -> None:
        select(self, count)
        if not self.state.open[0].evaluates:
            self.state.open[0].total = kept.pop(self.plan.run, None)

    patch.setattr(RoundsMachine, "try_again", keep)
    patch.setattr(RoundsMachine, "select", select_and_keep)


@mutant("sum", "lost", "bounds", seed=8)
def trusts_lost_edges(patch: Patch) -> None:
    """A coordinator names the devices of a lost edge as reported."""

    def lose(self: Any, number: int) -> None:
        attempt = self.state.open[0]
        attempt.lose(number)
        attempt.shares[number].reported = list(attempt.shares[number].devices)
        attempt.unused += attempt.shares[number].devices
        self._after_report(number)

    patch.setattr(RoundsMachine, "lose", lose)


@mutant("refused", "sum", "once", seed=24)
def ignores_the_part(patch: Patch) -> None:
    """A coordinator takes any part of a wave's sum for the next one."""
    read = BufferedMachine._read_message

    def read_any(self: Any, message: Any) -> Any:
        is_sum = isinstance(message, buffered.EdgeSum)
        wave = self._wave(message.round, message.attempt) if is_sum else None
        share = None if wave is None else wave.shares.get(getattr(message, "edge", -1))
        if share is not None and not share.over and isinstance(message, buffered.EdgeSum):
            message.part = share.part
        return read(self, message)

    patch.setattr(BufferedMachine, "_read_message", read_any)


@mutant("once", "sum", "lost", seed=19)
def takes_a_part_again(patch: Patch) -> None:
    """A coordinator takes a part of a wave's sum as often as it comes."""
    read = BufferedMachine._read_message

    def read_again(self: Any, message: Any) -> Any:
        trigger, subject = read(self, message)
        if trigger is not buffered.Trigger.SUM_AGAIN:
            return trigger, subject
        wave = self._wave(message.round, message.attempt)
        if wave is not None and message.count:
            share = wave.shares[message.edge]
            share.reported = [d for d in share.reported if d not in message.devices]
            return buffered.Trigger.SUM, subject
        return trigger, subject

    patch.setattr(BufferedMachine, "_read_message", read_again)


@mutant("once", "lost", seed=1)
def uses_a_batch_twice(patch: Patch) -> None:
    """A coordinator leaves in a wave what it took out of it for a model."""
    take = staleness.take

    def take_and_leave(wave: Attempt) -> Attempt:
        piece = take(wave)
        assert piece.total is not None
        wave.total, wave.unused = piece.total.copy(), list(piece.unused)
        return piece

    patch.setattr(staleness, "take", take_and_leave)


@mutant("sum", seed=1)
def weighs_ages_off_by_one(patch: Patch) -> None:
    """Updates one model old count as fresh ones."""
    weight = staleness.staleness_weight
    patch.setattr(staleness, "staleness_weight", lambda tau: weight(max(0, tau - 1)))


@mutant("sum", seed=6)
def keeps_stale_updates(patch: Patch) -> None:
    """Updates are dropped one model too late."""
    drop = BufferedMachine._drop_stale

    def drop_later(self: Any) -> None:
        plan, self.plan = self.plan, replace(self.plan, staleness_max=self.plan.staleness_max + 1)
        drop(self)
        self.plan = plan

    patch.setattr(BufferedMachine, "_drop_stale", drop_later)


@mutant("attempt", seed=1)
def adds_up_progress(patch: Patch) -> None:
    """A coordinator adds what an edge has counted to what it had said before."""

    def note(self: Any, message: Any) -> None:
        share = self._at_hand().shares[message.edge]
        share.alive = True
        share.counted += message.counted
        self._post_if_met()

    patch.setattr(RoundsMachine, "note", note)


@mutant("attempt", "sum", seed=4)
def does_not_raise_the_attempt(patch: Patch) -> None:
    """A failed attempt is tried again under its old number."""

    def try_again(self: Any, _: object) -> None:
        self.state.open.clear()
        self.wait(None)

    patch.setattr(RoundsMachine, "try_again", try_again)


@mutant("attempt", seed=0)
def takes_all_that_is_offered(patch: Patch) -> None:
    """A run tasks all ready devices, whatever its plan says."""
    read = RoundsMachine._read_offer

    def read_all(self: Any, offer: Any) -> Any:
        trigger, subject = read(self, offer)
        return trigger, offer.devices if isinstance(subject, int) else subject

    patch.setattr(RoundsMachine, "_read_offer", read_all)


@mutant("refused", "machine", "sum", seed=6)
def applies_an_evaluation(patch: Patch) -> None:
    """The sum of an evaluation's metrics goes to the server update."""
    rows = dict(RoundsMachine.rows)
    for trigger in (rounds.Trigger.ALL_IN, rounds.Trigger.TIME_OVER):
        rows[Phase.EVALUATING, trigger] = rows[Phase.COLLECTING, trigger]
    rows[Phase.EVALUATING, rounds.Trigger.CLOSE] = rows[Phase.COLLECTING, rounds.Trigger.CLOSE]
    patch.setattr(RoundsMachine, "rows", rows)


@mutant("roster", "progress", seed=8)
def ignores_incarnations(patch: Patch) -> None:
    """A coordinator judges by its number alone which hello of an edge is the newest."""

    def is_new(self: Any, message: Any) -> bool:
        view = self.edges.get(message.edge)
        return view is None or message.sequence > view.sequence

    patch.setattr(Roster, "is_new", is_new)


@mutant("lost", seed=93)
def forgets_failures_on_restart(patch: Patch) -> None:
    """A coordinator that starts again has forgotten who had failed."""
    resume = RoundsMachine.resume

    def forget(self: Any, subject: object) -> None:
        self._at_hand().failures = {}
        resume(self, subject)

    patch.setattr(RoundsMachine, "resume", forget)


@mutant("progress", seed=0)
def waits_for_ever_after_restart(patch: Patch) -> None:
    """A coordinator that starts again sets no timer for the end of its pause."""
    wait = RoundsMachine.wait

    def no_timers(self: Any, subject: object) -> None:
        wait(self, subject)
        if isinstance(self._event, Started):
            self._effects.clear()

    patch.setattr(RoundsMachine, "wait", no_timers)


@mutant("order", seed=3)
def forgets_a_pause(patch: Patch) -> None:
    """A pause that is ordered while devices train is not remembered."""
    patch.setattr(RoundsMachine, "pause_after", lambda self, _: None)


@mutant("order", "progress", seed=1)
def forgets_ordered_weights(patch: Patch) -> None:
    """Ordered weights are taken only when nothing is under way."""

    def take(self: Any, weights: Any) -> None:
        if self.state.phase in (Phase.WAITING, Phase.PAUSED):
            self.state.ordered = weights
            self._use_ordered()

    patch.setattr(RoundsMachine, "take_weights", take)


@mutant("blob", seed=1)
def drops_weights_too_early(patch: Patch) -> None:
    """The coordinator drops a model as soon as there is a newer one."""
    patch.setattr(BufferedMachine, "needs", lambda self, digest: False)


# ---------------------------------------------------------------- the device


@mutant("again", "once", "sum", seed=6)
def trains_what_is_done(patch: Patch) -> None:
    """A device takes a task again that it has answered."""
    read = DeviceMachine._read_task

    def read_any(self: Any, task: Any) -> Any:
        trigger = read(self, task)
        return DeviceTrigger.TASK if trigger is DeviceTrigger.UNWANTED else trigger

    patch.setattr(DeviceMachine, "_read_task", read_any)


@mutant("progress", seed=2)
def never_goes_to_another_home(patch: Patch) -> None:
    """A device asks its first home for ever."""
    patch.setattr(DeviceMachine, "rehome", DeviceMachine.repeat_check_in)


@mutant("progress", seed=2)
def sets_no_timer_after_restart(patch: Patch) -> None:
    """A device that starts again checks in once, and never again when no answer comes."""
    start = DeviceMachine.start

    def start_once(self: Any, stored: Any) -> None:
        start(self, stored)
        self._effects[:] = [e for e in self._effects if not isinstance(e, SetTimer)]

    patch.setattr(DeviceMachine, "start", start_once)


@mutant("private", seed=0)
def tells_its_examples(patch: Patch) -> None:
    """A device counts its check-ins from its number of examples."""
    read = DeviceMachine.read

    def read_and_tell(self: Any, event: Any) -> Any:
        found = read(self, event)
        if isinstance(event, ProgramFinished) and found[0] is DeviceTrigger.TRAINED:
            self.state.sequence = event.outcome.examples - 1
        return found

    patch.setattr(DeviceMachine, "read", read_and_tell)


# ---------------------------------------------------------------- secure aggregation


@mutant("ledger", seed=4)
def makes_the_same_keys_again(patch: Patch) -> None:
    """A device makes the keys of every attempt of one secret that never moves on."""
    patch.setattr(kdf, "session_secret", lambda master, session: kdf.hkdf(master, b"session"))
    patch.setattr(kdf, "ratchet", lambda master: master)


@mutant("sum", "machine", "progress", seed=4)
def adds_every_mask(patch: Patch) -> None:
    """A device adds all its masks, also those that it should subtract."""
    patch.setattr(client, "sign_towards", lambda own, other: 1)


@mutant("sum", "machine", "progress", seed=4)
def gives_the_other_share(patch: Patch) -> None:
    """A device gives shares of the mask keys of those in the sum, and not of their seeds."""
    opened = kdf.open_sealed

    def turned(*arguments: Any) -> bytes:
        plain = opened(*arguments)
        return plain[32:] + plain[:32]

    patch.setattr(kdf, "open_sealed", turned)


@mutant("ledger", seed=4)
def signs_whatever_it_is_told(patch: Patch) -> None:
    """A coordinator that asks again names other survivors, and a device signs those too."""
    answer, hear = ServerSession.answer, ClientSession.take_survivors
    told = set()

    def other(self: Any, device: int) -> Any:
        message = answer(self, device)
        name = (self.state.leaves, device)  # of one session
        if isinstance(message, Survivors) and name in told:
            members = bytearray(message.members)
            for index, member in enumerate(self.state.members):
                if member != device and members[index >> 3] >> (index & 7) & 1:
                    members[index >> 3] ^= 1 << (index & 7)
                    break
            message.members = bytes(members)
        if isinstance(message, Survivors):
            told.add(name)
        return message

    def sign(self: Any, survivors: Any) -> Any:
        self.state.heard.pop("Survivors", None)
        if self.state.phase is ClientPhase.CONSENTED:
            self.state.phase = ClientPhase.MASKED
        return hear(self, survivors)

    patch.setattr(ServerSession, "answer", other)
    patch.setattr(ClientSession, "take_survivors", sign)


@mutant("sum", "machine", "progress", seed=4)
def needs_one_share_less(patch: Patch) -> None:
    """A coordinator makes a secret of one share less than it takes."""
    recover = server.recover

    def too_early(shares: Any, threshold: int, public: Any) -> Any:
        few = dict(sorted(shares.items())[: threshold - 1])
        return recover(few, threshold - 1, None)

    patch.setattr(server, "recover", too_early)


@mutant("sum", seed=4)
def reads_the_sum_with_its_masks(patch: Patch) -> None:
    """A coordinator takes the masked sum for the sum."""
    opened = RoundsMachine._opened

    def masked(self: Any, attempt: Any, outcome: Any) -> str:
        total = attempt.total
        why = opened(self, attempt, outcome)
        attempt.total = total
        return why

    patch.setattr(RunMachine, "_opened", masked)


@mutant("sum", "lost", "machine", "progress", seed=4)
def unmasks_for_others(patch: Patch) -> None:
    """A coordinator leaves a device of the sum out of the survivors."""
    survivors = ServerSession.survivors

    def without_one(self: Any, devices: Any) -> Any:
        return survivors(self, sorted(devices)[1:])

    patch.setattr(ServerSession, "survivors", without_one)


# ---------------------------------------------------------------- helpers


@mutant("sum", seed=8)
def shows_every_batch_by_one_number(patch: Patch) -> None:
    """A coordinator does not count the batches that it shows to helpers."""
    make = helpers.HelpedMachine._batch

    def first_again(self: Any, pieces: Any) -> Any:
        self.state.batches = 0
        return make(self, pieces)

    patch.setattr(helpers.HelpedMachine, "_batch", first_again)


@mutant("sum", "progress", seed=8)
def has_single_devices_unmasked(patch: Patch) -> None:
    """A coordinator asks for sums of as few devices as there happen to be of a model."""
    grouped = helpers.grouped
    patch.setattr(helpers, "grouped", lambda waves, least, room: grouped(waves, 1, room))


@mutant("sum", seed=24)
def leaves_the_second_helper_s_masks_in(patch: Patch) -> None:
    """A coordinator makes a model when the first helper has answered."""
    unmask = helpers.HelpedMachine.unmask

    def content_with_one(self: Any, message: Any) -> None:
        for batch in self.state.opening:
            batch.requests = {e: r for e, r in batch.requests.items() if e == message.edge}
        unmask(self, message)

    patch.setattr(helpers.HelpedMachine, "unmask", content_with_one)


@mutant("sum", seed=8)
def a_helper_leaves_a_mask_out(patch: Patch) -> None:
    """An edge that helps adds up the masks of all but one."""
    answer = helper.Helper.answer

    def without_one(self: Any, request: Any, ledger: Any) -> Any:
        found = answer(self, request, ledger)
        return replace(found, keys=found.keys[1:])

    patch.setattr(helper.Helper, "answer", without_one)


@mutant("helper", "once", "sum", "lost", seed=8)
def opens_seeds_twice(patch: Patch) -> None:
    """A helper keeps no ledger, and a coordinator uses a wave's first piece again."""
    take = staleness.take

    def keep(wave: Any) -> Any:
        kept = (wave.total, wave.unused, wave.seeds)
        piece = take(wave)
        if wave.helpers:
            wave.total, wave.unused, wave.seeds = kept
        return piece

    patch.setattr(helper, "_note", lambda *what: True)
    patch.setattr(staleness, "take", keep)


# ---------------------------------------------------------------- driver and journal


@mutant("lost", "sum", "order", "attempt", "again", "machine", "once", seed=5)
def acknowledges_before_it_is_durable(patch: Patch) -> None:
    """A driver carries effects out before their events are in the journal."""
    append, carry_out = Host.append, Host.carry_out

    def effects_first(self: Any, batch: Any, crash: float = 2.0) -> None:
        carry_out(self, batch, crash)
        if batch.entries:
            append(self, batch, 2.0)

    patch.setattr(Host, "append", lambda self, batch, crash: None)
    patch.setattr(Host, "carry_out", effects_first)


@mutant("journal", "lost", "sum", "machine", "order", "progress", seed=2)
def does_not_sync(patch: Patch) -> None:
    """A journal writes and does not sync."""
    from delian.core.node.memory import MemoryDisk

    patch.setattr(MemoryDisk, "sync", lambda self, name: None)


@mutant("journal", "lost", "order", "attempt", "machine", seed=5)
def journals_too_little(patch: Patch) -> None:
    """A coordinator says of every event of a run that it changed nothing."""
    pass_on = Coordinator.pass_on

    def unchanged(self: Any, subject: Any) -> None:
        pass_on(self, subject)
        self.changed = False

    patch.setattr(Coordinator, "pass_on", unchanged)


@mutant("blob", seed=31)
def does_not_check_digests(patch: Patch) -> None:
    """A driver keeps a blob whatever it hashes to."""

    def keep(self: Any, blob: Any) -> bool:
        if blob.content:
            self.blobs[blob.digest] = blob.content
        return blob.digest in self.blobs

    patch.setattr(Host, "keep", keep)
