"""Rejected credentials, counted by reason."""

from __future__ import annotations

import logging
import threading
from typing import Final, Literal, get_args

from headgate.core.clock import Clock
from headgate.core.fork import renew_in_children

log = logging.getLogger("headgate")

Reason = Literal[
    "token_too_large",
    "token_malformed",
    "token_algorithm",  # not one of those configured; `none` never is
    "token_critical",  # the header requires an extension (`crit`)
    "token_key",  # no key with that id and algorithm
    "token_keys_unavailable",  # the keys could not be fetched
    "token_signature",
    "token_expired",  # or without an expiry
    "token_early",  # before `nbf`
    "token_issuer",
    "token_audience",
    "token_claim",  # the claim of a fact is missing, or is not a string
    "api_key_too_long",
    "api_key_unknown",
    "api_key_failed",  # the lookup function failed
]
REASONS: Final = get_args(Reason)
LOG_EVERY_US: Final = 60_000_000  # at most one line per reason in this time: any client can cause rejections


class Rejected(Exception):
    """A credential is rejected. The error has the reason, never the credential."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class Rejections:
    """Counts of rejections by reason. Safe to share between threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._logged: dict[str, tuple[int, int]] = {}  # by reason: when it was last logged, and the count then
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child, where its holder does not exist."""
        self._lock = threading.Lock()

    @property
    def counts(self) -> dict[str, int]:
        """The count of each reason that has occurred."""
        with self._lock:
            return dict(self._counts)

    def count(self, reason: Reason) -> None:
        now_us = self._clock.now_us()
        with self._lock:
            count = self._counts[reason] = self._counts.get(reason, 0) + 1
            logged_us, logged = self._logged.get(reason, (None, 0))
            if logged_us is not None and 0 <= now_us - logged_us < LOG_EVERY_US:
                return
            self._logged[reason] = (now_us, count)
        log.warning("identity: %s rejected, %d since this was logged last", reason, count - logged)
