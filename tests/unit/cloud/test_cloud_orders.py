"""What an operator orders of a run in rounds, and what becomes of blobs."""

from __future__ import annotations

import pytest
from delian.cloud.protocol.coordinator_state import Phase
from delian.core.protocol.ports import (
    CancelProgram,
    DropBlob,
    RunProgram,
)
from delian.core.wire.blob_pb2 import BlobRef, FetchBlob
from delian.core.wire.round_pb2 import (
    EdgeTask,
    RoundClosed,
)
from support import run_bench as _bench

Bench = _bench.Bench
BUNDLE = _bench.BUNDLE
WEIGHTS = _bench.WEIGHTS
NEXT = _bench.NEXT
blob = _bench.blob
vector = _bench.vector


class TestMemory:
    def test_the_server_optimisers_memory_goes_from_model_to_model(self):
        bench = Bench(rounds=3).aggregating().updated(memory=blob("m"))
        assert bench.state.memory == blob("m")
        bench.rested()
        for number in (1, 2):
            bench.sum(number, {d: vector(1, 1, 1) for d in bench.selected[number]})
        assert bench.program().blobs == (BUNDLE.digest, NEXT.digest, blob("m").digest)
        bench.updated(blob("x"), blob("n"))
        assert bench.of(DropBlob) == [DropBlob(NEXT.digest), DropBlob(blob("m").digest)]
        assert bench.hears(1, FetchBlob(digest=blob("n").digest)).ignored(), "nobody's business"

    def test_when_the_run_is_over_it_is_dropped_and_the_model_stays(self):
        bench = Bench(rounds=1).aggregating().updated(memory=blob("m"))
        dropped = {e.digest for e in bench.of(DropBlob)}
        assert dropped == {WEIGHTS.digest, blob("m").digest}


class TestOrders:
    def test_a_pause_while_waiting_selects_nobody(self):
        bench = Bench().paused().hello(2, [20, 21, 22, 23])
        assert bench.phase is Phase.PAUSED and not bench.of(RunProgram)
        assert not bench.said(1) and not bench.said(2)
        assert bench.orders("pause").ignored()
        bench.orders("resume").rested()
        assert bench.phase is Phase.COLLECTING

    def test_a_pause_lets_what_is_under_way_end(self):
        bench = Bench().collecting().orders("pause")
        assert bench.phase is Phase.COLLECTING
        for number in (1, 2):
            bench.sum(number, {d: vector(1, 1, 1) for d in bench.selected[number]})
        assert bench.phase is Phase.AGGREGATING
        assert bench.updated().phase is Phase.PAUSED and bench.state.round == 2

    def test_a_pause_that_has_not_begun_can_be_taken_back(self):
        bench = Bench().aggregating().orders("pause").orders("resume").updated()
        assert bench.phase is Phase.WAITING
        assert bench.orders("resume").ignored()

    @pytest.mark.parametrize("where", ["waiting", "collecting", "aggregating", "paused"])
    def test_a_cancelled_run_keeps_its_model_and_drops_the_rest(self, where):
        bench = getattr(Bench(), where)()
        ticket = bench.state.ticket
        bench.orders("cancel")
        assert bench.phase is Phase.CANCELLED and bench.ended.weights == WEIGHTS
        assert bench.ended.why == "cancelled" and not bench.of(DropBlob)
        closed = [m.succeeded for m in bench.said(2, RoundClosed)]
        assert closed == ([False] if where == "collecting" else [])
        assert bench.of(CancelProgram) == (
            [CancelProgram(ticket)] if where == "aggregating" else []
        )

    def test_an_evaluation_can_be_cancelled(self):
        bench = Bench(evaluation_every=1).evaluating().orders("cancel")
        assert bench.phase is Phase.CANCELLED and bench.said(1, RoundClosed)

    def test_ordered_weights_are_the_model_at_once_when_nothing_is_out(self):
        bench = Bench().waiting().orders("weights", blob("o"))
        assert bench.state.weights == blob("o") and bench.of(DropBlob) == [DropBlob(b"w" * 32)]
        bench.hello(2, [20, 21, 22, 23])
        assert bench.said(1, EdgeTask)[0].task.weights == blob("o")

    def test_ordered_weights_wait_for_the_round_at_hand(self):
        bench = Bench(rounds=3).collecting().orders("weights", blob("o"))
        assert bench.state.weights == WEIGHTS
        for number in (1, 2):
            bench.sum(number, {d: vector(1, 1, 1) for d in bench.selected[number]})
        bench.updated(memory=blob("m"))
        assert bench.state.weights == blob("o") and bench.state.memory is None
        assert bench.facts()["model"] == NEXT.digest
        assert {e.digest for e in bench.of(DropBlob)} == {b"w" * 32, b"v" * 32, b"m" * 32}
        bench.rested()
        assert bench.said(1, EdgeTask)[0].task.weights == blob("o")

    def test_weights_of_another_size_are_refused(self):
        bench = Bench().waiting().orders("weights", BlobRef(digest=b"o" * 32, size=16))
        assert bench.records("refused_order") and bench.state.weights == WEIGHTS
