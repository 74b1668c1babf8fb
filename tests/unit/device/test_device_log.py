"""The certificate log at a device: which heads it takes between sessions and in them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from delian.core.node.identity.log.log_copy import FORK_FILE
from delian.core.node.identity.log.log_entries import sign_head
from delian.core.node.service.known_log import keep_fork
from delian.core.privacy.secagg.client import Policy
from delian.core.privacy.secagg.logged import LogHead, ServedLog, update_from
from delian.core.privacy.secagg.simulated_log import SimulatedLog, simulated_rules
from delian.core.protocol.ports import Ordered, Record
from delian.core.wire.log_pb2 import Checkpoint, LogUpdate
from delian.core.wire.round_pb2 import NOT_IN_COHORT
from delian.core.wire.secure_pb2 import KeyBundle
from delian.device.protocol.device_state import DevicePolicy, Phase
from delian.device.protocol.machine import restore
from support import device_bench as _bench

SEED = 1
DEVICES = (3, 7, 9)
LOG = SimulatedLog(SEED, [*DEVICES, *range(100, 110)])
STRICT = DevicePolicy(secure_required=False, floor=Policy(log=simulated_rules(SEED)))


def update(old: int, size: int, log: SimulatedLog = LOG) -> LogUpdate:
    return update_from(log.tree(), old, log.head(size))


def knowing(size: int = 5, policy=STRICT):
    """A device that has accepted the log of that size."""
    bench = _bench.Bench(policy=policy)
    return bench.ready().does(Ordered(update(0, size)))


def sessions(bench) -> list[str]:
    return [r.fields["reason"] for r in bench.of(Record) if r.kind == "session"]


def forks(bench) -> list[Record]:
    return [r for r in bench.of(Record) if r.kind == "log_fork"]


class TestBetweenSessions:
    def test_it_takes_a_head_that_continues_its_own_and_keeps_it(self):
        bench = knowing(5)
        assert not bench.does(Ordered(update(5, 9))).ignored()
        assert restore(bench.machine.snapshot()).log == LOG.head(9)

    @pytest.mark.parametrize("old", [0, 4, 6])
    def test_a_proof_that_starts_elsewhere_is_ignored(self, old):
        bench = knowing(5)
        assert bench.does(Ordered(update(old, 9))).ignored()
        assert bench.machine.state.log == LOG.head(5) and not forks(bench)

    def test_a_fork_is_recorded_with_both_heads_and_not_taken(self):
        bench = knowing(5)
        other = SimulatedLog(SEED, range(20))
        bench.does(Ordered(update(5, 9, other)))
        assert sessions(bench) == ["log fork"] and bench.machine.state.log == LOG.head(5)
        (fork,) = forks(bench)
        assert Checkpoint.FromString(fork.fields["known"]) == LOG.head(5).signed
        assert LogUpdate.FromString(fork.fields["offered"]) == update(5, 9, other)

    def test_a_smaller_log_is_recorded_and_not_taken(self):
        bench = knowing(5)
        back = update(0, 4)
        back.old_size = 5
        assert sessions(bench.does(Ordered(back))) == ["log rollback"]
        assert forks(bench) and bench.machine.state.log == LOG.head(5)

    def test_a_head_without_its_witnesses_is_not_taken(self):
        bench = knowing(5)
        bare = update(5, 9)
        del bare.checkpoint.cosignatures[:]
        assert sessions(bench.does(Ordered(bare))) == ["log witnesses"]
        assert bench.machine.state.log == LOG.head(5) and not forks(bench)

    def test_a_device_that_requires_no_log_ignores_heads(self):
        bench = knowing(5, replace(STRICT, floor=Policy()))
        assert bench.ignored() and bench.machine.state.log == LogHead()


class Neighbours(_bench.Neighbours):
    """With a coordinator that gives proofs from LOG."""

    def __init__(self, task, bundle, size=9):
        super().__init__(task, bundle)
        state = self.server.state
        state.phase = type(state.phase).KEYS
        self.server._log = ServedLog(LOG, LOG.head(size))
        self.cohorts = dict(self.server.close_keys())


class TestInSessions:
    def secured(self):
        bench = knowing(5).gets(_bench.make_task(secure=_bench.SECURE))
        (self.bundle,) = [m for m in bench.said if isinstance(m, KeyBundle)]
        bench.near = Neighbours(bench.machine.state.task, self.bundle)
        return bench

    def test_the_head_of_a_cohort_is_the_device_s_from_then_on(self):
        bench = self.secured()
        assert self.bundle.log_size == 5
        bench.gets(bench.near.cohort())
        assert restore(bench.machine.snapshot()).log == LOG.head(9) and not sessions(bench)

    def test_no_other_head_is_taken_while_it_waits_for_its_cohort(self):
        bench = self.secured()
        assert bench.does(Ordered(update(5, 7))).ignored()
        bench.gets(bench.near.cohort())
        assert bench.machine.state.log == LOG.head(9)
        assert not bench.does(Ordered(update(9, 12))).ignored()
        assert bench.machine.state.log == LOG.head(12)

    def test_a_fork_ends_the_session_and_the_next_task_is_taken(self):
        bench = self.secured()
        cohort = bench.near.cohort()
        other = SimulatedLog(SEED, range(20))
        cohort.log.update.CopyFrom(update(5, 9, other))
        bench.gets(cohort)
        assert sessions(bench) == ["log fork"] and len(forks(bench)) == 1
        assert bench.machine.state.failure.reason == NOT_IN_COHORT
        assert bench.machine.state.log == LOG.head(5) and bench.phase is Phase.UPLOADING


class TestEvidence:
    """What is kept of a "log_fork" record, of heads as a CA signs them."""

    def record(self, known, offered, why="they differ"):
        return {
            "why": why,
            "known": known.SerializeToString(),
            "offered": LogUpdate(old_size=3, checkpoint=offered).SerializeToString(),
        }

    def head(self, size, issued_s):
        return sign_head(lambda content: b"signature", "farm", size, bytes([size]) * 32, issued_s)

    @pytest.mark.parametrize(("size", "issued_s"), [(9, 5), (3, 5), (2, 11)])
    def test_two_heads_that_contradict_each_other(self, tmp_path, size, issued_s):
        known, offered = self.head(3, 10), self.head(size, issued_s)
        keep_fork(tmp_path, self.record(known, offered))
        kept = json.loads((tmp_path / FORK_FILE).read_text())
        assert kept["known"]["head"] == known.head.hex()
        assert kept["offered"]["head"] == offered.head.hex() and kept["why"] == "they differ"

    def test_an_old_head_that_comes_late_is_no_evidence(self, tmp_path):
        keep_fork(tmp_path, self.record(self.head(3, 10), self.head(2, 9)))
        assert not list(tmp_path.iterdir())
