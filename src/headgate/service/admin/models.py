"""What the API's documents look like, for OpenAPI. Nothing is checked by these: see `bodies`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from headgate.core.quota import MAX_INT
from headgate.db.tokens import LONGEST_SECONDS, MAX_NAME, SHORTEST_SECONDS
from headgate.operations.batch import MOST_IN_BATCH
from headgate.operations.caller import Role, Scope
from headgate.operations.tokens import OWN_NAMES
from headgate.rules.description import FIELDS, RuleField
from headgate.rules.exemptions import ExemptionType
from headgate.rules.fields import Type
from headgate.rules.users import MAX_ID
from headgate.service.admin.examples import CHANGED, EXEMPTION, OVERRIDE, RULE, TOKEN, USER

Duration = float | str
# Ids and names have printable characters alone. A pattern can say so of control characters.
Name = Annotated[str, Field(min_length=1, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
Action = Literal["create", "update", "delete", "reset"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


_TYPES: Final[dict[Type, Any]] = {
    "text": str,
    "whole": int,
    "flag": bool,
    "duration": Duration,
    "texts": list[str],
    "table": dict[str, str | int],
    "anchor": int | str,
}


def _described(field: RuleField) -> tuple[Any, Any]:
    """Return a field of a rule as pydantic declares it: null, or left out, means the default."""
    kind = field.kind
    kept = _TYPES[kind.type]
    if kind.choices:
        kept = Literal[(*kind.choices, *kind.aliases)]
    if kind.type == "whole":
        kept = Annotated[int, Field(ge=kind.low, le=kind.high)]
    if field.is_required:
        return kept, Field(description=field.plain_meaning)
    return kept | None, Field(None, description=field.plain_meaning)


_RULE_FIELDS: Final[dict[str, Any]] = {
    **{field.name: _described(field) for field in FIELDS},
    "id": (str | None, Field(None, description="Needed when a rule is created; else that of the path.")),
    "version": (Any, Field(None, description="Of no effect: so that what was read can be sent back.")),
}
_RuleBase: Final[Any] = create_model("_RuleBase", __base__=_Model, **_RULE_FIELDS)


class Rule(_RuleBase):  # type: ignore[misc]
    """A rule, field by field as in a rules file. What is left out, or null, has its default."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": RULE})


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

    rule: Name = Field(description="The id of a rule that exists, and that these figures fit: else 422.")
    limit: int = Field(ge=1, le=MAX_INT)
    window: Duration | None = Field(None, description="Seconds, or a text like `1h`; from 1 ms to 366 days.")
    burst: int | None = Field(None, ge=1, le=MAX_INT)
    expires: str | None = Field(
        None,
        description="A time with a time zone, which is yet to come; null: never.",
        json_schema_extra={"format": "date-time"},
    )


class ShownOverride(Override):
    expired: bool


class User(_Model):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": USER})

    id: str
    tier: str | None
    anchor: int | str | None = Field(None, description="Where their periods begin, under rules of the calendar.")
    overrides: list[Override]


class Users(_Model):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"users": [USER], "next": "alice"}})

    users: list[User]
    next: str | None


class UserOverride(ShownOverride):
    user: str


class Overrides(_Model):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {"overrides": [{"user": "alice", **OVERRIDE, "expired": False}], "next": '["alice", "search"]'}
        },
    )

    overrides: list[UserOverride]
    next: str | None


class BatchUser(_Model):
    """A user as in a rules file; without tier, anchor and overrides, they are deleted."""

    id: str = Field(min_length=1, max_length=MAX_ID)
    tier: Name | None = None
    anchor: int | str | None = None
    overrides: list[Override] | None = None


class BatchOverride(Override):
    user: str = Field(min_length=1, max_length=MAX_ID)


class UserBatch(_Model):
    """At most 10,000 users and overrides together."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "users": [{"id": "alice", "tier": "pro", "overrides": []}],
                "overrides": [{"user": "bob", **OVERRIDE}],
            }
        },
    )

    users: list[BatchUser] | None = Field(None, max_length=MOST_IN_BATCH)
    overrides: list[BatchOverride] | None = Field(None, max_length=MOST_IN_BATCH)


class BatchDone(_Model):
    """How many users were created, updated and deleted, and how many were as they should be already."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"version": 8, "created": 1, "updated": 1, "deleted": 0, "unchanged": 0}},
    )

    version: int
    created: int
    updated: int
    deleted: int
    unchanged: int


class Exemption(_Model):
    """Requests whose fact `type` is `value` are never limited."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": EXEMPTION})

    type: ExemptionType
    value: Name = Field(description="An address or network of type `ip`, else 422; or the user, tenant or hashed key.")


class Exemptions(_Model):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"exemptions": [EXEMPTION], "next": None}})

    exemptions: list[Exemption]
    next: str | None


class TierChoice(_Model):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"tier": "pro"}})

    tier: Name | None = Field(description="Null: none of their own.")


class Quota(_Model):
    algorithm: str
    limit: int
    window: float = Field(description="In seconds; of concurrency, the ttl.")
    burst: int
    notation: str = Field(description="As in `100/1h gcra`, `5 concurrent ttl 1m` or `1000/calendar month`.")


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
    unit: str = Field(description="What the limit counts.")
    endpoints: list[str]
    methods: list[str]
    quota: Quota
    overridden: bool
    figures: Figures | None = Field(description="Null if they depend on the request, or the store is down.")


class UserLimits(_Model):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "user": "alice",
                "tier": "pro",
                "own_tier": "pro",
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
        json_schema_extra={"example": {"tiers": [{"name": "free"}, {"name": "pro"}], "default_tier": "free"}},
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
    reason: str = Field(description="Why: the header `X-Change-Reason` of the request; empty: none was given.")


class Changes(_Model):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "changes": [
                    {"id": 12, "version": 7, "at": "2026-11-01T09:00:00+00:00", "actor": "ci", "reason": "", **CHANGED}
                ],
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

    name: Name = Field(
        max_length=MAX_NAME,
        description="Whom the change log names.",
        json_schema_extra={"not": {"enum": [*sorted(OWN_NAMES)]}},
    )
    role: Role | None = "viewer"
    scopes: list[Scope] = Field(min_length=1)
    expires_in: Annotated[float, Field(ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)] | str | None = Field(
        None, description="Seconds, or a string like `90d`: from a minute to ten years; 90 days by default."
    )


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
