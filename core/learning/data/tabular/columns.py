"""Columns of a table: text as it is written, and as numbers where all of it is numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError

Column = NDArray[Any]
"""f64[n] with NaN for what is missing, or text [n] with "" for it."""

#: What a missing value is written as.
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
TRUTHS = {"true": 1.0, "false": 0.0}
#: Signs that stand before or behind all numbers of a column: 5% is 5.
_SIGNS = ("%", "$", "€", "£", "¥")
#: Characters of a text above which a column is kept as objects: arrays of text are as wide as the
#: longest.
_WIDE = 64

#: Numbers with a comma before their fraction, and points between thousands: 1.234,5.
_DECIMAL_COMMA = re.compile(r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d+)?(?:,\d+)?(?:[eE][+-]?\d+)?")
#: Numbers with commas between thousands: 1,234.5.
_THOUSANDS = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


def number(text: str) -> float | None:
    """A number as it is written, with a point before its fraction; None: it is no number."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def typed(fields: Sequence[str], commas: bool = False) -> Column:
    """Text as numbers where all of it is numbers, truth values or missing.

    A column whose numbers have commas is read as numbers where there is one reading: commas before
    fractions (1,5), or between thousands (1,234,567). `1,234` alone could be either. A sign of per
    cent or of a currency that all numbers have is left out.

    Args:
        fields: the texts.
        commas: whether a comma cannot separate fields, so that `1,234` has a comma before its
            fraction.
    """
    stripped = [field.strip() for field in fields]
    found = _numbers(stripped, commas)
    if found is None and (plain := _without_unit(stripped)) is not None:
        found = _numbers(plain, commas)
    if found is not None:
        return found
    return texts(["" if f.lower() in MISSING else f for f in stripped])


def _numbers(fields: Sequence[str], commas: bool) -> Column | None:
    """Numbers; None where some text is none."""
    values = np.empty(len(fields), np.float64)
    for k, field in enumerate(fields):
        lowered = field.lower()
        if lowered in MISSING:
            values[k] = np.nan
        elif lowered in TRUTHS:
            values[k] = TRUTHS[lowered]
        elif (found := number(field)) is not None:
            values[k] = found
        elif "," in field:
            known = ["" if f.lower() in MISSING else f for f in fields]
            return _with_commas(known, commas)
        else:
            return None
    return values


def _without_unit(fields: Sequence[str]) -> list[str] | None:
    """The texts without a sign of per cent or of a currency that all have; None: there is none."""
    known = [f for f in fields if f.lower() not in MISSING]
    for sign in _SIGNS:
        if known and all(f.startswith(sign) or f.endswith(sign) for f in known):
            return [f.removeprefix(sign).removesuffix(sign).strip() for f in fields]
    return None


def _with_commas(fields: Sequence[str], commas: bool) -> Column | None:
    """Numbers that are written with commas; None where they are no numbers, or could be others."""
    known = [f for f in fields if f]
    if not any("," in f for f in known):
        return None
    decimal = all(_DECIMAL_COMMA.fullmatch(f) and f.strip("+-") for f in known)
    thousands = all(_THOUSANDS.fullmatch(f) for f in known)
    if decimal and thousands and not commas:
        return None
    if decimal and (commas or not thousands):
        plain = [f.replace(".", "").replace(",", ".") for f in fields]
    elif thousands:
        plain = [f.replace(",", "") for f in fields]
    else:
        return None
    try:
        return np.array([float(f) if f else np.nan for f in plain])
    except ValueError:
        return None


def texts(values: Sequence[str]) -> Column:
    """Texts as an array: of text where all are short, else of objects.

    An array of text takes the length of the longest for each.
    """
    wide = max(map(len, values), default=0) > _WIDE
    return np.array(list(values), object if wide else np.str_)


def frame_columns(frame: Any) -> dict[str, Column]:
    """The columns of a data frame (pandas, polars), or of a dict of arrays."""
    names = list(frame.keys() if isinstance(frame, Mapping) else frame.columns)
    return {str(name): column(np.asarray(frame[name]), str(name)) for name in names}


def column(values: NDArray[Any], name: str) -> Column:
    """An array as a column. Raises DelianError for one of several axes."""
    if values.ndim != 1:
        raise DelianError(f"column `{name}` has shape {list(values.shape)}", "give one axis, [n]")
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    if values.dtype.kind in "Mm":
        written = values.astype(str)
        return np.where(written == "NaT", "", written)
    return typed([_text(v) for v in values.tolist()])


def _text(value: Any) -> str:
    """A value as text; a date of pandas without a time as its day."""
    return "" if value is None else str(value).removesuffix(" 00:00:00")


def missing(values: Column) -> NDArray[np.bool_]:
    """Which rows have no value, bool[n]."""
    found: NDArray[np.bool_] = np.isnan(values) if values.dtype.kind == "f" else values == ""
    return found


def as_texts(values: Column) -> Column:
    """A column as text [n]; whole numbers are written without a point, missing ones are ""."""
    if values.dtype.kind != "f":
        return values
    return texts([written(float(v)) for v in values])


def written(value: float) -> str:
    """A number as text: whole ones without a point; "" for NaN."""
    if np.isnan(value):
        return ""
    return f"{int(value)}" if np.isfinite(value) and value == np.rint(value) else f"{value:g}"
