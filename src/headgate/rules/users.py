"""Tier, User and Override: settings of individual users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from headgate.core.calendar import Calendar
from headgate.core.quota import MICROSECONDS, Quota
from headgate.errors import InvalidQuota
from headgate.rules import fields
from headgate.rules.rule import Rule

MAX_ID: Final = 512  # characters in the id of a user in a database
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A plan that users are on. If tiers are listed, a misspelt tier is an error."""

    name: str

    def __post_init__(self) -> None:
        fields.set_checked(self, f"tier {self.name!r}", {"name": self.name}, {"name": fields.name})


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A user's own figures in place of a rule's: `limit`, and optionally `window` and `burst`.

    It applies until `expires`, a time with a time zone, by the limiter's clock; None: forever. The user's count
    continues, unless the override changes the window.
    """

    rule: str
    limit: int
    window: float | str | timedelta | None = None
    burst: int | None = None
    expires: datetime | None = None

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in _OVERRIDE}
        fields.set_checked(self, f"override of rule {self.rule!r}", values, _OVERRIDE)

    @property
    def expires_us(self) -> int | None:
        """When it expires, in microseconds since the epoch."""
        return None if self.expires is None else (self.expires - _EPOCH) // timedelta(microseconds=1)

    def has_expired(self, now_us: int) -> bool:
        """Return whether it no longer applies."""
        expires_us = self.expires_us
        return expires_us is not None and expires_us <= now_us

    def applied_to(self, quota: Quota) -> Quota:
        """Return the user's quota under a rule with this quota. Raises `InvalidQuota`."""
        if quota.calendar is not None:
            if self.window is not None or self.burst is not None:
                name = "burst" if self.window is None else "window"
                raise InvalidQuota(f"{name}: a calendar rule keeps its windows; only its limit can be overridden")
            return quota.with_limit(self.limit)
        window = quota.window_us / MICROSECONDS if self.window is None else self.window
        burst = self.burst
        if burst is None and quota.burst != quota.limit:
            burst = quota.burst
        return Quota(self.limit, window, burst=burst, algorithm=quota.algorithm)


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user's overrides and anchor, and the tier for requests that do not have one.

    The anchor is the start of the user's calendar months or weeks, usually the start of their billing period: a day of
    the month, or a weekday.
    """

    id: str
    tier: str | None = None
    overrides: Sequence[Override] = ()
    anchor: int | str | None = None

    def __post_init__(self) -> None:
        values = {"id": self.id, "tier": self.tier, "overrides": self.overrides, "anchor": self.anchor}
        fields.set_checked(self, f"user {self.id!r}", values, _USER)


def misfit(override: Override, rule: Rule | None) -> tuple[str, str] | None:
    """Return the invalid field of an override of a rule, and the problem; None if the override is valid."""
    if rule is None:
        return "rule", "no rule has this id"
    if "user" not in rule.facts:
        return ("rule", f"it counts by {rule.dimension}, not by user, so it cannot be overridden for a user")
    try:
        override.applied_to(rule.quota)
    except InvalidQuota as error:
        name, _, message = str(error).partition(": ")
        return name, message
    return None


def _id(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"must be a non-empty string, got {value!r}")
    return value


def _expires(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise ValueError(f"must be a time like 2027-01-01T00:00:00Z, got {value!r}")  # noqa: TRY004
    if value.utcoffset() is None:
        raise ValueError(f"needs a time zone, as in {value.isoformat()}Z")
    return value


def _anchor(value: Any) -> int | str:
    if any(Calendar(period).with_anchor(value) is not None for period in ("month", "week")):
        kept: int | str = value.lower() if isinstance(value, str) else value
        return kept
    raise ValueError(f"must be a day of the month from 1 to 31, or a weekday like 'monday', got {value!r}")


def _override(value: Any) -> Override:
    if not isinstance(value, Override):
        raise ValueError(f"must be Override objects, got {value!r}")  # noqa: TRY004
    return value


_OVERRIDE: Final[dict[str, fields.Check]] = {
    "rule": fields.name,
    "limit": fields.whole(1),
    "window": fields.optional(fields.window),
    "burst": fields.optional(fields.whole(1)),
    "expires": fields.optional(_expires),
}
_USER: Final[dict[str, fields.Check]] = {
    "id": _id,
    "tier": fields.optional(fields.name),
    "overrides": fields.several(_override, "overrides"),
    "anchor": fields.optional(_anchor),
}
