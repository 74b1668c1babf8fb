"""Runs of Weights & Biases in its offline mode: a folder a run under ./wandb, nothing sent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.common.errors import DelianError
from .tracker import package

OPTION, EXTRA = "--wandb", "wandb"
PROJECT = "delian"
OFFLINE = "offline"


class WandbRuns:
    """A `Tracker`. Raises DelianError where the package is missing, or for another mode."""

    def __init__(self, mode: str) -> None:
        if mode != OFFLINE:
            raise DelianError(
                f"--wandb {mode}: runs are written to a folder, and nothing is sent",
                "give --wandb offline, and upload the folder afterwards: wandb sync FOLDER",
            )
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._wandb = package("wandb", OPTION, EXTRA)
        self._run: Any = None
        self._folders: list[Path] = []

    def started(self, name: str, settings: Mapping[str, str], time_ms: int) -> None:
        quiet = self._wandb.Settings(
            console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True
        )
        self._run = self._wandb.init(
            project=PROJECT,
            name=name,
            mode=OFFLINE,
            config=dict(settings),
            settings=quiet,
            reinit="create_new",
        )
        self._folders.append(Path(self._run.dir).parent)

    def figures(self, step: int, values: Mapping[str, float], time_ms: int) -> None:
        self._run.log(dict(values), step=step)

    def ended(self, outcome: str, values: Mapping[str, float]) -> None:
        if self._run is None:
            return
        for name, value in values.items():
            self._run.summary[name] = value
        self._run.finish(exit_code=0 if outcome == "finished" else 1)
        self._run = None

    def where(self) -> str:
        folders = " ".join(os.path.relpath(folder) for folder in self._folders)
        return f"wandb sync {folders}"
