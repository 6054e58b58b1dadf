"""Parses times and durations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import typer

from headgate.core.quota import MICROSECONDS, duration_us
from headgate.errors import InvalidQuota


def seconds_of(text: str, option: str) -> float:
    """Parse a duration like `30d`, or a number of seconds. Raises `typer.BadParameter`."""
    seconds = _seconds(text)
    if seconds is None:
        raise typer.BadParameter(f"must be a duration, as in 90s, 12h or 30d, got {text!r}", param_hint=option)
    return seconds


def time_of(text: str, option: str, now: datetime, *, later: bool = False) -> str:
    """Parse a time (local by default), or a duration before `now` (`later`: after it); return it in UTC for the API.

    Raises `typer.BadParameter`.
    """
    seconds = _seconds(text)
    try:
        passed = timedelta(seconds=seconds or 0.0)
        time = datetime.fromisoformat(text) if seconds is None else now + passed if later else now - passed
        return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        how = "from now, as in 30d" if later else "ago, as in 1h"
        message = f"must be a time, as in 2027-01-31T12:00, or how long {how}, got {text!r}"
        raise typer.BadParameter(message, param_hint=option) from None


def _seconds(text: str) -> float | None:
    try:
        return duration_us(text) / MICROSECONDS
    except InvalidQuota:
        return None
