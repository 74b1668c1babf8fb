"""`delian predict`: what a run's model says of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..options import AsJson
from ..output import tell
from .row_files import asked_of

PredictedFile = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="Rows: what `delian simulate --data` takes, or an .npy. Of a text: .txt or .csv.",
    ),
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
    looked at. A model of a text is asked for the character or token that follows each line of a
    .txt file, or each field of the column `text` of a .csv file; it is printed in quotes. One of
    masked tokens is asked for the first <mask> of each, one of labels for its label.
    """
    import json

    from ...core.learning.predictor import load

    model = load(bundle)
    rows = asked_of(data, model)
    found = model.predict(rows).tolist()
    said: dict[str, Any] = {"predictions": found}
    if probabilities:
        said["classes"] = list(model.labels)
        said["probabilities"] = model.predict_proba(rows).tolist()

    def lines() -> list[str]:
        shown = [str(each) for each in found]
        texts = isinstance(rows, list)
        labels = model.tokens is not None and model.tokens.task == "classification"
        if texts and not labels:  # a space and a line break are characters too
            shown = [json.dumps(each, ensure_ascii=False) for each in shown]
        if not probabilities:
            return shown
        return [
            "\t".join([each, *(f"{p:.4f}" for p in row)])
            for each, row in zip(shown, said["probabilities"], strict=True)
        ]

    tell(said, as_json, lines)
