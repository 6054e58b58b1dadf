"""Parses times in logs, to microseconds since the epoch.

Most lines of a second share its text, so results are cached.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from headgate.core.quota import MICROSECONDS

MAX_REMEMBERED: Final = 10_000  # texts
MAX_SECONDS: Final = 253_402_300_799  # of the year 9999
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], start=1
    )
}


@lru_cache(MAX_REMEMBERED)
def clf_us(text: str) -> int:
    """Read `17/May/2015:10:05:03 +0000`. Raises `ValueError`."""
    if len(text) != 26 or text[2] != "/" or text[6] != "/" or text[11] != ":":
        raise ValueError(f"not a time: {text!r}")
    month = _MONTHS.get(text[3:6])
    if month is None:
        raise ValueError(f"not a month: {text[3:6]!r}")
    when = datetime(
        int(text[7:11]), month, int(text[:2]), int(text[12:14]), int(text[15:17]), int(text[18:20]), tzinfo=UTC
    )
    sign = {"+": 1, "-": -1}[text[21]] if text[21] in "+-" else 0
    offset = int(text[22:24]) * 3600 + int(text[24:26]) * 60
    return (int(when.timestamp()) - sign * offset) * MICROSECONDS


def time_us(value: object) -> int:
    """Read a time in any of the logs' formats: ISO 8601, the common log format's, or seconds since the epoch.

    Numbers too large for seconds are milliseconds, microseconds or nanoseconds. Without a time zone, it is UTC.
    Raises `ValueError`.
    """
    if isinstance(value, str):
        if value[4:5] == "-":
            return _iso_us(value)
        if value[2:3] == "/":
            return clf_us(value)
        if value.startswith("[") and value.endswith("]"):
            return time_us(value[1:-1])
        return _number_us(float(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number_us(value)
    raise ValueError(f"not a time: {value!r}")


def _number_us(number: float) -> int:
    if not 0 <= number < 1e20:
        raise ValueError(f"not a time: {number!r}")
    if number <= MAX_SECONDS:
        return round(number * MICROSECONDS)
    if number < 1e14:
        return round(number * 1_000)
    return round(number) if number < 1e17 else round(number / 1_000)


def _iso_us(text: str) -> int:
    """Read ISO 8601: caches the second, and adds the fraction."""
    start = text[:19]
    if text[19:20] not in (".", ","):
        return _second_us(text)
    end = 20
    while text[end : end + 1].isdigit():
        end += 1
    fraction = text[20:26] if end >= 26 else text[20:end]
    return _second_us(start + text[end:]) + int(fraction.ljust(6, "0"))


@lru_cache(MAX_REMEMBERED)
def _second_us(text: str) -> int:
    when = datetime.fromisoformat(text)
    return int((when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()) * MICROSECONDS
