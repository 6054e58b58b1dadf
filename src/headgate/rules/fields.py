"""Valid values for the fields of rules, users, exemptions and penalties.

A `Kind` checks a value: it returns the value to store, or raises `ValueError` with the mistake. It also gives the type
and the bounds of the values, for code that describes a field: see `headgate.rules.description`. `checked` checks all
fields of a record, so that its author sees every mistake at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from headgate.core.quota import MAX_INT, MAX_WINDOW_US, MICROSECONDS, Quota, duration_us
from headgate.errors import InvalidQuota, InvalidRule, Problem

Check = Callable[[Any], Any]
Type = Literal["text", "whole", "flag", "duration", "texts", "table", "anchor"]


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that a field accepts. `type` is its type in a rules file; a duration is seconds or `"15m"`."""

    type: Type
    check: Check
    choices: tuple[str, ...] = ()  # the only valid texts; empty: any
    aliases: tuple[str, ...] = ()  # texts that stand for one of `choices`
    low: int | None = None  # the bounds of a whole number
    high: int | None = None

    def __call__(self, value: Any) -> Any:
        return self.check(value)


In = TypeVar("In")
Out = TypeVar("Out")


class Converted(Generic[In, Out]):
    """The type of a field that accepts an `In` and stores an `Out`. For type checkers only: it has no instances."""

    def __get__(self, record: object, owner: type | None = None) -> Out:
        raise NotImplementedError

    def __set__(self, record: object, value: In) -> None:
        raise NotImplementedError


class Description(NamedTuple):
    """The values that a field of a rule accepts, and its meaning, in Markdown relative to docs/reference."""

    kind: Kind
    meaning: str
    default: str = ""  # how the docs show the default; empty: the default itself


def describe_field(kind: Kind, meaning: str, default: str = "") -> dict[str, Description]:
    """Return the metadata of a dataclass field that is a field of rules."""
    return {"description": Description(kind, meaning, default)}


def set_checked(record: object, where: str, values: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    """Set a frozen record's fields to their checked values. Raises `InvalidRule` with all problems."""
    problems = []
    for field, check in checks.items():
        try:
            kept = check(values[field])
        except InvalidRule as error:
            problems += [Problem(where, field, problem.message) for problem in error.problems]
        except ValueError as error:
            problems.append(Problem(where, field, str(error)))
        else:
            object.__setattr__(record, field, kept)
    if problems:
        raise InvalidRule(*problems)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a string, got {value!r}")  # noqa: TRY004 - all mistakes raise the same type
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"must be a non-empty string without control characters, got {value!r}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, got {value!r}")  # noqa: TRY004
    return value


def whole(low: int, high: int = MAX_INT) -> Kind:
    """Return a kind that accepts whole numbers from `low` to `high`."""
    bounds = f"from {_figure(low)} to {_figure(high)}"

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"must be a whole number {bounds}, got {value!r}")
        return value

    return Kind("whole", check, low=low, high=high)


def choice(*choices: str, **aliases: str) -> Kind:
    """Return a kind that accepts one of a few words. An alias stands for one of them."""

    def check(value: Any) -> str:
        value = aliases.get(value, value) if isinstance(value, str) else value
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, got {value!r}")
        kept: str = value
        return kept

    return Kind("text", check, choices, tuple(aliases))


def optional(check: Check) -> Kind:
    """Return a kind that accepts None and whatever `check` accepts."""

    def check_any(value: Any) -> Any:
        return None if value is None else check(value)

    if isinstance(check, Kind):
        return replace(check, check=check_any)
    return Kind("text", check_any)


def several(check: Check, what: str) -> Kind:
    """Return a kind that accepts a list of values that `check` accepts, stored as a tuple without repetitions.

    `what` names the members in messages.
    """

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

    return Kind("texts", check_all)


def _seconds(value: Any) -> float:
    try:
        us = duration_us(value)
    except InvalidQuota as error:
        raise ValueError(str(error).partition(": ")[2]) from None
    if not 0 <= us <= MAX_WINDOW_US:
        raise ValueError(f"must be from 0 to 366 days, got {value!r}")
    return us / MICROSECONDS


def _window(value: Any) -> float:
    try:
        return Quota(1, value).window
    except InvalidQuota as error:
        raise ValueError(str(error).partition(": ")[2]) from None


text = Kind("text", _text)
name = Kind("text", _name)  # not empty, and fits on one line
flag = Kind("flag", _flag)
seconds = Kind("duration", _seconds)  # from 0 to 366 days: seconds, a timedelta, or text like "2s"; stored as seconds
window = Kind("duration", _window)  # a quota's window, from 1 ms to 366 days; stored as seconds
failure_mode = choice("open", "closed", "local", fail_open="open", fail_closed="closed")


def _figure(bound: int) -> str:
    return {MAX_INT: "2^53-1", -MAX_INT: "-2^53+1"}.get(bound, str(bound))
