"""What of the wire contract must not change, as lines of text, to compare versions.

Peers of different versions understand each other as long as a field keeps its number, its type and
its place, and a number that was given up is never given again (Protocol Buffers, "Updating A
Message Type"). A field's name is not on the wire, and no message is stored as JSON. `lines` lists
the contract as it is now; `breaks` says what an old peer would stumble over.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from delian.core import wire
from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    FileDescriptor,
    ServiceDescriptor,
)

_TYPES = {
    value: name.removeprefix("TYPE_").lower()
    for name, value in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def files() -> list[FileDescriptor]:
    """The contract's files, by name."""
    modules = sorted(path.stem for path in Path(wire.__path__[0]).glob("*_pb2.py"))
    return [importlib.import_module(f"{wire.__name__}.{name}").DESCRIPTOR for name in modules]


def lines() -> list[str]:
    """Every field, enum value and call: `Message 3 name: type`, sorted."""
    found: list[str] = []
    for file in files():
        for message in file.message_types_by_name.values():
            found += _message(message)
        for enum in file.enum_types_by_name.values():
            found += _enum(enum)
        for service in file.services_by_name.values():
            found += _service(service)
    return sorted(found)


def _message(message: Descriptor) -> Iterator[str]:
    for field in message.fields:
        oneof = field.containing_oneof
        inside = f" of {oneof.name}" if oneof is not None else ""
        yield f"{message.full_name} {field.number} {field.name}: {_type(field)}{inside}"
    for inner in message.nested_types:
        yield from _message(inner)
    for enum in message.enum_types:
        yield from _enum(enum)


def _type(field: FieldDescriptor) -> str:
    named = field.message_type or field.enum_type
    kind = named.full_name if named is not None else _TYPES[field.type]
    return f"repeated {kind}" if field.is_repeated else kind


def _enum(enum: EnumDescriptor) -> Iterator[str]:
    for value in enum.values:
        yield f"{enum.full_name} {value.number} {value.name}: value"


def _service(service: ServiceDescriptor) -> Iterator[str]:
    for method in service.methods:
        asks = "stream " * method.client_streaming + method.input_type.full_name
        gives = "stream " * method.server_streaming + method.output_type.full_name
        yield f"{service.full_name} - {method.name}: {asks} -> {gives}"


def breaks(old: Iterable[str], new: Iterable[str]) -> list[str]:
    """What of `old` is not in `new` any more, each as a sentence.

    Additions break nothing, nor does a new name of a field: the wire has its number. A name of
    `old` under another number does.
    """
    old, new = list(old), list(new)
    before, now = {_name(line) for line in old}, {_place(line): line for line in new}
    found = []
    for line in old:
        is_now = now.get(_place(line))
        if is_now is None:
            found.append(f"{line}: is gone (reserve its number and give it to nothing else)")
        elif is_now != line and (_kind(is_now) != _kind(line) or _name(is_now) in before):
            found.append(f"{line}: became {is_now}")
    return found


def _name(line: str) -> tuple[str, str]:
    """The message that a field is of, and the field's name."""
    owner, _, rest = line.split(" ", 2)
    return owner, rest.partition(":")[0]


def _kind(line: str) -> str:
    """A line without the field's name; with it for an enum's value, whose name is its meaning."""
    rest = line.split(" ", 2)[2]
    return rest if rest.endswith(": value") else rest.partition(":")[2]


def _place(line: str) -> tuple[str, ...]:
    """What peers find it by: the number, or for a call its name."""
    owner, number, rest = line.split(" ", 2)
    return (owner, number) if number != "-" else (owner, rest.partition(":")[0])
