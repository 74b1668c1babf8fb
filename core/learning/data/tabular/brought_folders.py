"""What a folder of a user's holds: images or texts by class, or a data set of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ....common.errors import DelianError
from ..image_folders import ImageEntry, folder_entries, split_of
from ..images import IMAGE_SUFFIXES
from ..rows import NoDataError
from .columns import Column, as_texts, texts
from .hub_folders import HubData, is_hub_folder, read_hub_folder
from .table_files import read_columns
from .tables import TARGET_NAMES, left_out
from .text_folders import SUFFIXES as TEXT_SUFFIXES
from .text_folders import TEXT, is_text_folder, read_text_files, read_text_folder

FolderKind = Literal["images", "table"]


def folder_kind(path: Path) -> FolderKind | None:
    """What a folder holds: rows of a table, or images; neither where nothing is known of it."""
    if is_hub_folder(path):
        return "images" if read_hub_folder(path).table.images else "table"
    if is_text_folder(path):
        return "table"
    folders = any(each.is_dir() for each in path.iterdir())
    flat = any(each.suffix.lower() in IMAGE_SUFFIXES for each in path.iterdir())
    return "images" if folders or flat else None


def read_table(path: Path, split: str = "") -> tuple[dict[str, Column], tuple[str, ...]]:
    """A table's columns, of a file or a folder, and notes on what is left out.

    split: of a folder with several, which is read. Raises DelianError.
    """
    if not path.is_dir():
        if split:
            raise DelianError(
                f"{path} is a file: it has no split `{split}`", "leave out data.split"
            )
        return read_columns(path), ()
    if is_hub_folder(path):
        found = read_hub_folder(path, split)
        if not found.table.columns:
            raise NoDataError(f"{path} has no columns of numbers or text", "see its README")
        images = tuple(f"column `{name}` holds images" for name in found.table.images)
        return found.table.columns, found.notes + images
    if is_text_folder(path):
        return read_text_folder(path, split)
    raise NoDataError(
        f"{path} is a folder without a table",
        "it needs files of Parquet, CSV or JSON Lines, or a folder of texts for each class",
    )


def read_images(path: Path, split: str = "") -> tuple[list[ImageEntry], tuple[str, ...]]:
    """Images of a folder by class, or of a data set of Hugging Face, and notes.

    split: of a folder with several, which is read. Raises DelianError.
    """
    if path.is_dir() and is_hub_folder(path) and not _has_classes(path):
        return _hub_images(path, read_hub_folder(path, split))
    return folder_entries(path, split)


def asked_table(path: Path) -> dict[str, Column]:
    """The columns of rows that a model is asked about: a table's, or texts of a folder.

    A folder of text files without classes is a column `text`, by the files' names. Raises
    DelianError.
    """
    if path.is_dir() and not is_hub_folder(path) and not is_text_folder(path):
        files = sorted(each for each in path.iterdir() if each.suffix.lower() in TEXT_SUFFIXES)
        if files:
            return {TEXT: texts(read_text_files(files))}
    return read_table(path)[0]


def asked_images(path: Path) -> list[ImageEntry]:
    """Images that a model is asked about: a file, a folder of them, or what `read_images` reads.

    Those of a folder are by the files' names. Raises DelianError.
    """
    files = [path] if path.is_file() else []
    if path.is_dir() and not any(each.is_dir() for each in path.iterdir()):
        files = sorted(each for each in path.iterdir() if each.suffix.lower() in IMAGE_SUFFIXES)
    if files:
        return [ImageEntry("", file, str(file)) for file in files]
    return read_images(path)[0]


def _has_classes(path: Path) -> bool:
    """Whether there are images in folders: tables next to them describe them."""
    chosen, _ = split_of(path)
    return any(
        file.suffix.lower() in IMAGE_SUFFIXES
        for folder in chosen.iterdir()
        if folder.is_dir()
        for file, _ in zip(folder.iterdir(), range(64), strict=False)
    )


def _hub_images(path: Path, found: HubData) -> tuple[list[ImageEntry], tuple[str, ...]]:
    table = found.table
    if not table.images:
        raise NoDataError(f"{path} has no column of images", "see its README")
    name, contents = next(iter(table.images.items()))
    target = next(
        (each for each in (*table.classes, *TARGET_NAMES) if each in table.columns),
        next(iter(table.columns), ""),
    )
    if not target:
        raise NoDataError(f"{path} has images and no column of labels", "see its README")
    labels = as_texts(table.columns[target]).tolist()
    entries = [
        ImageEntry(label, content, f"{path}, row {k + 1} of `{name}`")
        for k, (label, content) in enumerate(zip(labels, contents, strict=True))
        if label
    ]
    notes = found.notes
    if left := [each for each in (*table.columns, *table.images) if each not in (name, target)]:
        notes += (f"`{target}` is learnt of `{name}`; other columns are left out: {left[0]} ...",)
    if missing := len(labels) - len(entries):
        notes += (left_out(missing, "row", target),)
    return entries, notes
