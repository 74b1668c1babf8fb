"""Data sets of Hugging Face as they lie in a folder; the package `datasets` is not needed.

Two forms are read: what `save_to_disk` writes (`dataset_info.json` and files of Arrow, or
`dataset_dict.json` with a folder for each split), and a repository's files (Parquet, CSV or JSON
Lines), whose splits are in the README's metadata, or in the names of the files (`train-00000-of-
00002.parquet`, `train/0000.parquet`).
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....common.errors import DelianError
from ..data_files import read_text
from ..image_folders import SPLITS
from .arrow_tables import ARROW, PARQUET, ArrowTable, read_parquet, read_streams
from .columns import Column, texts
from .table_files import TEXTS, read_columns, table_suffix

#: Files that are looked for, and how deep.
_FILES_MAX = 1 << 14
_DEPTH = 3
_JSON_BYTES_MAX = 1 << 24
_STATE, _INFO, _DICT = "state.json", "dataset_info.json", "dataset_dict.json"
#: `- split: train` and its `path: data/train-*`, in a README's metadata.
_META = re.compile(r"^(?:- |  +)(?:- )?(split|path):\s*[\"']?([^\"'\n#]+?)[\"']?\s*$", re.MULTILINE)


@dataclass(frozen=True)
class HubData:
    """One split of a data set."""

    table: ArrowTable
    notes: tuple[str, ...]
    """On what is left out."""


def is_hub_folder(path: Path) -> bool:
    """Whether a folder holds a data set that `read_hub_folder` reads."""
    saved = (path / _DICT).is_file() or ((path / _STATE).is_file() and (path / _INFO).is_file())
    return saved or bool(_files(path))


def read_hub_folder(path: Path, split: str = "") -> HubData:
    """One split of a data set.

    split: which; absent: the one to train on. Raises DelianError for a folder that is damaged, or
    has no such split.
    """
    if (path / _DICT).is_file() or (path / _STATE).is_file():
        return _saved(path, split)
    splits = _splits(path)
    chosen, notes = _chosen(path, list(splits), split)
    files = splits[chosen]
    suffixes = {table_suffix(file) for file in files}
    if suffixes <= set(PARQUET):
        table = read_parquet(files)
    else:
        table = ArrowTable(_concatenated([read_columns(file) for file in files], files))
    return HubData(_named(table), notes + table.left_out)


def _saved(path: Path, split: str) -> HubData:
    """What `save_to_disk` has written."""
    notes: tuple[str, ...] = ()
    if (path / _DICT).is_file():
        said = _json(path / _DICT)
        names = said.get("splits") if isinstance(said, dict) else None
        if not isinstance(names, list) or not all(_is_name(each) for each in names) or not names:
            raise DelianError(f"{path / _DICT} names no splits", "save the data set again")
        chosen, notes = _chosen(path, names, split)
        path = path / chosen
    state = _json(path / _STATE)
    listed = state.get("_data_files") if isinstance(state, dict) else None
    names = [each.get("filename") for each in listed or [] if isinstance(each, dict)]
    if not names or not all(_is_name(each) for each in names):
        raise DelianError(f"{path / _STATE} names no files", "save the data set again")
    indices = state.get("_indices_data_files") if isinstance(state, dict) else None
    if indices:
        raise DelianError(
            f"{path} is a selection of another data set's rows",
            "dataset.flatten_indices().save_to_disk(...) writes its own",
        )
    table = read_streams([path / name for name in names])
    return HubData(_named(table), notes + table.left_out)


def _is_name(name: Any) -> bool:
    """Whether it is the name of a file or folder, and no path out of one."""
    return isinstance(name, str) and bool(name) and Path(name).name == name and name != ".."


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text(path, _JSON_BYTES_MAX))
    except (ValueError, RecursionError) as error:
        raise DelianError(f"{path} is no JSON: {error}", "save the data set again") from None


def _files(path: Path) -> list[Path]:
    """Files of tables in a folder and its folders, sorted. Raises DelianError for too many."""
    found: list[Path] = []
    level = [path]
    for _ in range(_DEPTH):
        below: list[Path] = []
        for folder in level:
            for each in sorted(folder.iterdir()):
                if each.name.startswith("."):
                    continue
                if each.is_dir():
                    below.append(each)
                elif table_suffix(each) not in ("", ".json", *ARROW):
                    found.append(each)
                if len(found) + len(below) > _FILES_MAX:
                    raise DelianError(
                        f"{path} has more than {_FILES_MAX} files and folders", "name one of them"
                    )
        level = below
    return found


def _splits(path: Path) -> dict[str, list[Path]]:
    """The files of each split. Raises DelianError for a folder without any."""
    files = _files(path)
    parquet = [file for file in files if table_suffix(file) in PARQUET]
    files = parquet or files
    readme = path / "README.md"
    if readme.is_file() and (named := _of_readme(path, readme, files)):
        return named
    found: dict[str, list[Path]] = {}
    for file in files:
        words = re.split(r"[^a-z]+", str(file.relative_to(path)).lower())
        found.setdefault(next((w for w in words if w in SPLITS), "train"), []).append(file)
    if not found:
        raise DelianError(
            f"{path} has no data files", f"it needs files of {', '.join((*PARQUET, *TEXTS[:2]))}"
        )
    return found


def _of_readme(path: Path, readme: Path, files: Sequence[Path]) -> dict[str, list[Path]]:
    """The splits of the first configuration in a README's metadata; empty where it has none."""
    parts = read_text(readme, _JSON_BYTES_MAX).split("\n---", 1)
    if not parts[0].startswith("---") or len(parts) < 2:
        return {}
    _, _, configs = parts[0].partition("\nconfigs:")
    found: dict[str, list[Path]] = {}
    split = pattern = ""
    for key, value in _META.findall(configs):
        split, pattern = (value, pattern) if key == "split" else (split, value)
        if split and pattern:
            if split in found:
                break  # a second configuration
            relative = {str(file.relative_to(path)): file for file in files}
            found[split] = [f for name, f in relative.items() if fnmatch.fnmatch(name, pattern)]
            split = pattern = ""
    return {name: matched for name, matched in found.items() if matched}


def _chosen(path: Path, names: Sequence[str], split: str) -> tuple[str, tuple[str, ...]]:
    """The split to read, and a note on the others. Raises DelianError for one that is not there."""
    if split and split not in names:
        raise DelianError(
            f"{path} has no split `{split}`; it has {', '.join(names[:20])}", "see data.split"
        )
    chosen = split or next((each for each in SPLITS if each in names), names[0])
    others = [each for each in names if each != chosen]
    note = f"the split `{chosen}` is read, and {', '.join(others)} left out (data.split)"
    return chosen, (note,) if others else ()


def _concatenated(tables: Sequence[dict[str, Column]], files: Sequence[Path]) -> dict[str, Column]:
    """Tables one after the other. Raises DelianError where one has other columns."""
    first = tables[0]
    for table, file in zip(tables, files, strict=True):
        if list(table) != list(first):
            odd = next((n for n in [*table, *first] if n not in table or n not in first), "")
            raise DelianError(
                f"{file} has other columns than {files[0].name}: `{odd}`",
                "the files of one split are one table",
            )
    made = {}
    for name in first:
        parts = [table[name] for table in tables]
        if len({part.dtype.kind == "f" for part in parts}) > 1:
            raise DelianError(
                f"column `{name}` has numbers in some files of {files[0].parent}, and text in"
                " others",
                "write it alike in all",
            )
        plain = parts[0].dtype.kind == "f"
        made[name] = np.concatenate(parts) if plain else texts([t for p in parts for t in p])
    return made


def _named(table: ArrowTable) -> ArrowTable:
    """The table with labels by their names."""
    columns = dict(table.columns)
    for name, names in table.classes.items():
        values = columns.get(name)
        if values is None or values.dtype.kind != "f":
            continue
        columns[name] = texts(
            [names[int(v)] if 0 <= v < len(names) else "" for v in np.nan_to_num(values, nan=-1)]
        )
    return ArrowTable(columns, table.images, table.classes, table.left_out)
