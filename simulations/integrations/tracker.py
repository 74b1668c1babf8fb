"""What an experiment tracker is to a run, and a run's figures under the names that trackers show.

A name with a slash is a group in the views of TensorBoard, MLflow and Weights & Biases alike:
`accuracy/shared`, `loss/training`, `bytes/device_edge_up`.
"""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Protocol

from ...core.common.errors import DelianError
from ...core.common.install_hint import install
from ..runs.result import RoundRecord

#: Figures of a round's record, by name.
_FIGURES = {
    "global_accuracy": "{measure}/shared",
    "personalised_accuracy": "{measure}/personalized",
    "global_pooled_accuracy": "{measure}/shared_pooled",
    "personalised_pooled_accuracy": "{measure}/personalized_pooled",
    "global_r_squared": "r_squared/shared",
    "personalised_r_squared": "r_squared/personalized",
    "global_absolute_error": "absolute_error/shared",
    "personalised_absolute_error": "absolute_error/personalized",
    "training_loss": "loss/training",
    "global_loss": "loss/shared",
    "personalised_loss": "loss/personalized",
    "selected": "clients/selected",
    "reported": "clients/reported",
    "dropped": "clients/dropped",
    "late": "clients/late",
    "refused": "clients/refused",
    "spare": "clients/spare",
    "virtual_seconds": "seconds/virtual",
    "wall_seconds": "seconds/real",
}
#: What MLflow takes in no metric's name.
_UNSAFE = re.compile(r"[^\w\-. /]", re.ASCII)
#: Figures of the summary that a tracker keeps of the whole run.
_SUMMARY = ("rounds", "global_accuracy", "personalised_accuracy", "gain", "harmed_share")


class Tracker(Protocol):
    """Where runs are recorded; of a comparison one after the other."""

    def started(self, name: str, settings: Mapping[str, str], time_ms: int) -> None:
        """A run begins. settings: the scenario's keys, flat. time_ms: Unix time."""

    def figures(self, step: int, values: Mapping[str, float], time_ms: int) -> None:
        """The figures of a round."""

    def ended(self, outcome: str, values: Mapping[str, float]) -> None:
        """The run is over: `finished`, `stopped` or `failed`, with the figures of the whole run."""

    def where(self) -> str:
        """What shows the runs, in words for the terminal."""


def figures_of(record: RoundRecord, measure: str) -> dict[str, float]:
    """The figures of a round by the names that trackers show; those that are not known are absent.

    measure: "accuracy", or "mean_squared_error" of a regression.
    """
    found: dict[str, float | None] = {
        name.format(measure=measure): getattr(record, key) for key, name in _FIGURES.items()
    }
    found |= {f"bytes/{hop}": count for hop, count in record.bytes.items()}
    for whose, own in (
        ("shared", record.global_metrics),
        ("personalized", record.personalised_metrics),
    ):
        found |= {f"{_UNSAFE.sub('_', name)}/{whose}": value for name, value in (own or {}).items()}
    return _finite(found)


def figures_in_all(summary: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a whole run, from its report's summary."""
    found = {f"final/{key}": summary[key] for key in _SUMMARY}
    found |= {f"total/bytes_{hop}": count for hop, count in summary["bytes"].items()}
    if privacy := summary.get("privacy"):
        found |= {"privacy/epsilon": privacy["epsilon"], "privacy/delta": privacy["delta"]}
    return _finite(found)


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {k: float(v) for k, v in values.items() if v is not None and math.isfinite(v)}


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A scenario's keys by dotted name, as `--set` has them."""
    found: dict[str, str] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return found


def package(name: str, option: str, extra: str) -> ModuleType:
    """An optional package. Raises DelianError that names the extra where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        root = name.partition(".")[0]
        raise DelianError(
            f"{option} needs the package {root}, which is not installed", install(extra)
        ) from None
