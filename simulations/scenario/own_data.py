"""A user's own data: what kind it is, and a scenario that is fitted to it."""

from __future__ import annotations

import dataclasses
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from ...core.common.errors import DelianError
from ...core.common.foreign_formats import refuse_file
from ...core.learning import data
from ...core.learning.data.data_files import npz_keys, read_npz
from ...core.learning.data.image_folders import image_rows
from ...core.learning.data.rows import file_version
from ...core.learning.data.tabular.brought_folders import folder_kind, read_images, read_table
from ...core.learning.data.tabular.series import WindowChoice, series_of
from ...core.learning.data.tabular.table_files import table_suffix
from ...core.learning.data.tabular.tables import ROWS_A_LABEL, are_labels
from . import data_settings
from .scenario import Scenario
from .scenario_file import from_tables
from .stored_devices import first_labelled, holds_devices

#: Rows that a device holds about, and the fewest and most devices that data is dealt to.
ROWS_A_DEVICE = 50
DEVICES = (4, 50)
#: Rows that a device of the data's own has at least: as `data.min_examples` of such data.
ROWS_LEAST = 4
#: Of so many devices one never trains, and shows how the model serves a newcomer.
A_HELD_OUT = 5
HELD_OUT_MAX = 10
#: The fewest devices that train for a round to be masked.
MASKED_MIN = 4
QUERY_FRACTION = 0.25
#: The fewest labels of data.
LABELS_LEAST = 2
#: The least side of an image that convolutions are for, and channels of one with colours.
CONVOLUTION_SIDE = 8
COLOURS = 3
#: Adam's learning rate and that of personal steps: of dense layers, of those that learn numbers, of
#: convolutions, and of those of images with sides below `SMALL_SIDE` (docs/results.md has what they
#: were chosen by).
DENSE, NUMBERS, CONVOLUTIONS, SMALL = (0.01, 0.1), (0.01, 0.01), (0.001, 0.001), (0.003, 0.01)
SMALL_SIDE = 16
#: Adam's learning rate on a play by roles, and on the pieces of another text.
PLAY_RATE, PIECES_RATE = 0.01, 0.03
#: Texts, by their suffix.
TEXTS = (".txt", ".text", ".md")
#: Characters that a device of a text holds about, the fewest of a role in a play, and how many
#: roles make a text a play.
CHARACTERS_A_DEVICE = 8_000
ROLE_CHARACTERS = 1_000
ROLES = 8
#: Characters in a window, and the fewest; about so many windows are on a device.
STEPS = (8, 80)
WINDOWS = 20
OwnRows: TypeAlias = data.Labelled | data.TableRows
#: Clients of a training script, and the norm that their updates are clipped to: a script's are as
#: long as its own optimiser makes them. A round waits ten minutes for them.
SCRIPT_DEVICES, SCRIPT_CLIP, SCRIPT_ROUND_MS = 10, 100.0, 600_000
#: What a training script has, in so many bytes.
IMPORTS_CLIENT = re.compile(rb"^\s*(from|import)\b.*\bdelian\b.*\bclient\b", re.MULTILINE)
SCRIPT_BYTES_MAX = 1 << 20
KNOWN = (
    "give a table (.csv, .tsv, .jsonl, .parquet), arrays (.npz with `x` and `y`), a text (.txt), a"
    " folder with a folder of images or of texts for each class, or a data set of Hugging Face"
)


@dataclass(frozen=True)
class OwnChoice:
    """What a command says of a user's data before a scenario is fitted to them."""

    target: str = ""
    """Of a table, the column that is learnt."""
    device: str = ""
    """Of a table, the column that says which device a row is on."""
    targets: Literal["labels", "numbers"] | None = None
    """Of a table, whether labels or numbers are learnt; absent: found by the values."""
    time: str = ""
    """Of a time series, the column of times."""
    window: int = 0
    """Rows of a window of a time series; zero: the table is none."""
    horizon: int = 1
    """Of a time series, how many of the following rows are forecast."""
    stride: int = 1
    """Rows from one window's begin to the next one's."""
    split: str = ""
    """Of a folder with several splits, the one that is read."""
    broken: str = "refuse"
    """Whether images that cannot be read are refused, or left out."""

    def columns_chosen(self) -> data.TableChoice:
        """Which columns of a table are what."""
        return data.TableChoice(self.target, self.device, targets=self.targets)


def kind_of(path: Path) -> str | None:
    """The kind of source that reads a path (`data.source`); None: a scenario must say it."""
    if path.suffix == ".npz":
        return "npz"
    if table_suffix(path):
        return "table"
    if path.suffix in TEXTS:
        return "text"
    if path.suffix == ".py" and path.is_file():
        return "script"
    if holds_devices(path):
        return "stored"
    return folder_kind(path) if path.is_dir() else None


def table_choice(table: data_settings.TableData) -> data.TableChoice:
    """What a data table says of columns."""
    return data.TableChoice(table.target, table.device, table.columns, table.targets)


def read_own_table(path: Path, choice: data.TableChoice, split: str = "") -> data.TableRows:
    """A table's rows; the columns of a file are kept, for it is read to fit a scenario as well.

    split: of a folder with several, which is read.
    """
    columns, notes = _columns(path, _version(path), split)
    rows = data.table_of(columns, path.name, choice)
    return dataclasses.replace(rows, notes=(*notes, *rows.notes))


def read_own_series(
    path: Path, source: data_settings.SeriesData, devices: int = 0
) -> data.TableRows:
    """Windows of a time series. devices: of a single one; zero: as many as fit."""
    columns, notes = _columns(path, _version(path), source.split)
    how = WindowChoice(source.window, source.horizon, source.stride, source.time)
    choice = table_choice(source)
    if "targets" not in source.model_fields_set:
        choice = dataclasses.replace(choice, targets=None)
    rows = series_of(columns, path.name, choice, how, source.query_fraction, devices)
    return dataclasses.replace(rows, notes=(*notes, *rows.notes))


def own_series(
    columns: dict[str, Any], source: str, choice: OwnChoice, devices: int = 0
) -> data.TableRows:
    """Windows of a table's rows. devices: of a single series; zero: as many as fit."""
    how = WindowChoice(choice.window, choice.horizon, choice.stride, choice.time)
    return series_of(columns, source, choice.columns_chosen(), how, QUERY_FRACTION, devices)


def own_columns(path: Path, split: str = "") -> dict[str, Any]:
    """The columns of a table as they are read, all of them. Raises DelianError."""
    return _columns(path, _version(path), split)[0]


def _version(path: Path) -> int | None:
    """What changes when a file does, or a file of a folder."""
    if not path.is_dir():
        return file_version(path)
    stats = [each.stat() for each in sorted(path.rglob("*"))]
    return hash(tuple((s.st_mtime_ns, s.st_size) for s in stats))


@functools.lru_cache(maxsize=1)
def _columns(path: Path, version: int | None, split: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    return read_table(path, split)


def read_own_images(
    path: Path, side: int = 0, colour: bool | None = None, split: str = "", broken: Any = "refuse"
) -> data.Labelled:
    """The rows of images: of a folder by class, or of a data set of Hugging Face."""
    entries, notes = read_images(path, split)
    return image_rows(entries, path.name, side, colour, broken, notes)


def read_own(path: Path, kind: str, choice: OwnChoice, devices: int = 0) -> OwnRows:
    """The rows of data of this kind."""
    if kind == "table":
        return read_own_table(path, choice.columns_chosen(), choice.split)
    if kind == "series":
        columns, notes = _columns(path, _version(path), choice.split)
        rows = own_series(columns, path.name, choice, devices)
        return dataclasses.replace(rows, notes=(*notes, *rows.notes))
    if kind == "images":
        return read_own_images(path, split=choice.split, broken=choice.broken)
    if kind == "stored":
        return first_labelled(path, None if choice.targets is None else choice.targets == "numbers")
    keys = npz_keys(path)
    name = "label" if "label" in keys and "y" not in keys else "y"
    y = read_npz(path, [name])[name]
    # Whole numbers are labels of any number of classes, but not where most have a row or two.
    few = len(np.unique(y)) * ROWS_A_LABEL <= len(y) if y.ndim == 1 else y.dtype.kind != "f"
    return data.npz(path, numbers=not (few if y.dtype.kind != "f" else are_labels(y)))


def keys_of(rows: OwnRows, kind: str) -> dict[str, Any]:
    """Keys of a data table that the rows decide."""
    keys: dict[str, Any] = {}
    if isinstance(rows, data.TableRows):
        keys = {"target": rows.target_name}
        if rows.series is not None:
            keys |= {"time": rows.series.time, "window": rows.series.steps}
    elif kind == "images":
        keys = {"side": rows.x.shape[1], "colour": rows.x.shape[-1] == COLOURS}
    if rows.y.dtype == np.float32:
        keys |= {"targets": "numbers", "partition": "iid"}
        if rows.y.ndim > 1 and kind == "series":
            keys["horizon"] = rows.y.shape[1]
    if rows.owners is not None:
        keys["partition"] = "natural"
    return keys


def fitted(path: Path, choice: OwnChoice | None = None, devices: int = 0) -> Scenario:
    """A scenario for a user's data alone, on so many devices; zero: as many as fit.

    Devices, a round and the model follow from the rows; the learning rate is Adam's, on
    standardised features. Raises DelianError for data of no known kind.
    """
    refuse_file(path, "data")
    kind = kind_of(path)
    choice = choice or OwnChoice()
    if choice.target and kind not in ("table", None):
        raise DelianError(
            f"{path} has no columns, of which `{choice.target}` could be learnt",
            "leave out --target: it is for tables and time series",
        )
    if kind == "text":
        return fitted_to_text(path, devices)
    if kind == "script":
        return fitted_to_script(path, devices)
    if kind is None:
        missing = "" if path.exists() else ": there is no such file or folder"
        raise DelianError(f"{path} is no data of a known kind{missing}", KNOWN)
    name = path.name if path.is_dir() else path.name.removesuffix(".gz").rpartition(".")[0]
    kind = "series" if kind == "table" and choice.window else kind
    return fitted_to(read_own(path, kind, choice, devices), kind, name, devices)


def fitted_to_text(path: Path, devices: int = 0) -> Scenario:
    """A scenario for a text: the next character, by an LSTM.

    A play, with blocks that start with `Role:`, has its roles as devices; of another text each
    device has a piece. Raises DelianError for a file that is no text.
    """
    from ...core.learning.data.shakespeare_plays import speeches
    from ...core.learning.data.text_pieces import text_of

    text = text_of(path)
    roles = sum(len(words) >= ROLE_CHARACTERS for words in speeches(text).values())
    own: dict[str, Any]
    rate = PLAY_RATE
    if roles >= ROLES:
        own = {"source": "shakespeare", "min_characters": ROLE_CHARACTERS, "max_windows": 100}
        devices, held = min(devices or roles, roles), "a role of the play"
    else:
        fit = int(np.clip(len(text) // CHARACTERS_A_DEVICE, DEVICES[0], 4 * DEVICES[1]))
        devices = devices or fit
        steps = int(np.clip(len(text) // devices // WINDOWS, *STEPS))
        own = {"source": "text", "steps": steps, "max_windows": 100}
        held, rate = "a piece of it", PIECES_RATE
    held_out = min(devices // A_HELD_OUT, HELD_OUT_MAX)
    masked = devices - held_out >= MASKED_MIN
    fleet = {"devices": devices} if own["source"] == "text" else {}
    tables = {
        "name": _name(path.stem),
        "description": f"{path.name}: {len(text):,} characters. Each of {devices} devices holds"
        f" {held}, and learns which character comes next.",
        "rounds": 30,
        "data": {**own, "query_fraction": QUERY_FRACTION, "held_out_devices": held_out},
        "model": {"name": "lstm"},
        "algorithm": {
            "name": "fedavg",
            "epochs": 2,
            "batch_size": 10,
            "optimizer": "adam",
            "learning_rate": rate,
            "personal_steps": 5,
            "personal_learning_rate": 0.1,
        },
        "fleet": fleet,
        "round": {"reports_min": min(2, devices - held_out)},
        "privacy": {"clip": 60.0, "aggregation": "secure" if masked else "plain"},
    }
    return from_tables(tables, f"the scenario of {path.name}")


def fitted_to_script(path: Path, devices: int = 0) -> Scenario:
    """A scenario for a training script of a user's, which has its model's first weights.

    Raises DelianError for a Python file that is no such script: nothing else is run.
    """
    with path.open("rb") as file:
        begins = file.read(SCRIPT_BYTES_MAX)
    if not IMPORTS_CLIENT.search(begins):
        raise DelianError(
            f"{path} is no training script: it does not import delian.client",
            "for task in client.tasks(model): ... (docs/scripts.md); a PyTorch module is --torch"
            " FILE:CLASS",
        )
    devices = devices or SCRIPT_DEVICES
    tables = {
        "name": _name(path.stem),
        "description": f"{devices} clients train by the script {path.name}.",
        "rounds": 10,
        "data": {"source": "script", "path": str(path.absolute())},
        "model": {"name": "given"},
        "algorithm": {"name": "script"},
        "fleet": {"devices": devices},
        "round": {"reports_min": min(2, devices), "timeout_ms": SCRIPT_ROUND_MS},
        "privacy": {
            "clip": SCRIPT_CLIP,
            "aggregation": "secure" if devices >= MASKED_MIN else "plain",
        },
    }
    return from_tables(tables, f"the scenario of {path.name}")


def _name(text: str) -> str:
    """A scenario's name, made of a file's."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text).lstrip("-_.")[:64] or "data"


def fitted_to(rows: OwnRows, kind: str, name: str, devices: int = 0) -> Scenario:
    """A scenario for these rows, on so many devices; zero: as many as fit.

    Raises DelianError where no device has enough of them, and for rows of one class.
    """
    if rows.y.dtype != np.float32 and len(np.unique(rows.y)) < LABELS_LEAST:
        names = rows.label_names or (str(int(rows.y[0])),)
        raise DelianError(
            f"{rows.source} has one class, {names[int(rows.y[0])]}: there is nothing to learn",
            "give rows of another class as well",
        )
    return from_tables(_tables(rows, kind, name, devices), f"the scenario of {rows.source}")


def _tables(rows: OwnRows, kind: str, name: str, devices: int) -> dict[str, Any]:
    devices = devices or int(np.clip(len(rows.y) // ROWS_A_DEVICE, *DEVICES))
    if rows.owners is not None:
        devices = int((np.bincount(rows.owners) >= ROWS_LEAST).sum())
    if not devices:
        raise DelianError(
            f"no device of {rows.source} has {ROWS_LEAST} rows",
            "name another column with --set data.device=COLUMN, or rename that of devices",
        )
    held_out = min(devices // A_HELD_OUT, HELD_OUT_MAX)
    training = devices - held_out
    own: dict[str, Any] = {
        "source": kind,
        "query_fraction": QUERY_FRACTION,
        "held_out_devices": held_out,
        "partition": "iid",  # of data without devices: any skew would be made up
        **keys_of(rows, kind),
    }
    if kind == "stored":
        own = {key: own[key] for key in ("source", "query_fraction", "held_out_devices")}
        own["targets"] = "numbers" if rows.y.dtype == np.float32 else "labels"
    elif kind != "images":
        own["standardise"] = isinstance(rows, data.TableRows) or (
            rows.x.ndim == 2 and rows.x.dtype == np.float32
        )
    masked, model = training >= MASKED_MIN, _model(rows)
    rate, personal = _rates(rows, model)
    # Edges and the cohort are not set: they follow the number of devices when it is changed.
    fleet: dict[str, Any] = {}
    if rows.owners is None or (
        isinstance(rows, data.TableRows) and rows.series is not None and not rows.device_name
    ):
        fleet["devices"] = devices
    return {
        "name": _name(name),
        "description": described(rows, devices, held_out),
        "rounds": 30,
        "data": own,
        "model": model,
        "algorithm": {
            "name": "fedavg",
            "epochs": 5,
            "batch_size": 16,
            "optimizer": "adam",
            "learning_rate": rate,
            "personal_steps": 5,
            "personal_learning_rate": personal,
        },
        "fleet": fleet,
        "round": {"reports_min": min(2, training)},
        "privacy": {"clip": 10.0, "aggregation": "secure" if masked else "plain"},
    }


def _model(rows: OwnRows) -> dict[str, Any]:
    """Convolutions for images that are large enough, dense layers for other rows."""
    if isinstance(rows, data.TableRows):
        return {"name": "mlp", "hidden": [64]}
    shape = rows.x.shape[1:]
    pixels = rows.x.dtype == np.uint8 and len(shape) in (2, 3)
    if pixels and min(shape[:2]) >= CONVOLUTION_SIDE:
        return {"name": "cnn", "hidden": 128}
    return {"name": "mlp", "hidden": [64]}


def _rates(rows: OwnRows, model: dict[str, Any]) -> tuple[float, float]:
    """Adam's learning rate, and that of personal steps, for this model of these rows."""
    if model["name"] == "cnn" and not isinstance(rows, data.TableRows):
        return SMALL if min(rows.x.shape[1:3]) < SMALL_SIDE else CONVOLUTIONS
    return NUMBERS if rows.y.dtype == np.float32 else DENSE


def described(rows: OwnRows, devices: int, held_out: int) -> str:
    """What a report says of the data, in a sentence or two."""
    learnt = "y"
    if isinstance(rows, data.TableRows):
        learnt = rows.target_name
        what = f"{len(rows):,} rows of {len(rows.columns)} columns"
    else:
        shape = " x ".join(str(n) for n in rows.x.shape[1:])
        what = f"{len(rows.x):,} rows of {shape} values"
    if rows.y.dtype == np.float32:
        goal = f"the numbers of `{learnt}`"
    else:
        labels = rows.label_names or tuple(str(k) for k in range(int(rows.y.max()) + 1))
        shown = ", ".join(labels[:6]) + (", ..." if len(labels) > 6 else "")
        goal = f"{len(labels)} classes ({shown})"
    newcomers = f" {held_out} of them never train: they show how the model serves newcomers."
    if held_out == 1:
        newcomers = " One of them never trains: it shows how the model serves newcomers."
    return (
        f"{rows.source}: {what}, of which {goal} are learnt, on {devices} devices."
        f"{newcomers if held_out else ''}"
    )[:2000]
