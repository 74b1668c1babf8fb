"""Planted bugs of a coordinator: of its rounds, its waves and its roster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from delian.cloud.protocol import buffered_machine, rounds_machine, staleness
from delian.cloud.protocol.buffered import Buffered
from delian.cloud.protocol.buffered_machine import BufferedMachine
from delian.cloud.protocol.coordinator_state import Attempt, Phase
from delian.cloud.protocol.roster import Roster
from delian.cloud.protocol.rounds import Rounds
from delian.cloud.protocol.rounds_machine import RoundsMachine
from delian.cloud.protocol.run import Run
from delian.core.protocol.ports import Started

from .planting import Patch, mutant, replace_action


@mutant("sum", seed=39)
def adds_a_sum_twice(patch: Patch) -> None:
    """A coordinator adds a repeated sum again."""

    read = RoundsMachine._read_message

    def read_again(self: Any, message: Any) -> Any:
        trigger, subject = read(self, message)
        if trigger is rounds_machine.Trigger.SUM_AGAIN and self._open(message) and message.count:
            self.rounds.at_hand.total += np.frombuffer(message.sum, "<u4")
        return trigger, subject

    patch.setattr(RoundsMachine, "_read_message", read_again)


@mutant("sum", "lost", "bounds", seed=6)
def carries_over_a_failed_sum(patch: Patch) -> None:
    """A coordinator carries the sum of a failed attempt into the next."""
    try_again, select = Rounds.try_again, Rounds.select
    kept: dict[int, Any] = {}

    def keep(self: Any, subject: object) -> None:
        if self.state.open and not self.state.open[0].evaluates:
            kept[self.plan.run] = self.state.open[0].total
        try_again(self, subject)

    def select_and_keep(self: Any, count: int) -> None:
        select(self, count)
        if not self.state.open[0].evaluates:
            self.state.open[0].total = kept.pop(self.plan.run, None)

    replace_action(patch, RoundsMachine, Rounds, "try_again", keep)
    replace_action(patch, RoundsMachine, Rounds, "select", select_and_keep)


@mutant("sum", "lost", "bounds", seed=31)
def trusts_lost_edges(patch: Patch) -> None:
    """A coordinator names the devices of a lost edge as reported."""

    def lose(self: Any, number: int) -> None:
        attempt = self.state.open[0]
        attempt.lose(number)
        attempt.shares[number].reported = list(attempt.shares[number].devices)
        attempt.unused += attempt.shares[number].devices
        self._after_report(number)

    replace_action(patch, RoundsMachine, Rounds, "lose", lose)


@mutant("refused", "sum", "once", seed=27)
def ignores_the_part(patch: Patch) -> None:
    """A coordinator takes any part of a wave's sum for the next one."""
    read = BufferedMachine._read_message

    def read_any(self: Any, message: Any) -> Any:
        is_sum = isinstance(message, buffered_machine.EdgeSum)
        wave = self.buffered.waves.at(message.round, message.attempt) if is_sum else None
        share = None if wave is None else wave.shares.get(getattr(message, "edge", -1))
        if share is not None and not share.over and isinstance(message, buffered_machine.EdgeSum):
            message.part = share.part
        return read(self, message)

    patch.setattr(BufferedMachine, "_read_message", read_any)


@mutant("once", "sum", "lost", seed=26)
def takes_a_part_again(patch: Patch) -> None:
    """A coordinator takes a part of a wave's sum as often as it comes."""
    read = BufferedMachine._read_message

    def read_again(self: Any, message: Any) -> Any:
        trigger, subject = read(self, message)
        if trigger is not buffered_machine.Trigger.SUM_AGAIN:
            return trigger, subject
        wave = self.buffered.waves.at(message.round, message.attempt)
        if wave is not None and message.count:
            share = wave.shares[message.edge]
            share.reported = [d for d in share.reported if d not in message.devices]
            return buffered_machine.Trigger.SUM, subject
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
    drop = Buffered._drop_stale

    def drop_later(self: Any) -> None:
        plan, age = self.plan, self.plan.round.staleness_max + 1
        self.plan = replace(plan, round=replace(plan.round, staleness_max=age))
        drop(self)
        self.plan = plan

    patch.setattr(Buffered, "_drop_stale", drop_later)


@mutant("attempt", seed=1)
def adds_up_progress(patch: Patch) -> None:
    """A coordinator adds what an edge has counted to what it had said before."""

    def note(self: Any, message: Any) -> None:
        share = self.at_hand.shares[message.edge]
        share.alive = True
        share.counted += message.counted
        self._post_if_met()

    replace_action(patch, RoundsMachine, Rounds, "note", note)


@mutant("attempt", "sum", seed=4)
def does_not_raise_the_attempt(patch: Patch) -> None:
    """A failed attempt is tried again under its old number."""

    def try_again(self: Any, _: object) -> None:
        self.state.open.clear()
        self.wait(None)

    replace_action(patch, RoundsMachine, Rounds, "try_again", try_again)


@mutant("attempt", seed=62)
def counts_failures_for_ever(patch: Patch) -> None:
    """A model does not end a row of failed attempts."""
    take = Rounds._take

    def remember(self: Any, model: Any) -> None:
        failed = self.state.failed
        take(self, model)
        self.state.failed = failed

    patch.setattr(Rounds, "_take", remember)


@mutant("attempt", seed=4)
def tries_once_more(patch: Patch) -> None:
    """A run gives up one failed attempt too late."""
    fall_short = Rounds.fall_short

    def too_late(self: Any, why: str) -> None:
        plan, most = self.plan, self.plan.round.attempts_max + 1
        self.plan = replace(plan, round=replace(plan.round, attempts_max=most))
        fall_short(self, why)
        self.plan = plan

    replace_action(patch, RoundsMachine, Rounds, "fall_short", too_late)


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
    for trigger in (rounds_machine.Trigger.ALL_IN, rounds_machine.Trigger.TIME_OVER):
        rows[Phase.EVALUATING, trigger] = rows[Phase.COLLECTING, trigger]
    rows[Phase.EVALUATING, rounds_machine.Trigger.CLOSE] = rows[
        Phase.COLLECTING, rounds_machine.Trigger.CLOSE
    ]
    patch.setattr(RoundsMachine, "rows", rows)


@mutant("roster", "progress", seed=8)
def ignores_incarnations(patch: Patch) -> None:
    """A coordinator judges by its number alone which hello of an edge is the newest."""

    def is_new(self: Any, message: Any) -> bool:
        view = self.edges.get(message.edge)
        return view is None or message.sequence > view.sequence

    patch.setattr(Roster, "is_new", is_new)


@mutant("lost", seed=28)
def forgets_failures_on_restart(patch: Patch) -> None:
    """A coordinator that starts again has forgotten who had failed."""
    resume = Rounds.resume

    def forget(self: Any, subject: object) -> None:
        self.at_hand.failures = {}
        resume(self, subject)

    replace_action(patch, RoundsMachine, Rounds, "resume", forget)


@mutant("progress", seed=0)
def waits_for_ever_after_restart(patch: Patch) -> None:
    """A coordinator that starts again sets no timer for the end of its pause."""
    wait = Rounds.wait

    def no_timers(self: Any, subject: object) -> None:
        wait(self, subject)
        if isinstance(self.out.event, Started):
            self.out.effects.clear()

    replace_action(patch, RoundsMachine, Rounds, "wait", no_timers)


@mutant("order", seed=3)
def forgets_a_pause(patch: Patch) -> None:
    """A pause that is ordered while devices train is not remembered."""
    replace_action(patch, RoundsMachine, Rounds, "pause_after", lambda self, _: None)


@mutant("order", "progress", seed=1)
def forgets_ordered_weights(patch: Patch) -> None:
    """Ordered weights are taken only when nothing is under way."""

    def take(self: Any, weights: Any) -> None:
        if self.state.phase in (Phase.WAITING, Phase.PAUSED):
            self.state.ordered = weights
            self._use_ordered()

    replace_action(patch, RoundsMachine, Rounds, "take_weights", take)


@mutant("blob", seed=1)
def drops_weights_too_early(patch: Patch) -> None:
    """The coordinator drops a model as soon as there is a newer one."""
    patch.setattr(Run, "needs", lambda self, digest: False)
