"""Rows of a folder of images: a folder for each class. Needs Pillow, the extra `images`."""

from __future__ import annotations

import importlib
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


def read_image(file: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """One image, u8 of this shape. Raises DelianError naming the file."""
    with opened(file) as image:
        colour = len(shape) == 3 and shape[2] == 3
        made = image.convert("RGB" if colour else "L").resize((shape[1], shape[0]))
        return np.asarray(made, np.uint8).reshape(shape)


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """One image as Pillow has it, before its pixels are read.

    Raises DelianError naming the file, in the block too where it cannot be read.
    """
    try:
        pillow = importlib.import_module("PIL.Image")
    except ImportError:
        raise DelianError(
            "reading images needs Pillow, which is not installed", install("images")
        ) from None
    try:
        if file.stat().st_size > IMAGE_BYTES_MAX:
            raise DelianError(f"{file} is larger than {IMAGE_BYTES_MAX} bytes", "leave it out")
        with pillow.open(file) as image:
            if image.width * image.height > IMAGE_PIXELS_MAX:
                raise DelianError(f"{file} has {image.width} x {image.height} pixels; too many")
            yield image
    except (OSError, ValueError, SyntaxError) as error:
        raise DelianError(f"{file} is no image: {error}", "remove it, or write it again") from None
