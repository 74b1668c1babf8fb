"""`delian audit`: what was aggregated, on record."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..options import AsJson
from ..output import echo, echo_copy, table, tell, when
from .coordinator_commands import Connect, connected_authority, on_coordinator

if TYPE_CHECKING:
    from cryptography import x509

    from ...cloud.service.audit import Report

app = typer.Typer(
    help="The record of what was aggregated, and of what operators asked for.", no_args_is_help=True
)

BROKEN = 1


@app.command("export")
@on_coordinator
def export(
    connect: Connect,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write to this file. (default: stdout)")
    ] = None,
    after: Annotated[int, typer.Option("--after", min=0, help="Only later entries.")] = 0,
    authority: Annotated[
        str | None,
        typer.Option(
            "--authority", metavar="HOST:PORT", help="Copy the authority's record instead."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy the record from the coordinator: one line of JSON an entry or signature.

    It ends with a signature of the coordinator's. A separate authority has a record of its own, of
    tokens and revocations, which it signs (--authority). Keep copies, or at least the head that
    `verify` prints, where the coordinator's operator does not reach them.

    The record is JSON as it is; with --out, --json says how many lines were written.
    """
    from ...core.wire.operator_pb2 import AuditRequest

    server = (
        connected_authority(connect.config, authority, connect.identity) if authority else connect()
    )
    with server as client:
        lines = client.stream("Audit", AuditRequest(after=after))
        if out is None:
            for line in lines:
                echo_copy(line.line)
            return
        count = 0
        with _opened(out, "wb") as file:
            for line in lines:
                file.write(line.line + b"\n")
                count += 1
    if as_json:
        tell({"file": str(out), "lines": count}, as_json, list)


@app.command("verify")
def verify(
    file: Annotated[Path, typer.Argument(help="What `export` wrote, from the first entry on.")],
    ca: Annotated[
        Path | None, typer.Option("--ca", help="The CA's certificate, ca.pem, or its folder.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="SEQUENCE:HASH", help="An entry that you know of before."),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="A .bundle that must be that of a run on record."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a copy of the record: every entry, every link, every signature.

    Exits with 1 when it does not hold, and says which entry is the first that does not, or when
    --bundle belongs to no signed run; with 2 when it is empty.

    Without --ca a signature of any CA counts. Without --head a truncated end is not detected, nor a
    record that was rewritten with the coordinator's key.
    """
    from ...cloud.service.audit import Head
    from ...cloud.service.audit import verify as check

    known = None if head is None else Head.parse(head)
    report = check(_lines(file), _authority(ca), known)
    broken = report.broken
    if not report.entries and broken is None:
        raise DelianError(f"{file} has no entries", "there is nothing in it that could be checked")
    facts: dict[str, Any] = {
        "good": report.good,
        "entries": report.entries,
        "calls": report.calls,
        "signatures": report.checkpoints,
        "signed": report.signed,
        "signer": report.signer,
        "head": str(report.head),
        "runs": sorted(report.runs),
        "bundles": {
            run: {name: told[name] for name in ("bundle", "manifest", "secure", "sequence")}
            for run, told in sorted(report.bundles.items())
        },
        "unpublished": sorted(report.unpublished),
        "broken": None
        if broken is None
        else {"line": broken.line, "sequence": broken.sequence, "why": broken.why},
    }

    found = None if bundle is None else _runs_of(bundle, report)
    if found is not None:
        facts["of_bundle"] = found

    def text() -> Iterator[str]:
        yield (
            f"entries      {report.entries}, of {len(report.runs)} runs and {report.calls} calls"
        )
        unsigned = report.entries - report.signed
        tail = f"; the last {unsigned} are not signed" if unsigned and broken is None else ""
        signer = {"cloud": "the coordinator", "authority": "the authority"}
        whose = f", of {signer.get(report.signer, report.signer)}" if report.signer else ""
        yield f"signatures   {report.checkpoints}{whose}{tail}"
        yield f"head         {report.head}"
        if report.unpublished:
            yield f"no bundle    on record before they began: runs {_numbers(report.unpublished)}"
        if found is not None:
            yield f"bundle       {f'of runs {_numbers(found)}' if found else 'of NO RUN on record'}"
        if broken is not None:
            yield f"BROKEN       at entry {broken.sequence} (line {broken.line}): {broken.why}"

    tell(facts, as_json, lambda: list(text()))
    if broken is not None or found == []:
        raise typer.Exit(BROKEN)


@app.command("calls")
def calls(
    file: Annotated[Path, typer.Argument(help="What `export` wrote, from the first entry on.")],
    ca: Annotated[
        Path | None, typer.Option("--ca", help="The CA's certificate, ca.pem, or its folder.")
    ] = None,
    by: Annotated[str | None, typer.Option("--by", help="Only of this operator: admin-1.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what operators asked for, and what came of it.

    The record is verified on the way; exits with 1, after what held, when it does not hold.
    """
    from ...cloud.service.audit import CALL, OUTCOME
    from ...cloud.service.audit import verify as check

    found: dict[int, dict[str, Any]] = {}

    def take(facts: dict[str, Any]) -> None:
        kind = facts.get("kind")
        if kind == CALL and by in (None, facts.get("by")):
            found[facts["sequence"]] = {**facts, "outcome": None}
        elif kind == OUTCOME and facts["call"] in found:
            found[facts["call"]]["outcome"] = facts

    report = check(_lines(file), _authority(ca), on_entry=take)
    broken = report.broken
    rows = [_row(call) for call in found.values()]
    head = ("ENTRY", "TIME (UTC)", "BY", "CERTIFICATE", "CALL", "ABOUT", "OUTCOME")
    facts = {"good": report.good, "calls": list(found.values())}
    tell(facts, as_json, lambda: table(head, rows))
    if broken is not None:
        echo(f"BROKEN at entry {broken.sequence} (line {broken.line}): {broken.why}", err=True)
        raise typer.Exit(BROKEN)


def _row(call: dict[str, Any]) -> tuple[object, ...]:
    outcome = call["outcome"]
    if outcome is None:
        end = "not known: the coordinator ended"
    elif outcome.get("ok") is True:
        end = " ".join(["ok", *_pairs(outcome)])
    else:
        end = f"refused: {outcome.get('why')}"
    about = " ".join(_pairs(call))
    serial, method = str(call.get("serial"))[:16], call.get("method")
    return call["sequence"], when(_time(call)), call.get("by"), serial, method, about, end


def _pairs(entry: dict[str, Any]) -> list[str]:
    facts = entry.get("facts")
    return [f"{k}={v}" for k, v in facts.items()] if isinstance(facts, dict) else []


def _time(entry: dict[str, Any]) -> int:
    time_ms = entry.get("time_ms")
    return time_ms if isinstance(time_ms, int) and 0 <= time_ms < 2**47 else 0


def _runs_of(path: Path, report: Report) -> list[int]:
    """The runs of which a signed entry says that this is their bundle, weights or not."""
    import hashlib

    from ...core.learning.bundle import load

    digest = hashlib.sha256(load(path).bare().to_bytes()).hexdigest()
    return [
        run
        for run, told in sorted(report.bundles.items())
        if told["bundle"] == digest and told["sequence"] <= report.signed
    ]


def _numbers(runs: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(runs)))


def _lines(path: Path) -> Iterator[bytes]:
    """The file's lines, each at most a little longer than one may be; `-`: of stdin."""
    from ...cloud.service.audit import LINE_BYTES_MAX

    stream = sys.stdin.buffer if str(path) == "-" else _opened(path, "rb")
    with stream:
        while line := stream.readline(LINE_BYTES_MAX + 2):
            yield line.removesuffix(b"\n")


def _opened(path: Path, mode: str) -> Any:
    try:
        return path.open(mode)
    except OSError as error:
        raise DelianError(
            f"cannot open {path}: {error.strerror}",
            "delian audit export --out FILE writes a record",
        ) from None


def _authority(path: Path | None) -> x509.Certificate | None:
    from ...core.node.identity.pki.certificates import CERTIFICATE_BYTES_MAX, load_certificate

    if path is None:
        return None
    with _opened(path / "ca.pem" if path.is_dir() else path, "rb") as file:
        return load_certificate(file.read(CERTIFICATE_BYTES_MAX + 1))
