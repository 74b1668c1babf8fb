"""The keys of partial training: which leaves of the model are trained, and adapters."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ...core.learning.leaf_roles import PATTERN_CHARACTERS_MAX, PATTERNS_MAX
from .settings_table import Table, conflict

Patterns = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=PATTERN_CHARACTERS_MAX)], ...],
    Field(strict=False, max_length=PATTERNS_MAX),
]


class Partial(Table):
    """Which leaves of the model are trained and shared, and adapters (docs/partial_training.md).

    Patterns are of leaves' dotted names: `head.*`, `*.bias`. The last one that fits decides, and an
    exclamation mark in front takes leaves out again: ["*", "!head.*"].
    """

    frozen: Patterns = ()
    """Leaves that are not trained: neither differentiated nor uploaded. Devices fetch them once."""
    personal: Patterns = ()
    """Leaves that each device trains for itself and never uploads."""
    adapters: Literal["none", "lora", "dora", "ia3"] = "none"
    """Adapters in the model's layers: all other leaves are then frozen."""
    targets: Patterns = ()
    """Endings of the names of layers with adapters, as ["query", "value"], or ["all-linear"]."""
    rank: int = Field(default=8, ge=1, le=1024)
    """Of `lora` and `dora`: the rank of an update."""
    alpha: float = Field(default=16.0, gt=0.0, le=1e6)
    """Of `lora` and `dora`: an update counts alpha / rank times."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Of `lora` and `dora`: the probability with which an adapter's input is zero in training."""
    feedforward: Patterns = ()
    """Of `ia3`: the targets whose input is scaled, and not the output."""
    trained_modules: Patterns = ()
    """Endings of names of modules that are trained whole, such as a new classifier."""

    @model_validator(mode="after")
    def _adapters_have_targets(self) -> Self:
        if (self.adapters == "none") != (not self.targets):
            raise conflict(
                "targets",
                "adapters have targets: the endings of layers' names, or all-linear"
                if self.adapters != "none"
                else 'targets are of adapters: set adapters = "lora"',
            )
        return self
