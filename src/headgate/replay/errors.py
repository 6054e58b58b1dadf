"""The error of a log that cannot be replayed."""

from __future__ import annotations

from headgate.errors import HeadgateError


class InvalidLog(HeadgateError):
    """A log, field or format that cannot be used. The message says what is wrong, where, and what to do."""
