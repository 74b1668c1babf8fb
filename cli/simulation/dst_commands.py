"""`delian dst`: deterministic simulation testing of the protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def dst(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds to run.")] = 500,
    first: Annotated[int, typer.Option("--first", min=0, help="The first seed.")] = 0,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="Run only this seed, to reproduce a failure."),
    ] = None,
    devices: Annotated[
        int, typer.Option("--devices", min=2, max=10_000, help="Devices in each federation.")
    ] = 64,
    edges: Annotated[
        int, typer.Option("--edges", min=1, max=64, help="Edges, the coordinator's own included.")
    ] = 3,
    hostile: Annotated[
        bool,
        typer.Option(
            "--hostile",
            help="Make the coordinator, edges, the bundle or devices hostile in every seed"
            " (default: in one of eight).",
        ),
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            help="Keep the report in FILE, run only the seeds that are not in it, and do not stop"
            " at a failure.",
            metavar="FILE",
            dir_okay=False,
        ),
    ] = None,
    large: Annotated[
        bool,
        typer.Option(
            "--large",
            help="Run one federation of 100,000 devices without faults instead.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Test the protocol under simulated faults and attacks.

    Each seed runs the real state machines and journals of a whole federation with random faults:
    lost, repeated, damaged and retained messages, partitions, crashes at any moment, torn writes,
    full disks, wrong clocks.

    In some seeds parties attack, alone or together. A table shows how often honest devices detected
    each attack, by reason, and how often an attack had no effect.

    A failure prints the violated invariant and the command that reproduces it; the exit status is
    1.
    """
    from ...simulations.dst.seed_report import Asked, main, main_large

    if large:
        raise typer.Exit(main_large(as_json))
    chosen = range(first, first + seeds) if seed is None else range(seed, seed + 1)
    raise typer.Exit(main(Asked(chosen, devices, edges, hostile, resume), as_json))
