"""OpenAPI's description of refusals, as plain data, and which operations can be refused. No framework."""

from __future__ import annotations

from typing import Any, Final

from headgate.http.problem import MEDIA_TYPE, QUOTA_EXCEEDED
from headgate.rules.path import Pattern, segments_of
from headgate.rules.rule import Rule

_WHOLE: Final = {"type": "integer"}
_TEXT: Final = {"type": "string"}

PROBLEM: Final[dict[str, Any]] = {
    "title": "RateLimitProblem",
    "description": "Problem details (RFC 9457).",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri", "examples": [QUOTA_EXCEEDED]},
        "title": _TEXT,
        "status": _WHOLE,
        "detail": _TEXT,
        "violated-policies": {
            "type": "array",
            "items": _TEXT,
            "description": "The limits that refused, by the names that they have in RateLimit-Policy.",
        },
        "retry_after": {
            "anyOf": [_WHOLE, {"type": "null"}],
            "description": "Seconds until the same request would pass; null when it never will.",
        },
    },
}

REFUSED: Final[dict[str, Any]] = {
    "description": "Rate limit exceeded",
    "headers": {
        "Retry-After": {"description": "Seconds until the same request would pass.", "schema": _WHOLE},
        "RateLimit": {"description": "What is left of each limit: a structured field.", "schema": _TEXT},
        "RateLimit-Policy": {"description": "The limits: a structured field.", "schema": _TEXT},
        "X-RateLimit-Limit": {"description": "The most restrictive limit.", "schema": _WHOLE},
        "X-RateLimit-Remaining": {"description": "What is left of it.", "schema": _WHOLE},
        "X-RateLimit-Reset": {"description": "When all of it is available again, in Unix seconds.", "schema": _WHOLE},
    },
    "content": {MEDIA_TYPE: {"schema": PROBLEM}},
}


def can_refuse(rule: Rule, method: str, template: str) -> bool:
    """Return whether a rule may refuse a request to an operation such as `GET` `/users/{id}` or
    `/files/{name:path}`."""
    if not rule.enabled or rule.action in ("annotate", "log_only"):
        return False
    methods = set(rule.methods) | ({"HEAD"} if "GET" in rule.methods else set())
    if methods and method not in methods:
        return False
    return not rule.patterns or any(_overlap(pattern, template) for pattern in rule.patterns)


def _overlap(pattern: Pattern, template: str) -> bool:
    """Return whether a path can match both."""
    segments = segments_of("/" + template.strip("/"))
    for mine, theirs in zip(pattern.segments, segments, strict=False):
        if theirs.endswith(":path}"):
            return True
        if mine is not None and "{" not in theirs and mine != theirs:
            return False
    return len(segments) == len(pattern.segments) or (pattern.rest and len(segments) > len(pattern.segments))
