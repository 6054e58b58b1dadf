"""Quota: a limit per window and its algorithm, and the notation in which users write it."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from headgate.core.suggestion import did_you_mean
from headgate.errors import InvalidQuota

if TYPE_CHECKING:
    from headgate.core.calendar import Calendar

MAX_INT: Final = 2**53 - 1  # the largest integer up to which a Lua number is exact
MICROSECONDS: Final = 1_000_000
MIN_WINDOW_US: Final = 1_000
MAX_WINDOW_US: Final = 366 * 86_400 * MICROSECONDS
MAX_REFILL_US: Final = 100 * 365 * 86_400 * MICROSECONDS  # keeps every timestamp below 2^53

DEFAULT_ALGORITHM: Final = "sliding_window_counter"
BURST_ALGORITHM: Final = "token_bucket"  # for a burst without an algorithm
WINDOWS: Final = ("fixed_window", "sliding_window_log", "sliding_window_counter")
BUCKETS: Final = ("token_bucket", "leaky_bucket", "gcra")
CONCURRENCY: Final = "concurrency"
CALENDAR: Final[Any] = "calendar_window"  # the algorithm that counts a fixed_window with `calendar`
Algorithm = Literal[
    "fixed_window",
    "sliding_window_log",
    "sliding_window_counter",
    "sliding_window",  # an alias of sliding_window_counter
    "token_bucket",
    "leaky_bucket",
    "gcra",
    "concurrency",
]
KNOWN: Final = (*WINDOWS, *BUCKETS, CONCURRENCY)
DEFAULT_TTL: Final = 60  # seconds until a slot expires that is neither released nor renewed
ALIASES: Final[dict[str, Algorithm]] = {"sliding_window": "sliding_window_counter"}
_LISTED: Final = ", ".join(KNOWN)
_WORDS: Final = (*WINDOWS, *BUCKETS, *ALIASES)  # algorithms that the notation of a rate accepts

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
_CALENDAR = re.compile(
    r"(?P<limit>[0-9]+(?:_[0-9]+)*)\s*(?:/|\bper\b)\s*calendar\s+(?P<window>[a-z]+)(?P<more>(?:\s+[^\s;]+)*)",
    re.IGNORECASE,
)
_CONCURRENT = re.compile(
    r"(?P<limit>[0-9]+(?:_[0-9]+)*)\s+concurrent(?:\s+ttl\s+(?P<ttl>(?:\d+(?:\.\d+)?)?\s*[a-z]+))?"
)


@dataclass(frozen=True, slots=True, init=False)
class Quota:
    """`limit` per `window`, counted by `algorithm`.

    `window` is in seconds, a `timedelta` or a string (`"15m"`, `"250ms"`), from 1 ms to 366 days, and is stored as
    whole microseconds. `burst` is the capacity of the bucket algorithms (`token_bucket`, `leaky_bucket`, `gcra`) and
    defaults to `limit`; the window algorithms do not use it. The default algorithm is `token_bucket` with a burst, as
    in the notation, and `sliding_window_counter` without one.

    For `concurrency`, `limit` is the number of slots that may be held at the same time. A slot that is neither released
    nor renewed expires after `ttl` (60 seconds by default), which is stored as the window.

    With `calendar`, the window is a `day`, `week`, `month` or `year` in the time zone `tz` (UTC by default) that begins
    at `anchor`: an hour, a weekday, or a day of the month. Only `fixed_window` supports calendar windows.

    For a small limit in a long window, choose the algorithm with care. With the default algorithm, `1/day` weighs the
    day before: the next request passes at midnight UTC at the earliest, and `reset_after` may grow from one request to
    the next. `1/day sliding_window_log` allows the next request exactly 24 hours after the last one; `10/day
    token_bucket` allows one every 2.4 hours.

    Raises `InvalidQuota`, which names the field and the value.
    """

    limit: int
    window_us: int
    burst: int
    algorithm: Algorithm
    calendar: Calendar | None
    capacity: int = field(
        repr=False, compare=False
    )  # what `remaining` counts down from: a bucket's burst, or the limit
    # Computed once: the time that one unit takes, and the time that all of `burst` takes, in whole microseconds plus a
    # remainder in 1/limit of a microsecond.
    step: tuple[int, int] = field(repr=False, compare=False)
    refill: tuple[int, int] = field(repr=False, compare=False)

    def __init__(
        self,
        limit: int,
        window: float | str | timedelta | None = None,
        *,
        burst: int | None = None,
        algorithm: Algorithm | None = None,
        ttl: float | str | timedelta | None = None,
        calendar: bool = False,
        tz: str | None = None,
        anchor: int | str | None = None,
    ) -> None:
        algorithm = algorithm or (DEFAULT_ALGORITHM if burst is None else BURST_ALGORITHM)
        algorithm = ALIASES.get(algorithm, algorithm)
        kept = _calendar(algorithm, window, burst, calendar, tz, anchor)
        if kept is not None:
            algorithm, window = CALENDAR, timedelta(microseconds=kept.length_us)
        elif algorithm == CALENDAR and burst is not None:
            pass  # boundaries that were computed before: see `at_time`
        elif algorithm not in KNOWN:
            meant = did_you_mean(algorithm, KNOWN) if isinstance(algorithm, str) else ""
            raise InvalidQuota(f"algorithm: {algorithm!r} is not known{meant or f'; choose one of {_LISTED}'}")
        limit = _whole("limit", limit)
        window = _window(algorithm, window, ttl)
        window_us = duration_us(window)
        if not MIN_WINDOW_US <= window_us <= MAX_WINDOW_US:
            field = "ttl" if algorithm == CONCURRENCY else "window"
            raise InvalidQuota(f"{field}: must be from 1 ms to 366 days, got {window!r}")
        burst = limit if burst is None else _whole("burst", burst)
        if algorithm == CONCURRENCY and burst != limit:
            raise InvalidQuota(f"burst: not allowed for concurrency, got {burst!r}; raise the limit instead")
        if burst * window_us > MAX_REFILL_US * limit and algorithm != CALENDAR:
            raise InvalidQuota(f"burst: {burst} would take more than 100 years to refill at {limit} per {window!r}")
        for name, value in (
            ("limit", limit),
            ("window_us", window_us),
            ("burst", burst),
            ("algorithm", algorithm),
            ("calendar", kept),
            ("capacity", burst if algorithm in BUCKETS else limit),
            ("step", divmod(window_us, limit)),
            ("refill", divmod(burst * window_us, limit)),
        ):
            object.__setattr__(self, name, value)

    @property
    def window(self) -> float:
        """The window in seconds."""
        return self.window_us / MICROSECONDS

    @property
    def ttl(self) -> float | None:
        """The seconds after which a slot expires; None if this quota has no slots."""
        return self.window if self.algorithm == CONCURRENCY else None

    @classmethod
    def parse(cls, notation: str) -> Quota:
        """Parse one quota: `"100/minute"`, `"500 per 15m"`, `"10/second burst 20"`, `"5/h gcra"`.

        A burst without an algorithm means `token_bucket`: the window algorithms have no burst. `"5 concurrent"` is the
        number of slots that may be held at the same time; `"5 concurrent ttl 90s"` sets a time to live other than 60
        seconds.
        """
        text = notation.strip().lower() if isinstance(notation, str) else ""
        calendar = _CALENDAR.fullmatch(notation.strip()) if text else None
        if calendar is not None:
            return cls._parse_calendar(notation, calendar)
        slots = _CONCURRENT.fullmatch(text)
        if slots is not None:
            try:
                return cls(_number("limit", slots["limit"]), slots["ttl"] or DEFAULT_TTL, algorithm=CONCURRENCY)
            except InvalidQuota as error:
                raise InvalidQuota(f"in {notation!r}: {error}") from None
        found = _NOTATION.fullmatch(text)
        algorithm = None if found is None else found["algorithm"]
        if found is None or (algorithm is not None and algorithm not in _WORDS):
            from headgate.core.notation import explain  # noqa: PLC0415 - only mistakes need it

            raise InvalidQuota(explain(notation, _WORDS))
        burst = found["burst"]
        try:
            return cls(
                _number("limit", found["limit"]),
                found["window"],
                burst=None if burst is None else _number("burst", burst),
                algorithm=algorithm,  # type: ignore[arg-type]
            )
        except InvalidQuota as error:
            raise InvalidQuota(f"in {notation!r}: {error}") from None

    @classmethod
    def _parse_calendar(cls, notation: str, found: re.Match[str]) -> Quota:
        options: dict[str, Any] = {"algorithm": "fixed_window"}
        words = iter(found["more"].split())
        try:
            for word in words:
                name = word.lower()
                if name in ("tz", "anchor") and name not in options:
                    value = next(words, "")
                    options[name] = int(value) if name == "anchor" and value.isdecimal() else value
                elif name in _WORDS and options["algorithm"] == "fixed_window":
                    options["algorithm"] = name
                else:
                    raise InvalidQuota(  # noqa: TRY301 - reported with the notation, like all its mistakes
                        f"{word!r}: after 'calendar {found['window']}', expected 'tz' and a time zone, "
                        "or 'anchor' and a day of the month, a weekday or an hour"
                    )
            return cls(_number("limit", found["limit"]), found["window"], calendar=True, **options)
        except InvalidQuota as error:
            raise InvalidQuota(f"in {notation!r}: {error}") from None

    def with_limit(self, limit: int) -> Quota:
        """Return this calendar quota with another limit."""
        return self._with(limit=limit, capacity=limit, burst=limit if self.burst == self.limit else self.burst)

    def with_rate(self, limit: int, burst: int) -> Quota:
        """Return this bucket quota with another limit and burst. Any combination is valid."""
        step, refill = divmod(self.window_us, limit), divmod(burst * self.window_us, limit)
        return self._with(limit=limit, burst=burst, capacity=burst, step=step, refill=refill)

    def with_anchor(self, anchor: int | str | None) -> Quota | None:
        """Return this quota with another anchor for its calendar; None if the anchor is invalid for its period."""
        calendar = None if self.calendar is None or anchor is None else self.calendar.with_anchor(anchor)
        return None if calendar is None else self._with(calendar=calendar)

    def at_time(self, now_us: int) -> tuple[Quota, int, int]:
        """Return this calendar quota with the boundaries around a time, and the start and end of that time's period."""
        from headgate.core.calendar import pack  # noqa: PLC0415 - only calendars need it

        assert self.calendar is not None
        bounds = self.calendar.bounds(now_us)
        return self._with(burst=pack(self.calendar, bounds)), bounds[1], bounds[2]

    def _with(self, **changes: Any) -> Quota:
        quota = copy(self)
        for name, value in changes.items():
            object.__setattr__(quota, name, value)
        return quota

    @classmethod
    def parse_all(cls, notation: str) -> list[Quota]:
        """Parse several quotas joined by `;`, in order: `"10/second; 100/minute"`."""
        parts = notation.split(";") if isinstance(notation, str) else [notation]
        return [cls.parse(part) for part in parts]

    def __str__(self) -> str:
        if self.calendar is not None:
            return f"{self.limit}/{self.calendar}"
        if self.algorithm == CONCURRENCY:
            return f"{self.limit} concurrent ttl {duration_text(self.window_us)}"
        burst = f" burst {self.burst}" if self.burst != self.limit else ""
        return f"{self.limit}/{duration_text(self.window_us)}{burst} {self.algorithm}"


def duration_us(value: float | str | timedelta) -> int:
    """Return a duration in whole microseconds, from seconds, a string like `"1h"` or `"250ms"`, or a timedelta."""
    meant = ""
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    with suppress(OverflowError):  # the value is too large for a float
        if isinstance(value, str):
            text = value.strip().lower()
            found = _DURATION.fullmatch(text)
            if found is not None and found[2] in _UNITS_US:
                return round(float(found[1] or 1) * _UNITS_US[found[2]])
            meant = "" if found is None else did_you_mean(found[2], _UNITS_US)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return round(value * MICROSECONDS)
    meant = meant or "; give seconds, or text like '250ms', '15m', '1 hour'"
    raise InvalidQuota(f"window: cannot read {value!r} as a duration{meant}")


def duration_text(us: int) -> str:
    """Return the shortest text that `duration_us` parses as `us`: `15m`, `250ms`, `0.0015s`."""
    for unit in ("d", "h", "m", "s", "ms"):
        if us % _UNITS_US[unit] == 0:
            return f"{us // _UNITS_US[unit]}{unit}"
    return f"{us / MICROSECONDS}s"


def _window(
    algorithm: str, window: float | str | timedelta | None, ttl: float | str | timedelta | None
) -> float | str | timedelta:
    """Return a quota's window, or the time to live of its slots, in microseconds."""
    if algorithm != CONCURRENCY and ttl is not None:
        raise InvalidQuota(f"ttl: only allowed for concurrency, not {algorithm}; give a window, got {ttl!r}")
    if algorithm == CONCURRENCY:
        window = window if ttl is None else ttl
        return DEFAULT_TTL if window is None else window
    if window is None:
        raise InvalidQuota("window: is missing")
    return window


def unlimited(quota: Quota) -> Quota:
    """Return a quota with the largest limit there is: what remains of it tells how much is counted."""
    return quota._with(limit=MAX_INT)


def _calendar(algorithm: str, window: Any, burst: Any, calendar: Any, tz: Any, anchor: Any) -> Calendar | None:
    """Return a quota's calendar; None if it has none."""
    if not isinstance(calendar, bool):
        raise InvalidQuota(f"calendar: must be true or false, got {calendar!r}")
    if not calendar:
        for name, value in (("tz", tz), ("anchor", anchor)):
            if value is not None:
                raise InvalidQuota(f"{name}: only allowed for calendar windows; add calendar = true, got {value!r}")
        return None
    if algorithm not in ("fixed_window", CALENDAR):
        raise InvalidQuota(
            f"calendar: a {algorithm} has no windows that begin with a day or a month; use algorithm = 'fixed_window'"
        )
    if burst is not None:
        raise InvalidQuota(f"burst: not allowed for calendar windows, got {burst!r}")
    from headgate.core.calendar import Calendar  # noqa: PLC0415

    return Calendar.of(window, tz, anchor)


def _number(name: str, digits: str) -> int:
    """Convert digits to a number. Does not convert numbers that are too long for any quota."""
    return int(digits) if len(digits) < 40 else _whole(name, 10**40)


def _whole(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_INT:
        raise InvalidQuota(f"{name}: must be a whole number from 1 to 2^53-1, got {value!r}")
    return value
