"""The API's documents as pydantic models, for OpenAPI only. They do not validate requests: see `bodies`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from headgate.core.calendar import WEEKDAYS
from headgate.core.quota import MAX_INT
from headgate.db.tokens import LONGEST_SECONDS, MAX_NAME, SHORTEST_SECONDS
from headgate.operations.batch import MAX_IN_BATCH
from headgate.operations.caller import Role, Scope
from headgate.operations.tokens import OWN_NAMES
from headgate.rules.description import FIELDS, RuleField
from headgate.rules.exemptions import ExemptionType
from headgate.rules.fields import Type
from headgate.rules.users import MAX_ID
from headgate.service.admin.examples import (
    CHANGED,
    EXEMPTION,
    LOGGED,
    OVERRIDE,
    RULE,
    TOKEN,
    USER,
    USER_LIMITS,
    USER_OVERRIDE,
)

Duration = float | str
# Ids and names must be printable. The pattern excludes control characters only.
Name = Annotated[str, Field(min_length=1, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
Weekday = Annotated[str, Field(pattern=f"^({'|'.join(WEEKDAYS)})$")]
Anchor = Annotated[
    Annotated[int, Field(ge=1, le=31)] | Weekday,
    Field(description="Where a user's calendar months or weeks begin: a day of the month, or a weekday."),
]
Action = Literal["create", "update", "delete", "reset"]


def with_example(shown: Any, **schema: Any) -> ConfigDict:
    """Return the configuration of a model that has no other members, with an example."""
    return ConfigDict(extra="forbid", json_schema_extra={"example": shown, **schema})


def page_of(name: str, entries: str, entry: type[BaseModel], shown: Any, following: str | None = None) -> Any:
    """Return the model of a page of a list, with an example of an entry and of the cursor of the next page."""
    fields: dict[str, Any] = {
        entries: (list[entry], ...),  # type: ignore[valid-type]
        "next": (str | None, Field(description="`after` of the next page; null on the last one.")),
    }
    return create_model(name, __config__=with_example({entries: [shown], "next": following}), **fields)


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


def _model_field(field: RuleField) -> tuple[Any, Any]:
    """Return a rule's field as pydantic declares it. Null or absent means the default."""
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
    **{field.name: _model_field(field) for field in FIELDS},
    "id": (str | None, Field(None, description="Required to create a rule; otherwise the id in the path.")),
    "version": (Any, Field(None, description="Ignored, so that a rule that was read can be sent back.")),
}
_RuleBase: Final[Any] = create_model("_RuleBase", __base__=_Model, **_RULE_FIELDS)


class Rule(_RuleBase):  # type: ignore[misc]
    """A rule with the fields of a rules file. A field that is absent or null has its default."""

    model_config = with_example(RULE)


class VersionedRule(Rule):
    """A rule with its version. Fields that do not apply are absent."""

    model_config = with_example({**RULE, "version": 7})

    version: int | None = Field(
        None, description="The rule's version, as in its `ETag`; absent if rules are in a file."
    )


Rules: Final = page_of("Rules", "rules", VersionedRule, RULE, "search-free")


class Override(_Model):
    """A user's own limit, window and burst for a rule."""

    model_config = with_example(OVERRIDE)

    rule: Name = Field(description="The id of an existing rule that these values suit: otherwise 422.")
    limit: int = Field(ge=1, le=MAX_INT)
    window: Duration | None = Field(None, description="Seconds, or a string like `1h`; from 1 ms to 366 days.")
    burst: int | None = Field(None, ge=1, le=MAX_INT)
    expires: str | None = Field(
        None, description="A future time with a time zone; null for never.", json_schema_extra={"format": "date-time"}
    )


class ShownOverride(Override):
    expired: bool


class User(_Model):
    model_config = with_example(USER)

    id: str
    tier: str | None
    anchor: Anchor | None = None
    overrides: list[Override]


Users: Final = page_of("Users", "users", User, USER, "alice")


class UserOverride(ShownOverride):
    user: str


Overrides: Final = page_of("Overrides", "overrides", UserOverride, USER_OVERRIDE, '["alice", "search"]')


class BatchUser(_Model):
    """A user as in a rules file. A user without tier, anchor and overrides is deleted."""

    id: str = Field(min_length=1, max_length=MAX_ID)
    tier: Name | None = None
    anchor: Anchor | None = None
    overrides: list[Override] | None = None


class BatchOverride(Override):
    user: str = Field(min_length=1, max_length=MAX_ID)


class UserBatch(_Model):
    """At most 10,000 users and overrides together."""

    model_config = with_example(
        {"users": [{"id": "alice", "tier": "pro", "overrides": []}], "overrides": [{"user": "bob", **OVERRIDE}]}
    )

    users: list[BatchUser] | None = Field(None, max_length=MAX_IN_BATCH)
    overrides: list[BatchOverride] | None = Field(None, max_length=MAX_IN_BATCH)


class BatchDone(_Model):
    """The numbers of users created, updated, deleted and unchanged."""

    model_config = with_example({"version": 8, "created": 1, "updated": 1, "deleted": 0, "unchanged": 0})

    version: int
    created: int
    updated: int
    deleted: int
    unchanged: int


class Exemption(_Model):
    """Requests whose fact `type` is `value` are never limited."""

    model_config = with_example(EXEMPTION)

    type: ExemptionType
    value: Name = Field(description="An address or network of type `ip`, else 422; or the user, tenant or hashed key.")


Exemptions: Final = page_of("Exemptions", "exemptions", Exemption, EXEMPTION)


class TierChoice(_Model):
    """A user's tier, anchor or both. An absent field stays as it is; null removes it."""

    model_config = with_example({"tier": "pro"}, minProperties=1)

    tier: Name | None = Field(None, description="Null for no own tier.")
    anchor: Anchor | None = None


class Quota(_Model):
    algorithm: str
    limit: int
    window: float = Field(description="In seconds; for concurrency, the ttl.")
    burst: int
    notation: str = Field(description="For example `100/1h gcra`, `5 concurrent ttl 1m` or `1000/calendar month`.")


class Figures(_Model):
    """The current state of the limit, for a request of cost 1."""

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
    figures: Figures | None = Field(description="Null if the figures depend on the request, or the store is down.")


class UserLimits(_Model):
    model_config = with_example(USER_LIMITS)

    user: str
    tier: str | None = Field(description="The effective tier: the user's own, else the default.")
    own_tier: str | None
    anchor: Anchor | None
    exempt: bool = Field(description="Whether this user is never limited.")
    overrides: list[ShownOverride]
    limits: list[UserLimit]
    next: str | None


class Tier(_Model):
    name: str


class Tiers(_Model):
    model_config = with_example({"tiers": [{"name": "free"}, {"name": "pro"}], "default_tier": "free"})

    tiers: list[Tier]
    default_tier: str | None


class Difference(_Model):
    action: Action
    kind: str
    subject: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class Applied(_Model):
    model_config = with_example({"dry_run": True, "version": 7, "changes": [CHANGED]})

    dry_run: bool
    version: int = Field(description="The rules' version, as in the `ETag`; with `dry_run`, the current one.")
    changes: list[Difference]


class Change(Difference):
    id: int
    version: int = Field(description="The version of the rules after the change.")
    at: str
    actor: str = Field(description="The name of the token.")
    reason: str = Field(description="The request's header `X-Change-Reason`; empty if absent.")


Changes: Final = page_of("Changes", "changes", Change, LOGGED, "12")


class TokenRequest(_Model):
    model_config = with_example({"name": "ci", "role": "operator", "scopes": ["check", "users"], "expires_in": "90d"})

    name: Name = Field(
        max_length=MAX_NAME,
        description="The name that the change log shows.",
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
    model_config = with_example({**TOKEN, "token": "hg_mZ1xW3bJ0pT7cQ9vL5yR2nK8dF4gS6hA1uE3iO7wXqM"})

    token: str = Field(description="The secret, shown only once.")


Tokens: Final = page_of("Tokens", "tokens", Token, TOKEN)


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
    problems: list[ProblemEntry] | None = Field(None, description="All problems found (422).")
    retry_after: int | None = Field(None, description="Seconds (429).")
