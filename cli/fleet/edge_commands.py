"""`delian edge`: run an edge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import ConfigFile, Settings

if TYPE_CHECKING:
    from ...edge.service.daemon import EdgeSettings
    from ..settings import EdgeConfig

app = typer.Typer(help="Run an edge.", no_args_is_help=True)


@app.callback()
def edge() -> None:
    """Run an edge: it gathers devices, adds up their updates and passes the sums on."""


@app.command("run")
def run(
    config: ConfigFile = None,
    settings: Settings = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="The edge's folder. (default: edge.state)")
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", help="host:port for devices, over gRPC.")
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option("--coordinator", help="host:port of the coordinator.")
    ] = None,
    identity: Annotated[
        Path | None, typer.Option("--identity", help="What `delian join` wrote.")
    ] = None,
    number: Annotated[
        int | None, typer.Option("--number", help="Which edge this is; with --insecure.")
    ] = None,
    serve_bundles: Annotated[
        list[Path] | None,
        typer.Option(
            "--serve",
            metavar="BUNDLE",
            help="Run parts of it for devices; may be given again.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS; on this machine alone.")
    ] = False,
) -> None:
    """Run an edge until it is interrupted. Killed and started again it goes on where it was."""
    from ...edge.service.daemon import serve
    from . import daemons

    flags = {
        "edge.state": state,
        "edge.listen": listen,
        "edge.coordinator": coordinator,
        "edge.identity": identity,
        "edge.number": number,
        "edge.serve": [str(b) for b in serve_bundles or ()] or None,
        "edge.insecure": insecure or None,
    }
    daemons.run(
        "delian-edge",
        lambda chosen, ready, spans: serve(edge_settings(chosen.edge), ready=ready, spans=spans),
        config,
        flags,
        settings,
    )


def edge_settings(config: EdgeConfig) -> EdgeSettings:
    """The daemon's settings of the configuration's section. Raises DelianError."""
    from ...core.node.identity.pki.identity_folder import HomeAddress
    from ...core.node.identity.pki.leaf_certificate import DAY_S
    from ...core.protocol.ports import CLOUD, SECOND
    from ...edge.protocol.edge_state import EdgePolicy
    from ...edge.service.daemon import EdgeSettings

    identity = config.identity or config.state / "identity"
    return EdgeSettings(
        folder=config.state.absolute(),
        identity=None if config.insecure else identity,
        listen=config.listen,
        broker=config.broker.url,
        broker_authority=config.broker.authority,
        cloud=HomeAddress(CLOUD, grpc=config.coordinator) if config.coordinator else None,
        transport=config.transport,
        health=config.health,
        policy=EdgePolicy(
            devices_max=config.devices_max,
            blobs_bytes_max=config.blobs_mib << 20,
            denied_age_ns=config.deny_list_days * DAY_S * SECOND,
            splits=config.split,
        ),
        outbox_bytes_max=config.outbox_mib << 20,
        helps=config.helps,
        helps_min=config.helps_min,
        serve=tuple(Path(b).expanduser().absolute() for b in config.serve),
        insecure=config.insecure,
        number=config.number,
        federation=config.federation,
    )
