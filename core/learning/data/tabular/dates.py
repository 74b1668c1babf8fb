"""Dates and times in text (ISO 8601, and what spreadsheets write), as days since 1970."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .columns import Column

_EPOCH = date(1970, 1, 1).toordinal()
_DAY_SECONDS = 86_400
#: 2026-01-31, 2026/1/31, 31.1.2026 and 20260131 (with a time behind it), with a time or without.
_ISO = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?:[T ](.*))?")
_DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})(?: (.*))?")
_SLASHED = re.compile(r"(\d{1,2})([/-])(\d{1,2})\2(\d{4})(?:[ ,]+(.*))?")
_TIME = re.compile(
    r"(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?\s*(AM|PM)?\s*(Z|UTC|[+-]\d{2}:?\d{2})?",
    re.IGNORECASE,
)
#: Texts that are longer are no dates.
_CHARS_MAX = 40


Order = Literal["", "dmy", "mdy"]
"""Which comes first in 3/4/2026: unknown, the day or the month."""


def day_of(text: str, order: Order = "") -> float | None:
    """Days since 1970-01-01, in UTC where the text has an offset; None: it is no date.

    order: of dates with slashes, which are none where it is unknown.
    """
    if len(text) > _CHARS_MAX:
        return None
    if match := _ISO.fullmatch(text):
        year, _, month, day, time = match.groups()
    elif match := _DOTTED.fullmatch(text):
        day, month, year, time = match.groups()
    elif order and (match := _SLASHED.fullmatch(text)):
        first, _, second, year, time = match.groups()
        day, month = (first, second) if order == "dmy" else (second, first)
    else:
        return None
    try:
        days = float(date(int(year), int(month), int(day)).toordinal() - _EPOCH)
    except ValueError:
        return None
    seconds = _seconds(time.strip()) if time and time.strip() else 0.0
    return None if seconds is None else days + seconds / _DAY_SECONDS


def _seconds(text: str) -> float | None:
    """Seconds after midnight UTC of a time; None: it is none."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    written, minute, second, fraction, half, zone = match.groups()
    hour = int(written)
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (half.lower() == "pm")
    if hour > 23 or int(minute) > 59 or int(second or 0) > 60:
        return None
    found = hour * 3600 + int(minute) * 60 + int(second or 0) + float(f"0.{fraction or 0}")
    if zone and zone[0] in "+-":
        digits = zone.replace(":", "")
        found -= int(digits[:3]) * 3600 + int(digits[0] + digits[3:]) * 60
    return found


def order_of(values: Column) -> Order:
    """The order of dates that makes the most of a column's texts dates; "" where two are alike."""
    counts = {o: int((~np.isnan(days_of(values, o))).sum()) for o in get_args(Order)}
    best = max(counts["dmy"], counts["mdy"])
    if best == counts[""] or counts["dmy"] == counts["mdy"]:
        return ""
    return "dmy" if counts["dmy"] == best else "mdy"


def days_of(values: Column, order: Order = "") -> NDArray[np.float64]:
    """A column of text as days since 1970, f64[n]; NaN for what is no date."""
    found = [day_of(text, order) for text in values.tolist()]
    return np.array([np.nan if day is None else day for day in found], np.float64)


def date_text(days: float) -> str:
    """Days since 1970 as ISO 8601, with the time where there is one. "": out of range."""
    try:
        at = datetime(1970, 1, 1) + timedelta(days=days)
    except (OverflowError, ValueError):
        return ""
    midnight = not (at.hour or at.minute or at.second)
    return at.strftime("%Y-%m-%d" if midnight else "%Y-%m-%d %H:%M")
