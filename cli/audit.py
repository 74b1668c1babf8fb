"""`delian audit`: what was aggregated, on record."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import DelianError
from .coordinator import Address, Identity, Insecure, connected
from .options import AsJson, ConfigFile
from .output import echo_copy, tell

if TYPE_CHECKING:
    from cryptography import x509

app = typer.Typer(help="The record of what was aggregated.", no_args_is_help=True)

BROKEN = 1


@app.command("export")
def export(
    out: Annotated[
        Path | None, typer.Option("--out", help="Write to this file. [default: stdout]")
    ] = None,
    after: Annotated[int, typer.Option("--after", min=0, help="Only later entries.")] = 0,
    coordinator: Address = None,
    identity: Identity = None,
    insecure: Insecure = False,
    config: ConfigFile = None,
) -> None:
    """Copy the record from the coordinator: one line of JSON an entry or signature.

    It ends with a signature of the coordinator's. Keep copies, or at least the head that `verify`
    prints, where the coordinator's operator does not reach them.
    """
    from ..core.wire.operator_pb2 import AuditRequest

    with connected(config, coordinator, identity, insecure) as client:
        lines = client.stream("Audit", AuditRequest(after=after))
        if out is None:
            for line in lines:
                echo_copy(line.line)
            return
        with _opened(out, "wb") as file:
            for line in lines:
                file.write(line.line + b"\n")


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
    as_json: AsJson = False,
) -> None:
    """Check a copy of the record: every entry, every link, every signature. Exits with 1 when it
    does not hold, and says which entry is the first that does not; with 2 when it is empty.

    Without --ca anybody's signature counts. Without --head nobody can tell whether the end was cut
    off, or the whole record was written anew by whoever has the coordinator's key.
    """
    from ..cloud.audit import Head
    from ..cloud.audit import verify as check

    known = None if head is None else Head.parse(head)
    report = check(_lines(file), _authority(ca), known)
    broken = report.broken
    if not report.entries and broken is None:
        raise DelianError(f"{file} has no entries", "there is nothing in it that could be checked")
    facts: dict[str, Any] = {
        "good": report.good,
        "entries": report.entries,
        "signatures": report.checkpoints,
        "signed": report.signed,
        "head": str(report.head),
        "runs": sorted(report.runs),
        "broken": None
        if broken is None
        else {"line": broken.line, "sequence": broken.sequence, "why": broken.why},
    }

    def text() -> Iterator[str]:
        yield f"entries      {report.entries}, of {len(report.runs)} runs"
        unsigned = report.entries - report.signed
        tail = f"; the last {unsigned} are not signed" if unsigned and broken is None else ""
        yield f"signatures   {report.checkpoints}{tail}"
        yield f"head         {report.head}"
        if broken is not None:
            yield f"BROKEN       at entry {broken.sequence} (line {broken.line}): {broken.why}"

    tell(facts, as_json, lambda: list(text()))
    if broken is not None:
        raise typer.Exit(BROKEN)


def _lines(path: Path) -> Iterator[bytes]:
    """The file's lines, each at most a little longer than one may be; `-`: of stdin."""
    from ..cloud.audit import LINE_BYTES_MAX

    stream = sys.stdin.buffer if str(path) == "-" else _opened(path, "rb")
    with stream:
        while line := stream.readline(LINE_BYTES_MAX + 2):
            yield line.removesuffix(b"\n")


def _opened(path: Path, mode: str) -> Any:
    try:
        return path.open(mode)
    except OSError as error:
        raise DelianError(f"cannot open {path}: {error.strerror}") from None


def _authority(path: Path | None) -> x509.Certificate | None:
    from ..core.identity.certificates import CERTIFICATE_BYTES_MAX, load_certificate

    if path is None:
        return None
    with _opened(path / "ca.pem" if path.is_dir() else path, "rb") as file:
        return load_certificate(file.read(CERTIFICATE_BYTES_MAX + 1))
