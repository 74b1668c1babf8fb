"""`delian broker`: an MQTT broker for a laptop or an edge, and access lists for others."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..options import edge_number
from ..output import echo

app = typer.Typer(help="Run an MQTT broker, or write another one's rules.", no_args_is_help=True)

EDGES = 64  # number of edges that an access list names, by default


class Kind(StrEnum):
    """Which broker to run."""

    ANY = "any"
    MOSQUITTO = "mosquitto"
    IOTCORE = "iotcore"


class For(StrEnum):
    """Whose rules to write."""

    MOSQUITTO = "mosquitto"
    EMQX = "emqx"


Federation = Annotated[str, typer.Option("--federation", help="The federation's name.")]
Edges = Annotated[
    int,
    typer.Option(
        "--edges",
        metavar="N|edge-N",
        parser=edge_number,
        help="Edges that mosquitto's list has names for: 1 to N.",
    ),
]


@app.command("up")
def up(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Where to listen. 0: any free port.")
    ] = 1883,
    host: Annotated[str, typer.Option("--host", help="Which address to listen at.")] = "127.0.0.1",
    tls_dir: Annotated[
        Path | None,
        typer.Option(
            "--tls-dir",
            help="Folder with the broker's key.pem and cert.pem and the federation's ca.pem. "
            "Without it the broker is plain and on loopback only.",
        ),
    ] = None,
    federation: Federation = "",
    edges: Edges = EDGES,
    kind: Annotated[Kind, typer.Option("--kind", help="Which broker to run.")] = Kind.ANY,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the address as one JSON object.")
    ] = False,
) -> None:
    """Run an MQTT broker until it is interrupted: mosquitto if it is installed, else iotcore.

    Its files are in a private folder that goes when it goes.

    With --tls-dir it takes only the federation's certificates, each for its own topics.
    """
    import asyncio

    from ...core.common.errors import DelianError
    from ...core.node.identity.pki.certificates import TlsFiles
    from ...core.node.net.mqtt import broker_acl as acl
    from ...core.node.net.mqtt.broker import BrokerSettings

    tls, rules = None, None
    if tls_dir is not None:
        if not federation:
            raise DelianError(
                "which federation's rules shall the broker keep?", "--federation NAME"
            )
        tls = TlsFiles(tls_dir / "key.pem", tls_dir / "cert.pem", tls_dir / "ca.pem")
        rules = acl.mosquitto(federation, range(1, edges + 1))
    settings = BrokerSettings(port=port, host=host, tls=tls, acl=rules, kind=kind.value)
    code = asyncio.run(_serve(settings, as_json))
    raise typer.Exit(code)


async def _serve(settings: object, as_json: bool) -> int:
    """Until a signal comes, or the broker ends by itself, which is an error (1)."""
    import asyncio
    import signal

    from ...core.node.net.mqtt.broker import Broker, BrokerSettings

    assert isinstance(settings, BrokerSettings)
    broker = Broker(settings)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    # The signal on which a broker reads its rules again.
    loop.add_signal_handler(signal.SIGHUP, broker.signal, signal.SIGHUP)
    try:
        address = await broker.start()
        facts = {"address": address, "broker": broker.kind, "pid": broker.pid}
        text = json.dumps(facts) if as_json else f"{broker.kind} listens at {address}"
        echo(text)
        ended = asyncio.ensure_future(broker.wait())
        told = asyncio.ensure_future(stopped.wait())
        await asyncio.wait({ended, told}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if not stopped.is_set():
            echo(f"{broker.kind} has ended by itself ({ended.result()})", err=True)
        ended.cancel()
        return 0 if stopped.is_set() else 1
    finally:
        await broker.close()


@app.command("acl")
def acl(
    federation: Federation,
    broker: Annotated[For, typer.Option("--for", help="Which broker will read it.")],
    edges: Edges = EDGES,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the text inside one JSON object.")
    ] = False,
) -> None:
    """Print the access list of a federation: which node may publish and read which topics.

    The broker must take the common name of a client's certificate as its user name.
    """
    from ...core.node.net.mqtt import broker_acl as acl

    if broker is For.EMQX:
        text = acl.emqx(federation)
    else:
        text = acl.mosquitto(federation, range(1, edges + 1))
    echo(json.dumps({"for": broker.value, "text": text}) if as_json else text, nl=as_json)
