"""Past usage of rules, in steps of time."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from headgate.core.quota import MICROSECONDS, duration_us
from headgate.db.records import time_text
from headgate.db.usage import ALL, HOUR_SECONDS, MINUTE_SECONDS, UsageHistory, UsageStep
from headgate.errors import InvalidQuota, InvalidRule, Problem

STEPS: Final = (60, 300, 900, 3_600, 4 * 3_600, 86_400)  # seconds: the choices for a default step
GOOD_POINTS: Final = 300  # in a series with the default step
MAX_POINTS: Final = 10_000
DEFAULT_SECONDS: Final = 3_600


class Period(NamedTuple):
    """A period from `since_us` until before `until_us`, in steps of `step` seconds."""

    since_us: int
    until_us: int
    step: int


def period(now_us: int, *, since_us: int | None, until_us: int | None, step: str | None) -> Period:
    """Return a period, by default the last hour in minutes. Raises `InvalidRule` for an invalid parameter."""
    until_us = now_us if until_us is None else until_us
    since_us = max(0, until_us - DEFAULT_SECONDS * MICROSECONDS) if since_us is None else since_us
    if since_us >= until_us:
        raise InvalidRule(Problem("query", "since", "must be before until"))
    length = (until_us - since_us) / MICROSECONDS
    chosen = next((one for one in STEPS if length / one <= GOOD_POINTS), STEPS[-1])
    seconds = chosen if step is None else _step(step)
    if length / seconds > MAX_POINTS:
        raise InvalidRule(Problem("query", "step", f"would make more than {MAX_POINTS:,} points: choose a longer one"))
    return Period(since_us, until_us, seconds)


def _step(step: str) -> int:
    try:
        seconds = int(step) if step.isascii() and step.isdigit() else duration_us(step) / MICROSECONDS
    except InvalidQuota as error:
        raise InvalidRule(Problem("query", "step", str(error).partition(": ")[2] or str(error))) from error
    if seconds < MINUTE_SECONDS or seconds % MINUTE_SECONDS or (seconds > HOUR_SECONDS and seconds % HOUR_SECONDS):
        message = f"must be whole minutes, and above an hour whole hours, as in 1m, 15m, 1h or 1d; got {step!r}"
        raise InvalidRule(Problem("query", "step", message))
    return int(seconds)


def series(history: UsageHistory, rule: str | None, period: Period) -> list[UsageStep]:
    """Return a rule's counts in each step, without empty ones; for None, of all checks, each counted once."""
    return history.series(
        [ALL if rule is None else rule], since_us=period.since_us, until_us=period.until_us, step=period.step
    )


def usage_table(usage: UsageStep) -> dict[str, Any]:
    """Return one step as the API shows it."""
    table = usage._asdict()
    for name in ("at_us", "rule", "p50_us", "p99_us"):
        del table[name]
    times = {name: _seconds(value) for name, value in (("p50", usage.p50_us), ("p99", usage.p99_us))}
    return {"at": time_text(usage.at_us), **table, **times}


def _seconds(us: float | None) -> float | None:
    return None if us is None else round(us / MICROSECONDS, 7)
