"""The files of a data set that is cut into shards."""

from __future__ import annotations

import re
from pathlib import Path

from ....common.errors import DelianError
from ..rows import NoDataError
from .file_ranges import unreadable

#: Shards of one data set.
SHARDS_MAX = 1 << 14
#: `train-00003-of-00016.parquet`, as Hugging Face, TensorFlow Datasets and Spark name shards.
_NUMBERED = re.compile(r"(?P<set>.*?)[-_.]?(?P<number>\d{1,9})-of-(?P<count>\d{1,9})(?!\d)")


def entries_of(folder: Path) -> list[Path]:
    """What is in a folder, by name, without hidden files. Raises DelianError, NoDataError."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        raise NoDataError(f"there is no folder {folder}", "check the path") from None
    except OSError as error:
        raise unreadable(folder, error) from None


def shard_files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The files of a folder with one of these endings, by name.

    Raises:
        NoDataError: one is missing of shards that are numbered (`NAME-00003-of-00016`).
        DelianError: there are too many, or shards of several data sets.
    """
    files = [path for path in entries_of(folder) if path.suffix in suffixes]
    if len(files) > SHARDS_MAX:
        raise DelianError(f"{folder} has {len(files)} shards; at most {SHARDS_MAX}", "join some")
    sets: dict[tuple[str, int], set[int]] = {}
    for file in files:
        if found := _NUMBERED.match(file.name):
            sets.setdefault((found["set"], int(found["count"])), set()).add(int(found["number"]))
    if len(sets) > 1:
        shown = ", ".join(f"{name or 'shards'} (of {count})" for name, count in list(sets)[:9])
        raise DelianError(
            f"{folder} holds shards of {len(sets)} data sets: {shown}",
            "give each a folder of its own: training rows and test rows do not mix",
        )
    for (name, count), numbers in sets.items():
        _check_all(folder, name, count, numbers)
    return files


def _check_all(folder: Path, name: str, count: int, numbers: set[int]) -> None:
    """Numbers begin at 0, or at 1 where the last one is the count."""
    first = 1 if count in numbers and 0 not in numbers else 0
    lost = [k for k in range(first, min(count, SHARDS_MAX) + first) if k not in numbers]
    if lost or count > SHARDS_MAX:
        missing = f"{count - len(numbers)} of {count} shards" + (f" `{name}`" if name else "")
        raise NoDataError(
            f"{folder} lacks {missing}, such as number {lost[0] if lost else SHARDS_MAX}",
            "get the missing files, or rename those that are there without `-of-`",
        )
