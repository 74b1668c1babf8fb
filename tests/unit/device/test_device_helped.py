"""A device whose helpers hold what unmasks: one message up, and whom it lets help."""

from __future__ import annotations

import numpy as np
import pytest
from delian.cli.fleet.device_commands import trust_of
from delian.cli.settings import MasksConfig
from delian.core.common.errors import DelianError
from delian.core.privacy.secagg.client import Policy
from delian.core.privacy.secagg.helper import Helper, Ledger, Trust, masks_of
from delian.core.privacy.secagg.member_identity import SimulatedIdentity
from delian.core.protocol.ports import (
    SECOND,
    BlobStored,
    Outcome,
    ProgramFinished,
    Record,
    Started,
    TimerFired,
)
from delian.core.wire.helper_pb2 import HELP_GIVEN, HelpPart, HelpRequest
from delian.core.wire.round_pb2 import (
    BELOW_FLOOR,
    COUNTED,
    NOT_IN_COHORT,
    Failure,
    RoundClosed,
    Upload,
    UploadAck,
)
from delian.core.wire.secure_pb2 import MaskSeeds, SecurePlan
from delian.device.protocol.device_state import DevicePolicy, DeviceState, Phase
from delian.device.protocol.machine import restore
from support import device_bench as _bench

VECTOR, ROUND = _bench.VECTOR, {"run": 1, "round": 1, "attempt": 1}
TRUST = Trust({4: b"", 5: b""})


def helper(edge=4):
    return Helper(edge, bytes([edge]) * 32, SimulatedIdentity(edge, 1, "edge"))


def plan(edges=(4, 5), **changes):
    cards = [helper(edge).card() for edge in edges]
    numbers = {"suite": 1, "cohort_min": 3, "corrupt": 0.0, "dropout": 0.0}
    return SecurePlan(**{**numbers, **changes}, helpers=cards)


def bench(state=None, trust=TRUST, **policy):
    return _bench.Bench(state, policy=DevicePolicy(helpers=trust, **policy))


def said(one, kind):
    (found,) = [m for m in one.said if isinstance(m, kind)]
    return found


def opened(upload, edges=(4, 5)):
    """What is left of an upload when its helpers' masks are taken out, as if it were many."""
    rest = np.frombuffer(upload.vector, "<u4").copy()
    for place, edge in enumerate(edges):
        one = helper(edge)
        part = HelpPart(task=_bench.make_task(secure=plan(edges)))
        part.devices.append(MaskSeeds(device=upload.device, seeds=[upload.seeds.seeds[place]]))
        # Two more, whose masks are then taken out of the answer again: nobody opens one alone.
        for other in (8, 9):
            part.devices.append(
                MaskSeeds(device=other, seeds=[said_by(other, edges).seeds.seeds[place]])
            )
        answer = one.answer(HelpRequest(run=1, batch=1, parts=[part]), Ledger())
        assert answer.refusal == HELP_GIVEN
        rest -= masks_of(answer.keys[:1], answer.ring.length, answer.suite)
    return rest


def said_by(number, edges):
    other = _bench.Bench(
        DeviceState(number),
        policy=DevicePolicy(helpers=TRUST),
        identity=SimulatedIdentity(number, 1),
    )
    return said(other.uploading(secure=plan(edges)), Upload)


def test_it_says_one_thing_and_is_done_when_that_is_counted():
    one = bench().fetching(secure=plan())
    assert not any(isinstance(m, Upload) for m in one.said)
    one = bench().uploading(secure=plan())
    upload = said(one, Upload)
    assert [type(m) for m in one.said] == [Upload]
    assert not np.any(np.frombuffer(upload.vector, "<u4") == VECTOR)
    assert np.array_equal(opened(upload), VECTOR)
    one.gets(UploadAck(**ROUND, device=7, status=COUNTED))
    assert one.phase is Phase.IDLE and one.session is None


def test_a_repetition_is_the_same_bytes_and_so_is_what_it_works_out_again():
    one, other = bench().uploading(secure=plan()), bench().uploading(secure=plan())
    upload = said(one, Upload)
    assert said(one.does(TimerFired("repeat"), after=9 * SECOND), Upload) == upload
    assert said(other, Upload) == upload
    back = bench(restore(one.machine.snapshot())).does(Started(()))
    assert said(back, Upload) == upload


def test_the_secret_moves_on_with_the_task_and_is_forgotten_with_the_upload():
    one = bench()
    one.ready()
    before = one.machine.state.secret
    one.gets(_bench.make_task(secure=plan()))
    state = one.machine.state
    assert state.secret != before and len(state.helped) == 32
    assert state.helped not in repr(state).encode() and repr(state.helped) not in repr(state)
    one.gets(RoundClosed(**ROUND))
    assert state.helped == b"", "a task that ends leaves none"
    done = bench().uploading(secure=plan())
    assert done.machine.state.helped == b""


def test_another_wave_of_one_model_is_masked_otherwise():
    one = bench().uploading(secure=plan())
    first = said(one, Upload)
    one.gets(UploadAck(**ROUND, device=7, status=COUNTED))
    one.does(TimerFired("retry"), after=9 * SECOND)
    one.gets(_bench.make_task(attempt=2, secure=plan()))
    one.does(BlobStored(_bench.WEIGHTS, True))
    second = said(one.does(ProgramFinished(2, Outcome(VECTOR))), Upload)
    assert second.vector != first.vector
    assert second.seeds.seeds[0].sealed != first.seeds.seeds[0].sealed


@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        ({"trust": Trust()}, plan()),
        ({"trust": Trust({4: b""})}, plan()),
        ({"trust": Trust({4: b"k" * 32, 5: b""})}, plan()),
        ({"trust": Trust({4: b"", 5: b""}, least=2)}, plan((4,))),
        ({"trust": Trust({2: b""})}, plan((2,))),  # its home would have update and seed
        ({"floor": Policy(cohort_min=4)}, plan()),
        ({"floor": Policy(suites=(2,))}, plan()),
    ],
)
def test_it_does_not_train_for_helpers_that_its_owner_does_not_want(policy, asked):
    one = bench(**policy).fetching(secure=asked)
    recorded = [r.fields["reason"] for r in one.of(Record) if r.kind == "session"]
    assert recorded in (["helpers"], ["policy"])
    below = recorded == ["policy"]
    assert said(one, Failure).reason == (BELOW_FLOOR if below else NOT_IN_COHORT)
    assert one.machine.state.helped == b""


def test_a_device_without_a_certificate_takes_no_part():
    one = _bench.Bench(identity=None, policy=DevicePolicy(helpers=TRUST)).fetching(secure=plan())
    assert said(one, Failure).reason == NOT_IN_COHORT


def test_a_task_with_a_key_that_its_edge_has_not_signed_is_refused():
    asked = plan()
    asked.helpers[1].signature = asked.helpers[0].signature
    assert said(bench().fetching(secure=asked), Failure).reason == NOT_IN_COHORT


def test_noise_is_for_sessions():
    task = _bench.make_task(secure=plan())
    task.ring.noise, task.ring.clients_max, task.ring.clip = 0.01, 10, 1.0
    task.secure.noise_survivors = task.secure.cohort_min
    _bench.sign(task, _bench.COORDINATOR, ends_s=60)
    one = bench()
    one.ready()
    one.gets(task)
    assert said(one, Failure).reason == NOT_IN_COHORT


def test_an_update_that_is_too_short_is_not_uploaded():
    one = bench().training(secure=plan())
    one.does(ProgramFinished(1, Outcome(VECTOR[:2])))
    assert isinstance(said(one, Failure), Failure) and one.machine.state.helped == b""


def test_seeds_are_no_part_of_a_session_s_upload():
    upload = said(_bench.Bench().uploading(), Upload)
    assert not upload.HasField("seeds")


# ---------------------------------------------------------------- as the owner writes it


def test_the_owner_names_helpers_by_number_and_perhaps_by_key():
    key = helper().card().key
    trust = trust_of(MasksConfig(helpers=("4", f"5:{key.hex()}"), helpers_min=2))
    assert trust == Trust({4: b"", 5: key}, 2)
    assert trust_of(MasksConfig()) == Trust()


@pytest.mark.parametrize("bad", ["edge-4", "4:xyz", "4:ab", ":", ""])
def test_a_helper_that_is_none_is_refused_in_words(bad):
    with pytest.raises(DelianError, match="names no helper"):
        trust_of(MasksConfig(helpers=(bad,)))
