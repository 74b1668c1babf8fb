"""What a device refuses of its coordinator, and how a session that it ends looks afterwards."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.privacy.secagg import transcript
from delian.core.privacy.secagg.client import ClientSession, ClientState, Phase, Policy
from delian.core.privacy.secagg.cohort import layout
from delian.core.privacy.secagg.member_identity import SimulatedIdentity
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.privacy.secagg.transcript import Session
from delian.core.wire.secure_pb2 import Delivery, SealedShare, Signed, UnmaskRequest
from support.secure_federation import (
    SEED,
    Federation,
    bundle_of,
    changed,
    cohort_of,
    make_task,
    master_of,
    update_of,
)

DEVICES = [5, 8, 11, 14, 17]
ME = 11
SMALL_ORDER = bytes(32)
ANY = Policy()


def begun(task=None, policy=ANY) -> ClientSession:
    client = ClientSession(ClientState(ME), SimulatedIdentity(ME, SEED), policy)
    client.begin(task or make_task(), master_of(ME))
    return client


def bundles(**replaced):
    """Everybody's keys; `replaced`: d8=bundle."""
    return [replaced.get(f"d{device}", bundle_of(device)) for device in DEVICES]


def refuses(client: ClientSession, call, reason: str) -> None:
    """The call fails for the reason and ends the session: no secret is left, nothing is said."""
    with pytest.raises(SecureError) as caught:
        call()
    assert caught.value.reason == reason
    state = client.state
    assert state.phase is Phase.FAILED and state.reason == reason
    assert state.secret == b"" and client.waiting is None
    assert state.unmask is None


def leaves_alone(client: ClientSession, call, reason: str) -> None:
    """The call fails for the reason, and the session goes on."""
    before = repr(client.state), client.state.secret
    with pytest.raises(SecureError) as caught:
        call()
    assert caught.value.reason == reason
    assert (repr(client.state), client.state.secret) == before


# ---------------------------------------------------------------- the task


@pytest.mark.parametrize(
    "changes",
    [
        {"suite": 0},
        {"suite": 3},
        {"cohort_min": 0},
        {"cohort_min": 2},
        {"cohort_min": 1001},
        {"corrupt": 1.0},
        {"corrupt": -0.1},
        {"corrupt": float("nan")},
        {"dropout": float("inf")},
        {"bits": 7},
        {"dimension": 0},
        {"dimension": 2**28 + 1},
    ],
    ids=str,
)
def test_a_plan_that_cannot_be_is_refused(changes):
    client = ClientSession(ClientState(ME), SimulatedIdentity(ME, SEED))
    leaves_alone(client, lambda: client.begin(make_task(**changes), bytes(32)), "plan")


@pytest.mark.parametrize(
    "policy", [Policy(cohort_min=4), Policy(corrupt=0.2), Policy(suites=(2,))], ids=str
)
def test_a_plan_below_its_owner_s_floor_is_refused(policy):
    client = ClientSession(ClientState(ME), SimulatedIdentity(ME, SEED), policy)
    leaves_alone(client, lambda: client.begin(make_task(), bytes(32)), "policy")


def test_a_plan_that_counts_on_nobody_corrupt_is_refused_unless_the_owner_says_otherwise():
    client = ClientSession(ClientState(ME), SimulatedIdentity(ME, SEED))
    leaves_alone(client, lambda: client.begin(make_task(corrupt=0), bytes(32)), "policy")
    careless = ClientSession(ClientState(ME), SimulatedIdentity(ME, SEED), Policy(corrupt=0))
    assert careless.begin(make_task(corrupt=0), bytes(32))


def test_the_same_task_again_gives_the_same_keys_and_another_none():
    client = begun()
    first = client.state.bundle
    assert client.begin(make_task(), bytes(32)) == first
    other = make_task(weights=b"x" * 32)
    leaves_alone(client, lambda: client.begin(other, master_of(ME)), "order")


def test_other_models_attempts_and_masters_give_other_keys():
    tasks = [make_task(), make_task(attempt=2), make_task(weights=b"x" * 32)]
    made = [begun(task).state.bundle.mask_key for task in tasks]
    other = ClientSession(ClientState(ME), SimulatedIdentity(ME, SEED))
    made.append(other.begin(make_task(), bytes(32)).mask_key)
    assert len(set(made)) == 4


# ---------------------------------------------------------------- the cohort


def test_the_cohort_as_it_must_be_is_taken():
    client = begun()
    shares = client.take_cohort(cohort_of(make_task(), bundles(), ME))
    assert [share.index for share in shares.shares] == [0, 1, 3, 4]


def test_a_cohort_below_the_plan_s_minimum_is_refused():
    task = make_task(cohort_min=6)
    members = [bundle_of(device, task) for device in DEVICES]
    client = begun(task)
    refuses(client, lambda: client.take_cohort(cohort_of(task, members, ME)), "small")


def test_what_the_owner_asks_for_counts_also_when_it_is_raised_during_a_session():
    strict, me = Policy(cohort_min=6), SimulatedIdentity(ME, SEED)
    client = ClientSession(begun().state, me, strict)
    refuses(client, lambda: client.take_cohort(cohort_of(make_task(), bundles(), ME)), "small")
    _, client, survivors = masked()
    client = ClientSession(client.state, me, strict)
    refuses(client, lambda: client.take_survivors(survivors[ME]), "small")


@pytest.mark.parametrize("index", [1, 5, 2**32 - 1])
def test_a_cohort_that_puts_the_device_elsewhere_is_refused(index):
    client = begun()
    cohort = changed(cohort_of(make_task(), bundles(), ME), index=index)
    refuses(client, lambda: client.take_cohort(cohort), "roster")


@pytest.mark.parametrize("leaves", [b"x" * 31, b"x" * 32 * 1001])
def test_a_roster_that_is_none_is_refused(leaves):
    client = begun()
    cohort = changed(cohort_of(make_task(), bundles(), ME), leaves=leaves)
    refuses(client, lambda: client.take_cohort(cohort), "roster")


def test_members_out_of_order_or_twice_are_refused():
    swapped = [bundle_of(device) for device in (8, 5, 11, 14, 17)]
    above = [bundle_of(device) for device in (5, 14, 11, 8, 17)]
    twice = [bundle_of(device) for device in (5, 8, 11, 14, 14)]
    late = [bundle_of(device) for device in (11, 5, 8, 14, 17)]
    early = [bundle_of(device) for device in (5, 8, 14, 17, 11)]
    for members in (swapped, above, twice, late, early):
        client = begun()
        cohort = cohort_of(make_task(), members, ME)
        refuses(client, lambda c=client, m=cohort: c.take_cohort(m), "roster")


@pytest.mark.parametrize("devices", [b"x" * 7, b"x" * 8 * 1001, bytes(8 * 4), bytes(8 * 5)])
def test_members_numbers_that_are_none_are_refused(devices):
    client = begun()
    cohort = changed(cohort_of(make_task(), bundles(), ME), devices=devices)
    refuses(client, lambda: client.take_cohort(cohort), "roster")


def test_a_member_s_number_is_that_of_its_keys():
    for numbers in ((5, 8, 12, 14, 17), (5, 8, 11, 14, 18), (4, 8, 11, 14, 17)):
        client = begun()
        cohort = cohort_of(make_task(), bundles(), ME, numbers)
        refuses(client, lambda c=client, m=cohort: c.take_cohort(m), "roster")


class TestOneCertificateInTwoPlacesOfASparseCohort:
    """The device need not be a neighbour of either place to see it, or a neighbour does."""

    task = make_task(cohort_min=40)

    def members(self):
        """Forty keys of thirty-nine devices: places 30 and 31 are of device 30."""
        numbers = [*range(31), *range(30, 39)]
        twin = bundle_of(30, self.task, mask_key=b"\x09" * 32)
        return [twin if i == 31 else bundle_of(d, self.task) for i, d in enumerate(numbers)]

    def took(self, device, numbers):
        client = ClientSession(ClientState(device), SimulatedIdentity(device, SEED))
        client.begin(self.task, master_of(device))
        try:
            client.take_cohort(cohort_of(self.task, self.members(), device, numbers))
        except SecureError as fault:
            return fault.reason
        return "taken"

    def test_under_one_number_nobody_takes_it(self):
        assert {self.took(device, None) for device in range(0, 29, 4)} == {"roster"}

    def test_under_another_number_no_neighbour_of_that_place_takes_it(self):
        numbers = [*range(40)]
        place = layout(
            Session.of(self.task),
            b"".join(map(transcript.leaf, self.members())),
            transcript.numbers(numbers),
        )
        near = [i for i in place.neighbours(31) if i < 30]
        assert not place.graph.complete and near
        assert {self.took(device, numbers) for device in near} == {"roster"}


def test_neighbours_that_are_not_the_computed_ones_are_refused():
    whole = cohort_of(make_task(), bundles(), ME)
    fewer = changed(whole, indices=[0, 1, 3], neighbours=list(whole.neighbours)[:3])
    other = changed(whole, indices=[0, 1, 3, 3])
    self_too = changed(whole, indices=[0, 1, 2, 3])
    none = changed(whole, neighbours=[])
    for cohort in (fewer, other, self_too, none):
        client = begun()
        refuses(client, lambda c=client, m=cohort: c.take_cohort(m), "graph")


def test_in_a_sparse_graph_the_coordinator_cannot_choose_the_neighbours():
    devices = list(range(100))
    members = [bundle_of(device) for device in devices]
    cohort = cohort_of(make_task(), members, ME)
    assert len(cohort.indices) < 99
    missing = next(i for i in range(100) if i not in cohort.indices and i != cohort.index)
    wanted = sorted([*list(cohort.indices)[1:], missing])
    chosen = changed(cohort, indices=wanted, neighbours=[members[i] for i in wanted])
    client = begun()
    refuses(client, lambda: client.take_cohort(chosen), "graph")


def test_keys_of_another_attempt_are_refused():
    old = bundle_of(8, make_task(attempt=2))
    client = begun()
    cohort = cohort_of(make_task(), bundles(d8=old), ME)
    refuses(client, lambda: client.take_cohort(cohort), "bundle")


def test_keys_of_another_attempt_under_this_one_s_name_are_refused():
    """Replay: the signature is over the session, with the model and the plan."""
    for other in (make_task(attempt=2), make_task(weights=b"x" * 32), make_task(cohort_min=4)):
        replayed = changed(bundle_of(8, other), attempt=1)
        client = begun()
        cohort = cohort_of(make_task(), bundles(d8=replayed), ME)
        refuses(client, lambda c=client, m=cohort: c.take_cohort(m), "signature")


def test_unsigned_and_foreign_keys_are_refused():
    theirs = bundle_of(20)
    cases = {
        "bundle": bundle_of(8, signature=b""),
        "signature": changed(theirs, device=8),
    }
    for reason, bundle in cases.items():
        client = begun()
        cohort = cohort_of(make_task(), bundles(d8=bundle), ME)
        refuses(client, lambda c=client, m=cohort: c.take_cohort(m), reason)


@pytest.mark.parametrize(
    "changes",
    [{"sealing_key": b"short"}, {"mask_key": b"x" * 33}, {"certificate": b"c" * 2049}],
    ids=lambda c: next(iter(c)),
)
def test_malformed_keys_are_refused(changes):
    client = begun()
    cohort = cohort_of(make_task(), bundles(d8=bundle_of(8, **changes)), ME)
    refuses(client, lambda: client.take_cohort(cohort), "bundle")


def test_keys_other_than_those_in_the_roster_are_refused():
    client = begun()
    cohort = cohort_of(make_task(), bundles(), ME)
    cohort.neighbours[1].CopyFrom(bundle_of(8, mask_key=b"m" * 32))
    refuses(client, lambda: client.take_cohort(cohort), "bundle")


def test_a_neighbour_s_keys_of_small_order_are_refused():
    """With such a key the secret that the two share would be known to everybody."""
    client = begun()
    cohort = cohort_of(make_task(), bundles(d8=bundle_of(8, sealing_key=SMALL_ORDER)), ME)
    refuses(client, lambda: client.take_cohort(cohort), "key")
    client = begun()
    cohort = cohort_of(make_task(), bundles(d8=bundle_of(8, mask_key=SMALL_ORDER)), ME)
    client.take_cohort(cohort)
    shares = [SealedShare(index=index, sealed=bytes(80)) for index in cohort.indices]
    client.take_delivery(Delivery(run=7, round=3, attempt=1, device=ME, shares=shares))
    refuses(client, lambda: client.mask(update_of(ME, 17)), "key")


def test_a_second_cohort_ends_the_session_and_the_first_again_does_not():
    client = begun()
    cohort = cohort_of(make_task(), bundles(), ME)
    shares = client.take_cohort(cohort)
    assert client.take_cohort(cohort) == shares
    other = cohort_of(make_task(), bundles()[:4], ME)
    refuses(client, lambda: client.take_cohort(other), "equivocation")


@pytest.mark.parametrize("step", ["keys", "shares", "masking", "masked"])
def test_a_device_that_is_left_out_ends_its_session(step):
    federation = Federation(DEVICES)
    cohorts = federation.give_keys()
    if step != "keys":
        deliveries = federation.give_shares(cohorts)
    if step in ("masking", "masked"):
        federation.down(deliveries[ME])
    client = federation.clients[ME]
    if step == "masked":
        client.mask(federation.update(ME))
    assert client.state.phase == step
    nobody = changed(cohorts[ME], leaves=b"", indices=[], neighbours=[])
    leaves_alone(client, lambda: client.take_cohort(changed(nobody, attempt=2)), "foreign")
    refuses(client, lambda: client.take_cohort(nobody), "excluded")


def test_a_device_that_has_signed_the_survivors_cannot_be_left_out():
    _, client, request = asked()
    nobody = changed(client.state.cohort, leaves=b"")
    leaves_alone(client, lambda: client.take_cohort(nobody), "order")
    assert client.take_unmask(request).shares
    leaves_alone(client, lambda: client.take_cohort(nobody), "order")


# ---------------------------------------------------------------- delivery and masks


def delivered(count=5, **plan):
    """A federation in which everybody has shares, and the messages that say so."""
    federation = Federation([5 + 3 * i for i in range(count)], make_task(**plan))
    deliveries = federation.give_shares(federation.give_keys())
    return federation, federation.clients[ME], deliveries[ME]


@pytest.mark.parametrize(
    ("shares", "reason"),
    [
        (lambda s: s[:2], "few"),
        (lambda s: [], "few"),
        (lambda s: [s[1], s[0], *s[2:]], "delivery"),
        (lambda s: [s[0], *s], "delivery"),
        (lambda s: [*s, SealedShare(index=900, sealed=bytes(80))], "delivery"),
        (lambda s: [*s[:3], SealedShare(index=4, sealed=bytes(79))], "delivery"),
    ],
    ids=["too few", "none", "out of order", "twice", "a stranger's", "a wrong size"],
)
def test_a_delivery_that_cannot_be_is_refused(shares, reason):
    _, client, delivery = delivered()
    bad = changed(delivery, shares=shares(list(delivery.shares)))
    refuses(client, lambda: client.take_delivery(bad), reason)


def test_a_second_delivery_ends_the_session_and_the_first_again_does_not():
    _, client, delivery = delivered()
    client.take_delivery(delivery)
    client.take_delivery(delivery)
    other = changed(delivery, shares=list(delivery.shares)[1:])
    refuses(client, lambda: client.take_delivery(other), "equivocation")


def test_an_update_is_masked_once_and_the_same_one_again_alike():
    federation, client, delivery = delivered()
    client.take_delivery(delivery)
    update = federation.update(ME)
    kept = update.copy()
    first = client.mask(update)
    assert np.array_equal(update, kept), "the update itself is not touched"
    assert np.array_equal(client.mask(update), first)
    other = update.copy()
    other[3] += 1
    refuses(client, lambda: client.mask(other), "vector")


@pytest.mark.parametrize(
    "update",
    [update_of(ME, 16), update_of(ME, 17).astype(np.int64), update_of(ME, 34).reshape(17, 2)],
)
def test_an_update_of_another_shape_or_type_is_not_masked(update):
    _, client, delivery = delivered()
    client.take_delivery(delivery)
    refuses(client, lambda: client.mask(update), "vector")


def test_nothing_is_masked_before_the_neighbours_shares_have_come():
    federation, client, _ = delivered()
    leaves_alone(client, lambda: client.mask(federation.update(ME)), "order")


# ---------------------------------------------------------------- survivors and consents


def masked(count=5, **plan):
    federation = Federation([5 + 3 * i for i in range(count)], make_task(**plan))
    survivors = federation.give_updates(federation.give_shares(federation.give_keys()))
    return federation, federation.clients[ME], survivors


def named(federation, indices, count=5):
    return transcript.bitmap(indices, count)


@pytest.mark.parametrize(
    ("indices", "reason"),
    [([0, 2], "small"), ([0, 1, 3, 4], "absent"), ([2], "small"), ([], "small")],
    ids=str,
)
def test_survivors_that_cannot_be_are_refused(indices, reason):
    federation, client, survivors = masked()
    bad = changed(survivors[ME], members=named(federation, indices))
    refuses(client, lambda: client.take_survivors(bad), reason)


@pytest.mark.parametrize("members", [b"", b"\x1f\x00", b"\xff", b"\x3f"])
def test_a_bitmap_that_is_not_canonical_is_refused(members):
    _, client, survivors = masked()
    bad = changed(survivors[ME], members=members)
    refuses(client, lambda: client.take_survivors(bad), "bitmap")


def test_survivors_with_too_few_neighbours_are_refused():
    """Nine devices, all neighbours: five must be in the sum with it for their shares to do."""
    federation, client, survivors = masked(9)
    bad = changed(survivors[ME], members=named(federation, [0, 1, 2, 3], 9))
    refuses(client, lambda: client.take_survivors(bad), "few")


def test_a_neighbour_whose_shares_were_withheld_cannot_be_a_survivor():
    """Else a coordinator could keep two devices from masking for each other, and still have both
    in the sum.
    """
    federation = Federation([5 + 3 * i for i in range(9)])
    deliveries = dict(federation.give_shares(federation.give_keys()))
    deliveries[ME] = changed(deliveries[ME], shares=list(deliveries[ME].shares)[1:])
    survivors = federation.give_updates(deliveries)
    client = federation.clients[ME]
    refuses(client, lambda: client.take_survivors(survivors[ME]), "survivors")


def test_a_second_set_of_survivors_ends_the_session_and_the_first_again_does_not():
    federation, client, survivors = masked(9)
    consent = client.take_survivors(survivors[ME])
    assert client.take_survivors(survivors[ME]) == consent
    other = changed(survivors[ME], members=named(federation, range(8), 9))
    refuses(client, lambda: client.take_survivors(other), "equivocation")


def asked(count=9):
    federation, client, survivors = masked(count)
    requests = federation.give_consents(survivors)
    return federation, client, requests[ME]


def test_consents_of_too_few_do_not_do():
    _, client, request = asked()
    bad = changed(request, consents=list(request.consents)[1:])
    refuses(client, lambda: client.take_unmask(bad), "few")


def test_a_consent_twice_does_not_count_twice():
    _, client, request = asked()
    first = list(request.consents)
    bad = changed(request, consents=[first[0], *first[:-1]])
    refuses(client, lambda: client.take_unmask(bad), "consent")


def test_a_forged_consent_does_not_do():
    _, client, _ = asked()
    forger = SimulatedIdentity(99, SEED)
    binding = client._layout.binding
    for signature in (
        b"",
        b"x" * 70,
        b"y" * 100,
        forger.sign(transcript.signed_consent(binding, 5, client.state.members)),
        # Of the right device, over another set; and over this set in another session.
        SimulatedIdentity(5, SEED).sign(transcript.signed_consent(binding, 5, b"\xff\x00")),
        SimulatedIdentity(5, SEED).sign(transcript.signed_consent(bytes(32), 5, b"\xff\x01")),
    ):
        _, client, request = asked()
        consents = {c.index: c for c in request.consents}
        consents[0] = Signed(index=0, signature=signature)
        bad = changed(request, consents=[consents[i] for i in sorted(consents)])
        refuses(client, lambda c=client, m=bad: c.take_unmask(m), "consent")


@pytest.mark.parametrize("index", [0, 2, 700], ids=["gone", "itself", "nobody"])
def test_a_consent_of_one_who_is_no_neighbour_in_the_sum_does_not_do(index):
    federation = Federation([5 + 3 * i for i in range(9)])
    deliveries = federation.give_shares(federation.give_keys())
    survivors = federation.give_updates(deliveries, but=[5])
    client = federation.clients[ME]
    request = federation.give_consents(survivors)[ME]
    signer = ME if index == 2 else 5
    signed = transcript.signed_consent(client._layout.binding, signer, client.state.members)
    extra = Signed(index=index, signature=SimulatedIdentity(signer, SEED).sign(signed))
    consents = sorted([*request.consents, extra], key=lambda c: c.index)
    refuses(client, lambda: client.take_unmask(changed(request, consents=consents)), "consent")


def test_a_second_request_ends_the_session_and_the_first_again_does_not():
    _, client, request = asked()
    answer = client.take_unmask(request)
    assert client.take_unmask(request) == answer
    other = changed(request, consents=list(request.consents)[1:])
    refuses(client, lambda: client.take_unmask(other), "equivocation")


# ---------------------------------------------------------------- other sessions, other times


def test_messages_of_another_attempt_or_device_leave_the_session_alone():
    _, client, request = asked()
    for change in ({"run": 8}, {"round": 2}, {"attempt": 2}, {"device": 8}):
        leaves_alone(client, lambda c=change: client.take_unmask(changed(request, **c)), "foreign")
    assert client.take_unmask(request).shares


def test_messages_before_their_time_leave_the_session_alone():
    client = begun()
    federation, _, request = asked()
    survivors = federation.server._survivors(ME)
    leaves_alone(client, lambda: client.take_survivors(survivors), "order")
    leaves_alone(client, lambda: client.take_unmask(request), "order")
    fresh = ClientSession(ClientState(ME), SimulatedIdentity(ME, SEED))
    leaves_alone(fresh, lambda: fresh.take_unmask(request), "foreign")


def test_nothing_is_taken_after_the_session_has_failed():
    federation, client, request = asked()
    empty = UnmaskRequest(run=7, round=3, attempt=1, device=ME)
    refuses(client, lambda: client.take_unmask(empty), "few")
    leaves_alone(client, lambda: client.take_unmask(request), "order")
    leaves_alone(client, lambda: client.mask(federation.update(ME)), "order")
    for task in (make_task(), make_task(attempt=2)):
        leaves_alone(client, lambda t=task: client.begin(t, bytes(32)), "order")
