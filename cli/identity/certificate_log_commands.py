"""`delian log`: watch which certificates the CA issues.

delian log watch COPY                       # fetch the log into a folder, and go on
delian log show COPY --name device-5        # which certificates were issued to device-5?
delian log verify COPY --head log.fork      # are these signed heads in this log?
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..fleet.coordinator_commands import Address, AuthorityAddress, Identity
from ..options import AsJson, ConfigFile
from ..output import echo, table, tell, when

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...core.node.identity.log.log_copy import LogCopy
    from ...core.node.identity.pki.identity_folder import IdentityFolder
    from ...core.wire.log_pb2 import Checkpoint

app = typer.Typer(help="The log of all certificates that the CA issued.", no_args_is_help=True)

BROKEN = 1
CA_FILE = "ca.pem"
Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="A copy that `watch` made, or the CA's folder.")
]
Names = Annotated[
    list[str] | None,
    typer.Option("--name", help="Only of this holder, as device-5; may be given again."),
]
Issuers = Annotated[
    list[int] | None,
    typer.Option(
        "--issuer",
        min=0,
        max=4095,
        metavar="NUMBER",
        help="Only of holders of this authority: an issuing authority's number, or 0, the root; may"
        " be given again.",
    ),
]


@app.command("show")
def show(
    folder: Folder,
    names: Names = None,
    issuers: Issuers = None,
    day: Annotated[
        str | None, typer.Option("--day", metavar="YYYY-MM-DD", help="Begun on this day, in UTC.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the certificates in the log."""
    start = None if day is None else _day(day)
    found = [
        each
        for each in _entries(folder, 0)
        if (not names or each["name"] in names)
        and (not issuers or each["issuer"] in issuers)
        and (start is None or start <= each["not_before_s"] < start + 86_400)
    ]
    tell({"entries": found}, as_json, lambda: _lines(found))


@app.command("verify")
def verify(
    folder: Folder,
    heads: Annotated[
        list[Path] | None,
        typer.Option(
            "--head",
            metavar="FILE",
            help="A signed head that must be in this log: log.checkpoint of another copy, log.head"
            " of a node or a witness, log.fork; may be given again.",
        ),
    ] = None,
    witnesses: Annotated[
        list[Path] | None,
        typer.Option("--witness", metavar="FILE", help="A witness.pub; may be given again."),
    ] = None,
    quorum: Annotated[
        int, typer.Option("--quorum", min=0, help="Cosignatures that each head must have.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Compute the root of all entries, and compare signed heads with it.

    Exits with 1 if a head is not of this log: then the CA has signed two logs, or entries of this
    one were changed.
    """
    from ...core.node.identity.log.certificate_log import CHECKPOINT_FILE
    from ...core.node.identity.log.log_copy import HEADS_BYTES_MAX, read_heads
    from ...core.node.identity.log.log_file import LogFile
    from ...core.node.identity.pki.certificates import read_file

    tree = LogFile(_log_in(folder)).tree()
    own = folder / CHECKPOINT_FILE
    files = [*([own] if own.exists() else []), *(heads or [])]
    found = [
        {"file": str(path), **_compared(folder, tree, signed, witnesses or (), quorum)}
        for path in files
        for signed in read_heads(read_file(path, HEADS_BYTES_MAX))
    ]
    facts = {"size": tree.size, "root": tree.root().hex(), "heads": found}
    tell(
        facts,
        as_json,
        lambda: [
            f"{tree.size} entries, root {facts['root']}",
            *(f"{one['file']}: {one['size']} entries: {one['result']}" for one in found),
        ],
    )
    if any(one["result"] != "in this log" for one in found):
        raise typer.Exit(BROKEN)


@app.command("watch")
def watch(
    folder: Annotated[Path, typer.Argument(metavar="COPY", help="Where the copy is kept.")],
    names: Names = None,
    issuers: Issuers = None,
    every_s: Annotated[
        float, typer.Option("--every", min=1.0, max=86_400.0, help="Seconds between two looks.")
    ] = 60.0,
    once: Annotated[bool, typer.Option("--once", help="Fetch what is new, and end.")] = False,
    coordinator: Address = None,
    authority: AuthorityAddress = None,
    identity: Identity = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Keep a verified copy of the log, and print each certificate that is issued.

    It asks the root authority, where one is named or configured, and else the coordinator.
    With --name it prints those of these holders only: the owner of device-5 sees every certificate
    that was issued in its name. With --issuer it prints those of one authority's holders: an
    organisation sees all that was issued with the key of its issuing authority. It ends with an
    error when the log does not continue the copy; the two signed heads are in COPY/log.fork then.
    """
    import asyncio

    from ...core.node.identity.pki.identity_folder import IdentityFolder
    from ..config import load

    if coordinator is not None and authority is not None:
        raise DelianError("the log comes from one place", "leave out --coordinator or --authority")
    flags = {
        "operator.coordinator": coordinator,
        "operator.authority": authority,
        "operator.identity": identity,
    }
    operator = load(config, flags).config.operator
    own = IdentityFolder(operator.identity)
    # The configured authority of an organisation's operator is the organisation's: it has no log.
    at_root = authority is not None or own.identity().authority == 0
    apart = coordinator is None and bool(operator.authority) and at_root
    source = (operator.authority if apart else operator.coordinator, apart)
    copy = _copy(folder, own)

    def tell_new(first: int) -> None:
        found = [
            each
            for each in _entries(folder, first)
            if (not names or each["name"] in names) and (not issuers or each["issuer"] in issuers)
        ]
        for each, line in zip(found, _lines(found)[1:], strict=True):
            echo(json.dumps(each) if as_json else line)

    try:
        asyncio.run(_follow(copy, own, source, None if once else every_s, tell_new))
    except KeyboardInterrupt:
        return


# ---------------------------------------------------------------- parts


async def _follow(
    copy: LogCopy,
    own: IdentityFolder,
    source: tuple[str, bool],
    every_s: float | None,
    tell_new: Any,
) -> None:
    """Fetches once (every_s: None), or until it is cancelled.

    source: "host:port", and whether the authority is there. Raises DelianError.
    """
    import asyncio

    from ...core.node.identity.log.log_entries import LogError
    from ...core.node.net.grpc.grpc_log import log_call
    from ...core.wire.log_pb2 import LogAsk, LogPage

    target, apart = source

    async def ask(asked: LogAsk) -> LogPage:
        return await log_call(own.material(), target, asked, authority=apart)

    while True:
        first = 0 if copy.head is None else copy.head.size
        try:
            if await copy.fetch(ask):
                tell_new(first)
        except DelianError as error:
            if every_s is None or isinstance(error, LogError):
                raise
            echo(f"no answer: {error.message}", err=True)
        if every_s is None:
            return
        await asyncio.sleep(every_s)


def _copy(folder: Path, own: IdentityFolder) -> LogCopy:
    """The copy in a folder, of the federation of an identity."""
    from ...core.node.identity.log.log_copy import LogCopy
    from ...core.node.identity.pki.certificates import (
        CERTIFICATE_BYTES_MAX,
        load_certificate,
        read_file,
    )
    from ...core.node.identity.pki.ledger import private_folder, write_file

    material = own.material()
    private_folder(folder)
    pinned = folder / CA_FILE
    if not pinned.exists():
        write_file(pinned, material.authority)
    authority = load_certificate(read_file(pinned, CERTIFICATE_BYTES_MAX))
    if authority != load_certificate(material.authority):
        raise DelianError(
            f"{folder} is a copy of another CA's log", "name another folder for this federation"
        )
    return LogCopy(folder, authority, material.identity().federation, own.terms)


def _compared(
    folder: Path, tree: Any, signed: Checkpoint, witnesses: Sequence[Path], quorum: int
) -> dict[str, Any]:
    from ...core.node.identity.authority.founding import public_of
    from ...core.node.identity.log.log_entries import LogError, cosigned, read_head, verify_head
    from ...core.node.identity.pki.certificates import (
        CERTIFICATE_BYTES_MAX,
        load_certificate,
        read_file,
    )
    from ...core.node.identity.pki.root_certificate import federation_of

    authority = load_certificate(read_file(folder / CA_FILE, CERTIFICATE_BYTES_MAX))
    keys = [public_of(path) for path in witnesses]
    head = read_head(signed.head)
    facts = {
        "size": head.size,
        "issued_s": head.issued_s,
        "root": head.root.hex(),
        "witnesses": len(cosigned(signed, keys)),
    }
    try:
        verify_head(signed, authority, federation_of(authority), keys, quorum)
    except LogError as error:
        return {**facts, "result": error.message}
    if head.size > tree.size:
        return {**facts, "result": f"of more entries than this copy has ({tree.size})"}
    fits = tree.root(head.size) == head.root
    return {**facts, "result": "in this log" if fits else "NOT OF THIS LOG"}


def _log_in(folder: Path) -> Path:
    from ...core.node.identity.log.certificate_log import FILE

    path = folder / FILE
    if not path.exists():
        raise DelianError(f"{folder} has no certificate log", "make a copy with: delian log watch")
    return path


def _entries(folder: Path, first: int) -> Iterator[dict[str, Any]]:
    """The entries of a folder's log, from one on."""
    from ...core.node.identity.log.log_entries import read_entry
    from ...core.node.identity.log.log_file import LogFile

    file, many = LogFile(_log_in(folder)), 4096
    while found := file.entries(first, many):
        for index, content in enumerate(found, first):
            entry = read_entry(content)
            yield {
                "index": index,
                "name": entry.name,
                "issuer": entry.authority,
                "not_before_s": entry.not_before,
                "not_after_s": entry.not_after,
                "sha256": entry.digest.hex(),
            }
        first += len(found)


def _lines(found: Sequence[dict[str, Any]]) -> list[str]:
    rows = [
        (
            each["index"],
            each["name"],
            each["issuer"],
            when(each["not_before_s"] * 1000),
            when(each["not_after_s"] * 1000),
            each["sha256"],
        )
        for each in found
    ]
    return table(
        ("index", "name", "issuer", "begins (UTC)", "ends", "SHA-256 of the certificate"), rows
    )


def _day(text: str) -> int:
    try:
        return int(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise DelianError(f"`{text[:40]}` is no day", "write it as 2026-11-23") from None
