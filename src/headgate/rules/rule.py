"""Rule: a Quota plus who and what it applies to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple, get_args

from headgate.core.key import space
from headgate.core.quota import BUCKETS, MAX_INT, MICROSECONDS, Quota
from headgate.core.shards import MAX_SHARDS, is_whole
from headgate.errors import InvalidRule, Problem
from headgate.rules import fields
from headgate.rules.path import Pattern

Action = Literal["reject", "throttle", "log_only"]
FailureMode = Literal["open", "closed", "local"]
Sync = Literal["exact", "leased"]
Spread = Literal["separate", "central", "quota", "quota_auto", "synced"]

DEFAULT_PRIORITY: Final = 100
MIN_AUTO_US: Final = 10 * MICROSECONDS  # the shortest window whose shares can follow the demand
GLOBAL: Final = "global"
_METHOD: Final = re.compile(r"[A-Z][A-Z_-]*")
_OWN_FIELDS: Final = {"endpoint": "endpoints", "method": "methods", "tier": "tiers"}


@dataclass(frozen=True, slots=True, init=False)
class Rule:
    """Limits each subject of a dimension to a quota, in the requests that it matches.

    `quota` is a `Quota` or its notation (`"100/minute"`). `dimension` names the fact whose value is the subject
    (`user`, `ip`, `api_key`, `tenant`, or any other), several joined by `+` (`user+endpoint`), or `global`: one
    subject for all. A rule applies to requests that have all of its dimension's facts and that fit `endpoints`,
    `methods`, `tiers` and `match`; one that is left empty fits every request. docs/reference/rules.md has all
    fields and their meanings.

    Raises `InvalidRule`, which names every field that is wrong.
    """

    id: str
    quota: Quota
    name: str
    dimension: str
    endpoints: tuple[str, ...]
    methods: tuple[str, ...]  # in capitals; GET means HEAD too
    tiers: tuple[str, ...]
    match: Mapping[str, str] = field(hash=False)
    action: Action
    max_delay: float | None  # seconds
    priority: int  # lower first
    group: str | None
    sync: Sync
    shards: int  # in how many parts a subject's state is kept
    regions: Spread | None  # how several regions share the quota; None leaves it to the snapshot
    failure_mode: FailureMode | None  # None leaves it to the snapshot, then to the limiter
    cost: int  # multiplies the cost of a request
    status: int
    message: str
    enabled: bool
    space: str = field(init=False, repr=False, compare=False)
    facts: tuple[str, ...] = field(init=False, repr=False, compare=False)  # whose values make the subject
    patterns: tuple[Pattern, ...] = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - the name that users write
        quota: Quota | str,
        name: str = "",
        dimension: str = "user",
        endpoints: Iterable[str] = (),
        methods: Iterable[str] = (),
        tiers: Iterable[str] = (),
        match: Mapping[str, str | int] | None = None,
        action: Action = "reject",
        max_delay: float | str | timedelta | None = None,
        priority: int = DEFAULT_PRIORITY,
        group: str | None = None,
        sync: Sync = "exact",
        shards: int = 1,
        regions: Spread | None = None,
        failure_mode: FailureMode | None = None,
        cost: int = 1,
        status: int = 429,
        message: str = "",
        enabled: bool = True,
    ) -> None:
        where = f"rule {id!r}"
        problems: tuple[Problem, ...] = ()
        try:
            fields.checked(self, where, locals(), _CHECKS)
        except InvalidRule as error:
            problems = error.problems
        if sync == "leased" and getattr(getattr(self, "quota", None), "algorithm", "") == "sliding_window_log":
            problems += (
                Problem(where, "sync", "a sliding_window_log cannot be leased; use another algorithm, or 'exact'"),
            )
        if not problems and shards > 1:
            problems = tuple(Problem(where, "shards", message) for message in _shards_misfit(self))
        problem = None if problems or regions is None else unspreadable(regions, self.quota, shards)
        if problem is not None:
            problems = (Problem(where, "regions", problem),)
        if problems:
            raise InvalidRule(*problems)
        facts = () if dimension == GLOBAL else tuple(dimension.split("+"))
        object.__setattr__(self, "facts", facts)
        object.__setattr__(self, "space", space(dimension, id, self.quota.algorithm))
        parsed: tuple[_Endpoint, ...] = self.endpoints  # type: ignore[assignment]
        object.__setattr__(self, "endpoints", tuple(endpoint.text for endpoint in parsed))
        object.__setattr__(self, "patterns", tuple(dict.fromkeys(endpoint.pattern for endpoint in parsed)))

    @property
    def conditions(self) -> int:
        """How many things other than the endpoint a request must fit: breaks ties of equal patterns."""
        return bool(self.methods) + bool(self.tiers) + len(self.match)


def made_by(limiter: str, rule: Rule) -> Rule:
    """Return `rule` as a limit that the limiter of this name makes itself: its keys have the limiter's name."""
    own = copy(rule)
    object.__setattr__(own, "space", space(rule.dimension, rule.id, rule.quota.algorithm, limiter=limiter))
    return own


def _shards_misfit(rule: Rule) -> Iterator[str]:
    """Why a rule cannot have its shards."""
    quota, shards = rule.quota, rule.shards
    if quota.algorithm == "leaky_bucket":
        yield "a leaky_bucket cannot have shards: its requests leave one by one; use another algorithm, or 1"
    elif rule.sync == "leased":
        yield "a leased rule cannot have shards: leases keep its calls few; use sync = 'exact', or 1"
    elif min(quota.limit, quota.capacity) < shards:
        name = "limit" if quota.limit < shards else "burst"
        yield f"must not be above the {name} ({getattr(quota, name)}), which they divide, got {shards}"
    elif not is_whole(quota, shards):
        yield f"a burst that takes so long to fill cannot be divided into {shards}; use fewer, or a smaller burst"


def unspreadable(spread: Spread, quota: Quota, shards: int) -> str | None:
    """Why several regions cannot share a quota in this way; None: they can."""
    algorithm = quota.algorithm
    if shards > 1 and spread != "separate":
        return "a rule with shards cannot be shared by regions: what is in which shard differs; use shards = 1"
    if spread == "synced" and algorithm in BUCKETS:
        return (
            f"a {algorithm} cannot be synced: it drains, and so is no count that regions could add up; "
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
            "a window of less than 10 seconds is over before its shares have been divided anew; "
            "use regions = 'quota' or 'central'"
        )
    return None


def _quota(value: Any) -> Quota:
    if isinstance(value, str):
        return Quota.parse(value)
    if not isinstance(value, Quota):
        raise ValueError(f"must be a Quota, or a notation like '100/minute', got {value!r}")  # noqa: TRY004
    return value


def _dimension(value: Any) -> str:
    facts = value.split("+") if isinstance(value, str) else [""]
    strange = not all(fact and fact.isprintable() and " " not in fact for fact in facts)
    if strange or len(set(facts)) != len(facts) or (GLOBAL in facts and len(facts) > 1):
        raise ValueError(f"cannot read {value!r}; write 'user', several as in 'user+endpoint', or 'global'")
    return "+".join(facts)


class _Endpoint(NamedTuple):
    text: str
    pattern: Pattern


def _endpoint(value: Any) -> _Endpoint:
    return _Endpoint(value, Pattern.parse(value))


def _method(value: Any) -> str:
    method = value.upper() if isinstance(value, str) else ""
    if not _METHOD.fullmatch(method):
        raise ValueError(f"must be methods like 'GET', got {value!r}")
    return method


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
            raise ValueError(f"cannot have {fact!r}, which has a field of its own: {_OWN_FIELDS[fact]}")
        if isinstance(wanted, bool) or not isinstance(wanted, str | int):
            raise ValueError(f"{fact!r} must be a text or a whole number, got {wanted!r}")  # noqa: TRY004
        kept[fact] = str(wanted)
    return kept


_CHECKS: Final[dict[str, fields.Check]] = {
    "id": fields.name,
    "quota": _quota,
    "name": fields.text,
    "dimension": _dimension,
    "endpoints": fields.several(_endpoint, "patterns"),
    "methods": fields.several(_method, "methods"),
    "tiers": fields.several(fields.name, "tiers"),
    "match": _match,
    "action": fields.choice(*get_args(Action)),
    "max_delay": fields.optional(fields.seconds),
    "priority": fields.whole(-MAX_INT),
    "group": fields.optional(fields.name),
    "sync": fields.choice(*get_args(Sync)),
    "shards": fields.whole(1, MAX_SHARDS),
    "regions": fields.optional(fields.choice(*get_args(Spread))),
    "failure_mode": fields.optional(fields.failure_mode),
    "cost": fields.whole(1),
    "status": fields.whole(400, 599),
    "message": fields.text,
    "enabled": fields.flag,
}
