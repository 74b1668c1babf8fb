"""Configuration in four layers; the later ones win.

    defaults    what is written in `cli/settings.py`
    file        delian.toml in the working folder, or --config FILE, or the file in $DELIAN_CONFIG
    environment DELIAN__CLOUD__LISTEN=0.0.0.0:7443 for `listen` in [cloud]
    flags       of the command, or --set cloud.listen=0.0.0.0:7443

`load` keeps where each value came from (`delian config show --origin`). An unknown key is rejected,
wherever it stands: a misspelt limit must not be a limit that is not there.

A secret may also come from a file, so that it stands neither in the environment nor in the
configuration: `store_file = "/run/secrets/database-url"` in place of `store`. Any text key has such
a twin.
"""

from __future__ import annotations

import difflib
import os
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ..core.common.errors import DelianError, Loc
from ..simulations.scenario.toml_lines import KeyPath, key_locations
from .settings import Config
from .settings_forms import is_loopback

FILE = "delian.toml"
FILE_VARIABLE = "DELIAN_CONFIG"
PREFIX = "DELIAN__"
FILE_BYTES_MAX = 1 << 20
#: Parts of a key. The longest has five.
DEPTH_MAX = 32
SECRET_BYTES_MAX = 64 * 1024
MASK = "********"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from."""

    kind: str
    """Default, file, environment or flag."""
    name: str = ""
    """The file and line, the variable or the flag."""
    loc: Loc | None = None

    def __str__(self) -> str:
        return self.name or self.kind


@dataclass(frozen=True, slots=True)
class Loaded:
    """The configuration, and where each key's value came from."""

    config: Config
    origins: Mapping[KeyPath, Origin]
    given: frozenset[KeyPath]
    file: Path | None

    def origin(self, path: KeyPath) -> Origin:
        """Where the value of a key came from."""
        if path not in self.given:
            return Origin(DEFAULT)
        for end in range(len(path), 0, -1):
            if found := self.origins.get(path[:end]):
                return found
        return Origin(DEFAULT)


def load(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Loaded:
    """Reads all layers.

    file: of --config. flags: by dotted key, None where a flag was not given; their names are made
    of the key's last part. settings: `key=value` of --set. folder: where to look for delian.toml.
    Raises DelianError that says what, where and what is allowed.
    """
    variables = os.environ if environment is None else environment
    raw: dict[str, Any] = {}
    origins: dict[KeyPath, Origin] = {}
    path = _find(file, variables, folder or Path())
    if path is not None:
        _take_file(path, raw, origins)
    for name, text in sorted(variables.items()):
        if name.startswith(PREFIX):
            key = tuple(part.lower() for part in name.removeprefix(PREFIX).split("__"))
            origin = Origin("environment", name)
            _put(raw, origins, key, _parsed(key, text, origin), origin)
    for dotted, value in (flags or {}).items():
        if value is not None:
            key = tuple(dotted.split("."))
            _put(raw, origins, key, value, Origin("flag", "--" + key[-1].replace("_", "-")))
    for setting in settings:
        dotted, equals, text = setting.partition("=")
        if not equals:
            raise DelianError(
                f"--set {setting}: this is not key=value", "for example log.level=debug"
            )
        key = tuple(part.strip() for part in dotted.split("."))
        origin = Origin("flag", f"--set {dotted}")
        _put(raw, origins, key, _parsed(key, text, origin), origin)
    _read_secrets(raw, origins)
    config = _validated(raw, origins)
    _check(config, origins)
    given = {(*key, name) for key, table in _tables(raw) for name in table}
    return Loaded(config, origins, frozenset(given), path)


# ---------------------------------------------------------------- layers


def _find(file: Path | None, variables: Mapping[str, str], folder: Path) -> Path | None:
    if file is None and variables.get(FILE_VARIABLE):
        file = Path(variables[FILE_VARIABLE])
    if file is not None:
        if file.is_dir():
            raise DelianError(f"{file} is a folder, not a configuration", "name the .toml file")
        if not file.exists():
            raise DelianError(f"there is no configuration file {file}")
        return file
    here = folder / FILE
    return here if here.is_file() else None


def _take_file(path: Path, raw: dict[str, Any], origins: dict[KeyPath, Origin]) -> None:
    try:
        with path.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise DelianError(
            f"cannot read {path}: {error.strerror}", "check its permissions"
        ) from None
    if len(content) > FILE_BYTES_MAX:
        raise DelianError(f"{path} is larger than a configuration can be")
    try:
        text = content.decode()
        raw.update(tomllib.loads(text))
    except UnicodeDecodeError:
        raise DelianError(f"{path} is not UTF-8 text", "it must be a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise DelianError(
            f"{path}: {error}", "text values need quotes; sections are [name]; keys are key = value"
        ) from None
    except RecursionError:
        raise DelianError(
            f"{path}: arrays in arrays, too deep", "no key takes such a value"
        ) from None
    for key, loc in key_locations(text, str(path)).items():
        if len(key) > DEPTH_MAX:
            raise DelianError(f"{loc}: a key of {len(key)} parts", "none has more than a few")
        origins[key] = Origin("file", f"{path}:{loc.line}", loc)


def _put(
    raw: dict[str, Any],
    origins: dict[KeyPath, Origin],
    key: KeyPath,
    value: Any,
    origin: Origin,
) -> None:
    table = raw
    for part in key[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise DelianError(f"{origin}: `{'.'.join(key)}` is no key", _nearest(key))
        table = inner
    table[key[-1]] = value
    for other in [o for o in origins if o[: len(key)] == key]:
        del origins[other]
    origins[key] = origin


def _parsed(key: KeyPath, text: str, origin: Origin) -> Any:
    """What a text from outside a file means for a key.

    As it is for text, else a TOML value; of a list, items may stand between commas.
    """
    field = field_of(key)
    if field is None:
        if key[-1].endswith("_file") and field_of(_twin(key)) is not None:
            return text
        raise DelianError(f"{origin}: there is no key `{'.'.join(key)}`", _nearest(key))
    kinds = _kinds(field.annotation)
    if not kinds & {bool, int, float, tuple}:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError, RecursionError):
        pass
    if tuple in kinds:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _kinds(annotation: Any) -> set[Any]:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return set().union(*(_kinds(part) for part in typing.get_args(annotation)))
    if origin is typing.Annotated:
        return _kinds(typing.get_args(annotation)[0])
    return {origin or annotation}


def _read_secrets(raw: dict[str, Any], origins: dict[KeyPath, Origin]) -> None:
    """Replaces `key_file` by the content of the file that it names, for keys that are text."""
    for key, table in list(_tables(raw)):
        for name in [n for n in table if n.endswith("_file")]:
            path = (*key, name)
            field = field_of(_twin(path))
            if field_of(path) is not None or field is None or _kinds(field.annotation) != {str}:
                continue
            origin = origins.get(path, Origin("file"))
            file = table.pop(name)
            if _twin(path)[-1] in table:
                raise DelianError(
                    f"{origin}: both `{'.'.join(_twin(path))}` and `{'.'.join(path)}` are given",
                    "give one of them",
                )
            table[_twin(path)[-1]] = _secret(file, origin)
            origins[_twin(path)] = Origin(origin.kind, f"{origin} ({file})", origin.loc)


def _secret(file: Any, origin: Origin) -> str:
    try:
        with Path(str(file)).open("rb") as opened:
            content = opened.read(SECRET_BYTES_MAX + 1)
        if len(content) > SECRET_BYTES_MAX:
            raise DelianError(f"{origin}: {file} is too large")
        return content.decode().strip()
    except (OSError, UnicodeDecodeError, ValueError):
        raise DelianError(f"{origin}: cannot read {file}") from None


def _twin(key: KeyPath) -> KeyPath:
    return (*key[:-1], key[-1].removesuffix("_file"))


def _tables(raw: dict[str, Any], key: KeyPath = ()) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    yield key, raw
    for name, value in raw.items():
        if isinstance(value, dict):
            yield from _tables(value, (*key, name))


# ---------------------------------------------------------------- keys


def keys(
    model: type[BaseModel] = Config, path: KeyPath = ()
) -> Iterator[tuple[KeyPath, FieldInfo]]:
    """Every key that is a value, with what is known of it."""
    sections = []
    for name, field in model.model_fields.items():
        if (inner := _section(field)) is not None:
            sections.append((inner, (*path, name)))
        else:
            yield (*path, name), field
    for inner, below in sections:
        yield from keys(inner, below)


def field_of(key: KeyPath) -> FieldInfo | None:
    """What is known of a key; None when it is no key or a section."""
    return _FIELDS.get(key)


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


_FIELDS = dict(keys())


def value_of(config: Config, key: KeyPath) -> Any:
    """A key's value."""
    value: Any = config
    for part in key:
        value = getattr(value, part)
    return value


def shown(key: KeyPath, value: Any) -> Any:
    """A value as it may be shown to people and written as JSON: without secrets."""
    extra = _FIELDS[key].json_schema_extra
    secret = extra.get("secret") if isinstance(extra, dict) else None
    if secret is True and value:
        return MASK
    if secret == "password" and isinstance(value, str):
        return without_password(value)
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def without_password(url: str) -> str:
    """A URL with its password, and whatever follows a `?`, masked."""
    parts = urlsplit(url)
    if parts.password is not None:
        user, _, host = parts.netloc.rpartition("@")
        parts = parts._replace(netloc=f"{user.partition(':')[0]}:{MASK}@{host}")
    if parts.query:
        parts = parts._replace(query=MASK)
    return urlunsplit(parts)


def _nearest(key: KeyPath) -> str:
    dotted = ".".join(key)
    known = {".".join(k): k for k in _FIELDS}
    last = {k[-1]: ".".join(k) for k in _FIELDS if k[:1] == key[:1]}
    found = difflib.get_close_matches(dotted, known, n=1, cutoff=0.7)
    if not found and key:
        found = [last[n] for n in difflib.get_close_matches(key[-1], last, n=1, cutoff=0.6)]
    return f"did you mean `{found[0]}`?" if found else "`delian config keys` lists all keys"


# ---------------------------------------------------------------- judging

_ALLOWED = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def _validated(raw: dict[str, Any], origins: Mapping[KeyPath, Origin]) -> Config:
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    told = [_problem(problem, origins) for problem in problems[:5]]
    if len(problems) > len(told):
        told.append((f"and {len(problems) - len(told)} more", ""))
    if len(told) == 1:
        raise DelianError(*told[0])
    raise DelianError("\n".join(f"{m}\n  hint: {h}" if h else m for m, h in told))


def _problem(problem: Mapping[str, Any], origins: Mapping[KeyPath, Origin]) -> tuple[str, str]:
    parts = tuple(str(part) for part in problem["loc"])
    while parts and parts not in _FIELDS and problem["type"] != "extra_forbidden":
        if any(known[: len(parts)] == parts for known in _FIELDS):
            break
        parts = parts[:-1]  # an item of a list, or a branch of a union
    before, under = _place(parts, origins)
    dotted = ".".join(parts)
    if problem["type"] == "extra_forbidden":
        return f"{before}there is no key `{dotted}`{under}", _nearest(parts)
    value = problem.get("input")
    shown_value = f'"{value}"' if isinstance(value, str) else value
    if parts in _FIELDS and _FIELDS[parts].json_schema_extra:
        shown_value = "this"
    message = f"{before}`{dotted}` cannot be {shown_value}{under}"
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in _ALLOWED:
        bound, words = _ALLOWED[kind]
        return message, f"it must be {words} {context[bound]}"
    if kind == "literal_error":
        return message, f"it must be {context['expected']}"
    if kind == "value_error":
        return message, f"write {context['error']}"
    return message, problem["msg"][:1].lower() + problem["msg"][1:]


def _place(key: KeyPath, origins: Mapping[KeyPath, Origin]) -> tuple[str, str]:
    for end in range(len(key), 0, -1):
        if origin := origins.get(key[:end]):
            if origin.loc is None:
                return f"{origin}: ", ""
            excerpt = origin.loc.excerpt()
            return f"{origin.loc}: ", f"\n{excerpt}" if excerpt else ""
    return "", ""


def _check(config: Config, origins: Mapping[KeyPath, Origin]) -> None:
    """What keys owe to one another."""
    cloud, edge = config.cloud, config.edge
    open_doors = [
        ("cloud.listen", cloud.insecure, cloud.listen),
        ("edge.listen", edge.insecure, edge.listen),
        ("operator.coordinator", config.operator.insecure, config.operator.coordinator),
    ]
    for name, insecure, address in open_doors:
        if insecure and not is_loopback(address):
            before, under = _place(tuple(name.split(".")), origins)
            raise DelianError(
                f"{before}`{name}` is {address}, and without TLS it must be loopback{under}",
                "give it an identity, or use 127.0.0.1",
            )
    for section in ("edge", "device"):
        chosen = getattr(config, section)
        if chosen.number is not None and not chosen.insecure:
            before, under = _place((section, "number"), origins)
            raise DelianError(
                f"{before}`{section}.number` is given, but the certificate has the {section}'s "
                f"number{under}",
                f"leave it out, or set {section}.insecure on loopback",
            )
