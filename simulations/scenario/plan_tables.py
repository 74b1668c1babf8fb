"""The tables of a scenario that are a run's plan: their keys are the fields of its dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, create_model

from ...core.learning import plan, plan_settings
from .settings_table import Table

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def _default(setting: plan_settings.Setting) -> Any:
    return setting.default if setting.key.scenario is None else setting.key.scenario


def key(setting: plan_settings.Setting) -> Any:
    """The field of a table that a setting is: its default in a scenario, and its bounds."""
    default = _default(setting)
    bounds: Any = setting.bounds.given()
    return Field(default=... if default is MISSING else default, **bounds)


def key_at_top(name: str) -> Any:
    """The field of a scenario that is a setting of no table."""
    return key(plan_settings.settings()[name])


def _type_of(setting: plan_settings.Setting) -> Any:
    optional = setting.optional and setting.key.scenario is None
    return setting.type | None if optional else setting.type


def keys_of(name: str) -> list[plan_settings.Setting]:
    """The settings of a plan's part that are keys of its table."""
    kind = plan.TABLES[name]
    return [
        s
        for s in plan_settings.settings_of(kind, name)
        if s.key.scenario is not plan_settings.NO_KEY
    ]


def table_of(name: str) -> type[Table]:
    """The table of a plan's part: round, privacy or evaluation."""
    kind = plan.TABLES[name]
    keys: dict[str, Any] = {
        setting.name: (_type_of(setting), key(setting)) for setting in keys_of(name)
    }
    made: type[Table] = create_model(kind.__name__, __base__=Table, __module__=__name__, **keys)
    made.__doc__, made.documented = kind.__doc__, kind
    return made


def part_of(table: Table, name: str) -> Any:
    """The part of a plan that a table is."""
    kind = plan.TABLES[name]
    return kind(**{setting.name: getattr(table, setting.name) for setting in keys_of(name)})


def current(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario that an older version stored as JSON, under the names of today.

    A key that it lacks has its default.
    """
    tables = {**stored}
    for name in plan.TABLES:
        tables[name] = table = {
            s.name: _default(s) for s in keys_of(name) if _default(s) is not None
        }
        for old, value in stored.get(name, {}).items():
            setting = plan_settings.renamed().get(f"{name}.{old}")
            table[setting.name if setting else old] = (
                plan_settings.converted(old, setting, value) if setting else value
            )
    return tables


if TYPE_CHECKING:
    # A type checker does not know a model that is created, and lets none extend a frozen dataclass.
    class _Table:
        model_fields: ClassVar[Mapping[str, FieldInfo]]
        model_fields_set: set[str]

        @classmethod
        def model_construct(cls) -> Self: ...

    class Round(plan.Round, _Table):
        """The table `round`."""

        cohort: int
        over_selection: float

    class Privacy(plan.Privacy, _Table):
        """The table `privacy`."""

    class PlanEvaluation(plan.Evaluation, _Table):
        """The table `evaluation`, but for its keys outside a plan."""

else:
    Round, Privacy, PlanEvaluation = map(table_of, ("round", "privacy", "evaluation"))
