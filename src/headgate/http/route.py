"""Limits of single routes: what decorators of the frameworks have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, Final, Generic, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

from headgate.core.fork import renew_in_children
from headgate.core.quota import CONCURRENCY, MAX_INT, Quota
from headgate.errors import InvalidCheck
from headgate.http.identity import client_of
from headgate.http.limits import Limits
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.limiter.decorator import quota_of
from headgate.limiter.limiter import Limiter
from headgate.limiter.rule_inputs import rules_of_notation
from headgate.rules.rule import FailureMode, Rule

L = TypeVar("L", Limiter, AsyncLimiter)
Key = Callable[..., str | int | UUID | None]
Cost = int | Callable[..., int]
ExemptWhen = Callable[..., bool]

TAKEN: Final = "headgate.routes"  # where a request keeps the names of the limits that were checked for it


class RouteLimit:
    """A limit as a decorator is given it. It counts by route and client, unless it is told a `name` or a `key`.

    `key` says who is counted, and is asked with what the framework's functions of a request are: None leaves it to
    the client, as the middleware knows it. `cost` is a number, or a function like `key`. Routes with limits of the
    same `name` count together. With `methods`, requests of others pass; so do those for which `exempt_when`, a function
    like `key`, returns True. `message` is what a refusal says. `failure_mode` decides when the store cannot.
    """

    def __init__(
        self,
        quota: str | Quota,
        *,
        key: Key | None = None,
        cost: Cost = 1,
        name: str | None = None,
        methods: Iterable[str] = (),
        exempt_when: ExemptWhen | None = None,
        message: str = "",
        failure_mode: FailureMode | None = None,
    ) -> None:
        quota = quota_of(quota)
        quotas = Quota.parse_all(quota) if isinstance(quota, str) else [quota]  # which complains here and now
        if key is not None and not callable(key):
            raise InvalidCheck(f"key: must be a function that returns who is counted, got {key!r}")
        if not callable(cost) and (isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost <= MAX_INT):
            raise InvalidCheck(f"cost: must be a whole number from 0 to 2^53-1, or a function, got {cost!r}")
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidCheck(f"name: must be a text, and not empty, got {name!r}")
        if isinstance(methods, str):
            raise InvalidCheck(f"methods: must be a list of methods, got {methods!r}")
        self.holds = any(one.algorithm == CONCURRENCY for one in quotas)  # slots, until the response has ended
        if exempt_when is not None and not callable(exempt_when):
            raise InvalidCheck(f"exempt_when: must be a function that returns True or False, got {exempt_when!r}")
        self.key = key
        self.exempt_when = exempt_when
        self.cost = cost
        self.name = name
        self._quota = quota
        self._methods = {method.upper() for method in methods}
        if "GET" in self._methods:
            self._methods.add("HEAD")
        said = {"message": message, "failure_mode": failure_mode}
        make = partial(_rules, quota, said)
        make("test")  # what is wrong with them is said now
        self._sync: _Siblings[Limiter] = _Siblings(make)
        self._async: _Siblings[AsyncLimiter] = _Siblings(make)

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

    def limiter(self, limiter: L, name: str) -> L:
        """The limiter of this limit and name, on the store of another."""
        if isinstance(limiter, Limiter):
            return self._sync.get(limiter, name)
        return self._async.get(limiter, name)


def _rules(quota: str | Quota, said: dict[str, Any], name: str) -> list[Rule]:
    """The rules of a limit of this name."""
    return [replace(rule, **said) for rule in rules_of_notation(quota, name)]


def subject_of(limits: Limits[Any], key: str | int | UUID | None) -> str:
    """Who is counted: what the app's own function returned, else the client. The two can never be mistaken."""
    if key is None:
        return client_of(dict(limits.facts))
    if isinstance(key, bool) or not isinstance(key, str | int | UUID):
        raise InvalidCheck(f"key: must return a text, a whole number, a UUID or None, got {key!r}")
    return f"key:{key}"


class _Siblings(Generic[L]):
    """Limiters of one limit by their name, for each limiter whose store they use. An app has as many as routes."""

    def __init__(self, rules: Callable[[str], list[Rule]]) -> None:
        self._rules = rules
        self._lock = Lock()
        self._made: WeakKeyDictionary[L, dict[str, L]] = WeakKeyDictionary()
        renew_in_children(self)

    def forked(self) -> None:
        """In a forked child: whoever held the lock is not here."""
        self._lock = Lock()

    def get(self, limiter: L, name: str) -> L:
        with self._lock:
            made = self._made.setdefault(limiter, {})
            if name not in made:
                made[name] = limiter.sibling(self._rules(name), name=name)
            return made[name]
