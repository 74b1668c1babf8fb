"""Devices of a simulation that train in windows: what they hold, and samples of it.

With `data.rows_in_memory` a bundle's programs have room for so many rows. A device with more of
them trains in windows, as a real one does. What looks at a device's rows as arrays (baselines, the
view by classes, adaptation by steps) sees a sample of these: the first ones of each side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.compiler.ir import Array
from ...core.learning.bundle import Manifest
from ...core.learning.data.federated_data import FEDERATION_BYTES_MAX
from ...core.learning.data.rows import Rows
from ...core.learning.data.stored_rows import HeldRows, StoredRows
from ...core.learning.sampling import SampleSet
from ...core.learning.windows.window_rows import WindowRows


def sampled(arrays: Sequence[Any], room: int) -> list[Any]:
    """Each device's arrays in so many rows. room: zero: as they are."""
    return [_sample(each, room) if room else each for each in arrays]


def stored_windows(
    stored: Sequence[StoredRows],
    room: int,
    manifest: Manifest,
    classes: int | None,
    fraction: float,
) -> dict[int, WindowRows]:
    """As `windows_of`, of rows in files. fraction: of the rows that judge."""
    return {
        device: WindowRows(
            rows,
            manifest.data,
            classes=classes,
            query_fraction=fraction,
            bytes_max=FEDERATION_BYTES_MAX,
        )
        for device, rows in enumerate(stored)
        if rows.rows > room
    }


def windows_of(arrays: Sequence[Any], room: int, manifest: Manifest) -> dict[int, WindowRows]:
    """The devices that have more rows than there is room for, by number; room: zero: none."""
    found = {}
    for device, each in enumerate(arrays):
        if room and int(each.support) + int(each.query) > room:
            found[device] = WindowRows(
                HeldRows(as_rows(each)),
                manifest.data,
                classes=None,
                query_fraction=0.5,  # not used: these rows have their split
                bytes_max=FEDERATION_BYTES_MAX,
            )
    return found


def as_rows(arrays: SampleSet) -> Rows:
    """A device's rows with their split."""
    support, count = int(arrays.support), int(arrays.support) + int(arrays.query)
    judges = np.arange(count) >= support
    return Rows(np.asarray(arrays.x[:count]), np.asarray(arrays.y[:count]), judges)


def device_file(arrays: Any, names: Sequence[str], room: int) -> dict[str, Array]:
    """The arrays of a device's data file: the bundle's own, or rows where these are too many."""
    if isinstance(arrays, SampleSet) and room and int(arrays.support) + int(arrays.query) > room:
        rows = as_rows(arrays)
        assert rows.query is not None
        return {"x": rows.x, "y": rows.y, "query": rows.query}
    small = _sample(arrays, room) if room else arrays
    leaves = small if isinstance(small, SampleSet) else tuple(small)
    return dict(zip(names, map(np.asarray, leaves), strict=True))


def _sample(arrays: SampleSet, room: int) -> SampleSet:
    support, query = int(arrays.support), int(arrays.query)
    if support + query > room:
        judging = min(max(1, round(room * query / (support + query))), room - 1)
        kept = [*range(room - judging), *range(support, support + judging)]
        support, query = room - judging, judging
    else:
        kept = [*range(support + query)]
    x = np.zeros((room, *arrays.x.shape[1:]), arrays.x.dtype)
    y = np.zeros((room, *arrays.y.shape[1:]), arrays.y.dtype)
    x[: len(kept)], y[: len(kept)] = arrays.x[kept], arrays.y[kept]
    return SampleSet(x, y, np.array(support, np.int64), np.array(query, np.int64))
