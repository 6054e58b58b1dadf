"""The body of a refusal: problem details (RFC 9457), with the types of the RateLimit fields' draft."""

from __future__ import annotations

import json
from http import HTTPStatus
from math import ceil
from typing import Any, Final, NamedTuple

from headgate.core.decision import Decision
from headgate.http.headers import DECISION_ID, Fields
from headgate.http.limits import Limits
from headgate.rules.snapshot import Snapshot

MEDIA_TYPE: Final = "application/problem+json"
QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY: Final = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"


def problem(decision: Decision) -> dict[str, Any]:
    """Return the problem details of a refusal, as plain data."""
    if decision.reason == "fail_closed":
        return {
            "type": REDUCED_CAPACITY,
            "title": "Temporarily reduced capacity",
            "status": decision.status,
            "detail": "The request could not be checked against its rate limits. Please try again.",
            "retry_after": _retry_after(decision),
            "decision_id": decision.id,
        }
    if decision.reason == "no_rule":
        return {
            "type": "about:blank",
            "title": "Forbidden",
            "status": decision.status,
            "detail": "No rate limit covers this request, and such requests are refused.",
            "decision_id": decision.id,
        }
    refusing = [limit.rule for limit in decision.limits if limit.enforced and not limit.allowed]
    return {
        "type": QUOTA_EXCEEDED,
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": decision.status,
        "detail": decision.message or _detail(decision),
        "violated-policies": refusing,
        "retry_after": _retry_after(decision),
        "decision_id": decision.id,
    }


class RefusalResponse(NamedTuple):
    """The response to a refused request, without the header fields of its `Limits`."""

    status: int
    content: Fields  # the header fields that describe the body
    body: bytes

    @property
    def line(self) -> str:
        """The status with its phrase: `429 Too Many Requests`."""
        known = self.status in HTTPStatus._value2member_map_
        return f"{self.status} {HTTPStatus(self.status).phrase if known else 'Refused'}"


def refusal(limits: Limits[Any]) -> RefusalResponse:
    """Return the response to a refused request."""
    decision = limits.decision
    body = json.dumps(problem(decision)).encode()
    content = [("Content-Type", MEDIA_TYPE), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
    return RefusalResponse(decision.status, content + decision_field(decision, limits.limiter.snapshot), body)


def decision_field(decision: Decision, snapshot: Snapshot) -> Fields:
    """Return the header field with the id of a refusal, if the rules enable it."""
    return [(DECISION_ID, decision.id)] if snapshot.decision_header and not decision.allowed else []


def _retry_after(decision: Decision) -> int | None:
    """Return whole seconds, as in the field Retry-After; None if waiting does not help."""
    return None if decision.retry_after is None else ceil(decision.retry_after)


def _detail(decision: Decision) -> str:
    seconds = _retry_after(decision)
    if seconds is None:
        return "Rate limit exceeded: the request costs more than the limit can ever hold."
    return f"Rate limit exceeded. Try again in {seconds} second{'' if seconds == 1 else 's'}."
