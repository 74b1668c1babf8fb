"""A device's own account of what its updates told, over rounds, attempts and runs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from delian.core.privacy.mechanisms import accountant, noise_mechanism
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.privacy.secagg.client import Policy
from delian.core.protocol.ports import Record
from delian.core.wire.round_pb2 import BELOW_FLOOR, Failure, Upload
from delian.core.wire.secure_pb2 import SecurePlan
from delian.device.protocol.machine import DevicePolicy, Phase, restore
from delian.device.protocol.releases import Cap, Releases, cost_of
from support import device_bench as _bench

Bench, make_task, sign = _bench.Bench, _bench.make_task, _bench.sign
NOISE = 2.0


def noised(survivors=9, cohort_min=9, central=False, **names):
    """A signed task of ten devices whose noise is planned for so many survivors."""
    task = make_task(secure=SecurePlan(suite=1, cohort_min=cohort_min, corrupt=0.1, dropout=0.1))
    for name, value in names.items():
        setattr(task, name, value)
    task.ring.noise, task.ring.central, task.ring.bits = NOISE, central, 32
    task.secure.noise_survivors = survivors
    sign(task, _bench.COORDINATOR, ends_s=10**6)
    return task


def with_cap(epsilon, **more):
    return DevicePolicy(caps=(Cap(epsilon, 1e-6),), **more)


def reasons(bench):
    return [r.fields["reason"] for r in bench.of(Record) if r.kind == "session"]


@pytest.mark.parametrize(("survivors", "cohort_min"), [(9, 8), (0, 9), (10, 3)])
def test_noise_that_was_planned_for_more_than_the_floor_is_refused(survivors, cohort_min):
    bench = Bench().ready().gets(noised(survivors, cohort_min))
    (said,) = bench.said
    assert isinstance(said, Failure) and said.reason == BELOW_FLOOR
    assert reasons(bench) == ["noise"] and bench.phase is Phase.READY


def test_noise_that_was_planned_for_the_floor_is_taken():
    assert Bench().ready().gets(noised()).phase is Phase.FETCHING
    assert Bench().ready().gets(noised(0, 3, central=True)).phase is Phase.FETCHING


def test_the_cost_is_that_of_the_weakest_sum_that_the_device_allows():
    task, floor = noised(), Policy()
    ring = RingPlan.of(task.ring)
    assert cost_of(task, floor) == noise_mechanism.release(ring, 9, 0.1)
    assert cost_of(task, Policy(cohort_min=10)) == noise_mechanism.release(ring, 10, 0.1)
    assert cost_of(task, Policy(corrupt=0.3)) == noise_mechanism.release(ring, 9, 0.3)
    assert cost_of(task, Policy(corrupt=0.95)) is None, "no honest device's noise need be there"
    assert cost_of(noised(0, central=True), floor) is None
    assert cost_of(make_task(secure=_bench.SECURE), floor) is None


def test_releases_of_several_runs_add_up_and_an_attempt_counts_once():
    account, task = Releases(), noised()
    cost = cost_of(task, Policy())
    for run, attempt in ((1, 1), (1, 1), (1, 2), (2, 1)):
        account.charge(noised(run=run, attempt=attempt), cost)
    assert account.bounded == 3 and account.unbounded == 0
    expected = accountant.composed([cost] * 3)
    assert account.epsilon(1e-6) == pytest.approx(
        accountant.epsilon_of(expected, 1e-6 - 3 * noise_mechanism.FAILURE)
    )
    assert account.epsilon(1e-6) < account.epsilon(1e-6, cost) < 4 * account.epsilon(1e-6)
    assert Releases().epsilon(1e-6) == 0.0 and math.isinf(account.epsilon(noise_mechanism.FAILURE))


def test_an_update_that_leaves_is_charged_and_survives_a_restart():
    bench = Bench().masked()
    assert [m for m in bench.said if isinstance(m, Upload)]
    state = restore(bench.machine.snapshot())
    assert state.releases == bench.machine.state.releases
    assert (state.releases.unbounded, state.releases.bounded) == (1, 0), "it had no noise"
    again = Bench(state)
    again.does(_bench.Started())
    assert again.machine.state.releases.unbounded == 1, "an attempt is charged once"


def test_what_gives_no_update_is_not_charged():
    assert Bench().training(secure=_bench.SECURE).machine.state.releases is None


def test_the_owner_s_cap_and_the_federation_s_both_count():
    first = Releases().epsilon(1e-6, cost_of(noised(), Policy()))
    wide, narrow = Cap(first * 2, 1e-6), Cap(first / 2, 1e-6)
    for caps in ((wide, narrow), (narrow, wide), (narrow,)):
        bench = Bench(policy=DevicePolicy(caps=caps)).ready().gets(noised())
        assert reasons(bench) == ["budget"] and bench.phase is Phase.READY
    bench = Bench(policy=DevicePolicy(caps=(wide, wide))).ready().gets(noised())
    assert bench.phase is Phase.FETCHING
    plain = Bench(policy=DevicePolicy(caps=(wide,))).ready().gets(noised(0, 3, central=True))
    assert reasons(plain) == ["budget"], "no noise of the device's own bounds it"


def test_a_task_beyond_the_cap_is_refused_and_one_within_is_taken():
    one = Releases()
    cost = cost_of(noised(), Policy())
    first = one.epsilon(1e-6, cost)
    assert Bench(policy=with_cap(first)).ready().gets(noised()).phase is Phase.FETCHING
    bench = Bench(policy=with_cap(first * 0.999)).ready().gets(noised())
    assert reasons(bench) == ["budget"] and bench.phase is Phase.READY
    bench = Bench(policy=with_cap(first)).ready()
    one.charge(noised(run=5), cost)
    bench.machine.state.releases = one
    assert reasons(bench.gets(noised())) == ["budget"]


def test_with_a_cap_no_task_without_the_devices_noise_is_taken():
    policy = with_cap(100.0)
    for task in (make_task(secure=_bench.SECURE), noised(0, central=True)):
        assert reasons(Bench(policy=policy).ready().gets(task)) == ["budget"]
    plain = replace(policy, secure_required=False)
    assert reasons(Bench(policy=plain).ready().gets(make_task())) == ["budget"]


def test_with_a_cap_an_unbounded_release_of_before_ends_all_tasks():
    bench = Bench(policy=with_cap(10.0**6)).ready()
    bench.machine.state.releases = Releases(unbounded=1)
    assert reasons(bench.gets(noised())) == ["budget"]


def test_without_a_cap_all_is_counted_and_nothing_refused():
    bench = Bench().ready()
    bench.machine.state.releases = Releases(unbounded=10**6)
    assert bench.gets(noised()).phase is Phase.FETCHING
