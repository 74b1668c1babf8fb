"""`delian authority`: run the process that has the CA's key, or move the key to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import AsJson, ConfigFile, Settings
from ..output import tell

if TYPE_CHECKING:
    from ...cloud.authority.authority_settings import AuthoritySettings
    from ...core.node.driver.traces import Spans
    from ..settings import AuthorityConfig, Config

app = typer.Typer(help="Run an authority: the CA apart from the coordinator.", no_args_is_help=True)


@app.callback()
def authority() -> None:
    """Run an authority: it enrols nodes, renews their certificates and revokes names."""


@app.command("run")
def run(
    config: ConfigFile = None,
    settings: Settings = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="Its folder. (default: authority.state)")
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", help="host:port for the coordinator and admins.")
    ] = None,
    enrolment: Annotated[
        str | None, typer.Option("--enrolment", help="host:port for nodes with a token.")
    ] = None,
) -> None:
    """Run an authority until it is interrupted.

    It has the CA's folder of `delian ca init`, on a machine that the coordinator's operator does
    not run. While it is away no node joins, no certificate is renewed and no name is revoked;
    rounds go on. One line of JSON on standard output says where it serves.
    """
    from ...cloud.authority.daemon import serve
    from ..fleet import daemons

    flags = {
        "authority.state": state,
        "authority.listen": listen,
        "authority.enrolment": enrolment,
    }

    async def served(chosen: Config, ready: daemons.Ready, spans: Spans | None) -> None:
        await serve(authority_settings(chosen.authority), ready=ready)

    daemons.run("delian-authority", served, config, flags, settings)


@app.command("migrate")
def migrate(
    coordinator: Annotated[
        Path, typer.Argument(metavar="COORDINATOR_STATE", help="The coordinator's state folder.")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="AUTHORITY_STATE", help="The authority's state folder.")
    ],
    ca: Annotated[
        Path | None, typer.Option("--ca", help="The CA's folder. (default: ca in the state)")
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option(
            "--identity", help="The coordinator's identity. (default: identity in the state)"
        ),
    ] = None,
    store: Annotated[
        str,
        typer.Option("--store", help="The coordinator's database. (default: SQLite in the state)"),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Move a coordinator's CA to an authority: the key, its files, tokens, numbers and nodes.

    Stop the coordinator before. The copy is verified and opened before the key is removed here.
    Interrupted anywhere, the same command goes on. Then move AUTHORITY_STATE to the authority's
    machine, and start the coordinator with cloud.authority. Backups of the coordinator still have
    the key: destroy them, or make a new federation.
    """
    import asyncio

    from ...cloud.authority.migration import Migration

    move = Migration(coordinator, target, ca=ca, identity=identity, store=store)
    facts = move.facts(asyncio.run(move.run()))
    lines = [
        f"{facts['to']} holds the CA of the federation {facts['federation']}",
        f"fingerprint  {facts['fingerprint']}",
        f"nodes        {facts['nodes']}",
        f"next         delian authority run --state {target}",
        "then         delian cloud run --authority HOST:PORT",
    ]
    tell(facts, as_json, lambda: lines)


def authority_settings(config: AuthorityConfig) -> AuthoritySettings:
    """The daemon's settings of the configuration's section."""
    from ...cloud.authority.authority_settings import AuthoritySettings

    return AuthoritySettings(
        folder=config.state.absolute(),
        ca=config.ca,
        store=config.store,
        superior=config.superior,
        listen=config.listen,
        public=config.public,
        enrolment=config.enrolment,
        public_enrolment=config.public_enrolment,
        addresses=config.addresses,
        health=config.health,
        witnesses=config.witnesses,
        certificate_days=config.certificate_days,
        enrolments_per_minute=config.enrolments_per_minute,
        token_uses=config.token_uses,
    )
