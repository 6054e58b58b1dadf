"""Waiting for what happens some moments later, in another process or thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

LATEST = 30.0  # seconds, on a busy machine


def until(happened: Callable[[], Any], what: str = "what was waited for", seconds: float = LATEST) -> Any:
    """Wait until it does, and return what it returned. A Redis that does not answer has not yet."""
    deadline, pause = time.monotonic() + seconds, 0.01
    while True:
        try:
            found, why = happened(), ""
        except RedisError as error:
            found, why = None, f" ({error})"
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}{why}"
        time.sleep(pause)
        pause = min(pause * 1.1, 0.1)  # to look costs something, too
