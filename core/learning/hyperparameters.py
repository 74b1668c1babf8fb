"""Hyperparameters: what the fields of an algorithm's dataclass say to everything else.

    mu: Annotated[float, Bounds(ge=0.0, le=1e3)] = 0.01
    '''Strength of the pull towards the global model, mu in the paper.'''

A field with `Bounds` is a key of a scenario's [algorithm] table: it has the field's name, type,
default and bounds, and the text under the field documents it. A field with `FromRun` is set from
what a run knows, such as its learning rate. Any other field is set in Python only; so is a field
that a subclass declares again without `Bounds`, because it does not use it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Bounds:
    """The values that a hyperparameter may have; None: not bounded on that side."""

    ge: float | None = None
    """The least value."""
    le: float | None = None
    """The greatest value."""
    gt: float | None = None
    """Values are above this one."""
    lt: float | None = None
    """Values are below this one."""

    def given(self) -> dict[str, float]:
        """The bounds that are not None, by name."""
        each = {"ge": self.ge, "gt": self.gt, "le": self.le, "lt": self.lt}
        return {name: bound for name, bound in each.items() if bound is not None}

    def words(self) -> str:
        """The range in words: "from 1 to 1_000", "above 0 and at most 100"; empty: no bound."""
        low = f"from {_number(self.ge)}" if self.ge is not None else ""
        low = f"above {_number(self.gt)}" if self.gt is not None else low
        high = f"to {_number(self.le)}" if self.le is not None else ""
        high = f"below {_number(self.lt)}" if self.lt is not None else high
        if low and self.lt is not None:
            high = f"and {high}"
        if self.gt is not None and self.le is not None:
            high = f"and at most {_number(self.le)}"
        return f"{low} {high}".strip()

    def hold(self, value: float) -> bool:
        """Whether a number is within all bounds; NaN is not."""
        return (
            value == value
            and (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )


def _number(value: float) -> str:
    return f"{int(value):_}" if value == int(value) else f"{value:g}"


@dataclass(frozen=True, slots=True)
class FromRun:
    """Marks a field that a run sets."""

    fact: str
    """What sets it: a key of [algorithm], `training_devices` or `cohort_share`."""


@dataclass(frozen=True, slots=True)
class Hyperparameter:
    """A field with bounds."""

    type: Any
    """float, int, bool, str or a Literal of texts."""
    bounds: Bounds
    default: Any
    """Its default; `dataclasses.MISSING` where a value must be given."""

    def allows(self, value: Any) -> bool:
        """Whether the field may have this value. A whole number may stand for a float."""
        if get_origin(self.type) is Literal:
            return value in get_args(self.type)
        if isinstance(value, bool) or self.type in (bool, str):
            return type(value) is self.type
        kinds = (int, float) if self.type is float else (self.type,)
        return isinstance(value, kinds) and self.bounds.hold(value)

    def allowed(self) -> str:
        """The values that `allows` accepts, in words."""
        if get_origin(self.type) is Literal:
            return f"one of {', '.join(get_args(self.type))}"
        return self.bounds.words()


Rate = Annotated[float, Bounds(gt=0.0, le=100.0)]
Steps = Annotated[int, Bounds(ge=1, le=10_000)]
Strength = Annotated[float, Bounds(ge=0.0, le=1e3)]
HeadLeaves = Annotated[int, Bounds(ge=1, le=64)]


def hyperparameters(kind: type) -> Mapping[str, Hyperparameter]:
    """The fields of a dataclass that have `Bounds`, by name, in the order of the dataclass."""
    found = {}
    for field in dataclasses.fields(kind):
        type_, marks = annotation(kind, field.name)
        for mark in marks:
            if isinstance(mark, Bounds):
                found[field.name] = Hyperparameter(type_, mark, field.default)
    return MappingProxyType(found)


def facts_wanted(kind: type) -> Mapping[str, str]:
    """The fact that sets each field with `FromRun`, by the field's name."""
    found = {
        field.name: mark.fact
        for field in dataclasses.fields(kind)
        for mark in annotation(kind, field.name)[1]
        if isinstance(mark, FromRun)
    }
    return MappingProxyType(found)


def annotation(kind: type, name: str) -> tuple[Any, tuple[Any, ...]]:
    """A field's type and its `Annotated` extras, if the annotation can be evaluated."""
    owner = next(base for base in kind.__mro__ if name in vars(base).get("__annotations__", {}))
    found = vars(owner)["__annotations__"][name]
    if isinstance(found, str):
        alone = type(owner.__name__, (), {"__annotations__": {name: found}})
        names = vars(sys.modules.get(owner.__module__, object))
        try:
            found = get_type_hints(alone, {**names}, include_extras=True)[name]
        except (NameError, AttributeError, TypeError):
            return found, ()
    if get_origin(found) is Annotated:
        return get_args(found)[0], found.__metadata__
    return found, ()
