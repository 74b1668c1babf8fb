"""Renewing in time, under a clock of its own."""

from __future__ import annotations

import asyncio
import time

import pytest
from delian.core.node.identity.authority.authority import issue_to
from delian.core.node.identity.enrolment.renewal import RenewalPolicy, RenewalRefused, Renewer
from delian.core.node.identity.pki.certificates import IdentityError, Role, TlsMaterial
from delian.core.node.identity.pki.identity_folder import IdentityFolder, NodeFacts
from delian.core.protocol.random_streams import Streams
from delian.core.wire import enrolment_pb2, link_pb2
from support.virtual_time import run as run_virtually

FACTS = NodeFacts("farm", "device", 5, renew_at=1000, not_after=2000)


def test_renewals_of_a_fleet_are_spread_over_a_tenth_of_what_is_left():
    policy = RenewalPolicy()
    assert policy.first(FACTS, 0.0) == 1000
    assert 1099 < policy.first(FACTS, 0.9999) < 1100


def test_pauses_double_up_to_an_hour():
    pauses = [RenewalPolicy().pause(n) for n in range(1, 10)]
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert RenewalPolicy().pause(10_000) == 3600


class Coordinator:
    """Signs, or raises what it was told to."""

    def __init__(self, authority, folder):
        self.authority, self.folder, self.faults, self.calls = authority, folder, [], 0

    async def __call__(self, request):
        self.calls += 1
        if self.faults:
            raise self.faults.pop(0)
        material = self.folder.material()
        issued = self.authority.renew(request, material.identity(), material.certificate)
        return enrolment_pb2.EnrolReply(
            node=link_pb2.Address(tier=link_pb2.NODE_DEVICE, number=5),
            federation="farm",
            certificate=issued.chain,
            authority=self.authority.pem,
            renew_after_s=issued.renew_after_s,
        )


@pytest.fixture
def node(tmp_path, authority):
    folder = IdentityFolder(tmp_path / "identity")
    key, issued = issue_to(authority, Role.DEVICE, 5)
    # It is due at once.
    folder.store(TlsMaterial(key, issued.chain, authority.pem), renew_after_s=0, now_s=1000)
    return folder


def renewer(node, coordinator, renewed, clock=time.time, policy=None):
    policy = policy or RenewalPolicy(retry_s=0, retry_s_max=0, spread=10**12)
    return Renewer(node, coordinator, renewed, Streams(0), policy=policy, clock=clock)


def test_a_certificate_that_is_due_is_renewed_and_the_links_are_told(node, authority):
    before, told = node.identity(), []

    async def run():
        done = asyncio.Event()

        def renewed(identity):
            told.append(identity)
            done.set()

        task = asyncio.create_task(renewer(node, Coordinator(authority, node), renewed).run())
        await asyncio.wait_for(done.wait(), 120)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtually(run())
    assert told == [node.identity()] and node.identity().serial != before.serial
    assert node.facts().renew_at > time.time()


def test_a_coordinator_that_is_away_is_asked_again(node, authority):
    coordinator = Coordinator(authority, node)
    coordinator.faults = [IdentityError("away"), TimeoutError(), OSError("no route")]

    async def run():
        done = asyncio.Event()
        task = asyncio.create_task(renewer(node, coordinator, lambda _: done.set()).run())
        await asyncio.wait_for(done.wait(), 120)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtually(run())
    assert coordinator.calls == 4


def test_a_refusal_ends_it_and_the_certificate_stays(node, authority):
    coordinator, before = Coordinator(authority, node), node.identity()
    coordinator.faults = [RenewalRefused("revoked")]
    with pytest.raises(RenewalRefused, match="revoked"):
        run_virtually(renewer(node, coordinator, lambda _: None).run())
    assert node.identity() == before


def test_who_comes_too_late_is_told_to_join_again(node, authority):
    coordinator = Coordinator(authority, node)
    late = node.facts().not_after + 1
    with pytest.raises(RenewalRefused, match="has ended\n  hint: join again"):
        run_virtually(renewer(node, coordinator, lambda _: None, clock=lambda: late).once())
    assert coordinator.calls == 0


def test_a_wrong_answer_is_a_failure_that_is_tried_again(node, authority, tmp_path):
    from delian.core.node.identity.authority.authority import Authority

    other = Authority.create(tmp_path / "other", "farm")

    async def foreign(request):
        issued = other.issue(request, Role.DEVICE, 5)
        return enrolment_pb2.EnrolReply(
            node=link_pb2.Address(tier=link_pb2.NODE_DEVICE, number=5),
            federation="farm",
            certificate=issued.chain,
            authority=other.pem,
            renew_after_s=1,
        )

    before = node.identity()
    ours = renewer(node, foreign, lambda _: None)
    assert run_virtually(ours.once()) is False
    assert ours.failures == 1 and node.identity() == before


def test_a_nudge_renews_before_the_time(node, authority):
    key, issued = issue_to(authority, Role.DEVICE, 5)
    node.store(TlsMaterial(key, issued.chain, authority.pem), renew_after_s=10**6)

    async def run():
        done = asyncio.Event()
        ours = renewer(node, Coordinator(authority, node), lambda _: done.set())
        task = asyncio.create_task(ours.run())
        while not done.is_set():
            ours.soon()
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtually(run())
    assert node.identity().serial != issued.identity.serial


def test_a_connection_anew_ends_the_pause_after_a_failure_and_nothing_else(node, authority):
    coordinator = Coordinator(authority, node)
    coordinator.faults = [IdentityError("no connection to a home")]
    policy = RenewalPolicy(retry_s=3600, spread=10**12)

    async def run():
        done = asyncio.Event()
        ours = renewer(node, coordinator, lambda _: done.set(), policy=policy)
        task = asyncio.create_task(ours.run())
        while not ours.failures:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        while not done.is_set():
            ours.again()
            await asyncio.sleep(0.01)
        for _ in range(3):  # the new certificate is not due
            ours.again()
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtually(run())
    assert coordinator.calls == 2
