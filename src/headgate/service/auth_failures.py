"""AuthFailures: counts and logs rejected tokens, so that operators notice a bad token.

A proxy that fails open allows every request while its token is wrong or expired. Only this service notices.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from headgate.errors import AccessError, RateLimited, Unauthenticated

PROTOCOLS: Final = ("http", "authorize", "grpc", "envoy", "admin", "other")
REASONS: Final = ("missing", "unknown", "expired", "revoked", "forbidden", "throttled")
LOG_SECONDS: Final = 60.0  # between two log lines with the same protocol and reason

log = logging.getLogger("headgate")


class AuthFailures:
    """Counts of rejected tokens. Belongs to one event loop; any thread may read `counts`."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.counts = {(protocol, reason): 0 for protocol in PROTOCOLS for reason in REASONS}
        self._now = now
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}  # when it was last logged, and the count then

    def record(self, protocol: str, error: Exception, address: str | None) -> None:
        """Count an error if it is about the caller's token; log at most once a minute."""
        reason = _reason_of(error)
        if reason is None:
            return
        key = (protocol if protocol in PROTOCOLS else "other", reason)
        self.counts[key] += 1
        count, now = self.counts[key], self._now()
        logged_at, logged_count = self._logged.get(key, (-LOG_SECONDS, 0))
        if now - logged_at < LOG_SECONDS:
            return
        self._logged[key] = (now, count)
        name = error.token if isinstance(error, Unauthenticated) else None
        log.warning(
            "authentication failed (%s, %s): %s%s; from %s; %d more of this kind since the last such line",
            *key,
            "too many bad tokens from this address" if reason == "throttled" else error,
            "" if name is None else f" (its name is {name!r})",
            address or "an unknown address",
            count - logged_count - 1,
        )


def _reason_of(error: Exception) -> str | None:
    """Return one of `REASONS`; None if the error is not about a token."""
    if isinstance(error, Unauthenticated):
        return error.reason
    if isinstance(error, AccessError):
        return "forbidden"
    if isinstance(error, RateLimited) and (error.decision.rule or "").endswith("-failures"):  # see `guess_limiter`
        return "throttled"
    return None
