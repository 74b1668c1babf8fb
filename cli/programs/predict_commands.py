"""`delian predict`: what a run's model says of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..options import AsJson
from ..output import tell

PredictedFile = Annotated[
    Path, typer.Argument(metavar="DATA", help="Rows: .csv, .parquet, or .npz with `x`.")
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
    looked at. Example: delian predict delian-runs/iris-fedavg-1 new.csv
    """
    from ...core.learning.predictor import load

    model = load(bundle)
    rows = _rows(data)
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


def _rows(path: Path) -> Any:
    """The rows of a file: columns of a table, or an array."""
    from ...core.learning.data.data_files import npz_keys, read_npz
    from ...core.learning.data.tables import SUFFIXES, read_columns

    if path.suffix == ".npz":
        key = "x" if "x" in npz_keys(path) else "image"
        return read_npz(path, [key])[key]
    if path.suffix in SUFFIXES:
        return read_columns(path)
    raise DelianError(f"{path} holds no rows of a known kind", "give a .csv, .parquet or .npz file")
