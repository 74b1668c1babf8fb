"""A federation from end to end: what its records say, and that it is deterministic."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.protocol.ports import SECOND, Outcome
from delian.core.wire.round_pb2 import NON_FINITE
from delian.simulations.federation.federation import Federation
from delian.simulations.federation.fleet import DeviceClass, Fleet
from delian.simulations.federation.network import LINKS, LinkProfile
from delian.simulations.federation.round_records import HOPS
from delian.simulations.federation.timer_schedule import SWEPT_MIN
from delian.simulations.federation.trace import checksum, share, weights_name
from delian.simulations.federation.training import AHEAD_BYTES, AHEAD_MAX, Jobs, ahead_of
from delian.simulations.scenario.federation_plan import FederationPlan
from support.stub_training import StubTraining

RING = RingPlan(clip=1.0, clients_max=64, dimension=100)


def plan(**changes):
    settings = {
        "rounds": 4,
        "cohort": 6,
        "ring": RING,
        "fleet": Fleet(20, 3),
        "over_selection": 1.0,
        **changes,
    }
    return FederationPlan.of(**settings)


def test_without_faults_every_selected_device_reports():
    records = []
    result = Federation(plan(), StubTraining(RING), seed=1).run(records.append)
    assert tuple(records) == result.rounds and len(records) == 4
    for r in records:
        assert r.succeeded and len(r.selected) == 6 and r.reported == r.selected
        assert not (r.refused or r.dropped or r.late or r.spare or r.duplicates or r.lost_messages)
        # Every weight is one half.
        assert r.weight == 3.0
        assert r.examples == sum(10 + d for d in r.reported)
        weighed = sum((10 + d) / (1 + d) for d in r.reported)
        assert r.loss == pytest.approx(weighed / r.examples)
        assert r.started_ns < r.ended_ns
    assert result.updates == 24 and not result.stopped and not result.failed


def test_the_model_moves_by_the_mean_of_the_reported_updates():
    training = StubTraining(RING)
    federation = Federation(plan(rounds=1), training, seed=1)
    seen = []
    submit = training.submit

    def spy(device, weights, key):
        assert not weights.any(), "devices start from the global model"
        seen.append(training.update_of(device, key).view(np.int32)[:-1].astype(np.float64))
        return submit(device, weights, key)

    training.submit = spy
    federation.run()
    expected = sum(seen) / RING.scale / 3.0
    np.testing.assert_allclose(federation.weights, expected, rtol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"evaluation_every": 1}])
def test_with_and_without_masks_the_models_are_the_same_to_the_last_bit(changes):
    models = []
    for masks in ({}, {"aggregation": "secure", "cohort_min": 3}):
        asked = plan(**{"cohort": 12, **masks, **changes})
        federation = Federation(asked, StubTraining(RING), seed=1)
        result = federation.run()
        assert not result.failed and all(r.succeeded for r in result.rounds)
        models.append(federation.weights)
    assert models[0].any() and np.array_equal(*models)


def test_bytes_are_counted_by_hop():
    (r,) = Federation(plan(rounds=1), StubTraining(RING), seed=1).run().rounds
    assert tuple(r.bytes) == HOPS
    vector, bundle, weights = 4 * 101, len(StubTraining(RING).bundle), 400
    edges = len({d % 3 for d in r.selected})
    assert 6 * vector < r.bytes["device_edge_up"] < 6 * vector + 20 * 300
    assert 6 * (bundle + weights) < r.bytes["device_edge_down"] < 6 * (bundle + weights + 600)
    assert edges * vector < r.bytes["edge_cloud_up"] < edges * vector + 3 * 1500
    assert edges * (bundle + weights) < r.bytes["edge_cloud_down"] < edges * (bundle + 1500)
    assert sum(r.messages.values()) > 6 * 6


def test_a_bundle_crosses_each_link_once():
    first, *others = Federation(plan(), StubTraining(RING), seed=1).run().rounds
    bundle = len(StubTraining(RING).bundle)
    assert len({d % 3 for d in first.selected}) == 3
    for r in others:
        assert first.bytes["edge_cloud_down"] - r.bytes["edge_cloud_down"] >= 3 * bundle


def test_a_device_whose_update_is_not_finite_is_refused_and_counted():
    training = StubTraining(RING, sick=range(0, 20, 2))
    for r in Federation(plan(), training, seed=1).run().rounds:
        assert r.succeeded
        assert set(r.refused) == {d for d in r.selected if d % 2 == 0}
        assert set(r.refused.values()) <= {NON_FINITE}
        assert len(r.reported) + len(r.refused) == 6


def test_devices_that_vanish_are_dropped_and_over_selection_makes_up_for_them():
    fleet = Fleet(40, 3, dropout=0.3)
    rounds = Federation(plan(fleet=fleet, over_selection=2.0), StubTraining(RING), 1).run().rounds
    assert any(r.dropped for r in rounds)
    assert all(len(r.selected) == 12 and len(r.reported) >= 6 for r in rounds)
    # Who was not needed any more is spare, not late: the round did not wait for it.
    assert any(r.spare for r in rounds) and not any(r.late for r in rounds)


def test_stragglers_are_late_and_the_round_ends_on_time():
    classes = {"fast": DeviceClass(1e12), "slow": DeviceClass(1e6)}
    fleet = Fleet(20, 2, {"fast": 1.0, "slow": 1.0}, classes)
    rounds = (
        Federation(plan(fleet=fleet, timeout_ms=30_000), StubTraining(RING), seed=1).run().rounds
    )
    assert all(r.late and r.reported and not r.spare for r in rounds)
    # On time, and the server's update.
    assert all(r.ended_ns - r.started_ns <= 30.2 * SECOND for r in rounds)


def test_without_enough_devices_the_run_gives_up_and_says_why():
    vanishing = plan(fleet=Fleet(20, 3, dropout=1.0), attempts_max=2, timeout_ms=20_000)
    result = Federation(vanishing, StubTraining(RING), seed=1).run()
    assert result.failed in ("too few devices reported", "too few devices are ready")
    assert [r.succeeded for r in result.rounds] == [False, False]
    assert [r.attempt for r in result.rounds] == [1, 2]
    assert all(r.why for r in result.rounds)


def test_a_plan_that_the_coordinator_does_not_follow_is_an_error_and_no_run_without_an_end():
    with pytest.raises(DelianError, match="patience"):
        Federation(plan(patience=2), StubTraining(RING), seed=1)


def test_after_a_round_the_new_model_is_there_and_nothing_trains():
    training = StubTraining(RING)
    federation = Federation(plan(), training, seed=1)
    models = []
    federation.run(lambda r: models.append(federation.weights.copy()))
    assert len({m.tobytes() for m in models}) == 4


def test_stop_ends_the_run_and_keeps_what_there_is():
    federation = Federation(plan(rounds=50), StubTraining(RING), seed=1)
    result = federation.run(lambda r: r.round == 3 and federation.stop())
    assert result.stopped and not result.failed
    assert [r.round for r in result.rounds] == [1, 2, 3]


def test_stop_may_come_from_another_thread_while_a_device_trains():
    started, release = threading.Event(), threading.Event()
    pool = ThreadPoolExecutor(1)

    class Slow(StubTraining):
        def submit(self, device, weights, key):
            started.set()
            return pool.submit(lambda: (release.wait(60), self._train(device, key))[1])

    federation = Federation(plan(), Slow(RING), seed=1)
    done: Future = ThreadPoolExecutor(1).submit(federation.run)
    assert started.wait(60)
    federation.stop()
    release.set()
    assert done.result(60).stopped


def test_what_an_update_raises_reaches_the_caller():
    class Broken(StubTraining):
        def _train(self, device, key):
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        Federation(plan(), Broken(RING), seed=1).run()


def test_adding_a_device_does_not_change_the_others():
    streams = Federation(plan(), StubTraining(RING), seed=1).streams
    small, large = Fleet(20, 3), Fleet(21, 3)
    assert [small.profile(d, streams) for d in range(20)] == [
        large.profile(d, streams) for d in range(20)
    ]


def test_devices_judge_the_models_through_the_protocol():
    evaluating = plan(evaluation_every=2, evaluation_cohort=5)
    result = Federation(evaluating, StubTraining(RING), seed=1).run()
    assert [(e.round, e.devices) for e in result.evaluations] == [(2, 5), (4, 5)]
    for e in result.evaluations:
        # Every device of the stub says the same, of as many examples as its number and one.
        assert e.metrics["global_loss"] == pytest.approx(1.0, abs=1e-3)
        assert e.metrics["personalised_accuracy"] == pytest.approx(0.8, abs=1e-3)
    assert [r.round for r in result.rounds] == [1, 2, 3, 4] and result.updates == 24


def test_a_run_that_gets_no_better_ends_early_and_says_why():
    hopeless = plan(rounds=50, evaluation_every=1, evaluation_cohort=5, patience=3)
    result = Federation(hopeless, StubTraining(RING), seed=1).run()
    # The stub's devices say the same of every model, but for the rounding of a thousandth.
    assert not result.failed and result.early == "no better in 3 evaluations"
    assert len(result.rounds) < 50


def test_a_buffered_run_makes_models_of_updates_as_they_come():
    classes = {"fast": DeviceClass(1e11), "slow": DeviceClass(4e8)}
    fleet = Fleet(20, 3, {"fast": 1.0, "slow": 1.0}, classes)
    buffered = plan(fleet=fleet, rounds=8, mode="buffered", buffer=5, concurrency=15)
    training = StubTraining(RING)
    federation = Federation(buffered, training, seed=1)
    result = federation.run()
    assert not result.failed and [r.round for r in result.rounds] == list(range(1, 9))
    assert all(len(r.reported) >= 5 for r in result.rounds)
    in_rounds = Federation(plan(fleet=fleet, rounds=8), StubTraining(RING), seed=1).run()
    assert result.virtual_ns < in_rounds.virtual_ns / 2, "nobody waits for the slow"


def test_the_server_optimisers_memory_is_a_blob():
    class Counting(StubTraining):
        def server_update(self, weights, memory, mean, weight):
            seen.append(memory)
            return weights + mean, memory + b"."

    seen = []
    Federation(plan(), Counting(RING), seed=1).run()
    assert seen == [b"", b".", b"..", b"..."]


@pytest.mark.parametrize("name", sorted(LINKS))
def test_each_named_link_carries_a_federation(name):
    result = Federation(plan(fleet=Fleet(20, 3, link=LINKS[name])), StubTraining(RING), 1).run()
    assert len(result.rounds) >= 4 and not result.failed


def test_a_slow_link_makes_a_round_last_as_long_as_its_bytes_take():
    slow = LinkProfile(latency_ms=0, up_mbps=0.001, down_mbps=100)
    (r,) = (
        Federation(plan(rounds=1, fleet=Fleet(20, 3, link=slow)), StubTraining(RING), 1)
        .run()
        .rounds
    )
    # 404 bytes and headers at 125 bytes a second.
    assert (r.ended_ns - r.started_ns) / SECOND > 404 / 125


def test_updates_run_ahead_of_virtual_time_in_its_order_and_no_more_than_needed():
    started = []

    def job(name):
        def start():
            started.append(name)
            future = Future()
            future.set_result(Outcome(None, examples=name))
            return future

        return start

    jobs = Jobs(threads=1)
    made = {due: jobs.add(due, job(due)) for due in (5, 4, 3, 2, 1)}
    assert started == [], "which is needed first is known when one is asked for"
    assert jobs.result(made[1]).examples == 1
    assert started == [1, 2, 3], "one a thread and one ahead, by when they are needed"
    jobs.cancel(made[4])
    for due in (2, 3, 5):
        assert jobs.result(made[due]).examples == due
    assert started == [1, 2, 3, 5], "what is cancelled before its turn is never computed"

    started.clear()
    jobs = Jobs(threads=1, ahead=2)
    made = {due: jobs.add(due, job(due)) for due in (5, 4, 3, 2, 1)}
    assert started == [5], "short ones begin before the first is asked for"
    assert [jobs.result(made[due]).examples for due in (1, 2, 3, 4, 5)] == [1, 2, 3, 4, 5]
    assert started == [5, 1, 2, 3, 4], "and leave the others' room to them"


def test_what_nobody_will_ask_for_is_called_off_where_it_had_begun_to_wait_for_a_thread():
    started = []

    def start():
        started.append(Future())
        return started[-1]

    jobs = Jobs(threads=1, ahead=2)
    jobs.foresee((1, b"", b""), start)
    made = [jobs.add(due, start, (due, b"", b"")) for due in range(6)]
    started[0].set_result(Outcome(None, examples=7))
    assert jobs.result(made[1]).examples == 7 and 1 < len(started) < len(made)
    jobs.cancel_all()
    assert all(later.cancelled() for later in started[1:])


def test_long_updates_wait_until_earlier_results_are_in_a_sum():
    started = []

    def job(name):
        def start():
            started.append(name)
            future = Future()
            future.set_result(Outcome(np.zeros(1, np.uint32), examples=name))
            return future

        return start

    jobs = Jobs(threads=1)
    made = [jobs.add(due, job(due)) for due in range(5)]
    first, second = jobs.result(made[0]), jobs.result(made[1])
    jobs.tend()
    assert started == [0, 1], "both are still in memory"
    del first
    jobs.tend()
    assert started == [0, 1, 2]
    del second
    jobs.tend()
    assert started == [0, 1, 2, 3]
    assert [jobs.result(job).examples for job in made[2:]] == [2, 3, 4]


@pytest.mark.parametrize("mode", [{}, {"mode": "buffered", "buffer": 3}])
def test_vectors_beside_their_messages_change_nothing(mode):
    results = [
        Federation(plan(**mode), StubTraining(RING), 7, beside=beside).run()
        for beside in (True, False)
    ]
    assert results[0] == results[1] and not results[0].failed


def test_timers_that_were_called_off_do_not_pile_up():
    """Each task sets one a day ahead: of a thousand rounds most would still be there."""
    federation = Federation(plan(rounds=400, timeout_ms=86_400_000), StubTraining(RING), 1)
    federation.run()
    assert len(federation.schedule) < 2 * SWEPT_MIN


def test_short_updates_run_further_ahead_than_long_ones():
    assert ahead_of(4 * AHEAD_BYTES) == 1 and ahead_of(100) == AHEAD_MAX


def test_a_checksum_sees_every_element():
    rng = np.random.default_rng(0)
    for length in (1, 2, 7, 100):
        vector = rng.integers(0, 2**32, length, dtype=np.uint32)
        assert checksum(vector) == checksum(vector.copy())
        for i in range(length):
            other = vector.copy()
            other[i] ^= np.uint32(1)
            assert checksum(other) != checksum(vector)


@pytest.mark.parametrize("mode", [{}, {"mode": "buffered", "buffer": 3}])
def test_updates_of_which_no_model_can_be_made_end_the_run(mode):
    """The stub's steps are for a wide ring: in a narrow one every mean is longer than the clip."""
    narrow = RingPlan(clip=1.0, clients_max=64, dimension=100, bits=16)
    made = FederationPlan.of(rounds=3, cohort=6, ring=narrow, fleet=Fleet(20, 3), **mode)
    told = []
    result = Federation(made, StubTraining(narrow), 1).run(told.append)
    assert "above the clip" in result.failed
    assert [r.succeeded for r in told] == [False] * made.plan.round.attempts_max


class Counting(StubTraining):
    def __init__(self, plan, foreseeable):
        super().__init__(plan)
        self.foreseeable, self.begun = foreseeable, []

    def submit(self, device, weights, key):
        self.begun.append((device, key.tobytes()))
        return super().submit(device, weights, key)


def test_what_is_foreseen_begins_in_the_order_in_which_it_ends():
    training = Counting(RING, foreseeable=True)
    training.ahead = 64
    federation = Federation(plan(rounds=1), training, 7)
    (record,) = federation.run().rounds
    fleet, streams = federation.plan.fleet, federation.streams
    durations = [
        fleet.profile(device, streams).duration_ns(4e9, streams, 1, record.attempt)
        for device, _ in training.begun
    ]
    assert durations == sorted(durations) and len(durations) > len(record.reported) // 2


def test_what_is_foreseen_is_computed_once_and_changes_no_bit():
    trainings = [Counting(RING, foreseeable) for foreseeable in (True, False)]
    results = [Federation(plan(), training, 7).run() for training in trainings]
    assert results[0] == results[1] and not results[0].failed
    begun, asked = (sorted(training.begun) for training in trainings)
    assert begun == asked and len(set(begun)) == len(begun)
    assert trainings[0].begun != trainings[1].begun, "those begin first that are foreseen"


def test_a_foreseen_update_that_nobody_asks_for_is_called_off():
    def start():
        return Future()

    jobs = Jobs(threads=1, ahead=3)
    begun = [start() for _ in range(2)]
    for device, future in enumerate(begun):
        assert jobs.has_room_early
        jobs.foresee((device, b"weights", b"key"), lambda future=future: future)
    assert not jobs.has_room_early
    job = jobs.add(1, start, (1, b"weights", b"key"))
    assert job.future is begun[1]
    jobs.forget_foreseen()
    assert begun[0].cancelled() and not begun[1].cancelled() and jobs.has_room_early


def test_the_name_of_weights_sees_every_number_and_its_place():
    rng = np.random.default_rng(0)
    for size in (1, 3, 1024, 2500):
        weights = rng.standard_normal(size).astype(np.float32)
        name = weights_name(weights)
        assert len(name) == 32 and name == weights_name(weights.copy())
        for i in {0, size // 2, size - 1}:
            other = weights.copy()
            other[i] = np.nextafter(other[i], np.float32(9))
            assert weights_name(other) != name
        if size > 1:
            assert weights_name(np.roll(weights, 1)) != name
            assert weights_name(weights[:-1]) != name


def flipped(weights, *places):
    """With other signs: each takes 2^63 of a sum modulo 2^64, or gives it, which is the same."""
    other = weights.copy()
    other[list(places)] *= -1
    return other


def test_errors_that_cancel_in_sums_of_places_show_in_sums_of_rows():
    weights = np.ones(4096, np.float32)
    assert weights_name(flipped(weights, 1, 1025)) != weights_name(weights)


def test_other_weights_that_no_sum_tells_apart_have_a_name_of_their_own():
    named = {}
    first = np.ones(4096, np.float32)
    other = flipped(first, 1, 3, 1025, 1027)
    assert weights_name(other) == weights_name(first)
    name, kept = share(first, named)
    again, there = share(first.copy(), named)
    assert again == name and there is kept is first
    another, there = share(other, named)
    assert another != name and there is other and named[name] is first
