"""A plan as PlanMessage's fields, and back: by the fields of `plan`, one rule for all.

Zero stands for what is absent, so a field of the message that is zero takes the default; but not in
a message within it, which is there as a whole or not at all. Clip, bits, rotation and the
coordinates that travel are the ring plan's, which is made for the whole run and says them itself.
"""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

from ..privacy.mechanisms.ring import RingPlan
from ..wire.operator_pb2 import PlanMessage
from .plan import TABLES, Plan
from .plan_settings import PlanError, Setting, settings

#: Settings that are there as a message, or are a list of edges: no field holds their value.
_PRESENT = {"privacy.aggregation", "privacy.noise", "privacy.helpers"}

#: Older plans say these also where nothing reads them.
_IGNORED = (
    *("round.buffer", "round.concurrency", "round.staleness_max"),
    *("evaluation.cohort", "evaluation.improvement_min"),
)


def encode(plan: Plan, message: PlanMessage) -> None:
    """Sets the fields of a message that are settings of a plan."""
    there = {
        "": True,
        "ring": False,
        "secure": plan.masked,
        "privacy": plan.noised,
        "aggregation": plan.by_rule,
        "moving_clip": plan.privacy.clip_quantile is not None,
    }
    for path, setting in settings().items():
        part, _, name = setting.wire.rpartition(".")
        value = setting.of(plan)
        if value is None or path in _PRESENT or not there[part]:
            continue
        owner = getattr(message, part) if part else message
        enum = owner.DESCRIPTOR.fields_by_name[name].enum_type
        setattr(owner, name, value if enum is None else enum.values_by_name[value.upper()].number)


def decode(message: PlanMessage, ring: RingPlan, bounded: bool = True) -> dict[str, Any]:
    """What a message sets, as arguments of `Plan`.

    Args:
        bounded: whether values are held to the bounds of their fields.

    Raises:
        PlanError: a value is unknown or out of bounds; it names the field.
    """
    values = {p: _read(message, s, bounded) for p, s in settings().items() if p not in _PRESENT}
    values |= {
        "privacy.aggregation": "secure" if message.HasField("secure") else "plain",
        "privacy.noise": "none",
        "privacy.helpers": len(message.secure.helpers),
        "privacy.random_k": ring.kept / ring.coordinates if ring.kept else None,
        "privacy.top_k": ring.top / ring.dimension if ring.top else None,
    }
    if message.HasField("privacy"):
        values["privacy.noise"] = "central" if ring.central else "distributed"
    read = {
        "buffered": values["round.mode"] == "buffered",
        "evaluates": values["evaluation.every"] > 0,
    }
    for path in _IGNORED:
        setting = settings()[path]
        values[path] = values[path] if read[setting.key.when] else setting.default
    arguments = {name: value for name, value in values.items() if "." not in name}
    for table, kind in TABLES.items():
        prefix = f"{table}."
        own = {p.removeprefix(prefix): v for p, v in values.items() if p.startswith(prefix)}
        arguments[table] = kind(**own)
    return arguments


def _read(message: PlanMessage, setting: Setting, bounded: bool) -> Any:
    """The value of a setting in a message."""
    part, _, name = setting.wire.rpartition(".")
    if part and not message.HasField(part):
        return setting.default
    owner: Any = getattr(message, part) if part else message
    value = getattr(owner, name)
    enum = owner.DESCRIPTOR.fields_by_name[name].enum_type
    if not part and not value and setting.default is not MISSING:
        return setting.default
    if enum is not None:
        known = enum.values_by_number.get(value)
        if known is None or not setting.allows(known.name.lower()):
            raise PlanError(setting.path, f"{value} is not known here", setting.allowed())
        return known.name.lower()
    if bounded and part != "ring" and not setting.allows(value):
        shown = f"{value:g}" if isinstance(value, float) else f"{value}"
        raise PlanError(setting.path, shown, setting.allowed())
    return value
