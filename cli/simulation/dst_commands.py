"""`delian dst`: deterministic simulation testing of the protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def dst(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds to run.")] = 500,
    first: Annotated[int, typer.Option("--first", min=0, help="The first of them.")] = 0,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Run this seed only: see a failure again.")
    ] = None,
    devices: Annotated[int, typer.Option("--devices", min=2, max=10_000)] = 64,
    edges: Annotated[
        int, typer.Option("--edges", min=1, max=64, help="The coordinator's own is one of them.")
    ] = 3,
    hostile: Annotated[
        bool,
        typer.Option(
            "--hostile",
            help="In each seed some of coordinator, edges, bundle and devices are hostile"
            " (otherwise in one of eight).",
        ),
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            help="Keep the report in FILE, and run only the seeds that it does not have yet."
            " The run goes on after a failure.",
            metavar="FILE",
            dir_okay=False,
        ),
    ] = None,
    large: Annotated[
        bool,
        typer.Option(
            "--large",
            help="Instead, one federation of 100,000 devices in virtual time, without faults.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Test the protocol in a simulated world that fails.

    Each seed runs the real machines and journals of a whole federation through faults that it
    draws: lost, repeated, damaged and retained messages, partitions, crashes at any moment, torn
    and full disks, wrong clocks.

    In some seeds parties attack, alone or together. A table shows how often honest devices found
    each attack out, by reason, and how often nothing came of it.

    A failure says what does not hold and how to see it again, and exits 1.
    """
    from ...simulations.dst.seed_report import Asked, main, main_large

    if large:
        raise typer.Exit(main_large(as_json))
    chosen = range(first, first + seeds) if seed is None else range(seed, seed + 1)
    raise typer.Exit(main(Asked(chosen, devices, edges, hostile, resume), as_json))
