"""What the fields of rules, users, exemptions and penalties may hold.

A check takes a value and returns the one to keep, or raises `ValueError` with what is wrong with it. `checked` runs
the checks of a record's fields, all of them, so that its author hears of every mistake at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headgate.core.quota import MAX_INT, MAX_WINDOW_US, MICROSECONDS, Quota, duration_us
from headgate.errors import InvalidQuota, InvalidRule, Problem

Check = Callable[[Any], Any]


def checked(record: object, where: str, values: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    """Set a frozen record's fields to their checked values. Raises `InvalidRule` with all problems."""
    problems = []
    for name, check in checks.items():
        try:
            kept = check(values[name])
        except InvalidRule as error:
            problems += [Problem(where, name, problem.message) for problem in error.problems]
        except ValueError as error:
            problems.append(Problem(where, name, str(error)))
        else:
            object.__setattr__(record, name, kept)
    if problems:
        raise InvalidRule(*problems)


def text(value: Any) -> str:
    """Any text."""
    if not isinstance(value, str):
        raise ValueError(f"must be a text, got {value!r}")  # noqa: TRY004 - a field's mistakes are all of one kind
    return value


def name(value: Any) -> str:
    """A text that is not empty and can be shown on one line."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"must be a text that is not empty and has no control characters, got {value!r}")
    return value


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, got {value!r}")  # noqa: TRY004
    return value


def whole(low: int, high: int = MAX_INT) -> Check:
    """A whole number from `low` to `high`."""
    bounds = f"from {_figure(low)} to {_figure(high)}"

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"must be a whole number {bounds}, got {value!r}")
        return value

    return check


def choice(*choices: str, **aliases: str) -> Check:
    """One of a few words. An alias stands for one of them."""

    def check(value: Any) -> str:
        value = aliases.get(value, value) if isinstance(value, str) else value
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, got {value!r}")
        kept: str = value
        return kept

    return check


def optional(check: Check) -> Check:
    """None, or what `check` lets pass."""
    return lambda value: None if value is None else check(value)


def several(check: Check, what: str) -> Check:
    """A list, kept as a tuple, of what `check` lets pass; each once. `what` names its members in messages."""

    def check_all(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
            raise ValueError(f"must be a list of {what}, got {value!r}")
        kept: dict[Any, None] = {}
        problems: list[str] = []
        for member in value:
            try:
                kept[check(member)] = None
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise InvalidRule(*problems)
        return tuple(kept)

    return check_all


def seconds(value: Any) -> float:
    """A duration from 0 to 366 days: seconds, a timedelta, or text like `"2s"`; kept as seconds."""
    try:
        us = duration_us(value)
    except InvalidQuota as error:
        raise ValueError(str(error).partition(": ")[2]) from None
    if not 0 <= us <= MAX_WINDOW_US:
        raise ValueError(f"must be from 0 to 366 days, got {value!r}")
    return us / MICROSECONDS


def window(value: Any) -> float:
    """A duration that can be a quota's window, from 1 ms to 366 days; kept as seconds."""
    try:
        return Quota(1, value).window
    except InvalidQuota as error:
        raise ValueError(str(error).partition(": ")[2]) from None


failure_mode = choice("open", "closed", "local", fail_open="open", fail_closed="closed")


def _figure(bound: int) -> str:
    return {MAX_INT: "2^53-1", -MAX_INT: "-2^53+1"}.get(bound, str(bound))
