"""The keys of scenarios, read off their models: for errors, `delian scenario keys`, the docs."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from ...core.learning.hyperparameters import Bounds
from . import algorithm_table, data_settings
from .algorithm_table import Chosen
from .scenario import Scenario
from .settings_table import Table
from .toml_lines import KeyPath

#: The tables that choose among several, and the key that chooses.
CHOICES = {"data": "source", "model": "name", "algorithm": "name"}
_UNIONS: dict[str, Any] = {"data": data_settings.Data, "model": data_settings.Model}


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a scenario."""

    path: KeyPath
    """Its tables and its name."""
    allowed: str
    """Its type and its bounds."""
    default: str
    """Empty: it must be given."""
    meaning: str


def tables(part: str) -> Mapping[str, type[Table]]:
    """What `data`, `model` or `algorithm` chooses among, by the name that chooses."""
    if part == "algorithm":
        return algorithm_table.TABLES
    members = get_args(get_args(_UNIONS[part])[0])
    return {member.model_fields[CHOICES[part]].default: member for member in members}


def table_at(path: KeyPath, raw: dict[str, Any]) -> type[Table]:
    """The model of the table at `path`.

    Where there is a choice of models, `raw` names one, else it is the first.
    """
    model: type[Table] = Scenario
    for i, part in enumerate(path):
        if i == 0 and part in CHOICES:
            choice = raw.get(part)
            chosen = str(choice.get(CHOICES[part])) if isinstance(choice, dict) else ""
            known = tables(part)
            model = known[chosen if chosen in known else next(iter(known))]
            continue
        field = model.model_fields.get(part)
        inner = None if field is None else _table_in(field)
        if inner is None:
            break
        model = inner
    return model


def _table_in(field: FieldInfo) -> type[Table] | None:
    """The model of the table that a field holds, if it holds one."""
    for mark in field.metadata:
        if isinstance(mark, Chosen) and mark.name:
            return algorithm_table.table_of(mark.name)
    for option in (field.annotation, *get_args(field.annotation)):
        if isinstance(option, type) and issubclass(option, Table):
            return option
    return None


def holds_table(model: type[Table], name: str) -> bool:
    """Whether this key of the table is a table itself."""
    is_choice = model is Scenario and name in CHOICES
    return is_choice or _table_in(model.model_fields[name]) is not None


def keys_of(raw: dict[str, Any]) -> list[KeyPath]:
    """Every key that a scenario with `raw`'s choices may have."""
    found: list[KeyPath] = []

    def visit(path: KeyPath) -> None:
        for name in table_at(path, raw).model_fields:
            if holds_table(table_at(path, raw), name):
                visit((*path, name))
            else:
                found.append((*path, name))

    visit(())
    return found


def reference() -> Iterator[tuple[str, str, list[Key]]]:
    """Every table of a scenario as (heading, what it is, its keys), in the order of the file."""
    yield "", _meaning(Scenario), _own_keys(Scenario, ())
    for part, tag in CHOICES.items():
        for name, model in tables(part).items():
            yield f'[{part}] {tag} = "{name}"', _meaning(model), _own_keys(model, (part,))
    for path in _inner_tables((), Scenario):
        model = table_at(path, {})
        if keys := _own_keys(model, path):
            yield f"[{'.'.join(path)}]", _meaning(model), keys


def reference_of(model: type[Table]) -> Iterator[tuple[str, str, list[Key]]]:
    """The same of another kind of file, whose tables hold no choice and no tables."""
    yield "", _meaning(model), _own_keys(model, ())
    for name, field in model.model_fields.items():
        inner = _table_in(field)
        if inner is not None:
            many = get_origin(field.annotation) is list
            heading = f"[[{name}]]" if many else f"[{name}]"
            yield heading, _meaning(inner), _own_keys(inner, (name,))


def markdown(tables: Iterable[tuple[str, str, list[Key]]] | None = None) -> str:
    """The reference as Markdown, for docs/scenarios.md, or another one."""
    parts = []
    for heading, meaning, keys in reference() if tables is None else tables:
        parts.append(f"### {f'`{heading}`' if heading else 'At the top'}\n\n{meaning}\n")
        parts.append("| key | must be | default | meaning |\n|---|---|---|---|")
        for key in keys:
            default = f"`{key.default}`" if key.default else "must be given"
            parts.append(f"| `{key.path[-1]}` | {key.allowed} | {default} | {key.meaning} |")
        parts.append("")
    return "\n".join(parts)


def _inner_tables(path: KeyPath, model: type[Table]) -> Iterator[KeyPath]:
    """The paths of the tables in it that are no choice; alternatives have the algorithms' keys."""
    for name, field in model.model_fields.items():
        if not path and name in (*CHOICES, "alternatives"):
            continue
        inner = _table_in(field)
        if inner is None:
            continue
        yield (*path, name)
        yield from _inner_tables((*path, name), inner)


def _meaning(model: type[Table]) -> str:
    return " ".join((model.__doc__ or "").split())


def _own_keys(model: type[Table], path: KeyPath) -> list[Key]:
    """The table's own keys, without those of the tables in it."""
    found, meanings = [], model.meanings()
    for name, field in model.model_fields.items():
        if holds_table(model, name):
            continue
        default = "" if field.is_required() else _toml(field.get_default(call_default_factory=True))
        found.append(Key((*path, name), _allowed(field), default, meanings.get(name, "")))
    return found


def allowed(path: KeyPath, raw: dict[str, Any]) -> str:
    """What the key at `path` may be, in words: "a whole number from 1 to 1000"."""
    if path[-1] in CHOICES and len(path) == 1:
        return "a table"
    owner = table_at(path[:-1], raw)
    field = owner.model_fields.get(path[-1])
    if field is None:
        return ""
    if len(path) == 2 and path[0] in CHOICES and path[1] == CHOICES[path[0]]:
        return f"one of {', '.join(tables(path[0]))}"
    return _allowed(field)


def _allowed(field: FieldInfo) -> str:
    return words(field.annotation, field.metadata)


def words(annotation: Any, marks: Iterable[Any]) -> str:
    """What a value of this type may be. marks: what has bounds as attributes `ge`, `gt`, ..."""
    metadata = list(marks)
    options = [a for a in get_args(annotation) if a is not type(None)]
    if type(None) in get_args(annotation) and len(options) == 1:
        annotation = options[0]
    if get_origin(annotation) is typing.Annotated:
        metadata += [m for f in annotation.__metadata__ for m in getattr(f, "metadata", [f])]
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(str(a) for a in get_args(annotation))}"
    if get_origin(annotation) is dict:
        lists = any(get_origin(a) is list for a in get_args(get_args(annotation)[1]))
        return "a table of numbers" + (", lists of them and texts" if lists else " and texts")
    if get_origin(annotation) is tuple:
        return f"a list of {_items(get_args(annotation)[0])}"
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return "a table"
    if annotation is str:
        return "text"
    if annotation is bool:
        return "true or false"
    words = {int: "a whole number", float: "a number"}.get(annotation, "a value")
    return words + _range(metadata)


def _items(annotation: Any) -> str:
    """What the values of a list may be."""
    metadata: list[Any] = []
    if get_origin(annotation) is typing.Annotated:
        metadata = [m for f in annotation.__metadata__ for m in getattr(f, "metadata", [f])]
        annotation = get_args(annotation)[0]
    many = {str: "texts", int: "whole numbers", float: "numbers"}[annotation]
    return many if annotation is str else many + _range(metadata)


def _range(metadata: list[Any]) -> str:
    """The bounds among what annotates a type, in words after a blank."""
    bounds = {
        name: getattr(mark, name)
        for mark in metadata
        for name in ("ge", "gt", "le", "lt")
        if getattr(mark, name, None) is not None
    }
    return f" {Bounds(**bounds).words()}" if bounds else ""


def _toml(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(v) for v in value)}]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
