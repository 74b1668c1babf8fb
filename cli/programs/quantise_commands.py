"""`delian quantise`: a bundle for inference in bytes."""

from __future__ import annotations

import zipfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..options import AsJson
from ..output import tell, write_out

if TYPE_CHECKING:
    from ...core.compiler.ir import Array

#: A file of calibration rows larger than this is not read: a few hundred rows are enough.
DATA_BYTES_MAX = 1 << 30
#: The array of an .npz that is read.
ROWS = "x"


class Method(StrEnum):
    """How the ranges of activations are found."""

    mse = "mse"
    minmax = "minmax"
    percentile = "percentile"


def quantise(
    bundle: Annotated[Path, typer.Argument(help="A .bundle with weights: delian model export.")],
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            help="Rows to calibrate with, as devices' are: an .npy, or an .npz with an array x.",
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The .bundle to write.")],
    method: Annotated[
        Method, typer.Option("--method", help="How the ranges of activations are found.")
    ] = Method.mse,
    percentile: Annotated[
        float, typer.Option("--percentile", help="What that method keeps of each side.")
    ] = 99.99,
    keep_first: Annotated[
        bool, typer.Option("--keep-first", help="The first product stays in f32.")
    ] = False,
    keep_last: Annotated[
        bool, typer.Option("--keep-last/--last-too", help="The last product stays in f32, or not.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Make a bundle a quarter of the size, for inference alone.

    Weights become bytes with a scale for each channel; activations are bytes whose ranges a few
    hundred rows of data show. It says how often the two bundles choose the same class on these.
    """
    from ...core.learning.bundle import load
    from ...core.learning.quantise import quantise as in_bytes

    made, rows = load(bundle), rows_of(data)
    small = in_bytes(
        made,
        rows,
        method=method.value,
        percentile=percentile,
        keep_first=keep_first,
        keep_last=keep_last,
    )
    try:
        small.save(out)
    except OSError as error:
        raise DelianError(f"{out}: cannot be written: {error.strerror}") from None
    facts: dict[str, Any] = {
        "bundle": str(out),
        "bytes": out.stat().st_size,
        "from_bytes": bundle.stat().st_size,
        "weights_bytes": int(made.weights.nbytes),
    }
    numbers = made.manifest.learns_numbers
    compared = _compared(made, small, rows, numbers)
    facts["difference" if numbers else "agreement"] = compared
    said = (
        f"numbers {compared:.3g} apart, the mean over the calibration rows"
        if numbers
        else f"same class on {100 * compared:.1f}% of the calibration rows"
    )
    tell(
        facts,
        as_json,
        lambda: [
            f"{out}: {facts['bytes']:,} bytes, of {facts['from_bytes']:,}",
            said,
        ],
    )


def rows_of(path: Path, name: str = ROWS) -> Array:
    """The rows of an .npy, or the array of this name of an .npz.

    Raises DelianError for a file that has none.
    """
    import numpy as np

    from ...core.learning.data.data_files import BROKEN

    try:
        size = path.stat().st_size
        if zipfile.is_zipfile(path):  # its parts may be compressed
            with zipfile.ZipFile(path) as archive:
                size = sum(part.file_size for part in archive.infolist())
        if size > DATA_BYTES_MAX:
            raise DelianError(
                f"{path}: more than {DATA_BYTES_MAX} bytes", "a few hundred rows are enough"
            )
        found: Any = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:
            if name not in found.files:
                raise DelianError(
                    f"{path} has no array `{name}`, but {', '.join(found.files[:8]) or 'nothing'}",
                    f"numpy.savez(path, {name}=...)",
                )
            rows: Array = found[name]
            return rows
    except OSError as error:
        raise DelianError(f"{path}: cannot be read: {error.strerror or error}") from None
    except BROKEN:
        raise DelianError(
            f"{path}: neither an .npy nor an .npz file of numbers", "write it with numpy.save"
        ) from None


def write_rows(path: Path, rows: Array) -> None:
    """Writes an .npy file by exactly this name. Raises DelianError where it cannot be written."""
    import io

    import numpy as np

    content = io.BytesIO()
    np.save(content, rows)
    write_out(path, content.getvalue())


def _compared(made: Any, small: Any, rows: Array, numbers: bool) -> float:
    """The share of rows for which both choose the same class.

    Of numbers, how far apart the two are in the mean.
    """
    import numpy as np

    from ...core.learning.quantise import batches_of, model_of
    from ...core.learning.runtime import Runtime

    before, after = (Runtime(b, programs=("infer",)) for b in (made, small))
    model, empty = model_of(made), np.empty(0, np.float32)
    total, count = 0.0, 0
    for batch in batches_of(rows, made.programs["infer"]):
        wanted, found = before.infer(model, batch), after.infer(empty, batch)
        if numbers:
            total, count = total + float(np.sum(np.abs(wanted - found))), count + found.size
        else:
            total += int(np.sum(wanted.argmax(-1) == found.argmax(-1)))
            count += found.size // found.shape[-1]
    return total / count
