"""An edge that helps: what it says of itself, what it answers, and what of it survives."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from delian.core.ports import (
    CLOUD,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    Received,
    RunProgram,
    Send,
    Started,
)
from delian.core.secagg.helper import Helpers, masks_of
from delian.core.wire.admission_pb2 import EdgeHello
from delian.core.wire.helper_pb2 import ASKED_BEFORE, BAD_SEEDS, HELP_GIVEN, HelpSum
from delian.core.wire.round_pb2 import COUNTED, OUT_OF_MEMORY, REFUSED, EdgeSum, Upload, UploadAck
from delian.edge.machine import restore
from delian.edge.masks import MaskSums
from delian.edge.state import HELPING_MAX

_bench = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("edge_bench.py"))))
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
        runner = MaskSums()
        try:
            outcome = await runner.run(program)
        finally:
            await runner.close()
        return outcome

    assert np.array_equal(asyncio.run(story()).vector, masks_of(*program.arguments))
