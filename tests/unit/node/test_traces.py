"""Which trace an event and an effect belong to, and the spans that come of it."""

from __future__ import annotations

import asyncio

import pytest
from delian.core.node.driver import traces
from delian.core.node.driver.driver import Driver
from delian.core.node.driver.traces import At, Context, Opened, Traces, attempt_of, current, parse
from delian.core.node.storage.journal import FileJournal
from delian.core.node.storage.memory_storage import MemoryBlobs
from delian.core.protocol.ports import (
    CLOUD,
    BlobStored,
    Node,
    Outcome,
    ProgramFinished,
    Received,
    Record,
    RunProgram,
    Send,
    Tier,
    TimerFired,
)
from delian.core.wire.admission_pb2 import CheckIn
from delian.core.wire.blob_pb2 import Blob, FetchBlob
from delian.core.wire.round_pb2 import (
    EdgeProgress,
    EdgeSum,
    EdgeSumAck,
    EdgeTask,
    RoundClosed,
    Task,
    Upload,
    UploadAck,
)

EDGE, DEVICE = Node(Tier.EDGE, 1), Node(Tier.DEVICE, 7)
AT = At(3, 2, 1)
NAME = AT._asdict()
DIGEST = b"d" * 32


class Spans:
    def __init__(self, sampled=True):
        self.made, self._sampled = [], sampled

    def sampled(self, trace_id):
        assert 0 < trace_id < 1 << 128
        return self._sampled

    def span(self, name, own, parent, began_ns, ended_ns, facts):
        self.made.append((name, own, parent, began_ns, ended_ns, facts))

    @property
    def names(self):
        return [span[0] for span in self.made]


def cloud(spans=None, until="round", opened_ns=100):
    return Traces(CLOUD, spans, lambda at: Opened(opened_ns, until) if at == AT else None)


def task(**changes):
    return Task(**{**NAME, **changes})


def from_above(spans=None):
    """A traceparent as a coordinator sends it."""
    return cloud(spans or Spans()).leaving(Send(EDGE, EdgeTask(task=task())), "", 100)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-1-1-01",
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'0' * 16}-01",
        f"00-{'A' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'1' * 16}-01-",
        f"01-{'1' * 32}-{'1' * 16}-01",
    ],
)
def test_what_is_no_traceparent_is_none(text):
    assert parse(text) is None


def test_a_traceparent_is_read_and_written_back():
    context = Context("a" * 32, "b" * 16, True)
    assert str(context) == f"00-{'a' * 32}-{'b' * 16}-01" and parse(str(context)) == context
    assert parse(f"00-{'a' * 32}-{'b' * 16}-03").sampled, "other flags change nothing"
    assert not parse(f"00-{'a' * 32}-{'b' * 16}-02").sampled


def test_messages_that_name_an_attempt():
    assert attempt_of(EdgeTask(task=task())) == attempt_of(Upload(**NAME)) == AT
    assert attempt_of(CheckIn()) is None and attempt_of(FetchBlob()) is None


def test_an_attempt_has_one_trace_also_after_the_coordinator_was_started_again():
    first, again = from_above(), from_above()
    assert first == again and parse(first).sampled
    later = cloud(Spans(), opened_ns=101).leaving(Send(EDGE, EdgeTask(task=task())), "", 0)
    assert parse(later).trace != parse(first).trace, "another store's attempt of the same name"


def test_without_anything_to_record_them_traces_travel_all_the_same():
    said = parse(cloud().leaving(Send(EDGE, EdgeTask(task=task())), "", 0))
    assert said is not None and not said.sampled
    unsampled = cloud(Spans(sampled=False)).leaving(Send(EDGE, EdgeTask(task=task())), "", 0)
    assert parse(unsampled) == said


def test_the_attempt_s_own_trace_wins_over_that_of_what_led_to_it():
    node = cloud(Spans())
    other = f"00-{'a' * 32}-{'b' * 16}-01"
    mine = parse(node.leaving(Send(EDGE, EdgeTask(task=task())), other, 0))
    assert mine.trace != "a" * 32
    assert node.leaving(Send(EDGE, EdgeTask(task=task(round=9))), other, 0) == ""
    assert node.leaving(Send(DEVICE, CheckIn()), str(mine), 0) == "", "it is about no attempt"


def test_a_device_s_part_of_a_trace_from_task_to_acknowledgement():
    spans = Spans()
    node, above = Traces(DEVICE, spans), parse(from_above())
    mine = node.entering(Received(EDGE, task()), str(above), 10)
    own = parse(mine)
    assert own.trace == above.trace and own.span != above.span
    assert node.leaving(Send(EDGE, FetchBlob(digest=DIGEST)), mine, 11) == mine
    node.leaving(Send(EDGE, FetchBlob(digest=DIGEST)), "", 15)  # again, by a timer
    assert node.entering(Received(EDGE, Blob(digest=DIGEST)), "", 20) == mine, "it comes without"
    assert node.entering(BlobStored(DIGEST, True), mine, 21) == mine
    assert node.leaving(RunProgram(5, "client_update", (), ()), mine, 22) == mine
    assert node.entering(ProgramFinished(5, Outcome(None)), mine, 30) == mine
    assert node.leaving(Send(EDGE, Upload(**NAME)), "", 31) == mine, "also when a timer repeats it"
    assert node.entering(TimerFired("x"), "", 32) == ""
    node.entering(Received(EDGE, UploadAck(**NAME)), mine, 40)
    node.entering(Received(EDGE, UploadAck(**NAME)), mine, 41)  # at least once
    assert [(s[0], s[3], s[4]) for s in spans.made] == [
        ("fetch", 11, 21),
        ("client_update", 22, 30),
        ("upload", 31, 40),
        ("task", 10, 40),
    ]
    assert {s[1].trace for s in spans.made} == {above.trace}
    assert [s[2] for s in spans.made] == [own.span] * 3 + [above.span]
    assert len({s[1].span for s in spans.made}) == 4
    assert spans.made[-1][5] == {"node": "device 7", **NAME}


def test_an_edge_s_part_and_whom_it_believes(caplog):
    caplog.set_level("INFO", "delian.node")
    spans = Spans()
    node, above = Traces(EDGE, spans), from_above()
    mine = node.entering(Received(CLOUD, EdgeTask(task=task())), above, 10)
    assert node.leaving(Send(DEVICE, task()), mine, 11) == mine
    forged = f"00-{'a' * 32}-{'b' * 16}-01"
    assert node.entering(Received(DEVICE, Upload(**NAME)), forged, 12) == mine
    assert node.entering(Received(DEVICE, Upload(run=9, round=9)), forged, 12) == ""
    assert node.entering(Received(DEVICE, task(round=9)), forged, 12) == "", "work comes from above"
    assert node.entering(Received(DEVICE, FetchBlob(digest=DIGEST)), forged, 12) == ""
    of_device = str(parse(mine)._replace(span="c" * 16))
    assert node.entering(Received(DEVICE, FetchBlob(digest=DIGEST)), of_device, 13) == mine
    node.leaving(Send(CLOUD, EdgeSum(**NAME, part=2)), "", 20)
    node.entering(Received(CLOUD, EdgeSumAck(**NAME, part=1)), "", 21)
    assert not spans.made
    node.entering(Received(CLOUD, EdgeSumAck(**NAME, part=2)), "", 22)
    node.entering(Received(CLOUD, RoundClosed(**NAME)), "", 30)
    assert [(s[0], s[3], s[4]) for s in spans.made] == [("upload", 20, 22), ("gather", 10, 30)]
    assert [record.getMessage() for record in caplog.records] == ["gather is over"]
    assert current.get() == ""


def test_nothing_is_recorded_of_a_trace_that_is_not_sampled():
    spans = Spans()
    node = Traces(DEVICE, spans)
    node.entering(Received(EDGE, task()), from_above(Spans(sampled=False)), 10)
    node.leaving(Send(EDGE, Upload(**NAME)), "", 11)
    node.entering(Received(EDGE, UploadAck(**NAME)), "", 12)
    assert not spans.made


@pytest.mark.parametrize(
    ("until", "ends"),
    [
        ("round", Record("round", {**NAME, "succeeded": True, "model": b"m", "reported": [1]})),
        ("evaluation", Record("evaluation", {"run": 3, "round": 1, "devices": 5})),
        ("evaluation", Record("evaluation_skipped", {"run": 3, "round": 1, "why": "few"})),
        ("closed", Send(EDGE, RoundClosed(**NAME, succeeded=True))),
    ],
)
def test_an_attempt_ends_by_its_record_or_when_edges_are_told(until, ends):
    spans = Spans()
    node = cloud(spans, until)
    mine = node.leaving(Send(EDGE, EdgeTask(task=task())), "", 150)
    others = [Record("round", {"run": 4, "succeeded": True}), Send(EDGE, CheckIn())]
    for effect in (*others, ends, ends):
        said = node.leaving(effect, "", 200)
    assert said in (mine, "")
    ((name, own, parent, began, ended, facts),) = spans.made
    assert (name, parent, began, ended) == ("attempt", "", 100, 200)
    assert str(own) == mine and {**NAME, "node": "cloud"}.items() <= facts.items()
    assert not any(isinstance(value, bytes | list) for value in facts.values())


def test_records_belong_to_the_attempt_that_they_name():
    node = Traces(EDGE)
    mine = node.entering(Received(CLOUD, EdgeTask(task=task())), from_above(), 10)
    assert node.leaving(Record("late", {**NAME, "device": 4}), "", 11) == mine
    assert node.leaving(Record("late", {"device": 4}), "", 11) == ""


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(traces, "ATTEMPTS_MAX", 2)
    monkeypatch.setattr(traces, "SPANS_MAX", 2)
    node = Traces(EDGE, Spans())
    above = from_above()
    for number in range(5):
        mine = node.entering(Received(CLOUD, EdgeTask(task=task(round=number))), above, 10)
        node.leaving(Send(CLOUD, FetchBlob(digest=bytes([number]))), mine, 10)
    assert len(node._parts) == len(node._begun) == 2
    assert node.entering(Received(CLOUD, EdgeProgress(**NAME)), "", 1) == ""


def test_a_driver_s_records_are_told_within_their_trace(tmp_path):
    class Machine:
        node = EDGE

        def handle(self, event, now):
            seen.append(current.get())
            return [Record("told", {}), Send(CLOUD, EdgeProgress(**NAME))]

        def snapshot(self):
            return b""

    class Carrier:
        def send(self, sender, to, message, traceparent=""):
            sent.append((traceparent, current.get()))

    seen, sent, recorded = [], [], []

    async def scene():
        driver = Driver(
            lambda snapshot: Machine(),
            FileJournal(tmp_path),
            Carrier(),
            MemoryBlobs(),
            None,
            on_record=lambda record: recorded.append(current.get()),
            traces=Traces(EDGE),
        )
        work = asyncio.create_task(driver.run())
        await driver.started()
        driver.post(Received(CLOUD, EdgeTask(task=task())), from_above())
        while len(sent) < 2:
            await asyncio.sleep(0)
        await driver.close()
        await work

    asyncio.run(asyncio.wait_for(scene(), 120))
    mine = sent[1][0]
    assert parse(mine) is not None and seen == ["", mine] and recorded == ["", mine]
    assert sent == [("", ""), (mine, "")], "what links do later is no part of it"
