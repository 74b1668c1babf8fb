"""Options that stand for keys of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from ...core.common.foreign_formats import refuse_file

Rounds = Annotated[
    int | None, typer.Option("--rounds", min=1, metavar="N", help="Rounds: --set rounds=N.")
]
Devices = Annotated[
    int | None,
    typer.Option("--devices", min=1, metavar="N", help="Simulated devices: --set fleet.devices=N."),
]
Target = Annotated[
    str | None,
    typer.Option("--target", metavar="COLUMN", help="Of a table, the column that is learnt."),
]
Window = Annotated[
    int | None,
    typer.Option(
        "--window",
        min=1,
        metavar="N",
        help="Of a table that is a time series: rows of a window (data.window).",
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--learning-rate",
        metavar="X",
        help="Of local training: --set algorithm.learning_rate=X.",
    ),
]


def short_forms(given: Mapping[str, Any]) -> list[str]:
    """The settings of options that were given, by the keys they stand for."""
    return [f"{key}={dumps(value)}" for key, value in given.items() if value is not None]


def settings_of(
    rounds: int | None, devices: int | None, learning_rate: float | None, changes: list[str] | None
) -> list[str]:
    """The settings of a study: short forms first, so that --set has the last word."""
    short = {
        "rounds": rounds,
        "fleet.devices": devices,
        "algorithm.learning_rate": learning_rate,
    }
    return [*short_forms(short), *(changes or [])]


def torch_settings(module: str | None, loss: str | None) -> list[str]:
    """The keys of a scenario that `FILE[:CLASS]` and `NAME|FILE:CLASS` stand for."""
    keys = []
    if module is not None:
        refuse_file(module, "model")
        file, _, kind = module.partition(":")
        keys += ["model.name=torch", f"model.file={Path(file).absolute()}"]
        keys += [f"model.module={kind}"] if kind else []
    if loss is not None:
        file, colon, kind = loss.rpartition(":")
        keys.append(f"model.loss={Path(file).absolute()}:{kind}" if colon else f"model.loss={loss}")
    return keys
