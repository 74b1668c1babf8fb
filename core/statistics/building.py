"""Questions from what people write: a method's name, a formula, settings; and their categories."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from .formula import parse_formula
from .methods.column_values import ColumnValues, ValuesAnswer
from .question import Question, methods, question_from
from .request import Request, Rows
from .sums import StatisticsError

_FACTOR = re.compile(r"C\(([^)]*)\)")
#: Settings that name a column whose categories a method needs.
_GROUPS = ("group", "strata")


def build(
    method: str,
    formula: str = "",
    settings: Mapping[str, Any] | None = None,
    find: Callable[[tuple[str, ...]], Mapping[str, tuple[str, ...]]] | None = None,
    floor: int = 1,
) -> Question:
    """A question of a method.

    Args:
        method: its name, as `methods()` has it.
        formula: `y ~ a + C(b)`; for times `Surv(time, event) ~ a`. Empty: settings say all.
        settings: the method's settings by name.
        find: gives the categories of columns that the settings do not list; None: nothing does.
        floor: rows of a group, a bin or a time at least, where the settings do not say it.

    Raises:
        StatisticsError: there is no such method, or these are not its settings.
    """
    kind = methods().get(method)
    if kind is None:
        raise StatisticsError(
            f"there is no method `{method[:40]}`", f"one of {', '.join(methods())}"
        )
    given = dict(settings or {})
    if formula:
        given = {**_of_formula(kind, formula), **given}
    known = {f.name for f in fields(kind)}
    for each in fields(kind):
        # A command line's `of=age,city`.
        if str(each.type).startswith("tuple[str") and isinstance(given.get(each.name), str):
            given[each.name] = tuple(part.strip() for part in given[each.name].split(","))
    if "floor" in known:
        given.setdefault("floor", floor)
    if "least_per_bin" in known and floor > 1 and not given.get("entry"):
        given.setdefault("least_per_bin", floor)
    lacking = _lacking(kind, given)
    if lacking and find is not None:
        given["categories"] = {**given.get("categories", {}), **find(lacking)}
    if "features" in given:
        given["features"] = tuple(_FACTOR.sub(r"\1", str(f)) for f in given["features"])
    return question_from({"method": method, **given})


def _lacking(kind: type[Question], given: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns whose categories the settings do not list."""
    if "categories" not in {f.name for f in fields(kind)}:
        return ()
    wanted = [str(given[name]) for name in _GROUPS if given.get(name)]
    terms = [term for name in ("predictors", "random", "features") for term in given.get(name, ())]
    for term in terms:
        wanted += _FACTOR.findall(str(term))
    listed = given.get("categories", {})
    return tuple(dict.fromkeys(c for c in wanted if c not in listed))


def finder(
    ask: Callable[[Request], Any], rows: Rows, floor: int, noise: float = 0.0
) -> Callable[[tuple[str, ...]], Mapping[str, tuple[str, ...]]]:
    """Finds categories by a question of its own.

    Args:
        ask: answers a request.
        rows: those that the categories are of.
        floor: rows of a category in all sites together, at least.
        noise: as in `Request`.
    """

    def find(columns: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
        found: ValuesAnswer = ask(Request(ColumnValues(columns, floor), rows, noise))
        return {column: tuple(sorted(found.values[column])) for column in columns}

    return find


def _of_formula(kind: type[Question], text: str) -> dict[str, Any]:
    found = parse_formula(text)
    known = {f.name for f in fields(kind)}
    given: dict[str, Any] = {}
    if "time" in known:
        if len(found.outcome) not in (2, 3):
            raise StatisticsError(
                f"`{kind.method}` is about a time and an event", "Surv(time, event) ~ age + C(sex)"
            )
        given["time"], given["event"] = found.outcome[-2:]
        if len(found.outcome) == 3:
            given["entry"] = found.outcome[0]
    elif "target" in known and "features" in known:
        if len(found.outcome) != 1 or any(":" in term for term in found.predictors):
            raise StatisticsError(
                f"`{kind.method}` is about one target, and finds products by itself", "y ~ a + C(b)"
            )
        given["target"], given["features"] = found.outcome[0], found.predictors
        return given
    elif "outcome" in known:
        if len(found.outcome) != 1:
            raise StatisticsError(f"`{kind.method}` is about one outcome", "y ~ a + b")
        given["outcome"] = found.outcome[0]
    else:
        raise StatisticsError(f"`{kind.method}` takes no formula", f"it has {', '.join(known)}")
    if "predictors" in known:
        given["predictors"] = found.predictors
    elif "group" in known and len(found.predictors) <= 1:
        if found.predictors:
            given["group"] = _FACTOR.sub(r"\1", found.predictors[0])
    else:
        raise StatisticsError(f"`{kind.method}` takes no predictors in a formula")
    if "intercept" in known:
        given["intercept"] = found.intercept
    return given
