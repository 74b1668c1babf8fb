"""`delian token` and `delian approve`: tokens that let nodes in, and their approval.

`token` asks the CA's folder, or a running coordinator as its operator. A coordinator makes a token
for many nodes only with another admin's approval (`core.identity.approvals`).
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .identity import AsJson, AuthorityFolder, Tier, open_authority, seconds_of, settings_of
from .options import ConfigFile
from .output import echo, tell, write_out

if TYPE_CHECKING:
    from ..core.identity.approvals import Approval
    from ..core.identity.tokens import Token
    from .settings import Config

Operator = Annotated[
    Path | None,
    typer.Option("--identity", help="The operator's identity. [default: of the configuration]"),
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
            help="HOST:PORT of the enrolment as nodes reach it. [default: of the configuration]",
        ),
    ] = None,
    node_address: Annotated[
        list[str] | None,
        typer.Option(
            "--node-address",
            help="For an edge: host name or IP address for its certificate. May be repeated.",
        ),
    ] = None,
    folder: AuthorityFolder = None,
    coordinator: Annotated[
        str | None,
        typer.Option("--coordinator", help="Ask a running coordinator at HOST:PORT instead."),
    ] = None,
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

    A coordinator that is asked (--coordinator) makes tokens for few nodes. For more, `--request
    FILE` writes down what is wanted, another admin signs the file by `delian approve FILE`, and
    `--approval FILE` uses it, once. Whoever has the CA's folder needs no approval.
    """
    from ..core.errors import DelianError
    from ..core.identity.certificates import Role
    from ..core.identity.tokens import TokenBook, parse

    valid_s = seconds_of(valid)
    settings = settings_of(
        config, {"operator.coordinator": coordinator, "operator.identity": identity}
    )
    if request is not None:
        _write_request(settings, tier, uses, valid_s, request, as_json)
        return
    if approval is not None or coordinator is not None:
        if folder is not None or node_address:
            raise DelianError(
                "a coordinator knows neither --ca nor --node-address", "leave them out"
            )
        signed = b"" if approval is None else _read(approval)
        if approval is not None:
            tier, uses, valid_s = _wanted(signed)
        text, expires_s = _ask_coordinator(settings, tier, uses, valid_s, signed)
        made = parse(text)
    else:
        authority = open_authority(folder, config)
        target = address or settings.cloud.public_enrolment or settings.cloud.enrolment
        made, expires_s = TokenBook(authority.folder, authority.lock).create(
            Role(tier.value),
            authority.federation,
            target,
            authority.public,
            valid_s=valid_s,
            uses=uses,
            addresses=node_address or (),
        )
    _tell_token(made, expires_s, uses, as_json)


def approve(
    file: Annotated[Path, typer.Argument(help="From `delian token --request`.")],
    identity: Operator = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write to this file. [default: FILE itself]")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Approve a token that another admin asks for, by a signature of one's own key.

    It shows what is asked for and asks whether to sign. No coordinator is needed; nobody approves
    his own request.
    """
    from ..core.identity.approvals import Approval
    from ..core.identity.folder import IdentityFolder

    settings = settings_of(config, {"operator.identity": identity})
    asked = Approval.parse(_read(file))
    lines = _lines(asked)
    if not yes:
        for line in lines:
            echo(line, err=True)
        typer.confirm("Sign this?", abort=True, err=True)
    signed = asked.approve(IdentityFolder(settings.operator.identity).material(), time.time())
    write_out(out or file, signed.content())
    tell(_facts(signed), as_json, lambda: [*lines, f"approved: {out or file}"])


def _write_request(
    settings: Config, tier: Tier, uses: int, valid_s: int, file: Path, as_json: bool
) -> None:
    from ..core.identity.approvals import Approval, Wanted
    from ..core.identity.certificates import Role
    from ..core.identity.folder import IdentityFolder

    own = IdentityFolder(settings.operator.identity).identity()
    wanted = Wanted.new(own, Role(tier.value), uses, valid_s, time.time())
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
        f"token ends  {wanted.valid_s / 3600:.4g} hours after it is made",
        f"to be used  until {until}",
    ]


def _wanted(content: bytes) -> tuple[Tier, int, int]:
    from ..core.identity.approvals import Approval

    wanted = Approval.parse(content).wanted
    return Tier(wanted.tier), wanted.uses, wanted.valid_s


def _read(file: Path) -> bytes:
    from ..core.identity.approvals import BYTES_MAX
    from ..core.identity.certificates import read_file

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


def _ask_coordinator(
    settings: Config, tier: Tier, uses: int, valid_s: int, approval: bytes
) -> tuple[str, int]:
    """A token from a running coordinator, and its end in Unix time."""
    import asyncio

    from ..core.identity.folder import IdentityFolder
    from ..core.wire import link_pb2, operator_pb2

    wire = {Tier.DEVICE: link_pb2.NODE_DEVICE, Tier.EDGE: link_pb2.NODE_EDGE}[tier]
    request = operator_pb2.TokenRequest(tier=wire, valid_s=valid_s, uses=uses, approval=approval)

    async def ask() -> operator_pb2.TokenReply:
        import grpc

        from ..core.identity.certificates import channel_credentials, channel_options
        from ..core.identity.joining import CALL_S, refused
        from ..core.ports import CLOUD
        from ..core.wire import operator_pb2_grpc

        target = settings.operator.coordinator
        if settings.operator.insecure:
            channel = grpc.aio.insecure_channel(target)
        else:
            shown = IdentityFolder(settings.operator.identity).material()
            options = channel_options(shown.identity().federation, CLOUD)
            channel = grpc.aio.secure_channel(target, channel_credentials(shown), options=options)
        async with channel:
            stub = operator_pb2_grpc.OperatorStub(channel)
            try:
                reply: operator_pb2.TokenReply = await stub.CreateToken(request, timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                raise refused(error, "get a token") from None
        return reply

    reply = asyncio.run(ask())
    return reply.token, reply.expires_ms // 1000
