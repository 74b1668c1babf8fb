"""What an observer of real daemons makes of a coordinator that is restored from an older copy."""

from __future__ import annotations

import json
from types import SimpleNamespace

import grpc
import pytest
from delian.core.wire.operator_pb2 import RunEvent
from delian.simulations.processes.processes import _Operator, _Processes


class NotFound(grpc.RpcError):
    def code(self):
        return grpc.StatusCode.NOT_FOUND

    def details(self):
        return "the blob is not here"


def event(sequence, round, model, kind="round"):
    facts = {"round": round, "succeeded": True, "opened_ms": 0, "model": model.hex()}
    facts |= {"phase": "done"} if kind == "phase" else {}
    return RunEvent(run=1, sequence=sequence, time_ms=1, kind=kind, facts=json.dumps(facts))


class Call(list):
    def cancel(self):
        self.clear()


class Coordinator:
    """Two histories: in the first it tells of rounds whose models the copy does not have."""

    def __init__(self, first, second, there):
        self.histories, self.there = [first, second], there
        self.asked = []

    def WatchRun(self, request, timeout, wait_for_ready):
        self.asked.append(request.after)
        history = self.histories.pop(0) if len(self.histories) > 1 else self.histories[0]
        return Call(one for one in history if one.sequence > request.after)

    def GetBlob(self, ref, timeout, wait_for_ready):
        if ref.digest not in self.there:
            raise NotFound
        return [SimpleNamespace(content=bytes(8))]


def observed(coordinator):
    """The rounds that an observer records of it, each with whether it has the model."""
    operator, run = _Operator.__new__(_Operator), _Processes.__new__(_Processes)
    operator._stub, operator._rewound = coordinator, None
    recorded = []
    run.weights, run.failed, run.why = SimpleNamespace(nbytes=8), False, ""
    run.stop, run.say, run.meddle = (lambda: False), (lambda event: None), (lambda *told: None)
    run._on_round = lambda facts, wall_s, moved, weights, pool: recorded.append(
        (facts["round"], facts["model"], weights is not None)
    )
    children = SimpleNamespace(check=lambda: None)
    run._follow(1, operator, children, None, SimpleNamespace(traffic=lambda: {}))
    return recorded


def models(*named):
    return [name * 32 for name in named]


def test_a_round_that_a_restored_coordinator_makes_again_is_recorded():
    one, two, lost, again, three = models(b"1", b"2", b"x", b"y", b"3")
    head = [event(1, 1, one), event(2, 2, two)]
    end = [event(5, 0, one, "phase")]
    # Of the first history the call has buffered two rounds that the copy knows nothing of.
    coordinator = Coordinator(
        [*head, event(3, 3, lost), event(4, 4, models(b"z")[0])],
        [*head, event(3, 3, again), event(4, 4, three), *end],
        {one, two, again, three},
    )
    recorded = observed(coordinator)
    assert [(r, model) for r, model, _ in recorded] == [
        (1, one.hex()),
        (2, two.hex()),
        (3, again.hex()),
        (4, three.hex()),
    ]
    assert all(there for *_, there in recorded) and coordinator.asked == [0, 2]


def test_a_round_whose_model_is_not_kept_any_more_is_recorded_without_it():
    one, two = models(b"1", b"2")
    history = [event(1, 1, one), event(2, 2, two), event(3, 0, two, "phase")]
    recorded = observed(Coordinator(history, history, {two}))
    assert recorded == [(1, one.hex(), False), (2, two.hex(), True)]


def test_what_is_refused_otherwise_ends_the_observer():
    class Refused(NotFound):
        def code(self):
            return grpc.StatusCode.PERMISSION_DENIED

    class Strict(Coordinator):
        def GetBlob(self, ref, timeout, wait_for_ready):
            raise Refused

    history = [event(1, 1, models(b"1")[0])]
    with pytest.raises(Exception, match="the coordinator refused"):
        observed(Strict(history, history, set()))
