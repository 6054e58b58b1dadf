"""OpenAPI's description of the data plane, which `headgate.service.http` serves without FastAPI."""

from __future__ import annotations

from typing import Any, Final

from headgate.http.openapi import REFUSED
from headgate.http.problem import MEDIA_TYPE
from headgate.service.admin.openapi_parts import problems

_TEXT: Final = {"type": "string"}
_UNKNOWN_TEXT: Final = {"type": "string", "nullable": True}  # null: as if it were absent
_WHOLE: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}
_FACTS: Final = {"user": "alice", "ip": "192.0.2.7", "endpoint": "/api/search", "method": "GET"}
_SLOT: Final = (  # of `alice`, by the limit "5 concurrent"
    "s1.WyJ1aVdtWXdmejF6aU9pSFlLIixbWyJkZWZhdWx0IiwidXNlcjp7Kn06ZGVmYXVsdC9kZWZhdWx0OmNvbmN1cnJlbmN5IiwiYWxpY2UiLDEs"
    "NjAwMDAwMDBdXV0"
)
_DECIDED: Final = {
    "allowed": True,
    "limit": 100,
    "remaining": 99,
    "reset_at": 1798761600.0,
    "reset_after": 3600.0,
    "retry_after": 0.0,
    "delay": 0.0,
    "rule": "search-free",
    "state": "normal",
    "reason": "within_limit",
    "limits": [],
}
_FIGURES: Final[dict[str, Any]] = {
    "allowed": {"type": "boolean"},
    "limit": _WHOLE,
    "remaining": _WHOLE,
    "reset_after": {**_NUMBER, "description": "Seconds until all of the limit is available again."},
    "retry_after": {**_NUMBER, "nullable": True, "description": "Seconds; 0 when allowed, null for never."},
    "delay": _NUMBER,
}
_REASONS: Final = (
    *("within_limit", "over_limit", "shadow", "exempt", "no_rule", "penalty"),
    *("fail_open", "fail_closed", "local_fallback"),
)

SCHEMAS: Final[dict[str, Any]] = {
    "Facts": {
        "type": "object",
        "description": "The facts of a request. Other facts, for rules' `match` and `dimension`, must be declared in "
        "the rules (`facts`): otherwise 400.",
        "properties": {
            "ip": _TEXT,
            **{name: {"anyOf": [_TEXT, _WHOLE]} for name in ("user", "api_key", "tenant")},
            **{name: {"anyOf": [_UNKNOWN_TEXT, _WHOLE]} for name in ("endpoint", "method", "tier")},
            "cost": {
                "description": "A number of requests; or an amount of each unit, for rules that count it.",
                "anyOf": [
                    {**_WHOLE, "minimum": 0, "nullable": True},
                    {"type": "object", "minProperties": 1, "additionalProperties": {**_WHOLE, "minimum": 0}},
                ],
                "default": 1,
                "example": {"requests": 1, "tokens": 4000},
            },
            "idempotency_key": {
                **_UNKNOWN_TEXT,
                "minLength": 1,
                "description": "A repeated check with this key within five minutes is charged once.",
            },
        },
        "additionalProperties": {"anyOf": [_UNKNOWN_TEXT, _WHOLE]},
        "example": _FACTS,
    },
    "Decision": {
        "type": "object",
        "required": list(_DECIDED),
        "properties": {
            **_FIGURES,
            "reset_at": {**_NUMBER, "description": "The time of the reset as a Unix time."},
            "rule": {**_TEXT, "nullable": True, "description": "The binding rule."},
            "state": {**_TEXT, "enum": ["normal", "warning", "annotated", "throttled"]},
            "reason": {**_TEXT, "enum": list(_REASONS)},
            "limits": {"type": "array", "items": {"$ref": "#/components/schemas/LimitStatus"}},
            "decision_id": {**_TEXT, "description": "Only in a refusal: the id for `headgate explain --id`."},
        },
        "example": _DECIDED,
    },
    "Acquired": {
        "allOf": [
            {"$ref": "#/components/schemas/Decision"},
            {
                "type": "object",
                "required": ["slot", "ttl"],
                "properties": {
                    "slot": {**_TEXT, "nullable": True, "description": "The slot to release; null if none is held."},
                    "ttl": {**_NUMBER, "nullable": True, "description": "Seconds after which it expires."},
                },
            },
        ]
    },
    "LimitStatus": {
        "type": "object",
        "description": "One rule's part in a decision.",
        "properties": {"rule": _TEXT, "quota": _TEXT, "unit": _TEXT, "enforced": {"type": "boolean"}, **_FIGURES},
    },
}


def _json(schema: dict[str, Any], example: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema, "example": example}}


def _json_of(name: str, example: Any) -> dict[str, Any]:
    return _json({"$ref": f"#/components/schemas/{name}"}, example)


def _post(
    name: str, summary: str, description: str, responses: dict[Any, Any], body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a path whose POST takes facts, or another body."""
    operation = {
        "operationId": name,
        "tags": ["Checks"],
        "summary": summary,
        "description": description,
        "security": [{}, {"bearer": []}],
        "requestBody": {"required": True, "content": body or _json_of("Facts", _FACTS)},
        "responses": {str(status): response for status, response in responses.items()},
    }
    return {"post": operation}


def _get(name: str, summary: str, responses: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return a path whose GET is open to all; `responses` are descriptions and contents by status."""
    shown = {status: {"description": text, "content": content} for status, (text, content) in responses.items()}
    return {"get": {"operationId": name, "tags": ["Health"], "summary": summary, "security": [], "responses": shown}}


def _health(**example: Any) -> dict[str, Any]:
    return _json({"type": "object", "additionalProperties": True}, example)


_FIELDS: Final = {name: field for name, field in REFUSED["headers"].items() if name != "Retry-After"}
_ALLOWED: Final = {"description": "Decided", "content": _json_of("Decision", _DECIDED)}
_BAD: Final = problems(400, 401, 403, 413, 415)
_DOWN: Final = {"description": "The store is down and a rule's failure mode is `closed`, or the database is down."}
_UNAVAILABLE: Final = {503: {**_DOWN, "content": _json_of("Decision", {**_DECIDED, "allowed": False})}}
_BATCH: Final = {
    "type": "object",
    "required": ["checks"],
    "properties": {"checks": {"type": "array", "maxItems": 1000, "items": {"$ref": "#/components/schemas/Facts"}}},
    "additionalProperties": False,
}
_DECISIONS: Final = {
    "type": "object",
    "required": ["decisions"],
    "properties": {"decisions": {"type": "array", "items": {"$ref": "#/components/schemas/Decision"}}},
}
_REFUSED: Final = {
    **_DECIDED,
    "allowed": False,
    "remaining": 0,
    "retry_after": 17.2,
    "reason": "over_limit",
    "decision_id": "065c31a2b17e4d00000004f86d0818",
}


def _decided(name: str, allowed: dict[str, Any], refused: dict[str, Any]) -> dict[Any, Any]:
    """Return the responses of a check, with examples of the schema `name`."""
    return {
        200: {"description": "Decided", "headers": _FIELDS, "content": _json_of(name, allowed)},
        429: {"description": "Refused", "headers": REFUSED["headers"], "content": _json_of(name, refused)},
        **_BAD,
        **problems(422),
        **_UNAVAILABLE,
    }


def _slot_path(name: str, summary: str, done: str) -> dict[str, Any]:
    """Return a path whose POST takes a slot."""
    body = {"type": "object", "required": ["slot"], "properties": {"slot": _TEXT}, "additionalProperties": False}
    answer = {"type": "object", "required": [done], "properties": {done: {"type": "boolean"}}}
    return _post(
        name,
        summary,
        f"200 even if the slot is no longer held: then `{done}` is false.",
        {200: {"description": "Done", "content": _json(answer, {done: True})}, **_BAD, **problems(503)},
        _json(body, {"slot": _SLOT}),
    )


PATHS: Final[dict[str, Any]] = {
    "/v1/check": _post(
        "check",
        "Check a request, and charge it",
        "200 if it is allowed; otherwise the status of the rule that refuses it, by default 429.",
        _decided("Decision", _DECIDED, _REFUSED),
    ),
    "/v1/check/batch": _post(
        "check_batch",
        "Check many requests",
        "Decides each check independently, in order; at most 1,000. Always 200.",
        {
            200: {"description": "Decided", "content": _json(_DECISIONS, {"decisions": [_DECIDED, _REFUSED]})},
            **_BAD,
            **problems(422, 503),
        },
        _json(_BATCH, {"checks": [_FACTS, {"user": "bob", "cost": 5}]}),
    ),
    "/v1/acquire": _post(
        "acquire",
        "Check a request, and hold its slot",
        "Like a check, and atomically takes a slot under each rule that limits concurrency. Release it at any node "
        "when the request is over; otherwise it expires after `ttl` seconds, unless it is renewed.",
        _decided("Acquired", {**_DECIDED, "slot": _SLOT, "ttl": 60.0}, {**_REFUSED, "slot": None, "ttl": None}),
    ),
    "/v1/release": _slot_path("release", "Give back a slot", "released"),
    "/v1/renew": _slot_path("renew", "Extend a slot by its ttl from now", "renewed"),
    "/v1/peek": _post(
        "peek",
        "Return what a check would decide",
        "Charges nothing. 200 for a refusal too.",
        {200: _ALLOWED, **_BAD, **problems(503)},
    ),
    "/v1/reset": _post(
        "reset",
        "Reset the counts",
        "For every rule that applies to these facts. If the data plane needs a token, its role must be `operator`.",
        {204: {"description": "Reset"}, **_BAD, **problems(503)},
    ),
    "/v1/authorize": {
        method: {
            "operationId": f"authorize_{method}",
            "tags": ["Checks"],
            "summary": "Check a request for a proxy",
            "description": "For nginx `auth_request`, Traefik ForwardAuth and Caddy `forward_auth`, with any method. "
            "Reads the facts from the original request's headers.",
            "security": [{}, {"bearer": []}],
            "parameters": [
                {
                    "name": "deny_status",
                    "in": "query",
                    "required": False,
                    "description": "The status of refusals, in place of the rule's: nginx passes on 401 and 403 only.",
                    "schema": {**_WHOLE, "minimum": 400, "maximum": 599},
                    "example": 403,
                }
            ],
            "responses": {
                "200": {"description": "Allowed", "headers": _FIELDS},
                "429": {**REFUSED, "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}},
                **{str(status): description for status, description in problems(400, 401, 403, 503).items()},
            },
        }
        for method in ("get", "post")
    },
    "/healthz": _get("alive", "Whether the process is alive", {"200": ("It is", _health(status="alive"))}),
    "/readyz": _get(
        "ready",
        "Whether the service is ready for checks",
        {
            "200": (
                "Ready; `degraded` if the store or the database is down",
                _health(status="ready", rules="7", faults={}),
            ),
            "503": (
                "There are no rules yet, or the service is stopping",
                _health(status="draining", rules="7", faults={}),
            ),
        },
    ),
    "/metrics": _get(
        "metrics",
        "Metrics for Prometheus",
        {"200": ("In the text format", {"text/plain": {"schema": _TEXT, "example": "headgate_checks_total 1\n"}})},
    ),
}
