"""A folder with a folder of text files for each class, as a table of texts and labels."""

from __future__ import annotations

from pathlib import Path

from ....common.errors import DelianError
from ..data_files import read_text
from ..image_folders import split_of
from ..rows import NoDataError
from .columns import Column, texts
from .delimited import FIELD_CHARS_MAX, TABLE_BYTES_MAX

SUFFIXES = (".txt", ".text", ".md")
TEXT, LABEL = "text", "label"
FILES_MAX = 1 << 20


def is_text_folder(path: Path) -> bool:
    """Whether a folder has a folder of text files; the first files of each folder are looked at."""
    for folder in _folders(path):
        for file in _first(folder):
            if file.suffix.lower() in SUFFIXES and file.is_file():
                return True
            if file.is_dir() and any(f.suffix.lower() in SUFFIXES for f in _first(file)):
                return True
    return False


def _first(folder: Path) -> list[Path]:
    """A few of a folder's entries."""
    return [entry for entry, _ in zip(folder.iterdir(), range(64), strict=False)]


def _folders(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir() and each.name[0] != ".")


def read_text_folder(path: Path, split: str = "") -> tuple[dict[str, Column], tuple[str, ...]]:
    """Columns `text` and `label`, and notes on what is left out.

    split: of a folder with a folder for each split, which is read. Raises DelianError for a folder
    without texts, a file that is no text, and more than a table may have.
    """
    chosen, notes = split_of(path, split)
    found: list[str] = []
    labels: list[str] = []
    taken = 0
    for folder in _folders(chosen):
        for file in sorted(folder.iterdir()):
            if file.suffix.lower() not in SUFFIXES:
                continue
            text = read_text(file, FIELD_CHARS_MAX).strip()
            taken += len(text)
            if taken > TABLE_BYTES_MAX or len(found) >= FILES_MAX:
                raise DelianError(
                    f"{path} has more texts than a table may have (up to {file})",
                    f"at most {FILES_MAX} files and {TABLE_BYTES_MAX >> 20} Mi characters",
                )
            found.append(text)
            labels.append(folder.name)
    if not found:
        raise NoDataError(f"{chosen} has no texts", "put them into a folder for each class")
    if empty := sum(not text for text in found):
        notes += (f"{empty} texts are empty",)
    return {TEXT: texts(found), LABEL: texts(labels)}, notes
