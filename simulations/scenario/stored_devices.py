"""A folder with a folder for each device, whose rows are read in windows: `data.source = "stored"`.

Each device's folder is what a real device's `data.source` may be: x.npy and y.npy, Parquet, packed
files and so on. Of each no more than `rows_in_memory` rows are in memory; they are also the sample
that reports, baselines and the view by classes look at.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...core.common.errors import DelianError
from ...core.compiler.ir import DType
from ...core.learning import data
from ...core.learning.bundle import Leaf
from ...core.learning.data import federated_data
from ...core.learning.data.fit import NUMBERS, fit
from ...core.learning.data.labelled_arrays import examples_of, numbers_of
from ...core.learning.data.rows import DataSettings, Rows
from ...core.learning.data.sources import open_source
from ...core.learning.data.stored_rows import StoredRows, holds_arrays, is_stored
from . import data_settings
from .settings_table import DEVICES_MAX

#: Rows of each device that a scenario is fitted to.
FITTED_ROWS = 1024


def holds_devices(path: Path) -> bool:
    """Whether a folder has a folder of x.npy and y.npy for each device."""
    return path.is_dir() and any(holds_arrays(each) for each in path.iterdir() if each.is_dir())


def opened(path: Path) -> tuple[tuple[str, ...], tuple[StoredRows, ...]]:
    """The names of the devices of a folder, sorted, and the rows of each.

    Raises DelianError where there are none, or a folder is no data source of stored rows.
    """
    if not path.is_dir():
        raise DelianError(f"there is no folder {path}", "a folder with a folder for each device")
    folders = sorted(each for each in path.iterdir() if each.is_dir())
    if not 0 < len(folders) <= DEVICES_MAX:
        raise DelianError(
            f"{path} has {len(folders)} folders", f"one for each device, at most {DEVICES_MAX}"
        )
    found = []
    for folder in folders:
        source = open_source(DataSettings(str(folder)))
        if not is_stored(source):
            raise DelianError(
                f"{folder} gives its rows all at once", "write x.npy and y.npy, or pack them"
            )
        found.append(source)
    return tuple(folder.name for folder in folders), tuple(found)


def first_labelled(path: Path, numbers: bool | None = None) -> data.Labelled:
    """The first rows of each device, in memory. numbers: whether y is learnt as numbers."""
    names, sources = opened(path)
    parts = [source.read(0, min(source.rows, FITTED_ROWS)) for source in sources]
    x, y = (np.concatenate(each) for each in zip(*((p.x, p.y) for p in parts), strict=True))
    learns = y.dtype.kind == "f" if numbers is None else numbers
    owners = np.repeat(np.arange(len(parts)), [len(part.x) for part in parts])
    labels = numbers_of(path, "y", y, len(x)) if learns else y.astype(np.int32)
    return data.Labelled(path.name, examples_of(path, "x", x), labels, owners, names)


def stored_federation(
    path: Path, source: data_settings.StoredData, seed: int, classes: int | None
) -> data.FederatedData:
    """What every device holds: a sample in memory, and its rows where they are."""
    names, sources = opened(path)
    numbers, room = source.targets == "numbers", source.rows_in_memory
    samples = [each.read(0, min(each.rows, room)) for each in sources]
    if not numbers:
        classes = classes or max(int(part.y.max()) for part in samples) + 1
    first = samples[0]
    wanted = _leaves(first, room, numbers)
    fraction = source.query_fraction
    devices = []
    for part in samples:
        x, y, support, query = fit(part, wanted, classes=classes, query_fraction=fraction)
        devices.append(data.DeviceData(x, y, int(support), int(query)))
    labels = [np.asarray(part.y) for part in samples]
    if numbers:
        label_names, counts = federated_data.value_table([y.reshape(-1) for y in labels])
    else:
        assert classes is not None
        label_names = tuple(str(label) for label in range(classes))
        counts = federated_data.label_table(labels, classes)
    sizes = tuple(each.rows for each in sources)
    note = f"labels are counted in the first {room:,} rows of each device"
    card = data.DataCard(
        path.name,
        "by the folders of devices",
        "examples",
        sizes,
        label_names,
        counts,
        numbers,
        notes=(note,) if max(sizes) > room else (),
    )
    held_out = federated_data.hold_out(len(sources), source.held_out_devices, seed)
    shape = first.x.shape[1:]
    given = int(np.prod(first.y.shape[1:])) if numbers else classes
    return data.FederatedData(
        tuple(devices),
        held_out,
        shape,
        given or 1,
        names,
        card,
        stored=sources,
        folders=tuple(path.absolute() / name for name in names),
    )


def _leaves(rows: Rows, room: int, numbers: bool) -> tuple[Leaf, ...]:
    """Of data of the form of these rows: pixels stay u8, all else is f32."""
    x = "u8" if rows.x.dtype == np.uint8 else DType.F32.value
    y = NUMBERS if numbers else DType.I32.value
    return (
        Leaf("data.x", x, (room, *rows.x.shape[1:])),
        Leaf("data.y", y, (room, *rows.y.shape[1:])),
        Leaf("data.support", DType.I64.value, ()),
        Leaf("data.query", DType.I64.value, ()),
    )
