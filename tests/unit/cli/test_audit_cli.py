"""`delian audit verify` on a file: what it tells, and its exit codes."""

from __future__ import annotations

import pytest
from delian.cloud.service import audit
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.pki.certificates import Role, TlsMaterial


@pytest.fixture
def record(tmp_path):
    """A file with three signed entries; gives its lines and the CA's folder."""
    import time

    authority = Authority.create(tmp_path / "ca", "farm")
    key, issued = issue_to(authority, Role.CLOUD, 0, ["127.0.0.1"])
    material = TlsMaterial(key, issued.chain, authority.pem)
    lines, head = [], audit.START
    for number in (1, 2, 3):
        fields = {"run": 4, "round": number, "model": bytes(32), "devices": 5}
        lines.append(audit.entry("evaluation", fields, bytes(32), number, head, 0))
        head = audit.hash_of(lines[-1])
    now_ms = time.time_ns() // 1_000_000
    lines.append(audit.Checkpoint.sign(material, 3, head, now_ms).line())
    (tmp_path / "record").write_bytes(b"".join(line + b"\n" for line in lines))
    return lines


def test_a_record_that_holds(delian, record):
    code, told, _ = delian("audit", "verify", "record", "--ca", "ca", "--json")
    assert code == 0 and told["good"] and told["broken"] is None
    assert (told["entries"], told["signatures"], told["signed"], told["runs"]) == (3, 1, 3, [4])
    code, out, _ = delian("audit", "verify", "record", "--ca", "ca/ca.pem", "--head", told["head"])
    assert code == 0 and told["head"] in out and "not signed" not in out


def test_the_first_broken_link_is_named_and_the_exit_code_is_1(delian, record, tmp_path):
    _, told, _ = delian("audit", "verify", "record", "--json")
    (tmp_path / "cut").write_bytes(b"".join(line + b"\n" for line in record[:2]))
    code, out, _ = delian("audit", "verify", "cut")
    assert code == 0 and "the last 2 are not signed" in out
    code, cut, _ = delian("audit", "verify", "cut", "--head", told["head"], "--json")
    assert code == 1 and not cut["good"] and "the chain ends before it" in cut["broken"]["why"]
    lines = [record[0], record[1].replace(b'"count":5', b'"count":6'), *record[2:]]
    (tmp_path / "changed").write_bytes(b"".join(line + b"\n" for line in lines))
    code, out, _ = delian("audit", "verify", "changed")
    assert code == 1 and "BROKEN       at entry 3 (line 3)" in out


def test_what_is_no_record_no_head_and_no_ca(delian, record, tmp_path):
    (tmp_path / "noise").write_bytes(b"\x00" * 200_000)
    code, told, _ = delian("audit", "verify", "noise", "--json")
    assert code == 1 and told["broken"]["line"] == 1
    (tmp_path / "empty").write_bytes(b"")
    for arguments, words in (
        (["nothing"], "cannot open nothing"),
        (["empty"], "empty has no entries"),
        (["record", "--head", "3"], "is no head"),
        (["record", "--head", "3:zz"], "is no head"),
        (["record", "--ca", "record"], "this is no X.509 certificate"),
    ):
        code, _, err = delian("audit", "verify", *arguments)
        assert code == 2 and words in err


def test_calls_of_operators_are_shown_with_their_outcome(delian, tmp_path):
    lines, head = [], audit.START

    def add(make, told):
        nonlocal head
        lines.append(make(told, len(lines) + 1, head, 1_700_000_000_000))
        head = audit.hash_of(lines[-1])

    for by in ("admin-1", "admin-2", "admin-1"):
        about = {"node": "edge-3\x1b[2K"} if by == "admin-2" else {"uses": "1"}
        told = {"by": by, "role": "admin", "serial": "4a", "method": "CreateToken"}
        add(audit.call_entry, {**told, "request": "00", "facts": about})
        if len(lines) < 5:  # the coordinator ended during the last one
            ok = by == "admin-1"
            done = {"call": len(lines), "ok": ok, "why": "" if ok else "no\nroom", "facts": {}}
            add(audit.outcome_entry, done)
    (tmp_path / "record").write_bytes(b"".join(line + b"\n" for line in lines))
    code, told, _ = delian("audit", "verify", "record", "--json")
    assert code == 0 and (told["entries"], told["calls"], told["runs"]) == (5, 3, [])
    code, out, _ = delian("audit", "calls", "record")
    rows = out.splitlines()
    assert code == 0 and len(rows) == 4 and "\x1b" not in out
    assert rows[1].endswith("ok") and rows[2].endswith("refused: no\\u000aroom")
    assert rows[3].endswith("not known: the coordinator ended")
    code, told, _ = delian("audit", "calls", "record", "--by", "admin-2", "--json")
    assert [call["by"] for call in told["calls"]] == ["admin-2"]
    lines[1] = lines[1].replace(b"true", b"false")  # an outcome is rewritten
    (tmp_path / "changed").write_bytes(b"".join(line + b"\n" for line in lines))
    code, _, err = delian("audit", "calls", "changed")
    assert code == 1 and "BROKEN at entry 3" in err


def test_an_outcome_belongs_to_an_earlier_call():
    told = {"call": 1, "ok": True, "why": "", "facts": {}}
    report = audit.verify([audit.outcome_entry(told, 1, audit.START, 0)])
    assert not report.good and "the outcome of no call" in report.broken.why


def test_a_bundle_is_that_of_a_run_on_the_signed_record_or_not(delian, tmp_path):
    import hashlib
    import time

    import numpy as np
    from delian.core.compiler.ir import DType, TensorType
    from delian.core.learning import Classification, FedAvg, Samples, SampleSet
    from delian.core.learning.build.bundle_builder import build
    from delian.core.learning.nn import Mlp
    from delian.core.wire.blob_pb2 import BlobRef
    from delian.core.wire.operator_pb2 import PlanMessage

    rows = SampleSet(np.zeros((6, 4), np.float32), np.zeros(6, np.int32), np.array(4), np.array(2))
    made = build(
        Classification("small", lambda key: Mlp.init(key, 4, (3,), 2), Samples(2, 1.0)),
        FedAvg(),
        rows,
        example=TensorType(DType.F32, (2, 4)),
        clip=1.0,
        clients_max=8,
        weight_max=6.0,
        seed=1,
    )
    made.save(tmp_path / "its.bundle")
    digests = [hashlib.sha256(made.bare().to_bytes()).digest(), bytes(32)]
    key, issued = issue_to(Authority.create(tmp_path / "ca", "farm"), Role.CLOUD, 0, ["127.0.0.1"])
    for name, order in (("on", digests), ("unsigned", digests[::-1]), ("off", digests[1:])):
        lines, head = [], audit.START
        for run, digest in enumerate(order, 1):
            plan = PlanMessage(bundle=BlobRef(digest=digest))
            lines.append(audit.run_entry(run, plan, run, head, 0))
            head = audit.hash_of(lines[-1])
            if run == 1:
                material = TlsMaterial(key, issued.chain, b"")
                now_ms = time.time_ns() // 1_000_000
                lines.append(audit.Checkpoint.sign(material, 1, head, now_ms).line())
        (tmp_path / name).write_bytes(b"".join(line + b"\n" for line in lines))
    code, told, _ = delian(
        *("audit", "verify", "on", "--ca", "ca", "--bundle", "its.bundle", "--json")
    )
    assert code == 0 and told["of_bundle"] == [1] and told["bundles"]["1"]["sequence"] == 1
    for name in ("unsigned", "off"):
        code, out, _ = delian("audit", "verify", name, "--ca", "ca", "--bundle", "its.bundle")
        assert code == 1 and "of NO RUN on record" in out


def test_entries_of_another_form_are_no_calls_and_no_traceback(delian, tmp_path):
    place = {"sequence": 1, "previous": audit.START.hex(), "run": 1}
    first = audit.line_of(place)  # without a kind
    odd = {"kind": "call", "by": 5, "facts": [1], "time_ms": "now", "serial": None}
    second = audit.line_of({**odd, "sequence": 2, "previous": audit.hash_of(first).hex()})
    (tmp_path / "record").write_bytes(first + b"\n" + second + b"\n")
    code, out, err = delian("audit", "calls", "record")
    assert code == 0 and len(out.splitlines()) == 2 and not err
