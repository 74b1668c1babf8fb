"""A device's part in secure aggregation, event by event: with a real coordinator's session and two
neighbours, so that what it says can be checked by what the sum is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from delian.core.privacy.secagg.client import Policy
from delian.core.protocol.ports import (
    SECOND,
    BlobStored,
    CancelProgram,
    Node,
    Ordered,
    Outcome,
    ProgramFinished,
    ProtocolError,
    Received,
    Record,
    RunProgram,
    Started,
    Tier,
    TimerFired,
)
from delian.core.wire.admission_pb2 import CheckIn, DeviceFacts, Eligibility
from delian.core.wire.journal_pb2 import Conditions, DeniedVersion
from delian.core.wire.round_pb2 import (
    BELOW_FLOOR,
    COUNTED,
    EVALUATE,
    LATE,
    MASKS_REQUIRED,
    NON_FINITE,
    NOT_IN_COHORT,
    TASK_NOT_SIGNED,
    TRAIN,
    Failure,
    RoundClosed,
    Upload,
    UploadAck,
)
from delian.core.wire.secure_pb2 import (
    Cohort,
    Consent,
    KeyBundle,
    SealedShares,
    SecurePlan,
    Survivors,
    UnmaskShares,
)
from delian.device.protocol.device_state import SECRETS, DevicePolicy, DeviceState, Phase
from delian.device.protocol.machine import restore
from support import device_bench as _bench

Bench = _bench.Bench
BUNDLE, WEIGHTS, VECTOR = _bench.BUNDLE, _bench.WEIGHTS, _bench.VECTOR
EDGE, SECURE = _bench.EDGE, _bench.SECURE
OTHER = Node(Tier.EDGE, 5)
ROUND = {"run": 1, "round": 1, "attempt": 1}


def kinds(bench):
    return [type(m) for m in bench.said]


def failure(bench):
    (found,) = [m for m in bench.said if isinstance(m, Failure)]
    return found.reason


class TestTheWholeWay:
    def test_the_sum_of_three_is_read_and_nothing_else(self):
        bench = Bench().unmasking()
        assert bench.phase is Phase.UNMASKING
        masked = np.frombuffer(bench.upload.vector, "<u4")
        assert (masked != VECTOR).all(), "what leaves is not the update"
        (consent,) = bench.hears_next().said
        assert isinstance(consent, Consent)
        (unmask,) = bench.hears_next().said
        assert isinstance(unmask, UnmaskShares)
        total = bench.near.unmasked(bench.upload, unmask)
        np.testing.assert_array_equal(total, VECTOR + np.uint32(3 + 9))
        bench.gets(RoundClosed(**ROUND, device=7))
        assert bench.phase is Phase.IDLE and bench.session is None

    def test_keys_go_out_with_the_task_and_before_any_blob_is_here(self):
        bench = Bench().fetching(secure=SECURE)
        assert kinds(bench)[0] is KeyBundle and bench.said[0].device == 7

    def test_it_speaks_with_its_neighbours_while_it_trains(self):
        bench = Bench().secured()
        bench.does(BlobStored(BUNDLE, True)).does(BlobStored(WEIGHTS, True))
        assert kinds(bench.hears_next()) == [SealedShares]
        assert not bench.hears_next().said and bench.phase is Phase.TRAINING
        assert kinds(bench.does(ProgramFinished(1, Outcome(VECTOR)))) == [Upload]

    def test_an_update_waits_for_the_neighbours_shares(self):
        bench = Bench().sealing()
        assert bench.phase is Phase.SEALING and not bench.said
        assert kinds(bench.hears_next()) == [Upload]
        assert bench.machine.state.trained is None

    def test_the_master_secret_moves_on_when_keys_are_made_of_it(self):
        bench = Bench()
        bench.ready()
        before = bench.machine.state.secret
        bench.gets(_bench.make_task(secure=SECURE))
        first, after = bench.session.bundle, bench.machine.state.secret
        assert before != after
        bench.gets(RoundClosed(**ROUND)).does(TimerFired("retry"), after=9 * SECOND)
        bench.gets(_bench.make_task(attempt=2, secure=SECURE))
        assert bench.session.bundle.mask_key != first.mask_key

    def test_two_devices_with_other_secrets_have_other_keys(self):
        one, other = Bench(), Bench(DeviceState(7, secret=b"o" * 32))
        keys = {b.fetching(secure=SECURE).session.bundle.mask_key for b in (one, other)}
        assert len(keys) == 2


class TestRepetition:
    def test_it_says_its_last_word_again_with_growing_pauses(self):
        bench = Bench().secured()
        (bundle,) = [m for m in bench.said if isinstance(m, KeyBundle)]
        pauses = []
        for _ in range(4):
            pauses.append(bench.timer("session") - bench.now)
            assert bench.does(TimerFired("session"), after=pauses[-1]).said == [bundle]
        assert pauses == sorted(set(pauses))

    def test_a_word_that_came_before_is_answered_when_it_is_due_and_not_sooner(self):
        bench = Bench().secured()
        cohort = bench.near.cohort()
        (shares,) = bench.gets(cohort).said
        assert not bench.gets(cohort).said
        assert bench.does(TimerFired("session"), after=3 * SECOND).said == [shares]

    def test_when_its_neighbours_are_known_it_asks_no_more_before_it_has_trained(self):
        bench = Bench().secured().hears_next().hears_next()
        assert bench.does(TimerFired("session"), after=60 * SECOND).said == []

    def test_a_word_of_another_attempt_or_too_early_changes_nothing(self):
        bench = Bench().secured()
        before = bench.session.phase
        assert not bench.gets(Survivors(**ROUND, device=7, members=b"\7")).said
        assert not bench.gets(Cohort(run=1, round=1, attempt=2, device=7)).said
        assert bench.session.phase is before and bench.phase is Phase.FETCHING

    def test_a_word_for_another_device_is_refused(self):
        with pytest.raises(ProtocolError, match="for device 8"):
            Bench().secured().gets(Cohort(**ROUND, device=8))

    def test_without_a_session_words_of_one_are_of_no_use(self):
        bench = Bench().fetching()
        assert bench.gets(Cohort(**ROUND, device=7)).ignored()


class TestExclusion:
    def test_out_of_the_cohort_it_stops_training_and_says_so(self):
        bench = Bench().secured()
        bench.does(BlobStored(BUNDLE, True)).does(BlobStored(WEIGHTS, True))
        bench.gets(Cohort(**ROUND, device=7))
        assert failure(bench) == NOT_IN_COHORT and bench.of(CancelProgram)
        assert bench.phase is Phase.UPLOADING and bench.session is None
        bench.gets(UploadAck(**ROUND, device=7, status=COUNTED))
        assert bench.phase is Phase.IDLE

    def test_out_of_it_when_it_has_trained_it_uploads_nothing(self):
        bench = Bench().sealing().gets(Cohort(**ROUND, device=7))
        assert kinds(bench) == [Failure] and bench.machine.state.trained is None

    def test_a_second_roster_ends_its_part(self):
        bench = Bench().secured()
        bench.gets(bench.near.cohort())
        forged = Cohort()
        forged.CopyFrom(bench.near.cohort())
        forged.index += 1
        assert failure(bench.gets(forged)) == NOT_IN_COHORT
        (note,) = [r.fields for r in bench.of(Record) if r.kind == "session"]
        assert note == {"device": 7, "reason": "equivocation"}

    def test_a_second_set_of_survivors_gets_no_signature_and_no_share(self):
        bench = Bench().unmasking().hears_next()
        second = Survivors(**ROUND, device=7, members=b"\3")
        bench.gets(second)
        assert not [m for m in bench.said if isinstance(m, Consent | UnmaskShares)]
        assert bench.phase is Phase.IDLE and bench.session is None

    def test_it_takes_no_masked_task_without_an_identity(self):
        bench = Bench(identity=None).fetching(secure=SECURE)
        assert failure(bench) == NOT_IN_COHORT

    @pytest.mark.parametrize(
        ("policy", "secure"),
        [
            (DevicePolicy(), None),
            (DevicePolicy(floor=Policy(cohort_min=4)), SECURE),
            (DevicePolicy(floor=Policy(corrupt=0.2)), SECURE),
            (DevicePolicy(floor=Policy(suites=(2,))), SECURE),
        ],
    )
    def test_below_its_owner_s_floor_it_trains_nothing(self, policy, secure):
        bench = Bench(policy=policy).fetching(secure=secure)
        assert failure(bench) == (BELOW_FLOOR if secure else MASKS_REQUIRED)
        assert bench.phase in (Phase.READY, Phase.UPLOADING) and bench.session is None

    @pytest.mark.parametrize("purpose", [TRAIN, EVALUATE])
    @pytest.mark.parametrize("helpers", [0, 1])
    def test_by_default_it_refuses_a_task_that_an_edge_stripped_of_its_masks(
        self, purpose, helpers
    ):
        plan = SecurePlan()
        plan.CopyFrom(SECURE)
        for edge in range(helpers):
            plan.helpers.add(edge=edge + 5)
        task = _bench.make_task(secure=plan, purpose=purpose)
        task.ClearField("secure")
        bench = Bench(policy=DevicePolicy()).ready().gets(task)
        assert failure(bench) == MASKS_REQUIRED
        bench.does(BlobStored(BUNDLE, True)).does(BlobStored(WEIGHTS, True))
        assert bench.phase is Phase.READY and not bench.of(RunProgram)
        assert not [m for m in bench.said if isinstance(m, Upload)]

    def test_it_takes_a_plain_task_where_its_owner_allows_them(self):
        bench = Bench(policy=DevicePolicy(secure_required=False)).training()
        assert bench.of(RunProgram)

    @pytest.mark.parametrize(
        "changes", [{"suite": 3}, {"cohort_min": 2}, {"corrupt": 1.0}, {"dropout": float("nan")}]
    )
    def test_a_plan_that_is_none_is_not_taken(self, changes):
        plan = SecurePlan()
        plan.CopyFrom(SECURE)
        for name, value in changes.items():
            setattr(plan, name, value)
        bench = Bench().fetching(secure=plan)
        assert bench.phase is Phase.READY and bench.ignored()

    def test_without_an_update_it_leaves_the_session(self):
        bench = Bench().secured()
        bench.does(BlobStored(BUNDLE, True)).does(BlobStored(WEIGHTS, True))
        bench.does(ProgramFinished(1, Outcome(VECTOR, finite=False)))
        assert failure(bench) == NON_FINITE and bench.session is None


DAY = 24 * 3600


def masked_task(secure=SECURE, **more):
    return _bench.make_task(secure=secure, ends_s=20 * DAY, **more)


class TestDenyList:
    """What a device does whose deny list is old, at 10 days of Unix time."""

    def aged(self, *lists, allows_plain=False):
        policy = DevicePolicy(secure_required=not allows_plain, denied_age_ns=7 * DAY * SECOND)
        bench = Bench(policy=policy).ready()
        bench.now = 10 * DAY * SECOND
        for version, issued_s in lists:
            bench.does(Ordered(DeniedVersion(version=version, issued_s=issued_s)))
        return bench

    @pytest.mark.parametrize("age_days", [1, 7])
    def test_a_masked_task_is_taken_with_a_list_that_is_young_enough(self, age_days):
        bench = self.aged((4, (10 - age_days) * DAY)).gets(masked_task())
        assert bench.phase is Phase.FETCHING

    @pytest.mark.parametrize("lists", [[(4, 3 * DAY - 1)], [(0, 3 * DAY - 1)], []])
    def test_a_masked_task_is_refused_with_a_list_that_is_too_old(self, lists):
        bench = self.aged(*lists).gets(masked_task())
        assert bench.phase is Phase.READY and failure(bench) == NOT_IN_COHORT
        assert Record("session", {"device": 7, "reason": "deny list"}) in bench.effects

    def test_the_age_does_not_matter_where_nothing_is_masked_or_no_limit_is_set(self):
        bench = self.aged(allows_plain=True).gets(masked_task(secure=None))
        assert bench.phase is Phase.FETCHING
        bench = Bench().ready()
        bench.now = 10 * DAY * SECOND
        assert bench.gets(masked_task()).phase is Phase.FETCHING

    def test_a_newer_list_lets_it_take_tasks_again_and_an_older_one_changes_nothing(self):
        bench = self.aged((4, DAY)).gets(masked_task())
        assert failure(bench) == NOT_IN_COHORT
        assert not bench.does(Ordered(DeniedVersion(version=4, issued_s=9 * DAY))).ignored()
        for older in ((4, 8 * DAY), (3, 10 * DAY), (0, 10 * DAY)):
            assert bench.does(Ordered(DeniedVersion(version=older[0], issued_s=older[1]))).ignored()
        bench.gets(masked_task(attempt=2))
        assert bench.phase is Phase.FETCHING
        assert restore(bench.machine.snapshot()).denied_issued_s == 9 * DAY

    def named(self, version, **changes):
        secure = SecurePlan()
        secure.CopyFrom(SECURE)
        secure.denied_version = version
        return masked_task(secure=secure, **changes)

    def test_a_task_that_names_a_newer_list_waits_for_the_list_and_is_taken_with_it(self):
        bench = self.aged((4, 9 * DAY)).gets(self.named(5))
        assert bench.phase is Phase.READY and not bench.said
        assert Record("deny_list_awaited", {"device": 7, "version": 5}) in bench.effects
        bench.does(Ordered(DeniedVersion(version=5, issued_s=10 * DAY)))
        assert bench.gets(self.named(5)).phase is Phase.FETCHING

    def test_a_task_that_names_a_newer_list_is_refused_when_the_list_does_not_come(self):
        bench = self.aged((4, 9 * DAY)).gets(self.named(5)).gets(self.named(5))
        assert bench.phase is Phase.READY and failure(bench) == NOT_IN_COHORT
        assert Record("session", {"device": 7, "reason": "deny list version"}) in bench.effects
        again = bench.gets(self.named(5, attempt=2))
        assert not again.said, "the next attempt's task waits for the list again"
        assert restore(bench.machine.snapshot()).awaited == (1, 1, 2)

    @pytest.mark.parametrize("version", [0, 3, 4])
    def test_a_task_that_names_the_list_that_is_known_or_an_older_one_is_taken(self, version):
        bench = self.aged((4, 9 * DAY)).gets(self.named(version))
        assert bench.phase is Phase.FETCHING

    def test_a_task_that_nobody_has_signed_does_not_have_the_list_fetched(self):
        task = self.named(5)
        task.secure.denied_version = 6
        bench = self.aged((4, 9 * DAY)).gets(task)
        assert failure(bench) == TASK_NOT_SIGNED and not bench.machine.state.awaited[0]

    def test_without_a_list_its_age_counts_from_the_first_start(self):
        bench = self.aged((0, DAY))
        assert bench.does(Ordered(DeniedVersion(version=0, issued_s=10 * DAY))).ignored()
        assert failure(bench.gets(masked_task())) == NOT_IN_COHORT


class TestUnmasking:
    def test_an_update_that_is_in_no_sum_ends_its_part(self):
        bench = Bench().masked().gets(UploadAck(**ROUND, device=7, status=LATE))
        assert bench.phase is Phase.IDLE and bench.session is None

    def test_survivors_may_come_before_the_ack(self):
        bench = Bench().masked()
        assert kinds(bench.hears_next()) == [Consent]
        assert bench.phase is Phase.UPLOADING
        bench.gets(UploadAck(**ROUND, device=7, status=COUNTED))
        assert bench.phase is Phase.UNMASKING and kinds(bench) == [Consent]

    def test_at_a_silent_home_it_goes_on_through_the_next(self):
        bench = Bench(homes=(EDGE, OTHER)).unmasking()
        for _ in range(3):
            bench.does(TimerFired("session"), after=70 * SECOND)
        assert [(to, type(m)) for to, m in bench.sent] == [(OTHER, SealedShares)]
        bench.does(Received(OTHER, bench.near.survivors()))
        assert [(to, type(m)) for to, m in bench.sent] == [(OTHER, Consent)]
        # What its first home still had to say is heard too.
        bench.does(Received(EDGE, bench.near.request(bench.session.consent)))
        assert kinds(bench) == [UnmaskShares]

    def test_a_home_that_answers_is_not_left(self):
        bench = Bench(homes=(EDGE, OTHER)).unmasking()
        for _ in range(8):
            bench.does(TimerFired("session"), after=70 * SECOND)
            assert bench.sent[0][0] == EDGE
            bench.gets(UploadAck(**ROUND, device=7, status=COUNTED))

    def test_nobody_waits_for_ever(self):
        bench = Bench().unmasking()
        ends = bench.timer("task")
        assert ends > bench.now + 600 * SECOND
        bench.does(TimerFired("task"), after=ends - bench.now)
        assert bench.phase is Phase.IDLE and bench.session is None

    def test_who_takes_consent_back_gives_no_share(self):
        bench = Bench().unmasking()
        bench.does(Ordered(Conditions(facts=DeviceFacts(), eligibility=Eligibility())))
        assert bench.phase is Phase.IDLE and not bench.said and bench.session is None
        asked = bench.near.survivors()
        assert bench.gets(asked).ignored()

    def test_it_is_not_offered_to_others_before_its_part_is_over(self):
        bench = Bench().unmasking()
        assert bench.gets(_bench.make_task(round=2)).ignored()
        assert CheckIn not in kinds(bench.does(Started()))


class TestCrashes:
    @pytest.mark.parametrize("way", ["secured", "sealing", "masked", "unmasking"])
    def test_after_a_restart_it_goes_on_with_the_same_keys(self, way):
        bench = getattr(Bench(), way)()
        phase, bundle = bench.phase, bench.session.bundle
        again = Bench(restore(bench.machine.snapshot()))
        again.near, again.now = bench.near, bench.now
        again.does(Started((BUNDLE, WEIGHTS)), after=SECOND)
        assert again.session.bundle == bundle
        if way == "secured":
            assert again.phase is Phase.TRAINING
            assert bundle in again.said
        else:
            assert again.phase is phase
        if way == "unmasking":
            assert kinds(again.hears_next()) == [Consent]

    def test_trained_again_it_masks_the_same_update_in_the_same_way(self):
        bench = Bench().sealing()
        snapshot = bench.machine.snapshot()
        first = bench.hears_next().said
        again = Bench(restore(snapshot))
        again.near = bench.near
        assert again.hears_next().said == first


def test_no_record_shows_a_secret():
    bench = Bench().unmasking()
    records = []
    for step in (bench.hears_next, bench.hears_next):
        records += step().of(Record)
    state = bench.machine.state
    told = repr(records) + repr(replace(state)) + repr(bench.session)
    assert set(SECRETS) <= set(DeviceState.__dataclass_fields__)
    for secret in (state.secret, VECTOR.tobytes()):
        assert repr(secret)[2:-1] not in told
