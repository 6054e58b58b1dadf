"""Limits of single routes: what decorators and dependencies of the frameworks have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from threading import Lock
from typing import Any, Final, Generic, TypedDict, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.core.fork import renew_in_children
from headgate.core.quota import MAX_INT, Quota
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

TAKEN: Final = "headgate.routes"  # where a request keeps the names of the limits that were checked for it
LIMITED: Final = "_headgate_limits"  # an attribute of functions: their limits, which decorators around them keep
MAX_LIMITERS: Final = 4_096  # of one limit: as many as routes, times quotas


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
    """A limit of a decorator. It counts by route and client, unless it has a `name` or a `key`.

    Functions are asked with what the framework's functions of a request get, and may be async. `quota` may be one: then
    each request has the quota that it returns, and None lets the request pass. `key` says who is counted: None leaves
    it to the client, as the middleware knows it. `cost` is a number, or a function. Routes with limits of the same
    `name` count together. With `methods`, requests of others pass; so do those for which `exempt_when` returns True.
    With `deduct_when`, a function of the response, the request is charged, and what it was charged is given back unless
    that returns True. A limit replaces the middleware's `defaults`; it adds to them if not `override_defaults`.
    `message` is what a refusal says. `failure_mode` decides when the store cannot.
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
    ) -> None:
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
        self._rules(
            "test", "1/minute" if callable(self.quota) else self.quota, None
        )  # says now what is wrong with them

    def applies(self, method: str | None) -> bool:
        """Whether requests of this method are limited."""
        return not self._methods or method in self._methods

    def named(self, route: str, taken: list[str]) -> str:
        """The name under which a request is counted. `taken` are those of the request's limits before this one.

        A route's second limit has a number, as it must not count where the first one does.
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
        """The limiter of this limit, a name and a quota, on the store of another."""
        if isinstance(limiter, Limiter):
            return self._sync.get(limiter, name, quota, self._rules)
        return self._async.get(limiter, name, quota, self._rules)

    def _rules(self, name: str, quota: str | Quota, failure_mode: FailureMode | None) -> list[Rule]:
        """The rules of a limit of this name. Where quotas differ by request, those of other windows count apart."""
        rules = named_by_window(quota, name) if callable(self.quota) else rules_of_notation(quota, name)
        mode = self._failure_mode or failure_mode
        return [replace(rule, message=self._message, failure_mode=mode) for rule in rules]


class Ask:
    """What a limit asks of one request: who is counted, by which quota, at what cost."""

    __slots__ = ("cost", "key", "quota")

    def __init__(self, quota: str | Quota, key: Subject, cost: Cost) -> None:
        self.quota = quota
        self.key = key
        self.cost = cost

    @classmethod
    def of(cls, limit: RouteLimit, call: Callable[[Callable[..., Any]], Any]) -> Ask | None:
        """Ask a limit's functions by `call`, which gives them the request. None: the limit is not for the request."""
        if limit.exempt_when is not None and call(limit.exempt_when):
            return None
        quota = call(limit.quota) if callable(limit.quota) else limit.quota
        if quota is None:
            return None
        key = None if limit.key is None else call(limit.key)
        return cls(_checked(quota), key, call(limit.cost) if callable(limit.cost) else limit.cost)

    @classmethod
    async def of_async(cls, limit: RouteLimit, call: Callable[[Callable[..., Any]], Awaitable[Any]]) -> Ask | None:
        """Ask them by a `call` that is awaited."""
        if limit.exempt_when is not None and await call(limit.exempt_when):
            return None
        quota = await call(limit.quota) if callable(limit.quota) else limit.quota
        if quota is None:
            return None
        key = None if limit.key is None else await call(limit.key)
        return cls(_checked(quota), key, await call(limit.cost) if callable(limit.cost) else limit.cost)


def charge(limit: RouteLimit, limits: Limits[Limiter], limiter: Limiter, name: str, ask: Ask) -> Decision:
    """Check a request against a limit, by a `Limiter`. A refusal gives back what others charged for the request."""
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
    """Check a request against a limit, by an `AsyncLimiter`."""
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
    """The limits that decorators have put on a function."""
    found: list[RouteLimit] = getattr(function, LIMITED, [])
    return found


def mark_limited(function: Any, limited: Any, limit: RouteLimit) -> None:
    """Note on the decorated function which limits it has: those that it had, and this one."""
    setattr(limited, LIMITED, [*limits_on(function), limit])


def is_default_replaced(limits: Iterable[RouteLimit], method: str | None) -> bool:
    """Whether a route with these limits has no part in the defaults of the middleware."""
    return any(limit.override_defaults and limit.applies(method) for limit in limits)


def subject_of(limits: Limits[Any], key: Subject) -> str:
    """Who is counted: what the app's own function returned, else the client. The two can never be mistaken."""
    if key is None:
        return client_of(dict(limits.facts))
    if isinstance(key, bool) or not isinstance(key, str | int | UUID):
        raise InvalidCheck(f"key: must return a string, an integer, a UUID or None, got {key!r}")
    return f"key:{key}"


def _checked(quota: object) -> str | Quota:
    if isinstance(quota, str | Quota):
        return quota
    raise InvalidCheck(f"quota: its function must return a notation like '5/minute', a Quota or None, got {quota!r}")


_MakeRules = Callable[[str, str | Quota, FailureMode | None], list[Rule]]


class _Siblings(Generic[L]):
    """Limiters of one limit by name and quota, for each limiter whose store they use."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._made: WeakKeyDictionary[L, dict[tuple[str, str | Quota], L]] = WeakKeyDictionary()
        renew_in_children(self)

    def forked(self) -> None:
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
