"""The coordinator's operator service: runs and health."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("grpc")

import grpc
from delian.cloud.service.audit import Report, verify
from delian.cloud.store import records
from delian.core.privacy.mechanisms.noise_mechanism import FAILURE, PrivacyTarget, planned, release
from delian.core.protocol.ports import Record
from delian.core.wire.operator_pb2 import (
    CloneRequest,
    ListRequest,
    ModelRequest,
    PlanMessage,
    RunControl,
    RunRequest,
    SubmitRequest,
    WatchRequest,
)
from support.operator_bench import (
    INVALID,
    calling,
    certified,
    daemon_at,
    plan_of,
    put,
    ref_of,
    refused,
    run,
)


def test_a_run_is_submitted_watched_paused_cloned_and_cancelled(tmp_path, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            made = await call("Submit", SubmitRequest(plan=await plan_of(call, bundle)))
            assert (made.run, made.phase, made.round) == (1, "waiting", 1)
            stream = call("WatchRun", WatchRequest(run=1))
            first = await anext(aiter(stream))
            assert (first.sequence, json.loads(first.facts)["phase"]) == (1, "waiting")
            seen = asyncio.ensure_future(anext(aiter(stream)))
            paused = await call("ControlRun", RunControl(run=1, action="pause"))
            assert paused.phase == "paused"
            assert json.loads((await seen).facts)["phase"] == "paused"
            assert (await call("ControlRun", RunControl(run=1, action="pause"))).phase == "paused"
            assert (await call("ControlRun", RunControl(run=1, action="resume"))).phase == "waiting"
            changes = PlanMessage(rounds=7, name="again")
            clone = await call("CloneRun", CloneRequest(run=1, changes=changes))
            assert (clone.run, clone.plan.rounds, clone.plan.cohort) == (2, 7, 2)
            over = await call("ControlRun", RunControl(run=1, action="cancel"))
            assert over.phase == "cancelled" and over.ended_ms > 0
            rest = [event async for event in stream]  # it ends with the run
            assert [json.loads(e.facts)["phase"] for e in rest] == ["waiting", "cancelled"]
            runs = await call("ListRuns", ListRequest())
            assert [r.run for r in runs.runs] == [2, 1]
            assert [r.run for r in (await call("ListRuns", ListRequest(before=2))).runs] == [1]
            code, text = await refused(call("ControlRun", RunControl(run=1, action="resume")))
            assert code is grpc.StatusCode.INVALID_ARGUMENT and "cancelled" in text

    run(main())


def test_models_of_rounds_in_quick_succession_can_all_be_fetched(tmp_path, bundle, monkeypatch):
    """A model is replaced by the next before the daemon has looked which old ones may go."""
    monkeypatch.setattr("delian.cloud.service.daemon.RETIRE_EVERY_S", 3600.0)

    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            await call("Submit", SubmitRequest(plan=await plan_of(call, bundle)))
            models = [await put(call, bytes([round]) * 64) for round in range(1, 5)]
            for round, model in enumerate(models, 1):
                record = round_record(1, round, model)
                await daemon.database.transact(lambda c, r=record: records.keep(c, [r], 0))
                daemon._recorded(record)
                await asyncio.sleep(0)  # whoever waits for a record goes on
                for old in models[: round - 1]:
                    await daemon.blobs.drop(old.digest)
            for model in models:
                content = b"".join([part.content async for part in call("GetBlob", model)])
                assert ref_of(content) == model

    run(main())


def round_record(run, round, model) -> Record:
    fields = {"run": run, "round": round, "attempt": 1, "succeeded": True, "why": ""}
    fields |= {"selected": [1], "reported": [1], "refused": {}, "target_met": True}
    fields |= {"weight": 1.0, "opened_ns": 0, "parent": b"p" * 32}
    return Record("round", fields | {"model": model.digest, "model_size": model.size})


def test_a_run_that_promises_something_is_told_with_what_is_spent(tmp_path, bundle):
    promise = PrivacyTarget(epsilon=4.0, delta=1e-6, releases=2, survivors=8, corrupt=0.1)

    async def main():
        async with certified(tmp_path) as (daemon, stub):

            def call(name, request):
                return getattr(stub, name)(request)

            ring = planned(bundle.manifest.ring, promise)
            noisy = replace(bundle, manifest=replace(bundle.manifest, noise=ring.noise))
            plan = await plan_of(call, noisy, cohort=8, reports_min=8)
            plan.ring.CopyFrom(ring.message())
            plan.privacy.epsilon, plan.privacy.delta, plan.privacy.corrupt = 4.0, 1e-6, 0.1
            plan.secure.suite, plan.secure.cohort_min = 1, 8
            plan.secure.corrupt = plan.secure.dropout = 0.1
            await call("Submit", SubmitRequest(plan=plan))
            spent = (await call("GetRun", RunRequest(run=1))).privacy_spent
            assert (spent.epsilon, spent.delta, spent.releases) == (0.0, 1e-6, 0)
            state = daemon.cloud.machine.state.runs[1]
            state.budget = promise.budget()
            state.budget.spend(release(ring, 8, 0.1), FAILURE)
            spent = (await call("GetRun", RunRequest(run=1))).privacy_spent
            assert spent.releases == 1 and spent.epsilon == state.budget.epsilon_spent > 0
            over = await call("ControlRun", RunControl(run=1, action="cancel"))
            assert over.phase == "cancelled" and over.privacy_spent == spent
            (listed,) = (await call("ListRuns", ListRequest())).runs
            assert not listed.HasField("privacy_spent")

    run(main())


def test_what_no_run_can_keep_is_refused_before_it_is_journaled(tmp_path, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            good = await plan_of(call, bundle)
            wrong = []
            for name, value in (("rounds", 0), ("cohort", 9), ("over_selection", 0.5)):
                plan = PlanMessage()
                plan.CopyFrom(good)
                setattr(plan, name, value)
                wrong.append((plan, "plan."))
            missing = PlanMessage()
            missing.CopyFrom(good)
            missing.bundle.digest = b"x" * 32
            wrong.append((missing, "plan.bundle"))
            other = PlanMessage()
            other.CopyFrom(good)
            other.ring.clip = 2.0
            wrong.append((other, "plan.ring"))
            for named, said in (("f1", "where the bundle has none"), ("Loss", "called 'Loss'")):
                judged = PlanMessage()
                judged.CopyFrom(good)
                judged.own_metrics.append(named)
                wrong.append((judged, said))
            no_bundle = PlanMessage()
            no_bundle.CopyFrom(good)
            no_bundle.bundle.CopyFrom(await put(call, b"no bundle at all"))
            wrong.append((no_bundle, "plan.bundle"))
            before = daemon.cloud.counters["entries"]
            for plan, part in wrong:
                code, text = await refused(call("Submit", SubmitRequest(plan=plan)))
                assert code is grpc.StatusCode.INVALID_ARGUMENT and part in text, text
            assert daemon.cloud.counters["entries"] == before
            assert not (await call("ListRuns", ListRequest())).runs
            assert (await refused(call("GetRun", RunRequest(run=4))))[0] is (
                grpc.StatusCode.NOT_FOUND
            )

    run(main())


def test_a_bundle_that_compares_a_devices_key_is_refused(tmp_path, bundle, peeking):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            plan = await plan_of(call, peeking(bundle))
            code, text = await refused(call("Submit", SubmitRequest(plan=plan)))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert "client_update compares a random key by `eq`" in text
            assert not (await call("ListRuns", ListRequest())).runs

    run(main())


async def on_record(daemon) -> Report:
    ca = daemon.trust and daemon.hosted.ca.certificate
    return verify((await daemon.audit.page(0))[0], ca)


def test_the_bundle_of_a_run_is_on_the_signed_record_before_the_run_begins(tmp_path, bundle):
    async def main():
        async with certified(tmp_path) as (daemon, stub):
            give, seen = daemon.orders.give, []

            async def watched(order):
                seen.append(await on_record(daemon))
                await give(order)

            daemon.orders.give = watched

            def call(name, request):
                return getattr(stub, name)(request)

            plan = await plan_of(call, bundle, manifest=b"signed")
            await call("Submit", SubmitRequest(plan=plan))
            (report,) = seen
            assert report.good and report.signed == report.entries
            told = report.bundles[1]
            assert told["bundle"] == plan.bundle.digest.hex() and not told["secure"]
            assert told["manifest"] == hashlib.sha256(b"signed").hexdigest()

    run(main())


def test_a_run_whose_order_was_lost_is_on_record_when_it_begins(tmp_path, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            plan = await plan_of(call, bundle)
            await daemon.registry.add_run(plan)  # and then the process died
        async with daemon_at(tmp_path) as daemon:
            report = await on_record(daemon)
            assert report.bundles[1]["bundle"] == plan.bundle.digest.hex()

    run(main())


def test_a_run_whose_order_was_lost_begins_at_the_next_start(tmp_path, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            plan = await plan_of(call, bundle)
            await daemon.registry.add_run(plan)  # and then the process died
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            async for event in call("WatchRun", WatchRequest(run=1)):
                assert json.loads(event.facts)["phase"] == "waiting"
                break
            assert (await call("GetRun", RunRequest(run=1))).phase == "waiting"

    run(main())


def test_a_request_that_is_repeated_makes_one_run(tmp_path, bundle):
    async def main():
        one, two, three = (bytes([n]) * 16 for n in range(3))
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            plan = await plan_of(call, bundle)
            request = SubmitRequest(plan=plan, request_id=one)
            made = await asyncio.gather(*(call("Submit", request) for _ in range(3)))
            assert [m.run for m in made] == [1, 1, 1] and made[0].phase == "waiting"
            clone = CloneRequest(run=1, request_id=two)
            assert [(await call("CloneRun", clone)).run for _ in range(2)] == [2, 2]
            assert (await call("Submit", SubmitRequest(plan=plan))).run == 3
            assert (await call("Submit", SubmitRequest(plan=plan))).run == 4, "without an id"
            bad = SubmitRequest(plan=PlanMessage(), request_id=three)
            await refused(call("Submit", bad))
            good = SubmitRequest(plan=plan, request_id=three)
            assert (await call("Submit", good)).run == 5, "nothing was made of it before"
            for length in (1, 15, 17):
                wrong = SubmitRequest(plan=plan, request_id=b"x" * length)
                assert (await refused(call("Submit", wrong)))[0] is INVALID
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            assert (await call("Submit", request)).run == 1
            assert (await call("CloneRun", clone)).run == 2
            assert len((await call("ListRuns", ListRequest())).runs) == 5

    run(main())


def test_a_caller_that_is_gone_finds_its_run_begun(tmp_path, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            request = SubmitRequest(plan=await plan_of(call, bundle), request_id=b"r" * 16)
            at, on = asyncio.Event(), asyncio.Event()
            give = daemon.orders.give

            async def slowly(order):
                at.set()
                await on.wait()
                await give(order)

            daemon.orders.give = slowly
            first = call("Submit", request)
            await asyncio.wait_for(at.wait(), 120)
            first.cancel()
            again = asyncio.ensure_future(call("Submit", request))
            on.set()
            made = await again
            assert (made.run, made.phase) == (1, "waiting")
            assert len((await call("ListRuns", ListRequest())).runs) == 1

    run(main())


def test_a_request_that_is_repeated_after_a_crash_finds_the_run_that_begins_anew(tmp_path, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            plan = await plan_of(call, bundle)
            await daemon.registry.add_run(plan, request=b"r" * 16)  # and then the process died
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            made = await call("Submit", SubmitRequest(plan=plan, request_id=b"r" * 16))
            assert (made.run, made.phase) == (1, "waiting")

    run(main())


def test_runs_and_models_are_there_after_a_restart(tmp_path, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            plan = await plan_of(call, bundle)
            before = await call("Submit", SubmitRequest(plan=plan))
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            after = await call("GetRun", RunRequest(run=1))
            for told in (before, after):  # it waits for devices, now and then
                assert (told.outlook.wanted, told.outlook.ready) == (2, 0)
                told.ClearField("outlook")
            assert after == before
            model = await call("GetModel", ModelRequest(run=1, round=0))
            assert model.weights == plan.weights and model.bundle == plan.bundle

    run(main())


def test_health_readiness_and_metrics_are_served(tmp_path, bundle):
    async def ask(daemon, path, method="GET"):
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.ports["health"])
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body.decode()

    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            await call("Submit", SubmitRequest(plan=await plan_of(call, bundle)))
            assert await ask(daemon, "/healthz") == (200, "alive\n")
            assert await ask(daemon, "/readyz") == (200, "ready\n")
            assert (await ask(daemon, "/nothing"))[0] == 404
            assert (await ask(daemon, "/metrics", "POST"))[0] == 405
            status, page = await ask(daemon, "/metrics")
            assert status == 200
            assert 'delian_runs{phase="waiting"} 1.0' in page
            assert 'delian_inbox_events{node="cloud"} 0.0' in page
            assert "delian_journal_append_seconds_count" in page
            daemon.serving = False
            assert (await ask(daemon, "/readyz"))[0] == 503

    run(main())
