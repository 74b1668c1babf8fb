"""A coordinator's CA moves to an authority, also when the move is interrupted anywhere."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("grpc")

from delian.cloud.authority import migration as m
from delian.cloud.authority.authority_settings import AuthoritySettings
from delian.cloud.authority.daemon import AuthorityDaemon
from delian.cloud.service.daemon import CloudDaemon, CloudSettings
from delian.cloud.store.database import StoreInUse
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.authority.tokens import TokenBook
from delian.core.node.identity.enrolment.joining import join
from delian.core.node.identity.pki.certificates import IdentityError, Role
from delian.core.node.identity.pki.identity_folder import IdentityFolder
from delian.core.node.net.free_ports import free_ports
from delian.core.protocol.ports import Node, Tier
from delian.edge.protocol.edge_state import EdgeState
from delian.edge.protocol.machine import EdgeMachine, restore

STEPS = ("mark", "copy", "verify", "place", "nodes", "leave", "remove")


class Crash(Exception):
    """The process ends."""


def gatherer(snapshot):
    return EdgeMachine(EdgeState(0, 1) if snapshot is None else restore(snapshot))


@contextlib.asynccontextmanager
async def coordinator(folder, **changes):
    values = {"listen": "127.0.0.1:0", "enrolment": "127.0.0.1:0", "health": "", **changes}
    daemon = CloudDaemon(CloudSettings(folder, backend="reference", **values), gatherer)
    try:
        await daemon.start()
        yield daemon
    finally:
        await daemon.close()


def token_of(ca, uses=1):
    return TokenBook(ca.folder, ca.lock).create(
        Role.DEVICE, "farm", "127.0.0.1:1", ca.root_public, uses=uses
    )[0]


async def before(folder):
    """A coordinator with its own CA, two devices, one of them revoked, and an open token."""
    Authority.create(folder / "cloud" / "ca", "farm")
    async with coordinator(folder / "cloud") as daemon:
        token = token_of(daemon.hosted.ca, uses=3)
        at = f"127.0.0.1:{daemon.ports['enrolment']}"
        for name in ("one", "two"):
            await join(token.text(), folder / name, labels={"host": name}, address=at)
        daemon.hosted.ca.revoke("device-2")
        await daemon.fleet.revoke(Node(Tier.DEVICE, 2))
    return token


def opens(ca):
    try:
        Authority(ca)
    except IdentityError:
        return False
    return True


async def check_moved(folder, token):
    """The authority goes on where the CA was, and the coordinator works with it."""
    cloud, target = folder / "cloud", folder / "authority"
    assert not list(cloud.rglob("ca.key")) and {p.name for p in (cloud / "ca").iterdir()} <= {
        *("ca.pem", "moving", "lock")
    }
    ports = free_ports(2)
    listen, enrolment = (f"127.0.0.1:{port}" for port in ports)
    daemon = AuthorityDaemon(AuthoritySettings(target, listen=listen, enrolment=enrolment))
    try:
        await daemon.start()
        assert daemon.hosted.ca.denied().revoked(Node(Tier.DEVICE, 2))
        assert await daemon.fleet.revoked() == [Node(Tier.DEVICE, 2)]
        (first, _) = await daemon.fleet.enrolled(Tier.DEVICE, 0)
        assert dict(first.labels) == {"host": "one"}
        async with coordinator(cloud, authority=listen) as ours:
            assert ours.trust.reached and ours.trust.denied().revoked(Node(Tier.DEVICE, 2))
            assert ours.trust.log.head.size == daemon.hosted.ca.log.tree.size
            await join(token.text(), folder / "three", labels={}, address=enrolment)
            assert IdentityFolder(folder / "three").identity().number == 3
    finally:
        await daemon.close()


def within(scenario):
    asyncio.run(asyncio.wait_for(scenario(), 300))


def test_the_ca_moves_whole_and_both_go_on(tmp_path):
    async def scenario():
        token = await before(tmp_path)
        before_key = (tmp_path / "cloud" / "ca" / "ca.key").read_bytes()
        move = m.Migration(tmp_path / "cloud", tmp_path / "authority")
        moved = await move.run()
        assert moved.nodes == 2 and moved.federation == "farm"
        assert (tmp_path / "authority" / "ca" / "ca.key").read_bytes() == before_key
        assert await move.run() == moved, "a second time it finds all done"
        await check_moved(tmp_path, token)

    within(scenario)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_move_that_ends_at_any_step_is_finished_by_the_same_command(tmp_path, step, when):
    async def scenario():
        token = await before(tmp_path)
        source, placed = tmp_path / "cloud" / "ca", tmp_path / "authority" / "ca"
        work = getattr(m.Migration, step)

        def crash(*arguments):
            if when == "after" and not asyncio.iscoroutinefunction(work):
                work(*arguments)
            raise Crash

        async def crash_later(*arguments):
            if when == "after":
                await work(*arguments)
            raise Crash

        move = m.Migration(tmp_path / "cloud", tmp_path / "authority")
        with pytest.MonkeyPatch.context() as patch:
            coroutine = asyncio.iscoroutinefunction(work)
            patch.setattr(m.Migration, step, crash_later if coroutine else crash)
            with pytest.raises(Crash):
                await move.run()
        assert opens(source) + opens(placed) <= 1, "no two folders are this CA"
        assert (source / "ca.key").exists() or (placed / "ca.key").exists()
        await move.run()
        if step == "leave":
            await check_moved(tmp_path, token)
        assert opens(placed) and not opens(source) and not (source / "ca.key").exists()

    within(scenario)


def test_half_a_copy_is_made_again(tmp_path):
    async def scenario():
        await before(tmp_path)
        written = m.write_file

        def some(path, content, mode=0o644):
            if path.name == "tokens.jsonl":
                path.write_bytes(content[:10])
                raise Crash
            written(path, content, mode)

        move = m.Migration(tmp_path / "cloud", tmp_path / "authority")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(m, "write_file", some)
            with pytest.raises(Crash):
                await move.run()
        assert not move.placed.exists()
        await move.run()
        assert TokenBook(move.placed).open_tokens()[0]["uses_left"] == 1

    within(scenario)


def test_a_copy_that_differs_is_not_put_in_place(tmp_path):
    async def scenario():
        await before(tmp_path)
        move = m.Migration(tmp_path / "cloud", tmp_path / "authority")
        copy = m.Migration.copy

        def damaged(self):
            copy(self)
            (self._partial / "numbers.jsonl").write_bytes(b"")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(m.Migration, "copy", damaged)
            with pytest.raises(IdentityError, match=r"numbers\.jsonl is not a copy"):
                await move.run()
        assert not move.placed.exists() and (move.source / "ca.key").exists()

    within(scenario)


def test_a_ca_that_is_being_moved_is_opened_by_nobody(tmp_path):
    Authority.create(tmp_path / "cloud" / "ca", "farm")
    move = m.Migration(tmp_path / "cloud", tmp_path / "authority")
    move.mark()
    with pytest.raises(IdentityError, match="is moved to another folder"):
        Authority(tmp_path / "cloud" / "ca")
    with pytest.raises(IdentityError, match="being moved elsewhere"):
        m.Migration(tmp_path / "cloud", tmp_path / "other").mark()


def test_a_running_coordinator_and_a_wrong_target_are_refused(tmp_path):
    async def scenario():
        await before(tmp_path)
        cloud = tmp_path / "cloud"
        async with coordinator(cloud):
            with pytest.raises(StoreInUse):
                await m.Migration(cloud, tmp_path / "authority").run()
        assert opens(cloud / "ca")
        Authority.create(tmp_path / "other" / "ca", "farm")
        for target, why in ((tmp_path / "other", "holds another CA"), (cloud, "are the same")):
            with pytest.raises(IdentityError, match=why):
                await m.Migration(cloud, target).run()
        (cloud / "delian.db").rename(cloud / "elsewhere.db")
        with pytest.raises(IdentityError, match="with --store"):
            await m.Migration(cloud, tmp_path / "authority").run()
        with pytest.raises(IdentityError, match="holds no CA"):
            await m.Migration(tmp_path / "nothing", tmp_path / "authority").run()

    within(scenario)
