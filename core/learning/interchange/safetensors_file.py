"""Files of named tensors in the format of safetensors: read and written without its package.

    8 bytes       length of the header, little-endian
    header        JSON: {"__metadata__": {text: text}, NAME: {"dtype": "F32", "shape": [2, 3],
                  "data_offsets": [begin, end]}, ...}; spaces may follow
    data          the tensors' elements, row by row, little-endian

Offsets count from the first byte of the data. In their order the tensors cover the data without a
hole and without an overlap: so no byte of a file means two things, or nothing. The format:
https://github.com/huggingface/safetensors, README and safetensors/src/tensor.rs.

A file comes from outside. What it says of itself is checked before memory is taken for it: the
header has at most `HEADER_BYTES_MAX`, and tensors take no more than the file has.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ...common.errors import DelianError
from ...common.files import write_parts
from ...compiler.ir import Array, DType

#: The format allows 100 MB. Python's objects take up to 32 times the bytes of their JSON, here at
#: most 256 MiB; 70,000 tensors have room.
HEADER_BYTES_MAX = 8 << 20
TENSORS_MAX = 1 << 16
#: Characters of a tensor's name. Those of deep modules have some hundred.
NAME_CHARS_MAX = 1024
#: Axes of a tensor: NumPy 1 has no more.
RANK_MAX = 32
#: Elements of a tensor, sizes of 0 counted as 1: the compiler's own limit (`attributes`).
ELEMENTS_MAX = 2**40
#: Of an integer in the header; 2^64 has 20 digits.
_DIGITS_MAX = 20
_LENGTH_BYTES = 8
#: The writer pads the header with spaces, so that the data begin at a multiple of this.
_ALIGNMENT = 8
_METADATA = "__metadata__"
_FIELDS = ("dtype", "shape", "data_offsets")
#: Characters of a file's own words that a message repeats.
_SHOWN = 60

#: The format's names of element types. The reference writer writes the last of them first, so that
#: each tensor begins at a multiple of its element's size.
_TYPES = {
    "BOOL": DType.BOOL,
    "U8": DType.U8,
    "I8": DType.I8,
    "I16": DType.I16,
    "U16": DType.U16,
    "F16": DType.F16,
    "BF16": DType.BF16,
    "I32": DType.I32,
    "U32": DType.U32,
    "F32": DType.F32,
    "F64": DType.F64,
    "I64": DType.I64,
    "U64": DType.U64,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_RANKS = {dtype: rank for rank, dtype in enumerate(_TYPES.values())}
_DAMAGED = "the file is damaged, cut short or of another format: get it again"
_REWRITE = "write the file again with a library of safetensors"


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the header says of a tensor. `begin` and `end` are offsets into the data."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


def read_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors of a file by name, in the header's order, and its metadata.

    Each array has memory of its own; f16 and bf16 stay as they are (bf16 needs delian[bf16]).

    Raises:
        DelianError: the file cannot be read, is no file of the format or breaks a rule of it, has
            an element type that Delian has not, or goes beyond a limit of this module.
    """
    where = Path(path)
    try:
        if not stat.S_ISREG(where.stat().st_mode):
            raise DelianError(f"{where} is not a file", "give the path of a .safetensors file")
        with where.open("rb") as file:
            return _read(file, str(where))
    except OSError as error:
        raise DelianError(
            f"{where} cannot be read: {error.strerror or error}", "check the path and its rights"
        ) from error


def _read(file: BufferedReader, where: str) -> tuple[dict[str, Array], dict[str, str]]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if size < _LENGTH_BYTES:
        raise DelianError(f"{where} has {size} bytes, and a header's length takes 8", _DAMAGED)
    if length > HEADER_BYTES_MAX:
        raise DelianError(
            f"{where}: a header of {length} bytes (bytes 0 to 7); at most {HEADER_BYTES_MAX}",
            "split the model into several files" if length < size else _DAMAGED,
        )
    if _LENGTH_BYTES + length > size:
        raise DelianError(
            f"{where}: the header ends at byte {_LENGTH_BYTES + length}, the file at {size}",
            _DAMAGED,
        )
    content = file.read(length)
    if len(content) != length:
        raise DelianError(f"{where} became shorter while it was read", "read it again")
    entries, metadata = _Header(where).parsed(content, size - _LENGTH_BYTES - length)
    read = {e.name: _tensor(file, where, e) for e in sorted(entries, key=_in_order)}
    return {e.name: read[e.name] for e in entries}, metadata


def _in_order(entry: _Entry) -> tuple[int, int]:
    return entry.begin, entry.end


def _tensor(file: BufferedReader, where: str, entry: _Entry) -> Array:
    """The next tensor. The file is read in the order of the data."""
    try:
        raw = np.empty(entry.end - entry.begin, np.uint8)
    except MemoryError:
        raise DelianError(
            f"{where}: there is no memory for {entry.name!r}, {entry.end - entry.begin} bytes",
            "read it on a machine with more memory",
        ) from None
    if raw.size and file.readinto(raw.data) != raw.size:
        raise DelianError(f"{where} became shorter while it was read", "read it again")
    if entry.dtype is DType.BOOL and raw.size and raw.max() > 1:
        place = entry.begin + int(np.argmax(raw > 1))
        raise DelianError(
            f"{where}: {entry.name!r} holds a bool that is neither 0 nor 1 (byte {place} of the"
            " data)",
            _REWRITE,
        )
    own = entry.dtype.numpy
    made: Array = raw.view(own.newbyteorder("<")).reshape(entry.shape)
    return made.astype(own, copy=False)


class _Header:
    """Reads a header; `where` begins each message."""

    def __init__(self, where: str) -> None:
        self.where = where

    def fail(self, message: str, hint: str = _REWRITE) -> NoReturn:
        raise DelianError(f"{self.where}: {message}", hint)

    def parsed(self, content: bytes, data_bytes: int) -> tuple[list[_Entry], dict[str, str]]:
        """The entries in the header's order, and the metadata. Raises DelianError."""
        header = self._json(content)
        metadata = self._metadata(header.pop(_METADATA, {}))
        if len(header) > TENSORS_MAX:
            self.fail(
                f"{len(header)} tensors; at most {TENSORS_MAX}", "split it into several files"
            )
        entries = [self._entry(name, value) for name, value in header.items()]
        place, before = 0, ""
        for entry in sorted(entries, key=_in_order):
            if entry.begin != place:
                what = "overlaps" if entry.begin < place else "leaves a hole after"
                self.fail(
                    f"{_shown(entry.name)} begins at byte {entry.begin} of the data and {what}"
                    f" {before or 'the header'}, which ends at {place}"
                )
            place, before = entry.end, _shown(entry.name)
        if place != data_bytes:
            self.fail(
                f"the tensors take {place} bytes of data, the file has {data_bytes}", _DAMAGED
            )
        return entries, metadata

    def _json(self, content: bytes) -> dict[str, Any]:
        if not content.startswith(b"{"):
            self.fail("the header does not begin with { (byte 8)", _DAMAGED)
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"the header is not UTF-8 (byte {_LENGTH_BYTES + error.start})", _DAMAGED)
        try:
            header = json.loads(
                text,
                object_pairs_hook=self._object,
                parse_int=self._int,
                parse_float=self._no_int,
                parse_constant=self._no_int,
            )
        except json.JSONDecodeError as error:
            byte = _LENGTH_BYTES + len(text[: error.pos].encode())
            self.fail(f"the header is not JSON: {error.msg} (byte {byte})", _DAMAGED)
        except RecursionError:
            self.fail("the header nests too deeply: a tensor's entry is flat")
        made: dict[str, Any] = header
        return made

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
            self.fail(f"the header has {_shown(twice)} twice")
        return made

    def _int(self, text: str) -> int:
        if text.startswith("-") or len(text) > _DIGITS_MAX:
            self.fail(f"the header has the number {text[:_SHOWN]}, which is no size and no offset")
        return int(text)

    def _no_int(self, text: str) -> NoReturn:
        self.fail(f"the header has {text[:_SHOWN]} where only whole numbers may stand")

    def _metadata(self, value: Any) -> dict[str, str]:
        if type(value) is not dict:
            self.fail(f"{_METADATA} must be an object of texts, not {_shown(value)}")
        for key, text in value.items():
            if type(text) is not str:
                self.fail(f"{_METADATA} has {_shown(text)} for {_shown(key)}: only texts may stand")
            self._encodable(key)
            self._encodable(text)
        found: dict[str, str] = value
        return found

    def _encodable(self, text: str) -> None:
        """JSON's escapes may give half a surrogate pair, which no file can hold as text."""
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"the header has {_shown(text)}, which is no Unicode text")

    def _entry(self, name: str, value: Any) -> _Entry:
        self._encodable(name)
        if len(name) > NAME_CHARS_MAX:
            self.fail(f"a tensor's name of {len(name)} characters; at most {NAME_CHARS_MAX}")
        shown = _shown(name)
        if type(value) is not dict or sorted(value) != sorted(_FIELDS):
            has = _shown(sorted(value) if type(value) is dict else value)
            self.fail(f"{shown} must have {', '.join(_FIELDS)}, and has {has}")
        dtype, shape, offsets = (value[field] for field in _FIELDS)
        if type(dtype) is not str or dtype not in _TYPES:
            self.fail(
                f"{shown} has the element type {_shown(dtype)}; there are {', '.join(_TYPES)}",
                "convert the tensor before it is written",
            )
        if not _are_ints(shape) or not _are_ints(offsets) or len(offsets) != 2:
            self.fail(f"{shown}: shape is a list of whole numbers, data_offsets one of two")
        if len(shape) > RANK_MAX:
            self.fail(f"{shown} has {len(shape)} axes; at most {RANK_MAX}")
        if math.prod(max(n, 1) for n in shape) > ELEMENTS_MAX:
            self.fail(f"{shown} of shape {shape} has more than {ELEMENTS_MAX} elements")
        wanted = math.prod(shape) * _TYPES[dtype].itemsize
        begin, end = offsets
        if end - begin != wanted:
            self.fail(
                f"{shown}, {dtype} of shape {shape}, takes {wanted} bytes, and has those from"
                f" {begin} to {end} of the data"
            )
        return _Entry(name, _TYPES[dtype], tuple(shape), begin, end)


def _are_ints(value: Any) -> bool:
    return type(value) is list and all(type(n) is int for n in value)


def _shown(value: Any) -> str:
    """A value of the file, as a message repeats it: short, and without control characters."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def write_safetensors(
    path: str | os.PathLike[str],
    arrays: Mapping[str, Array],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes arrays by name, whole or not at all, as the reference implementation does.

    Tensors are ordered by their element type, widest first, and by name, so that each is aligned.
    The same arrays and metadata give the same bytes.

    Raises:
        DelianError: an array has an element type that the format or Delian has not, a name or text
            is none, the header goes beyond a limit of `read_safetensors`, or the file cannot be
            written.
    """
    where = Path(path)
    found = [_found(name, array) for name, array in arrays.items()]
    found.sort(key=lambda item: (-_RANKS[item[1]], item[0]))
    if len(found) > TENSORS_MAX:
        raise DelianError(f"{len(found)} tensors; at most {TENSORS_MAX}", "write several files")
    header: dict[str, Any] = {}
    if metadata:
        if not all(type(text) is str for pair in metadata.items() for text in pair):
            raise DelianError("the metadata of a file are texts by texts", "convert them: str(x)")
        header[_METADATA] = {key: metadata[key] for key in sorted(metadata)}
    place = 0
    for name, dtype, array in found:
        ends = [place, place + array.nbytes]
        header[name] = dict(zip(_FIELDS, (_NAMES[dtype], list(array.shape), ends), strict=True))
        place = ends[1]
    try:
        content = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise DelianError("a name or the metadata hold no Unicode text", "leave it out") from None
    content += b" " * (-len(content) % _ALIGNMENT)
    if len(content) > HEADER_BYTES_MAX:
        raise DelianError(
            f"a header of {len(content)} bytes; at most {HEADER_BYTES_MAX}",
            "write several files, or less metadata",
        )
    first = len(content).to_bytes(_LENGTH_BYTES, "little") + content
    try:
        write_parts(where, _parts(first, found))
    except OSError as error:
        raise DelianError(
            f"{where} cannot be written: {error.strerror or error}", "check the folder"
        ) from error


def _found(name: str, value: Any) -> tuple[str, DType, Array]:
    """A tensor to write, its name checked as it will be when it is read."""
    array = np.asarray(value)
    if type(name) is not str or name == _METADATA or len(name) > NAME_CHARS_MAX:
        raise DelianError(
            f"a tensor cannot be named {_shown(name)}",
            f"a name is a text of at most {NAME_CHARS_MAX} characters, and not {_METADATA}",
        )
    try:
        dtype = DType.of(array.dtype.newbyteorder("="))
    except KeyError:
        raise DelianError(
            f"{_shown(name)} has the element type {array.dtype}, which the format has not",
            f"convert it: there are {', '.join(_TYPES)}",
        ) from None
    if array.ndim > RANK_MAX or math.prod(max(n, 1) for n in array.shape) > ELEMENTS_MAX:
        raise DelianError(
            f"{_shown(name)} has the shape {list(array.shape)}; at most {RANK_MAX} axes and"
            f" {ELEMENTS_MAX} elements",
            "reshape or split it",
        )
    return name, dtype, array


def _parts(first: bytes, found: list[tuple[str, DType, Array]]) -> Iterator[Any]:
    """The pieces of a file; one tensor at a time is copied where it does not lie row by row."""
    yield first
    for _, dtype, array in found:
        plain = np.ascontiguousarray(array, dtype.numpy.newbyteorder("<"))
        raw = plain.reshape(-1).view(np.uint8)
        # NumPy takes every byte but 0 for true.
        yield ((raw != 0).view(np.uint8) if dtype is DType.BOOL else raw).data
