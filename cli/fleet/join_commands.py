"""`delian join`: become a part of a federation. It needs a token and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..identity.identity_commands import AsJson, Tier, day, settings_of
from ..options import ConfigFile
from ..output import echo, tell

TOKEN_TEXT_MAX = 4096


def join(
    token: Annotated[
        str | None,
        typer.Argument(
            help="`-` reads the token from standard input. The token itself is also accepted, but"
            " other users of this machine can read it in the list of processes."
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="Read the token from this file.")
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option("--identity", help="Folder to write. (default: of the configuration)"),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="The node's folder. (default: of the configuration)"),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", help="HOST:PORT of the enrolment, in place of the token's."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="What to call this node. Repeatable."),
    ] = None,
    artifact_root: Annotated[
        Path | None,
        typer.Option("--artifact-root", help="For a device: root.pub of the signer of bundles."),
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Join a federation: make a key on this machine and get a certificate for it.

    `delian join -` reads the token of `delian token` from standard input, `--token-file` from a
    file. The token says which federation, and what this machine is to be: a device, an edge
    or, where another process is the authority, the coordinator.
    May be repeated when it failed: the same key asks again.
    """
    import asyncio

    from ...core.node.identity.authority.tokens import parse
    from ...core.node.identity.enrolment.joining import join as ask
    from ...core.node.identity.enrolment.joining import machine_labels
    from ...core.node.identity.pki.identity_folder import IdentityFolder

    text = _token_text(token, token_file)
    role = parse(text).role
    section = getattr(settings_of(config, {f"{role.value}.state": state}), role.value)
    folder = identity or section.identity or section.state / "identity"
    labels = machine_labels() | _labels(label or ())
    if role.value == Tier.EDGE:
        # Address at which devices reach this edge; the coordinator sends it to them when they join.
        address_of_edge = section.public or section.listen
        if not address_of_edge.endswith(":0"):  # the system chooses the port at each start
            labels.setdefault("grpc", address_of_edge)
        labels.setdefault("mqtt", section.broker.url)
    keep_root = _artifact_root(artifact_root, role.value)
    who = asyncio.run(ask(text, folder, labels=labels, address=address))
    keep_root(folder)
    facts = IdentityFolder(folder).facts()
    found = {
        "name": who.common_name,
        "federation": who.federation,
        "folder": str(folder),
        "ends": who.not_after,
        "renew_at": facts.renew_at,
        "homes": [
            {"node": f"{h.node.tier.value}-{h.node.number}", "grpc": h.grpc, "mqtt": h.mqtt}
            for h in facts.homes
        ],
    }
    lines = [
        f"this is {who.common_name} of the federation {who.federation}",
        f"identity  {folder}",
        f"ends      {day(who.not_after)}, renewed by itself while the {role.value} runs",
        *(f"next      {step}" for step in _next_steps(role.value, identity, state)),
    ]
    tell(found, as_json, lambda: lines)


# ---------------------------------------------------------------- parts


def _next_steps(role: str, identity: Path | None, state: Path | None) -> list[str]:
    """The commands with which a node that has joined goes on."""
    where = f" --state {state}" if state else ""
    own = f"{where} --identity {identity}" if identity else where
    if role != Tier.DEVICE:
        return [f"delian {role} run{own}"]
    return [
        f"delian device consent yes{where}   (its owner agrees that it takes part)",
        f"delian device run{own} --data FILE",
    ]


def _token_text(token: str | None, file: Path | None) -> str:
    """The token of `join`, from where the user wants it read. Raises DelianError."""
    from ...core.common.errors import DelianError
    from ...core.node.identity.pki.certificates import read_file

    if (token is None) == (file is None):
        raise DelianError(
            "the token comes from one place", "delian join - reads it from stdin; or --token-file"
        )
    if file is not None:
        return read_file(file, TOKEN_TEXT_MAX).decode(errors="replace")
    if token == "-":
        return sys.stdin.read(TOKEN_TEXT_MAX)
    echo(
        "warning: other users of this machine can read a token on the command line, and shells"
        " keep it: use `delian join -` or --token-file",
        err=True,
    )
    return token or ""


def _artifact_root(path: Path | None, role: str) -> Callable[[Path], None]:
    """Reads the root key before anything is asked; returns its writer."""
    from ...core.common.errors import DelianError
    from ...core.node.identity.artifacts.manifest import public_pem
    from ...core.node.identity.pki.ledger import write_file

    if path is None:
        return lambda folder: None
    if role != Tier.DEVICE:
        raise DelianError(f"an {role} runs no bundles", "leave --artifact-root out")
    from ...device.agent.artifact_gate import ROOT_FILE, read_root

    root = read_root(path)
    return lambda folder: write_file(folder / ROOT_FILE, public_pem(root))


def _labels(given: Sequence[str]) -> dict[str, str]:
    from ...core.common.errors import DelianError

    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise DelianError(f"--label {text}: this is not name=value")
        found[name] = value
    return found
