"""`delian data pack` and `delian data check`: rows in one file with checksums."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..output import echo

#: Rows are lost.
LOST = 1


def pack(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="CSV, Parquet, WebDataset, .npz, or a folder of arrays, shards or images.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The packed file, NAME.npz.")],
    label: Annotated[
        str, typer.Option("--label", metavar="COLUMN", help="The column that is learnt.")
    ] = "",
    columns: Annotated[
        str, typer.Option("--columns", metavar="A,B", help="The columns of features.")
    ] = "",
    classes: Annotated[
        str,
        typer.Option(
            "--classes", metavar="A,B", help="Text labels and class folders, in the model's order."
        ),
    ] = "",
    shape: Annotated[
        str,
        typer.Option("--shape", metavar="H,W,C", help="The size that images are scaled to."),
    ] = "",
    numbers: Annotated[
        bool, typer.Option("--numbers", help="The label column of a CSV holds numbers to learn.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Pack rows into one file: indexed, with a checksum for each block, read by ranges.

    A device reads it with the base installation, whatever the rows came from. Images are decoded
    and scaled once.
    """
    from ...core.learning.data.formats.opened_rows import open_rows
    from ...core.learning.data.packed.packed_check import packed_facts
    from ...core.learning.data.packed.packed_writer import pack as write

    stored = open_rows(
        source,
        label=label,
        columns=_names(columns),
        classes=_names(classes),
        shape=tuple(_number(side) for side in _names(shape)),
        numbers=numbers,
    )
    about = write(stored, out)
    if as_json:
        echo(json.dumps(packed_facts(out)))
        return
    size = out.stat().st_size
    echo(f"{about.rows} rows in {about.blocks} blocks, {size} bytes: {out}")
    if about.classes:
        echo(f"classes: {', '.join(about.classes)}")


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A packed file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare every block of a packed file with its checksum, and list the rows that are lost.

    Also of a file whose end is missing. The exit code is 1 where rows are lost.
    """
    from ...core.learning.data.packed.packed_check import check_lines, check_packed

    found = check_packed(file)
    if as_json:
        known = {
            "rows": found.about.rows,
            "lost_rows": found.lost_rows,
            "lost": [list(each) for each in found.lost],
            "faults": list(found.faults),
        }
        echo(json.dumps(known))
    else:
        for line in check_lines(found):
            echo(line)
    if found.lost or found.faults:
        raise typer.Exit(LOST)


def facts_of(file: Path | None) -> dict[str, Any] | None:
    """What a packed file says of itself; None: it is none."""
    if file is None or file.suffix != ".npz":
        return None
    from ...core.learning.data.packed.packed_check import packed_facts
    from ...core.learning.data.packed.packed_rows import is_packed

    return packed_facts(file) if is_packed(file) else None


def fits_memory(known: Mapping[str, Any]) -> bool:
    """Whether its rows can be looked at as a whole."""
    from ...core.learning.data.federated_data import FEDERATION_BYTES_MAX

    return bool(known["bytes"] <= FEDERATION_BYTES_MAX)


def show_facts(known: dict[str, Any], as_json: bool) -> None:
    """Prints them."""
    from ...core.learning.data.packed.packed_check import facts_lines

    for line in [json.dumps(known)] if as_json else facts_lines(known):
        echo(line)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _number(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) <= 1 << 16:
        raise DelianError(f"a side of {text[:20]!r} pixels", "--shape 224,224,3")
    return int(text)
