"""An edge that helps: what it says of itself, what it answers, and what of it survives."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from delian.core.privacy.secagg.helper import Helpers, masks_of
from delian.core.privacy.secagg.logged import update_from
from delian.core.privacy.secagg.simulated_log import SimulatedLog, simulated_rules
from delian.core.protocol.ports import (
    CLOUD,
    SECOND,
    Ordered,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    Received,
    Record,
    RunProgram,
    Send,
    Started,
)
from delian.core.wire.admission_pb2 import EdgeHello
from delian.core.wire.helper_pb2 import (
    ASKED_BEFORE,
    BAD_SEEDS,
    HELP_GIVEN,
    NOT_LOGGED,
    OLD_DENY_LIST,
    HelpSum,
)
from delian.core.wire.journal_pb2 import DeniedVersion, Forget
from delian.core.wire.log_pb2 import LogUpdate
from delian.core.wire.round_pb2 import COUNTED, OUT_OF_MEMORY, REFUSED, EdgeSum, Upload, UploadAck
from delian.edge.protocol.edge_state import HELPING_MAX
from delian.edge.protocol.machine import restore
from delian.edge.service.edge_programs import EdgePrograms
from support import edge_bench as _bench

Bench, helper, help_request = _bench.Bench, _bench.helper, _bench.help_request
vector, masked, helped_task = _bench.vector, _bench.masked, _bench.helped_task


def helping(**policy):
    return Bench(helper=helper(), **policy).does(Started(()))


def sent(bench, kind):
    return [e.message for e in bench.effects if type(e) is Send and type(e.message) is kind]


def programs(bench):
    return [e for e in bench.effects if type(e) is RunProgram]


def finished(program):
    return ProgramFinished(program.ticket, Outcome(masks_of(*program.arguments)))


def asked(bench, *args, **changes):
    return bench.cloud(help_request(*args, **changes))


def test_its_hello_has_the_key_that_it_helps_with():
    (hello,) = sent(helping(), EdgeHello)
    assert hello.helper == helper().card()
    (hello,) = sent(Bench().does(Started(())), EdgeHello)
    assert not hello.HasField("helper")


def test_the_masks_of_a_batch_are_added_up_and_sent():
    bench = asked(helping(), (1, 2, 3))
    (program,) = programs(bench)
    assert not sent(bench, HelpSum), "not before the sum is there"
    bench.does(finished(program))
    (answer,) = sent(bench, HelpSum)
    task = helped_task()
    total = np.sum([masked(task.SerializeToString(), d)[0] for d in (1, 2, 3)], 0, np.uint32)
    rest = total - np.frombuffer(answer.sum, "<u4")
    assert np.array_equal(rest, vector(1) + vector(2) + vector(3))
    assert (answer.run, answer.batch, answer.edge, answer.refusal) == (1, 1, 4, HELP_GIVEN)
    assert not bench.state.helping
    (send,) = [e for e in bench.effects if type(e) is Send]
    assert send.to == CLOUD and send.size == answer.ByteSize()


def test_a_repeated_request_has_the_same_answer_and_one_that_is_worked_at_waits():
    bench = asked(helping())
    (program,) = programs(bench)
    assert not programs(asked(bench)), "it is being added up"
    first = sent(bench.does(finished(program)), HelpSum)
    (again,) = programs(asked(bench))
    assert again.arguments == program.arguments
    assert sent(bench.does(finished(again)), HelpSum) == first


def test_what_it_has_opened_survives_a_restart_and_what_it_was_adding_up_is_asked_for_again():
    bench = asked(helping())
    (program,) = programs(bench)
    back = Bench(restore(bench.machine.snapshot()), helper=helper()).does(Started(()))
    assert not back.state.helping
    back.does(finished(program))
    assert not sent(back, HelpSum), "it is of the life before"
    assert programs(asked(back))
    (answer,) = sent(asked(back, (2, 3, 5), batch=2), HelpSum)
    assert answer.refusal == ASKED_BEFORE and not answer.sum


def test_a_refusal_is_said_at_once_and_by_name():
    bench = helping()
    request = help_request()
    request.parts[0].devices[1].seeds[0].signature = b"x"
    (answer,) = sent(bench.cloud(request), HelpSum)
    assert (answer.refusal, list(answer.bad), answer.sum) == (BAD_SEEDS, [2], b"")
    assert not programs(bench)


def test_a_sum_that_could_not_be_made_is_asked_for_again():
    bench = asked(helping())
    (program,) = programs(bench)
    bench.does(ProgramFinished(program.ticket, ProgramStopped(OUT_OF_MEMORY)))
    assert not sent(bench, HelpSum)
    assert programs(asked(bench))


def test_it_adds_up_a_few_batches_at_once_and_no_more_than_its_memory_allows():
    bench = helping()
    for number in range(1, HELPING_MAX + 1):
        assert programs(asked(bench, batch=number, round=number))
    assert not programs(asked(bench, batch=99, round=99))
    small = helping(sum_bytes_max=24)
    assert programs(asked(small)) and not programs(asked(small, (5, 6, 7), batch=2))


def test_an_edge_that_does_not_help_leaves_requests_alone():
    bench = asked(Bench().does(Started(())))
    assert not programs(bench) and not sent(bench, HelpSum)


# ---------------------------------------------------------------- which devices count

DAY = 86_400


def logged(**policy):
    rules = simulated_rules(1)
    return Bench(helper=helper(rules=rules), **policy).does(Started(()))


def update(size, old_size=0, log=None):
    log = log or SimulatedLog(1, range(12))
    return update_from(log.tree(), old_size, log.head(size))


def test_a_batch_with_a_device_that_was_revoked_before_it_gets_no_sum():
    bench = helping().does(Ordered(Forget(device=2)))
    (answer,) = sent(asked(bench), HelpSum)
    assert (answer.refusal, list(answer.bad)) == (BAD_SEEDS, [2]) and not programs(bench)
    assert programs(asked(bench, (5, 6, 7), batch=2)), "others are helped"


def test_a_journal_that_is_handled_again_gives_the_answers_of_the_first_life():
    events = [Started(()), Ordered(Forget(device=2)), Received(CLOUD, help_request()), Started(())]
    lives = [Bench(helper=helper()), Bench(helper=helper())]
    said = [[repr(life.does(event).effects) for event in events] for life in lives]
    assert said[0] == said[1]
    assert lives[0].machine.snapshot() == lives[1].machine.snapshot()


def test_an_edge_that_does_not_help_remembers_no_revoked_devices():
    bench = Bench().does(Started(())).does(Ordered(Forget(device=2)))
    assert not bench.state.ledger.denied


@pytest.mark.parametrize(("issued_s", "helps"), [(3 * DAY, True), (3 * DAY - 1, False)])
def test_it_helps_by_a_deny_list_that_is_young_enough(issued_s, helps):
    bench = helping(denied_age_ns=7 * DAY * SECOND)
    bench.now = 10 * DAY * SECOND
    bench.does(Ordered(DeniedVersion(version=4, issued_s=issued_s)))
    asked(bench)
    assert bool(programs(bench)) == helps
    assert [a.refusal for a in sent(bench, HelpSum)] == ([] if helps else [OLD_DENY_LIST])
    bench.does(Ordered(DeniedVersion(version=5, issued_s=9 * DAY)))
    assert programs(asked(bench, (5, 6, 7), batch=2)), "nothing was opened before"


def test_an_older_deny_list_changes_nothing():
    bench = helping().does(Ordered(DeniedVersion(version=4, issued_s=DAY)))
    for version, issued_s in ((4, DAY), (3, 2 * DAY), (0, 2 * DAY)):
        bench.does(Ordered(DeniedVersion(version=version, issued_s=issued_s)))
        assert not bench.machine.changed
    assert restore(bench.machine.snapshot()).denied_version == 4


def test_its_answers_name_the_head_that_it_has():
    bench = logged().does(Ordered(update(9)))
    (answer,) = sent(asked(bench), HelpSum)
    assert (answer.refusal, answer.log_size) == (NOT_LOGGED, 9)
    assert Record("log_refused", {"reason": "log"}) in bench.effects


def test_it_takes_heads_that_continue_its_own_and_keeps_the_evidence_of_others():
    bench = logged().does(Ordered(update(6))).does(Ordered(update(9, 6)))
    assert bench.state.ledger.log.size == 9
    bench.does(Ordered(update(12, 6)))
    assert not bench.machine.changed, "it is from a head that it had before"
    fork = update(12, 9, SimulatedLog(1, [*reversed(range(12))]))
    bench.does(Ordered(fork))
    (record,) = [e for e in bench.effects if type(e) is Record and e.kind == "log_fork"]
    assert LogUpdate.FromString(record.fields["offered"]) == fork
    assert restore(bench.machine.snapshot()).ledger.log.size == 9


# ---------------------------------------------------------------- what an edge gathers


def gathering(devices=(1, 2, 3)):
    """An edge whose devices have a task that helpers unmask."""
    bench = Bench().gathering(devices)
    message = _bench.edge_task(list(devices))
    message.task.CopyFrom(helped_task())
    _bench.sign(message.task, _bench.COORDINATOR, ends_s=10**6)
    return bench.cloud(message)


def upload(number, **changes):
    masks, seeds = masked(helped_task().SerializeToString(), number)
    said = {"run": 1, "round": 1, "attempt": 1, "device": number, "vector": masks.tobytes()}
    return Upload(**{**said, "seeds": seeds, **changes})


def test_seeds_go_up_with_the_sum_in_the_order_of_the_devices():
    bench = gathering()
    for number in (3, 1, 2):
        bench.hears(_bench.device(number), upload(number))
    (message,) = sent(bench, EdgeSum)
    assert [s.device for s in message.seeds] == [1, 2, 3] == list(message.devices)
    assert all(s == upload(s.device).seeds for s in message.seeds)
    (send,) = [e for e in bench.effects if type(e) is Send and type(e.message) is EdgeSum]
    assert send.size == message.ByteSize()


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": None},
        {"seeds": upload(2).seeds},
        {"vector": b"short"},
    ],
)
def test_an_update_without_its_own_seeds_is_refused(changes):
    bench = gathering().hears(_bench.device(1), upload(1, **changes))
    assert [m.status for m in sent(bench, UploadAck)] == [REFUSED]
    bench.hears(_bench.device(2), upload(2))
    assert [m.status for m in sent(bench, UploadAck)] == [COUNTED]
    (message,) = sent(bench.hears(_bench.device(3), upload(3)), EdgeSum)
    assert list(message.devices) == [2, 3] == [s.device for s in message.seeds]


def test_an_upload_may_be_as_long_as_its_seeds_make_it():
    plain, helped = Bench().collecting(), gathering()
    more = helped.machine.limit(_bench.device(1)) - plain.machine.limit(_bench.device(1))
    assert more >= 0 and Helpers.of(helped_task())
    assert upload(1).ByteSize() <= helped.machine.limit(_bench.device(1))


def test_a_runner_adds_masks_up_on_its_thread():
    request = help_request()
    bench = helping().does(Received(CLOUD, request))
    (program,) = programs(bench)

    async def story():
        runner = EdgePrograms()
        try:
            outcome = await runner.run(program)
        finally:
            await runner.close()
        return outcome

    assert np.array_equal(asyncio.run(story()).vector, masks_of(*program.arguments))
