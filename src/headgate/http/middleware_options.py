"""The options that all middleware shares, applied to a request. No I/O."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, TypedDict, get_args

from headgate.core.clock import Clock
from headgate.core.cost import REQUESTS, UNIT, Cost, checked_cost
from headgate.core.decision import Decision
from headgate.core.decision_factory import turn_us
from headgate.core.fork import renew_in_children
from headgate.core.quota import MAX_INT, MICROSECONDS
from headgate.errors import InvalidRule
from headgate.http.headers import Charged
from headgate.http.identity import Identity, checked_facts, client_of
from headgate.http.limits import DeductWhen
from headgate.http.request import Request
from headgate.http.route import QuotaOption, RouteLimit
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.limiter.limiter import Limiter
from headgate.rules.path import Pattern, normal_path, routed_path, segments_of
from headgate.rules.recent import Recent
from headgate.rules.snapshot import HeaderStyle, Snapshot

Facts = dict[str, str]
Stated = Mapping[str, Any] | str | None
Identify = Callable[[Any], Stated | Awaitable[Stated]]
CostOption = Cost | Callable[[Any], Cost | Awaitable[Cost]]
ExemptWhen = Callable[[Any], bool | Awaitable[bool]]
RouteOption = Callable[[Any], str | None]
NO_ROUTE: Final = "no route"  # the fact `route` of requests that match no route: they share a count

log = logging.getLogger("headgate")

MAX_WAITING: Final = 1_000
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
REMEMBERED: Final = 4_096  # paths, and clients
MAX_LOGGED: Final = 64  # units of charge headers


class CallArguments(TypedDict, total=False):
    """The keyword arguments of `MiddlewareOptions` that interceptors of gRPC calls pass on."""

    identity: Identity | None
    identify: Identify | None
    cost: CostOption
    skip: Iterable[str]
    exempt_when: ExemptWhen | None
    deduct_when: DeductWhen | None
    defaults: QuotaOption | None
    headers: HeaderStyle | None
    max_waiting: int


class MiddlewareArguments(CallArguments, total=False):
    """The keyword arguments of `MiddlewareOptions`, for middleware that passes them on."""

    route: RouteOption | None
    charge_header: str | None


class MiddlewareOptions:
    """The checked options of a middleware.

    `identify` is the app's function from a request to facts; without it, `identity` finds them. `cost` is the cost of a
    request, or a function of the request. `skip` lists path patterns, as in rules, that are not limited. Requests for
    which `exempt_when`, a function of the request, returns True are exempt from all limits, with reason `exempt`. With
    `deduct_when`, a function of the response, the charge is refunded unless it returns True. `defaults` is each
    client's quota on each route without its own limit. `route` is a function from a request to its route template, for
    rules that count by `route`; the framework integrations set it. `headers` overrides the rules' choice of header
    fields. `charge_header` names a response header in which the app reports a request's final cost, in units that
    `cost` names; it is removed from the response. It charges nothing if `deduct_when` returns False. At most
    `max_waiting` requests are delayed at a time.
    """

    def __init__(
        self,
        limiter: Limiter | AsyncLimiter,
        *,
        identity: Identity | None = None,
        identify: Identify | None = None,
        cost: CostOption = 1,
        skip: Iterable[str] = (),
        exempt_when: ExemptWhen | None = None,
        deduct_when: DeductWhen | None = None,
        defaults: QuotaOption | None = None,
        route: RouteOption | None = None,
        headers: HeaderStyle | None = None,
        charge_header: str | None = None,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        if identity is not None and identify is not None:
            raise InvalidRule("identity, identify: give one of them, not both")
        if isinstance(limiter, Limiter):
            for name, function in (
                *(("identify", identify), ("cost", cost), ("exempt_when", exempt_when)),
                *(("deduct_when", deduct_when), ("defaults", defaults), ("route", route)),
            ):
                if inspect.iscoroutinefunction(function):
                    raise InvalidRule(f"{name}: must not be async in a synchronous server, got {function!r}")
        for name, function in (("exempt_when", exempt_when), ("deduct_when", deduct_when), ("route", route)):
            if function is not None and not callable(function):
                raise InvalidRule(f"{name}: must be a function, got {function!r}")
        if headers is not None and headers not in get_args(HeaderStyle):
            raise InvalidRule(f"headers: must be one of {', '.join(get_args(HeaderStyle))}, got {headers!r}")
        if isinstance(skip, str):
            raise InvalidRule(f"skip: must be a list of patterns, got {skip!r}")
        if isinstance(max_waiting, bool) or not isinstance(max_waiting, int) or max_waiting < 0:
            raise InvalidRule(f"max_waiting: must be a whole number, 0 or more, got {max_waiting!r}")
        self.identity = identity or Identity()
        self.identify = identify
        self.exempt_when = exempt_when
        self.deduct_when = deduct_when
        self.defaults = None if defaults is None else RouteLimit(defaults)
        self.route = route  # the framework's middleware sets it if it is None
        self.headers: HeaderStyle | None = headers
        self.cost = cost if callable(cost) else checked_cost(cost)
        if charge_header is not None and (not isinstance(charge_header, str) or not _TOKEN.fullmatch(charge_header)):
            raise InvalidRule(f"charge_header: must be the name of a header, got {charge_header!r}")
        self.charge_header = None if charge_header is None else charge_header.lower()
        self._logged: set[str] = set()  # the units of charge headers that `cost` does not name
        self.waits = identify is not None or self.identity.waits
        self._lock = Lock()
        self._waiting = 0
        self.by_subject = limiter.by_subject
        # Clients by peer, valid for that snapshot.
        self._known: tuple[Snapshot | None, dict[str | None, Facts]] = (None, {})
        self._max_waiting = max_waiting
        try:
            self.skip = [Pattern.parse(pattern) for pattern in skip]
        except InvalidRule as error:
            raise InvalidRule(f"skip: {error}") from None
        self._skipped: Recent[str, bool] = Recent(REMEMBERED)
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Reset the lock and the count in a forked child: waiting requests are the parent's."""
        self._lock, self._waiting = Lock(), 0

    def skips(self, path: str) -> bool:
        """Return whether requests to this path are skipped."""
        if not self.skip:
            return False
        known = self._skipped.get(path)
        if known is None:
            segments = segments_of(normal_path(routed_path(path)))
            known = any(pattern.fits(segments) for pattern in self.skip)
            self._skipped.put(path, known)
        return known

    def facts_stated(self, client: object) -> Facts:
        """Return the facts that `identify` returned; a string is the user. Raises `InvalidCheck`."""
        return {"user": client} if isinstance(client, str) else checked_facts(client)

    def find_facts(self, request: Request, snapshot: Snapshot) -> Facts:
        """Return the facts to check, of a client that `identity` finds. It waits if `identity.waits`.

        The client is cached as long as only the peer's address identifies it.
        """
        known_in, known = self._known
        client = known.get(request.peer) if known_in is snapshot else None
        if client is None:
            client = self._learn(request, snapshot)
        return client.copy() if self.by_subject else self.with_endpoint(request, client, snapshot)

    def _learn(self, request: Request, snapshot: Snapshot) -> Facts:
        client = self.identity.facts(request, snapshot)
        if self.by_subject:
            client = {"user": client_of(client)}
        peer = request.peer
        if peer is not None and self.identity.goes_by_peer(snapshot):
            known_in, known = self._known
            if known_in is not snapshot or len(known) >= REMEMBERED:
                known = {}
                self._known = (snapshot, known)  # replaced atomically, for threads
            known[peer] = client
        return client

    def complete_facts(self, request: Request, client: Facts, snapshot: Snapshot) -> Facts:
        """Return the facts to check, given those of the client."""
        return {"user": client_of(client)} if self.by_subject else self.with_endpoint(request, client, snapshot)

    def with_endpoint(self, request: Request, client: Facts, snapshot: Snapshot) -> Facts:
        """Return the client's facts with endpoint, method and, if rules need it, route, unless the client has them."""
        facts = {"endpoint": routed_path(request.path), "method": request.method, **client}
        if snapshot.planner.by_route and "route" not in client:
            facts["route"] = (None if self.route is None else self.route(request)) or NO_ROUTE
        return facts

    def reported_cost(self, charged: Charged, lines: Iterable[str]) -> Cost | None:
        """Return the final cost of a request from the lines of its response's charge header; None to keep the charge.

        Only units that the request's cost names can be charged. Others are left out, and each is logged once.
        """
        cost = charge_of(", ".join(lines))  # as HTTP joins the lines of a field
        if not cost or charged.decision.reason == "exempt":
            return cost
        named = (REQUESTS,) if isinstance(charged.cost, int) else charged.cost
        amounts = {REQUESTS: cost} if isinstance(cost, int) else cost
        unnamed = [unit for unit in amounts if unit not in named]
        if not unnamed:
            return cost
        for unit in unnamed:
            if unit not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(unit)
                log.error(
                    "the charge header of a response has the unit %r, which the request's cost does not name, so it is "
                    "not charged: name it in the middleware's cost, if only with 0",
                    unit[:64],
                )
        return {unit: amount for unit, amount in amounts.items() if unit in named} or None

    @contextmanager
    def waiting_place(self) -> Iterator[bool]:
        """Occupy a waiting place, or yield False if none is free."""
        with self._lock:
            free = self._waiting < self._max_waiting
            self._waiting += free
        try:
            yield free
        finally:
            with self._lock:
                self._waiting -= free


class Patience:
    """Tracks how long rules with action `throttle` may delay a request. Create it right after the first decision."""

    __slots__ = ("_asked_us", "_clock", "_deadline_us")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked_us = clock.now_us()
        self._deadline_us: int | None = None  # set at the first refusal

    def ask_again(self) -> None:
        """Note that the request is checked again now. The time of the check does not count as waiting."""
        self._asked_us = self._clock.now_us()

    def seconds(self, decision: Decision) -> float | None:
        """Return the seconds until a refused request is tried again; None if the decision is final."""
        if decision.allowed or not decision.max_delay or decision.retry_after is None:
            return None
        if self._deadline_us is None:
            self._deadline_us = self._asked_us + round(decision.max_delay * MICROSECONDS)
        return decision.retry_after if self.is_in_time(decision) else None

    def is_in_time(self, decision: Decision) -> bool:
        """Return whether the request's turn comes before its deadline."""
        return self._deadline_us is None or self._asked_us + turn_us(decision) <= self._deadline_us


def charge_of(text: str) -> Cost | None:
    """Read the cost in a response's charge header: `120` or `requests=1, tokens=3200`.

    Returns None if it is malformed, and logs an error.
    """
    whole = _amount(text)
    if whole is not None:
        return whole
    pairs = [part.strip().partition("=") for part in text.split(",")]
    amounts = {unit: _amount(digits) for unit, _, digits in pairs if UNIT.fullmatch(unit)}
    found = {unit: amount for unit, amount in amounts.items() if amount is not None}
    if len(found) == len(pairs):
        return found
    log.error(
        "the charge header of a response must be a whole number from 0 to 2^53-1, or units with such numbers like "
        "'requests=1, tokens=3200', got %r: ignored",
        text[:64],
    )
    return None


def _amount(digits: str) -> int | None:
    if digits.isascii() and digits.isdecimal() and len(digits) <= 16 and int(digits) <= MAX_INT:
        return int(digits)
    return None
