"""Folders of images as labelled rows, for simulations. Needs Pillow, the extra `images`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .federated_data import check_memory
from .images import ImageFolder, opened, read_image
from .labelled_arrays import Labelled
from .rows import DataSettings, NoDataError

#: The least and the largest side that images are scaled to unless a scenario says it.
SIDES = (8, 32)
#: Pillow's modes of images without colours.
GREY = frozenset(("1", "L", "LA", "La", "I", "F"))


def image_folder(path: Path, side: int = 0, colour: bool | None = None) -> Labelled:
    """A folder of images as labelled rows, u8[n, side, side, 3 or 1]; a folder is a class.

    Args:
        path: the folder.
        side: pixels of a side; zero: the median of the images' sides, within `SIDES`.
        colour: whether there are three channels; None: three unless all images are grey.

    Raises:
        DelianError: a folder without images, or a file that is none.
    """
    files = list(ImageFolder(path, DataSettings()).files())
    if not files:
        raise NoDataError(f"{path} has no images", "put them into a folder for each class")
    if not side or colour is None:
        median, coloured = _form([file for _, file in files])
        side, colour = side or median, coloured if colour is None else colour
    shape = (side, side, 3 if colour else 1)
    check_memory(1, len(files), side * side * shape[2])
    names = sorted({name for name, _ in files})
    x = np.empty((len(files), *shape), np.uint8)
    for k, (_, file) in enumerate(files):
        x[k] = read_image(file, shape)
    y = np.array([names.index(name) for name, _ in files], np.int32)
    return Labelled(path.name, x, y, label_names=tuple(names))


def _form(files: list[Path]) -> tuple[int, bool]:
    """The side that fits these images, and whether one has colours; only headers are read."""
    sides, colour = [], False
    for file in files:
        with opened(file) as image:
            sides.append(min(image.size))
            colour = colour or image.mode.partition(";")[0] not in GREY
    return int(np.clip(np.median(sides), *SIDES)), colour
