"""The chain of aggregates: whatever is done to it is found, and where."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random

import pytest
from delian.cloud.service import audit
from delian.cloud.service.audit_log import AuditLog
from delian.cloud.store import records
from delian.cloud.store.database import Database
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.pki.certificates import (
    IdentityError,
    Role,
    TlsMaterial,
    load_certificate,
)
from delian.core.protocol.ports import Record
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import PlanMessage

NOW_MS = 1_700_000_000_000


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def round_fields(number: int, **changes) -> dict:
    given = {
        "run": 1,
        "round": number,
        "attempt": 1,
        "succeeded": True,
        "why": "",
        "weight": 2.5,
        "opened_ns": 0,
        "selected": [3, 1, 2],
        "reported": [2, 1],
        "refused": {},
        "target_met": True,
        "parent": digest(f"model {number - 1}"),
        "model": digest(f"model {number}"),
        "model_size": 4,
    }
    return {**given, **changes}


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("ca") / "ca", "farm")


def material_of(authority: Authority, role: Role, number: int = 0) -> TlsMaterial:
    addresses = ["127.0.0.1"] if role is Role.CLOUD else []
    key, issued = issue_to(authority, role, number, addresses)
    return TlsMaterial(key, issued.chain, authority.pem)


@pytest.fixture(scope="module")
def material(authority) -> TlsMaterial:
    return material_of(authority, Role.CLOUD)


def chain(material: TlsMaterial | None, entries: int = 5, every: int = 2) -> list[bytes]:
    """Lines of that many entries, signed after every second one and at the end."""
    import time

    now_ms = time.time_ns() // 1_000_000
    lines, head = [], audit.START
    for number in range(1, entries + 1):
        line = audit.entry("round", round_fields(number), digest("b"), number, head, NOW_MS)
        head = audit.hash_of(line)
        lines.append(line)
        if material is not None and (number % every == 0 or number == entries):
            lines.append(audit.Checkpoint.sign(material, number, head, now_ms).line())
    return lines


def linked(*makers) -> list[bytes]:
    """Lines of entries, each made for its place by `maker(sequence, previous)`."""
    lines, head = [], audit.START
    for maker in makers:
        lines.append(maker(len(lines) + 1, head))
        head = audit.hash_of(lines[-1])
    return lines


def begins(run: int, bundle: str, manifest: bytes = b""):
    plan = PlanMessage(bundle=BlobRef(digest=digest(bundle)), manifest=manifest)
    return lambda *at: audit.run_entry(run, plan, *at, NOW_MS)


def aggregates(run: int, bundle: str):
    fields = round_fields(1, run=run)
    return lambda *at: audit.entry("round", fields, digest(bundle), *at, NOW_MS)


# ---------------------------------------------------------------- the form


def test_an_entry_says_what_was_aggregated_and_can_be_made_again_by_hand():
    fields = round_fields(4, sum=digest("sum"), privacy={"epsilon": 1.5, "delta": 1e-6})
    line = audit.entry("round", fields, digest("b"), 1, audit.START, NOW_MS)
    facts = json.loads(line)
    assert facts == {
        "attempt": 1,
        "bundle": digest("b").hex(),
        "count": 2,
        "devices": hashlib.sha256(
            b"delian/audit-devices/v1" + (1).to_bytes(8, "little") + (2).to_bytes(8, "little")
        ).hexdigest(),
        "kind": "round",
        "model": digest("model 4").hex(),
        "parent": digest("model 3").hex(),
        "previous": "00" * 32,
        "privacy": {"delta": 1e-6, "epsilon": 1.5},
        "round": 4,
        "run": 1,
        "sequence": 1,
        "succeeded": True,
        "sum": digest("sum").hex(),
        "time_ms": NOW_MS,
        "weight": 2.5,
        "why": "",
    }
    assert audit.hash_of(line) == hashlib.sha256(b"delian/audit/v1" + line).digest()


def test_the_entry_of_a_run_says_which_bundle_and_manifest_its_devices_get():
    (line,) = linked(begins(7, "b", b"signed"))
    assert json.loads(line) == {
        "bundle": digest("b").hex(),
        "kind": "run",
        "manifest": digest("signed").hex(),
        "previous": "00" * 32,
        "run": 7,
        "secure": False,
        "sequence": 1,
        "time_ms": NOW_MS,
    }


def test_rounds_of_another_bundle_than_was_published_break_the_record():
    good = audit.verify(linked(begins(1, "b"), aggregates(1, "b"), begins(1, "b")))
    assert good.good and good.bundles[1]["sequence"] == 1 and not good.unpublished
    for other in (aggregates, begins):
        report = audit.verify(linked(begins(1, "b"), begins(2, "c"), other(1, "c")))
        assert report.broken is not None and report.broken.sequence == 3
        assert "another bundle than entry 1 says of run 1" in report.broken.why


def test_a_run_that_was_not_published_before_its_rounds_is_named():
    report = audit.verify(linked(begins(1, "b"), aggregates(2, "c"), begins(2, "c")))
    assert report.good and report.unpublished == {2}


def test_no_device_is_named():
    line = audit.entry(
        "round", round_fields(1, reported=[987654321]), digest("b"), 1, audit.START, NOW_MS
    )
    assert b"987654321" not in line


def test_a_whole_chain_holds(authority, material):
    lines = chain(material)
    report = audit.verify(lines, authority.certificate)
    assert report.good and (report.entries, report.checkpoints, report.signed) == (5, 3, 5)
    assert report.runs == {1} and report.head == audit.Head(5, audit.hash_of(lines[-2]))
    assert audit.Head.parse(str(report.head)) == report.head
    assert audit.verify(lines, authority.certificate, report.head).good
    assert audit.verify(chain(None)).signed == 0
    assert audit.verify([]).good


# ---------------------------------------------------------------- what is done to it


def found(lines, authority, known=None) -> audit.Broken:
    broken = audit.verify(lines, authority.certificate, known).broken
    assert broken is not None
    return broken


def test_any_flipped_bit_is_found(authority, material):
    lines = chain(material)
    draw = random.Random(1)
    for place, line in enumerate(lines):
        places = draw.sample(range(len(line)), min(len(line), 100))
        for at in places:
            changed = bytearray(line)
            changed[at] ^= 1 << draw.randrange(8)
            broken = found([*lines[:place], bytes(changed), *lines[place + 1 :]], authority)
            # An entry's change may show only where the next line names its hash.
            assert place + 1 <= broken.line <= place + 2


def test_a_changed_fact_in_good_form_is_found_at_the_next_line(authority, material):
    lines = chain(material)
    facts = json.loads(lines[0])
    facts["count"] = 200
    broken = found([audit.line_of(facts), *lines[1:]], authority)
    assert (broken.line, broken.sequence) == (2, 2) and "one of the two was changed" in broken.why


def test_any_dropped_entry_is_found(authority, material):
    lines = chain(material)
    report = audit.verify(lines, authority.certificate)
    for place, line in enumerate(lines[:-1]):
        if b'"checkpoint"' in line:
            continue  # signatures are not counted: the next one covers the same entries
        broken = found([*lines[:place], *lines[place + 1 :]], authority, report.head)
        assert broken.line == place + 1


def test_any_two_entries_that_change_places_are_found(authority, material):
    lines = chain(material)
    for one in range(len(lines)):
        for other in range(one + 1, len(lines)):
            moved = list(lines)
            moved[one], moved[other] = moved[other], moved[one]
            assert found(moved, authority).line <= other + 1


def test_a_repeated_or_foreign_entry_is_found(authority, material):
    lines = chain(material)
    assert found([lines[0], *lines], authority).line == 2
    other = audit.entry("round", round_fields(9), digest("b"), 3, audit.START, NOW_MS)
    assert found([*lines[:3], other, *lines[3:]], authority).line == 4


def test_a_chain_that_was_cut_off_is_found_by_whoever_knows_a_head(authority, material):
    lines = chain(material)
    head = audit.verify(lines, authority.certificate).head
    for length in range(len(lines) - 1):
        broken = found(lines[:length], authority, head)
        assert broken.line == length + 1 and "the chain ends before it" in broken.why
    # Nobody else can tell: what is left is whole and signed.
    assert audit.verify(lines[:3], authority.certificate).good


def test_a_history_that_was_written_anew_is_found_by_whoever_knows_a_head(authority, material):
    head = audit.verify(chain(material)[:3], authority.certificate).head
    anew, previous = [], audit.START
    for number in range(1, 6):
        fields = round_fields(number, reported=[7])
        anew.append(audit.entry("round", fields, digest("b"), number, previous, NOW_MS))
        previous = audit.hash_of(anew[-1])
    assert audit.verify(anew).good
    broken = found(anew, authority, head)
    assert broken.sequence == head.sequence + 1 and "the history is another" in broken.why


# ---------------------------------------------------------------- who signs


def test_only_a_coordinator_of_this_ca_signs(authority, material, tmp_path):
    edge = chain(material_of(authority, Role.EDGE, 1))
    assert "not signed by a coordinator" in found(edge, authority).why
    other = Authority.create(tmp_path / "other", "farm")
    foreign = chain(material_of(other, Role.CLOUD))
    assert "not signed by this federation's CA" in found(foreign, authority).why
    assert audit.verify(foreign).good, "without a CA anybody's signature counts"


def test_a_record_has_one_signer_so_the_coordinator_cannot_continue_the_authority_s(
    authority, material
):
    line = audit.entry("round", round_fields(1), digest("b"), 1, audit.START, NOW_MS)
    head = audit.hash_of(line)
    import time

    now_ms = int(time.time() * 1000)
    theirs = audit.Checkpoint.sign(material_of(authority, Role.AUTHORITY), 1, head, now_ms)
    ours = audit.Checkpoint.sign(material, 1, head, now_ms)
    for one, signer in ((theirs, "authority"), (ours, "cloud")):
        report = audit.verify([line, one.line()], authority.certificate)
        assert report.good and report.signer == signer, report.broken
    assert "signed by the cloud" in found([line, theirs.line(), ours.line()], authority).why


def test_a_signature_of_before_or_after_the_certificate_does_not_count(authority, material):
    line = audit.entry("round", round_fields(1), digest("b"), 1, audit.START, NOW_MS)
    head = audit.hash_of(line)
    late = load_certificate(material.certificate).not_valid_after_utc.timestamp() + 1
    for time_ms in (0, int(late * 1000)):
        signed = audit.Checkpoint.sign(material, 1, head, time_ms)
        assert found([line, signed.line()], authority).line == 2
        with pytest.raises(IdentityError):
            signed.check(authority.certificate)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"checkpoint":1}',
        b'{"sequence":true}',
        b'{"sequence":1}',
        b'{"sequence":1,"sequence":1}',
        b'{ "sequence":1}',
        b"[" * 60_000,
        b'{"sequence":1e999}',
        b"x" * (audit.LINE_BYTES_MAX + 1),
        b"\xff\xfe",
    ],
)
def test_what_is_no_line_is_told_and_raises_nothing(line):
    report = audit.verify([line])
    assert report.broken is not None and report.broken.line == 1


# ---------------------------------------------------------------- in the store


def run(main):
    return asyncio.run(asyncio.wait_for(main, 300))


async def opened(path) -> Database:
    from delian.cloud.store.schema import RunRow
    from sqlalchemy import insert

    database = await Database.open(path)
    plan = PlanMessage(bundle=BlobRef(digest=digest("b"), size=1)).SerializeToString()

    async def begin(connection):
        await connection.execute(
            insert(RunRow).values(
                run=1, plan=plan, phase="waiting", weights=digest("w"), weights_size=4, created_ms=0
            )
        )

    await database.transact(begin)
    return database


async def kept(database: Database, *found: Record) -> None:
    await database.transact(lambda c: records.keep(c, list(found), NOW_MS))


async def lines_of(log: AuditLog) -> list[bytes]:
    lines, after = [], 0
    while True:
        page, after = await log.page(after)
        if not page:
            return lines
        lines += page


def test_attempts_and_evaluations_are_entries_as_soon_as_they_are_over(
    tmp_path, authority, material
):
    async def main():
        database = await opened(tmp_path / "s.db")
        log = AuditLog(database, lambda: material)
        await log.sign()
        assert await lines_of(log) == []
        failed = round_fields(1, succeeded=False, why="too few", model=b"", model_size=0)
        judged = {
            "run": 1,
            "round": 1,
            "model": digest("model 1"),
            "devices": 7,
            "metrics": {"loss": 0.5},
        }
        await kept(database, Record("round", failed), Record("phase", PHASE))
        await kept(
            database, Record("round", round_fields(1, attempt=2)), Record("evaluation", judged)
        )
        await log.sign()
        await log.sign()  # nothing new
        await kept(database, Record("round", round_fields(2)))
        await log.sign()
        lines = await lines_of(log)
        await database.close()
        return lines

    lines = run(main())
    report = audit.verify(lines, authority.certificate)
    assert report.good and (report.entries, report.checkpoints, report.signed) == (4, 2, 4)
    entries = [f for f in map(json.loads, lines) if "kind" in f]
    assert [(e["kind"], e["count"]) for e in entries] == [
        ("round", 2),
        ("round", 2),
        ("evaluation", 7),
        ("round", 2),
    ]
    assert [e.get("succeeded") for e in entries] == [False, True, None, True]


PHASE = {"run": 1, "phase": "collecting", "why": ""}


def test_an_attempt_that_was_not_durable_is_no_entry_and_the_chain_goes_on(tmp_path, material):
    async def main():
        database = await opened(tmp_path / "s.db")
        log = AuditLog(database, lambda: material)
        await kept(database, Record("round", round_fields(1)))

        async def dies(connection):
            await records.keep(connection, [Record("round", round_fields(2))], NOW_MS)
            raise OSError("the disk is gone")

        with pytest.raises(Exception, match="the disk is gone"):
            await database.transact(dies)
        await kept(database, Record("round", round_fields(2)))
        await database.close()  # before it was signed, as in a crash
        database = await Database.open(tmp_path / "s.db")
        log = AuditLog(database, lambda: material)
        signed, sign = asyncio.Event(), log.sign

        async def watched():
            await sign()
            signed.set()

        log.sign = watched
        task = asyncio.create_task(log.run())
        await asyncio.wait_for(signed.wait(), 120)
        assert (await lines_of(log))[-1].startswith(b'{"certificate"')
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        lines = await lines_of(log)
        await database.close()
        return lines

    report = audit.verify(run(main()))
    assert report.good and (report.entries, report.signed) == (2, 2)


def test_without_a_key_there_are_entries_and_no_signatures(tmp_path):
    async def main():
        database = await opened(tmp_path / "s.db")
        log = AuditLog(database, None)
        for number in range(1, 600):
            await kept(database, Record("round", round_fields(number)))
        await log.sign()
        lines = await lines_of(log)
        await database.close()
        return lines

    report = audit.verify(run(main()))
    assert report.good and (report.entries, report.checkpoints) == (599, 0)
