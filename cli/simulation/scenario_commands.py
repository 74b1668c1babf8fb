"""`delian scenario`: which scenarios there are, what is in them, and which keys they may have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from ..options import AsJson
from ..output import echo, table, tell

app = typer.Typer(help="List and show scenarios and their keys.", no_args_is_help=True)


@app.command("list")
def list_scenarios(as_json: AsJson = False) -> None:
    """List the scenarios that come with Delian."""
    from ...simulations.scenario.scenario_file import DEFAULT, bundled, load

    found = []
    for name in bundled():
        loaded = load(name)
        first = loaded.description.strip().partition(". ")[0].rstrip(".")
        needs = hasattr(loaded.data, "path")
        found.append({"name": name, "what": first, "default": name == DEFAULT, "needs_data": needs})

    def lines() -> list[str]:
        marks = {"default": "  (default)", "needs_data": "  (needs --data)"}
        return [
            f"{each['name']:<15} {each['what']}."
            + "".join(text for mark, text in marks.items() if each[mark])
            for each in found
        ]

    tell(found, as_json, lines)


@app.command("show")
def show(
    scenario: Annotated[str, typer.Argument(help="A bundled scenario's name, or a file.")],
    as_json: AsJson = False,
) -> None:
    """Print a scenario's file, checked first: a start for your own.

    With --json the scenario with all its keys, as a report has it.
    """
    from ...simulations.scenario.scenario_file import find, load

    loaded = load(scenario)
    if as_json:
        tell(loaded.to_json(), as_json, list)
        return
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
    as_json: AsJson = False,
) -> None:
    """Show what an update goes through: a scenario's composition, stage by stage."""
    from ...simulations.scenario.composition import chain_of
    from ...simulations.scenario.scenario_file import load, override

    made = chain_of(override(load(scenario), settings or []), masked)
    rows = list(made.rows())
    names = ("stage", "runs", "takes", "gives")
    facts = {
        "chain": str(made),
        "stages": [dict(zip(names, row, strict=True)) for row in rows],
    }
    head = [name.upper() for name in names]
    tell(facts, as_json, lambda: [*table(head, rows), "", f'chain = "{made}"'])


@app.command("keys")
def keys(
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="As the tables of docs/scenarios.md.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List every key that a scenario may have, with its range, default and meaning."""
    from ...simulations.scenario.scenario_keys import markdown, reference

    if as_markdown:
        echo(markdown())
        return
    found = [
        {
            "table": heading,
            "key": ".".join(key.path),
            "allowed": key.allowed,
            "default": key.default or None,
            "meaning": key.meaning,
        }
        for heading, _, entries in reference()
        for key in entries
    ]

    def lines() -> Iterator[str]:
        for heading, meaning, entries in reference():
            yield from ("", f"{heading}  {meaning}") if heading else (meaning,)
            for key in entries:
                default = f" (default {key.default})" if key.default else " (must be given)"
                yield f"  {key.path[-1]:<24} {key.allowed}{default}"
                yield f"  {'':<24} {key.meaning}"

    tell(found, as_json, lambda: list(lines()))
