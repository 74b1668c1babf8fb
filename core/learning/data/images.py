"""Rows of a folder of images: a folder for each class. Needs Pillow, the extra `images`."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from ...common.install_hint import install
from .rows import DataSettings, NoDataError, Rows, RowType, check_size, class_number, number_of

#: Files that an image folder is searched for, and the largest of them.
IMAGES_MAX = 1 << 20
IMAGE_BYTES_MAX = 64 << 20
IMAGE_PIXELS_MAX = 1 << 26
_SIXTEEN_BITS = (1 << 16) - 1
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"})


class ImageFolder:
    """Images in a folder a class, scaled to the bundle's size, grey with one channel."""

    def __init__(self, path: Path, settings: DataSettings) -> None:
        self.path, self.settings = path, settings

    def files(self) -> Iterator[tuple[str, Path]]:
        """(class folder, file), sorted, so that equal folders give equal data."""
        if not self.path.is_dir():
            raise NoDataError(f"there is no folder {self.path}", "name another with --data")
        seen = 0
        for folder in sorted(p for p in self.path.iterdir() if p.is_dir()):
            for file in sorted(folder.iterdir()):
                if file.suffix.lower() in IMAGE_SUFFIXES:
                    seen += 1
                    if seen > IMAGES_MAX:
                        raise DelianError(f"{self.path} has more than {IMAGES_MAX} images")
                    yield folder.name, file

    def version(self) -> int | None:
        """The version by the folders' times: a file that comes or goes changes its folder's."""
        try:
            folders = sorted(p for p in self.path.iterdir() if p.is_dir())
            return number_of(" ".join(f"{p.name} {p.stat().st_mtime_ns}" for p in folders))
        except OSError:
            return None

    def read(self, row: RowType) -> Rows:
        if len(row.shape) not in (2, 3) or (len(row.shape) == 3 and row.shape[2] not in (1, 3)):
            raise DelianError(
                f"the bundle takes rows of {list(row.shape)}, and {self.path} holds images",
                "images are [height, width], with 1 or 3 channels if it says so",
            )
        taken = 0
        xs, ys = [], []
        for name, file in self.files():
            image = read_image(file, row.shape)
            taken += image.nbytes
            check_size(str(self.path), taken, self.settings.bytes_max)
            xs.append(image)
            ys.append(class_number(name, self.settings.classes, f"the folder {self.path / name}"))
        if not xs:
            raise NoDataError(f"{self.path} has no images", "put them into a folder for each class")
        x = np.stack(xs)
        # A bundle that takes u8 scales by itself; one that takes f32 is given 0 to 1.
        return Rows(x if row.dtype == "u8" else x.astype(np.float32) / 255, np.array(ys, np.int32))


def read_image(file: Path | bytes, shape: tuple[int, ...], where: str = "") -> NDArray[np.uint8]:
    """One image, u8 of this shape, upright by what its camera wrote (EXIF).

    Args:
        file: the file, or its content.
        shape: [height, width], with 1 or 3 channels if it says so.
        where: what an error names; absent: the file.

    Raises:
        DelianError: it is no image, or its pixels have no known range.
    """
    with opened(file, where) as image:
        colour = len(shape) == 3 and shape[2] == 3
        plain = eight_bits(upright(image), where or str(file))
        made = plain.convert("RGB" if colour else "L").resize((shape[1], shape[0]))
        return np.asarray(made, np.uint8).reshape(shape)


def upright(image: Any) -> Any:
    """Turned by what its camera wrote (EXIF)."""
    return importlib.import_module("PIL.ImageOps").exif_transpose(image)


def eight_bits(image: Any, where: str) -> Any:
    """An image whose values are from 0 to 255: Pillow clips those of more bits."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", None)):
        values = np.asarray(image).astype(np.int64)
        if values.min(initial=0) < 0 or values.max(initial=0) > _SIXTEEN_BITS:
            raise DelianError(f"{where} has pixels of more than 16 bits", "save it with 8 bits")
        return importlib.import_module("PIL.Image").fromarray((values >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DelianError(
            f"{where} has pixels of 32 bits, whose range is not known", "save it with 8 or 16 bits"
        )
    return image


@contextmanager
def opened(file: Path | bytes, where: str = "") -> Iterator[Any]:
    """One image as Pillow has it, before its pixels are read. Arguments as of `read_image`.

    Raises DelianError naming the file, in the block too where it cannot be read.
    """
    name = where or str(file)
    try:
        pillow = importlib.import_module("PIL.Image")
    except ImportError:
        raise DelianError(
            "reading images needs Pillow, which is not installed", install("images")
        ) from None
    try:
        size = len(file) if isinstance(file, bytes) else file.stat().st_size
        if size > IMAGE_BYTES_MAX:
            raise DelianError(f"{name} is larger than {IMAGE_BYTES_MAX} bytes", "leave it out")
        with pillow.open(io.BytesIO(file) if isinstance(file, bytes) else file) as image:
            if image.width * image.height > IMAGE_PIXELS_MAX:
                raise DelianError(f"{name} has {image.width} x {image.height} pixels; too many")
            yield image
    except pillow.DecompressionBombError as error:
        raise DelianError(f"{name}: {error}", "leave it out, or make it smaller") from None
    except (OSError, ValueError, SyntaxError) as error:
        raise DelianError(f"{name} is no image: {error}", "remove it, or write it again") from None
