"""A buffered run whose updates helpers unmask, event by event: with real devices' seeds and real
helpers, so that what comes of a batch can be compared with what the devices meant to say. K = 4
updates make a model; edges 5 and 6 help.
"""

from __future__ import annotations

import numpy as np
import pytest
from delian.cloud.protocol.coordinator_state import Attempt, Phase
from delian.cloud.protocol.helpers import grouped
from delian.cloud.protocol.run_plan import PlanError, RunPlan
from delian.cloud.protocol.staleness import staleness_weight
from delian.core.privacy.secagg.helper import Helper, Helpers, Ledger, mask, masks_of
from delian.core.privacy.secagg.limits import BATCH_MAX
from delian.core.privacy.secagg.logged import LogRules
from delian.core.privacy.secagg.member_identity import SimulatedIdentity
from delian.core.privacy.secagg.simulated_log import SimulatedLog, simulated_rules
from delian.core.protocol.ports import SECOND, Ordered, Record, RunProgram, Send
from delian.core.wire.admission_pb2 import EdgeHello
from delian.core.wire.helper_pb2 import (
    ASKED_BEFORE,
    BAD_SEEDS,
    HELP_GIVEN,
    NOT_LOGGED,
    OTHER_HEAD,
    HelpRequest,
    HelpSum,
)
from delian.core.wire.round_pb2 import EdgeSum, EdgeSumAck, EdgeTask
from delian.core.wire.secure_pb2 import HelperKey, SecurePlan
from support import run_bench as _bench

WAVES, RING, HALF, vector = _bench.WAVES, _bench.RING, _bench.HALF, _bench.vector
SEED = 1
HELPERS = (5, 6)
HERE, THERE = [10, 11, 12, 13], [20, 21, 22, 23]


def secure(edges=HELPERS, **changes):
    numbers = {"suite": 1, "cohort_min": 3, "corrupt": 0.0, "dropout": 0.0, **changes}
    return SecurePlan(helpers=[HelperKey(edge=e) for e in edges], **numbers)


def helper(edge, life=1, rules=None):
    identity = SimulatedIdentity(edge, SEED, "edge")
    return Helper(edge, bytes([edge, life]) * 16, identity, rules=rules or LogRules())


def said_by(device):
    """What a device means to say."""
    return vector(device, -device, 7)


class Bench(_bench.Bench):
    """tasks: what each wave's devices were told."""

    def __init__(self, *arguments, **changes):
        settings = {**WAVES, "secure": secure(), "attempts_max": 3, **changes}
        super().__init__(*arguments, **settings)
        self.identity = self.machine.runs.identity = SimulatedIdentity(0, SEED)
        self.helpers = {edge: helper(edge) for edge in HELPERS}
        self.ledgers = {edge: Ledger() for edge in HELPERS}
        self.tasks = {}

    def does(self, event, after=0):
        super().does(event, after)
        for message in self.sent(EdgeTask):
            self.tasks[message.task.round, message.task.attempt] = message.task
        return self

    def sent(self, kind):
        return [e.message for e in self.effects if type(e) is Send and type(e.message) is kind]

    def shown(self):
        """edge -> what the helpers were shown last, by batch."""
        found = {}
        for e in self.effects:
            if type(e) is Send and type(e.message) is HelpRequest:
                found.setdefault(e.to.number, []).append(e.message)
        return found

    def publishes(self, edge, life=1):
        self.hellos += 1
        self.helpers[edge] = helper(edge, life)
        card = self.helpers[edge].card()
        pace = self.machine.state.paced
        hello = EdgeHello(
            edge=edge, incarnation=life, sequence=self.hellos, protocol=1, pace=pace, helper=card
        )
        return self.hears(edge, hello)

    def training(self):
        """The first wave: four devices behind each of two edges that help nobody."""
        self.started()
        for edge in HELPERS:
            self.publishes(edge)
        self.hello(1, HERE).hello(2, THERE)
        self.fires("rest", after=5 * SECOND)
        for wave in list(self.state.open):
            for number in wave.shares:
                self.progress(number, 0, at=(wave.round, wave.attempt))
        return self

    def wave_of(self, device):
        waves = [w for w in self.state.open if device in w.selected()]
        return waves[-1].round, waves[-1].attempt

    def masked(self, device, at):
        helpers = Helpers.of(self.tasks[at])
        me = SimulatedIdentity(device, SEED)
        return mask(said_by(device), helpers, device, bytes([device, at[1]]) * 16, me)

    def part(self, number, *devices, **changes):
        """A part of an edge's sum, after which it goes on."""
        at = self.wave_of(devices[0])
        both = {d: self.masked(d, at) for d in devices}
        (wave,) = [w for w in self.state.open if (w.round, w.attempt) == at]
        seeds = [both[d][1] for d in sorted(both)]
        fields = {"more": True, "seeds": seeds, "part": wave.shares[number].part, **changes}
        return self.sum(number, {d: v for d, (v, _) in both.items()}, at=at, **fields)

    def full(self):
        """Four updates of the first wave are in, and helpers are asked."""
        for devices, number in (((10, 11), 1), ((20, 21), 2)):
            for device in devices:
                self.part(number, device)
        return self

    def answer(self, edge, request, **changes):
        """A helper's own answer."""
        found = self.helpers[edge].answer(request, self.ledgers[edge])
        total = b""
        if found.ring is not None:
            total = masks_of(found.keys, found.ring.length, found.suite).tobytes()
        fields = {"refusal": found.refusal, "bad": found.bad, "sum": total, **changes}
        message = HelpSum(run=request.run, batch=request.batch, edge=edge, **fields)
        return self.hears(edge, message, after=SECOND)

    def helped(self):
        """All helpers answer what they were shown last."""
        for edge, requests in self.shown().items():
            for request in requests:
                self.answer(edge, request)
        return self

    def step(self):
        (program,) = [e for e in self.effects if type(e) is RunProgram]
        assert program.program == "server_update"
        return program.arguments

    def why(self):
        return [r.fields["why"] for r in self.records("round")]

    def records(self, kind):
        return [e for e in self.effects if type(e) is Record and e.kind == kind]


def mean_of(*groups):
    """FedBuff's step of (factor, devices), for devices of weight one half each."""
    total = sum(len(devices) for _, devices in groups)
    step = sum(
        factor * sum(said_by(d)[:-1].view(np.int32).astype(float) for d in devices)
        for factor, devices in groups
    )
    return step / RING.scale / (total / 2)


# ---------------------------------------------------------------- the whole way


def test_the_step_is_that_of_the_updates_without_masks():
    bench = Bench().training().full()
    shown = bench.shown()
    assert sorted(shown) == [5, 6] and bench.state.phase is Phase.AGGREGATING
    for (request,) in shown.values():
        named = [d.device for part in request.parts for d in part.devices]
        assert sorted(named) == [10, 11, 20, 21]
    mean, weight = bench.helped().step()
    np.testing.assert_allclose(mean, mean_of((1.0, [10, 11, 20, 21])), rtol=1e-6)
    assert weight == 2.0
    assert bench.updated().state.round == 2 and not bench.state.opening


def test_each_helper_sees_the_seeds_that_are_sealed_for_it_and_no_others():
    shown = Bench().training().full().shown()
    sealed = {
        edge: {s.sealed for r in requests for p in r.parts for d in p.devices for s in d.seeds}
        for edge, requests in shown.items()
    }
    assert [len(sealed[e]) for e in HELPERS] == [4, 4] and not sealed[5] & sealed[6]


def test_the_coordinator_reads_nothing_before_the_last_helper_has_answered():
    bench = Bench().training().full()
    shown = bench.shown()
    bench.answer(5, shown[5][0])
    assert not bench.records("round") and bench.state.phase is Phase.AGGREGATING
    plain = sum((said_by(d) for d in (10, 11, 20, 21)), np.zeros(4, np.uint32))
    assert not np.any(bench.state.opening[0].total == plain)
    bench.answer(6, shown[6][0])
    assert np.array_equal(bench.state.opening[0].total, plain)


def test_the_last_of_a_model_s_updates_go_with_those_of_the_next():
    """Two of an old model and two of a new one are four that may be read, and count alike."""
    bench = Bench().training().full().helped().updated()
    for device, number in ((12, 1), (22, 2)):
        bench.part(number, device)
    bench.hello(1, [10, 11]).hello(2, [20, 21]).fires("rest", after=5 * SECOND)
    for device, number in ((10, 1), (20, 2)):
        bench.part(number, device)
    mean, _ = bench.helped().step()
    alike = (2 * staleness_weight(1) + 2 * staleness_weight(0)) / 4
    np.testing.assert_allclose(mean, mean_of((alike, [12, 22, 10, 20])), rtol=1e-6)


def test_a_device_s_two_updates_are_not_two_devices():
    bench = Bench(secure=secure(cohort_min=4)).training().full().helped().updated()
    bench.part(1, 12).part(2, 22)
    bench.hello(1, [10, 11]).hello(2, [20, 21]).fires("rest", after=5 * SECOND)
    first = bench.wave_of(10)
    bench.part(1, 10)
    bench.hello(1, [10, 12]).hello(2, [22]).fires("rest", after=5 * SECOND)
    assert bench.wave_of(10) > first
    bench.part(1, 10)
    assert sum(len(w.unused) for w in bench.state.open) == 4
    assert not bench.shown(), "12, 22 and twice 10 are three devices"
    bench.part(2, 20)
    assert bench.shown()


# ---------------------------------------------------------------- the certificate log


class LoggedBench(Bench):
    """The helpers require the log. size: of the head that the coordinator has, of `devices`."""

    def __init__(self, *arguments, size=24, devices=range(40), **changes):
        super().__init__(*arguments, **changes)
        self.log = self.machine.runs.log = SimulatedLog(SEED, devices)
        self.size, self.refusals = size, []

    def started(self):
        return super().started().knows(self.size)

    def knows(self, size):
        return self.does(Ordered(self.log.head(size).signed))

    def publishes(self, edge, life=1):
        super().publishes(edge, life)
        self.helpers[edge] = helper(edge, life, simulated_rules(SEED))
        return self

    def answer(self, edge, request, **changes):
        found = self.helpers[edge].answer(request, self.ledgers[edge])
        total = b""
        if found.ring is not None:
            total = masks_of(found.keys, found.ring.length, found.suite).tobytes()
        size = self.ledgers[edge].log.size
        fields = {"refusal": found.refusal, "bad": found.bad, "sum": total, "log_size": size}
        message = HelpSum(run=request.run, batch=request.batch, edge=edge, **{**fields, **changes})
        self.refusals.append(found.refusal)
        return self.hears(edge, message, after=SECOND)


def test_a_batch_is_shown_with_the_proof_that_its_devices_are_in_the_log():
    bench = LoggedBench().training().full()
    for edge in HELPERS:
        assert bench.shown()[edge][0].log.update.checkpoint == bench.log.head(24).signed
    mean, _ = bench.helped().step()
    np.testing.assert_allclose(mean, mean_of((1.0, [10, 11, 20, 21])), rtol=1e-6)
    assert bench.state.help_logs == {5: 24, 6: 24} and bench.refusals == [HELP_GIVEN] * 2


def test_a_helper_that_has_another_head_is_shown_the_proof_from_there():
    bench = LoggedBench().training().full()
    for edge in HELPERS:
        bench.ledgers[edge].log = bench.log.head(11)
    shown = bench.shown()
    for edge in HELPERS:
        bench.answer(edge, shown[edge][0])
        ((again,),) = bench.shown().values()
        assert again.log.update.old_size == 11 and again.parts == shown[edge][0].parts
        bench.answer(edge, again)
    assert bench.refusals == [OTHER_HEAD, HELP_GIVEN] * 2 and bench.step()


def test_the_same_word_of_another_head_again_is_answered_when_the_timer_says_so():
    bench = LoggedBench().training().full()
    bench.ledgers[5].log = bench.log.head(11)
    (first,) = bench.shown()[5]
    assert bench.answer(5, first).shown() and not bench.answer(5, first).shown()
    assert bench.fires("help", after=9 * SECOND).shown()[5][0].log.update.old_size == 11


def test_what_cannot_be_proved_yet_is_shown_under_a_newer_head():
    bench = LoggedBench(size=21).training().full()
    assert not bench.shown(), "device 21 is not under this head"
    bench.knows(30).fires("help", after=9 * SECOND)
    assert sorted(bench.shown()) == [5, 6] and bench.helped().step()


def test_a_device_that_never_comes_into_the_log_costs_the_batch_and_is_barred():
    devices = [d for d in range(40) if d != 11]
    bench = LoggedBench(devices=devices, size=39).training().full()
    assert not bench.shown()
    bench.fires("help", after=10**6 * SECOND)
    (why,) = bench.why()
    assert "not in the certificate log" in why and bench.state.barred == [11]


def test_a_helper_s_verdict_about_the_log_ends_the_batch():
    bench = LoggedBench().training().full()
    (first,) = bench.shown()[5]
    bench.answer(5, first, refusal=NOT_LOGGED, sum=b"")
    (why,) = bench.why()
    assert "not logged" in why


# ---------------------------------------------------------------- what is lost, and repeated


def test_helpers_that_are_silent_are_shown_the_same_again():
    bench = Bench().training().full()
    first = bench.shown()
    bench.answer(5, first[5][0])
    bench.fires("help", after=9 * SECOND)
    assert bench.shown() == {6: first[6]}


def test_a_second_answer_changes_nothing():
    bench = Bench().training().full()
    first = bench.shown()
    bench.answer(5, first[5][0])
    total = bench.state.opening[0].total.copy()
    bench.answer(5, first[5][0])
    assert np.array_equal(bench.state.opening[0].total, total)
    bench.answer(6, first[6][0])
    bench.answer(6, first[6][0])
    assert bench.state.phase is Phase.AGGREGATING
    bench.updated().answer(6, first[6][0])
    assert bench.state.phase is Phase.COLLECTING


def test_after_a_restart_the_same_batch_is_shown_to_whoever_owes_it():
    bench = Bench().training().full()
    first = bench.shown()
    bench.answer(5, first[5][0])
    helpers, ledgers = bench.helpers, bench.ledgers
    back = bench.again()
    back.helpers, back.ledgers = helpers, ledgers
    assert back.shown() == {6: first[6]}
    mean, _ = back.helped().step()
    np.testing.assert_allclose(mean, mean_of((1.0, [10, 11, 20, 21])), rtol=1e-6)
    later = back.again()
    np.testing.assert_array_equal(later.step()[0], mean)


def test_a_helper_that_is_silent_for_as_long_as_a_round_loses_the_updates_and_the_run_goes_on():
    bench = Bench().training().full()
    bench.fires("help", after=100 * SECOND)
    assert bench.why() == ["edge 5 does not unmask"]
    assert bench.state.phase is Phase.COLLECTING and not bench.state.opening
    for device, number in ((12, 1), (13, 1), (22, 2), (23, 2)):
        bench.part(number, device)
    assert bench.shown()[5][0].batch == 2
    bench.helped().step()


def test_a_run_whose_helper_stays_silent_gives_up():
    bench = Bench(attempts_max=1).training().full()
    bench.fires("help", after=100 * SECOND)
    ended = bench.machine.state.ended[1]
    assert (ended.phase, ended.why) == (Phase.FAILED, "edge 5 does not unmask")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"refusal": ASKED_BEFORE, "sum": b""}, "asked before"),
        ({"refusal": 99, "sum": b""}, "malformed"),
        ({"sum": b"short"}, "malformed"),
        ({"sum": b""}, "malformed"),
    ],
)
def test_a_refusal_loses_the_batch_and_says_why(changes, words):
    bench = Bench().training().full()
    request = bench.shown()[5][0]
    bench.answer(5, request, **changes)
    assert bench.why() == [f"edge 5 does not unmask: {words}"]
    assert bench.state.phase is Phase.COLLECTING and bench.state.spoilt == 1
    bench.answer(6, request)
    assert bench.state.phase is Phase.COLLECTING, "too late"


def test_whoever_sent_a_bad_seed_is_selected_no_more_where_there_are_others():
    bench = Bench().training().full()
    request = bench.shown()[5][0]
    bench.answer(5, request, refusal=BAD_SEEDS, sum=b"", bad=[11, 99])
    assert bench.state.barred == [11], "99 was not in it"


def test_a_sum_without_the_seeds_of_its_devices_is_refused():
    for seeds in ([], "others", "short"):
        bench = Bench().training()
        at = bench.wave_of(10)
        own = bench.masked(10, at)[1]
        if seeds == "others":
            seeds = [bench.masked(11, at)[1]]
        elif seeds == "short":
            own.seeds[0].sealed = b"short"
            seeds = [own]
        bench.part(1, 10, seeds=seeds)
        assert bench.records("refused_sum") and bench.sent(EdgeSumAck)


def test_answers_of_nobody_who_was_asked_change_nothing():
    bench = Bench().training()
    for edge in (1, 5):
        bench.hears(edge, HelpSum(run=1, batch=1, edge=edge))
        bench.hears(edge, HelpSum(run=77, batch=1, edge=edge))
    assert bench.state.phase is Phase.COLLECTING
    rounds = _bench.Bench().started()
    rounds.hears(1, HelpSum(run=1, batch=1, edge=1))
    assert rounds.state.phase is Phase.WAITING


# ---------------------------------------------------------------- who helps


def test_no_wave_begins_before_all_helpers_have_published_their_keys():
    bench = Bench().started().publishes(5)
    bench.hello(1, HERE).fires("rest", after=5 * SECOND)
    assert not bench.state.open
    bench.fires("wait", after=160 * SECOND)
    assert bench.why() == ["edge 6 has not said that it helps"]
    bench.publishes(6).hello(1, HERE)
    assert bench.state.open
    cards = bench.tasks[1, 1].secure.helpers
    assert list(cards) == [helper(5).card(), helper(6).card()]


def test_what_was_sealed_to_a_key_that_is_lost_is_dropped():
    bench = Bench().training().part(1, 10).part(1, 11)
    bench.publishes(6, life=2)
    bench.part(2, 20).part(2, 21)
    assert not bench.shown() and sorted(bench.state.stale) == [10, 11, 20, 21]
    bench.hello(1, [10]).fires("rest", after=5 * SECOND)
    at = bench.wave_of(10)
    assert bench.tasks[at].secure.helpers[1] == helper(6, 2).card()


def test_a_published_key_that_is_none_is_not_kept():
    bench = Bench().started()
    bench.hellos += 1
    card = helper(5).card()
    card.edge = 6
    hello = EdgeHello(edge=5, incarnation=1, sequence=1, protocol=1, helper=card)
    bench.hears(5, hello)
    assert bench.machine.state.edges[5].helper is None


def test_an_evaluation_is_a_session():
    bench = Bench(evaluation_every=1, evaluation_cohort=4).training().full().helped().updated()
    bench.hello(1, [10, 11]).hello(2, [20, 21]).fires("rest", after=5 * SECOND)
    (wave,) = [w for w in bench.state.open if w.evaluates]
    task = bench.tasks[wave.round, wave.attempt]
    assert wave.session is not None and not wave.helpers
    assert task.HasField("secure") and not task.secure.helpers


def test_a_cancelled_run_forgets_its_batches():
    bench = Bench().training().full()
    bench.orders("cancel")
    assert bench.machine.state.ended[1].phase is Phase.CANCELLED


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"mode": 1}, "secure.helpers"),
        ({"secure": secure((5, 5))}, "secure.helpers"),
        ({"secure": secure((0,))}, "secure.helpers"),
        ({"secure": secure((1, 2, 3, 4))}, "secure.helpers"),
        (
            {"secure": SecurePlan(suite=1, cohort_min=3, helpers=[helper(5).card()])},
            "secure.helpers",
        ),
        ({"secure": secure(cohort_min=5)}, "secure.cohort_min"),
        ({"secure": secure(cohort_min=2)}, "secure.cohort_min"),
        ({"concurrency": BATCH_MAX + 1}, "concurrency"),
    ],
)
def test_a_plan_that_no_helper_could_keep_is_refused(changes, field):
    message = _bench.plan(**{**WAVES, "secure": secure(), **changes})
    with pytest.raises(PlanError) as caught:
        RunPlan.from_message(1, message)
    assert caught.value.field == field


def test_a_report_may_be_as_long_as_its_seeds_make_it():
    plain = RunPlan.from_message(1, _bench.plan(**WAVES))
    helped = RunPlan.from_message(1, _bench.plan(**{**WAVES, "secure": secure()}))
    message = EdgeSum(seeds=[Bench().training().masked(10, (1, 1))[1]] * helped.concurrency)
    assert helped.report_bytes - plain.report_bytes > message.ByteSize()


# ---------------------------------------------------------------- batches


def wave(round, *devices):
    return Attempt(round, 1, False, _bench.WEIGHTS, 0, 0, unused=list(devices))


@pytest.mark.parametrize(
    ("waves", "expected"),
    [
        ([(1, 1, 2, 3), (2, 4, 5, 6)], [[1, 2, 3], [4, 5, 6]]),
        ([(1, 1), (2, 4, 5, 6)], [[1, 4, 5, 6]]),
        ([(1, 1, 2, 3), (2, 4)], [[1, 2, 3, 4]]),
        ([(1, 1, 2), (1, 3, 4), (2, 5)], [[1, 2, 3, 4, 5]]),
        ([(1, 1), (2, 2)], []),
        ([(1, 1, 2), (2, 1, 2)], []),
        ([(1, 1, 2, 3, 4, 5, 6), (2, 7, 8)], [[1, 2, 3, 4, 5, 6]]),
        ([(1, 1, 2), (2, 3, 4, 5, 6, 7)], [[1, 2, 3, 4, 5, 6, 7]]),
        ([(1, 1, 2), (2, 3, 4, 5, 6, 7, 8)], [[3, 4, 5, 6, 7, 8]]),
        ([(3, 7, 8, 9), (1, 1, 2, 3)], [[1, 2, 3], [7, 8, 9]]),
    ],
)
def test_batches_are_of_one_model_where_that_has_enough_devices(waves, expected):
    found = grouped([wave(*w) for w in waves], least=3, room=7)
    assert [[d for w in group for d in w.unused] for group in found] == expected
