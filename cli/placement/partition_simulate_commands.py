"""`delian partition simulate`: a cut model on links that change, under a virtual clock."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import AsJson
from ..output import echo, table

if TYPE_CHECKING:
    from collections.abc import Mapping

OUT_DEFAULT = "delian-runs"


def simulate(
    scenario: Annotated[
        str, typer.Argument(help="A scenario file, or a bundled one's name.")
    ] = "subgraphs-mobile",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a key of the scenario; may be repeated."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Decides everything random: same seed, same result."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the report goes (absent: delian-runs/NAME-SEED)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a cut model on devices, edges and a cloud whose links change over time.

    The machines are those of real nodes. The report has the cut over time, its switches, and
    latencies compared with those of devices alone and of the cloud alone.
    """
    from ...simulations.placement.cut_page import page
    from ...simulations.placement.cut_report import run_scenario
    from ...simulations.placement.cut_scenario import load
    from ...simulations.report.report import (
        JSON_NAME,
        PAGE_NAME,
        claim_folder,
        to_json,
        write_whole,
    )

    changes = list(settings or [])
    if seed is not None:
        changes.append(f"seed={seed}")
    chosen = load(scenario, changes)
    folder = out or Path(OUT_DEFAULT) / f"{chosen.name}-{chosen.seed}"
    claim_folder(folder)
    terminal = sys.stderr.isatty()

    def say(text: str) -> None:
        if terminal:
            echo(text, err=True)

    report = run_scenario(chosen, say)
    write_whole(folder / JSON_NAME, to_json(report))
    write_whole(folder / PAGE_NAME, page(report))
    if as_json:
        sys.stdout.write(to_json(report))
        return
    for line in _lines(report):
        echo(line)
    echo(str(folder / PAGE_NAME))


def _lines(report: Mapping[str, Any]) -> list[str]:
    """What the terminal shows of a report."""
    from ...simulations.placement.cut_page import ms

    head = ("", "median", "95%", "99%", "refused", "fallback", "switches")
    rows = []
    for arm in report["arms"]:
        f = arm["groups"]["all"]
        rows.append(
            (
                arm["name"],
                ms(f["p50_ms"]),
                ms(f["p95_ms"]),
                ms(f["p99_ms"]),
                str(f["refused"]),
                str(sum(f["fallback"].values())),
                str(arm["switches"]),
            )
        )
    return table(head, rows)
