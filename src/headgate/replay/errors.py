"""What keeps a log from being replayed."""

from __future__ import annotations

from headgate.errors import HeadgateError


class InvalidLog(HeadgateError):
    """A log, a field or a format that cannot be used: what is wrong, where, and what to do."""
