"""Options that many commands take, under one name and one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: Edges of a federation, at most (`core.protocol.ports.EDGES_MAX`).
EDGES_MAX = 4096


def edge_number(text: str | int) -> int:
    """An edge by its number, or by its name as everywhere else: edge-3.

    Raises typer.BadParameter.
    """
    number = str(text).strip().lower().removeprefix("edge-")
    if not number.isdecimal() or int(number) > EDGES_MAX:
        raise typer.BadParameter(f"`{text}` is no edge: write edge-3, or 3 (at most {EDGES_MAX})")
    return int(number)


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="Configuration file. (default: delian.toml)")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set one key.")
]

# Of commands that ask a home for what this device does not run itself.
Homes = Annotated[
    list[str] | None,
    typer.Option("--home", help="host:port, or edge-3@host:port; may be given again."),
]
IdentityFolder = Annotated[
    Path | None, typer.Option("--identity", help="What `delian join` wrote.")
]
DeviceNumber = Annotated[
    int | None, typer.Option("--number", help="Which device this is; with --insecure.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS; on this machine alone.")]
Due = Annotated[
    float, typer.Option("--due", min=0.001, max=86_400, help="Seconds until an answer is due.")
]
ResultsFile = Annotated[
    Path | None, typer.Option("--out", help="Write the results to this .npy file.")
]
