"""Django: middleware for WSGI and ASGI, and a decorator for views.

    MIDDLEWARE = ["headgate.http.django.RateLimitMiddleware", ...]
    HEADGATE = {"RULES": "rules.toml", "STORE": "redis://localhost:6379/0"}

The decisions are at `request.headgate`, a `headgate.http.limits.Limits`. `headgate.http.drf` has a throttle class for
Django REST framework.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, Unpack, cast

try:
    from asgiref.sync import iscoroutinefunction, markcoroutinefunction
    from django.http import HttpRequest, HttpResponse
except ImportError as error:
    raise ImportError("headgate.http.django needs Django: pip install 'headgate[django]'") from error

from headgate.core.decision import Decision
from headgate.errors import InvalidCheck, RateLimited
from headgate.http.django_charge import ViewCharge, charge_from, running_loop, with_fields, with_release
from headgate.http.django_setup import AnyLimits, DjangoRequest, View, current
from headgate.http.limits import NAME, Limits
from headgate.http.problem import refusal
from headgate.http.request_limiter import resolve
from headgate.http.route import (
    Ask,
    LimitOptions,
    QuotaOption,
    RouteLimit,
    is_default_replaced,
    limits_on,
    mark_limited,
)
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.limiter.limiter import Limiter

V = TypeVar("V", bound=View)


class RateLimitMiddleware:
    """Checks every request, and reports limits in response headers.

    Put it first, so that no other middleware runs for refused requests, and every response carries the headers.
    Its options are in the setting `HEADGATE`: the arguments of `Limiter` and of `MiddlewareOptions`, in capitals; and
    `VIEW`, a view that answers refused requests in place of problem details. Functions receive a `DjangoRequest`, and
    may be async under ASGI.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: View) -> None:
        self._get_response = get_response
        self._setup = current()
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
            self._setup.check_async()
            self.process_view = self._process_view_async  # type: ignore[method-assign]
        else:
            self._setup.check_sync()

    def __call__(self, request: HttpRequest) -> Any:
        if self._is_async:
            return self._call_async(request)
        wrapped = DjangoRequest(request)
        request_limiter = self._setup.request_limiter()
        if request_limiter.options.skips(wrapped.path):
            return self._get_response(request)
        request.headgate, allowed = request_limiter.enter(wrapped)
        limits: Limits[Limiter] = request.headgate
        if not allowed:
            return with_fields(limits, self._setup.refuse(request, limits))
        index = len(limits.charged) - 1
        try:
            response = self._get_response(request)
            limits.conclude(response)
            cost = charge_from(request_limiter.options, limits.charged[index], response)
            if cost is not None:
                limits.correct(index, cost)
        except BaseException:
            limits.release()
            raise
        return with_release(limits, request, with_fields(limits, response))

    def process_view(self, request: HttpRequest, view: View, _args: Any, _kwargs: Any) -> Any:
        """Check a request against the defaults, if its view has no limit of its own."""
        defaults = self._defaults(request, view)
        charge = None if defaults is None else ViewCharge.prepare(defaults, request, view)
        return None if charge is None or charge.make() else charge.refuse()

    async def _process_view_async(self, request: HttpRequest, view: View, _args: Any, _kwargs: Any) -> Any:
        defaults = self._defaults(request, view)
        charge = None if defaults is None else await ViewCharge.prepare_async(defaults, request, view)
        return None if charge is None or await charge.make_async() else await resolve(charge.refuse())

    def _defaults(self, request: HttpRequest, view: View) -> RouteLimit | None:
        """Return the default limit, if the view has no limit of its own and the middleware has checked the request."""
        defaults = self._setup.defaults
        if defaults is None or not hasattr(request, NAME):
            return None
        method = getattr(getattr(view, "view_class", None), (request.method or "").lower(), None)
        limits = [*limits_on(view), *limits_on(method)]
        return None if is_default_replaced(limits, request.method) else defaults

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answer a request whose view called a function that `limiter.limit` refused."""
        if not isinstance(error, RateLimited):
            return None
        limits: AnyLimits = getattr(request, NAME, None) or Limits(self._setup.request_limiter().limiter, {})
        limits.add(error.decision, 1, None)
        status, content, body = refusal(limits)
        return HttpResponse(body, status=status, headers=dict(content))

    async def _call_async(self, request: HttpRequest) -> Any:
        wrapped = DjangoRequest(request)
        request_limiter = self._setup.async_request_limiter()
        if request_limiter.options.skips(wrapped.path):
            return await self._get_response(request)
        request.headgate, allowed = await request_limiter.enter(wrapped)
        limits: Limits[AsyncLimiter] = request.headgate
        if not allowed:
            return with_fields(limits, await resolve(self._setup.refuse(request, limits)))
        index = len(limits.charged) - 1
        try:
            response = await self._get_response(request)
            await limits.conclude_async(response)
            cost = charge_from(request_limiter.options, limits.charged[index], response)
            if cost is not None:
                await limits.correct_async(index, cost)
        except BaseException:
            await limits.release_async()
            raise
        return with_release(limits, request, with_fields(limits, response))


def limit(quota: QuotaOption, **options: Unpack[LimitOptions]) -> Callable[[V], V]:
    """Limit a view, sync or async, in addition to the rules. Works with and without the middleware.

    Each client has its own count on each route of the URL configuration, such as `/users/<int:id>/`; all methods share
    it. Several quotas in one notation (`"5/minute; 100/day"`) are all charged or none. The options are those of
    `headgate.http.route.RouteLimit`; functions receive Django's request, and may be async. A limit replaces the
    `DEFAULTS` of the setting, unless `override_defaults` is False. Limit a class with Django's
    `method_decorator(limit("5/minute"), name="dispatch")`.
    """
    route_limit = RouteLimit(quota, **options)

    def decorate(view: V) -> V:
        async def limited_async(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            charge = await ViewCharge.prepare_async(route_limit, request, view)
            if charge is not None and not await charge.make_async():
                return charge.add_fields(await resolve(charge.refuse()))
            try:
                response = await resolve(view(request, *args, **kwargs))
            except BaseException:
                if charge is not None:
                    await charge.fail_async()
                raise
            return response if charge is None else charge.add_fields(await charge.conclude_async(response))

        if _is_async(view):
            wrapped = wraps(view)(limited_async)
            mark_limited(view, wrapped, route_limit)
            return cast("V", wrapped)

        @wraps(view)
        def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if running_loop() is not None:  # the caller awaits what a view returns there
                return limited_async(request, *args, **kwargs)
            charge = ViewCharge.prepare(route_limit, request, view)
            if charge is not None and not charge.make():
                return charge.add_fields(charge.refuse())
            try:
                response = view(request, *args, **kwargs)
            except BaseException:
                if charge is not None:
                    charge.fail()
                raise
            return response if charge is None else charge.add_fields(charge.conclude(response))

        mark_limited(view, limited, route_limit)
        return cast("V", limited)

    return decorate


def charge_request(limit: RouteLimit, request: HttpRequest, *, name: str, key: str | int | None) -> Decision:
    """Check a request against a limit from a thread, for code other than views. The middleware adds the headers.

    A request that is already refused is not charged: the limit only reports how long it would have to wait.
    """
    limits: AnyLimits = getattr(request, NAME, None) or current().limits(request)
    assert not callable(limit.quota)
    return ViewCharge(limit, request, limits, name, Ask(limit.quota, key, 1)).decide()


def limits_of(request: HttpRequest) -> AnyLimits:
    """Return the decisions on a request so far: `request.headgate`, typed. Raises `InvalidCheck` if there are none."""
    limits = getattr(request, NAME, None)
    if isinstance(limits, Limits):
        return limits
    raise InvalidCheck("this request has no limits: its path is skipped, or MIDDLEWARE lacks Headgate's")


def _is_async(view: View) -> bool:
    """Return whether a view is async, or is the `dispatch` of a class with async methods."""
    if iscoroutinefunction(view):
        return True
    owner = getattr(getattr(view, "func", view), "__self__", None)  # as `method_decorator` binds it
    return getattr(view, "__name__", "") == "dispatch" and bool(getattr(type(owner), "view_is_async", False))
