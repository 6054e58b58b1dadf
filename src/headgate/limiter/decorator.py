"""What `@limiter.limit(...)` needs to know of the function that it decorates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from headgate.core.quota import Quota
from headgate.errors import InvalidCheck

Key = str | Callable[..., str | int]


def rule_name(function: Callable[..., Any]) -> str:
    """The name under which a function's calls are counted, unless it is given one. A partial has its function's."""
    while isinstance(function, partial):
        function = function.func
    try:
        return f"{function.__module__}.{function.__qualname__}"
    except AttributeError:
        raise InvalidCheck(f"limit(): {function!r} has no name to count by; give it one: limit(…, name='…')") from None


def subject_of(key: Key | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | int:
    """Who is counted: `key` of the call's own arguments, a constant, or everybody together."""
    if key is None:
        return "*"
    return key(*args, **kwargs) if callable(key) else key


def quota_of(quota: str | Quota) -> str | Quota:
    if isinstance(quota, str | Quota):
        return quota
    raise InvalidCheck(
        f"limit() takes a notation like '5/minute' or a Quota, got {quota!r}; write @limiter.limit('5/minute')"
    )
