"""Images as labelled rows, for simulations. Needs Pillow, the extra `images`.

They are files in a folder for each class, or rows of a data set of Hugging Face.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from ...common.errors import DelianError
from .federated_data import check_memory
from .images import IMAGE_SUFFIXES, ImageFolder, opened, read_image
from .labelled_arrays import Labelled
from .rows import DataSettings, NoDataError

#: The least and the largest side that images are scaled to unless a scenario says it.
SIDES = (8, 32)
#: Pillow's modes of images without colours.
GREY = frozenset(("1", "L", "LA", "La", "I", "F"))
#: Folders that are splits of a data set, and not classes, the one to train on first.
SPLITS = ("train", "training", "test", "testing", "val", "valid", "validation", "dev")
#: Files that an error names.
_NAMED = 5

Broken: TypeAlias = Literal["refuse", "skip"]


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """One image that is not read yet."""

    label: str
    """Its class."""
    content: Path | bytes
    """The file, or what would be in it."""
    where: str
    """What an error names."""


def split_of(path: Path, split: str = "") -> tuple[Path, tuple[str, ...]]:
    """The folder of the split to read, and what other splits there are, in words.

    A folder whose folders are all named like splits (train, test) has splits. split: which; absent:
    the one to train on. Raises DelianError for a split that is not there.
    """
    folders = sorted(each.name for each in path.iterdir() if each.is_dir() and each.name[0] != ".")
    known = [each for each in SPLITS if each in folders]
    if split and split not in folders:
        raise DelianError(
            f"{path} has no split `{split}`; it has {', '.join(folders[:20]) or 'none'}",
            "data.split is the name of a folder in it",
        )
    if not split and (len(known) < len(folders) or not known):
        return path, ()
    chosen = split or known[0]
    others = [each for each in folders if each != chosen]
    note = f"the split `{chosen}` is read, and {', '.join(others)} left out (data.split)"
    return path / chosen, (note,) if others else ()


def folder_entries(path: Path, split: str = "") -> tuple[list[ImageEntry], tuple[str, ...]]:
    """The images of a folder, and notes on what is left out. Raises DelianError for none."""
    if not path.is_dir():
        raise NoDataError(f"there is no folder {path}", "name another with --data")
    chosen, notes = split_of(path, split)
    found = [
        ImageEntry(label, file, str(file))
        for label, file in ImageFolder(chosen, DataSettings()).files()
    ]
    if found:
        return found, notes
    if any(each.suffix.lower() in IMAGE_SUFFIXES for each in chosen.iterdir()):
        raise NoDataError(
            f"{chosen} has images, and no folder for each class",
            f"move them: {chosen / 'cat'}/1.jpg is an image of the class cat",
        )
    raise NoDataError(f"{chosen} has no images", "put them into a folder for each class")


def image_folder(
    path: Path,
    side: int = 0,
    colour: bool | None = None,
    *,
    split: str = "",
    broken: Broken = "refuse",
) -> Labelled:
    """A folder of images as labelled rows, u8[n, side, side, 3 or 1]; a folder is a class.

    Args:
        path: the folder.
        side: pixels of a side; zero: the median of the images' sides, within `SIDES`.
        colour: whether there are three channels; absent: three unless all images are grey.
        split: of a folder with a folder for each split, which is read.
        broken: whether files that are no images are refused, or left out with a note.

    Raises:
        DelianError: a folder without images, or a file that is none.
    """
    entries, notes = folder_entries(path, split)
    return image_rows(entries, path.name, side, colour, broken, notes)


def image_rows(
    entries: Sequence[ImageEntry],
    source: str,
    side: int,
    colour: bool | None,
    broken: Broken,
    notes: tuple[str, ...] = (),
) -> Labelled:
    """Images as labelled rows. Arguments as of `image_folder`. Raises DelianError."""
    faults: dict[str, str] = {}
    if not side or colour is None:
        median, coloured = _form(entries, faults)
        side, colour = side or median, coloured if colour is None else colour
    shape = (side, side, 3 if colour else 1)
    check_memory(1, len(entries), side * side * shape[2])
    rows, labels = [], []
    for entry in entries:
        try:
            rows.append(read_image(entry.content, shape, entry.where))
            labels.append(entry.label)
        except DelianError as error:
            if entry.where not in error.message:
                raise
            faults[entry.where] = error.message
    notes += _told(faults, len(entries), broken)
    if not rows:
        raise NoDataError(f"{source} has no image that can be read", "see the files")
    names = sorted(set(labels))
    place = {name: k for k, name in enumerate(names)}
    y = np.array([place[name] for name in labels], np.int32)
    return Labelled(source, np.stack(rows), y, label_names=tuple(names), notes=notes)


def _told(faults: dict[str, str], count: int, broken: Broken) -> tuple[str, ...]:
    """A note on files that are no images. Raises DelianError where they are refused."""
    if not faults:
        return ()
    if broken == "skip":
        are = "is no image and is" if len(faults) == 1 else "are no images and are"
        return (f"{len(faults)} of {count} files {are} left out",)
    shown = list(faults.values())[:_NAMED]
    more = f"\nand {len(faults) - len(shown)} more" if len(faults) > len(shown) else ""
    raise DelianError(
        "\n".join(shown) + more,
        "remove them, or write them again; --set data.broken=skip leaves them out",
    )


def _form(entries: Sequence[ImageEntry], faults: dict[str, str]) -> tuple[int, bool]:
    """The side that fits these images, and whether one has colours; only headers are read."""
    sides, colour = [], False
    for entry in entries:
        try:
            with opened(entry.content, entry.where) as image:
                sides.append(min(image.size))
                colour = colour or image.mode.partition(";")[0] not in GREY
        except DelianError as error:
            if entry.where not in error.message:
                raise
            faults[entry.where] = error.message
    if not sides:
        return SIDES[1], True
    return int(np.clip(np.median(sides), *SIDES)), colour
