"""Data and published results of FLamby (du Terrail et al., NeurIPS 2022), for `flamby.py`.

Centres, train and test sets, features and their scaling are those of its data loaders.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
#: MD5 of UCI's four files, as FLamby's `download.py` has them, in the order of its centres.
HEART_FILES = {
    "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
    "hungarian": "22e96bee155b5973568101c93b3705f6",
    "switzerland": "9a87f7577310b3917730d06ba9349e20",
    "va": "4249d03ca7711e84f4444768c9426170",
}


@dataclass(frozen=True)
class Centre:
    """Rows of one centre. y: of survival +-(time + 1), positive for an event; or 0 and 1."""

    x: Floats
    y: Floats
    test_x: Floats
    test_y: Floats


@dataclass(frozen=True)
class Suite:
    """One of FLamby's data sets, as its benchmark runs it."""

    name: str
    metric: str
    centres: tuple[Centre, ...]
    pooled: Centre
    """All training rows, scaled as the pooled training scales them."""
    batch: int
    pooled_epochs: int
    pooled_rate: float
    """Of Adam."""
    rounds: int
    """Of 100 local updates each."""
    settings: Mapping[str, Mapping[str, Any]]
    """By strategy, their tuned hyperparameters."""
    published: Mapping[str, tuple[float, ...]]
    """By method, the mean over centres of each seed."""


def times_of(event: Floats, time: Floats) -> Floats:
    """Event and time as one number a row."""
    return (time + 1) * np.where(event == 1, 1.0, -1.0)


def brca(folder: Path) -> Suite:
    """Fed-TCGA-BRCA, whose table is in the repository."""
    place = folder / "flamby" / "datasets" / "fed_tcga_brca"
    rows = _read(place / "brca.csv")
    folds = {row["pid"]: row["fold2"] for row in _read(_split(place))}
    names = list(rows[0])[1:40]
    x = np.array([[float(row[n]) for n in names] for row in rows])
    y = times_of(_column(rows, "E"), _column(rows, "T"))
    fold = np.array([folds.get(row["pid"], "") for row in rows])
    centres = []
    for k in range(6):
        train, test = fold == f"train_{k}", fold == f"test_{k}"
        centres.append(Centre(x[train], y[train], x[test], y[test]))
    return Suite(
        "TCGA-BRCA",
        "C-index",
        tuple(centres),
        _together(centres),
        8,
        30,
        0.1,
        (866 // 6 // 8) * 30 // 100,
        _settings(folder / "flamby" / "config_tcga_brca.json"),
        _published(folder / "flamby" / "results" / "results_benchmark_fed_tcga_brca"),
    )


def heart(folder: Path, files: Path) -> Suite:
    """Fed-Heart-Disease; files: the folder of UCI's `processed.*.data`, which it has not.

    Raises ValueError for other files. Needs pandas and scikit-learn.
    """
    import pandas as pd
    from sklearn.model_selection import train_test_split

    parts = []
    for name, digest in HEART_FILES.items():
        path = files / f"processed.{name}.data"
        if hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() != digest:
            raise ValueError(f"{path} is not the file that FLamby downloads")
        read = pd.read_csv(path, header=None, na_values="?")
        parts.append(read.drop(columns=[10, 11, 12]).dropna().astype(float))
    centre = np.repeat(np.arange(4), [len(p) for p in parts])
    table = pd.get_dummies(
        pd.concat(parts, ignore_index=True), columns=[2, 6], drop_first=True, dtype=float
    )
    y = (table.pop(13).to_numpy() > 0).astype(float)
    x = table.to_numpy()
    train = np.zeros(len(x), bool)
    for k in range(4):
        own = np.flatnonzero(centre == k)
        levels = np.bincount(y[own].astype(int), minlength=2)
        stratify = y[own] if levels.min() > 2 else None
        chosen, _ = train_test_split(
            np.arange(len(own)),
            test_size=1.0 - 0.66,
            train_size=0.66,
            random_state=43,
            stratify=stratify,
        )
        train[own[chosen]] = True
    centres = []
    for k in range(4):
        own = train & (centre == k)
        test = ~train & (centre == k)
        scaled = _scaled(x, x[own])
        centres.append(Centre(scaled[own], y[own], scaled[test], y[test]))
    scaled = _scaled(x, x[train])
    pooled = Centre(scaled[train], y[train], scaled[~train], y[~train])
    return Suite(
        "Heart Disease",
        "accuracy",
        tuple(centres),
        pooled,
        4,
        50,
        0.001,
        (486 // 4 // 4) * 50 // 100,
        _settings(folder / "flamby" / "config_heart_disease.json"),
        _published(folder / "flamby" / "results" / "results_benchmark_fed_heart_disease"),
    )


def _scaled(x: Floats, by: Floats) -> Floats:
    scaled: Floats = (x - by.mean(0)) / (by.std(0, ddof=1) + 1e-9)
    return scaled


def _together(centres: list[Centre]) -> Centre:
    parts = [np.concatenate([getattr(c, n) for c in centres]) for n in Centre.__annotations__]
    return Centre(*parts)


def _split(place: Path) -> Path:
    return place / "dataset_creation_scripts" / "train_test_split.csv"


def _column(rows: list[dict[str, str]], name: str) -> Floats:
    return np.array([float(row[name]) for row in rows])


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _settings(path: Path) -> Mapping[str, Mapping[str, Any]]:
    settings: Mapping[str, Mapping[str, Any]] = json.loads(path.read_text("utf-8"))["strategies"]
    return settings


def _published(place: Path) -> Mapping[str, tuple[float, ...]]:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(place.glob("*.csv")):
        for row in _read(path):
            if row["Test"].startswith("client_test_"):
                name = row["Method"].removesuffix("100").removesuffix(" Training")
                found[name][row["seed"]].append(float(row["Metric"]))
    return {
        name: tuple(float(np.mean(values)) for values in seeds.values())
        for name, seeds in found.items()
    }
