"""`delian device cascade`: a small model here, a large one above for what is hard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ...core.common.errors import DelianError
from .. import options
from ..output import echo
from ..programs.row_files import rows_of, write_rows


def cascade(
    small: Annotated[Path, typer.Argument(help="The .bundle that runs here, with weights.")],
    large: Annotated[Path, typer.Argument(help="The .bundle that a home serves, with weights.")],
    file: Annotated[Path, typer.Argument(help="An .npz file with an array `x`, or an .npy file.")],
    chosen: Annotated[
        str,
        typer.Option(
            "--filter", help="Threshold, CrossEntropy, IBT, Random, CloudOnly or EdgeOnly."
        ),
    ] = "Threshold",
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="What delian partition cascade found.")
    ] = None,
    above: Annotated[
        float,
        typer.Option(
            "--above", min=0.001, max=86_400, help="Seconds that an answer above may take."
        ),
    ] = 1.0,
    config: options.ConfigFile = None,
    settings: options.Settings = None,
    home: options.Homes = None,
    identity: options.IdentityFolder = None,
    number: options.DeviceNumber = None,
    insecure: options.Insecure = False,
    due: options.Due = 10.0,
    out: options.ResultsFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Answer rows by a small model here, and what is hard by a large one above.

    The large bundle runs on a home that serves it (`delian edge run --serve`); where none answers
    in time, the small model's answer stands.
    """
    import numpy as np

    from ...core.placement.cascade.hard_examples import THRESHOLDS, make
    from ...device.serving.cascade_model import CascadeModel
    from ..config import load

    parameter = THRESHOLDS.get(chosen)
    if threshold is not None and parameter is None:
        raise DelianError(f"{chosen} has no threshold", f"{', '.join(THRESHOLDS)} have one")
    given = {} if threshold is None or parameter is None else {parameter: threshold}
    filter_ = make(chosen, **given)
    flags: dict[str, Any] = {
        "device.homes": home or None,
        "device.identity": identity,
        "device.number": number,
        "device.insecure": insecure or None,
    }
    device = load(config, flags, settings or ()).config.device
    with CascadeModel(
        small,
        large,
        filter_,
        device.homes,
        None if device.insecure else device.identity or device.state / "identity",
        number=device.number,
        above_s=above,
        backend=device.worker.backend,
    ) as model:
        model.wait_ready(min(due, above))
        results = model.predict(rows_of(file), due)
        facts = model.facts
    labels = np.argmax(results, axis=-1).tolist()
    if out is not None:
        write_rows(out, results)
    if as_json:
        echo(json.dumps({"labels": labels, "counts": facts}))
        return
    for label in labels:
        echo(label)
