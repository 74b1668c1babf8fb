"""Helper mode: one uplink, exact sums, and what an honest helper refuses to add up."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from delian.core.privacy import task_limits
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.privacy.secagg import helper, hpke, kdf
from delian.core.privacy.secagg.helper import Answer, Helper, Helpers, Ledger, Trust
from delian.core.privacy.secagg.member_identity import SimulatedIdentity
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.protocol import snapshot
from delian.core.wire.helper_pb2 import (
    ASKED_BEFORE,
    BAD_SEEDS,
    HELP_GIVEN,
    MALFORMED,
    TOO_FEW,
    HelpPart,
    HelpRequest,
)
from delian.core.wire.round_pb2 import Task
from delian.core.wire.secure_pb2 import MaskSeeds, SealedSeed
from support.secure_federation import SEED, make_task, master_of, update_of

EDGES = (4, 7, 9)
DEVICES = (5, 8, 11, 14, 17)
LENGTH = 17


def private_of(edge: int) -> bytes:
    return bytes([edge]) * 32


def helper_at(edge: int, least: int = 0) -> Helper:
    return Helper(edge, private_of(edge), SimulatedIdentity(edge, SEED, "edge"), least)


def task_of(count: int = 2, **changes) -> Task:
    """A task that names so many helpers."""
    task = make_task(**changes)
    task.secure.helpers.extend(helper_at(edge).card() for edge in EDGES[:count])
    return task


def masked(device: int, task: Task) -> tuple[np.ndarray, MaskSeeds]:
    helpers = Helpers.of(task)
    secret = kdf.session_secret(master_of(device), helpers.session.task)
    identity = SimulatedIdentity(device, SEED)
    return helper.mask(update_of(device, LENGTH), helpers, device, secret, identity)


def part_of(task: Task, seeds: dict[int, MaskSeeds], place: int) -> HelpPart:
    """Of some devices, what one helper is shown."""
    shown = [
        MaskSeeds(device=d, certificate=s.certificate, seeds=[s.seeds[place]])
        for d, s in sorted(seeds.items())
    ]
    return HelpPart(task=task, devices=shown)


def request(devices=DEVICES, batch=1, place=0, task=None, **changes) -> HelpRequest:
    task = task or task_of(**changes)
    seeds = {d: masked(d, task)[1] for d in devices}
    return HelpRequest(run=task.run, batch=batch, parts=[part_of(task, seeds, place)])


def added(answer: Answer) -> np.ndarray:
    assert answer.refusal == HELP_GIVEN
    return helper.masks_of(answer.keys, answer.ring.length, answer.suite)


def total(vectors) -> np.ndarray:
    return np.sum(list(vectors), 0, np.uint32)


def refuses(call, reason: str) -> None:
    with pytest.raises(SecureError) as caught:
        call()
    assert caught.value.reason == reason


# ---------------------------------------------------------------- sums


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("suite", [1, 2])
def test_the_sum_of_a_batch_is_exact_whoever_else_has_spoken(count, suite):
    task = task_of(count, suite=suite)
    said = {d: masked(d, task) for d in DEVICES}
    for named in (DEVICES, DEVICES[1:4]):
        rest = total(said[d][0] for d in named)
        for place, edge in enumerate(EDGES[:count]):
            part = part_of(task, {d: said[d][1] for d in named}, place)
            asked = HelpRequest(run=7, batch=1, parts=[part])
            rest -= added(helper_at(edge).answer(asked, Ledger()))
        assert np.array_equal(rest, total(update_of(d, LENGTH) for d in named))


def test_a_batch_may_be_of_several_models():
    """What a buffered run has: devices that began at different times."""
    tasks_ = [
        task_of(round=r, attempt=a, weights=w * 32) for r, a, w in [(3, 2, b"v"), (4, 1, b"w")]
    ]
    groups = [DEVICES[:2], DEVICES[2:]]
    said = [{d: masked(d, t) for d in g} for t, g in zip(tasks_, groups, strict=True)]
    rest = total(vector for group in said for vector, _ in group.values())
    for place, edge in enumerate(EDGES[:2]):
        parts = [
            part_of(t, {d: seeds for d, (_, seeds) in group.items()}, place)
            for t, group in zip(tasks_, said, strict=True)
        ]
        rest -= added(helper_at(edge).answer(HelpRequest(run=7, batch=1, parts=parts), Ledger()))
    assert np.array_equal(rest, total(update_of(d, LENGTH) for d in DEVICES))


def test_without_one_helper_s_sum_nothing_is_read():
    task = task_of(2)
    rest = total(masked(d, task)[0] for d in DEVICES)
    rest -= added(helper_at(4).answer(request(task=task), Ledger()))
    assert not np.any(rest == total(update_of(d, LENGTH) for d in DEVICES))


def test_a_device_says_one_vector_and_eighty_bytes_a_helper():
    vector, seeds = masked(5, task_of(3))
    assert vector.shape == (LENGTH,) and vector.dtype == np.uint32
    assert [len(seed.sealed) for seed in seeds.seeds] == [80] * 3
    assert helper.are_seeds(seeds, 3) and not helper.are_seeds(seeds, 2)
    assert seeds.ByteSize() <= helper.SEEDS_BYTES_MAX
    assert not np.any(vector == update_of(5, LENGTH))


def test_worked_out_again_every_byte_is_the_same():
    one, other = masked(5, task_of()), masked(5, task_of())
    assert np.array_equal(one[0], other[0]) and one[1] == other[1]


def test_other_masters_models_helpers_and_devices_give_other_masks_and_seals():
    said = [
        masked(5, task_of()),
        masked(5, task_of(weights=b"x" * 32)),
        masked(5, task_of(attempt=2)),
        masked(5, task_of(3)),
        masked(5, task_of(cohort_min=4)),
    ]
    masks = {tuple(vector - update_of(5, LENGTH)) for vector, _ in said}
    # Not even the sender's public key is used twice, in the seals of one device or of several.
    keys = [seed.sealed[:32] for _, seeds in said for seed in seeds.seeds]
    keys += [seed.sealed[:32] for seed in masked(8, task_of())[1].seeds]
    assert len(masks) == len(said) and len(set(keys)) == len(keys)


# ---------------------------------------------------------------- what a helper refuses


def test_a_seed_is_opened_in_one_batch_and_in_no_other():
    """The difference of two sums that overlap is the sum of fewer devices than anybody may read."""
    one, ledger = helper_at(4), Ledger()
    first = one.answer(request(), ledger)
    assert one.answer(request(), ledger) == first and first.refusal == HELP_GIVEN
    for other in (
        request(DEVICES[1:], batch=2),  # all but one of them again
        request((*DEVICES, 20), batch=2),  # and one more
        request((14, 17, 20, 23, 26), batch=2),
        request(DEVICES[1:]),  # under the same number
        request((20, 23, 26)),
    ):
        assert one.answer(other, ledger) == Answer(ASKED_BEFORE)
        ledger = snapshot.load(Ledger, snapshot.dump(ledger))  # a restart changes nothing
    assert one.answer(request((20, 23, 26), batch=2), ledger).refusal == HELP_GIVEN
    assert one.answer(request(), ledger) == first


def test_a_seed_of_another_attempt_is_another_seed():
    one, ledger = helper_at(4), Ledger()
    assert one.answer(request(), ledger).refusal == HELP_GIVEN
    assert one.answer(request(batch=2, attempt=2), ledger).refusal == HELP_GIVEN


def test_devices_are_counted_and_not_seeds():
    task = task_of(cohort_min=4)
    twice = task_of(cohort_min=4, attempt=2)
    three = {d: masked(d, task)[1] for d in DEVICES[:3]}
    again = {d: masked(d, twice)[1] for d in DEVICES[:3]}
    asked = HelpRequest(run=7, batch=1, parts=[part_of(task, three, 0), part_of(twice, again, 0)])
    ledger = Ledger()
    assert helper_at(4).answer(asked, ledger) == Answer(TOO_FEW)
    assert ledger == Ledger()


@pytest.mark.parametrize(("least", "refusal"), [(0, HELP_GIVEN), (5, HELP_GIVEN), (6, TOO_FEW)])
def test_a_helper_has_a_least_of_its_own(least, refusal):
    assert helper_at(4, least).answer(request(), Ledger()).refusal == refusal


def test_a_sum_of_fewer_than_the_plan_s_least_is_refused():
    ledger = Ledger()
    assert helper_at(4).answer(request(DEVICES[:2]), ledger) == Answer(TOO_FEW)
    assert ledger == Ledger(), "their seeds can still be opened among others"
    assert helper_at(4).answer(request(DEVICES[:3], batch=2), ledger).refusal == HELP_GIVEN


def malformed() -> dict[str, HelpRequest]:
    good = request()
    wrong = {
        name: HelpRequest.FromString(good.SerializeToString())
        for name in [
            "run",
            "batch",
            "no_parts",
            "nobody",
            "order",
            "twice",
            "run_of_part",
            "sealed",
            "certificate",
            "count",
            "plan",
            "weights",
            "ring",
            "another_key",
            "nobody_helps",
            "edge_0",
        ]
    }
    wrong["run"].run = 0
    wrong["batch"].batch = 0
    wrong["no_parts"].ClearField("parts")
    wrong["nobody"].parts[0].ClearField("devices")
    wrong["order"].parts[0].devices.reverse()
    wrong["twice"].parts.append(good.parts[0])
    wrong["run_of_part"].parts[0].task.run = 8
    wrong["sealed"].parts[0].devices[2].seeds[0].sealed += b"x"
    wrong["certificate"].parts[0].devices[2].certificate = bytes(3000)
    wrong["count"].parts[0].devices[2].seeds.append(SealedSeed())
    wrong["plan"].parts[0].task.secure.cohort_min = 2
    wrong["weights"].parts[0].task.weights.digest = b"short"
    wrong["ring"].parts[0].task.ring.clip = -1.0
    wrong["another_key"].parts[0].task.secure.helpers[0].key = kdf.public_key(bytes([1]) * 32)
    wrong["nobody_helps"].parts[0].task.secure.ClearField("helpers")
    wrong["edge_0"].parts[0].task.secure.helpers[1].edge = 0
    return wrong


@pytest.mark.parametrize("name", sorted(malformed()))
def test_a_request_that_makes_no_sense_is_refused_and_leaves_no_trace(name):
    ledger = Ledger()
    assert helper_at(4).answer(malformed()[name], ledger) == Answer(MALFORMED)
    assert ledger == Ledger()


def test_a_key_that_stands_at_another_edge_s_name_is_refused():
    task = task_of()
    task.secure.helpers[0].edge = 5
    assert helper_at(4).answer(request(task=task), Ledger()) == Answer(MALFORMED)


def test_updates_of_different_lengths_are_not_added():
    parts = [request(attempt=1).parts[0], request((20, 23, 26), attempt=2, dimension=15).parts[0]]
    asked = HelpRequest(run=7, batch=1, parts=parts)
    assert helper_at(4).answer(asked, Ledger()) == Answer(MALFORMED)


def bad_seeds() -> dict[str, MaskSeeds]:
    """In place of device 8's."""
    task = task_of()
    helpers = Helpers.of(task)
    good = masked(8, task)[1]

    def changed(sealed=good.seeds[0].sealed, signature=good.seeds[0].signature, certificate=b""):
        return MaskSeeds(
            device=8,
            certificate=certificate,
            seeds=[SealedSeed(sealed=sealed, signature=signature)],
        )

    def signed(sealed):
        said = helpers.about(b"share", 0, 8) + sealed
        return changed(sealed, SimulatedIdentity(8, SEED).sign(said))

    other = masked(8, task_of(attempt=2))[1].seeds[0]
    stranger = SimulatedIdentity(99, SEED)
    return {
        "not signed": changed(signature=b"x"),
        "signed by another": changed(
            signature=stranger.sign(helpers.about(b"share", 0, 8) + good.seeds[0].sealed)
        ),
        "another certificate": changed(certificate=b"certificate"),
        "another attempt's": changed(other.sealed, other.signature),
        "the other helper's": changed(good.seeds[1].sealed, good.seeds[1].signature),
        "another device's": changed(masked(5, task)[1].seeds[0].sealed),
        "opens to nothing": signed(bytes(80)),
        "sealed to another": signed(good.seeds[1].sealed),
    }


@pytest.mark.parametrize("name", sorted(bad_seeds()))
def test_who_has_sent_a_bad_seed_is_named_and_nothing_is_given(name):
    """A coordinator that could make devices up would need only one true one in its batch."""
    asked = request()
    asked.parts[0].devices[1].CopyFrom(bad_seeds()[name])
    ledger = Ledger()
    assert helper_at(4).answer(asked, ledger) == Answer(BAD_SEEDS, (8,))
    assert helper_at(4).answer(request(batch=2), ledger) == Answer(ASKED_BEFORE)


def test_what_a_helper_notes_does_not_depend_on_certificates():
    """A journal that is handled again, with a newer certificate at hand, gives the same ledger."""

    class Stranger(SimulatedIdentity):
        def verify(self, *said):
            return False

    ledgers = [Ledger(), Ledger()]
    known = helper_at(4)
    strange = Helper(4, private_of(4), Stranger(4, SEED, "edge"))
    assert known.answer(request(), ledgers[0]).refusal == HELP_GIVEN
    assert strange.answer(request(), ledgers[1]) == Answer(BAD_SEEDS, DEVICES)
    assert ledgers[0] == ledgers[1]


def test_what_a_helper_has_forgotten_it_refuses(monkeypatch):
    monkeypatch.setattr(helper, "OPENED_MAX", 8)
    monkeypatch.setattr(helper, "BATCHES_MAX", 2)
    monkeypatch.setattr(helper, "RUNS_MAX", 2)
    one, ledger = helper_at(4), Ledger()
    for number, round in enumerate((3, 4, 5), 1):
        assert one.answer(request(batch=number, round=round), ledger).refusal == HELP_GIVEN
    known = ledger.runs[7]
    assert known.floor == 4 and known.count == 5 and list(known.batches) == [2, 3]
    assert one.answer(request(batch=1, round=3), ledger) == Answer(ASKED_BEFORE)
    assert one.answer(request((20, 23, 26), batch=4, round=3), ledger) == Answer(ASKED_BEFORE)
    assert one.answer(request((20, 23, 26), batch=1, round=5), ledger) == Answer(ASKED_BEFORE)
    assert one.answer(request((20, 23, 26), batch=4, round=5), ledger).refusal == HELP_GIVEN
    for run in (8, 9):
        assert one.answer(request(run=run), ledger).refusal == HELP_GIVEN
    assert ledger.floor == 7 and list(ledger.runs) == [8, 9]
    assert one.answer(request(batch=9, round=9), ledger) == Answer(ASKED_BEFORE)


# ---------------------------------------------------------------- whom a device trusts

PINNED = {4: b"", 7: kdf.public_key(private_of(7))}


def test_a_device_takes_helpers_that_its_owner_named_and_that_signed_their_keys():
    Trust(PINNED, least=2).check(task_of().secure, 1, SimulatedIdentity(5, SEED))


@pytest.mark.parametrize(
    ("trust", "home", "spoil"),
    [
        (Trust(), 1, None),  # nobody is trusted unless somebody says so
        (Trust({4: b""}), 1, None),  # one of the two is not
        (Trust(PINNED | {4: b"k" * 32}), 1, None),  # another key than is pinned
        (Trust(PINNED, least=3), 1, None),
        (Trust(PINNED), 1, "signature"),
        (Trust(PINNED), 1, "key"),
        (Trust(PINNED), 1, "edge"),
        (Trust(PINNED), 1, "certificate"),
    ],
)
def test_a_device_refuses_other_helpers(trust, home, spoil):
    task = task_of()
    card = task.secure.helpers[0]
    if spoil == "signature":
        card.signature = task.secure.helpers[1].signature
    elif spoil == "key":
        card.key = kdf.public_key(b"q" * 32)
    elif spoil == "edge":
        card.edge = 9
    elif spoil == "certificate":
        card.certificate = b"certificate"
    refuses(lambda: trust.check(task.secure, home, SimulatedIdentity(5, SEED)), "helpers")


def test_who_carries_the_update_may_not_be_its_only_helper():
    """That edge has the masked update in its hands, and would have the seed too."""
    me, trust = SimulatedIdentity(5, SEED), Trust(PINNED)
    refuses(lambda: trust.check(task_of(1).secure, 4, me), "helpers")
    trust.check(task_of(2).secure, 4, me)  # the other helper's mask is still on it


def test_a_device_s_signature_is_not_an_edge_s():
    task = task_of(1)
    key = task.secure.helpers[0].key
    signature = SimulatedIdentity(4, SEED).sign(helper.signed_key(4, key))
    task.secure.helpers[0].signature = signature
    refuses(lambda: Trust(PINNED).check(task.secure, 1, SimulatedIdentity(5, SEED)), "helpers")


# ---------------------------------------------------------------- malformed tasks


def test_a_task_s_helpers_keep_the_contract_s_limits():
    good = task_of(3)
    for name in ("bundle", "weights"):
        getattr(good, name).size = 4
    assert task_limits.is_sane(good)
    for spoil in (
        lambda t: t.secure.helpers.append(helper_at(12).card()),
        lambda t: t.secure.helpers[0].ClearField("key"),
        lambda t: setattr(t.secure.helpers[0], "key", bytes(32)),
        lambda t: setattr(t.secure.helpers[0], "certificate", bytes(2049)),
        lambda t: setattr(t.secure.helpers[0], "signature", bytes(81)),
        lambda t: setattr(t.secure.helpers[0], "edge", 0),
        lambda t: t.secure.helpers[0].CopyFrom(t.secure.helpers[1]),
        lambda t: setattr(t.secure.helpers[0], "key", t.secure.helpers[1].key),
    ):
        task = Task.FromString(good.SerializeToString())
        spoil(task)
        assert not task_limits.is_sane(task)


def test_nobody_helps_with_updates_of_which_a_part_travels():
    """Each round chooses other coordinates, and a batch may be of several rounds."""
    with pytest.raises(SecureError) as caught:
        Helpers.of(task_of(kept=2, rng_key=b"roundkey"))
    assert caught.value.reason == "helpers"


def test_an_update_of_another_length_is_not_masked():
    task = task_of()
    assert RingPlan.of(task.ring).length == LENGTH
    me = SimulatedIdentity(5, SEED)
    for bad in (update_of(5, LENGTH - 1), update_of(5, LENGTH).astype(np.int64)):
        refuses(lambda v=bad: helper.mask(v, Helpers.of(task), 5, bytes(32), me), "vector")


def test_the_ledger_holds_no_secret():
    ledger = Ledger()
    answer = helper_at(4).answer(request(), ledger)
    kept = snapshot.dump(ledger)
    assert all(key not in kept and key.hex().encode() not in kept for key, _ in answer.keys)
    assert {f.name for f in dataclasses.fields(Ledger)} == {"runs", "floor", "log", "denied"}


# ---------------------------------------------------------------- seals


def test_a_seal_opens_for_its_key_and_info_alone():
    sealed = hpke.seal(kdf.public_key(b"r" * 32), b"info", b"a seed", b"s" * 32)
    assert len(sealed) == len(b"a seed") + hpke.OVERHEAD_BYTES
    assert hpke.open_sealed(b"r" * 32, b"info", sealed) == b"a seed"
    for private, info, said in (
        (b"q" * 32, b"info", sealed),
        (b"r" * 32, b"else", sealed),
        (b"r" * 32, b"info", sealed[:-1] + bytes([sealed[-1] ^ 1])),
        (b"r" * 32, b"info", bytes([sealed[0] ^ 1]) + sealed[1:]),
        (b"r" * 32, b"info", b"short"),
        (b"r" * 32, b"info", bytes(38)),
    ):
        refuses(lambda p=private, i=info, s=said: hpke.open_sealed(p, i, s), "sealed")


def test_nothing_is_sealed_to_a_key_that_gives_everybody_the_same_secret():
    refuses(lambda: hpke.seal(bytes(32), b"info", b"a seed", b"s" * 32), "key")
