"""`delian simulate`: run a scenario on this machine and write its report."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from functools import partial
from json import loads as parse_json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..output import echo
from .interrupts import StopFlag, interruptible
from .kept_report_files import Asked, Keeper, no_others
from .listeners import Baselines, Mlflow, TensorBoard, Wandb, absolute, listeners
from .short_options import LearningRate, Rounds, Target, Window, short_forms, torch_settings

if TYPE_CHECKING:
    from rich.console import Console

    from ...simulations.processes.processes import Shape
    from ...simulations.runs.result import SimulationResult
    from ...simulations.scenario.scenario import Scenario

DEFAULT_SCENARIO = "digits"
RUNS = Path("delian-runs")
BUNDLE_NAME = "model.bundle"
RUNS_PER_NAME_MAX = 10_000
GAVE_UP, INTERRUPTED = 1, 130
REPORT_BYTES_MAX = 1 << 30
NATIVE = "native"
THREADS_MAX = 1024


class Mode(StrEnum):
    """What a simulated federation is made of."""

    virtual = "virtual"
    processes = "processes"


def _backend(name: str) -> str:
    """A back end's name, which there is and whose package is installed."""
    from ...core.compiler.backends import check

    try:
        check(name)
    except DelianError as error:
        raise typer.BadParameter(f"{error.message} ({error.hint})") from None
    return name


def simulate(
    named: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO|DATA",
            help="A scenario's file or bundled name; or your data, as with --data.",
            show_default=DEFAULT_SCENARIO,
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option("--scenario", "-s", metavar="FILE", help="The scenario, as an option."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a key of the scenario; may be repeated."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Your data: a table, .npz, a folder of images or texts, or what a scenario reads.",
        ),
    ] = None,
    target: Target = None,
    window: Window = None,
    rounds: Rounds = None,
    learning_rate: LearningRate = None,
    torch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[:CLASS]", help="Train this PyTorch module in place of the model."
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE:CLASS", help="The loss of a PyTorch module: SmoothL1Loss, or yours."
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Another algorithm: fedavg, scaffold, ditto, maml..."),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Run this algorithm as well, for one report on both."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Seed of all random numbers: same seed, same result."
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, max=THREADS_MAX, metavar="N", help="How many threads train (absent: all cores)."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the report goes (absent: delian-runs/SCENARIO-ALGORITHM-SEED).",
        ),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write each round as a line of JSON when it ends."),
    ] = None,
    baselines: Baselines = False,
    tensorboard: TensorBoard = None,
    mlflow: Mlflow = None,
    wandb: Wandb = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print report.json, and nothing else, on stdout.")
    ] = False,
    backend: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            callback=_backend,
            help="native: compiled C. reference: NumPy, slow, needs no compiler."
            " torch:cpu, torch:cuda, torch:npu: PyTorch.",
        ),
    ] = NATIVE,
    mode: Annotated[
        Mode,
        typer.Option(
            help="virtual: one process, virtual time. processes: real daemons, real time."
        ),
    ] = Mode.virtual,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Devices: --set fleet.devices=N. With processes at most 64 (absent: 6).",
        ),
    ] = None,
    edges: Annotated[
        int | None,
        typer.Option(min=1, max=64, metavar="N", help="With processes: edges (absent: 2)."),
    ] = None,
    mqtt: Annotated[
        int | None,
        typer.Option(
            min=0, max=64, metavar="N", help="With processes: devices on MQTT (absent: half)."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="With processes: the database (absent: SQLite)."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With processes: keep logs and state in this folder."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Continue the run in this folder that was stopped or killed."
        ),
    ] = None,
) -> None:
    """Train a federation of simulated devices and write a report.

    Without options: sixty devices behind three edges learn handwritten digits in a few seconds.
    The result is a page, report.html, and its figures, report.json.

    Ctrl-C stops the run and writes the report so far. A run of the virtual mode that is killed
    leaves its report and its model, at most about a minute old, in DIR/unfinished. --resume DIR
    continues a run that was stopped or killed from some seconds before; the results are those of an
    uninterrupted run.

    With --mode processes a coordinator, edges and devices run as daemons on this machine, connected
    by gRPC and MQTT over loopback with certificates of their own, and stop at the end. The scenario
    is reduced to that many devices; the changed keys are printed and are in the report.

    --torch model.py:Net trains a PyTorch module as it stands: `model.name = "torch"` in a scenario;
    --loss is its `model.loss`.

    With DELIAN_DEBUG=1 in the environment models and algorithms run as plain Python, for print and
    pdb, and a NaN is reported at the line that makes it.
    """
    from ...core.compiler import debugging
    from ...simulations.report.report import build_report, to_json

    if resume is not None:
        no_others(
            {
                "SCENARIO": named,
                "--scenario": scenario,
                "--set": settings,
                "--data": data,
                "--target": target is not None,
                "--window": window is not None,
                "--rounds": rounds is not None,
                "--learning-rate": learning_rate is not None,
                "--torch": torch,
                "--loss": loss,
                "--algorithm": algorithm,
                "--compare": compare,
                "--seed": seed is not None,
                "--out": out,
                "--backend": backend != NATIVE,
                "--mode processes": mode is Mode.processes,
                "--devices": devices,
                "--edges": edges,
                "--mqtt": mqtt is not None,
                "--store": store,
                "--keep": keep,
            }
        )
        resume, events = resume.absolute(), events and events.absolute()
        tensorboard, mlflow = absolute(tensorboard), absolute(mlflow)
        asked = Asked.read(resume)
        asked.go_there()
        scenario, settings, algorithm = asked.source, asked.settings, asked.algorithm
        compare, seed, backend = asked.compare, asked.seed, _backend(asked.backend)
        data = Path(asked.data) if asked.data is not None else None
    processes = mode is Mode.processes
    shape = _shape(mode, devices if processes else None, edges, mqtt, store, keep)
    if shape is not None and backend.startswith("torch:"):
        raise DelianError(
            f"the devices of --mode processes are as real ones are: they have no {backend}",
            "use --backend native, or --mode virtual",
        )
    if shape is not None and baselines:
        raise DelianError("--baselines is for the virtual mode", "leave out --mode processes")
    if shape is not None and debugging.on:
        raise DelianError(
            "the daemons of --mode processes have compiled programs, and no Python to debug",
            "use --mode virtual, or unset DELIAN_DEBUG",
        )
    if resume is not None and debugging.on:
        raise DelianError("of a run that is debugged nothing is kept", "unset DELIAN_DEBUG")
    if named and scenario:
        raise DelianError(f"two scenarios: {named} and {scenario}", "give one of them")
    source, data = _source(named or scenario, data)
    short = {
        "data.target": target,
        "data.window": window,
        "rounds": rounds,
        "algorithm.learning_rate": learning_rate,
        "fleet.devices": None if processes else devices,
    }
    settings = [*torch_settings(torch, loss), *short_forms(short), *(settings or [])]
    chosen, other = _choose(source, settings, data, algorithm, compare, seed)
    folder = _claim(out, chosen) if resume is None else resume
    keeper = Keeper(folder, resume is not None)
    given = Asked.of(source, settings, data, algorithm, compare, seed, backend)
    keeper.command = given.command(mode.value, devices, edges, mqtt, baselines)
    if shape is None and not debugging.on:
        keeper.resumable(given)
    try:
        keeper.listener = recorded = listeners(events, tensorboard, mlflow, wandb)
        if resume is not None:
            _check_stopped(folder)
        result, second = _run(chosen, other, data, threads, backend, shape, keeper, baselines)
        report = build_report(result, second, keeper.command)
        page, refused = _keep(report, result, folder, again=resume is not None)
    except BaseException as fault:
        keeper.failed(fault)
        _release(folder)
        raise
    how_to_go_on = keeper.over(second or result)
    if json:
        sys.stdout.write(to_json(report))
        sys.stdout.flush()
    else:
        from .summary import summary_text

        echo(summary_text(report, page))
    for line in [*recorded.where(), how_to_go_on]:
        if line:
            echo(f"delian: {line}", err=True)
    if refused is not None:
        raise DelianError(f"{refused.message}; what it was for is in {page.parent}", refused.hint)
    for run in (result, second) if second is not None else (result,):
        if run.stopped_by == "failure":
            _tell_why(run)
            raise typer.Exit(GAVE_UP)
        if run.stopped_by:
            raise typer.Exit(INTERRUPTED)


def _shape(
    mode: Mode,
    devices: int | None,
    edges: int | None,
    mqtt: int | None,
    store: str | None,
    keep: Path | None,
) -> Shape | None:
    """The fleet of processes; None for the virtual mode, which takes none of these options."""
    given: dict[str, Any] = {"devices": devices, "edges": edges, "by_mqtt": mqtt, "store": store}
    given["folder"] = keep
    asked = {name: value for name, value in given.items() if value is not None}
    if mode is Mode.processes:
        from ...simulations.processes.processes import DEVICES, EDGES, Shape

        asked.setdefault("edges", min(EDGES, devices or DEVICES))
        return Shape(**asked)
    if asked:
        raise DelianError(
            "--edges, --mqtt, --store and --keep are for --mode processes",
            "in the virtual mode the scenario says it: --set fleet.edges=N",
        )
    return None


def _tell_why(run: SimulationResult) -> None:
    from ...simulations.runs.simulation_run import GAVE_UP_HINT

    done = sum(r.applied for r in run.rounds)
    echo(
        f"error: the run gave up after {done} of {run.scenario.rounds} rounds: {run.why}\n"
        f"  hint: {run.hint or GAVE_UP_HINT}",
        err=True,
    )


def _source(named: str | None, data: Path | None) -> tuple[str, Path | None]:
    """(the scenario, or nothing; the data): a data file may stand in the scenario's place."""
    from ...simulations.scenario.datasets import named_data

    source, data = named_data(named, data)
    return source or "", data


def _choose(
    source: str,
    settings: list[str],
    data: Path | None,
    algorithm: str | None,
    compare: str | None,
    seed: int | None,
) -> tuple[Scenario, Scenario | None]:
    """The scenario as the options change it, and the same under the algorithm to compare with.

    source: a file or a name; empty: the default scenario, or one that is fitted to the data.
    """
    from ...simulations.scenario.datasets import scenario_for
    from ...simulations.scenario.scenario_file import (
        override,
        with_algorithm,
    )

    asked = {"algorithm.name": algorithm, "seed": seed}
    given = [f"{key}={value}" for key, value in asked.items() if value is not None]
    on_data = scenario_for(source or None, data, settings)
    chosen = override(on_data, [*given, *settings])
    if compare is None:
        return chosen, None
    if compare == chosen.algorithm.label:
        raise DelianError(
            f"--compare {compare}: that is the algorithm itself", "name another algorithm"
        )
    return chosen, with_algorithm(chosen, compare)


def _run(
    chosen: Scenario,
    other: Scenario | None,
    data: Path | None,
    threads: int | None,
    backend: str,
    shape: Shape | None,
    keeper: Keeper,
    baselines: bool,
) -> tuple[SimulationResult, SimulationResult | None]:
    from bdb import BdbQuit

    from rich.console import Console

    from ...core.common.processors import cores
    from ...core.compiler import debugging
    from ...core.learning.cohort_program import SIZE_DEFAULT, gathers

    # Where one debugs, the terminal is for print and pdb, and no view is drawn over it.
    console = Console(stderr=True, highlight=False, force_terminal=False if debugging.on else None)
    if debugging.on:
        tell_debugging()
    count = threads or (SIZE_DEFAULT if gathers(backend) else cores())
    with interruptible() as asked_to_stop:
        one = partial(
            _run_one,
            data=data,
            threads=count,
            backend=backend,
            console=console,
            asked_to_stop=asked_to_stop,
            shape=shape,
            keeper=keeper,
            baselines=baselines,
        )
        try:
            result = one(chosen)
            if other is None or result.stopped_by:
                return result, None
            keeper.first_is(result)
            return result, one(other, second=True)
        except BdbQuit:
            raise KeyboardInterrupt from None


def tell_debugging() -> None:
    """Says how a run differs that is debugged."""
    echo(
        "delian: debugging: models and algorithms run as plain Python, one device at a time, and"
        " take many times as long",
        err=True,
    )


def _run_one(
    scenario: Scenario,
    *,
    data: Path | None,
    threads: int,
    backend: str,
    console: Console,
    asked_to_stop: StopFlag,
    shape: Shape | None,
    keeper: Keeper,
    baselines: bool,
    second: bool = False,
) -> SimulationResult:
    """One run. second: of a comparison."""
    from ...simulations.runs.progress import Progress

    if shape is not None:
        from ...simulations.processes.processes import fitted, fitting, simulate_processes

        _tell_fitting(fitting(scenario, shape))
        with Progress(console, fitted(scenario, shape)) as progress:
            return simulate_processes(
                scenario,
                shape,
                data_path=data,
                threads=threads,
                backend=backend,
                on_event=keeper.beside(progress),
                stop=asked_to_stop,
            )
    from ...simulations.runs.simulate import simulate as simulate_scenario

    with Progress(console, scenario) as progress:
        return simulate_scenario(
            scenario,
            data_path=data,
            threads=threads,
            backend=backend,
            on_event=keeper.beside(progress),
            stop=asked_to_stop,
            resume=keeper.place(second),
            baselines=baselines,
            forget=False,  # before there is a report nothing is given up that could make it
        )


def _tell_fitting(changes: Mapping[str, tuple[Any, Any]]) -> None:
    """Says how a scenario differs that real daemons run."""
    from ...simulations.report.page_parts import value

    told = ", ".join(f"{key} {value(a)} -> {value(b)}" for key, (a, b) in changes.items())
    if told:
        echo(f"delian: fitted to the daemons: {told}", err=True)


def _claim(out: Path | None, scenario: Scenario) -> Path:
    """The report's folder, made: the one asked for, or the first free one of the usual name."""
    from ...simulations.report.report import claim_folder

    if out is None:
        return _free_folder(f"{scenario.name}-{scenario.algorithm.label}-{scenario.seed}")
    claim_folder(out)
    return out


def _free_folder(name: str) -> Path:
    from ...simulations.report.report import make_folder

    make_folder(RUNS)
    for i in range(1, RUNS_PER_NAME_MAX):
        folder = RUNS / (name if i == 1 else f"{name}-{i}")
        try:
            folder.mkdir()  # its creator holds it: runs may begin at the same moment
        except FileExistsError:
            continue
        except OSError as error:
            raise DelianError(
                f"cannot make the folder {folder}: {error.strerror}",
                "choose another with --out DIR",
            ) from None
        return folder
    raise DelianError(f"{RUNS} has {RUNS_PER_NAME_MAX} runs named {name}", "delete some of them")


def _check_stopped(folder: Path) -> None:
    """Raises DelianError for a folder with the report of another run than one that was stopped."""
    from ...core.common.files import read_at_most
    from ...simulations.report.report import JSON_NAME

    path = folder / JSON_NAME
    if not path.exists():
        return
    try:
        report = parse_json(read_at_most(path, REPORT_BYTES_MAX))
        runs = [report, *([report["compare"]] if "compare" in report else [])]
        was_stopped = any(run["summary"]["stopped_by"] == "interrupt" for run in runs)
    except (OSError, ValueError, KeyError, TypeError):
        was_stopped = False
    if not was_stopped:
        raise DelianError(
            f"{path} is not the report of a run that was stopped, and would be written over",
            "move or delete it",
        )


def _keep(
    report: Mapping[str, Any], result: SimulationResult, folder: Path, *, again: bool
) -> tuple[Path, DelianError | None]:
    """Writes model and report; gives the page's path.

    A folder that does not take them at the end of a long run, because the disk is full or another
    run has ended there, does not cost the run: they go into a new one among the system's temporary
    files, and why is given too. again: its own report from before it was resumed may be there.

    Raises DelianError where neither takes them.
    """
    from ...simulations.report.report import claim_folder

    try:
        if not again:
            claim_folder(folder, ours=True)  # again: another run may have ended there since
        return write(report, result, folder), None
    except DelianError as error:
        try:
            refuge = Path(tempfile.mkdtemp(prefix="delian-run-"))
        except OSError:
            raise error from None
        try:
            return write(report, result, refuge), error
        except BaseException:
            with suppress(OSError):
                refuge.rmdir()
            raise


def write(report: Mapping[str, Any], result: SimulationResult, folder: Path) -> Path:
    """Writes model and report into a folder that is there; gives the page's path."""
    from ...simulations.report.report import save_bundle, write_report

    if result.bundle is not None:  # first: nothing else has the weights
        save_bundle(result.bundle, folder / BUNDLE_NAME)
    return write_report(report, folder)


def _release(folder: Path) -> None:
    """Leave no empty folders behind a run that did not start."""
    for empty in (folder, folder.parent if folder.parent == RUNS else folder):
        try:
            empty.rmdir()
        except OSError:
            return
