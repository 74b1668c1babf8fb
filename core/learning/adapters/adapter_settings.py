"""What the adapters of a model have in common: the part of PEFT's configuration that is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...common.errors import DelianError

Kind = Literal["lora", "dora", "ia3"]

#: PEFT's word for all linear layers but the model's last.
ALL_LINEAR = "all-linear"
#: Ranks above it are no low ranks: the widest layers of large models have some ten thousand inputs.
RANK_MAX = 1 << 14


@dataclass(frozen=True)
class AdapterSettings:
    """One configuration of adapters. It is hashable: each adapter has it in its structure."""

    kind: Kind
    targets: str | tuple[str, ...]
    """Suffixes of module names, or one regular expression for a whole name, or "all-linear"."""
    rank: int = 8
    alpha: float = 8.0
    dropout: float = 0.0
    """Probability with which an adapter's input is zero in training."""
    use_rslora: bool = False
    """Whether the scale is alpha / sqrt(rank) (Kalajdzievski 2023), and not alpha / rank."""
    modules_to_save: tuple[str, ...] = ()
    """Suffixes of modules that are trained and stored whole, such as a new head."""
    feedforward: str | tuple[str, ...] = ()
    """For (IA)^3: the modules whose input is scaled, and not their output."""
    rank_pattern: tuple[tuple[str, int], ...] = ()
    """Ranks by suffix of a module's name, where they differ."""
    alpha_pattern: tuple[tuple[str, float], ...] = ()
    task_type: str | None = None
    """PEFT's word for the task, kept for the file."""

    def rank_of(self, name: str) -> int:
        """The rank of a module's adapter."""
        return next((rank for key, rank in self.rank_pattern if ends_with(name, key)), self.rank)

    def scale_of(self, name: str) -> float:
        """The factor of a module's low-rank product."""
        pairs = self.alpha_pattern
        alpha = next((alpha for key, alpha in pairs if ends_with(name, key)), self.alpha)
        rank = self.rank_of(name)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def ends_with(name: str, suffix: str) -> bool:
    """PEFT's rule for names: the whole name, or its last parts."""
    return name == suffix or name.endswith(f".{suffix}")


def checked(settings: AdapterSettings) -> AdapterSettings:
    """The settings. Raises DelianError for a rank, a scale or a dropout that has no meaning."""
    ranks = (settings.rank, *(rank for _, rank in settings.rank_pattern))
    for rank in ranks:
        if type(rank) is not int or not 1 <= rank <= RANK_MAX:
            raise DelianError(
                f"a rank of an adapter cannot be {rank!r}",
                f"it is a whole number from 1 to {RANK_MAX}; 4 to 64 are usual",
            )
    for alpha in (settings.alpha, *(alpha for _, alpha in settings.alpha_pattern)):
        if not isinstance(alpha, int | float) or not math.isfinite(alpha):
            raise DelianError(f"alpha cannot be {alpha!r}", "twice the rank is usual")
    if not isinstance(settings.dropout, int | float) or not 0.0 <= settings.dropout < 1.0:
        raise DelianError(f"dropout cannot be {settings.dropout!r}", "it is from 0 to below 1")
    return settings


def names(given: str | Sequence[str]) -> str | tuple[str, ...]:
    """A regular expression as it is, and several names as a tuple. Raises DelianError."""
    if isinstance(given, str):
        return given
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise DelianError(
            f"targets cannot be {given!r:.60}", 'endings of layers\' names, as ("query", "value")'
        )
    return tuple(given)
