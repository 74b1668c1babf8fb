"""The certificate log at the coordinator's machine: which head its sessions go by."""

from __future__ import annotations

import asyncio

import pytest
from delian.cloud.protocol.machine import restore
from delian.cloud.service import log_orders
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.log.log_entries import LogError, read_head
from delian.core.node.identity.pki.certificates import Role
from delian.core.privacy.secagg.simulated_log import SimulatedLog
from delian.core.protocol.ports import Ordered, Send
from delian.core.wire.secure_pb2 import Cohort
from support import secure_bench as _bench

#: The devices of `SecureBench.collecting`, and others.
LOG = SimulatedLog(_bench.SEED, range(40))


class Bench(_bench.SecureBench):
    """heads: sizes of the log that it is told of before the round. `cohorts`: those that were sent,
    by device.
    """

    def __init__(self, *arguments, heads=(), **changes):
        super().__init__(*arguments, **changes)
        self.machine.runs.log = LOG
        self.heads, self.cohorts = heads, {}

    def waiting(self, **changes):
        super().waiting(**changes)
        for size in self.heads:
            assert not self.knows(size).ignored()
        return self

    def does(self, event, after=0):
        super().does(event, after)
        for effect in self.effects:
            if isinstance(effect, Send) and isinstance(effect.message, Cohort):
                self.cohorts[effect.message.device] = effect.message
        return self

    def knows(self, size, log=LOG):
        return self.does(Ordered(log.head(size).signed))


def test_cohorts_have_proofs_under_the_newest_head():
    bench = Bench(heads=(30, 32)).collecting()
    assert len(bench.cohorts) >= 3
    assert {one.log.update.checkpoint.head for one in bench.cohorts.values()} == {
        LOG.head(32).signed.head
    }
    assert restore(bench.machine.snapshot()).log == LOG.head(32)


def test_without_a_head_nothing_is_proved():
    bench = Bench().collecting()
    assert bench.cohorts and not any(one.HasField("log") for one in bench.cohorts.values())


def test_a_session_goes_on_under_the_head_that_it_closed_its_keys_with():
    bench = Bench(heads=[32])
    takes = bench._told

    def silent(message, edge):
        return [] if isinstance(message, Cohort) else takes(message, edge)

    bench._told = silent
    bench.collecting().knows(35)
    before = dict(bench.cohorts)
    for device in before:
        bench.poll(device)
    assert bench.cohorts == before and len(before) >= 3
    assert bench.machine.state.log == LOG.head(35)
    assert bench.machine.state.runs[1].open[0].session.server.log == LOG.head(32)


def test_a_smaller_head_and_the_same_head_change_nothing():
    bench = Bench().started().knows(32)
    assert bench.knows(32).ignored()
    bench.knows(31)
    assert bench.machine.state.log == LOG.head(32)


def test_a_coordinator_without_a_copy_ignores_heads():
    bench = Bench().started()
    bench.machine.runs.log = None
    assert bench.knows(32).ignored() and bench.machine.state.log is None


def test_the_machine_is_told_of_each_newer_head_once(tmp_path, monkeypatch):
    authority = Authority.create(tmp_path / "ca", "farm")
    heads, rounds = [], 0

    async def pause(seconds):
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            issue_to(authority, Role.DEVICE, 1)
        if rounds == 4:
            raise asyncio.CancelledError

    async def run():
        with monkeypatch.context() as patched:
            patched.setattr(log_orders.asyncio, "sleep", pause)
            await log_orders.follow(authority.log, heads.append)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert [read_head(one.head).size for one in heads] == [0, 1]


def test_while_no_head_is_co_signed_it_warns_once(tmp_path, monkeypatch, caplog):
    rounds = 0

    class Uncosigned:
        def update(self, old_size, now_s):
            raise LogError("no head of the certificate log is co-signed yet")

    async def pause(seconds):
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            raise asyncio.CancelledError

    async def run():
        with monkeypatch.context() as patched:
            patched.setattr(log_orders.asyncio, "sleep", pause)
            await log_orders.follow(Uncosigned(), pytest.fail)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert [r.getMessage() for r in caplog.records].count(caplog.records[0].getMessage()) == 1
