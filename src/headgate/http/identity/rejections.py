"""Credentials that were not accepted: why, and how often."""

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
    "token_algorithm",  # not one of those that were pinned; `none` is never one
    "token_critical",  # the header asks for an extension to be understood
    "token_key",  # no key of that id and algorithm
    "token_keys_unavailable",  # there are no keys: they could not be fetched
    "token_signature",
    "token_expired",  # or without a time at which it does
    "token_early",  # before `nbf`
    "token_issuer",
    "token_audience",
    "token_claim",  # a claim that is to be a fact is missing, or is no text
    "api_key_too_long",
    "api_key_unknown",
    "api_key_failed",  # the function that was to look it up did not succeed
]
REASONS: Final = get_args(Reason)
LOG_EVERY_US: Final = 60_000_000  # at most one line per reason in this time: anybody can have credentials rejected


class Rejected(Exception):
    """A credential that is not accepted. It tells the reason, and never the credential."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class Rejections:
    """Counts, by reason. Safe to share between threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._logged: dict[str, tuple[int, int]] = {}  # reason: when it was logged last, and what the count was
        renew_in_children(self)

    def forked(self) -> None:
        """Replace the lock in a forked child, where its holder does not exist."""
        self._lock = threading.Lock()

    @property
    def counts(self) -> dict[str, int]:
        """How often each reason has been met; only those that have."""
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
