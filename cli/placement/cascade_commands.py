"""`delian partition cascade`: what a small model below and a large one above give together."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..options import AsJson
from ..output import tell, write_out
from ..programs.row_files import LABELS, rows_of

if TYPE_CHECKING:
    from ...core.placement.cascade.hard_examples import Made


class Wire(StrEnum):
    """How a row is written on the link."""

    f32 = "f32"
    f16 = "f16"
    i8 = "i8"


def cascade(
    small: Annotated[Path, typer.Argument(help="The device's .bundle, with weights.")],
    large: Annotated[Path, typer.Argument(help="The .bundle above, with weights.")],
    data: Annotated[
        Path,
        typer.Option("--data", help="Held-out rows: an .npz with x, as devices have them, and y."),
    ],
    chosen: Annotated[
        str, typer.Option("--filter", help="Threshold, CrossEntropy, IBT or Random.")
    ] = "Threshold",
    share: Annotated[
        float | None, typer.Option("--rate", help="The share of requests that may go up.")
    ] = None,
    accuracy: Annotated[
        float | None, typer.Option("--accuracy", help="Or the share that is to be right.")
    ] = None,
    failure: Annotated[
        float | None,
        typer.Option("--failure", help="Promise that accuracy, but for a chance of this."),
    ] = None,
    link: Annotated[
        str, typer.Option("--link", help="Bandwidth and one-way latency between the two.")
    ] = "5.85Mbit/s,20ms",
    wire: Annotated[Wire, typer.Option("--wire", help="How a row is written on it.")] = Wire.f32,
    slower: Annotated[
        float, typer.Option("--slower", min=0.01, max=1e6, help="Than this machine, the device.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Which rows calibrate, which judge.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Also write the report as a page.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate a cascade: a small model on the device, a large one above for what is hard.

    Half of the rows choose the filter's threshold, the other half judge it: accuracy, the share
    sent up, bytes and latency, there and at other thresholds.
    """
    from ...core.learning.bundle import load
    from ...core.placement.cascade.hard_examples import make
    from ...core.placement.cut.link_model import LinkProfile
    from ...simulations.placement.cascading import Goal, Surroundings, lines_of, measure, page

    filter_: Made = make(chosen)
    if share is None and accuracy is None:
        raise DelianError("nothing is asked of the cascade", "--rate 0.2, or --accuracy 0.95")
    if failure is not None and accuracy is None:
        raise DelianError("--failure is of a promised accuracy", "--accuracy 0.95 --failure 0.05")
    facts: dict[str, Any] = measure(
        load(small),
        load(large),
        rows_of(data),
        rows_of(data, LABELS),
        filter_,
        Goal(share, accuracy, failure),
        Surroundings(LinkProfile.parse(link), wire.value, slower),
        seed,
    )
    if out is not None:
        write_out(out, page(facts))
    tell(facts, as_json, lambda: lines_of(facts))
