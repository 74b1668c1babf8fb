"""The decoders of tables that users bring: text files, JSON, folders' metadata, encodings, days."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import io
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from delian.core.common.errors import DelianError
from delian.core.learning.data.tabular.brought_folders import read_table
from delian.core.learning.data.tabular.dates import Order, day_of
from delian.core.learning.data.tabular.encoding import Encoder, Encoding
from delian.core.learning.data.tabular.series import WindowChoice, series_of
from delian.core.learning.data.tabular.table_files import read_columns
from delian.core.learning.data.tabular.table_rows import Series
from delian.core.learning.data.tabular.tables import TableChoice, table_of

_CSV = b'when,city,n,y\n2026-01-01,"Rome, I",1.5,u\n2026-01-02,"a\nb",,v\n2026-01-03,Oslo,2,u\n'
_LINES = b'{"a": 1, "b": {"c": "x"}, "y": true}\n{"a": NaN, "y": false}\n'


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def _read(name: str, data: bytes) -> object:
    """A file of this name as a table, and as windows."""
    path = Path(_folder().name) / name
    path.write_bytes(data)
    columns = read_columns(path)
    lengths = {len(values) for values in columns.values()}
    assert len(lengths) == 1
    with contextlib.suppress(DelianError):
        series_of(columns, name, TableChoice(), WindowChoice(1), 0.4, 1)
    return table_of(columns, name, TableChoice())


def _put(data: bytes) -> Path:
    """A file of Arrow."""
    path = Path(_folder().name) / "a.arrow"
    path.write_bytes(data)
    return path


def _saved(data: bytes) -> object:
    """A folder whose metadata, of either form, say this."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "train").mkdir()
        (root / "train" / "a.csv").write_bytes(_CSV)
        first, _, rest = data.partition(b"\0")
        (root / "README.md").write_bytes(rest)
        if first:
            (root / "dataset_dict.json").write_bytes(first)
        return read_table(root)


def _encoding(data: bytes) -> object:
    found = Encoding.from_json(json.loads(data))
    return found, found.names


def _encodings() -> list[bytes]:
    encoders = (
        Encoder("a", "number", 1.5, missing=True),
        Encoder("b", "category", levels=("x", "y"), other=True),
        Encoder("c", "date", 20_000.0, order="mdy", cycles=("year", "day")),
        Encoder("d", "text", weights=(1.0, 2.0)),
    )
    plain = Encoding(encoders, Series("t", "", 3)).to_json()
    return [json.dumps(plain).encode()]


def _day(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    orders: tuple[Order, ...] = ("", "dmy", "mdy")
    days = [day_of(text, order) for order in orders]
    known = [day for day in days if day is not None]
    if not known:
        raise DelianError("no date")
    assert np.isfinite(known).all()
    return known


def _arrow() -> list[bytes]:
    """A stream and a file of Arrow."""
    import pyarrow as arrow

    flags = arrow.array(["u", "v"]).dictionary_encode()
    nested = [[1], [2, 3]]
    table = arrow.table({"a": [1.5, None], "t": ["x", "yy"], "d": flags, "l": nested})
    made = []
    for writer in (arrow.ipc.new_stream, arrow.ipc.new_file):
        out = io.BytesIO()
        with writer(out, table.schema) as file:
            file.write_table(table)
        made.append(out.getvalue())
    return made


def _readme() -> list[bytes]:
    splits = b"- config_name: x\n  data_files:\n  - split: train\n    path: train/*\n"
    return [b"\0---\nconfigs:\n" + splits + b"---\n"]


DECODERS: dict[str, tuple[Callable[[bytes], object], Callable[[], list[bytes]], tuple]] = {
    "csv": (lambda data: _read("a.csv", data), lambda: [_CSV], (DelianError,)),
    "gzipped csv": (
        lambda data: _read("a.csv.gz", data),
        lambda: [gzip.compress(_CSV, mtime=0)],
        (DelianError,),
    ),
    "json lines": (lambda data: _read("a.jsonl", data), lambda: [_LINES], (DelianError,)),
    "json table": (
        lambda data: _read("a.json", data),
        lambda: [b'[{"a": 1, "y": "u"}, {"a": 2, "y": "v"}]', b'{"a": [1, 2], "y": ["u", "v"]}'],
        (DelianError,),
    ),
    "data set folder": (_saved, _readme, (DelianError,)),
    "encoding": (_encoding, _encodings, (DelianError, ValueError, RecursionError)),
    "day": (_day, lambda: [b"2026-01-31T18:00:00.5+02:00", b"1/31/2026 6:00 PM"], (DelianError,)),
}

if importlib.util.find_spec("pyarrow"):
    DECODERS["arrow"] = (lambda data: read_columns(_put(data)), _arrow, (DelianError,))
