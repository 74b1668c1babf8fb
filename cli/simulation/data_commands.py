"""`delian data`: look at data before anything is trained on it, and pack it into one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..output import echo
from . import packed_commands, tokenizer_commands
from .short_options import Target, Window, short_forms

app = typer.Typer(help="Look at data, and pack it.", no_args_is_help=True)
app.command("pack")(packed_commands.pack)
app.command("check")(packed_commands.check)
app.command("tokenizer")(tokenizer_commands.tokenizer)


@app.callback()
def data() -> None:
    """Look at data, and pack it."""


@app.command("show")
def show(
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO|DATA",
            help="A scenario's file or bundled name, or your data, as after --data.",
            show_default="digits",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key; may be repeated."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="PATH", help="Your data; without SCENARIO one fitted to it."
        ),
    ] = None,
    target: Target = None,
    window: Window = None,
    devices: Annotated[
        int | None, typer.Option("--devices", min=1, help="Devices (fleet.devices).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="PAGE", help="Also write a page with a plot.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what was understood of data, what is wrong with it, and what lies on which device.

    Of a table: each column's kind, values and use. Findings: columns that give the label away,
    duplicates, imbalance, broken images and others. The same seed deals the same examples as
    `delian simulate` does.
    """
    packed = packed_commands.facts_of(file or (Path(scenario) if scenario else None))
    if packed is not None and not packed_commands.fits_memory(packed):
        packed_commands.show_facts(packed, as_json)
        return
    from ...simulations.inspection import inspection_page
    from ...simulations.inspection.inspected_data import inspected
    from ...simulations.report.report import write_whole
    from ...simulations.scenario.datasets import named_data, scenario_for
    from ...simulations.scenario.own_data import kind_of
    from ...simulations.scenario.scenario_file import override

    short = {"data.target": target, "data.window": window, "fleet.devices": devices}
    settings = [*short_forms(short), *(settings or [])]
    scenario, file = named_data(scenario, file)
    if file is not None and file.is_dir() and kind_of(file) == "images":
        settings = ["data.broken=skip", *settings]  # they are listed among the findings
    fitted = scenario_for(scenario, file, settings)
    chosen = override(fitted, settings)
    known = inspected(chosen, file)
    if out is not None:
        write_whole(out, inspection_page.page(known, chosen.name))
    if as_json:
        echo(json.dumps(known if packed is None else {**known, "packed": packed}))
        return
    if packed is not None:
        packed_commands.show_facts(packed, False)
    for line in inspection_page.lines(known):
        echo(line)
    if out is not None:
        echo(f"\npage  {out}")
