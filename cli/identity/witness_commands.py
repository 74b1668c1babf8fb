"""`delian witness`: co-sign the heads of other organisations' certificate logs.

witness$     delian witness init WITNESS                       # witness.pub goes to the authority
witness$     delian witness add WITNESS ca.pem                 # ca.pem comes from the authority
witness$     delian witness run WITNESS --listen 0.0.0.0:7450
authority$   delian ca terms CA --witness witness.pub --quorum 1
authority:   [authority] witnesses = ["witness.example:7450"]
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..options import AsJson
from ..output import tell

app = typer.Typer(help="Witness certificate logs of other organisations.", no_args_is_help=True)

WITNESS_PORT = 7450
Folder = Annotated[Path, typer.Argument(metavar="WITNESS", help="The witness's folder.")]


@app.command("init")
def init(folder: Folder, as_json: AsJson = False) -> None:
    """Make a witness: a key, which stays in this folder.

    Do not restore the folder from a backup later: an older copy may sign a second log. Make a new
    witness then.
    """
    from ...core.node.identity.log.witness import PUBLIC_FILE, Witness

    made = Witness.create(folder)
    facts = {"folder": str(folder), "public": str(folder / PUBLIC_FILE), "key": _name(made.public)}
    tell(facts, as_json, lambda: [f"{facts['public']}  {facts['key']}"])


@app.command("add")
def add(
    folder: Folder,
    authority: Annotated[Path, typer.Argument(metavar="CA.PEM", help="The CA's certificate.")],
    as_json: AsJson = False,
) -> None:
    """Sign the heads of one more federation's log. Compare the fingerprint with its operator."""
    from ...core.node.identity.log.witness import Witness
    from ...core.node.identity.pki.certificates import (
        CERTIFICATE_BYTES_MAX,
        load_certificate,
        read_file,
    )
    from ...core.node.identity.pki.root_certificate import fingerprint_of

    content = read_file(authority, CERTIFICATE_BYTES_MAX)
    federation = Witness(folder).add(content)
    fingerprint = fingerprint_of(load_certificate(content))
    facts = {"federation": federation, "fingerprint": fingerprint}
    tell(facts, as_json, lambda: [f"{federation}  {fingerprint}"])


@app.command("show")
def show(folder: Folder, as_json: AsJson = False) -> None:
    """Show the federations and the last head of each that the witness signed."""
    from ...core.node.identity.log.witness import Witness

    opened = Witness(folder)
    heads = {
        name: None if head is None else {"size": head.size, "root": head.root.hex()}
        for name, head in opened.federations().items()
    }
    facts: dict[str, Any] = {"key": _name(opened.public), "federations": heads}
    tell(
        facts,
        as_json,
        lambda: [
            f"{name}  " + ("no head yet" if head is None else f"{head['size']}  {head['root']}")
            for name, head in heads.items()
        ],
    )


@app.command("run")
def run(
    folder: Folder,
    listen: Annotated[
        str, typer.Option("--listen", help="host:port for authorities, over gRPC without TLS.")
    ] = f"127.0.0.1:{WITNESS_PORT}",
) -> None:
    """Run a witness until it is interrupted.

    The port needs no TLS: heads are public, and all that counts is signed. Only authorities need to
    reach it.
    """
    import asyncio

    from ...core.node.identity.log.witness import Witness
    from ..fleet.daemons import say_ready
    from ..fleet.logs import setup
    from ..settings import LogConfig

    setup(LogConfig())
    asyncio.run(_serve(Witness(folder), listen, say_ready))


async def _serve(witness: Any, listen: str, ready: Any) -> None:
    import asyncio
    import signal

    from ...core.node.net.grpc.grpc_witness import WitnessService, serve_witness

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    server, port = await serve_witness(listen, WitnessService(witness))
    try:
        ready({"witness": _name(witness.public), "port": port})
        await stop.wait()
    finally:
        await server.stop(1.0)


def _name(public: bytes) -> str:
    from .terms_commands import root_name

    return root_name(public)
