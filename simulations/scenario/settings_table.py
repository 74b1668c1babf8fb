"""What the tables of a scenario's file have in common."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, PrivateAttr
from pydantic_core import PydanticCustomError

from ...core.common.field_docs import field_docs

DEVICES_MAX = 1_000_000

T = TypeVar("T", bound="Table")


class Table(BaseModel):
    """A table of the file: it refuses unknown keys, converts no value, and is frozen.

    A key's meaning is the text under it, which is read when it is asked for: neither that nor
    building a validator for each table is worth the start of every command.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )

    documented: ClassVar[type | None] = None
    """The dataclass whose fields the keys are, where they are derived from one."""

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """The text under each key, its own or inherited."""
        return {**(field_docs(cls.documented) if cls.documented else {}), **field_docs(cls)}


class FileTable(Table):
    """A whole file: what it names is relative to its folder."""

    _folder: Path = PrivateAttr(default_factory=Path)

    def placed_in(self, folder: Path) -> Self:
        """The scenario itself, once its files are relative to a folder."""
        self._folder = folder
        return self

    @property
    def folder(self) -> Path:
        """What files are relative to."""
        return self._folder


def with_defaults(table: T, values: Mapping[str, Any]) -> T:
    """The table with these values for keys that are not set; they still count as not set."""
    known = {**dict(table), **values}
    return type(table).model_construct(_fields_set={*table.model_fields_set}, **known)


CHANGE = "change this key or the one it does not go with"


def conflict(key: str, message: str, hint: str = CHANGE) -> PydanticCustomError:
    """Two keys that do not go together; `key` is the dotted name of the one to change."""
    facts = {"reason": message, "key": key, "hint": hint}
    return PydanticCustomError("conflict", "{reason}", facts)


def hint_of(fitting: Mapping[str, int]) -> str:
    """A hint that says what to write."""
    return f"{' '.join(f'--set {key}={n}' for key, n in fitting.items())}, or that in the file"
