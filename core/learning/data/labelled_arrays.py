"""Labelled arrays as a federation: the digits that scikit-learn carries, and any .npz file.

An .npz file has `x` [n, ...] (u8 are pixels; bool, other integers or floats; also `image`) and `y`
[n] (whole numbers from 0; also `label`). With `device` [n] (numbers or text) each example says
which device it lives on; `device_names` [d] may name the devices, `device` is then an index into
it. Without `device` a partitioner deals the examples out. With
`query` [n] (truth values) these rows only judge. Where numbers are to be learnt, `y` [n]
or [n, k] is any numbers.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from ...common.install_hint import install
from . import federated_data
from .data_files import npz_keys, read_gzip, read_npz
from .partition import amounts
from .partition.deal import Deal
from .partition.label_skew import Parts
from .partition.partitioners import deal_out, shifted
from .partition.partitioners import words as words_of
from .rows import Rows
from .tabular.fitted_features import Fit, Fitted, features_of, rows_trained_on
from .tabular.table_rows import TableRows

DIGITS_BYTES_MAX = 1 << 20
DIGITS_COLUMNS = 65  # 8 x 8 pixels and the label
CLASSES_MAX = 1 << 16
OUTPUTS_MAX = 1 << 12
U8_MAX = 255
#: Every whole number up to it is an f32.
F32_WHOLE_MAX = 1 << 24


@dataclass(frozen=True, slots=True)
class Labelled:
    """Examples that no device owns yet, or `owners[i]`'s, an index into `owner_names`."""

    source: str
    x: NDArray[Any]
    y: NDArray[Any]
    """Labels, i32 [n], or numbers, f32 [n] or [n, k]."""
    owners: NDArray[np.int64] | None = None
    owner_names: tuple[str, ...] = ()
    query: NDArray[np.bool_] | None = None
    """The data's own split, [n]: rows that only judge."""
    label_names: tuple[str, ...] = ()
    """By label, its name; empty: its number."""
    notes: tuple[str, ...] = ()
    """What was left out or filled in, in words."""


def digits() -> Labelled:
    """The 1,797 handwritten digits of scikit-learn. x: u8 [1797, 8, 8], 0..16; y: i32 [1797], 0..9.

    Reads the package's data file; scikit-learn itself is not imported (it takes longer than the
    first round).
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DelianError(
            "the digits are part of scikit-learn, which is not installed here",
            f"{install('sim')}, or bring your own data with --data",
        )
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    content = read_gzip(path, DIGITS_BYTES_MAX).decode("ascii", "replace")
    try:
        table = np.array(content.replace("\n", ",").rstrip(",").split(","), dtype=np.float32)
        table = table.reshape(-1, DIGITS_COLUMNS)
    except ValueError as error:
        raise DelianError(
            f"{path} is not the digits' table: {error}", "reinstall scikit-learn"
        ) from None
    x = table[:, :-1].astype(np.uint8).reshape(-1, 8, 8)
    return Labelled("scikit-learn's handwritten digits", x, table[:, -1].astype(np.int32))


def npz(path: Path, numbers: bool = False) -> Labelled:
    """The examples of an .npz file (see the module). numbers: `y` holds numbers, not labels."""
    present = npz_keys(path)
    x_key = "image" if "x" not in present and "image" in present else "x"
    y_key = "label" if "y" not in present and "label" in present else "y"
    optional = [key for key in ("device", "device_names", "query") if key in present]
    arrays = read_npz(path, [x_key, y_key, *optional])
    x = examples_of(path, x_key, arrays[x_key])
    read = numbers_of if numbers else _labels
    y = read(path, y_key, arrays[y_key], len(x))
    owners: NDArray[np.int64] | None = None
    names: tuple[str, ...] = ()
    if "device" in arrays:
        owners, names = _owners(path, arrays["device"], arrays.get("device_names"), len(x))
    read_in: tuple[tuple[str, NDArray[Any]], ...] = ((x_key, x), (y_key, y))
    for key, array in read_in:
        if array.dtype == np.float32:
            check_finite(path, key, array, owners, names)
    split = arrays.get("query")
    Rows(x, y, split)  # checks it
    return Labelled(
        path.name, x, y, owners, names, None if split is None else split.astype(np.bool_)
    )


def examples_of(path: Path, key: str, x: NDArray[Any]) -> NDArray[Any]:
    """u8 and bools as u8, which are pixels; everything else as f32, which holds ids as well."""
    if x.ndim < 2:
        raise DelianError(
            f"array `{key}` of {path} has shape {list(x.shape)}; "
            "it needs one row an example, [n, ...]",
            "reshape it before saving",
        )
    if len(x) == 0:
        raise DelianError(
            f"array `{key}` of {path} holds no examples", "check how the file was made"
        )
    if x.dtype == np.uint8:
        return x
    if x.dtype == np.bool_:
        return x.astype(np.uint8) * np.uint8(U8_MAX)
    is_whole = x.dtype.kind in "iu" and max(-int(x.min()), int(x.max())) <= F32_WHOLE_MAX
    if x.dtype.kind == "f" or is_whole:
        return np.ascontiguousarray(x, dtype=np.float32)
    raise DelianError(
        f"array `{key}` of {path} has dtype {x.dtype}"
        + (f" and values {x.min()}..{x.max()}" if x.dtype.kind in "iu" else ""),
        "save pixels as uint8 and anything else as float32, which holds whole numbers up to"
        f" {F32_WHOLE_MAX:,}: a model makes them whole again with x.astype(np.int32)",
    )


def _labels(path: Path, key: str, y: NDArray[Any], examples: int) -> NDArray[np.int32]:
    if y.shape != (examples,):
        raise DelianError(
            f"array `{key}` of {path} has shape {list(y.shape)}; it needs one label "
            f"for each of the {examples} examples",
            "save the labels as one whole number an example (not one-hot)",
        )
    if y.dtype.kind == "f" and y.size and np.array_equal(y, np.rint(y)):
        y = y.astype(np.int64)
    if y.dtype.kind not in "iu":
        raise DelianError(
            f"array `{key}` of {path} has dtype {y.dtype}",
            "save the labels as whole numbers from 0; numbers to learn need data.targets = numbers",
        )
    if y.min() < 0 or y.max() >= CLASSES_MAX:
        raise DelianError(
            f"array `{key}` of {path} has labels {y.min()}..{y.max()}",
            f"labels run from 0 to {CLASSES_MAX - 1}",
        )
    return np.ascontiguousarray(y, dtype=np.int32)


def numbers_of(path: Path, key: str, y: NDArray[Any], examples: int) -> NDArray[np.float32]:
    """Numbers to learn, f32 [n] or [n, k]. Raises DelianError for other shapes and types."""
    shaped = y.ndim in (1, 2) and len(y) == examples and 0 < y.size <= examples * OUTPUTS_MAX
    if not shaped or y.dtype.kind not in "iuf":
        raise DelianError(
            f"array `{key}` of {path} has shape {list(y.shape)} and dtype {y.dtype}; it needs a "
            f"number, or a row of numbers, for each of the {examples} examples",
            f"save them as floats, [n] or [n, k] with k at most {OUTPUTS_MAX}",
        )
    return np.ascontiguousarray(y, dtype=np.float32)


def _owners(
    path: Path, device: NDArray[Any], device_names: NDArray[Any] | None, examples: int
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if device.shape != (examples,) or device.dtype.kind not in "iuUS":
        raise DelianError(
            f"array `device` of {path} has shape {list(device.shape)} and dtype {device.dtype}",
            f"save one whole number or one text for each of the {examples} examples",
        )
    if device_names is None:
        values, owners = np.unique(device, return_inverse=True)
        text = np.strings.decode(values, "utf-8", "replace") if values.dtype.kind == "S" else values
        return owners.astype(np.int64), tuple(str(value) for value in text)
    if device_names.ndim != 1 or device_names.dtype.kind != "U" or device.dtype.kind not in "iu":
        raise DelianError(
            f"`device_names` of {path} must be a row of text and `device` numbers into it",
            "or leave `device_names` out and put the names into `device`",
        )
    if device.min() < 0 or device.max() >= len(device_names):
        raise DelianError(
            f"array `device` of {path} has numbers {device.min()}..{device.max()}, "
            f"and `device_names` names {len(device_names)} devices",
            "numbers count from 0",
        )
    return device.astype(np.int64), tuple(str(name) for name in device_names)


def check_finite(
    path: Path,
    key: str,
    x: NDArray[np.float32],
    owners: NDArray[np.int64] | None = None,
    names: tuple[str, ...] = (),
) -> None:
    """Raises DelianError for rows that are NaN or infinite."""
    broken = ~np.isfinite(x.reshape(len(x), -1)).all(axis=1)
    if broken.any():
        first = int(broken.argmax())
        owner = "" if owners is None else f" (device `{names[owners[first]]}`)"
        raise DelianError(
            f"array `{key}` of {path} has {int(broken.sum())} examples that are NaN or infinite, "
            f"the first at row {first}{owner}",
            "drop or mend these rows",
        )


def federate(
    data: Labelled | TableRows,
    *,
    deal: Deal,
    devices: int | None,
    query_fraction: float,
    held_out_devices: int,
    seed: int,
    classes: int | None = None,
    standardise: bool = False,
    fit: Fit | None = None,
) -> federated_data.FederatedData:
    """Deal labelled examples out to devices and split each device's into support and query.

    fit: of a table, finds what its columns become, by the rows that devices train on.

    Numbers have no labels to deal by, or to permute. Examples with noise are f32.

    standardise: whether the features [n, k], and numbers that are learnt, get a mean of zero and a
    deviation of one, as the devices that train have them.

    `devices` may be None for the natural partition (all that the data names); fewer are then drawn
    by the seed. `classes` is the number of labels that the model has; absent, the data decides.
    """
    numbers = data.y.dtype == np.float32
    found = data.y[0].size if numbers else int(data.y.max()) + 1
    if classes is not None and found > classes:
        row = int((data.y >= classes).argmax())
        raise DelianError(
            f"{data.source} has label {int(data.y[row])} (row {row}), "
            f"and the model has {classes} classes",
            f"set model.classes={found}, or check the labels: they count from 0",
        )
    classes = classes or found
    left_out = 0
    if deal.partition == "natural":
        parts, names, how, left_out = _natural(data, devices, deal, seed)
    elif devices is None:
        raise DelianError(
            f"a {deal.partition} partition needs a number of devices", "set fleet.devices"
        )
    else:
        names = tuple(f"device {i:0{len(str(devices - 1))}d}" for i in range(devices))
        parts, how = deal_out(data.y, devices, deal, seed), words_of(deal)
    splits = federated_data.split_parts(parts, names, query_fraction, seed, judges=data.query)
    held_out = federated_data.hold_out(len(parts), held_out_devices, seed)
    fitted: Fitted | None = None
    if isinstance(data, TableRows):
        assert fit is not None, "a table's columns are no features yet"
        training = [each.support for i, each in enumerate(splits) if i not in held_out]
        fitted = fit(data, rows_trained_on(data, training))
        given = features_of(data, fitted)
    else:
        given = data.x
    x, y, more = shifted(given, data.y, parts, deal, classes, seed)
    tables = federated_data.tables_of(x, y, splits)
    if numbers:
        labels, counts = federated_data.value_table([y[part] for part in parts])
    else:
        own = data.label_names[:classes]
        labels = own + tuple(str(i) for i in range(len(own), classes))
        counts = federated_data.label_table([y[part] for part in parts], classes)
    sizes = tuple(len(p) for p in parts)
    least = f"{deal.min_examples} examples"
    dealt = sum(sizes)
    notes = data.notes + (() if fitted is None else fitted.notes)
    if deal.partition != "natural" and dealt < len(y):
        notes += (f"{len(y) - dealt} rows are on no device",)
    card = federated_data.DataCard(
        data.source,
        how + more,
        "examples",
        sizes,
        labels,
        counts,
        numbers,
        left_out,
        least,
        notes,
        () if fitted is None else fitted.encoding.names,
        None if fitted is None else fitted.preparation,
    )
    plain = None if fitted is None else fitted.encoding.plain
    scaling = federated_data.scaling_of(tables, held_out, numbers, plain) if standardise else None
    shape = x.shape[1:]
    return federated_data.FederatedData(tables, held_out, shape, classes, names, card, scaling)


def _natural(
    data: Labelled | TableRows, devices: int | None, deal: Deal, seed: int
) -> tuple[Parts, tuple[str, ...], str, int]:
    """Owners with enough examples: parts, names, how they were found, the number left out."""
    if data.owners is None:
        raise DelianError(
            f"{data.source} does not say which device an example is on",
            "add an array `device` [n], or set data.partition to dirichlet or iid",
        )
    parts, owners = amounts.natural(data.owners, data.owner_names), data.owner_names
    if deal.group_size > 1:
        parts, owners = amounts.grouped(parts, owners, deal.group_size)
    kept = [i for i, part in enumerate(parts) if len(part) >= deal.min_examples]
    wanted = len(kept) if devices is None else devices
    if not kept or wanted > len(kept):
        raise DelianError(
            f"{data.source} has {len(kept)} devices with at least {deal.min_examples} examples, "
            f"and {wanted or 1} are asked for",
            "lower data.min_examples"
            + (f", or fleet.devices to at most {len(kept)}" if kept else ""),
        )
    rng = np.random.default_rng([seed, federated_data.PARTITION_STREAM])
    chosen = sorted(int(i) for i in rng.choice(kept, wanted, replace=False))
    how = f"by the data's own devices, {len(chosen)} of {len(parts)}"
    if deal.group_size > 1:
        how = f"by groups of {deal.group_size} of the data's own devices, {len(chosen)} of"
        how += f" {len(parts)}"
    names = tuple(owners[i] for i in chosen)
    return [parts[i] for i in chosen], names, how, len(parts) - len(kept)
