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


def time_of(text: str, option: str, now: datetime) -> str:
    """Parse a time (local by default), or a duration before `now`, and return it in UTC for the API.

    Raises `typer.BadParameter`.
    """
    seconds = _seconds(text)
    try:
        time = datetime.fromisoformat(text) if seconds is None else now - timedelta(seconds=seconds)
        return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        message = f"must be a time, as in 2027-01-31T12:00, or how long ago, as in 1h, got {text!r}"
        raise typer.BadParameter(message, param_hint=option) from None


def later_time_of(text: str, option: str, now: datetime) -> str:
    """Parse a time (local by default), or a duration after `now`, and return it in UTC.

    Raises `typer.BadParameter`.
    """
    seconds = _seconds(text)
    try:
        time = datetime.fromisoformat(text) if seconds is None else now + timedelta(seconds=seconds)
        return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        message = f"must be a time, as in 2027-01-31T12:00, or how long from now, as in 30d, got {text!r}"
        raise typer.BadParameter(message, param_hint=option) from None


def _seconds(text: str) -> float | None:
    try:
        return duration_us(text) / MICROSECONDS
    except InvalidQuota:
        return None
