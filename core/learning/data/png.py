"""PNG images of one grey channel, read without a library: what Omniglot is published as.

PNG (ISO/IEC 15948, RFC 2083): a signature, then chunks (length, type, content, CRC-32); IHDR first,
the pixels zlib-packed in IDAT chunks, IEND last. Each row has a filter (section 9) over bytes. Of
all that this reads grey images of 1 or 8 bits that are not interlaced, up to `SIDE_MAX` a side, and
unpacks no byte more than their size needs.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
SIDE_MAX = 512
GREY = 0
BITS = (1, 8)
WHITE = 255
#: Width, height, bits, colour, compression, filter, interlace.
HEADER = struct.Struct(">IIBBBBB")
NONE, SUB, UP, AVERAGE, PAETH = range(5)


def grey(content: bytes, name: str) -> NDArray[np.uint8]:
    """u8[height, width], 255 white. Raises DelianError for a damaged or another PNG."""
    try:
        return _read(content)
    except (ValueError, struct.error, zlib.error) as error:
        raise DelianError(f"{name} is no grey PNG image: {error}", "get the file again") from None


def _read(content: bytes) -> NDArray[np.uint8]:
    chunks = _chunks(content)
    kind, head = next(chunks, (b"", b""))
    if kind != b"IHDR":
        raise ValueError("it does not begin as one")
    width, height, bits, colour, packing, filters, interlaced = HEADER.unpack(head)
    if not (0 < width <= SIDE_MAX and 0 < height <= SIDE_MAX):
        raise ValueError(f"{width} x {height} pixels; at most {SIDE_MAX} a side are read")
    if colour != GREY or bits not in BITS or packing or filters or interlaced:
        raise ValueError(f"colour {colour}, {bits} bits, interlace {interlaced}; grey of 1 or 8 is")
    stride = (width * bits + 7) // 8
    size = height * (1 + stride)
    packed = b"".join(part for kind, part in chunks if kind == b"IDAT")
    unpacker = zlib.decompressobj()
    rows = unpacker.decompress(packed, size + 1)
    if len(rows) != size or not unpacker.eof:
        raise ValueError(f"its pixels are not {size} bytes")
    table = np.frombuffer(rows, np.uint8).reshape(height, 1 + stride)
    lines = _unfiltered(table[:, 0], table[:, 1:])
    if bits == 1:
        return np.unpackbits(lines, axis=1)[:, :width] * np.uint8(WHITE)
    return lines


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(type, content) up to IEND, each with its CRC-32 checked."""
    if not content.startswith(SIGNATURE):
        raise ValueError("it has not PNG's signature")
    at = len(SIGNATURE)
    while True:
        length, kind = struct.unpack_from(">I4s", content, at)
        body = content[at + 8 : at + 8 + length]
        (crc,) = struct.unpack_from(">I", content, at + 8 + length)
        if crc != zlib.crc32(body, zlib.crc32(kind)):
            raise ValueError(f"its {kind!r} is damaged")
        if kind == b"IEND":
            return
        yield kind, body
        at += 12 + length


def _unfiltered(kinds: NDArray[np.uint8], lines: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bytes under the filters of section 9; a pixel is at most a byte."""
    if not kinds.any():
        return lines
    out = np.zeros_like(lines)
    above = np.zeros(lines.shape[1], np.uint8)
    for row, (kind, line) in enumerate(zip(kinds, lines, strict=True)):
        if kind == NONE:
            out[row] = line
        elif kind == UP:
            out[row] = line + above
        elif kind == SUB:
            out[row] = np.cumsum(line, dtype=np.uint8)
        elif kind in (AVERAGE, PAETH):
            out[row] = _by_pixel(int(kind), line.tolist(), above.tolist())
        else:
            raise ValueError(f"a row has a filter {kind}")
        above = out[row]
    return out


def _by_pixel(kind: int, line: list[int], above: list[int]) -> list[int]:
    done: list[int] = []
    left = corner = 0
    for value, up in zip(line, above, strict=True):
        guess = (left + up) // 2 if kind == AVERAGE else _paeth(left, up, corner)
        left, corner = (value + guess) & 0xFF, up
        done.append(left)
    return done


def _paeth(left: int, up: int, corner: int) -> int:
    """Whichever of the three is nearest to left + up - corner, the first of them that is."""
    at = left + up - corner
    return min((left, up, corner), key=lambda v: abs(v - at))
