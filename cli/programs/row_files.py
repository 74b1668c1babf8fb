"""Files of rows that commands give to a model: arrays, tables and folders of images."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.common.errors import DelianError
from ..output import write_out

if TYPE_CHECKING:
    from ...core.compiler.ir import Array
    from ...core.learning.predictor import Predictor

#: A file of rows larger than this is not read.
DATA_BYTES_MAX = 1 << 30
#: The array of an .npz that is read: the first of these names that it has.
ROWS, LABELS = ("x", "image"), ("y", "label")
KNOWN = "give a .csv, .tsv or .parquet table, an .npz with `x`, an .npy, or a folder of images"


def rows_of(path: Path, names: tuple[str, ...] = ROWS) -> Array:
    """The rows of an .npy, or the array of the first of these names that an .npz has.

    Raises DelianError for a file that has none.
    """
    import numpy as np

    from ...core.learning.data.data_files import BROKEN, require_file

    require_file(path, "name a file that is there")
    try:
        size = path.stat().st_size
        if zipfile.is_zipfile(path):  # its parts may be compressed
            with zipfile.ZipFile(path) as archive:
                size = sum(part.file_size for part in archive.infolist())
        if size > DATA_BYTES_MAX:
            raise DelianError(f"{path}: more than {DATA_BYTES_MAX} bytes", "give fewer rows")
        found: Any = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:
            name = next((each for each in names if each in found.files), None)
            if name is None:
                raise DelianError(
                    f"{path} has no array `{names[0]}`,"
                    f" but {', '.join(found.files[:8]) or 'nothing'}",
                    f"numpy.savez(path, {names[0]}=...)",
                )
            rows: Array = found[name]
            return rows
    except OSError as error:
        raise DelianError(
            f"{path}: cannot be read: {error.strerror or error}", "name a file that is there"
        ) from None
    except BROKEN:
        raise DelianError(
            f"{path}: neither an .npy nor an .npz file of numbers", "write it with numpy.save"
        ) from None


def asked_of(path: Path, model: Predictor) -> Array | list[str]:
    """What a file asks a model: texts of one that reads them, else rows (`rows_for`).

    Raises DelianError.
    """
    from ...core.learning.data.tabular.text_lists import SUFFIXES, read_texts

    if path.suffix in SUFFIXES and model.of_texts:
        return read_texts(path)
    return rows_for(path, model)


def rows_for(path: Path, model: Predictor) -> Array:
    """The rows of any data that `delian simulate --data` takes, as the model takes them.

    Columns of a table are those that the run's report names. Raises DelianError.
    """
    from ...core.common.foreign_formats import refuse_file
    from ...core.learning.data.images import IMAGE_SUFFIXES
    from ...core.learning.data.tabular.brought_folders import asked_table
    from ...core.learning.data.tabular.table_files import table_suffix

    if path.suffix != ".npy":
        refuse_file(path, "data")
    image = path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()
    if model.encoding is None and (path.is_dir() or image):
        return model.rows(_images(path, model))
    if path.is_dir() or table_suffix(path):
        if model.encoding is None:
            raise DelianError(
                f"{path} is a table, and the columns of the model are not known: its rows are"
                f" {list(model.row_shape)}",
                "give an .npz with `x`; of a run on a table name the run's folder, whose"
                " report.json has the columns",
            )
        return model.rows(asked_table(path))
    if path.exists() and path.suffix not in (".npz", ".npy"):
        raise DelianError(f"{path} holds no rows of a known kind", KNOWN)
    return model.rows(rows_of(path))


def _images(path: Path, model: Predictor) -> Array:
    """Images of a file or a folder, in the model's size and colours."""
    from ...core.learning.data.image_folders import image_rows
    from ...core.learning.data.tabular.brought_folders import asked_images

    shape = model.row_shape
    if len(shape) not in (2, 3) or shape[0] != shape[1]:
        what = "a folder" if path.is_dir() else "an image"
        raise DelianError(
            f"{path} is {what}, and the model takes rows of {list(shape)}: no images", KNOWN
        )
    colour = len(shape) == 3 and shape[2] == 3
    return image_rows(asked_images(path), path.name, shape[0], colour, "refuse").x


def write_rows(path: Path, rows: Array) -> None:
    """Writes an .npy file by exactly this name. Raises DelianError where it cannot be written."""
    import io

    import numpy as np

    content = io.BytesIO()
    np.save(content, rows)
    write_out(path, content.getvalue())
