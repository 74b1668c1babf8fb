"""Runs as event files of TensorBoard: a folder a run under DIR, by the package's own writer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.common.errors import DelianError
from .tracker import package

OPTION, EXTRA = "--tensorboard", "tensorboard"


class TensorBoardFiles:
    """A `Tracker`. Raises DelianError where the package is missing or the folder refuses."""

    def __init__(self, folder: Path) -> None:
        self._summary = package("tensorboard.summary", OPTION, EXTRA)
        self._folder = folder
        self._writer: Any = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DelianError(
                f"cannot make the folder {folder}: {error.strerror}",
                "name a folder with --tensorboard DIR",
            ) from None

    def started(self, name: str, settings: Mapping[str, str], time_ms: int) -> None:
        """A folder of its own, with the settings in a file next to the events."""
        place = self._folder / f"{name}-{time_ms}"
        self._writer = self._summary.Writer(str(place))
        text = json.dumps(settings, indent=1, ensure_ascii=False)
        (place / "settings.json").write_text(text + "\n", encoding="utf-8")

    def figures(self, step: int, values: Mapping[str, float], time_ms: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, wall_time=time_ms / 1000)
        self._writer.flush()

    def ended(self, outcome: str, values: Mapping[str, float]) -> None:
        """Closes the file. Its steps are rounds: figures of the whole run are in the report."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def where(self) -> str:
        return f"tensorboard --logdir {self._folder}"
