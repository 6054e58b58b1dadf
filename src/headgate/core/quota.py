"""Quota: how much per how long, and with which algorithm; and the notation that users write it in."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from headgate.errors import InvalidQuota

MAX_INT: Final = 2**53 - 1  # the largest integer that a Lua number holds exactly, with all below it
MICROSECONDS: Final = 1_000_000
MIN_WINDOW_US: Final = 1_000
MAX_WINDOW_US: Final = 366 * 86_400 * MICROSECONDS
MAX_REFILL_US: Final = 100 * 365 * 86_400 * MICROSECONDS  # keeps every point in time below 2^53

DEFAULT_ALGORITHM: Final = "sliding_window_counter"
WINDOWS: Final = ("fixed_window", "sliding_window_log", "sliding_window_counter")
BUCKETS: Final = ("token_bucket", "leaky_bucket", "gcra")
ALIASES: Final = {"sliding_window": "sliding_window_counter"}

_UNITS_US: Final = {
    unit: us
    for units, us in (
        (("ms", "millisecond", "milliseconds"), 1_000),
        (("s", "sec", "second", "seconds"), MICROSECONDS),
        (("m", "min", "minute", "minutes"), 60 * MICROSECONDS),
        (("h", "hr", "hour", "hours"), 3_600 * MICROSECONDS),
        (("d", "day", "days"), 86_400 * MICROSECONDS),
        (("w", "week", "weeks"), 7 * 86_400 * MICROSECONDS),
        (("month", "months"), 30 * 86_400 * MICROSECONDS),
        (("y", "year", "years"), 365 * 86_400 * MICROSECONDS),
    )
    for unit in units
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)?\s*([a-z]+)")
_NOTATION = re.compile(
    r"(?P<limit>[0-9]+(?:_[0-9]+)*)\s*(?:/|\bper\b)\s*(?P<window>(?:\d+(?:\.\d+)?)?\s*[a-z]+)"
    r"(?:\s+burst\s+(?P<burst>[0-9]+(?:_[0-9]+)*))?"
    r"(?:\s+(?P<algorithm>[a-z_]+))?"
)


@dataclass(frozen=True, slots=True, init=False)
class Quota:
    """`limit` per `window`, counted by `algorithm`.

    `window` is given in seconds, as a `timedelta` or as text (`"15m"`, `"250ms"`), from 1 ms to 366 days, and
    kept as whole microseconds. `burst` is the capacity of the bucket algorithms (`token_bucket`,
    `leaky_bucket`, `gcra`) and equals `limit` unless told otherwise; the window algorithms have no use for it.
    Raises `InvalidQuota`, naming field and value.
    """

    limit: int
    window_us: int
    burst: int
    algorithm: str
    capacity: int = field(
        repr=False, compare=False
    )  # what `remaining` counts down from: a bucket's burst, or the limit
    # Worked out once: the time that one unit takes, and that all of `burst` takes, in whole microseconds and
    # what is left over in 1/limit of one.
    step: tuple[int, int] = field(repr=False, compare=False)
    refill: tuple[int, int] = field(repr=False, compare=False)

    def __init__(
        self,
        limit: int,
        window: float | str | timedelta,
        *,
        burst: int | None = None,
        algorithm: str = DEFAULT_ALGORITHM,
    ) -> None:
        algorithm = ALIASES.get(algorithm, algorithm)
        if algorithm not in WINDOWS + BUCKETS:
            raise InvalidQuota(f"algorithm: {algorithm!r} is not known; choose one of {', '.join(WINDOWS + BUCKETS)}")
        limit = _whole("limit", limit)
        window_us = duration_us(window)
        if not MIN_WINDOW_US <= window_us <= MAX_WINDOW_US:
            raise InvalidQuota(f"window: must be from 1 ms to 366 days, got {window!r}")
        burst = limit if burst is None else _whole("burst", burst)
        if burst * window_us > MAX_REFILL_US * limit:
            raise InvalidQuota(f"burst: {burst} would take more than 100 years to refill at {limit} per {window!r}")
        for name, value in (
            ("limit", limit),
            ("window_us", window_us),
            ("burst", burst),
            ("algorithm", algorithm),
            ("capacity", burst if algorithm in BUCKETS else limit),
            ("step", divmod(window_us, limit)),
            ("refill", divmod(burst * window_us, limit)),
        ):
            object.__setattr__(self, name, value)

    @property
    def window(self) -> float:
        """The window in seconds."""
        return self.window_us / MICROSECONDS

    @classmethod
    def parse(cls, notation: str) -> Quota:
        """One quota from its notation: `"100/minute"`, `"500 per 15m"`, `"10/second burst 20"`, `"5/h gcra"`.

        A burst without an algorithm means `token_bucket`: the window algorithms have none.
        """
        text = notation.strip().lower() if isinstance(notation, str) else ""
        found = _NOTATION.fullmatch(text)
        if found is None:
            raise InvalidQuota(
                f"cannot read {notation!r} as a quota; write it like '100/minute', '10 per second burst 20' "
                "or '500/15m gcra'"
            )
        burst, algorithm = found["burst"], found["algorithm"]
        try:
            return cls(
                _number("limit", found["limit"]),
                found["window"],
                burst=None if burst is None else _number("burst", burst),
                algorithm=algorithm or (DEFAULT_ALGORITHM if burst is None else "token_bucket"),
            )
        except InvalidQuota as error:
            raise InvalidQuota(f"in {notation!r}: {error}") from None

    @classmethod
    def parse_all(cls, notation: str) -> list[Quota]:
        """Several quotas joined by `;`, in order: `"10/second; 100/minute"`."""
        parts = notation.split(";") if isinstance(notation, str) else [notation]
        return [cls.parse(part) for part in parts]

    def __str__(self) -> str:
        burst = f" burst {self.burst}" if self.burst != self.limit else ""
        return f"{self.limit}/{duration_text(self.window_us)}{burst} {self.algorithm}"


def duration_us(value: float | str | timedelta) -> int:
    """A duration in whole microseconds: seconds as a number, `"1h"`, `"250ms"`, `"minute"`, or a timedelta."""
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    with suppress(OverflowError):  # of what is too large to be a float
        if isinstance(value, str):
            text = value.strip().lower()
            found = _DURATION.fullmatch(text)
            if found is not None and found[2] in _UNITS_US:
                return round(float(found[1] or 1) * _UNITS_US[found[2]])
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return round(value * MICROSECONDS)
    raise InvalidQuota(
        f"window: cannot read {value!r} as a duration; give seconds, or text like '250ms', '15m', '1 hour'"
    )


def duration_text(us: int) -> str:
    """The shortest text that `duration_us` reads back as `us`: `15m`, `250ms`, `0.0015s`."""
    for unit in ("d", "h", "m", "s", "ms"):
        if us % _UNITS_US[unit] == 0:
            return f"{us // _UNITS_US[unit]}{unit}"
    return f"{us / MICROSECONDS}s"


def _number(name: str, digits: str) -> int:
    """Digits as a number; those of a number that no quota may have are not even read."""
    return int(digits) if len(digits) < 40 else _whole(name, 10**40)


def _whole(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_INT:
        raise InvalidQuota(f"{name}: must be a whole number from 1 to 2^53-1, got {value!r}")
    return value
