"""`delian token` and `delian approve`: tokens that let nodes in, and their approval.

`token` asks the CA's folder, or a running coordinator as its operator. A coordinator makes a token
for many nodes only with another admin's approval (`core.node.identity.authority.approvals`).
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..identity.identity_commands import (
    AsJson,
    AuthorityFolder,
    Tier,
    open_authority,
    seconds_of,
    settings_of,
)
from ..options import ConfigFile
from ..output import echo, tell, write_out
from .coordinator_commands import AuthorityAddress

if TYPE_CHECKING:
    from ...core.node.identity.authority.approvals import Approval
    from ...core.node.identity.authority.tokens import Token
    from ..settings import Config

Operator = Annotated[
    Path | None,
    typer.Option("--identity", help="The operator's identity. (default: of the configuration)"),
]


def token(
    tier: Annotated[Tier, typer.Option("--tier", help="What may join by it.")] = Tier.DEVICE,
    uses: Annotated[int, typer.Option("--uses", min=1, help="How many nodes may join by it.")] = 1,
    valid: Annotated[
        str, typer.Option("--valid", help="How long it is good: 90m, 24h, 7d.")
    ] = "24h",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            help="HOST:PORT of the enrolment as nodes reach it. (default: of the configuration)",
        ),
    ] = None,
    node_address: Annotated[
        list[str] | None,
        typer.Option(
            "--node-address",
            help="For an edge or the coordinator: host name or IP address for its certificate."
            " May be repeated.",
        ),
    ] = None,
    site: Annotated[
        str,
        typer.Option(
            "--site", help="The organisation or place of the nodes. (default: an owner's own)"
        ),
    ] = "",
    folder: AuthorityFolder = None,
    coordinator: Annotated[
        str | None,
        typer.Option("--coordinator", help="Ask a running coordinator at HOST:PORT instead."),
    ] = None,
    authority: AuthorityAddress = None,
    identity: Operator = None,
    request: Annotated[
        Path | None,
        typer.Option(
            "--request", help="Make no token: write to this file what another admin is to approve."
        ),
    ] = None,
    approval: Annotated[
        Path | None,
        typer.Option(
            "--approval", help="The file that `delian approve` has signed. It says tier and uses."
        ),
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a token that lets a new node in: `delian join -` on the node reads it.

    The token is shown once; the CA keeps a hash. It names the CA's key, so the node trusts no other
    server.

    A server that is asked (--authority, --coordinator) makes tokens for few nodes. For more,
    `--request FILE` writes down what is wanted, another admin signs the file by `delian approve
    FILE`, and `--approval FILE` uses it, once. The holder of the CA's folder needs no approval.
    """
    from ...core.common.errors import DelianError
    from ...core.node.identity.authority.tokens import TokenBook, parse
    from ...core.node.identity.pki.certificates import Role

    valid_s = seconds_of(valid)
    flags = {"operator.coordinator": coordinator, "operator.authority": authority}
    settings = settings_of(config, {**flags, "operator.identity": identity})
    if request is not None:
        _write_request(settings, (tier, uses, valid_s, site), request, as_json)
        return
    apart = folder is None and tier is not Tier.CLOUD and bool(settings.operator.authority)
    if apart or any(given is not None for given in (approval, coordinator, authority)):
        if folder is not None or node_address:
            raise DelianError(
                "a server that is asked knows neither --ca nor --node-address", "leave them out"
            )
        signed = b"" if approval is None else _read(approval)
        if approval is not None:
            tier, uses, valid_s, site = _wanted(signed)
        if tier is Tier.CLOUD:
            raise DelianError(
                "a token for a coordinator is not made by a call",
                "where the CA's folder is: delian token --tier cloud --ca CA",
            )
        asked = (tier, uses, valid_s, site)
        text, expires_s = _ask_server(settings, asked, signed, coordinator is None)
        made = parse(text)
    else:
        opened = open_authority(folder, config)
        if opened.issuing is not None and tier is Tier.CLOUD:
            raise DelianError(
                "an issuing authority lets no coordinator in", "the root does: --ca ROOT_CA"
            )
        target = address or _enrolment_of(settings, opened.folder)
        made, expires_s = TokenBook(opened.folder, opened.lock).create(
            Role(tier.value),
            opened.federation,
            target,
            opened.root_public,
            valid_s=valid_s,
            uses=uses,
            addresses=node_address or (),
            site=site or opened.site,
            issuer=opened.issuer_public,
        )
    _tell_token(made, expires_s, uses, as_json)


def approve(
    file: Annotated[Path, typer.Argument(help="From `delian token --request`.")],
    identity: Operator = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write to this file. (default: FILE itself)")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Approve a token that another admin asks for, by a signature of one's own key.

    It shows what is asked for and asks whether to sign. No coordinator is needed; an operator
    cannot approve his own request.
    """
    from ...core.node.identity.authority.approvals import Approval
    from ...core.node.identity.pki.identity_folder import IdentityFolder

    settings = settings_of(config, {"operator.identity": identity})
    asked = Approval.parse(_read(file))
    lines = _lines(asked)
    if not yes:
        for line in lines:
            echo(line, err=True)
        if not typer.confirm("Sign this?", err=True):
            raise typer.Exit(1)
    signed = asked.approve(IdentityFolder(settings.operator.identity).material(), time.time())
    write_out(out or file, signed.content())
    tell(_facts(signed), as_json, lambda: [*lines, f"approved: {out or file}"])


def _write_request(
    settings: Config, asked: tuple[Tier, int, int, str], file: Path, as_json: bool
) -> None:
    from ...core.node.identity.authority.approvals import Approval, Wanted
    from ...core.node.identity.pki.certificates import Role
    from ...core.node.identity.pki.identity_folder import IdentityFolder

    own = IdentityFolder(settings.operator.identity).identity()
    tier, uses, valid_s, site = asked
    wanted = Wanted.new(own, Role(tier.value), uses, valid_s, time.time(), site)
    made = Approval(wanted)
    write_out(file, made.content())
    steps = [f"next  another admin: delian approve {file}", f"then  delian token --approval {file}"]
    tell(_facts(made), as_json, lambda: [*_lines(made), *steps])


def _facts(asked: Approval) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(asked.wanted), "approved": bool(asked.signature)}


def _lines(asked: Approval) -> list[str]:
    wanted = asked.wanted
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(wanted.expires))
    return [
        f"federation  {wanted.federation}",
        f"asked by    {wanted.requester}",
        f"lets in     {wanted.uses} nodes of the tier {wanted.tier}",
        f"site        {wanted.site or 'none'}",
        f"token ends  {wanted.valid_s / 3600:.4g} hours after it is made",
        f"to be used  until {until}",
    ]


def _wanted(content: bytes) -> tuple[Tier, int, int, str]:
    from ...core.node.identity.authority.approvals import Approval

    wanted = Approval.parse(content).wanted
    return Tier(wanted.tier), wanted.uses, wanted.valid_s, wanted.site


def _read(file: Path) -> bytes:
    from ...core.node.identity.authority.approvals import BYTES_MAX
    from ...core.node.identity.pki.certificates import read_file

    return read_file(file, BYTES_MAX)


def _tell_token(made: Token, expires_s: int, uses: int, as_json: bool) -> None:
    facts = {
        "token": made.text(),
        "tier": made.role.value,
        "federation": made.federation,
        "address": made.address,
        "expires": expires_s,
        "uses": uses,
    }
    if as_json:
        echo(json.dumps(facts))
        return
    echo(made.text())
    nodes = f"one {made.role.value}" if uses == 1 else f"{uses} {made.role.value}s"
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(expires_s))
    echo(f"lets {nodes} in through {made.address} until {until}", err=True)


def _enrolment_of(settings: Config, folder: Path) -> str:
    """Where nodes join: at the authority whose CA's folder this is, or at the coordinator."""
    from ..doctor_checks import authority_ca

    own = settings.authority if folder == authority_ca(settings) else settings.cloud
    return own.public_enrolment or own.enrolment


def _ask_server(
    settings: Config, asked: tuple[Tier, int, int, str], approval: bytes, authority: bool
) -> tuple[str, int]:
    """A token from a running coordinator or from the authority, and its end in Unix time.

    The authority makes it if one is configured and `authority` is true.
    """
    from ...core.wire import link_pb2, operator_pb2
    from .coordinator_commands import Connect, connected_authority

    tier, uses, valid_s, site = asked
    wire = {Tier.DEVICE: link_pb2.NODE_DEVICE, Tier.EDGE: link_pb2.NODE_EDGE}[tier]
    request = operator_pb2.TokenRequest(
        tier=wire, valid_s=valid_s, uses=uses, approval=approval, site=site
    )
    operator = settings.operator
    if authority and operator.authority:
        server = connected_authority(None, operator.authority, operator.identity)
    else:
        server = Connect(operator.coordinator, operator.identity, operator.insecure)()
    with server as client:
        reply = client.call("CreateToken", request)
    return reply.token, reply.expires_ms // 1000
