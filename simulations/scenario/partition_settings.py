"""The keys of data that no device owns: how they are dealt out, by the fields of `data.Deal`."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ...core.learning.data.partition.deal import Assignment, Deal, Draws, Partition
from .settings_table import DEVICES_MAX, Table, conflict


class RowData(Table):
    """What data have in common of which a device has rows."""

    last_batch: Literal["fill", "weigh", "drop", "full"] = "fill"
    """What becomes of the last batch of a pass where rows do not fill it: `fill` it with the first
    rows of the pass, `weigh` its step by its share of a batch, `drop` it, or take a `full` step.
    """
    rows_in_memory: int = Field(default=0, ge=0, le=1 << 30)
    """Rows that a device has in memory at once. One with more of them trains in windows of so many.
    0: all of them.
    """

    @model_validator(mode="after")
    def _a_window_has_both_sides(self) -> Self:
        if self.rows_in_memory == 1:
            raise conflict("rows_in_memory", "one row must be learnt from and one judged by")
        return self


class DealtData(RowData):
    """What data that no device owns have in common."""

    documented: ClassVar[type | None] = Deal

    partition: Partition = "dirichlet"
    """How examples are dealt out (docs/scenarios.md has a table): `dirichlet` (label skew),
    `shards` (few labels each), `quantity` (amounts differ), `iid` (evenly), and others.
    """
    draws: Draws = "delian"
    alpha: float = Field(default=0.3, gt=0.0, le=1e4)
    labels_each: int = Field(default=2, ge=0, le=1000)
    assignment: Assignment = "random"
    self_balancing: bool = False
    sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(), strict=False, max_length=DEVICES_MAX
    )
    shard_size: int = Field(default=0, ge=0, le=1_000_000_000)
    keep_incomplete: bool = False
    sigma: float = Field(default=2.0, ge=0.0, le=20.0)
    strictness: float = Field(default=1.0, ge=0.0, le=1.0)
    feature_noise: float = Field(default=0.0, ge=0.0, le=100.0)
    rotations: Literal[1, 2, 4] = 1
    concepts: int = Field(default=1, ge=1, le=1000)
    min_examples: int = Field(default=10, ge=2, le=100_000)
    """Every device has at least this many examples."""
    query_fraction: float = Field(default=0.4, gt=0.0, lt=1.0)
    """The share of a device's examples that only judge and are never trained on."""
    held_out_devices: int = Field(default=0, ge=0, le=DEVICES_MAX)
    """Devices that never train and show how the model serves newcomers."""

    @model_validator(mode="after")
    def _labels_are_given(self) -> Self:
        if self.labels_each or (self.partition == "shards" and self.shard_size):
            return self
        raise conflict("labels_each", "only a shards partition with data.shard_size can have 0")

    def deal(self) -> Deal:
        """How the data are dealt out."""
        known = {f.name: getattr(self, f.name) for f in fields(Deal) if hasattr(self, f.name)}
        return Deal(**known)
