"""What the API's documents look like, for OpenAPI. Nothing is checked by these: see `bodies`."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from headgate.http.problem import MEDIA_TYPE
from headgate.service.access import Role, Scope

Duration = float | str
Action = Literal["create", "update", "delete"]
Algorithm = Literal[
    "fixed_window",
    "sliding_window",
    "sliding_window_counter",
    "sliding_window_log",
    "token_bucket",
    "leaky_bucket",
    "gcra",
]
FailureMode = Literal["open", "closed", "local", "fail_open", "fail_closed"]

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
    "cost": 1,
    "status": 429,
    "message": "Rate limit exceeded. Upgrade to Premium.",
    "enabled": True,
}
OVERRIDE: Final[dict[str, Any]] = {"rule": "search-free", "limit": 500, "expires": "2027-01-01T00:00:00+00:00"}
USER: Final[dict[str, Any]] = {"id": "alice", "tier": "premium", "overrides": [OVERRIDE]}
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


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Rule(_Model):
    """A rule, field by field as in a rules file. What is left out, or null, has its default."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": RULE})

    id: str = Field(default="", description="Needed when a rule is created; else that of the path.")
    limit: int = Field(ge=1, description="How much is allowed per window.")
    window: Duration = Field(description="Seconds, or a text like `1h`, `15m`, `250ms`.")
    name: str | None = None
    dimension: str | None = Field(None, description="Whose requests count together: `user`, `ip`, `user+endpoint`, …")
    endpoints: list[str] | None = Field(None, description="Patterns of paths; none: all.")
    methods: list[str] | None = None
    tiers: list[str] | None = None
    match: dict[str, str | int] | None = Field(None, description="Other facts that a request must have.")
    algorithm: Algorithm | None = Field(None, description="`sliding_window_counter`; with a burst, `token_bucket`.")
    burst: int | None = None
    action: Literal["reject", "throttle", "log_only"] | None = None
    max_delay: Duration | None = None
    priority: int | None = None
    group: str | None = None
    sync: Literal["exact", "leased"] | None = None
    shards: int | None = Field(None, ge=1, le=64, description="In how many parts each subject's state is kept.")
    regions: Literal["separate", "central", "quota", "quota_auto", "synced"] | None = Field(
        None, description="How several regions share the limit; null: as the rules' settings say."
    )
    failure_mode: FailureMode | None = None
    cost: int | None = None
    status: int | None = Field(None, ge=400, le=599)
    message: str | None = None
    enabled: bool | None = None
    version: Any = Field(None, description="Of no effect: so that what was read can be sent back.")


class VersionedRule(Rule):
    """A rule, complete but for what it has not, and its version."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {**RULE, "version": 7}})

    version: int | None = Field(None, description="Of the rule, as its `ETag`; not there when rules are in a file.")


class Rules(_Model):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"rules": [RULE], "next": "search-free"}})

    rules: list[VersionedRule]
    next: str | None = Field(description="`after` of the next page; null on the last one.")


class Override(_Model):
    """A user's own figures for a rule."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": OVERRIDE})

    rule: str
    limit: int = Field(ge=1)
    window: Duration | None = None
    burst: int | None = None
    expires: str | None = Field(None, description="A time with a time zone; null: never.")


class ShownOverride(Override):
    expired: bool


class User(_Model):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": USER})

    id: str
    tier: str | None
    overrides: list[Override]


class TierChoice(_Model):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"tier": "premium"}})

    tier: str | None = Field(description="Null: none of their own.")


class Quota(_Model):
    algorithm: str
    limit: int
    window: float = Field(description="In seconds.")
    burst: int


class Figures(_Model):
    """Right now, of a request that costs 1."""

    allowed: bool
    limit: int
    remaining: int
    reset_after: float
    reset_at: float
    retry_after: float | None


class UserLimit(_Model):
    rule: str
    dimension: str
    action: str
    endpoints: list[str]
    methods: list[str]
    quota: Quota
    overridden: bool
    figures: Figures | None = Field(description="Null when they depend on the request, or the store is away.")


class UserLimits(_Model):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "user": "alice",
                "tier": "premium",
                "own_tier": "premium",
                "exempt": False,
                "overrides": [{**OVERRIDE, "expired": False}],
                "limits": [
                    {
                        "rule": "search-free",
                        "dimension": "user",
                        "action": "reject",
                        "endpoints": ["/api/search"],
                        "methods": ["GET"],
                        "quota": {"algorithm": "sliding_window_counter", "limit": 500, "window": 3600, "burst": 500},
                        "overridden": True,
                        "figures": {
                            **{"allowed": True, "limit": 500, "remaining": 488, "reset_after": 3301.5},
                            **{"reset_at": 1798761600.0, "retry_after": 0},
                        },
                    }
                ],
                "next": None,
            }
        },
    )

    user: str
    tier: str | None = Field(description="The one that counts: their own, else the default.")
    own_tier: str | None
    exempt: bool = Field(description="Whether this user is never limited.")
    overrides: list[ShownOverride]
    limits: list[UserLimit]
    next: str | None


class Tier(_Model):
    name: str


class Tiers(_Model):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"tiers": [{"name": "free"}, {"name": "premium"}], "default_tier": "free"}},
    )

    tiers: list[Tier]
    default_tier: str | None


class Difference(_Model):
    action: Action
    kind: str
    subject: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class Applied(_Model):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"dry_run": True, "version": 7, "changes": [CHANGED]}}
    )

    dry_run: bool
    version: int = Field(description="Of the rules, as the `ETag`; with `dry_run`, as they are.")
    changes: list[Difference]


class Change(Difference):
    id: int
    version: int = Field(description="Of the snapshot that it made.")
    at: str
    actor: str = Field(description="The name of the token.")


class Changes(_Model):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "changes": [{"id": 12, "version": 7, "at": "2026-11-01T09:00:00+00:00", "actor": "ci", **CHANGED}],
                "next": "12",
            }
        },
    )

    changes: list[Change]
    next: str | None


class TokenRequest(_Model):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {"name": "ci", "role": "operator", "scopes": ["check", "users"], "expires_in": "90d"}
        },
    )

    name: str = Field(min_length=1, max_length=100, description="Whom the change log names.")
    role: Role = "viewer"
    scopes: list[Scope] = Field(min_length=1)
    expires_in: Duration | None = Field(None, description="Seconds, or a text like `90d`; 90 days unless told.")


class Token(_Model):
    id: str
    name: str
    role: str
    scopes: list[str]
    created: str
    created_by: str
    expires: str
    revoked: str | None


class NewToken(Token):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {**TOKEN, "token": "hg_mZ1xW3bJ0pT7cQ9vL5yR2nK8dF4gS6hA1uE3iO7wXqM"}},
    )

    token: str = Field(description="The secret: not to be had again.")


class Tokens(_Model):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"tokens": [TOKEN], "next": None}})

    tokens: list[Token]
    next: str | None


class ProblemEntry(_Model):
    where: str
    field: str
    message: str


class Problem(BaseModel):
    """Problem details (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    problems: list[ProblemEntry] | None = Field(None, description="Everything that is wrong (422).")
    retry_after: int | None = Field(None, description="Seconds (429).")


_MEANINGS: Final = {
    400: "The body is not JSON",
    401: "No token, or one that is unknown, expired or revoked",
    403: "The token's role or scopes do not cover this",
    404: "There is no such thing",
    409: "It exists already, or rules cannot be changed here: they are in a file",
    412: "If-Match or If-None-Match does not hold: somebody else was faster",
    413: "The body is too large",
    415: "The body is of another type",
    422: "What the request says is not good; `problems` lists everything",
    429: "Too many requests of this token, or too many bad tokens from this address",
    503: "The database could not be reached; try again after `Retry-After` seconds",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Answers that tell of a problem, for a route's `responses`."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _MEANINGS[status], "content": content} for status in statuses}


def body(model: type[BaseModel]) -> dict[str, Any]:
    """A JSON body, for a route's `openapi_extra`."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


_DOCUMENT: Final = """[[rules]]
id = "search-free"
dimension = "user"
endpoints = ["/api/search"]
limit = 100
window = "1h"
"""
_TOML: Final = {"application/toml": {"schema": {"type": "string"}, "example": _DOCUMENT}}
TOML: Final[dict[str, Any]] = {"description": "A rules file", "content": _TOML}


def toml_body() -> dict[str, Any]:
    """A rules file as body, for a route's `openapi_extra`."""
    return {"requestBody": {"required": True, "content": _TOML}}


def example_of(model: type[BaseModel]) -> dict[str, Any]:
    """FastAPI leaves out what is null in examples, which then lack what they need."""
    extra: Any = model.model_config["json_schema_extra"]
    example: dict[str, Any] = extra["example"]
    return example


Models = tuple[type[BaseModel], ...]
SHOWN: Final[Models] = (  # in answers, with an example
    *(Rules, VersionedRule, User, UserLimits, Tiers, Applied, Changes, NewToken, Tokens),
)
BODIES: Final[Models] = (Rule, Override, TierChoice, TokenRequest, Problem)  # what only the above refer to
