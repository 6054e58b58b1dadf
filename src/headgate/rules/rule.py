"""Rule: a quota, and the requests that it applies to."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, get_args

from headgate.core.cost import REQUESTS, UNIT
from headgate.core.key import key_template
from headgate.core.quota import BUCKETS, CONCURRENCY, MAX_INT, MICROSECONDS, Quota
from headgate.core.share import MAX_SHARDS, is_whole
from headgate.errors import InvalidRule, Problem
from headgate.rules import fields
from headgate.rules.fields import Converted, Kind, choice, describe_field, optional, several
from headgate.rules.path import Pattern

Action = Literal["reject", "throttle", "annotate", "log_only"]
FailureMode = Literal["open", "closed", "local"]
Sync = Literal["exact", "leased"]
Spread = Literal["separate", "central", "quota", "quota_auto", "synced"]

DEFAULT_PRIORITY: Final = 100
MIN_AUTO_US: Final = 10 * MICROSECONDS  # the shortest window whose shares can follow demand
GLOBAL: Final = "global"
_METHOD: Final = re.compile(r"[A-Z][A-Z_-]*")
_SEPARATORS: Final = re.compile(r"[\s,;&|+/]*[\s,;&|/][\s,;&|+/]*")  # mistaken separators between facts
_OWN_FIELDS: Final = {"endpoint": "endpoints", "method": "methods", "tier": "tiers"}


def _quota(value: Any) -> Quota:
    if value is _MISSING:
        raise ValueError("is missing; give a Quota, or a notation like '100/minute'")
    if isinstance(value, str):
        return Quota.parse(value)
    if not isinstance(value, Quota):
        raise ValueError(f"must be a Quota, or a notation like '100/minute', got {value!r}")  # noqa: TRY004
    return value


def _dimension(value: Any) -> str:
    if isinstance(value, str) and _SEPARATORS.search(value.strip()):
        joined = "+".join(part for part in _SEPARATORS.split(value) if part)
        raise ValueError(f"cannot read {value!r}; join facts with '+', without spaces: did you mean {joined!r}?")
    facts = value.split("+") if isinstance(value, str) else [""]
    strange = not all(fact and fact.isprintable() and " " not in fact for fact in facts)
    if strange or len(set(facts)) != len(facts) or (GLOBAL in facts and len(facts) > 1):
        raise ValueError(f"cannot read {value!r}; write 'user', several as in 'user+endpoint', or 'global'")
    return "+".join(facts)


def _endpoint(value: Any) -> str:
    Pattern.parse(value)
    kept: str = value
    return kept


def _method(value: Any) -> str:
    method = value.upper() if isinstance(value, str) else ""
    if not _METHOD.fullmatch(method):
        raise ValueError(f"must be methods like 'GET', got {value!r}")
    return method


def _unit(value: Any) -> str:
    if not isinstance(value, str) or not UNIT.fullmatch(value):
        raise ValueError(f"must be a name like 'requests' or 'tokens': letters, digits and _.-, got {value!r}")
    return value


def _match(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a table of facts and their values, got {value!r}")  # noqa: TRY004
    kept = {}
    for fact, wanted in value.items():
        if not isinstance(fact, str) or not fact:
            raise ValueError(f"must name facts, got {fact!r}")
        if fact in _OWN_FIELDS:
            raise ValueError(f"cannot contain {fact!r}; use its own field: {_OWN_FIELDS[fact]}")
        if isinstance(wanted, bool) or not isinstance(wanted, str | int):
            raise ValueError(f"{fact!r} must be a string or an integer, got {wanted!r}")  # noqa: TRY004
        kept[fact] = str(wanted)
    return kept


_QUOTA: Final = Kind("text", _quota)
_DIMENSION: Final = Kind("text", _dimension)
_ENDPOINTS: Final = several(_endpoint, "patterns")
_METHODS: Final = several(_method, "methods")
_TIERS: Final = several(fields.name, "tiers")
_MATCH: Final = Kind("table", _match)
# Typed as Any: converted fields have the type `Converted`, which no value has.
_EMPTY: Final[Any] = ()
_NONE: Final[Any] = None
_MISSING: Final[Any] = ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A limit of a quota for each subject of a dimension, in the requests that it matches.

    `quota` is a `Quota` or its notation (`"100/minute"`). `dimension` names the fact whose value is the subject
    (`user`, `ip`, `api_key`, `tenant`, or one that the limiter declares in `facts`), several facts joined by `+`
    (`user+endpoint`), or `global`: one subject for all requests. A rule applies to requests that have all facts of its
    dimension and match `endpoints`, `methods`, `tiers` and `match`; an empty field matches every request.
    docs/reference/rules.md documents all fields.

    Each field is declared once, here, with its valid values and its meaning. Rules files, the database, the admin API
    and the table in docs/reference/rules.md use this declaration: see `headgate.rules.description`.

    Raises `InvalidRule`, which names every invalid field.
    """

    id: str = field(
        metadata=describe_field(
            fields.name, "names the rule in decisions, headers, logs and keys. A new id is a new count"
        )
    )
    quota: Converted[Quota | str, Quota] = field(
        default=_MISSING, metadata=describe_field(_QUOTA, "how much per how long")
    )
    name: str = field(default="", metadata=describe_field(fields.text, "a name for people to read"))
    dimension: str = field(
        default="user",
        metadata=describe_field(
            _DIMENSION,
            'the fact to count by: `user`, `ip`, `api_key`, `tenant` or any other; several as `"user+endpoint"`; '
            '`"global"` is one count for all',
        ),
    )
    endpoints: Converted[Iterable[str], tuple[str, ...]] = field(
        default=_EMPTY,
        metadata=describe_field(_ENDPOINTS, "[patterns](#endpoints), one of which must match", default="all"),
    )
    methods: Converted[Iterable[str], tuple[str, ...]] = field(
        default=_EMPTY,
        metadata=describe_field(
            _METHODS,
            "HTTP methods, in upper or lower case. `GET` includes `HEAD`, which costs a server the same work",
            default="all",
        ),
    )
    tiers: Converted[Iterable[str], tuple[str, ...]] = field(
        default=_EMPTY,
        metadata=describe_field(_TIERS, "the [tiers](#tiers-and-users) that the rule applies to", default="all"),
    )
    match: Converted[Mapping[str, str | int] | None, Mapping[str, str]] = field(
        default=_NONE,
        hash=False,
        metadata=describe_field(
            _MATCH, 'values that other facts must have: `{ country = "DE", tenant = "acme" }`', default="`{}`"
        ),
    )
    action: Action = field(
        default="reject",
        metadata=describe_field(
            choice(*get_args(Action)),
            "`reject`, `throttle`, `annotate` or `log_only`: [what happens](#actions) to a request over the limit",
        ),
    )
    max_delay: Converted[float | str | timedelta | None, float | None] = field(
        default=_NONE,
        metadata=describe_field(
            optional(fields.seconds), "how long `throttle` may hold a request back; kept as seconds"
        ),
    )
    priority: int = field(
        default=DEFAULT_PRIORITY,
        metadata=describe_field(fields.whole(-MAX_INT), "decides among the alternatives of a group: lower comes first"),
    )
    group: str | None = field(
        default=None,
        metadata=describe_field(
            optional(fields.name), "rules of one group are [alternatives](#all-that-match-apply-and-of-a-group-one)"
        ),
    )
    sync: Sync = field(
        default="exact",
        metadata=describe_field(
            choice(*get_args(Sync)),
            "`exact`, or [`leased`](../how-to/lease-hot-limits.md): nodes take slices of the quota. A "
            "`sliding_window_log` cannot be leased",
        ),
    )
    shards: int = field(
        default=1,
        metadata=describe_field(
            fields.whole(1, MAX_SHARDS),
            "how many keys [hold](../how-to/split-hot-keys.md) each subject's state, 1 to 64. Not with "
            '`leaky_bucket`, `sync = "leased"` or penalties',
        ),
    )
    regions: Spread | None = field(
        default=None,
        metadata=describe_field(
            optional(choice(*get_args(Spread))),
            "how [several regions](../explanation/several-regions.md) share the limit: `separate` (each has all of "
            "it), `central`, `quota`, `quota_auto`, `synced`. Not every algorithm can be shared in every way. Without "
            "`[region]` in the settings, it has no effect",
            default="that of `[headgate]`",
        ),
    )
    failure_mode: FailureMode | None = field(
        default=None,
        metadata=describe_field(
            optional(fields.failure_mode),
            "[`open`, `closed` or `local`](stores.md#when-the-store-cannot-decide): what happens when the "
            "store cannot decide",
            default="that of `[headgate]`",
        ),
    )
    unit: str = field(
        default=REQUESTS,
        metadata=describe_field(
            Kind("text", _unit),
            "what the limit counts: `tokens`, `bytes`, `usd_micros`, any name. A rule applies to requests whose "
            "[cost](../how-to/limit-tokens-and-money.md) names its unit",
        ),
    )
    cost: int = field(default=1, metadata=describe_field(fields.whole(1), "multiplies the cost of a request"))
    status: int = field(
        default=429, metadata=describe_field(fields.whole(400, 599), "the HTTP status of a refusal, 400 to 599")
    )
    message: str = field(default="", metadata=describe_field(fields.text, "the message for a refused client"))
    enabled: bool = field(default=True, metadata=describe_field(fields.flag, "`false` turns the rule off"))

    key_template: str = field(init=False, repr=False, compare=False)
    facts: tuple[str, ...] = field(init=False, repr=False, compare=False)  # the facts whose values make up the subject
    patterns: tuple[Pattern, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        where = f"rule {self.id!r}"
        problems: tuple[Problem, ...] = ()
        values = {name: getattr(self, name) for name in CHECKS}
        try:
            fields.set_checked(self, where, values, CHECKS)
        except InvalidRule as error:
            problems = error.problems
        if self.sync == "leased" and getattr(self.quota, "algorithm", "") == "sliding_window_log":
            problems += (
                Problem(where, "sync", "a sliding_window_log cannot be leased; use another algorithm, or 'exact'"),
            )
        if not problems and self.quota.algorithm == CONCURRENCY:
            problems = tuple(_slots_misfit(where, self))
        if self.sync == "leased" and getattr(self.quota, "calendar", None) is not None:
            problems += (Problem(where, "sync", "a calendar's windows cannot be leased; use sync = 'exact'"),)
        if not problems and self.shards > 1:
            problems = tuple(Problem(where, "shards", message) for message in _shards_misfit(self))
        if not problems and self.regions is not None:
            problem = unspreadable(self.regions, self.quota, self.shards)
            if problem is not None:
                problems = (Problem(where, "regions", problem),)
        if problems:
            raise InvalidRule(*problems)
        facts = () if self.dimension == GLOBAL else tuple(self.dimension.split("+"))
        object.__setattr__(self, "facts", facts)
        object.__setattr__(self, "key_template", key_template(self.dimension, self.id, self.quota.algorithm))
        object.__setattr__(self, "patterns", tuple(dict.fromkeys(map(Pattern.parse, self.endpoints))))

    @property
    def conditions(self) -> int:
        """How many conditions a rule has besides the endpoint. Breaks ties between equal patterns."""
        return bool(self.methods) + bool(self.tiers) + len(self.match)


def made_by(limiter: str, rule: Rule) -> Rule:
    """Return `rule` as a limit that the named limiter creates itself: its keys include the limiter's name."""
    own = copy(rule)
    object.__setattr__(
        own, "key_template", key_template(rule.dimension, rule.id, rule.quota.algorithm, limiter=limiter)
    )
    return own


def _slots_misfit(where: str, rule: Rule) -> Iterator[Problem]:
    """Yield the problems of a concurrency rule: slots are counted in one place, by one clock."""
    if rule.sync == "leased":
        yield Problem(where, "sync", "concurrency cannot be leased: every slot is counted in the store; use 'exact'")
    if rule.shards > 1:
        yield Problem(where, "shards", "concurrency cannot have shards: a slot is in one place; use 1")
    if rule.action == "throttle":
        message = (
            "concurrency cannot throttle, as it is unknown when a slot will be free; use 'reject', or acquire(wait=…)"
        )
        yield Problem(where, "action", message)


def _shards_misfit(rule: Rule) -> Iterator[str]:
    """Yield the reasons why a rule cannot have its shards."""
    quota, shards = rule.quota, rule.shards
    if quota.calendar is not None:
        yield "a calendar's windows cannot have shards; use 1"
    elif quota.algorithm == "leaky_bucket":
        yield "a leaky_bucket cannot have shards: its requests leave in one order; use another algorithm, or 1"
    elif rule.sync == "leased":
        yield "a leased rule cannot have shards: leases already reduce its calls; use sync = 'exact', or 1"
    elif min(quota.limit, quota.capacity) < shards:
        name = "limit" if quota.limit < shards else "burst"
        yield f"must not be above the {name} ({getattr(quota, name)}), which they divide, got {shards}"
    elif not is_whole(quota, shards):
        yield f"the burst takes too long to fill when divided into {shards} shards; use fewer, or a smaller burst"


def unspreadable(spread: Spread, quota: Quota, shards: int) -> str | None:
    """Return why regions cannot share a quota in this way; None if they can."""
    algorithm = quota.algorithm
    if algorithm == CONCURRENCY and spread != "separate":
        return "regions cannot share slots: each is held in one store, by its clock; use regions = 'separate'"
    if quota.calendar is not None and spread not in ("separate", "central"):
        return "regions cannot share the windows of a calendar; use regions = 'central' or 'separate'"
    if shards > 1 and spread != "separate":
        return "a rule with shards cannot be shared by regions: their shards differ; use shards = 1"
    if spread == "synced" and algorithm in BUCKETS:
        return (
            f"a {algorithm} cannot be synced: it drains, so it has no count that regions could add up; "
            "use fixed_window or sliding_window_counter, or regions = 'central' or 'quota'"
        )
    if spread == "synced" and algorithm == "sliding_window_log":
        return (
            "a sliding_window_log cannot be synced: it has no count for each window that regions could add up; "
            "use sliding_window_counter, or regions = 'central' or 'quota'"
        )
    if spread == "quota_auto" and algorithm in BUCKETS:
        return (
            f"the shares of a {algorithm} cannot be moved: each region that gets a larger one would begin with a full "
            "bucket; use a window algorithm, or regions = 'quota', whose shares stay"
        )
    if spread == "quota_auto" and quota.window_us < MIN_AUTO_US:
        return (
            "a window of less than 10 seconds ends before its shares can be divided again; "
            "use regions = 'quota' or 'central'"
        )
    return None


CHECKS: Final[dict[str, fields.Kind]] = {  # by field, in order of declaration
    one.name: one.metadata["description"].kind for one in dataclasses.fields(Rule) if one.metadata
}
