"""`delian analyse`: what all devices' data are like, from sums alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..output import echo

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Numbers of a row that are listed one by one.
LISTED_MAX = 20
BAR = 40


def analyse(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A file or a bundled name.")],
    question: Annotated[
        str,
        typer.Argument(metavar="QUESTION", help="moments, histogram, quantiles or heavy-hitters."),
    ],
    of: Annotated[
        str | None, typer.Option(help="label, or x: the values of the rows, as models take them.")
    ] = None,
    bins: Annotated[int, typer.Option(min=1, max=10_000, help="Of a histogram of x.")] = 10,
    low: Annotated[float, typer.Option(help="Where x begins.")] = 0.0,
    high: Annotated[float, typer.Option(help="Where x ends.")] = 1.0,
    wanted: Annotated[str, typer.Option(help="Quantiles.")] = "0.1,0.25,0.5,0.75,0.9",
    most: Annotated[int, typer.Option(min=1, max=256, help="Heavy hitters to find.")] = 8,
    bits: Annotated[int, typer.Option(help="Bits of the integers among which they are.")] = 16,
    least: Annotated[float, typer.Option(help="The share that makes one frequent.")] = 0.0,
    clip: Annotated[
        float | None, typer.Option(help="Bound on a device's measure, where x is not in 0..1.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key; may be repeated."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", help="Stands in for the data file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask a federation about its data: devices count, and only sums leave the edges.

    The question goes through the scenario's own rounds, with its masks and its noise. Heavy hitters
    are the most frequent of very many integers, found by their bits.
    """
    from ...simulations.runs.analysis import Question, ask
    from ...simulations.scenario.datasets import with_data
    from ...simulations.scenario.scenario_file import load, override

    if of not in (None, "label", "x"):
        raise DelianError(f"--of {of}: there are label and x")
    try:
        shares = tuple(float(part) for part in wanted.split(","))
    except ValueError:
        raise DelianError(f"--wanted {wanted}: not numbers", "--wanted 0.1,0.5,0.9") from None
    chosen = override(with_data(load(scenario), file), settings or [])
    asked = Question(question, of, bins, low, high, shares, most, bits, least, clip)
    answer = ask(asked, chosen, file)
    if as_json:
        echo(json.dumps(answer))
        return
    for line in _lines(answer):
        echo(line)
    echo(f"\n{answer['reported']} of {answer['devices']} devices answered")


def _lines(answer: Mapping[str, Any]) -> list[str]:
    if "mean" in answer:
        pairs = list(zip(answer["mean"], answer["deviation"], strict=True))
        lines = [f"{i:>5}  {m:12.5g} ± {d:.5g}" for i, (m, d) in enumerate(pairs[:LISTED_MAX])]
        more = len(pairs) - LISTED_MAX
        return [*lines, f"and {more} more: --json has them"] if more > 0 else lines
    if "shares" in answer:
        edges = answer.get("edges")
        largest = max(answer["shares"]) or 1.0
        lines = []
        for i, part in enumerate(answer["shares"]):
            name = f"{edges[i]:.4g} to {edges[i + 1]:.4g}" if edges else str(i)
            lines.append(f"{name:>18} {100 * part:6.2f}%  {'#' * round(BAR * part / largest)}")
        return lines
    if "values" in answer:
        values = zip(answer["wanted"], answer["values"], strict=True)
        return [f"{q:>6g}  {v:.6g}  (within {answer['error']:.2g})" for q, v in values]
    found = answer["found"] or ["nothing is frequent enough"]
    return [f"{f[0]:>12}  {100 * f[1]:6.2f}%" if not isinstance(f, str) else f for f in found]
