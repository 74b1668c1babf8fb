"""`delian predict`: what a run's model says of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..options import AsJson
from ..output import tell
from .row_files import rows_for

PredictedFile = Annotated[
    Path,
    typer.Argument(metavar="DATA", help="Rows: what `delian simulate --data` takes, or an .npy."),
]


def predict(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="A model.bundle, or a run's folder.")
    ],
    data: PredictedFile,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="The probability of each class as well.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Predict by a run's model: one line a row.

    A table needs the columns that the model was trained on, raw and in any order; others are not
    looked at.
    """
    from ...core.learning.predictor import load

    model = load(bundle)
    rows = rows_for(data, model)
    found = model.predict(rows).tolist()
    said: dict[str, Any] = {"predictions": found}
    if probabilities:
        said["classes"] = list(model.labels)
        said["probabilities"] = model.predict_proba(rows).tolist()

    def lines() -> list[str]:
        if not probabilities:
            return [str(each) for each in found]
        return [
            "\t".join([str(each), *(f"{p:.4f}" for p in row)])
            for each, row in zip(found, said["probabilities"], strict=True)
        ]

    tell(said, as_json, lines)
