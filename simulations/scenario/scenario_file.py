"""Reading scenarios, from a file or by the name of a bundled one, with overrides.

Every mistake becomes a DelianError that names the file, the line, what is wrong, what is allowed,
and the nearest key there is.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.common.collector import unsearched
from ...core.common.errors import DelianError, Loc
from ...core.common.foreign_formats import refuse_file

with unsearched():
    from pydantic import BaseModel, ValidationError

    from ...core.learning.plan import TABLES as PLAN_TABLES
    from ...core.learning.plan_settings import RenamedWarning, converted, renamed
    from .algorithm_table import OWN, TABLES
    from .scenario import Scenario
    from .scenario_keys import allowed, holds_table, keys_of, table_at, tables
    from .toml_lines import KeyPath, key_locations

if TYPE_CHECKING:
    from ...core.learning.aggregate.chains import Chain

BUNDLED = Path(__file__).parent / "scenarios"
DEFAULT = "digits"
SCENARIO_BYTES_MAX = 1 << 20
PROBLEMS_SHOWN_MAX = 5
UNIONS = ("data", "model")


def bundled() -> dict[str, Path]:
    """The scenarios that come with Delian, by name."""
    return {path.stem: path for path in sorted(BUNDLED.glob("*.toml"))}


def load(source: str | Path = DEFAULT) -> Scenario:
    """The scenario of a file, or the bundled one of that name.

    Raises DelianError with file and line.
    """
    path = find(source)
    text = _read(path)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(path, error) from None
    except RecursionError:
        raise DelianError(
            f"{path}: arrays in arrays, too deep", "no key takes such a value"
        ) from None
    places: Mapping[KeyPath, Any] = key_locations(text, str(path))
    return _validate(*_renamed(raw, _Origin(str(path), places))).placed_in(path.parent)


def override(scenario: Scenario, settings: Sequence[str]) -> Scenario:
    """The scenario with `key=value` settings: `rounds=5`, `network.device_edge.loss=0.1`.

    A value is TOML; what is no TOML value is taken as text, so that quotes may be left out. The
    settings are validated together, so that keys that depend on each other can change at once.
    `algorithm.name` is applied first (`with_algorithm`), then `chain`, the kinds of model and data,
    and the others in order.
    """
    raw = scenario.model_dump(exclude_unset=True)
    parsed: list[tuple[KeyPath, Any, str]] = []
    labels: dict[KeyPath, str] = {}
    chain = None
    for setting in settings:
        key, equals, text = setting.partition("=")
        path, text = tuple(part.strip() for part in key.split(".")), text.strip()
        if not equals or not all(path):
            raise DelianError(
                f"--set {setting}: this is not key=value",
                "for example --set rounds=5 or --set fleet.dropout=0.1",
            )
        if path == ("algorithm", "name"):
            labels["algorithm",] = _choose_algorithm(raw, text.strip("\"'"))
        elif path == ("chain",):
            chain, labels[path] = text.strip("\"'"), "--set chain"
        else:
            at, value = _current(path, _value(text))
            parsed.append((at, _from_here(scenario, at, value), f"--set {setting}"))
    if chain is not None:
        raw = _with_chain(raw, chain)
    for path, value, label in sorted(parsed, key=lambda each: ".".join(each[0]) not in _KINDS):
        if ".".join(path) in _KINDS:
            _of_kind(raw, path, value)
        _put(raw, path, value, label)
        labels[path] = label
    return (
        _again(scenario, raw, _Origin(", ".join(labels.values()), labels)) if labels else scenario
    )


#: Keys whose values are files; `model.loss` is FILE:CLASS.
_FILES = (
    ("data", "path"),
    ("model", "file"),
    ("model", "weights"),
    ("model", "loss"),
    ("algorithm", "file"),
    ("split", "device_profile"),
    ("split", "edge_profile"),
)


def _from_here(scenario: Scenario, path: KeyPath, value: Any) -> Any:
    """A file of a setting: one that is not in the scenario's folder is one of the working folder.

    A bundled scenario's folder is Delian's own.
    """
    if path not in _FILES or not isinstance(value, str):
        return value
    file, colon, kind = value.rpartition(":") if path == ("model", "loss") else (value, "", "")
    if path == ("model", "loss") and not colon:
        return value
    if (scenario.folder / file).exists() or not Path(file).exists():
        return value
    return f"{Path(file).absolute()}{colon}{kind}"


def setting_of(settings: Sequence[str], name: str) -> Any:
    """What these settings give a key, such as `data.target`; None: nothing."""
    for setting in reversed(settings):
        key, _, text = setting.partition("=")
        if key.strip() == name:
            return _value(text.strip())
    return None


def devices_of(settings: Sequence[str]) -> int:
    """The devices that these settings deal data to; zero: as many as fit."""
    given = setting_of(settings, "fleet.devices")
    return given if isinstance(given, int) and given > 0 else 0


#: Keys that say which keys their tables have.
_KINDS = ("model.name", "data.source")


def _of_kind(raw: dict[str, Any], path: KeyPath, kind: Any) -> None:
    """Leaves out of a table what its new kind does not know, as `with_algorithm` does."""
    table, tag = path
    now = raw.get(table, {}).get(tag)
    if kind in tables(table) and now != kind:
        known = table_at((table,), {table: {tag: kind}}).model_fields
        raw[table] = {key: value for key, value in raw[table].items() if key in known}
        if table == "model" and now in tables(table):  # whose keys of one name may differ
            before = table_at((table,), {table: {tag: now}}).model_fields
            for key in set(raw[table]) - {tag}:
                if known[key].annotation != before[key].annotation:
                    del raw[table][key]


def with_algorithm(scenario: Scenario, name: str) -> Scenario:
    """The scenario with another algorithm, by name or as FILE.py or FILE.py:CLASS.

    Its settings are the scenario's `[alternatives.NAME]`; without such a table, the settings that
    the two algorithms share are kept and the others are the algorithm's own defaults.
    """
    return override(scenario, [f"algorithm.name={name}"])


def _choose_algorithm(raw: dict[str, Any], name: str) -> str:
    """Changes the algorithm of raw tables; returns what errors in its table begin with."""
    source, _, own = name.partition(".py:")
    file = f"{source}.py" if own else name if name.endswith(".py") else ""
    label = f"algorithm {name}"
    if file:
        name, file = OWN, str(Path(file).absolute())
    elif name == raw["algorithm"]["name"]:
        return label
    if name not in TABLES:
        names = [known for known in TABLES if known != OWN]
        raise DelianError(
            f"there is no algorithm `{name}`", _nearest_hint(name, names, "algorithms")
        )
    table = raw.get("alternatives", {}).get(name)
    if table is None:
        known = TABLES[name].model_fields
        table = {k: v for k, v in raw["algorithm"].items() if k in known}
    raw["algorithm"] = {**table, "name": name, **({"file": file, "kind": own} if file else {})}
    return label


def with_chain(scenario: Scenario, chain: Chain) -> Scenario:
    """The scenario with another composition, in the place of all keys that say its own."""
    raw = _with_chain(scenario.model_dump(exclude_unset=True), str(chain))
    return _again(scenario, raw, _Origin("the chain", {}))


def _with_chain(raw: dict[str, Any], chain: str) -> dict[str, Any]:
    from .composition import governed  # here, for it takes long to import

    return governed(raw, chain)


def from_tables(tables: Mapping[str, Any], label: str = "the scenario") -> Scenario:
    """A scenario from plain tables, as a file has them. Raises DelianError as `load` does."""
    return _validate(dict(tables), _Origin(label, {}))


def with_source(scenario: Scenario, source: str, keys: Mapping[str, Any]) -> Scenario:
    """The scenario on a user's own data in place of its own.

    keys: of the data, in the place of the scenario's; a natural partition brings its own devices,
    else examples are dealt out as before.
    """
    known = table_at(("data",), {"data": {"source": source}}).model_fields
    raw = scenario.model_dump(exclude_unset=True)
    raw["data"] = {k: v for k, v in raw["data"].items() if k in known and k != "path"}
    raw["data"] |= {"source": source, **keys}
    if keys.get("partition") == "natural":
        raw["fleet"] = {k: v for k, v in raw.get("fleet", {}).items() if k != "devices"}
    return _again(scenario, raw, _Origin("--data", {}))


def with_fleet(scenario: Scenario, devices: int, training: int) -> Scenario:
    """The scenario on data of `devices` devices, of which `training` train.

    Numbers that are not set are lowered to these.
    """
    changes = []
    if scenario.fleet.edges > devices and "edges" not in scenario.fleet.model_fields_set:
        changes.append(f"fleet.edges={devices}")
    if scenario.round.cohort > training >= 1 and "cohort" not in scenario.round.model_fields_set:
        changes.append(f"round.cohort={training}")
    return override(scenario, changes)


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a raw scenario is from: a file and where its keys stand, or a command-line setting."""

    label: str
    places: Mapping[KeyPath, Loc | str]

    def prefix(self, path: KeyPath) -> tuple[str, str]:
        """What stands before a message about `path`, and what stands under it."""
        for end in range(len(path), 0, -1):
            if loc := self.places.get(path[:end]):
                excerpt = loc.excerpt() if isinstance(loc, Loc) else ""
                return f"{loc}: ", f"\n{excerpt}" if excerpt else ""
        return f"{self.label}: ", ""


def _current(path: KeyPath, value: Any, where: str = "") -> tuple[KeyPath, Any]:
    """A key's name and value today; a warning says the name that is no longer used."""
    old = ".".join(path)
    setting = renamed().get(old)
    if setting is None or setting.table != path[0]:
        return path, value
    warnings.warn(f"{where}`{old}` is now `{setting.path}`", RenamedWarning, stacklevel=3)
    return (setting.table, setting.name), converted(old, setting, value)


def _renamed(raw: dict[str, Any], origin: _Origin) -> tuple[dict[str, Any], _Origin]:
    """A file's tables, and where its keys stand, under the names of today."""
    tables, places = {**raw}, {**origin.places}
    for name, table in raw.items():
        if name not in PLAN_TABLES or not isinstance(table, dict):
            continue
        tables[name] = {}
        for key, value in table.items():
            old: KeyPath = (name, key)
            path, current = _current(old, value, origin.prefix(old)[0])
            if path[1] in tables[name] or (path != old and path[1] in table):
                before, under = origin.prefix(old)
                raise DelianError(
                    f"{before}`{name}.{key}` and `{'.'.join(path)}` are one key{under}",
                    "leave out the first: it is the older name",
                )
            tables[name][path[1]] = current
            if old in places:
                places[path] = places[old]
    return tables, _Origin(origin.label, places)


def _again(scenario: Scenario, raw: dict[str, Any], origin: _Origin) -> Scenario:
    return _validate(raw, origin).placed_in(scenario.folder)


def find(source: str | Path) -> Path:
    """The file that a path or a bundled scenario's name stands for."""
    path = Path(source)
    _refuse_other(path)
    if path.is_file():
        return path
    named = bundled()
    if str(source) in named:
        return named[str(source)]
    if path.is_dir():
        raise DelianError(f"{path} is a folder, not a scenario", "name the .toml file in it")
    hint = _nearest_hint(str(source), named, "bundled scenarios")
    raise DelianError(f"there is no scenario file {source}", hint)


#: Files that are named in a scenario's place, by their suffix: what they are, and the option.
_OTHERS = {
    **dict.fromkeys(
        (
            ".csv",
            ".tsv",
            ".json",
            ".jsonl",
            ".ndjson",
            ".gz",
            ".parquet",
            ".feather",
            ".npz",
            ".txt",
            ".text",
        ),
        ("data", "--data"),
    ),
    ".py": ("a Python file", "--torch"),
}


def _refuse_other(path: Path) -> None:
    """Raises DelianError for data and models in the place of a scenario."""
    refuse_file(path, "model")
    if path.suffix in _OTHERS:
        if not path.exists():
            raise DelianError(f"there is no file {path}", "see the name and the folder")
        what, option = _OTHERS[path.suffix]
        more = "" if option == "--data" else ":Net trains the PyTorch module Net of it"
        raise DelianError(
            f"{path} is {what}, and no scenario", f"delian simulate {option} {path}{more}"
        )


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > SCENARIO_BYTES_MAX:
            raise DelianError(
                f"{path} is larger than a scenario can be", "is it a scenario at all?"
            )
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DelianError(f"{path} is not UTF-8 text", "a scenario is a TOML file") from None
    except OSError as error:
        raise DelianError(
            f"cannot read {path}: {error.strerror}", "check its permissions"
        ) from None


def _syntax_error(path: Path, error: tomllib.TOMLDecodeError) -> DelianError:
    message = str(error)
    hint = "text values need quotes; tables are [name]; keys are key = value"
    if path.suffix != ".toml":
        hint = "a scenario is a TOML file; docs/scenarios.md lists the data that are read"
    if match := re.search(r"\s*\(at line (\d+), column (\d+)\)$", message):
        line, column = int(match[1]), int(match[2])
        loc = Loc(str(path), line, column - 1, line, column)
        excerpt = loc.excerpt()
        message = f"{loc}: {message[: match.start()]}" + (f"\n{excerpt}" if excerpt else "")
        return DelianError(message, hint)
    return DelianError(f"{path}: {message}", hint)


def _put(raw: dict[str, Any], path: KeyPath, value: Any, label: str) -> None:
    table = raw
    for i, part in enumerate(path[:-1]):
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise DelianError(
                f"{label}: `{'.'.join(path[: i + 1])}` is a value, not a table",
                "`delian scenario keys` lists all keys",
            )
        table = inner
    table[path[-1]] = value


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError, RecursionError):
        return text


def _validate(raw: dict[str, Any], origin: _Origin) -> Scenario:
    try:
        return Scenario.model_validate(_named_alternatives(raw))
    except ValidationError as error:
        problems = error.errors(include_url=False)
    described = [_describe(problem, raw, origin) for problem in problems[:PROBLEMS_SHOWN_MAX]]
    if len(described) == 1:
        raise DelianError(*described[0])
    lines = [f"{message}\n  hint: {hint}" if hint else message for message, hint in described]
    if len(problems) > len(described):
        lines.append(f"and {len(problems) - len(described)} more")
    raise DelianError("\n".join(lines))


def _named_alternatives(raw: dict[str, Any]) -> dict[str, Any]:
    """The same, leaving out alternatives that are None in a dump."""
    alternatives = raw.get("alternatives")
    if not isinstance(alternatives, dict):
        return raw
    return {**raw, "alternatives": {k: v for k, v in alternatives.items() if v is not None}}


def _describe(problem: Mapping[str, Any], raw: dict[str, Any], origin: _Origin) -> tuple[str, str]:
    """One problem as (message, hint)."""
    loc = list(problem["loc"])
    if len(loc) > 1 and loc[0] in UNIONS:
        del loc[1]  # the union's tag, which is no part of the file
    path = tuple(str(part) for part in loc if not isinstance(part, int))
    kind = problem["type"]
    if kind == "extra_forbidden":
        return _unknown_key(path, isinstance(problem["input"], dict), raw, origin)
    if kind == "conflict":
        path = (*path, *problem["ctx"]["key"].split("."))
        before, under = origin.prefix(path)
        told = f"{before}`{'.'.join(path)}`: {problem['ctx']['reason']}{under}"
        return told, problem["ctx"]["hint"]
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        path = (*path, problem["ctx"]["discriminator"].strip("'"))
    name = ".".join(path)
    before, under = origin.prefix(path)
    if kind in ("missing", "union_tag_not_found"):
        return f"{before}`{name}` is missing{under}", _sentence("it is", allowed(path, raw))
    if kind == "union_tag_invalid":
        tag, names = problem["ctx"]["tag"], tables(path[0])
        return f"{before}`{name}` cannot be {_shown(tag)}{under}", _nearest_hint(
            str(tag), names, "choices"
        )
    message = f"{before}`{name}` cannot be {_shown(problem['input'])}{under}"
    return message, _sentence("it must be", allowed(path, raw))


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | BaseModel):
        return "a table"
    return str(value)


def _sentence(start: str, rest: str) -> str:
    return f"{start} {rest}" if rest else ""


def _unknown_key(
    path: KeyPath, is_table: bool, raw: dict[str, Any], origin: _Origin
) -> tuple[str, str]:
    before, under = origin.prefix(path)
    *parents, key = path
    where = f"[{'.'.join(parents)}]" if parents else "the scenario"
    owner = table_at(tuple(parents), raw)
    tag = owner.model_fields.get("name") or owner.model_fields.get("source")
    if parents and tag is not None and isinstance(tag.default, str):
        where += f" of {tag.default}"
    message = f"{before}there is no key `{key}` in {where}{under}"
    siblings = list(owner.model_fields)
    alike = [s for s in siblings if holds_table(owner, s) == is_table]
    if close := difflib.get_close_matches(key, alike, 1):
        return message, f"did you mean `{close[0]}`? {where} knows: {', '.join(siblings)}"
    elsewhere = [".".join(p) for p in keys_of(raw) if p[-1] == key and p[0] != "alternatives"]
    if elsewhere:
        return message, f"did you mean `{elsewhere[0]}`? {where} knows: {', '.join(siblings)}"
    return message, f"{where} knows: {', '.join(siblings)}"


def _nearest_hint(name: str, known: Iterable[str], what: str) -> str:
    names = list(known)
    close = difflib.get_close_matches(Path(name).stem, names, 1)
    start = f"did you mean `{close[0]}`? " if close else ""
    return f"{start}{what}: {', '.join(names)}"
