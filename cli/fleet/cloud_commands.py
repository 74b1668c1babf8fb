"""`delian cloud`: run a coordinator."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import ConfigFile, Settings

if TYPE_CHECKING:
    from ...cloud.service.coordinator_settings import CloudSettings
    from ...cloud.service.daemon import Gatherer
    from ...core.node.driver.traces import Spans
    from ..settings import CloudConfig, Config

log = logging.getLogger("delian.cloud")

app = typer.Typer(help="Run a coordinator.", no_args_is_help=True)


@app.callback()
def cloud() -> None:
    """Run a coordinator: it plans rounds, adds up what edges send and makes the next model."""


@app.command("run")
def run(
    config: ConfigFile = None,
    settings: Settings = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="Its folder. (default: cloud.state)")
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", help="host:port for nodes and operators, over gRPC.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", help="postgresql://... or a file. (default: SQLite in the folder)"),
    ] = None,
    blobs: Annotated[
        str | None,
        typer.Option(
            "--blobs", help="Where models are: a folder, s3://BUCKET/PREFIX, gs://, az://"
        ),
    ] = None,
    authority: Annotated[
        str | None,
        typer.Option(
            "--authority",
            help="host:port of `delian authority run`. (default: cloud.authority; without one the"
            " CA's key is here)",
        ),
    ] = None,
    identity: Annotated[
        Path | None, typer.Option("--identity", help="Folder of its key and certificate.")
    ] = None,
    broker: Annotated[
        str | None, typer.Option("--broker", help="mqtts://host:port, in addition to gRPC.")
    ] = None,
    serve_bundles: Annotated[
        list[Path] | None,
        typer.Option(
            "--serve",
            metavar="BUNDLE",
            help="Run parts of it for edges and devices; may be given again.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS; on this machine alone.")
    ] = False,
) -> None:
    """Run a coordinator until it is interrupted.

    Killed and started again it goes on in the round that it was in.

    With --authority it has the identity of `delian token --tier cloud` and `delian join`, and no CA
    key: its operator cannot invent devices. Without, it makes its own certificate with the CA of
    `delian ca init`, for trials on one machine. One line of JSON on standard
    output says where it serves.
    """
    from ...cloud.service.daemon import serve
    from ..doctor_checks import State, check_server_names
    from . import daemons

    flags = {
        "cloud.state": state,
        "cloud.listen": listen,
        "cloud.store": store,
        "cloud.objects": blobs,
        "cloud.authority": authority,
        "cloud.service.identity_service": identity,
        "cloud.broker.url": broker,
        "cloud.serve": [str(b) for b in serve_bundles or ()] or None,
        "cloud.insecure": insecure or None,
    }

    async def served(chosen: Config, ready: daemons.Ready, spans: Spans | None) -> None:
        for found in check_server_names(chosen):
            if found.state is not State.OK:
                log.warning("%s: %s", found.text, found.todo)
        await serve(cloud_settings(chosen.cloud), gatherer, ready=ready, spans=spans)

    daemons.run(
        "delian-cloud",
        served,
        config,
        flags,
        settings,
    )


def gatherer(snapshot: bytes | None) -> Gatherer:
    """The coordinator's own edge, for devices that connect to it directly."""
    from ...core.protocol.ports import MS
    from ...edge.protocol.edge_state import EdgePolicy, EdgeState
    from ...edge.protocol.machine import EdgeMachine, restore

    # Sooner than other edges: it is not far to the cloud, and the next round waits for it.
    # Its blobs are the coordinator's own, which are in one store with it.
    policy = EdgePolicy(hello_delay_ns=100 * MS, blobs_bytes_max=2**62)
    return EdgeMachine(EdgeState(0, 1) if snapshot is None else restore(snapshot), policy)


def cloud_settings(config: CloudConfig) -> CloudSettings:
    """The daemon's settings of the configuration's section."""
    from ...cloud.service.coordinator_settings import CloudSettings
    from ...core.node.sandbox.process_limits import WorkerLimits

    return CloudSettings(
        folder=config.state.absolute(),
        store=config.store,
        objects=config.objects,
        authority=config.authority,
        ca=config.ca,
        identity=config.identity,
        listen=config.listen,
        enrolment=config.enrolment,
        health=config.health,
        public=config.public,
        public_enrolment=config.public_enrolment,
        addresses=config.addresses,
        broker=config.broker.url,
        broker_authority=config.broker.authority,
        certificate_days=config.certificate_days,
        enrolments_per_minute=config.enrolments_per_minute,
        token_uses=config.token_uses,
        backend=config.backend,
        worker=WorkerLimits(**dict(config.worker)),
        serve=tuple(Path(b).expanduser().absolute() for b in config.serve),
        witnesses=config.witnesses,
        insecure=config.insecure,
    )
