"""Models that are kept, and nodes that are counted: what the registry does to store and tables."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

pytest.importorskip("sqlalchemy")

from delian.cloud.service.fleet_registry import AHEAD_MAX, SEEN_EVERY_MS, Fleet, Live
from delian.cloud.service.registry import NotKnown, Registry, now_ms
from delian.cloud.store import records
from delian.cloud.store.database import Database
from delian.core.common.errors import DelianError
from delian.core.node.identity.pki.identity_folder import HomeAddress
from delian.core.node.storage.memory_storage import MemoryBlobs
from delian.core.protocol.ports import CLOUD, Node, Record, Tier
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import ModelRequest, PlanMessage

KEPT = 3


@contextlib.asynccontextmanager
async def opened(store, blobs, needed=tuple):
    database = await Database.open(store)
    registry = Registry(database, blobs, KEPT, needed)
    await registry.open()
    try:
        yield registry, database
    finally:
        await database.close()


def run(main):
    return asyncio.run(asyncio.wait_for(main, 300))


async def begin(registry, blobs) -> int:
    bundle, weights = await blobs.put(b"programs"), await blobs.put(b"first")
    return await registry.add_run(PlanMessage(bundle=bundle, weights=weights))


async def make(registry, database, blobs, run, round, retire=True) -> BlobRef:
    """As if a round had ended: its row, then what the daemon does about it."""
    model = await blobs.put(f"model {run}/{round}".encode())
    fields = {
        "run": run,
        "round": round,
        "attempt": 1,
        "succeeded": True,
        "why": "",
        "selected": [1],
        "reported": [1],
        "refused": {},
        "target_met": True,
        "weight": 1.0,
        "opened_ns": 0,
        "parent": b"p" * 32,
        "model": model.digest,
        "model_size": model.size,
    }
    await database.transact(lambda c: records.keep(c, [Record("round", fields)], now_ms()))
    registry.keep(model.digest)
    if retire:
        await registry.retire(run)
    return model


def test_of_a_run_the_first_model_the_newest_and_aliased_ones_are_kept(store):
    blobs = MemoryBlobs()

    async def main():
        async with opened(store, blobs) as (registry, database):
            number = await begin(registry, blobs)
            made = [await make(registry, database, blobs, number, 1)]
            await registry.promote(ModelRequest(run=number, round=1), "serving")
            made += [await make(registry, database, blobs, number, r) for r in range(2, 8)]
            there = [await blobs.size(m.digest) is not None for m in made]
            assert there == [True, False, False, False, True, True, True]
            first = await registry.model(ModelRequest(run=number, round=0))
            assert await blobs.size(first.weights.digest) is not None
            gone = await registry.model(ModelRequest(run=number, round=2))
            assert gone.weights == made[1]  # known, though its weights are not here
            with pytest.raises(DelianError, match="dropped"):
                await registry.promote(ModelRequest(run=number, round=2), "serving")

    run(main())


def test_a_model_that_the_next_replaces_before_old_ones_are_retired_is_kept(store):
    blobs = MemoryBlobs()

    async def main():
        async with opened(store, blobs) as (registry, database):
            number = await begin(registry, blobs)
            first = await make(registry, database, blobs, number, 1, retire=False)
            await make(registry, database, blobs, number, 2, retire=False)
            await blobs.drop(first.digest)  # as the coordinator's machine says
            assert await blobs.size(first.digest) is not None

    run(main())


def test_a_model_that_is_made_while_pins_are_compared_with_the_tables_is_kept(store, monkeypatch):
    blobs, late = MemoryBlobs(), []

    async def main():
        async with opened(store, blobs) as (registry, database):
            number = await begin(registry, blobs)
            read = database.read

            async def slow(work):
                rows = await read(work)
                if not late:  # the tables are read, and then a round ends
                    late.append(None)
                    late[0] = await make(registry, database, blobs, number, 1, retire=False)
                return rows

            monkeypatch.setattr(database, "read", slow)
            await registry.retire(number)
            await blobs.drop(late[0].digest)
            assert await blobs.size(late[0].digest) is not None

    run(main())


def test_a_model_that_the_coordinator_may_go_back_to_is_kept_as_long_as_it_may(store):
    blobs, needed = MemoryBlobs(), []

    async def main():
        async with opened(store, blobs, lambda: needed) as (registry, database):
            number = await begin(registry, blobs)
            made = [await make(registry, database, blobs, number, 1)]
            needed.append(made[0].digest)
            made += [await make(registry, database, blobs, number, r) for r in range(2, 8)]
            assert await blobs.size(made[0].digest) is not None
            assert await blobs.size(made[1].digest) is None
            needed.clear()
            await registry.retire(number)
            assert await blobs.size(made[0].digest) is None

    run(main())


def test_a_run_that_went_back_to_a_model_is_shown_with_it(store):
    blobs = MemoryBlobs()

    async def main():
        async with opened(store, blobs) as (registry, database):
            number = await begin(registry, blobs)
            first = await make(registry, database, blobs, number, 1)
            await make(registry, database, blobs, number, 2)
            back = {"run": number, "round": 3, "model": first.digest}
            ordered = [Record("model_ordered", back)]
            await database.transact(lambda c: records.keep(c, ordered, now_ms()))
            assert (await registry.run(number)).weights.digest == first.digest
            events, over = await registry.events(number, 0)
            assert [e.kind for e in events][-1] == "model_ordered" and not over

    run(main())


def test_what_a_run_has_spent_is_what_its_newest_phase_said(store):
    blobs = MemoryBlobs()

    async def main():
        async with opened(store, blobs) as (registry, database):
            number = await begin(registry, blobs)
            assert await registry.spent(number) is None
            for phase, epsilon in (("collecting", 0.0), ("cancelled", 1.5)):
                spent = {"epsilon": epsilon, "delta": 1e-6, "releases": 3}
                said = {"run": number, "phase": phase, "why": "", "privacy": spent}
                record = [Record("phase", said)]
                await database.transact(lambda c, r=record: records.keep(c, r, now_ms()))
            spent = await registry.spent(number)
            assert (spent.epsilon, spent.delta, spent.releases) == (1.5, 1e-6, 3)

    run(main())


def test_what_is_kept_is_pinned_again_after_a_restart(tmp_path):
    blobs = MemoryBlobs()

    async def main():
        async with opened(tmp_path / "s.db", blobs) as (registry, database):
            number = await begin(registry, blobs)
            model = await make(registry, database, blobs, number, 1)
        again = MemoryBlobs()
        again.contents = dict(blobs.contents)
        async with opened(tmp_path / "s.db", again):
            for content in (b"programs", b"first"):
                ref = await again.put(content)
                await again.drop(ref.digest)
                assert await again.size(ref.digest) is not None
            await again.drop(model.digest)
            assert await again.size(model.digest) is not None

    run(main())


def test_numbers_are_handed_out_once_in_each_tier_also_at_the_same_time(store):
    async def main():
        database = await Database.open(store)
        fleet = Fleet(database)
        numbers = await asyncio.gather(*(fleet.register(Tier.DEVICE, {}, 1) for _ in range(8)))
        assert sorted(numbers) == list(range(1, 9))
        assert await fleet.register(Tier.EDGE, {"host": "barn"}, 1) == 1
        await database.close()

    run(main())


def test_no_edge_says_which_number_is_handed_out_next(store):
    async def main():
        database = await Database.open(store)
        fleet = Fleet(database)
        assert await fleet.register(Tier.DEVICE, {}, 1) == 1
        made_up = (5, 1 + AHEAD_MAX, 2 + AHEAD_MAX, 2**63 - 1)
        at = now_ms()
        await fleet.observe({Node(Tier.DEVICE, n): Live("ready", at, 1) for n in made_up})
        # Those that may be there after a restore are not handed out a second time.
        assert await fleet.register(Tier.DEVICE, {}, 1) == 2 + AHEAD_MAX
        for number, known in zip(made_up, (True, True, True, False), strict=True):
            if known:
                await fleet.node(Node(Tier.DEVICE, number), {})
            else:
                with pytest.raises(NotKnown):
                    await fleet.node(Node(Tier.DEVICE, number), {})
        await database.close()

    run(main())


def test_a_device_is_told_of_edges_that_said_where_they_are_and_then_of_the_coordinator(tmp_path):
    async def main():
        database = await Database.open(tmp_path / "s.db")
        cloud = HomeAddress(CLOUD, "cloud:7443")
        fleet = Fleet(database, cloud, lambda: {4})  # is out of service
        unusable = {"grpc": "unix:/run/delian.sock"}
        said = [{"grpc": "barn:7451"}, {}, {"grpc": "away:7451"}, {"grpc": "out:7451"}, unusable]
        for labels in said:
            await fleet.register(Tier.EDGE, labels, 1)
        await fleet.mark(Node(Tier.EDGE, 3), "revoked")
        device, edge = Node(Tier.DEVICE, 1), Node(Tier.EDGE, 1)
        assert await fleet.homes(device) == [HomeAddress(edge, "barn:7451"), cloud]
        assert await fleet.homes(edge) == [cloud]
        await database.close()

    run(main())


def test_a_number_is_above_all_that_were_handed_out_here_or_by_the_ca(tmp_path):
    async def main():
        database = await Database.open(tmp_path / "s.db")
        fleet = Fleet(database)
        assert await fleet.last_numbers() == {}
        numbers = [await fleet.register(Tier.DEVICE, {}, 1, above) for above in (0, 0, 7, 3)]
        assert numbers == [1, 2, 8, 9]
        assert await fleet.last_numbers() == {Tier.DEVICE: 9}
        await fleet.mark(Node(Tier.DEVICE, 8), "revoked")
        assert await fleet.revoked() == [Node(Tier.DEVICE, 8)]
        await database.close()

    run(main())


def test_who_was_seen_is_written_down_when_it_is_news(tmp_path):
    device = Node(Tier.DEVICE, 4)

    async def main():
        database = await Database.open(tmp_path / "s.db")
        fleet = Fleet(database)
        at = now_ms()
        assert await fleet.observe({device: Live("ready", at, 1)}) == 1
        assert await fleet.observe({device: Live("ready", at + 1, 1)}) == 0
        assert await fleet.observe({device: Live("ready", at + SEEN_EVERY_MS, 1)}) == 1
        assert await fleet.observe({device: Live("working", at + SEEN_EVERY_MS + 1, 2)}) == 1
        shown = await fleet.node(device, {})
        assert (shown.home.number, shown.state) == (2, "silent")
        gone = Live("silent", at + SEEN_EVERY_MS + 9_000, 2)
        assert [await fleet.observe({device: gone}) for _ in range(2)] == [1, 0], "its last"
        assert (await fleet.node(device, {})).seen_ms == gone.seen_ms
        assert (await fleet.node(device, {device: Live("working", at, 2)})).state == "working"
        await fleet.certified(device, 0xABC, 2_000_000_000, at)
        assert (await fleet.node(device, {})).certificate_ends_ms == 2_000_000_000_000
        with pytest.raises(NotKnown):
            await fleet.node(Node(Tier.EDGE, 4), {})
        await database.close()

    run(main())
