"""Data sets as they are published, from a folder of the files as they are downloaded.

- IDX (MNIST, Fashion-MNIST, EMNIST): LeCun's format. Big-endian magic 0x0000 08 dimensions, the
  sizes as u32, then bytes. Files whose names hold `images` and `labels`, gzipped or not; those that
  belong together differ in nothing else. EMNIST's images lie on their side and are turned.
- CIFAR-10, binary version (Krizhevsky 2009): records of 1 + 3,072 bytes, label and three planes of
  32 x 32.
- UCI HAR (Anguita et al. 2013): 561 features of a window of a phone's motion, six activities, by
  subject: X_train.txt, y_train.txt, subject_train.txt and the same of `test`.

Train and test files are read together: a federation splits by device, not by the authors' split.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from .federated_data import FEDERATION_BYTES_MAX
from .labelled_arrays import Labelled

IDX_BYTES = 0x08  # the type of an IDX file's elements: unsigned bytes
CIFAR_RECORD = 1 + 3 * 32 * 32
HAR_FEATURES, HAR_ACTIVITIES = 561, 6
#: A text file of the HAR set has 66 MB.
HAR_BYTES_MAX = 256 << 20
#: What the halves of one set differ in.
_PART = re.compile("train|test|t10k")
_DOWNLOAD = "give the folder with the files as they are downloaded: --data DIR or data.path"


def idx(folder: Path, prefix: str = "") -> Labelled:
    """x: u8 [n, H, W]; y: i32 [n].

    prefix: what files' names begin with. Raises DelianError for a folder without pairs of files,
    with a file that is none, or with several sets.
    """
    names = [f for f in _files(folder) if f.name.startswith(prefix) and _is_idx(f.name)]
    # One that lies there packed and unpacked is read once.
    found = {f.name.removesuffix(".gz"): f for f in sorted(names, reverse=True)}
    images = [found[name] for name in sorted(found) if "images" in name]
    if not images:
        raise DelianError(f"{folder} has no IDX images ({prefix}*images-idx3-ubyte)", _DOWNLOAD)
    sets = sorted({_PART.sub("", f.name).split("-images")[0].strip("-") for f in images})
    if len(sets) > 1:
        raise DelianError(
            f"{folder} has files of several sets: {', '.join(sets)}",
            f"say which, for example data.files={sets[0]}",
        )
    parts = []
    for file in images:
        labels = _partner(file)
        x, y = _idx(file, 3), _idx(labels, 1)
        if len(x) != len(y):
            raise DelianError(
                f"{file} has {len(x)} images and {labels.name} {len(y)} labels", "get both again"
            )
        if "emnist" in file.name.lower():
            x = x.transpose(0, 2, 1)
        parts.append((x, y.astype(np.int32)))
    shapes = {x.shape[1:] for x, _ in parts}
    if len(shapes) > 1:
        raise DelianError(f"{folder} has images of several sizes: {sorted(shapes)}", _DOWNLOAD)
    x = np.ascontiguousarray(np.concatenate([x for x, _ in parts]))
    y = np.concatenate([y for _, y in parts])
    return Labelled(f"{folder.name} (IDX)", x, y - y.min())


def _is_idx(name: str) -> bool:
    return "idx" in name and name.removesuffix(".gz").endswith("ubyte")


def _partner(images: Path) -> Path:
    """The labels that belong to a file of images; either may be gzipped."""
    name = images.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1")
    for candidate in (images.with_name(name), images.with_name(f"{name}.gz")):
        if candidate.is_file():
            return candidate
    raise DelianError(f"{images} has no {name} next to it", _DOWNLOAD)


def _idx(file: Path, dimensions: int) -> NDArray[np.uint8]:
    content = _content(file, FEDERATION_BYTES_MAX)
    head = 4 + 4 * dimensions
    if len(content) < head or content[:4] != bytes([0, 0, IDX_BYTES, dimensions]):
        raise DelianError(
            f"{file} is no IDX file of bytes in {dimensions} dimensions", "get the file again"
        )
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", dimensions, 4))
    size = int(np.prod(shape, dtype=object))
    if not size or len(content) != head + size:
        raise DelianError(
            f"{file} declares {list(shape)} and holds {len(content) - head} bytes",
            "it is cut short or damaged: get the file again",
        )
    return np.frombuffer(content, np.uint8, size, head).reshape(shape)


def cifar10(folder: Path) -> Labelled:
    """x: u8 [n, 32, 32, 3]; y: i32 [n], 0..9. Raises DelianError."""
    files = [f for f in _files(folder) if re.fullmatch(r"(data_batch_\d+|test_batch)\.bin", f.name)]
    if not files:
        raise DelianError(f"{folder} has no data_batch_*.bin", _DOWNLOAD)
    tables = []
    for file in sorted(files):
        content = _content(file, FEDERATION_BYTES_MAX // 16)
        if not content or len(content) % CIFAR_RECORD:
            raise DelianError(
                f"{file}: {len(content)} bytes are no records of {CIFAR_RECORD}",
                "it is cut short or damaged: get the file again",
            )
        tables.append(np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD))
    table = np.concatenate(tables)
    y = table[:, 0].astype(np.int32)
    if y.max() > 9:
        raise DelianError(f"{folder} has a label {int(y.max())}", "this is not CIFAR-10's form")
    planes = table[:, 1:].reshape(-1, 3, 32, 32)
    return Labelled("CIFAR-10", np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), y)


def har(folder: Path) -> Labelled:
    """x: f32 [n, 561], in -1..1; y: i32 [n], 0..5; a subject is a device. Raises DelianError."""
    x, y, subjects = [], [], []
    for part in ("train", "test"):
        if not (place := _holding(folder, part, f"X_{part}.txt")):
            continue
        x.append(_numbers(place / f"X_{part}.txt", np.float32, HAR_FEATURES))
        y.append(_numbers(place / f"y_{part}.txt", np.int64, 1)[:, 0])
        subjects.append(_numbers(place / f"subject_{part}.txt", np.int64, 1)[:, 0])
        if not len(x[-1]) == len(y[-1]) == len(subjects[-1]):
            raise DelianError(
                f"{place} has files of {len(x[-1])}, {len(y[-1])} and {len(subjects[-1])} rows",
                "get the files again",
            )
    if not x:
        raise DelianError(f"{folder} has no X_train.txt", _DOWNLOAD)
    labels, who = np.concatenate(y), np.concatenate(subjects)
    if labels.min() < 1 or labels.max() > HAR_ACTIVITIES:
        raise DelianError(
            f"{folder} has activities {labels.min()}..{labels.max()}", "they run from 1 to 6"
        )
    names, owners = np.unique(who, return_inverse=True)
    return Labelled(
        "UCI HAR",
        np.concatenate(x),
        (labels - 1).astype(np.int32),
        owners.astype(np.int64),
        tuple(f"subject {name}" for name in names),
    )


def _holding(folder: Path, part: str, name: str) -> Path | None:
    """The folder itself or its sub-folder `part`, whichever has the file."""
    return next((p for p in (folder, folder / part) if (p / name).is_file()), None)


def _numbers(file: Path, dtype: Any, columns: int) -> NDArray[Any]:
    try:
        text = io.BytesIO(_content(file, HAR_BYTES_MAX))
        table = np.loadtxt(text, dtype, ndmin=2)
    except ValueError as error:
        raise DelianError(f"{file}: {error}", "get the file again") from None
    if table.shape[1:] != (columns,) or not len(table):
        raise DelianError(f"{file} has {list(table.shape)} numbers, not {columns} a row")
    if not np.all(np.isfinite(table)):
        raise DelianError(f"{file} has numbers that are NaN or infinite", "get the file again")
    return table


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DelianError(f"there is no folder {folder}", _DOWNLOAD)
    return [f for f in folder.iterdir() if f.is_file()]


def _content(file: Path, bytes_max: int) -> bytes:
    """A file's content, unpacked where it is gzipped. Raises DelianError."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            content = stream.read(bytes_max + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DelianError(f"{file} cannot be read: {error}", "get the file again") from None
    if len(content) > bytes_max:
        raise DelianError(f"{file} is larger than {bytes_max >> 20} MiB", "this is another file")
    return content
