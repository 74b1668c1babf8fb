"""`delian compare`, `delian sweep`, `delian study`: many runs, and what they say together."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...core.common.errors import DelianError
from ..output import echo
from .short_options import Devices, LearningRate, Rounds, settings_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...simulations.runs.study import Executor, Trial

STUDIES = Path("delian-studies")
TRIALS = "trials"
SEEDS_MAX = 1000

Seeds = Annotated[
    int,
    typer.Option("--seeds", min=1, max=SEEDS_MAX, metavar="N", help="Runs of each: seeds 1 to N."),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, max=1024, metavar="N", help="At once. (default: all cores)"),
]
Data = Annotated[
    Path | None, typer.Option("--data", metavar="FILE", help="Stands in for the data file.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key everywhere; may be repeated."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Results; given again, it goes on from there."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]


class Where(StrEnum):
    """What runs the trials."""

    processes = "processes"
    ray = "ray"


Runner = Annotated[
    Where,
    typer.Option("--executor", help="processes: of this machine. ray: a Ray cluster's workers."),
]


def compare(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO...",
            help="Files or bundled names; NAME:ALGORITHM for another algorithm.",
        ),
    ],
    seeds: Seeds = 5,
    target: Annotated[
        float | None,
        typer.Option(min=0.0, help="Also say when this personal accuracy, or error, was reached."),
    ] = None,
    rounds: Rounds = None,
    devices: Devices = None,
    learning_rate: LearningRate = None,
    changes: Changes = None,
    data: Data = None,
    workers: Workers = None,
    executor: Runner = Where.processes,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare scenarios over several seeds: one table and one figure, with confidence intervals.

    Each run is kept in the folder as soon as it is done, and found there when the command is given
    again. Differences are taken seed by seed.
    """
    from ...simulations.runs import comparison

    settings = settings_of(rounds, devices, learning_rate, changes)
    labelled: dict[str, dict[int, Trial]] = {}
    for named in scenarios:
        label, base = _base(named, settings, data)
        if label in labelled:
            raise DelianError(f"`{named}` is given twice", "name every scenario once")
        labelled[label] = {seed: _seeded(base, seed) for seed in range(1, seeds + 1)}
    folder = out or STUDIES / "compare"
    every = [trial for by_seed in labelled.values() for trial in by_seed.values()]
    results = _run(every, folder, executor, workers)
    compared = comparison.compare(comparison.entries(labelled, results), target)
    name = _file_name("comparison", out, (every, target))
    page = _keep(folder, name, compared, comparison.page(compared, " · ".join(labelled)))
    if as_json:
        echo(json.dumps(compared))
        return
    _table(comparison.table(compared))
    if by_steps := comparison.steps_table(compared):
        echo()
        _table(by_steps)
    echo(f"\nreport  {page}")


def sweep(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A file or a bundled name.")],
    axes: Annotated[list[str], typer.Argument(metavar="KEY=A,B,...", help="Keys and values.")],
    seeds: Seeds = 1,
    by: Annotated[
        str,
        typer.Option(help="What is sought: personal, shared, worst tenth, never trained, harmed."),
    ] = "personal",
    halving: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            metavar="N",
            help="Stop all but one in N runs early, repeatedly. [1: none]",
        ),
    ] = 1,
    rounds: Rounds = None,
    devices: Devices = None,
    learning_rate: LearningRate = None,
    changes: Changes = None,
    data: Data = None,
    workers: Workers = None,
    executor: Runner = Where.processes,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Try every combination of some keys' values and rank them.

    With --halving all run for few rounds first and the best go on for more. A sweep that was
    stopped goes on where it was when the command is given again.
    """
    from ...simulations.report.measures import measure_of
    from ...simulations.report.report import make_folder, write_whole
    from ...simulations.runs import comparison
    from ...simulations.runs import sweep as sweeps

    if by not in comparison.FIGURES:
        raise DelianError(f"there is no figure `{by}`", f"one of {', '.join(comparison.FIGURES)}")
    _, base = _base(scenario, settings_of(rounds, devices, learning_rate, changes), data)
    folder = out or STUDIES / "sweep"
    make_folder(folder)
    progress = _Progress()
    rungs = sweeps.sweep(
        base,
        [sweeps.Axis.parse(axis) for axis in axes],
        range(1, seeds + 1),
        folder / TRIALS,
        _executor(executor, workers),
        by,
        halving,
        progress.rung,
        progress.done,
    )
    progress.end()
    found = [
        {
            "rounds": rung.rounds,
            "ranking": [
                {"settings": list(c.settings), "mean": e.mean, "margin": e.margin}
                for c, e in rung.ranking
            ],
        }
        for rung in rungs
    ]
    content = {"format": 1, "scenario": scenario, "by": by, "rungs": found}
    path = folder / f"{_file_name('sweep', out, (base, axes, seeds, by, halving))}.json"
    write_whole(path, json.dumps(content, indent=1) + "\n")
    if as_json:
        echo(json.dumps(content))
        return
    plain = measure_of(base.scenario().to_json()).error and by != "harmed"
    lines = [["", *(axis.partition("=")[0] for axis in axes), by, "rounds"]]
    place = 0
    shown: set[tuple[str, ...]] = set()
    for rung in reversed(rungs):
        for candidate, measured in rung.ranking:
            if candidate.settings in shown:
                continue
            shown.add(candidate.settings)
            place += 1
            values = [setting.partition("=")[2] for setting in candidate.settings]
            value = comparison.figure(asdict(measured), plain)
            lines.append([str(place), *values, value, str(rung.rounds)])
    _table(lines)
    echo(f"\nresults  {path}")


def study(
    source: Annotated[
        str, typer.Argument(metavar="STUDY", help="A study file, or a bundled study's name.")
    ],
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=SEEDS_MAX, metavar="N", help="Runs of each. (default: the file's)"),
    ] = None,
    rounds: Rounds = None,
    devices: Devices = None,
    changes: Changes = None,
    data: Data = None,
    workers: Workers = None,
    executor: Runner = Where.processes,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Judge methods by quality under a budget, cost to a target, and robustness.

    A study file names a scenario, methods, budgets of time, bytes and energy, targets, and
    disturbances. A study that was stopped goes on where it was when the command is given again.
    """
    from ...simulations.runs import protocols
    from ...simulations.runs.protocols_page import page
    from ...simulations.runs.study_file import load_study

    asked = load_study(source)
    settings = settings_of(rounds, devices, None, changes)
    asked = asked.model_copy(update={"settings": (*asked.settings, *settings)})
    trials = protocols.trials_of(asked, seeds or asked.seeds, str(data) if data else None)
    folder = out or STUDIES / "study"
    results = _run([*trials.values()], folder, executor, workers)
    found = protocols.judged(asked, {named: results[trial] for named, trial in trials.items()})
    kept = _keep(
        folder, _file_name(asked.name, out, ([*trials.values()], asked)), found, page(found)
    )
    if as_json:
        echo(json.dumps(found))
        return
    for lines in (
        protocols.budget_table(found),
        protocols.target_table(found),
        protocols.robustness_table(found),
    ):
        if lines:
            _table(lines)
            echo()
    echo(f"report  {kept}")


def _base(named: str, changes: Sequence[str], data: Path | None) -> tuple[str, Trial]:
    """SCENARIO or SCENARIO:ALGORITHM as a label and a trial without a seed."""
    from ...simulations.runs.study import Trial

    left, _, kind = named.rpartition(".py:")
    source, colon, algorithm = (f"{left}.py" if left else named).rpartition(":")
    algorithm += f":{kind}" if left else ""
    if not colon or Path(named).exists():
        source, algorithm = named, ""
    trial = Trial(source, algorithm or None, tuple(changes), str(data) if data else None)
    scenario = trial.scenario()  # refuses what makes no sense before anything runs
    return f"{scenario.name} {scenario.algorithm.label}", trial


def _seeded(base: Trial, seed: int) -> Trial:
    from dataclasses import replace

    return replace(base, settings=(*base.settings, f"seed={seed}"))


def _executor(where: Where, workers: int | None) -> Executor:
    from ...core.common.processors import cores
    from ...simulations.runs.study import EXECUTORS

    return EXECUTORS[where.value](workers or cores())


def _run(
    trials: Sequence[Trial], folder: Path, executor: Where, workers: int | None
) -> dict[Trial, dict[str, object]]:
    from ...simulations.runs.study import run

    progress = _Progress()
    results = run(trials, folder / TRIALS, _executor(executor, workers), progress.done)
    progress.end()
    return results


class _Progress:
    """One line on standard error that says how far it is.

    Rewritten in a terminal, else none but the last.
    """

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._prefix = ""
        self._last = ""

    def rung(self, rounds: int, candidates: int) -> None:
        from ...simulations.report.svg import count

        self.end()
        self._prefix = f"{count(candidates, 'candidate')}, {count(rounds, 'round')}: "

    def done(self, trial: Trial, done: int, of: int) -> None:
        from ...simulations.runs.study import shown

        self._last = f"{self._prefix}{done} of {of} runs"
        if self._console.is_terminal:
            self._console.print(
                f"{self._last}  {shown(trial)}"[: self._console.width - 1], end="\r"
            )

    def end(self) -> None:
        if self._last:
            clear = " " * (self._console.width - 1 - len(self._last))
            self._console.print(self._last + (clear if self._console.is_terminal else ""))
        self._last = ""


def _file_name(name: str, out: Path | None, asked: object) -> str:
    """What a study's result is called.

    In the folder that all studies share, which shares their runs, each has a name of its own and is
    not written over by the next.
    """
    return name if out else f"{name}-{hashlib.sha256(repr(asked).encode()).hexdigest()[:8]}"


def _keep(folder: Path, name: str, content: object, page: str) -> Path:
    from ...simulations.report.report import write_whole

    write_whole(folder / f"{name}.json", json.dumps(content, indent=1) + "\n")
    write_whole(folder / f"{name}.html", page)
    return folder / f"{name}.html"


def _table(lines: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need to be, the first to the left."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for first, *others in lines:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        echo("  ".join(cells).rstrip())
