"""Renewals and the deny list through an edge: a device, an edge and a coordinator, wired up in
memory, and what each of them could be made to do by somebody bad in between."""

from __future__ import annotations

import asyncio
import time

import pytest
from delian.cloud.authority.issuing import Issuing
from delian.cloud.authority.local_authority import LocalAuthority
from delian.cloud.service import relay_service as e
from delian.core.node.identity.authority import authority_book
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.authority.deny_list import DenyList
from delian.core.node.identity.enrolment.kept_deny_list import KnownDenied
from delian.core.node.identity.enrolment.renewal import RenewalRefused
from delian.core.node.identity.enrolment.renewal_messages import make_ask
from delian.core.node.identity.pki.certificates import (
    IdentityError,
    Role,
    TlsMaterial,
    certificate_request,
    new_key,
)
from delian.core.node.identity.pki.identity_folder import HomeAddress, IdentityFolder
from delian.core.node.net import relay as n
from delian.core.node.net.switch import Switch
from delian.core.node.storage.codec import address
from delian.core.node.storage.memory_storage import MemoryBlobs
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire.link_pb2 import (
    DeniedAsk,
    DeniedPage,
    RenewalAnswer,
    RenewalAsk,
    RenewalClaim,
    RenewalResult,
)
from support.file_registry import FileRegistry
from support.virtual_time import run as run_virtually

DEVICE, OTHER = Node(Tier.DEVICE, 5), Node(Tier.DEVICE, 6)
EDGE, EDGE_0 = Node(Tier.EDGE, 3), Node(Tier.EDGE, 0)
HOME = HomeAddress(EDGE, "edge.example:7451")


class Wires:
    """Links of every process: what is sent is handed over, as the sender's link authenticates it.

    `seen` is what an eavesdropper on the way has; `change` is one who changes it.
    """

    def __init__(self):
        self.switches = {}
        self.seen = []
        self.change = lambda sender, to, message: message

    def process(self, *nodes):
        switch = Switch()
        for node in nodes:
            switch.attach(node, lambda event: None, MemoryBlobs())
            self.switches[node] = switch
        switch.add_link(self)
        return switch

    def reaches(self, to):
        return to in self.switches

    def send(self, sender, to, message, traceparent=""):
        self.seen.append((sender, to, message))
        message = self.change(sender, to, message)
        if message is not None:
            self.switches[to].take_relayed(sender, to, message)

    def of(self, kind):
        return [message for _, _, message in self.seen if isinstance(message, kind)]


class World:
    def __init__(self, folder, life_s=30 * 86400):
        self.folder, self.now = folder, time.time()
        self.authority = Authority.create(folder / "ca", "farm")
        self.own = self.material(Role.AUTHORITY, 0)
        self.registry = FileRegistry(folder / "registry", lambda node: [HOME])
        self.issuing = Issuing(
            self.authority,
            self.registry,
            life_s=life_s,
            clock=lambda: self.now,
            rates=lambda: self.now,
        )
        self.wires = Wires()
        cloud = self.wires.process(CLOUD, EDGE_0)
        self.coordinator = self.new_coordinator(cloud)
        self.up = CLOUD
        self.edge = n.RelayedRequests(
            self.wires.process(EDGE),
            EDGE,
            lambda: self.up,
            denied=lambda: self.listed,
            clock=lambda: self.now,
        )
        self.listed = None
        self.home = EDGE
        self.devices = {
            node: n.RelayedRequests(self.wires.process(node), node, lambda: self.home)
            for node in (DEVICE, OTHER)
        }

    def new_coordinator(self, switch):
        self.desk = LocalAuthority(self.authority, self.issuing, lambda: self.own)
        return e.RelayService(switch, self.desk, self.desk.page, rates=lambda: self.now)

    def material(self, role=Role.DEVICE, number=5, now_s=None):
        key, issued = issue_to(self.authority, role, number, now_s=now_s)
        return TlsMaterial(key, issued.chain, self.authority.pem)

    async def renew(self, material, node=DEVICE, request=None, timeout_s=10):
        request = request or certificate_request(new_key())

        return await self.devices[node].renew(material, request, timeout_s)

    def says(self, sender, to, message):
        """What a peer that keeps to no rules says."""
        self.wires.switches[to].take_relayed(sender, to, message)

    async def settled(self):
        while self.coordinator._tasks:
            await asyncio.gather(*self.coordinator._tasks)


def within(folder, scenario, **options):
    async def run():
        world = World(folder, **options)
        try:
            return await asyncio.wait_for(scenario(world), 300)
        finally:
            await world.coordinator.close()

    return run_virtually(run())


def issued(world):
    return [entry for entry in world.authority.issued() if entry["name"] == "device-5"]


# ---------------------------------------------------------------- how it should go


def test_a_device_renews_through_its_edge_and_keeps_what_it_is_told(tmp_path):
    async def scenario(world):
        folder, own = IdentityFolder(tmp_path / "device"), world.material()
        folder.store(own, renew_after_s=0)
        key = folder.pending_key()
        reply = await world.renew(own, request=certificate_request(key))
        renewed = folder.accept(key, reply)
        assert renewed.node == DEVICE and renewed.serial != own.identity().serial
        assert folder.facts().homes == (HOME,) and folder.facts().renew_at > time.time()
        assert world.registry.nodes[DEVICE]["serial"] == f"{renewed.serial:x}"
        assert world.coordinator.counts == {"renewed": 1}
        assert world.edge.counts == {"renewals passed on": 1, "answers passed on": 1}
        ways = [(sender, to) for sender, to, _ in world.wires.seen]
        assert ways == [(DEVICE, EDGE), (EDGE, CLOUD), (CLOUD, EDGE), (EDGE, DEVICE)]

    within(tmp_path, scenario)


def test_a_device_at_the_coordinator_s_own_edge_and_an_edge_renew_too(tmp_path):
    async def scenario(world):
        world.home = EDGE_0
        assert (await world.renew(world.material())).node == address(DEVICE)
        request = certificate_request(new_key())
        reply = await world.edge.renew(world.material(Role.EDGE, 3), request)
        assert reply.node == address(EDGE) and world.coordinator.counts["renewed"] == 2

    within(tmp_path, scenario)


def test_many_devices_of_one_edge_get_each_its_own(tmp_path):
    async def scenario(world):
        other = world.material(number=6)
        replies = await asyncio.gather(
            world.renew(world.material()), world.renew(other, OTHER), world.renew(other, OTHER)
        )
        assert [r.node for r in replies] == [address(DEVICE), address(OTHER), address(OTHER)]

    within(tmp_path, scenario)


# ---------------------------------------------------------------- bad edges


def test_an_edge_without_a_device_s_key_has_no_certificate_made_for_it(tmp_path):
    async def scenario(world):
        await world.renew(world.material())  # so that the edge has seen all there is to see
        (ask, _), before = world.wires.of(RenewalAsk), len(issued(world))
        claim = RenewalClaim.FromString(ask.claim)
        thief = world.material(Role.EDGE, 3)
        for forged in (
            RenewalClaim(node=address(DEVICE), request=certificate_request(new_key())),
            RenewalClaim(
                node=address(DEVICE),
                request=certificate_request(new_key()),
                certificate=claim.certificate,
            ),
        ):
            content = forged.SerializeToString()
            by_edge = make_ask(thief, certificate_request(new_key())).signature
            for signature in (b"", ask.signature, by_edge):
                world.says(EDGE, CLOUD, RenewalAsk(claim=content, signature=signature))
        own = make_ask(thief, certificate_request(new_key()))
        lie = RenewalClaim.FromString(own.claim)
        lie.node.CopyFrom(address(DEVICE))
        world.says(EDGE, CLOUD, RenewalAsk(claim=lie.SerializeToString(), signature=own.signature))
        await world.settled()
        assert len(issued(world)) == before
        assert world.coordinator.faults.counts == {"refused": 7}
        assert not [a for a in world.wires.of(RenewalAnswer)[2:] if a.signature]

    within(tmp_path, scenario)


@pytest.mark.parametrize("what", ["homes", "refusal", "another's", "old"])
def test_an_edge_that_changes_the_answer_only_loses_it(tmp_path, what):
    async def scenario(world):
        own = world.material()
        await world.renew(own)
        old = world.wires.of(RenewalAnswer)[0]

        def change(sender, to, message):
            if not isinstance(message, RenewalAnswer) or to != DEVICE:
                return message
            result = RenewalResult.FromString(message.result)
            if what == "homes":
                result.reply += b"\x32\x00"  # one home more
            elif what == "refusal":
                result.ClearField("reply")
                result.refusal = "revoked"
            elif what == "old":
                forged = RenewalResult.FromString(old.result)
                forged.claim_hash = result.claim_hash
                result = forged
            made = RenewalAnswer(result=result.SerializeToString())
            if what != "another's":
                made.certificate, made.signature = message.certificate, message.signature
            return made

        world.wires.change = change
        with pytest.raises(IdentityError) as told:
            await world.renew(own)
        assert type(told.value) is IdentityError  # and no refusal, which would end the device

    within(tmp_path, scenario)


def test_nobody_passes_on_for_others_than_it_may(tmp_path):
    async def scenario(world):
        ask = make_ask(world.material(number=6), certificate_request(new_key()))
        world.says(DEVICE, EDGE, ask)  # another device's, at an edge
        world.says(DEVICE, EDGE_0, ask)  # and at the coordinator's own
        world.says(EDGE, CLOUD, make_ask(world.material(Role.EDGE, 4), b"x"))  # another edge's
        await world.settled()
        assert world.edge.faults.counts == {"renewal for another": 1}
        assert world.coordinator.faults.counts == {"renewal for another": 2}
        assert not world.wires.seen and not world.coordinator.counts

    within(tmp_path, scenario)


# ---------------------------------------------------------------- repetitions


def test_a_renewal_that_is_said_again_gives_no_second_certificate(tmp_path):
    async def scenario(world):
        own, request = world.material(), certificate_request(new_key())
        first = await world.renew(own, request=request)
        ask, made = world.wires.of(RenewalAsk)[0], len(issued(world))
        for _ in range(40):
            world.says(EDGE, CLOUD, ask)  # by whoever kept it
        await world.settled()
        # A device that has lost the answer asks anew, in a claim of its own for the same key.
        world.now += 100
        again = await world.renew(own, request=request)
        assert again.certificate == first.certificate and len(issued(world)) == made
        assert again.renew_after_s == first.renew_after_s - 100
        assert world.desk.counts == {"renewed": 1, "repeated": 41}

    within(tmp_path, scenario)


def test_replays_after_the_coordinator_has_forgotten_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(authority_book, "CERTIFICATES_MAX", 4)

    async def scenario(world):
        await world.renew(world.material())
        ask = world.wires.of(RenewalAsk)[0]
        for _ in range(9):
            world.issuing._known.clear()  # it was started again
            world.now += 3600
            world.says(EDGE, CLOUD, ask)
            await world.settled()
        assert world.coordinator.counts["renewed"] == 3
        assert world.coordinator.faults.counts == {"refused": 7}

    within(tmp_path, scenario)


def test_what_was_given_out_is_not_given_again_when_it_is_due_itself(tmp_path):
    async def scenario(world):
        own, request = world.material(), certificate_request(new_key())
        first = await world.renew(own, request=request)
        world.now += first.renew_after_s + 1
        second = await world.renew(own, request=request)
        assert second.certificate != first.certificate

    within(tmp_path, scenario, life_s=7200)


# ---------------------------------------------------------------- who may not


def test_a_revoked_device_is_told_so_under_the_authority_s_signature(tmp_path):
    async def scenario(world):
        own, request = world.material(), certificate_request(new_key())
        await world.renew(own, request=request)
        world.authority.revoke("device-5")
        # Not even what it was given before.
        for asked in (request, certificate_request(new_key())):
            with pytest.raises(RenewalRefused, match="revoked\n  hint: join again"):
                await world.renew(own, request=asked)
        assert world.coordinator.faults.counts == {"refused for good": 2}

    within(tmp_path, scenario)


def test_a_device_whose_certificate_has_ended_is_refused_for_good(tmp_path):
    async def scenario(world):
        late = world.material(now_s=world.now - 40 * 86400)
        with pytest.raises(RenewalRefused, match="certificate expired"):
            await world.renew(late)
        assert world.coordinator.faults.counts == {"refused for good": 1}
        assert not world.coordinator.counts

    within(tmp_path, scenario)


def test_a_request_that_its_own_key_has_not_signed_is_refused(tmp_path):
    async def scenario(world):
        request = bytearray(certificate_request(new_key()))
        request[len(request) // 2] ^= 1
        with pytest.raises(IdentityError, match="did not accept it"):
            await world.renew(world.material(), request=bytes(request))
        assert world.coordinator.faults.counts == {"refused": 1}

    within(tmp_path, scenario)


# ---------------------------------------------------------------- limits


def test_an_edge_passes_on_little_of_one_device_and_does_not_let_it_stop_others(tmp_path):
    async def scenario(world):
        own = world.material()
        for _ in range(n.DEVICE_BURST):
            await world.renew(own)
        with pytest.raises(IdentityError, match="too many renewals"):
            await world.renew(own)
        await world.renew(world.material(number=6), OTHER)
        assert world.edge.faults.counts == {"too many renewals": 1}
        world.now += 1 / n.DEVICE_PER_S + 1
        await world.renew(own)

    within(tmp_path, scenario)


def test_a_coordinator_takes_so_much_of_an_edge_and_no_more(tmp_path):
    async def scenario(world):
        ask = make_ask(world.material(), certificate_request(new_key()))
        for _ in range(e.WAITING_MAX + 5):
            world.says(EDGE, CLOUD, ask)
        assert world.coordinator.faults.counts == {"too many renewals": 5}
        await world.settled()
        for _ in range(n.EDGE_BURST):
            world.says(EDGE, CLOUD, ask)
            await world.settled()
        assert world.coordinator.faults.counts["too many renewals"] > 5
        assert world.desk.counts["renewed"] == 1

    within(tmp_path, scenario)


def test_a_coordinator_makes_few_certificates_for_one_node(tmp_path):
    async def scenario(world):
        own = world.material()
        for _ in range(n.DEVICE_BURST + 3):
            ask = make_ask(own, certificate_request(new_key()))
            world.says(EDGE, CLOUD, ask)
            await world.settled()
        assert world.coordinator.counts == {"renewed": n.DEVICE_BURST}

    within(tmp_path, scenario)


@pytest.mark.parametrize("claim", [b"", b"\xff" * 9, b"x" * 20_000])
def test_what_is_malformed_is_counted_where_it_comes_in(tmp_path, claim):
    async def scenario(world):
        world.says(DEVICE, EDGE, RenewalAsk(claim=claim))
        world.says(EDGE, CLOUD, RenewalAsk(claim=claim))
        world.says(CLOUD, EDGE, RenewalAnswer(result=b"\xff"))
        assert world.edge.faults.counts == {"malformed": 2}
        assert world.coordinator.faults.counts == {"malformed": 1} and not world.wires.seen

    within(tmp_path, scenario)


def test_an_edge_without_a_way_up_says_so_at_once(tmp_path):
    async def scenario(world):
        world.up = None
        with pytest.raises(IdentityError, match="has no connection to the coordinator"):
            await world.renew(world.material())
        world.home = None
        with pytest.raises(IdentityError, match="no connection to a home"):
            await world.renew(world.material())

    within(tmp_path, scenario)


def test_who_is_not_answered_waits_so_long_and_forgets_it(tmp_path):
    async def scenario(world):
        world.wires.change = lambda sender, to, message: None
        with pytest.raises(IdentityError, match="was not answered"):
            await world.renew(world.material(), timeout_s=0.05)
        assert not world.devices[DEVICE]._asked
        world.says(EDGE, DEVICE, RenewalAnswer(result=_result(DEVICE)))
        assert world.devices[DEVICE].faults.counts == {"unexpected answer": 1}

    within(tmp_path, scenario)


def _result(node):
    return RenewalResult(node=address(node), claim_hash=b"x" * 32).SerializeToString()


def test_a_registry_that_fails_is_no_refusal(tmp_path):
    async def scenario(world):
        async def broken(*facts):
            raise OSError("no room")

        world.registry.certified = broken
        with pytest.raises(IdentityError, match="the coordinator failed"):
            await world.renew(world.material())
        assert world.coordinator.faults.counts == {"failed": 1}

    within(tmp_path, scenario)


# ---------------------------------------------------------------- the deny list


def known_of(world):
    """What an edge or device keeps of the list."""
    folder = IdentityFolder(world.folder / "own")
    folder.store(world.material(Role.EDGE, 3), renew_after_s=1)
    return KnownDenied(folder)


def test_an_edge_gets_the_deny_list_and_its_devices_get_it_from_the_edge(tmp_path):
    async def scenario(world):
        known, world.now = known_of(world), world.now + 1
        with pytest.raises(IdentityError, match="did not answer with the deny list"):
            await world.devices[DEVICE].denied(DeniedAsk(), timeout_s=0.1)
        assert world.edge.counts["no deny list yet"] == 1
        world.authority.note_number(Role.DEVICE, 9)
        world.authority.revoke("device-9")
        assert await known.fetch(world.edge.denied)
        world.listed = known.signed
        below = known_of(world)
        below._list, below.signed = DenyList(), None
        assert await below.fetch(world.devices[DEVICE].denied)
        assert below() == known() and known().revoked(Node(Tier.DEVICE, 9))
        assert world.coordinator.counts["pages"] == world.edge.counts["pages"] == 1

    within(tmp_path, scenario)


def test_a_device_at_the_coordinator_itself_gets_the_list_there(tmp_path):
    async def scenario(world):
        world.home = EDGE_0
        page = await world.devices[DEVICE].denied(DeniedAsk())
        assert page.head == world.authority.signed(now_s=world.now).head

    within(tmp_path, scenario)


@pytest.mark.parametrize(
    "page", [DeniedPage(offset=1), DeniedPage(entries=bytes(n.PAGE_BYTES + 1))]
)
def test_pages_that_were_not_asked_for_are_no_answer(tmp_path, page):
    async def scenario(world):
        world.wires.change = lambda s, to, m: page if isinstance(m, DeniedPage) else m
        with pytest.raises(IdentityError, match="did not answer"):
            await world.edge.denied(DeniedAsk(), timeout_s=0.2)
        assert world.edge.faults.counts.total() == 1

    within(tmp_path, scenario)


def test_an_edge_hands_out_pages_at_a_rate(tmp_path):
    async def scenario(world):
        world.listed = world.authority.signed()
        for _ in range(e.PAGES_BURST + 3):
            world.says(DEVICE, EDGE, DeniedAsk())
        world.says(OTHER, EDGE, DeniedAsk())
        assert world.edge.counts["pages"] == e.PAGES_BURST + 1
        assert world.edge.faults.counts == {"too many pages": 3}

    within(tmp_path, scenario)


def test_pages_have_a_rate_too(tmp_path):
    async def scenario(world):
        for _ in range(e.PAGES_BURST + 3):
            world.says(EDGE, CLOUD, DeniedAsk())
            await world.settled()
        assert world.coordinator.faults.counts == {"too many pages": 3}

    within(tmp_path, scenario)


def test_where_nobody_takes_errands_or_nobody_is_they_are_counted(tmp_path):
    async def scenario(world):
        switch = world.wires.process(Node(Tier.EDGE, 9))
        assert not switch.take_relayed(DEVICE, Node(Tier.EDGE, 9), RenewalAsk())
        assert not world.wires.switches[CLOUD].take_relayed(EDGE, Node(Tier.EDGE, 8), RenewalAsk())
        assert switch.faults.counts == {"request to an unknown node": 1}

    within(tmp_path, scenario)
