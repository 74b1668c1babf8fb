"""Reading data files that may be missing, cut short, malformed or hostile.

Every size is taken from the file's headers and checked before memory is asked for; nothing is
unpickled. What can go wrong ends as a DelianError that names the file.
"""

from __future__ import annotations

import errno
import gzip
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from ...common.files import read_at_most
from .federated_data import FEDERATION_BYTES_MAX

try:
    from lzma import LZMAError
except ImportError:  # a process without it: zipfile raises RuntimeError for such a file
    LZMAError = zlib.error  # type: ignore[assignment,misc]

CHUNK_BYTES = 1 << 20

# What zipfile, the decompressors and NumPy raise on damaged input (RuntimeError: an encrypted file
# or an unknown method; SyntaxError, TokenError: a header that is no literal of Python's).
BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    LZMAError,
    struct.error,
    OSError,
    EOFError,
    ValueError,
    KeyError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    tokenize.TokenError,
    MemoryError,
)


def require_file(path: Path, hint: str) -> None:
    """Raise unless `path` is a file that can be opened."""
    if path.is_dir():
        raise DelianError(f"{path} is a folder, not a data file", hint)
    if not path.exists():
        raise DelianError(f"there is no data file {path}", hint)
    if not path.is_file():
        raise DelianError(f"{path} is a device or a pipe, not a data file", hint)


def read_gzip(path: Path, bytes_max: int) -> bytes:
    """The whole of a gzip file, at most `bytes_max` once unpacked."""
    require_file(path, "check the path, or reinstall the package that it belongs to")
    try:
        with gzip.open(path) as stream:
            content = stream.read(bytes_max + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DelianError(
            f"{path} is not a whole gzip file: {error}", "get the file again"
        ) from None
    if len(content) > bytes_max:
        raise DelianError(
            f"{path} unpacks to more than {bytes_max} bytes", "this is not the expected file"
        )
    return content


def read_text(path: Path, bytes_max: int) -> str:
    """The whole of a UTF-8 text file, at most `bytes_max`, without a byte order mark."""
    require_file(path, "give the file's path with --data FILE or data.path")
    try:
        return utf8(path, read_at_most(path, bytes_max))
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise DelianError(
                f"{path} is larger than {bytes_max >> 20} MiB", "cut the text into a smaller file"
            ) from None
        raise DelianError(
            f"cannot read {path}: {error.strerror}", "check the file's permissions"
        ) from None


def utf8(path: Path, content: bytes) -> str:
    """A file's content as text, without a byte order mark. Raises DelianError with the line."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DelianError(
            f"{path} is not UTF-8 text, but UTF-16", "convert the file to UTF-8 (iconv -t UTF-8)"
        )
    try:
        return str(content, "utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        # The decoder counts from behind a mark, and a line's number does not depend on it.
        line = content.count(b"\n", 0, error.start) + 1
        raise DelianError(
            f"{path} is not UTF-8 text (byte {error.start}) in line {line}",
            "convert the file to UTF-8, such as iconv -f LATIN1 -t UTF-8",
        ) from None


def npz_keys(path: Path) -> tuple[str, ...]:
    """The names of the arrays in an .npz file; of a packed one, those that its blocks make up."""
    from .packed.packed_rows import is_packed, packed_columns

    if is_packed(path):
        return packed_columns(path)
    with _open_npz(path) as archive:
        return tuple(n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy"))


def read_npz(path: Path, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The named arrays of an .npz file, also of a packed one.

    Raises DelianError when the file is missing, is no zip archive, is cut short, lacks a key, holds
    Python objects, or declares more than 4 GiB.
    """
    from .packed.packed_rows import is_packed, packed_arrays

    whole = packed_arrays(path, FEDERATION_BYTES_MAX) if is_packed(path) else None
    with _open_npz(path) as archive:
        present = npz_keys(path)
        if missing := [k for k in keys if k not in present]:
            raise DelianError(
                f"{path} has no array {', '.join(f'`{k}`' for k in missing)}; "
                f"it has {', '.join(f'`{k}`' for k in present) or 'none'}",
                "save the arrays with numpy.savez under these names",
            )
        if whole is not None:
            return {key: whole[key] for key in keys}
        room = FEDERATION_BYTES_MAX
        arrays = {}
        for key in keys:
            arrays[key] = _read_member(path, archive, key, room)
            room -= arrays[key].nbytes
    return arrays


def _open_npz(path: Path) -> zipfile.ZipFile:
    require_file(path, "give the data file's path with --data FILE or data.path")
    try:
        return zipfile.ZipFile(path)
    except BROKEN as error:
        raise DelianError(
            f"{path} is not a whole .npz file: {error}",
            "it may be cut short, or no .npz at all: write it again with numpy.savez",
        ) from None


def _read_member(path: Path, archive: zipfile.ZipFile, key: str, room: int) -> NDArray[Any]:
    try:
        with archive.open(f"{key}.npy") as stream:
            shape, fortran, dtype = read_npy_header(stream)
            if dtype.hasobject:
                raise DelianError(
                    f"array `{key}` of {path} holds Python objects",
                    "save it as numbers or as fixed-length text",
                )
            size = math.prod(shape) * dtype.itemsize
            if size > room:
                raise DelianError(
                    f"array `{key}` of {path} declares {size / 2**30:.1f} GiB; "
                    f"a data file may hold {FEDERATION_BYTES_MAX / 2**30:.0f} GiB",
                    "cut the data into smaller files",
                )
            content = _read_exactly(stream, size)
            array = np.frombuffer(content, dtype)
            return array.reshape(shape, order="F" if fortran else "C")
    except BROKEN as error:
        raise DelianError(
            f"array `{key}` of {path} cannot be read: {error}",
            "the file may be damaged: write it again",
        ) from None


def read_npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran's order, and dtype of an .npy file. Raises those of `BROKEN`."""
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"unknown .npy version {version}")
    shape, fortran, dtype = read(stream)
    if any(size < 0 for size in shape):
        raise ValueError(f"negative size in shape {shape}")
    return shape, fortran, dtype


def _read_exactly(stream: IO[bytes], size: int) -> bytearray:
    """`size` bytes, growing with what is really there: a header alone cannot make us allocate."""
    content = bytearray()
    while len(content) < size:
        chunk = stream.read(min(CHUNK_BYTES, size - len(content)))
        if not chunk:
            raise EOFError(f"it declares {size} bytes and ends after {len(content)}")
        content += chunk
    return content
