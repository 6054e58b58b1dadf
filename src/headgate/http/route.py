"""Limits of single routes: what decorators of the frameworks have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from headgate.core.fork import renew_in_children
from headgate.core.quota import MAX_INT, Quota
from headgate.errors import InvalidCheck
from headgate.http.identity import client_of
from headgate.http.limits import Limits
from headgate.limiter.aio import AsyncLimiter
from headgate.limiter.decorator import quota_of
from headgate.limiter.sync import Limiter

L = TypeVar("L", Limiter, AsyncLimiter)
Key = Callable[..., str | int | None]
Cost = int | Callable[..., int]

TAKEN: Final = "headgate.routes"  # where a request keeps the names of the limits that were checked for it


class RouteLimit:
    """A limit as a decorator is given it. It counts by route and client, unless it is told a `name` or a `key`.

    `key` says who is counted, and is asked with what the framework's functions of a request are: None leaves it to
    the client, as the middleware knows it. `cost` is a number, or a function like `key`. Routes with limits of the
    same `name` count together. With `methods`, requests of others pass.
    """

    def __init__(
        self,
        quota: str | Quota,
        *,
        key: Key | None = None,
        cost: Cost = 1,
        name: str | None = None,
        methods: Iterable[str] = (),
    ) -> None:
        quota = quota_of(quota)
        if isinstance(quota, str):
            Quota.parse_all(quota)  # which complains here and now
        if key is not None and not callable(key):
            raise InvalidCheck(f"key: must be a function that returns who is counted, got {key!r}")
        if not callable(cost) and (isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost <= MAX_INT):
            raise InvalidCheck(f"cost: must be a whole number from 0 to 2^53-1, or a function, got {cost!r}")
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidCheck(f"name: must be a text, and not empty, got {name!r}")
        if isinstance(methods, str):
            raise InvalidCheck(f"methods: must be a list of methods, got {methods!r}")
        self.key = key
        self.cost = cost
        self.name = name
        self._quota = quota
        self._methods = {method.upper() for method in methods}
        if "GET" in self._methods:
            self._methods.add("HEAD")
        self._sync: _Siblings[Limiter] = _Siblings(quota)
        self._async: _Siblings[AsyncLimiter] = _Siblings(quota)

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


def subject_of(limits: Limits[Any], key: str | int | None) -> str:
    """Who is counted: what the app's own function returned, else the client. The two can never be mistaken."""
    if key is None:
        return client_of(dict(limits.facts))
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise InvalidCheck(f"key: must return a text, a whole number or None, got {key!r}")
    return f"key:{key}"


class _Siblings(Generic[L]):
    """Limiters of one quota by their name, for each limiter whose store they use. An app has as many as routes."""

    def __init__(self, quota: str | Quota) -> None:
        self._quota = quota
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
                made[name] = limiter.sibling(self._quota, name=name)
            return made[name]
