"""What a run says of the script that its sites run: a name and settings, and never code.

The name is one that each site's owner has given to a command of their own. The settings are numbers
and words for that command, such as a learning rate.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...common.errors import DelianError
from ..bundle import check_metric_names

Setting: TypeAlias = bool | int | float | str
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
SETTINGS_MAX = 64
SETTINGS_BYTES_MAX = 8 << 10
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
#: Arrays of whole numbers that are no weights, as a batch norm's count of batches.
OTHERS_MAX = 4096
_KINDS = ("bool", "uint8", "int8", "int16", "int32", "int64")


@dataclass(frozen=True, slots=True)
class OtherArray:
    """An array of a model that is not averaged: each site has its own, and begins with this."""

    dtype: str
    shape: tuple[int, ...]
    values: tuple[int, ...]


@dataclass(frozen=True)
class ScriptSpec:
    """What a bundle says of the script. Raises DelianError for what it cannot say."""

    name: str
    """By which each site's owner knows the command."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """Numbers and texts for the script."""
    metrics: tuple[str, ...] = ()
    """Metrics besides loss and accuracy, in alphabetical order."""
    others: Mapping[str, OtherArray] = field(default_factory=dict)
    """Arrays of the model that are no floats, by name."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise DelianError(
                f"no script can be called {self.name[:80]!r}",
                "small letters, digits, `.`, `_` and `-`, at most 64, as mnist-cnn",
            )
        object.__setattr__(self, "metrics", tuple(sorted(self.metrics)))
        check_metric_names(self.metrics)
        _check_settings(self.settings)
        if len(self.others) > OTHERS_MAX:
            raise DelianError(f"{len(self.others)} arrays that are no floats; {OTHERS_MAX} at most")

    def to_json(self) -> dict[str, Any]:
        """As a manifest has it; empty parts are left out."""
        others = {n: [o.dtype, list(o.shape), list(o.values)] for n, o in self.others.items()}
        parts = {"settings": dict(self.settings), "metrics": list(self.metrics), "others": others}
        return {"name": self.name, **{name: part for name, part in parts.items() if part}}

    @classmethod
    def from_json(cls, said: Any) -> ScriptSpec:
        """Reads what a bundle says. Raises DelianError."""
        try:
            others = {str(n): _other(o) for n, o in dict(said.get("others", {})).items()}
            metrics = tuple(str(name) for name in said.get("metrics", ()))
            return cls(str(said["name"]), dict(said.get("settings", {})), metrics, others)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DelianError(
                f"what the bundle says of its script makes no sense: {error}"
            ) from None


def _other(said: Any) -> OtherArray:
    dtype, shape, values = said
    made = OtherArray(str(dtype), tuple(int(d) for d in shape), tuple(int(v) for v in values))
    if made.dtype not in _KINDS or any(d < 0 for d in made.shape):
        raise ValueError(f"an array of {made.dtype[:20]}")
    if math.prod(made.shape) != len(made.values):
        raise ValueError(f"{len(made.values)} values for the shape {list(made.shape)[:8]}")
    return made


def _check_settings(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if not isinstance(name, str) or not _SETTING.fullmatch(name):
            raise DelianError(
                f"no setting can be called {str(name)[:80]!r}",
                "letters, digits, `_`, `.` and `-`, at most 64, as learning_rate",
            )
        if not isinstance(value, bool | int | float | str):
            raise DelianError(
                f"the setting {name} is {type(value).__name__}", "a number, a text, true or false"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise DelianError(f"the setting {name} is {value}", "give a finite number")
    size = len(json.dumps(dict(settings)))
    if len(settings) > SETTINGS_MAX or size > SETTINGS_BYTES_MAX:
        raise DelianError(
            f"{len(settings)} settings of {size} bytes",
            f"{SETTINGS_MAX} and {SETTINGS_BYTES_MAX} bytes at most",
        )
