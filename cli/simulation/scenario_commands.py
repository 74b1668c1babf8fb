"""`delian scenario`: which scenarios there are, what is in them, and which keys they may have."""

from __future__ import annotations

from typing import Annotated

import typer

from ..output import echo

app = typer.Typer(help="List and show scenarios and their keys.", no_args_is_help=True)


@app.command("list")
def list_scenarios() -> None:
    """List the scenarios that come with Delian."""
    from ...simulations.scenario.scenario_file import DEFAULT, bundled, load

    for name in bundled():
        loaded = load(name)
        first = loaded.description.strip().partition(". ")[0].rstrip(".")
        needs = "  (needs --data)" if hasattr(loaded.data, "path") else ""
        mark = "  (default)" if name == DEFAULT else ""
        echo(f"{name:<15} {first}.{mark}{needs}")


@app.command("show")
def show(
    scenario: Annotated[str, typer.Argument(help="A bundled scenario's name, or a file.")],
) -> None:
    """Print a scenario's file, checked first: a start for your own."""
    from ...simulations.scenario.scenario_file import find, load

    load(scenario)
    echo(find(scenario).read_text(encoding="utf-8"), nl=False)


@app.command("chain")
def chain(
    scenario: Annotated[str, typer.Argument(help="A bundled scenario's name, or a file.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the scenario."),
    ] = None,
    masked: Annotated[
        bool, typer.Option("--masked", help="As by daemons, where the scenario does not say.")
    ] = False,
) -> None:
    """Show what an update goes through: a scenario's composition, stage by stage."""
    from ...simulations.scenario.composition import chain_of
    from ...simulations.scenario.scenario_file import load, override

    made = chain_of(override(load(scenario), settings or []), masked)
    lines = [("STAGE", "RUNS", "TAKES", "GIVES"), *made.rows()]
    widths = [max(len(line[i]) for line in lines) for i in range(3)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        echo("  ".join([*cells, line[3]]))
    echo(f'\nchain = "{made}"')


@app.command("keys")
def keys(
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="As the tables of docs/scenarios.md.")
    ] = False,
) -> None:
    """List every key that a scenario may have, with its range, default and meaning."""
    from ...simulations.scenario.scenario_keys import markdown, reference

    if as_markdown:
        echo(markdown())
        return
    for heading, meaning, entries in reference():
        echo(f"\n{heading}  {meaning}" if heading else meaning)
        for key in entries:
            default = f" (default {key.default})" if key.default else " (must be given)"
            echo(f"  {key.path[-1]:<24} {key.allowed}{default}")
            echo(f"  {'':<24} {key.meaning}")
