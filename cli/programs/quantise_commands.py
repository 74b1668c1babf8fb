"""`delian quantise`: a bundle for inference in bytes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..options import AsJson
from ..output import tell
from .row_files import rows_for

if TYPE_CHECKING:
    from ...core.compiler.ir import Array


class Method(StrEnum):
    """How the ranges of activations are found."""

    mse = "mse"
    minmax = "minmax"
    percentile = "percentile"


def quantise(
    bundle: Annotated[Path, typer.Argument(help="A .bundle with weights, or the folder of a run.")],
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="PATH",
            help="Rows to calibrate with: an .npy, or what `delian simulate --data` takes.",
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The .bundle to write.")],
    method: Annotated[
        Method, typer.Option("--method", help="How the ranges of activations are found.")
    ] = Method.mse,
    percentile: Annotated[
        float, typer.Option("--percentile", help="What that method keeps of each side.")
    ] = 99.99,
    keep_first: Annotated[
        bool, typer.Option("--keep-first", help="The first product stays in f32.")
    ] = False,
    keep_last: Annotated[
        bool, typer.Option("--keep-last/--last-too", help="The last product stays in f32, or not.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Make a bundle a quarter of the size, for inference alone.

    Weights become bytes with a scale for each channel; activations are bytes whose ranges a few
    hundred rows of data show. It says how often the two bundles choose the same class on these.
    """
    from ...core.learning.predictor import load
    from ...core.learning.quantise import quantise as in_bytes

    if bundle.is_dir():
        bundle = bundle / "model.bundle"
    model = load(bundle)
    made, rows = model.bundle, rows_for(data, model)
    small = in_bytes(
        made,
        rows,
        method=method.value,
        percentile=percentile,
        keep_first=keep_first,
        keep_last=keep_last,
    )
    try:
        small.save(out)
    except OSError as error:
        raise DelianError(f"{out}: cannot be written: {error.strerror}") from None
    facts: dict[str, Any] = {
        "bundle": str(out),
        "bytes": out.stat().st_size,
        "from_bytes": bundle.stat().st_size,
        "weights_bytes": int(made.weights.nbytes),
    }
    numbers = made.manifest.learns_numbers
    compared = _compared(made, small, rows, numbers)
    facts["difference" if numbers else "agreement"] = compared
    said = (
        f"numbers {compared:.3g} apart, the mean over the calibration rows"
        if numbers
        else f"same class on {100 * compared:.1f}% of the calibration rows"
    )
    tell(
        facts,
        as_json,
        lambda: [
            f"{out}: {facts['bytes']:,} bytes, of {facts['from_bytes']:,}",
            said,
        ],
    )


def _compared(made: Any, small: Any, rows: Array, numbers: bool) -> float:
    """The share of rows for which both choose the same class.

    Of numbers, how far apart the two are in the mean.
    """
    import numpy as np

    from ...core.learning.quantise import batches_of, model_of
    from ...core.learning.runtime import Runtime

    before, after = (Runtime(b, programs=("infer",)) for b in (made, small))
    model, empty = model_of(made), np.empty(0, np.float32)
    total, count = 0.0, 0
    for batch in batches_of(rows, made.inference):
        wanted, found = before.infer(model, batch), after.infer(empty, batch)
        if numbers:
            total, count = total + float(np.sum(np.abs(wanted - found))), count + found.size
        else:
            total += int(np.sum(wanted.argmax(-1) == found.argmax(-1)))
            count += found.size // found.shape[-1]
    return total / count
