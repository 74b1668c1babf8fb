"""Folders of images as labelled rows, for simulations. Needs Pillow, the extra `images`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .federated_data import check_memory
from .images import ImageFolder, read_image
from .labelled_arrays import Labelled
from .rows import DataSettings, NoDataError


def image_folder(path: Path, side: int, colour: bool) -> Labelled:
    """A folder of images as labelled rows, u8[n, side, side, 3 or 1]; a folder is a class.

    Raises DelianError for a folder without images, and for files that are none.
    """
    files = list(ImageFolder(path, DataSettings()).files())
    if not files:
        raise NoDataError(f"{path} has no images", "put them into a folder for each class")
    shape = (side, side, 3 if colour else 1)
    check_memory(1, len(files), side * side * shape[2])
    names = sorted({name for name, _ in files})
    x = np.empty((len(files), *shape), np.uint8)
    for k, (_, file) in enumerate(files):
        x[k] = read_image(file, shape)
    y = np.array([names.index(name) for name, _ in files], np.int32)
    return Labelled(path.name, x, y, label_names=tuple(names))
