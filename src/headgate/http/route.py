"""Limits of single routes: the parts that the frameworks' decorators and dependencies share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from threading import Lock
from typing import Any, Final, Generic, TypedDict, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

from headgate.core.cost import REQUESTS, Cost
from headgate.core.decision import Decision
from headgate.core.fork import renew_in_children
from headgate.core.quota import MAX_INT, Quota
from headgate.core.suggestion import did_you_mean
from headgate.errors import InvalidCheck, InvalidRule
from headgate.http.identity import client_of
from headgate.http.limits import DeductWhen, Limits
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.limiter.limiter import Limiter
from headgate.limiter.rule_inputs import named_by_window, rules_of_notation
from headgate.rules.rule import FailureMode, Rule

L = TypeVar("L", Limiter, AsyncLimiter)
Subject = str | int | UUID | None
T = TypeVar("T")
OfRequest = Callable[[], T | Awaitable[T]] | Callable[[Any], T | Awaitable[T]]  # Flask's functions get no argument
Key = OfRequest[Subject]
CostOption = Cost | OfRequest[Cost]
QuotaOption = str | Quota | OfRequest[str | Quota | None]
ExemptWhen = OfRequest[bool]

TAKEN: Final = "headgate.routes"  # where a request keeps the names of its checked limits
LIMITED: Final = "_headgate_limits"  # an attribute of functions with their limits; decorators around them copy it
# Options of slowapi, Flask-Limiter and django-ratelimit that have other names here.
_OF_OTHERS: Final = {"key_func": "key", "error_message": "message", "scope": "name", "group": "name"}
MAX_LIMITERS: Final = 4_096  # of one limit: one per route and quota


class LimitOptions(TypedDict, total=False):
    """The options of `RouteLimit`, the same in all frameworks."""

    key: Key | None
    cost: CostOption
    name: str | None
    methods: Iterable[str]
    exempt_when: ExemptWhen | None
    deduct_when: DeductWhen | None
    override_defaults: bool
    message: str
    failure_mode: FailureMode | None


class RouteLimit:
    """A limit of a decorator or dependency. It counts by route and client, unless it has a `name` or a `key`.

    Functions receive the framework's request, and may be async. `quota` may be a function that returns the request's
    quota, or None for no limit. `key` returns the subject to count; None means the client that the middleware
    identified. `cost` is a number of requests or a function that returns one; a mapping that it returns must name
    `requests`. Limits with one `name` share a count. With `methods`, other methods are not limited; nor are requests
    for which `exempt_when` returns True. With `deduct_when`, a function of the response, the charge is refunded unless
    it returns True. A limit replaces the middleware's `defaults`; with `override_defaults=False` it adds to them.
    `message` is the detail of a refusal. `failure_mode` applies when the store fails.
    """

    def __init__(
        self,
        quota: QuotaOption,
        *,
        key: Key | None = None,
        cost: CostOption = 1,
        name: str | None = None,
        methods: Iterable[str] = (),
        exempt_when: ExemptWhen | None = None,
        deduct_when: DeductWhen | None = None,
        override_defaults: bool = True,
        message: str = "",
        failure_mode: FailureMode | None = None,
        **unknown: Any,
    ) -> None:
        for option in unknown:
            raise TypeError(_describe_unknown(option))
        for option, function in (("key", key), ("exempt_when", exempt_when), ("deduct_when", deduct_when)):
            if function is not None and not callable(function):
                raise InvalidRule(f"{option}: must be a function, got {function!r}")
        if not callable(cost) and (isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost <= MAX_INT):
            raise InvalidRule(f"cost: must be a whole number from 0 to 2^53-1, or a function, got {cost!r}")
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidRule(f"name: must be a non-empty string, got {name!r}")
        if not callable(quota) and not isinstance(quota, str | Quota):
            raise InvalidRule(f"quota: must be a notation like '5/minute', a Quota or a function, got {quota!r}")
        if isinstance(methods, str):
            raise InvalidRule(f"methods: must be a list of methods, got {methods!r}")
        self.key = key
        self.exempt_when = exempt_when
        self.deduct_when = deduct_when
        self.override_defaults = override_defaults
        self.cost = cost
        self.name = name
        self.quota = quota
        self._methods = {method.upper() for method in methods}
        if "GET" in self._methods:
            self._methods.add("HEAD")
        self._message = message
        self._failure_mode: FailureMode | None = failure_mode
        self._sync: _Siblings[Limiter] = _Siblings()
        self._async: _Siblings[AsyncLimiter] = _Siblings()
        self._rules("test", "1/minute" if callable(self.quota) else self.quota, None)  # raises now if they are invalid

    def applies(self, method: str | None) -> bool:
        """Return whether requests with this method are limited."""
        return not self._methods or method in self._methods

    def name_for(self, route: str, taken: list[str]) -> str:
        """Return the name under which a request counts. `taken` are the names of the request's earlier limits.

        A route's second limit gets a number, so that it does not share the first one's count.
        """
        if self.name is not None:
            return self.name
        name, number = route, 1
        while name in taken:
            number += 1
            name = f"{route} ({number})"
        taken.append(name)
        return name

    def limiter(self, limiter: L, name: str, quota: str | Quota) -> L:
        """Return this limit's limiter for a name and a quota, on the store of `limiter`."""
        if isinstance(limiter, Limiter):
            return self._sync.get(limiter, name, quota, self._rules)
        return self._async.get(limiter, name, quota, self._rules)

    def _rules(self, name: str, quota: str | Quota, failure_mode: FailureMode | None) -> list[Rule]:
        """Return the rules of a limit with this name. If the quota is a function, each window has its own count."""
        rules = named_by_window(quota, name) if callable(self.quota) else rules_of_notation(quota, name)
        mode = self._failure_mode or failure_mode
        return [replace(rule, message=self._message, failure_mode=mode) for rule in rules]


class Ask:
    """A limit applied to one request: the subject to count, the quota and the cost."""

    __slots__ = ("cost", "key", "quota")

    def __init__(self, quota: str | Quota, key: Subject, cost: Cost) -> None:
        self.quota = quota
        self.key = key
        self.cost = cost

    @classmethod
    def of(cls, limit: RouteLimit, call: Callable[[Callable[..., Any]], Any]) -> Ask | None:
        """Call a limit's functions through `call`, which passes the request. Return None if the limit does not
        apply."""
        if limit.exempt_when is not None and call(limit.exempt_when):
            return None
        quota = call(limit.quota) if callable(limit.quota) else limit.quota
        if quota is None:
            return None
        key = None if limit.key is None else call(limit.key)
        cost = _require_requests(call(limit.cost)) if callable(limit.cost) else limit.cost
        return cls(_require_quota(quota), key, cost)

    @classmethod
    async def of_async(cls, limit: RouteLimit, call: Callable[[Callable[..., Any]], Awaitable[Any]]) -> Ask | None:
        """Async counterpart of `of`: `call` is awaited."""
        if limit.exempt_when is not None and await call(limit.exempt_when):
            return None
        quota = await call(limit.quota) if callable(limit.quota) else limit.quota
        if quota is None:
            return None
        key = None if limit.key is None else await call(limit.key)
        cost = _require_requests(await call(limit.cost)) if callable(limit.cost) else limit.cost
        return cls(_require_quota(quota), key, cost)


def charge(limit: RouteLimit, limits: Limits[Limiter], limiter: Limiter, name: str, ask: Ask) -> Decision:
    """Check a request against a limit with a `Limiter`. A refusal refunds the request's other charges."""
    sibling = limit.limiter(limiter, name, ask.quota)
    decision = sibling.decide({"user": subject_of(limits, ask.key)}, cost=ask.cost, slots="take")
    limits.add(decision, ask.cost, sibling)
    if not decision.allowed:
        limits.refuse()
    elif limit.deduct_when is not None:
        limits.charge_only_when(limit.deduct_when)
    return decision


async def charge_async(
    limit: RouteLimit, limits: Limits[AsyncLimiter], limiter: AsyncLimiter, name: str, ask: Ask
) -> Decision:
    """Async counterpart of `charge`."""
    sibling = limit.limiter(limiter, name, ask.quota)
    answer = sibling.decide({"user": subject_of(limits, ask.key)}, cost=ask.cost, slots="take")
    decision = answer if isinstance(answer, Decision) else await answer
    limits.add(decision, ask.cost, sibling)
    if not decision.allowed:
        await limits.refuse_async()
    elif limit.deduct_when is not None:
        limits.charge_only_when(limit.deduct_when)
    return decision


def limits_on(function: object) -> list[RouteLimit]:
    """Return the limits that decorators put on a function."""
    found: list[RouteLimit] = getattr(function, LIMITED, [])
    return found


def mark_limited(function: Any, limited: Any, limit: RouteLimit) -> None:
    """Store on the decorated function its limits: those that it had, and this one."""
    setattr(limited, LIMITED, [*limits_on(function), limit])


def is_default_replaced(limits: Iterable[RouteLimit], method: str | None) -> bool:
    """Return whether these limits of a route replace the middleware's defaults."""
    return any(limit.override_defaults and limit.applies(method) for limit in limits)


def subject_of(limits: Limits[Any], key: Subject) -> str:
    """Return the subject to count: the app's `key`, else the client. A prefix keeps the two from colliding."""
    if key is None:
        return client_of(dict(limits.facts))
    if isinstance(key, bool) or not isinstance(key, str | int | UUID):
        raise InvalidCheck(f"key: must return a string, an integer, a UUID or None, got {key!r}")
    return f"key:{key}"


def _describe_unknown(option: str) -> str:
    """Return what is wrong with an option that is not one of ours: it may be another limiter's."""
    ours = _OF_OTHERS.get(option)
    hint = did_you_mean(option, LimitOptions.__annotations__) if ours is None else f"; here it is {ours}="
    return f"limit: {option}: unknown option{hint}"


def _require_quota(quota: object) -> str | Quota:
    if isinstance(quota, str | Quota):
        return quota
    raise InvalidCheck(f"quota: its function must return a notation like '5/minute', a Quota or None, got {quota!r}")


def _require_requests(cost: Any) -> Any:
    """Return the cost if it names requests. A cost in other units alone would turn the limit off."""
    if isinstance(cost, Mapping) and REQUESTS not in cost:
        units = ", ".join(map(repr, cost)) or "none"
        raise InvalidCheck(f"cost: this limit counts {REQUESTS!r}, but the cost's function returned the units {units}")
    return cost


_MakeRules = Callable[[str, str | Quota, FailureMode | None], list[Rule]]


class _Siblings(Generic[L]):
    """The limiters of one limit by name and quota, for each limiter whose store they share."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._made: WeakKeyDictionary[L, dict[tuple[str, str | Quota], L]] = WeakKeyDictionary()
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child, where its holder does not exist."""
        self._lock = Lock()

    def get(self, limiter: L, name: str, quota: str | Quota, rules: _MakeRules) -> L:
        with self._lock:
            made = self._made.setdefault(limiter, {})
            sibling = made.get((name, quota))
            if sibling is None:
                sibling = limiter.sibling(rules(name, quota, limiter.snapshot.failure_mode), name=name)
                if len(made) >= MAX_LIMITERS:
                    made.clear()
                made[name, quota] = sibling
            return sibling
