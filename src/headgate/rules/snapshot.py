"""Snapshot: all rules, tiers, users, exemptions and penalties at one version, immutable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from headgate.core.check import Check, Terms
from headgate.core.clock import Clock
from headgate.errors import InvalidRule, Problem
from headgate.rules import fields
from headgate.rules.directory import UNKNOWN, Directory, Listed, Unknown
from headgate.rules.facts import FactNames
from headgate.rules.penalties import Penalties
from headgate.rules.plan import Facts, RulePlan, template_of
from headgate.rules.planner import Planner
from headgate.rules.rule import FailureMode, Rule, Spread, unspreadable

if TYPE_CHECKING:
    from headgate.rules.exemptions import Exemption
    from headgate.rules.networks import Proxy
    from headgate.rules.users import Tier, User

Unmatched = Literal["allow", "refuse"]
HeaderStyle = Literal["both", "ietf", "x", "off"]  # the header fields of responses


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The configuration of a limiter. It is immutable: a change of rules makes another snapshot.

    - `users` are the users with a tier or overrides; if there are too many to list, a `directory` finds them instead.
    - `default_tier` applies to requests that have no tier and whose user has none.
    - `failure_mode` applies to rules that have none; None leaves it to the limiter.
    - `trusted_proxies` and `trusted_proxy_depth` are for code that reads the client's address from a request.
    - `warning_at` and `warning_until` are the percentages of use at which state `warning` begins, and below which it
      ends; None leaves them to the limiter.
    - `facts` declares names of facts for rules and requests besides the well-known ones.
    - `unmatched` decides what happens to requests to which no rule applies, if there are rules.
    - `regions` is how several regions share the quotas of rules that do not set it; None: each region has all of them.
    - `decision_header` adds a header field with the id of the decision to refusals.
    - `headers` chooses the header fields of responses.
    - Unless `enabled`, no rule applies.
    - `version` distinguishes snapshots.
    - `previous` is the snapshot that this one replaces: results for rules that are the same objects in both are reused.

    Raises `InvalidRule` with every conflict between its parts.
    """

    rules: Sequence[Rule]
    _: KW_ONLY
    tiers: Sequence[Tier] = ()
    users: Sequence[User] = ()
    exemptions: Sequence[Exemption] = ()
    penalties: Penalties = Penalties()  # noqa: RUF009 - frozen
    enabled: bool = True
    default_tier: str | None = None
    failure_mode: FailureMode | None = None
    trusted_proxies: Sequence[Proxy] = ()
    trusted_proxy_depth: int = 1
    warning_at: int | None = None
    warning_until: int | None = None
    regions: Spread | None = None
    decision_header: bool = False
    headers: HeaderStyle = "both"
    facts: Sequence[str] = ()
    unmatched: Unmatched = "allow"
    version: str = "1"
    directory: Directory | None = None
    previous: InitVar[Snapshot | None] = None
    terms: Terms | None = field(init=False, repr=False)  # of penalties; None if disabled
    leased: frozenset[str] = field(init=False, repr=False)  # the ids of leased rules
    sharded: Mapping[str, int] = field(init=False, repr=False)  # the number of shards, by id of rules that have any
    spread: Mapping[str, Spread] = field(init=False, repr=False)  # by id: how regions share rules that they do share
    fact_names: FactNames = field(init=False, repr=False)  # that rules and requests may have
    planner: Planner = field(init=False, repr=False)
    _by_id: Mapping[str, Rule] = field(init=False, repr=False)

    def __post_init__(self, previous: Snapshot | None) -> None:
        for name in ("rules", "tiers", "users", "exemptions"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        problems = list(self._problems())
        try:
            fields.set_checked(self, SETTINGS, {name: getattr(self, name) for name in _CHECKS}, _CHECKS)
        except InvalidRule as error:
            problems += error.problems
        if "facts" not in {problem.field for problem in problems}:
            object.__setattr__(self, "fact_names", FactNames(self.facts))
            problems += self._unknown_facts()
        if problems:
            raise InvalidRule(*problems)
        planner = Planner(
            self.rules if self.enabled else (),
            directory=self.directory or Listed(self.users),
            exemptions=self.exemptions,
            default_tier=self.default_tier,
            failure_mode=self.failure_mode,
            fact_names=self.fact_names,
            unmatched=self.unmatched,
            previous=None if previous is None else previous.planner,
        )
        object.__setattr__(self, "planner", planner)
        object.__setattr__(self, "terms", self.penalties.terms)
        object.__setattr__(self, "leased", frozenset(rule.id for rule in self.rules if rule.sync == "leased"))
        object.__setattr__(self, "sharded", {rule.id: rule.shards for rule in self.rules if rule.shards > 1})
        object.__setattr__(self, "spread", dict(self._rules_that_regions_share()))
        object.__setattr__(self, "_by_id", {rule.id: rule for rule in self.rules})

    def plan(self, facts: Facts, clock: Clock, user: User | Unknown | None = UNKNOWN) -> RulePlan:
        """Return the rules that apply to a request at the time of `clock`. Cached: see `headgate.rules.planner`.

        `user` is the user of `facts`, if the caller has looked them up; None means a user without tier and overrides.
        Otherwise they are looked up here, which may take a short time with a directory.
        """
        return self.planner.plan(facts, clock, user)

    def is_exempt(self, facts: Facts) -> bool:
        """Return whether a request is never limited: it is exempt, or the rules are disabled."""
        return not self.enabled or self.planner.is_exempt(facts)

    def user(self, facts: Facts) -> User | Unknown | None:
        """Return the user whose tier and overrides `plan` needs for a request; None if it needs none.

        Returns `UNKNOWN` if the directory has to look them up first. Never waits.
        """
        return self.planner.user(facts)

    def depends_on(self, fact: str, facts: Facts) -> bool:
        """Return whether the plan of a request with these facts depends on the value of another fact."""
        return self.planner.depends_on(fact, facts)

    @property
    def has_users(self) -> bool:
        """Whether users may have their own tiers or overrides."""
        return bool(self.users) or self.directory is not None

    def at(self, version: str) -> Snapshot:
        """Return this snapshot with another version, after only the directory's users have changed."""
        other = copy(self)
        object.__setattr__(other, "version", version)
        return other

    def template(self, rule_id: str) -> Check | None:
        """Return the check of one rule, without its subject; None if there is no such rule."""
        rule = self._by_id.get(rule_id)
        return None if rule is None else template_of(rule)

    def failure_mode_of(self, rule_id: str) -> FailureMode | None:
        """Return one rule's failure mode; None leaves it to the limiter."""
        rule = self._by_id.get(rule_id)
        return (None if rule is None else rule.failure_mode) or self.failure_mode

    def _rules_that_regions_share(self) -> Iterator[tuple[str, Spread]]:
        for rule in self.rules:
            spread = rule.regions or self.regions
            if spread is not None and spread != "separate":
                yield rule.id, spread

    def _unspreadable(self) -> Iterator[Problem]:
        """Yield the rules that regions cannot share in the way that `[headgate]` sets for all rules."""
        spread = self.regions
        if spread is None or spread not in get_args(Spread):
            return
        for rule in self.rules:
            why = unspreadable(spread, rule.quota, rule.shards) if rule.regions is None else None
            if why is not None:
                yield Problem(f"rule {rule.id!r}", "regions", f"not set, and {SETTINGS} says {spread!r}: {why}")

    def _unknown_facts(self) -> Iterator[Problem]:
        """Yield rules that count by, or match on, undeclared facts."""
        named = {fact for rule in self.rules for fact in rule.facts}
        named.update(*[rule.match for rule in self.rules if rule.match])
        if all(fact in self.fact_names for fact in named):
            return
        for rule in self.rules:
            for name, facts in (("dimension", rule.facts), ("match", rule.match)):
                for fact in facts:
                    if fact not in self.fact_names:
                        yield Problem(f"rule {rule.id!r}", name, self.fact_names.describe_unknown(fact))

    def _problems(self) -> Iterator[Problem]:
        """Yield the conflicts between the parts."""
        at, until = self.warning_at, self.warning_until
        if isinstance(at, int) and isinstance(until, int) and until > at:
            yield Problem(SETTINGS, "warning_until", f"must not be above warning_at ({at}), got {until}")
        yield from self._unspreadable()
        yield from _twice("rule", "id", [rule.id for rule in self.rules])
        yield from _twice("tier", "name", [tier.name for tier in self.tiers])
        yield from _twice("user", "id", [user.id for user in self.users])
        tiers = {tier.name for tier in self.tiers}
        if tiers:
            known = ", ".join(sorted(tiers))
            for rule in self.rules:
                for tier in rule.tiers:
                    if tier not in tiers:
                        message = f"{tier!r} is not one of the tiers ({known})"
                        yield Problem(f"rule {rule.id!r}", "tiers", message)
            if self.default_tier is not None and self.default_tier not in tiers:
                message = f"{self.default_tier!r} is not one of the tiers ({known})"
                yield Problem(SETTINGS, "default_tier", message)
        if self.users and self.directory is not None:
            yield Problem("", "users", "are either listed or found in a directory, not both")
        for rule in self.rules if self.penalties.enabled else ():
            if rule.shards > 1:
                message = "cannot be above 1 while penalties are enabled: a shard's refusal would count as a violation"
                yield Problem(f"rule {rule.id!r}", "shards", message)
        if self.users:
            yield from self._misfits()

    def _misfits(self) -> Iterator[Problem]:
        """Yield the overrides that do not fit their rules."""
        from headgate.rules.users import misfit  # noqa: PLC0415 - users have loaded it

        rules = {rule.id: rule for rule in self.rules}
        for user in self.users:
            yield from _twice(f"user {user.id!r}: override of rule", "rule", [one.rule for one in user.overrides])
            for override in user.overrides:
                problem = misfit(override, rules.get(override.rule))
                if problem is not None:
                    yield Problem(f"user {user.id!r}: override of rule {override.rule!r}", *problem)


SETTINGS: Final = "[headgate]"


def _twice(what: str, name: str, ids: list[str]) -> Iterator[Problem]:
    if len(set(ids)) == len(ids):
        return
    indexes: dict[str, list[int]] = {}
    for index, one in enumerate(ids, start=1):
        indexes.setdefault(one, []).append(index)
    for one, found in indexes.items():
        if len(found) > 1:
            numbers = f"{', '.join(map(str, found[:-1]))} and {found[-1]}"
            yield Problem(f"{what} {one!r}", name, f"used {len(found)} times (numbers {numbers}); each needs its own")


def _proxy(value: Any) -> Proxy:
    from headgate.rules.networks import proxy  # noqa: PLC0415 - most limiters trust no proxy

    return proxy(value)


_CHECKS: Final[dict[str, fields.Check]] = {
    "enabled": fields.flag,
    "default_tier": fields.optional(fields.name),
    "failure_mode": fields.optional(fields.failure_mode),
    "trusted_proxies": fields.several(_proxy, "networks"),
    "trusted_proxy_depth": fields.whole(1, 100),
    "warning_at": fields.optional(fields.whole(1, 100)),
    "warning_until": fields.optional(fields.whole(1, 100)),
    "decision_header": fields.flag,
    "headers": fields.choice(*get_args(HeaderStyle)),
    "regions": fields.optional(fields.choice(*get_args(Spread))),
    "facts": fields.several(fields.name, "names of facts"),
    "unmatched": fields.choice(*get_args(Unmatched)),
}
SETTING_NAMES: Final = tuple(_CHECKS)  # the keys of [headgate]
