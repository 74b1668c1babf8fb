"""A folder with a folder of text files for each class, as a table of texts and labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ....common.errors import DelianError
from ....common.nouns import counted
from ..data_files import read_text
from ..image_folders import split_of
from ..rows import NoDataError
from .columns import Column, texts
from .delimited import FIELD_CHARS_MAX, TABLE_BYTES_MAX

SUFFIXES = (".txt", ".text", ".md")
TEXT, LABEL = "text", "label"
FILES_MAX = 1 << 20
#: Files that an error names.
_NAMED = 5


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
    files = [
        file
        for folder in _folders(chosen)
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in SUFFIXES
    ]
    if not files:
        raise NoDataError(f"{chosen} has no texts", "put them into a folder for each class")
    found = read_text_files(files)
    labels = [file.parent.name for file in files]
    if empty := sum(not text for text in found):
        notes += (counted(empty, "text is empty", "texts are empty"),)
    return {TEXT: texts(found), LABEL: texts(labels)}, notes


def read_text_files(files: Sequence[Path]) -> list[str]:
    """The text of each file. Raises DelianError that names those that are no text."""
    found: list[str] = []
    broken: list[DelianError] = []
    taken = 0
    for file in files:
        try:
            text = read_text(file, FIELD_CHARS_MAX).strip()
        except DelianError as error:
            broken.append(error)
            continue
        taken += len(text)
        if taken > TABLE_BYTES_MAX or len(found) >= FILES_MAX:
            raise DelianError(
                f"there are more texts than a table may have (up to {file})",
                f"at most {FILES_MAX} files and {TABLE_BYTES_MAX >> 20} Mi characters",
            )
        found.append(text)
    if len(broken) == 1:
        raise broken[0]
    if broken:
        shown = "\n".join(f"  {error.message}" for error in broken[:_NAMED])
        more = f"\nand {len(broken) - _NAMED} more" if len(broken) > _NAMED else ""
        raise DelianError(
            f"{len(broken)} of {len(files)} files are no texts:\n{shown}{more}",
            "convert them to UTF-8 (iconv -t UTF-8), or remove them",
        )
    return found
