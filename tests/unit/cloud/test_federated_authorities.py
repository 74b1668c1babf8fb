"""The coordinator's view of several authorities, without sockets: which one is asked for what, and
what an authority that lies or does not answer can do.
"""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("grpc")

from delian.cloud.authority import remote
from delian.cloud.authority.authorities import Authorities
from delian.cloud.authority.remote import RemoteAuthority
from delian.cloud.service.fleet_registry import AHEAD_MAX, JOINING_MS, Fleet, Live
from delian.cloud.service.registry import now_ms
from delian.cloud.store.database import Database
from delian.core.common.errors import DelianError
from delian.core.node.identity.authority.issued_numbers import KeptNumbers
from delian.core.node.identity.pki.certificates import (
    NUMBER_BITS,
    IdentityError,
    PeerIdentity,
    Role,
)
from delian.core.node.identity.pki.identity_folder import HomeAddress, home_message
from delian.core.node.storage.codec import address
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire.authority_pb2 import (
    Announced,
    Announcement,
    EnrolledNode,
    IssuingAuthority,
    NodesPage,
    RevokeRequest,
    SignedNumbers,
)
from delian.core.wire.link_pb2 import NODE_DEVICE, RenewalAnswer, RenewalAsk, RenewalClaim
from delian.core.wire.operator_pb2 import TokenRequest
from support.waiting import run, until

NORTH, SOUTH = 3, 7
NORTHS = NORTH << NUMBER_BITS


def node(number, site="north", **changes):
    return EnrolledNode(number=number, enrolled_ms=1, certificate_ends_ms=1, site=site, **changes)


def registered(number, site="north", where="north.example:7445"):
    return IssuingAuthority(number=number, site=site, address=where)


class Fake:
    """An authority in memory. gate: answers when it is open. pages: by the number after which."""

    def __init__(self, told=(), number=0, site=""):
        self.told, self.number, self.site = list(told), number, site
        self.gate, self.closed = asyncio.Event(), False
        self.gate.set()
        self.announcements, self.renewals = [], []
        self.numbers, self.joined = SignedNumbers(), []

    async def announce(self, announcement):
        await self.gate.wait()
        self.announcements.append(announcement)
        return Announced(numbers=self.numbers, authorities=self.told)

    async def nodes(self, asked):
        found = [n for n in self.joined if n.number > asked.after]
        page = NodesPage(nodes=found if asked.tier == NODE_DEVICE else [])
        return remote._checked(page, asked.after, self.number, self.site)

    async def renew(self, ask):
        self.renewals.append(ask)
        return RenewalAnswer(result=b"of %d" % self.number)

    async def close(self):
        self.closed = True


class World:
    """A coordinator's authorities, with a store. made: the connections, in the order of making."""

    def __init__(self, folder, fleet):
        self.folder, self.fleet, self.made = folder, fleet, []
        self.root = Fake()
        self.router = Authorities(self.root, self.connect, self.numbers, fleet, 0.0)
        self.joined = {}

    def connect(self, found):
        made = Fake(number=found.number, site=found.site)
        made.joined = self.joined.get(found.number, [])
        self.made.append(made)
        return made

    def numbers(self, authority):
        return KeptNumbers(self.folder / f"numbers-{authority}")

    async def announce(self):
        said = Announcement(draining=[4], denied_version=9, home=home_message(HOME))
        return await self.router.announce(said)


HOME = HomeAddress(CLOUD, "cloud.example:7443")


def within(folder, scenario):
    async def main():
        database = await Database.open(folder / "s.db")
        world = World(folder, Fleet(database, HOME))
        try:
            await scenario(world)
        finally:
            await world.router.close()
            await database.close()

    run(main())


def ask_for(number):
    claim = RenewalClaim(node=address(Node(Tier.DEVICE, number)))
    return RenewalAsk(claim=claim.SerializeToString())


def test_a_renewal_goes_to_the_authority_of_the_node_s_number(tmp_path):
    async def scenario(world):
        world.root.told = [registered(NORTH), registered(SOUTH, "south", "south.example:1")]
        await world.announce()
        assert (await world.router.renew(ask_for(5))).result == b"of 0"
        assert (await world.router.renew(ask_for(NORTHS + 5))).result == b"of 3"
        assert [len(each.renewals) for each in (world.root, *world.made)] == [1, 1, 0]
        with pytest.raises(
            IdentityError, match="issuing authority 4 of this node is not registered"
        ):
            await world.router.renew(ask_for((4 << NUMBER_BITS) + 5))

    within(tmp_path, scenario)


def test_an_issuing_authority_is_told_where_the_coordinator_is_and_nothing_of_the_root(tmp_path):
    async def scenario(world):
        world.root.told = [registered(NORTH)]
        world.root.numbers = SignedNumbers(federation="farm", devices=8, signature=b"root")
        await world.announce()
        north = world.made[0]
        north.numbers = SignedNumbers(federation="farm", devices=NORTHS + 2, signature=b"north")
        await until(lambda: len(north.announcements) > 2)
        said = north.announcements[-1]
        assert said.home.grpc == HOME.grpc and list(said.draining) == [4]
        assert said.denied_version == 0
        # It gets back what it has signed itself, also after a restart of the coordinator.
        assert said.numbers == north.numbers
        assert world.numbers(NORTH).newest() == north.numbers
        assert not north.announcements[0].HasField("numbers")

    within(tmp_path, scenario)


def test_one_that_does_not_answer_keeps_no_other_waiting(tmp_path):
    async def scenario(world):
        world.joined = {
            NORTH: [node(NORTHS + 1)],
            SOUTH: [node((SOUTH << NUMBER_BITS) + 1, "south")],
        }
        connect = world.connect

        def stuck(found):
            made = connect(found)
            if made.number == NORTH:
                made.gate.clear()
            return made

        world.router._connect = stuck
        world.root.told = [registered(NORTH), registered(SOUTH, "south", "south.example:1")]
        await world.announce()
        await until(lambda: len(world.made) == 2 and len(world.made[1].announcements) > 1)
        assert await world.fleet.last_numbers(SOUTH) == {Tier.DEVICE: (SOUTH << NUMBER_BITS) + 1}
        assert await world.fleet.last_numbers(NORTH) == {}
        await world.announce()  # the root answers as before

    within(tmp_path, scenario)


def test_what_the_root_names_no_more_is_left_and_what_moves_is_connected_again(tmp_path):
    async def scenario(world):
        world.root.told = [registered(NORTH), registered(SOUTH, "south", "south.example:1")]
        await world.announce()
        world.root.told = [registered(NORTH, where="moved.example:1")]
        await world.announce()
        assert [each.closed for each in world.made] == [True, True, False]
        assert world.router.issuing == [NORTH]
        await world.router.close()
        assert world.made[-1].closed and world.root.closed and not world.router.issuing

    within(tmp_path, scenario)


def test_an_operator_is_told_the_authority_that_does_what_the_coordinator_cannot(tmp_path):
    async def scenario(world):
        def no_certificate():
            raise IdentityError("nothing is dialled here")

        def remote_to(found):
            return RemoteAuthority(found.address, no_certificate, number=found.number)

        root = RemoteAuthority("root.example:7445", no_certificate)
        told = [registered(NORTH)]
        router = Authorities(root, remote_to, world.numbers, world.fleet, 3600.0)
        await router._take({each.number: each for each in told})
        owner = PeerIdentity("farm", Role.OWNER, NORTHS + 1, 1, 2**33, f"owner-{NORTHS + 1}")
        admin = PeerIdentity("farm", Role.ADMIN, 1, 1, 2**33, "admin-1")
        for caller, where in ((owner, "north.example:7445"), (admin, "root.example:7445")):
            with pytest.raises(DelianError, match=where):
                await router.create_token(TokenRequest(), caller)
        gone = f"device-{SOUTH << NUMBER_BITS}"
        for name, where in ((f"device-{NORTHS + 5}", "north"), ("edge-2", "root"), (gone, "root")):
            with pytest.raises(DelianError, match=f"{where}.example:7445"):
                await router.revoke(RevokeRequest(name=name))
        await router.close()

    within(tmp_path, scenario)


@pytest.mark.parametrize(
    "told",
    [
        [registered(0)],
        [registered(4096)],
        [registered(NORTH), registered(NORTH)],
        [registered(NORTH, site="not a site")],
        [registered(NORTH, site="")],
        [registered(NORTH, where="unix:/run/x")],
        [registered(NORTH, where="")],
    ],
)
def test_authorities_that_cannot_be_are_not_taken(tmp_path, told):
    async def scenario(world):
        world.root.told = told
        with pytest.raises(IdentityError):
            await world.announce()
        assert not world.made

    within(tmp_path, scenario)


@pytest.mark.parametrize(
    "nodes",
    [
        [node(5)],  # a number of the root's
        [node(NORTHS + 1, "south")],  # a site of another organisation
        [node(NORTHS + 1, "")],
        [node((SOUTH << NUMBER_BITS) + 1)],
        [node(NORTHS + 1), node((NORTH + 1) << NUMBER_BITS)],
    ],
)
def test_an_issuing_authority_puts_no_other_s_nodes_into_the_book(tmp_path, nodes):
    async def scenario(world):
        world.joined = {NORTH: nodes}
        world.root.told = [registered(NORTH)]
        await world.announce()
        await until(lambda: len(world.made[0].announcements) > 1)
        assert await world.fleet.nodes({}, None, 0, 0) == []

    within(tmp_path, scenario)
    with pytest.raises(IdentityError, match="not its own"):
        remote._checked(
            NodesPage(nodes=nodes), NORTHS if nodes[0].number > NORTHS else 0, NORTH, "north"
        )


# ---------------------------------------------------------------- the book of nodes


def test_numbers_are_counted_for_each_authority(tmp_path):
    async def scenario(world):
        fleet = world.fleet
        numbers = [await fleet.register(Tier.DEVICE, {}, 1, a) for a in (0, NORTHS, 0, NORTHS)]
        assert numbers == [1, NORTHS + 1, 2, NORTHS + 2]
        assert await fleet.last_numbers() == {Tier.DEVICE: 2}
        assert await fleet.last_numbers(NORTH) == {Tier.DEVICE: NORTHS + 2}
        assert await fleet.last_numbers(SOUTH) == {}

    within(tmp_path, scenario)


def test_a_node_is_told_when_it_has_its_certificate_and_one_that_never_gets_it_stops_nobody(
    tmp_path,
):
    async def scenario(world):
        fleet = world.fleet

        async def told():
            return [each.number for each in await fleet.enrolled(Tier.DEVICE, 0)]

        now = now_ms()
        for at in (now - 2 * JOINING_MS, now, now):
            await fleet.register(Tier.DEVICE, {}, at)
        await fleet.certified(Node(Tier.DEVICE, 3), 1, 2_000_000_000, now)
        assert await told() == [1]  # the first has had its time; the second is just joining
        await fleet.certified(Node(Tier.DEVICE, 2), 1, 2_000_000_000, now)
        assert await told() == [1, 2, 3]
        remote._checked(NodesPage(nodes=await fleet.enrolled(Tier.DEVICE, 0)), 0)

    within(tmp_path, scenario)


def test_an_edge_makes_up_no_device_of_any_authority(tmp_path):
    async def scenario(world):
        fleet = world.fleet
        for above in (0, NORTHS):
            await fleet.register(Tier.DEVICE, {}, 1, above)
        made_up = [
            1 + AHEAD_MAX + 1,
            NORTHS + 1 + AHEAD_MAX + 1,
            NORTHS - 1,
            (SOUTH << NUMBER_BITS) + 1,  # of an authority that has let nobody in
        ]
        seen = [1 + AHEAD_MAX, NORTHS + 1 + AHEAD_MAX, *made_up]
        await fleet.observe({Node(Tier.DEVICE, n): Live("ready", now_ms(), 1) for n in seen})
        there = [found.node.number for found in await fleet.nodes({}, Tier.DEVICE, 0, 0)]
        assert there == sorted([1, 1 + AHEAD_MAX, NORTHS + 1, NORTHS + 1 + AHEAD_MAX])

    within(tmp_path, scenario)


def test_with_an_authority_its_nodes_are_revoked_and_no_others(tmp_path):
    async def scenario(world):
        fleet = world.fleet
        for above in (0, NORTHS, NORTHS, SOUTH << NUMBER_BITS):
            await fleet.register(Tier.DEVICE, {}, 1, above)
        await fleet.follow_revoked([Node(Tier.DEVICE, 1)], [NORTH])
        revoked = [found.number for found in await fleet.revoked()]
        assert sorted(revoked) == [1, NORTHS + 1, NORTHS + 2]

    within(tmp_path, scenario)
