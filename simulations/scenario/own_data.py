"""A user's own data: what kind it is, and a scenario that is fitted to it."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np

from ...core.common.errors import DelianError
from ...core.learning import data
from ...core.learning.data.data_files import npz_keys
from ...core.learning.data.rows import file_version
from ...core.learning.data.tables import SUFFIXES, are_labels
from . import data_settings
from .scenario import Scenario

#: Rows that a device holds about, and the fewest and most devices that data is dealt to.
ROWS_A_DEVICE = 50
DEVICES = (4, 50)
#: Of so many devices one never trains, and shows how the model serves a newcomer.
A_HELD_OUT = 5
HELD_OUT_MAX = 10
#: The most devices in a round, and the fewest that train for a round to be masked.
COHORT_MAX = 10
MASKED_MIN = 4
QUERY_FRACTION = 0.25
#: The least side of an image that convolutions are for.
CONVOLUTION_SIDE = 16
KNOWN = (
    "give a table (.csv, .tsv, .parquet), arrays (.npz with `x` and `y`), or a folder of images"
    " with a folder for each class"
)


def kind_of(path: Path) -> str | None:
    """The kind of source that reads a path (`data.source`); None: a scenario must say it."""
    if path.suffix == ".npz":
        return "npz"
    if path.suffix in SUFFIXES:
        return "table"
    if path.is_dir() and any(each.is_dir() for each in path.iterdir()):
        return "images"
    return None


def table_choice(table: data_settings.TableData, found: bool = True) -> data.TableChoice:
    """What a data table says of columns. found: whether `targets` is known."""
    targets = table.targets if found else None
    return data.TableChoice(table.target, table.device, table.columns, targets)


def read_own_table(path: Path, choice: data.TableChoice) -> data.Labelled:
    """A table's rows; a file that is read twice in a row, to fit a scenario, is kept."""
    return _read_table(path, choice, file_version(path))


@functools.lru_cache(maxsize=2)
def _read_table(path: Path, choice: data.TableChoice, version: int | None) -> data.Labelled:
    return data.read_table(path, choice)


def found_keys(path: Path, kind: str, target: str = "") -> dict[str, Any]:
    """Keys of a data table that the data decides."""
    if kind == "npz":
        return {"partition": "natural"} if "device" in npz_keys(path) else {}
    if kind == "images":
        return {}
    rows = read_own_table(path, data.TableChoice(target))
    keys: dict[str, Any] = {"target": rows.target_name}
    if rows.y.dtype == np.float32:
        keys |= {"targets": "numbers", "partition": "iid"}
    if rows.owners is not None:
        keys["partition"] = "natural"
    return keys


def fitted(path: Path, target: str = "") -> Scenario:
    """A scenario for a user's data alone.

    Devices, a round and the model follow from the rows; the learning rate is Adam's, on
    standardised features. Raises DelianError for data of no known kind.
    """
    kind = kind_of(path)
    if kind is None:
        missing = "" if path.exists() else ": there is no such file or folder"
        raise DelianError(f"{path} is no data of a known kind{missing}", KNOWN)
    if kind == "table":
        rows = read_own_table(path, data.TableChoice(target))
    elif kind == "images":
        rows = data.image_folder(path, 32, True)
    else:
        rows = _arrays(path)
    return Scenario.model_validate(
        keys_for(rows, kind, path.name if kind == "images" else path.stem)
    )


def _arrays(path: Path) -> data.Labelled:
    """An .npz file's rows, with labels or with numbers to learn."""
    keys = npz_keys(path)
    name = "y" if "y" in keys else "label"
    from ...core.learning.data.data_files import read_npz

    y = read_npz(path, [name])[name]
    labels = y.dtype.kind in "iu" or (y.dtype.kind == "f" and are_labels(y))
    return data.npz(path, numbers=not labels)


def keys_for(rows: data.Labelled, kind: str, name: str) -> dict[str, Any]:
    """A scenario's tables for these rows."""
    numbers = rows.y.dtype == np.float32
    count = len(rows.x)
    if rows.owners is not None:
        sizes = np.bincount(rows.owners)
        devices = int((sizes >= 4).sum())
    else:
        devices = int(np.clip(count // ROWS_A_DEVICE, *DEVICES))
    held_out = min(devices // A_HELD_OUT, HELD_OUT_MAX)
    training = devices - held_out
    own: dict[str, Any] = {
        "source": kind,
        "query_fraction": QUERY_FRACTION,
        "held_out_devices": held_out,
    }
    # Data without a column of devices are dealt evenly: any skew would be made up.
    own["partition"] = "iid" if rows.owners is None else "natural"
    if kind == "table":
        own["target"] = rows.target_name
    if kind != "images":
        own["targets"] = "numbers" if numbers else "labels"
        own["standardise"] = rows.x.ndim == 2 and rows.x.dtype == np.float32
    cohort = min(training, COHORT_MAX)
    masked = training >= MASKED_MIN
    fleet: dict[str, Any] = {"edges": min(3, devices)}
    if rows.owners is None:
        fleet["devices"] = devices
    return {
        "name": re.sub(r"[^A-Za-z0-9_.-]", "-", name).lstrip("-_.")[:64] or "data",
        "description": described(rows, devices, held_out),
        "rounds": 30,
        "data": own,
        "model": _model(rows),
        "algorithm": {
            "name": "fedavg",
            "epochs": 5,
            "batch_size": 16,
            "optimizer": "adam",
            "learning_rate": 0.01,
            "personal_steps": 5,
            "personal_learning_rate": 0.01 if numbers else 0.1,
        },
        "fleet": fleet,
        "round": {"cohort": cohort, "reports_min": min(2, cohort)},
        "privacy": {"clip": 10.0, "aggregation": "secure" if masked else "plain"},
    }


def _model(rows: data.Labelled) -> dict[str, Any]:
    """Convolutions for images that are large enough, dense layers for other rows."""
    shape = rows.x.shape[1:]
    pixels = rows.x.dtype == np.uint8 and len(shape) in (2, 3)
    if pixels and min(shape[:2]) >= CONVOLUTION_SIDE:
        return {"name": "cnn", "hidden": 128}
    return {"name": "mlp", "hidden": [64]}


def described(rows: data.Labelled, devices: int, held_out: int) -> str:
    """What a report says of the data, in a sentence or two."""
    shape = " x ".join(str(n) for n in rows.x.shape[1:])
    what = f"{len(rows.x):,} rows of {shape} values"
    learnt = rows.target_name or "y"
    if rows.y.dtype == np.float32:
        goal = f"the numbers of `{learnt}`"
    else:
        labels = rows.label_names or tuple(str(k) for k in range(int(rows.y.max()) + 1))
        shown = ", ".join(labels[:6]) + (", ..." if len(labels) > 6 else "")
        goal = f"{len(labels)} classes ({shown})"
    newcomers = f" {held_out} of them never train: they show how the model serves newcomers."
    return (
        f"{rows.source}: {what}, of which {goal} are learnt, on {devices} devices."
        f"{newcomers if held_out else ''}"
    )[:2000]
