"""`delian fleet`: the nodes of a federation."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import AsJson
from ..output import table, tell, to_json, when
from .coordinator_commands import (
    AuthorityAddress,
    Connect,
    authority_target,
    connected_authority,
    on_coordinator,
)

if TYPE_CHECKING:
    from ...core.node.service.operator_client import Client
    from ...core.wire.operator_pb2 import NodeRequest

app = typer.Typer(help="List, show, drain and revoke nodes.", no_args_is_help=True)

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="A node, as device-5 or edge-2.")]
PAGE = 500
_NAME = re.compile(r"(device|edge|cloud)[- ]([0-9]{1,19})")


class Tier(StrEnum):
    """Whose nodes to list."""

    device = "device"
    edge = "edge"


@app.command("ls")
@on_coordinator
def list_nodes(
    connect: Connect,
    tier: Annotated[Tier | None, typer.Option("--tier", help="Only this tier.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 1_000,
    as_json: AsJson = False,
) -> None:
    """List the nodes: where they are, what they do, when they were seen last.

    An owner sees the nodes of the own site.
    """
    with connect() as client:
        nodes = _all(client, tier, limit)

    def lines() -> list[str]:
        rows = [
            [name_of(n), n["state"], _home(n), n["site"] or "-", when(n["seen_ms"]), _labels(n)]
            for n in nodes
        ]
        return table(("NODE", "STATE", "HOME", "SITE", "SEEN (UTC)", "LABELS"), rows)

    tell({"nodes": nodes}, as_json, lines)


@app.command("show")
@on_coordinator
def show(
    connect: Connect,
    node: NodeName,
    as_json: AsJson = False,
) -> None:
    """Show a node."""
    _ask("GetNode", node, connect, as_json)


@app.command("drain")
@on_coordinator
def drain(
    connect: Connect,
    node: NodeName,
    undo: Annotated[bool, typer.Option("--undo", help="Put it back into service.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take an edge out of service.

    It accepts no more devices, sends those away that it has, and ends what it has begun. When it is
    drained it may be stopped.
    """
    _ask("DrainNode", node, connect, as_json, undo)


@app.command("revoke")
@on_coordinator
def revoke(
    connect: Connect,
    node: NodeName,
    why: Annotated[str, typer.Option("--why", help="For the record.")] = "",
    authority: AuthorityAddress = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a node for good: its certificates are void from now on, and its connections end.

    Where another process is the authority, it is asked (--authority), and may also revoke an
    operator's or the coordinator's certificate: admin-2, cloud-0. The coordinator follows within
    seconds.
    """
    target = authority_target(connect.config, authority)
    if target and connect.coordinator is None:
        from ...core.wire.authority_pb2 import RevokeRequest

        with connected_authority(connect.config, target, connect.identity) as client:
            told = client.call("Revoke", RevokeRequest(name=node, why=why))
        text = "revoked" if told.changed else "was revoked already"
        found = {"name": node, "revoked": told.changed, "version": told.version}
        tell(found, as_json, lambda: [f"{node}: {text} (deny list version {told.version})"])
        return
    _ask("RevokeNode", node, connect, as_json)


def _ask(call: str, node: str, connect: Connect, as_json: bool, undo: bool = False) -> None:
    request = request_of(node)
    request.undo = undo
    with connect() as client:
        facts = to_json(client.call(call, request))

    def lines() -> list[str]:
        pairs = [
            ("node", name_of(facts)),
            ("state", facts["state"]),
            ("home", _home(facts)),
            ("site", facts["site"] or "-"),
            ("seen", when(facts["seen_ms"])),
            ("enrolled", when(facts["enrolled_ms"])),
            ("certificate ends", when(facts["certificate_ends_ms"])),
            ("labels", _labels(facts)),
        ]
        return [f"{name:<18}{value}" for name, value in pairs]

    tell(facts, as_json, lines)


def request_of(name: str) -> NodeRequest:
    """A node as people name it. Raises DelianError."""
    from ...core.common.errors import DelianError
    from ...core.node.storage.codec import address
    from ...core.protocol.ports import Node
    from ...core.protocol.ports import Tier as NodeTier
    from ...core.wire.operator_pb2 import NodeRequest

    parts = _NAME.fullmatch(name.strip().lower())
    if parts is None:
        raise DelianError(f"`{name[:80]}` names no node", "write device-5 or edge-2")
    return NodeRequest(node=address(Node(NodeTier(parts[1]), int(parts[2]))))


def _all(client: Client, tier: Tier | None, limit: int) -> list[dict[str, Any]]:
    from ...core.wire import link_pb2
    from ...core.wire.operator_pb2 import FleetRequest

    wire = {
        None: link_pb2.NODE_TIER_UNSPECIFIED,
        Tier.device: link_pb2.NODE_DEVICE,
        Tier.edge: link_pb2.NODE_EDGE,
    }[tier]
    nodes: list[dict[str, Any]] = []
    after = 0

    while len(nodes) < limit:
        request = FleetRequest(tier=wire, limit=min(PAGE, limit - len(nodes)), after=after)
        page = client.call("ListNodes", request).nodes
        nodes += [to_json(node) for node in page]
        if not page or page[-1].node.number <= after:
            break
        after = page[-1].node.number
    return nodes[:limit]


def name_of(node: dict[str, Any]) -> str:
    """A node's name, as people and certificates write it."""
    address = node["node"]
    return f"{address['tier'].removeprefix('node_')}-{address['number']}"


def _home(node: dict[str, Any]) -> str:
    home = node["home"]
    return f"edge-{home['number']}" if home else "-"


def _labels(node: dict[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in sorted(node["labels"].items()))
