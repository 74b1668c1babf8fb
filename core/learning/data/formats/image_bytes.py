"""Encoded images as rows of pixels: JPEG by libjpeg-turbo, everything else by Pillow.

`simplejpeg` (the extra `jpeg`) decodes into the place of the row, without Python's lock, so that
threads decode at the same time. It takes a JPEG that has the row's size already; the pixels are the
ones that Pillow gives. All other images, sizes and grey rows of coloured images are Pillow's.
Sizes come from the headers and are limited before anything is decoded.
"""

from __future__ import annotations

import functools
import importlib
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from ....common.install_hint import install
from ..images import IMAGE_BYTES_MAX, IMAGE_PIXELS_MAX, eight_bits, upright
from ..rows import RowType

_JPEG = b"\xff\xd8\xff"
#: What begins a segment of a JPEG, the kinds of a scan and of notes, and how such a note begins.
_MARKER, _SCAN, _APP1, _EXIF = 0xFF, 0xDA, 0xE1, b"Exif\0\0"
#: The EXIF tag, and its values for images that are turned by a quarter.
_ORIENTATION, _SIDEWAYS = 0x0112, (5, 6, 7, 8)

Pixels = NDArray[np.uint8]


def check_image_row(shape: tuple[int, ...], where: str) -> None:
    """Raises DelianError where images cannot become rows of this shape."""
    sides = len(shape) in (2, 3) and min(shape) > 0 and shape[0] * shape[1] <= IMAGE_PIXELS_MAX
    if not sides or (len(shape) == 3 and shape[2] not in (1, 3)):
        raise DelianError(
            f"rows of {list(shape)} were asked for, and {where} holds images",
            "images are [height, width], with 1 or 3 channels where that is said",
        )


def decode_into(content: bytes | bytearray, out: Pixels, where: Callable[[], str]) -> None:
    """Decodes and scales one image into `out`, u8 [height, width] or [height, width, 1 or 3].

    where: says which image it is. Raises DelianError for what is no image, or too large a one.
    """
    if len(content) > IMAGE_BYTES_MAX:
        raise DelianError(f"{where()} is larger than {IMAGE_BYTES_MAX} bytes", "leave it out")
    colour = out.ndim == 3 and out.shape[2] == 3
    fast = _jpeg_decoder() if colour and content.startswith(_JPEG) else None
    if fast is not None and _lies_upright(content, where) and _decoded_jpeg(fast, content, out):
        return
    # Also of a JPEG that libjpeg-turbo refuses: Pillow's reason is the clearer one.
    with _opened(content, where) as image:
        turned = eight_bits(upright(image), where())
        made = turned.convert("RGB" if colour else "L")
        if made.size != (out.shape[1], out.shape[0]):
            made = made.resize((out.shape[1], out.shape[0]))
        out[...] = np.asarray(made, np.uint8).reshape(out.shape)


def size_of(content: bytes | bytearray, where: Callable[[], str]) -> tuple[int, int, int]:
    """Height, width and channels (1 or 3) of an image as it is decoded, by its header alone."""
    with _opened(content, where) as image:
        grey = image.mode.partition(";")[0] in ("1", "L", "LA", "La", "I", "F")
        turned = image.getexif().get(_ORIENTATION, 1) in _SIDEWAYS
        height, width = (image.width, image.height) if turned else (image.height, image.width)
        return height, width, 1 if grey else 3


@contextmanager
def _opened(content: bytes | bytearray, where: Callable[[], str]) -> Iterator[Any]:
    """An image as Pillow has it. Raises DelianError, also where it cannot be decoded in the block.

    What the decoders of damaged files raise is not listed anywhere, so every error is one.
    """
    pillow = pillow_images()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pillow.open(io.BytesIO(content)) as image:
                _check_pixels(image.width, image.height, where)
                yield image
    except (DelianError, MemoryError):
        raise
    except Exception as error:
        raise DelianError(
            f"{where()} is no image: {error}", "remove it, or write it again"
        ) from None


def as_row_dtype(pixels: Pixels, kind: RowType) -> NDArray[Any]:
    """u8 where the bundle takes u8 and scales by itself, else f32 from 0 to 1."""
    return pixels if kind.dtype == "u8" else pixels.astype(np.float32) / np.float32(255)


def _lies_upright(jpeg: bytes | bytearray, where: Callable[[], str]) -> bool:
    """Whether no camera's note (EXIF) says that a JPEG is to be turned."""
    at, size = 2, len(jpeg)
    while at + 10 <= size and jpeg[at] == _MARKER:
        kind = jpeg[at + 1]
        if kind == _SCAN:
            return True
        if kind == _APP1 and jpeg[at + 4 : at + 10] == _EXIF:
            with _opened(jpeg, where) as image:
                return bool(image.getexif().get(_ORIENTATION, 1) == 1)
        at += 2 + (jpeg[at + 2] << 8) + jpeg[at + 3]
    return False


def _check_pixels(width: int, height: int, where: Callable[[], str]) -> None:
    if width < 1 or height < 1 or width * height > IMAGE_PIXELS_MAX:
        raise DelianError(f"{where()} has {width} x {height} pixels", "leave it out")


def _decoded_jpeg(fast: Any, content: bytes | bytearray, out: Pixels) -> bool:
    """Whether it was decoded: it has the row's size, and libjpeg-turbo takes it."""
    try:
        height, width, _, _ = fast.decode_jpeg_header(content)
        if (height, width) != out.shape[:2]:
            return False
        fast.decode_jpeg(content, "RGB", buffer=out)
    except ValueError:
        return False
    return True


@functools.cache
def _jpeg_decoder() -> Any | None:
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None


@functools.cache
def pillow_images() -> Any:
    """Pillow's module of images. Raises DelianError naming the extra where it is missing."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise DelianError(
            "reading images needs Pillow, which is not installed", install("images")
        ) from None


def ready() -> None:
    """Imports the decoders now: a process that was confined cannot read packages any more.

    Pillow loads the module of a file format when it first meets one.
    """
    pillow_images().preinit()
    pillow_images().init()
    _jpeg_decoder()
