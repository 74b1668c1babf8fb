"""Settings: what the fields of a plan's dataclasses say to everything else.

    reports_min: Annotated[int, Bounds(ge=1, le=100_000), Key(was=("round.min_reports",))] = 1
    '''The fewest reports with which a round succeeds.'''

A scenario's tables, the codec of `PlanMessage`, errors and the documentation read a field's name,
type, default, bounds, `Key` and text from here, so that each of them is written once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args

from ..common.errors import DelianError
from .hyperparameters import Bounds, Hyperparameter, annotation

NO_KEY = object()


@dataclass(frozen=True, slots=True)
class Key:
    """What a field of a plan is elsewhere."""

    wire: str = ""
    """Its place in PlanMessage. Empty: the field's own name."""
    stage: str = ""
    """The stage of the chain and its number, `mask.corrupt`, or a stage alone."""
    when: str = ""
    """The property of `Plan` without which nothing reads it. Empty: it is always read."""
    scenario: Any = None
    """Its default in a scenario; None: the same. `NO_KEY`: it is no key of scenarios."""
    was: tuple[str, ...] = ()
    """Names that it had: in scenarios with their table (`round.devices`), in messages without."""


@dataclass(frozen=True, slots=True)
class Setting(Hyperparameter):
    """One setting of a plan: a field with bounds, and what it is elsewhere."""

    table: str
    """The table of a scenario: round, privacy or evaluation. Empty: at the top."""
    name: str
    """The field's name, and the key's."""
    optional: bool
    """Whether None stands for what follows from other settings."""
    key: Key

    @property
    def path(self) -> str:
        """The key with its table."""
        return f"{self.table}.{self.name}" if self.table else self.name

    @property
    def wire(self) -> str:
        """The place in PlanMessage."""
        return self.key.wire or self.name

    def of(self, plan: Any) -> Any:
        """The value in a plan."""
        return getattr(getattr(plan, self.table) if self.table else plan, self.name)


@cache
def settings_of(kind: type, table: str = "") -> tuple[Setting, ...]:
    """The fields of a dataclass that have a `Key`, in their order."""
    found = []
    for field in dataclasses.fields(kind):
        type_, marks = annotation(kind, field.name)
        kinds = {type(mark): mark for mark in marks}
        if Key not in kinds:
            continue
        optional = isinstance(type_, UnionType)
        if optional:
            (type_,) = (option for option in get_args(type_) if option is not NoneType)
        bounds = kinds.get(Bounds, Bounds())
        key = kinds[Key]
        found.append(Setting(type_, bounds, field.default, table, field.name, optional, key))
    return tuple(found)


@cache
def settings() -> Mapping[str, Setting]:
    """All settings of a plan by their paths, those at the top first."""
    from .plan import TABLES, Plan

    found = settings_of(Plan)
    found += tuple(s for table, kind in TABLES.items() for s in settings_of(kind, table))
    return {setting.path: setting for setting in found}


@cache
def renamed() -> Mapping[str, Setting]:
    """The settings by the names that they had."""
    return {old: setting for setting in settings().values() for old in setting.key.was}


def converted(old: str, setting: Setting, value: Any) -> Any:
    """A value under a setting's old name, in the unit of its new one: s become ms."""
    seconds = old.endswith("_s") and setting.name.endswith("_ms")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return round(value * 1000) if seconds and number and math.isfinite(value * 1000) else value


class RenamedWarning(FutureWarning):
    """A setting was given by a name that it had."""


class PlanError(DelianError):
    """Settings that no run can keep."""

    def __init__(self, path: str, message: str, hint: str = "") -> None:
        known = settings().get(path)
        self.path, self.reason = path, message
        #: The field of PlanMessage at fault.
        self.field = path if known is None else known.wire
        super().__init__(f"plan.{self.field}: {message}", hint)
