"""Examples in the API's description."""

from __future__ import annotations

from typing import Any, Final

RULE: Final[dict[str, Any]] = {
    "id": "search-free",
    "name": "Free tier, search",
    "dimension": "user",
    "endpoints": ["/api/search"],
    "methods": ["GET"],
    "tiers": [],
    "match": {},
    "algorithm": "sliding_window_counter",
    "limit": 100,
    "window": 3600,
    "action": "reject",
    "priority": 100,
    "sync": "exact",
    "shards": 1,
    "unit": "requests",
    "cost": 1,
    "status": 429,
    "message": "Rate limit exceeded. Upgrade to Premium.",
    "enabled": True,
}

# It refers to a sample rule, so that the examples work as they are under `make serve`; it expires far in the future.
OVERRIDE: Final[dict[str, Any]] = {"rule": "user-free", "limit": 500, "expires": "2099-01-01T00:00:00+00:00"}

USER_OVERRIDE: Final[dict[str, Any]] = {"user": "alice", **OVERRIDE, "expired": False}

USER: Final[dict[str, Any]] = {"id": "alice", "tier": "pro", "overrides": [OVERRIDE]}

USER_LIMITS: Final[dict[str, Any]] = {
    "user": "alice",
    "tier": "pro",
    "own_tier": "pro",
    "anchor": None,
    "exempt": False,
    "overrides": [{**OVERRIDE, "expired": False}],
    "limits": [
        {
            "rule": "search-free",
            "dimension": "user",
            "action": "reject",
            "unit": "requests",
            "endpoints": ["/api/search"],
            "methods": ["GET"],
            "quota": {
                "algorithm": "sliding_window_counter",
                "limit": 500,
                "window": 3600,
                "burst": 500,
                "notation": "500/1h sliding_window_counter",
            },
            "overridden": True,
            "figures": {
                **{"allowed": True, "limit": 500, "remaining": 488, "reset_after": 3301.5},
                **{"reset_at": 1798761600.0, "retry_after": 0},
            },
        }
    ],
    "next": None,
}

EXEMPTION: Final[dict[str, Any]] = {"type": "ip", "value": "10.0.0.0/8"}

TOKEN: Final[dict[str, Any]] = {
    "id": "019a3f0c2b17e4d201",
    "name": "ci",
    "role": "operator",
    "scopes": ["check", "users"],
    "created": "2026-11-01T09:00:00+00:00",
    "created_by": "bootstrap",
    "expires": "2027-01-30T09:00:00+00:00",
    "revoked": None,
}

CHANGE: Final[dict[str, Any]] = {"action": "update", "kind": "rule", "subject": "search-free"}

CHANGED: Final[dict[str, Any]] = {**CHANGE, "before": {**RULE, "limit": 50}, "after": RULE}

LOGGED: Final[dict[str, Any]] = {
    **{"id": 12, "version": 7, "at": "2026-11-01T09:00:00+00:00", "actor": "ci", "reason": ""},
    **CHANGED,
}
