"""A machine's state as bytes and back: JSON with sorted keys, so equal states have equal bytes.

States are dataclasses of int, float, bool, str, bytes (or views of such), None, enums, lists,
tuples, dicts, u32 vectors, protobuf messages and other such dataclasses; the type annotations say
how to read them again. No pickle: a snapshot that was tampered with gives a wrong state or a
SnapshotError, and runs nothing.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import types
import typing
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from ..common.errors import DelianError

T = TypeVar("T")


#: What reading a damaged snapshot can raise.
_DAMAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, DecodeError)


class SnapshotError(DelianError):
    """A stored state cannot be read."""


def dump(state: Any) -> bytes:
    """A dataclass as bytes."""
    return json.dumps(_plain(state), sort_keys=True, separators=(",", ":")).encode()


def load(cls: type[T], data: bytes) -> T:
    """The dataclass that `dump` wrote. Raises SnapshotError."""
    try:
        return typing.cast(T, _read(cls, json.loads(data)))
    except _DAMAGE as fault:
        raise SnapshotError(
            f"a stored {cls.__name__} cannot be read: {fault}",
            "restore it from a backup, or start the node afresh",
        ) from fault


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, int | str):
        return value
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, Message):
        return base64.b64encode(value.SerializeToString(deterministic=True)).decode()
    if isinstance(value, np.ndarray):
        assert value.dtype == np.uint32, "states hold ring vectors only"
        return base64.b64encode(value.astype("<u4").tobytes()).decode()
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        # Pairs, in the dict's own order: it may mean something. JSON's keys are strings, ours need
        # not be.
        return [[_plain(k), _plain(v)] for k, v in value.items()]
    assert dataclasses.is_dataclass(value), f"{type(value).__name__} cannot be in a state"
    return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _read(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _read_union(arguments, value)
    if origin is list:
        return [_read(arguments[0], v) for v in value]
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_read(arguments[0], v) for v in value)
        return tuple(_read(a, v) for a, v in zip(arguments, value, strict=True))
    if origin is dict:
        return {_read(arguments[0], k): _read(arguments[1], v) for k, v in value}
    if origin is np.ndarray:
        return np.frombuffer(base64.b64decode(value, validate=True), "<u4").astype(np.uint32)
    return _read_plain(hint, value)


def _read_union(arguments: tuple[Any, ...], value: Any) -> Any:
    # A view is read again as the bytes that it shows.
    others = [a for a in arguments if a not in (type(None), memoryview)]
    assert len(others) == 1, "a state's unions are X | None"
    return None if value is None else _read(others[0], value)


def _read_plain(hint: Any, value: Any) -> Any:
    if hint is bytes:
        return base64.b64decode(value, validate=True)
    if issubclass(hint, Enum):
        return hint(value)
    if issubclass(hint, Message):
        return hint.FromString(base64.b64decode(value, validate=True))
    if hasattr(hint, "__dataclass_fields__"):
        hints, former = _hints(hint), getattr(hint, "FORMER", ())
        return hint(**{n: _read(hints[n], v) for n, v in value.items() if n not in former})
    if type(value) is not hint:
        raise TypeError(f"{value!r} is no {hint.__name__}")
    return value
