"""`delian quickstart`: a first federation by a few questions, each with a default."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...core.common.errors import DelianError
from ..output import echo
from . import simulate_commands

if TYPE_CHECKING:
    from ...simulations.scenario.scenario import Scenario

BUNDLED = "digits"
PLAIN = 'privacy.aggregation="plain"'


@dataclass(frozen=True, slots=True)
class Answers:
    """What a run is made of."""

    data: Path | None
    """None: the bundled example."""
    target: str | None
    """Of a table, the column that is learnt."""
    masked: bool
    """Whether updates are masked by secure aggregation."""
    rounds: int
    out: Path

    def words(self) -> list[str]:
        """The arguments of `delian simulate`."""
        words = [BUNDLED] if self.data is None else ["--data", str(self.data)]
        words += ["--target", self.target] if self.target else []
        words += ["--rounds", str(self.rounds)]
        words += [] if self.masked else ["--set", PLAIN]
        return [*words, "--out", str(self.out)]


def quickstart(
    data: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Your data; absent: it is asked for."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: take defaults.")] = False,
) -> None:
    """Train a first federation: a few questions, Enter for the default of each.

    It prints the `delian simulate` command that does the same, runs it, and says what to try next.
    """
    if not yes and not is_terminal():
        raise DelianError(
            "quickstart asks questions, and there is no terminal to answer them",
            "delian quickstart --yes takes the default of each",
        )
    answers = _defaults(data) if yes else _asked(data)
    echo(f"\ndelian simulate {shlex.join(answers.words())}\n")
    try:
        simulate_commands.simulate(
            named=BUNDLED if answers.data is None else None,
            data=answers.data,
            target=answers.target,
            rounds=answers.rounds,
            settings=None if answers.masked else [PLAIN],
            out=answers.out,
        )
    finally:
        if (answers.out / simulate_commands.BUNDLE_NAME).exists():
            for line in _next(answers):
                echo(line)


def is_terminal() -> bool:
    """Whether questions can be answered."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _scenario(data: Path | None, target: str = "") -> Scenario:
    """What `delian simulate` would run. Raises DelianError for data that it cannot read."""
    from ...simulations.scenario.datasets import scenario_for

    return scenario_for(None, data, [f"data.target={json.dumps(target)}"] if target else [])


def _defaults(data: Path | None) -> Answers:
    return _answers(data, _scenario(data))


def _answers(data: Path | None, scenario: Scenario) -> Answers:
    """The defaults of a scenario."""
    target = getattr(scenario.data, "target", "") or None
    masked = scenario.privacy.aggregation == "secure"
    return Answers(data, target, masked, scenario.rounds, _folder())


def _folder() -> Path:
    """A folder for the report that is not there yet."""
    numbers = range(1, simulate_commands.RUNS_PER_NAME_MAX)
    names = (simulate_commands.RUNS / f"quickstart-{i}" for i in numbers)
    return next(name for name in names if not name.exists())


def _asked(data: Path | None) -> Answers:
    """The answers of the terminal; a question is repeated while its answer cannot be used."""
    while True:
        if data is None:
            told = typer.prompt(
                "Your data: a .csv, .parquet, .npz, .txt or a folder of images", default=BUNDLED
            )
            data = None if told == BUNDLED else Path(told).expanduser()
        try:
            default = _answers(data, scenario := _scenario(data))
            break
        except DelianError as fault:
            echo(f"error: {fault}", err=True)
            data = None
    if data is not None:
        echo(scenario.description.strip())
    while default.target is not None and data is not None:
        target = typer.prompt("The column to learn", default=default.target)
        try:
            default = _answers(data, _scenario(data, target))
            break
        except DelianError as fault:
            echo(f"error: {fault}", err=True)
    masked = typer.confirm(
        "Mask updates by secure aggregation (the coordinator sees sums only)?",
        default=default.masked,
    )
    rounds = typer.prompt("Rounds", default=default.rounds, type=int)
    if rounds < 1:
        raise DelianError(f"{rounds} rounds", "at least one round is needed")
    return Answers(default.data, default.target, masked, rounds, default.out)


def _next(answers: Answers) -> list[str]:
    data = [BUNDLED] if answers.data is None else ["--data", str(answers.data)]
    words = shlex.join(data)
    template = "numpy" if answers.target is None else "tabular"
    lines = [
        "",
        "next:",
        f"  delian data show {words}",
        f"  delian simulate {words} --compare ditto",
    ]
    if answers.data is not None and answers.target is not None:
        lines.append(f"  delian predict {answers.out} {shlex.quote(str(answers.data))}")
    return [*lines, f"  delian new my-project --template {template}"]
