"""Django's setting `HEADGATE`, checked, and the limiters created from it on first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.asgi import ASGIRequest
from django.core.signals import setting_changed
from django.http import HttpRequest, HttpResponse
from django.urls import Resolver404, resolve
from django.utils.module_loading import import_string

from headgate.core.fork import renew_in_children
from headgate.http.limits import Limits
from headgate.http.problem import refusal
from headgate.http.request_limiter import AsyncRequestLimiter, RequestLimiter
from headgate.http.route import RouteLimit
from headgate.http.settings import FAULTS, FrameworkSettings, describe_fault
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.limiter.limiter import Limiter
from headgate.stores.urls import open_store

SETTING: Final = "HEADGATE"
FUNCTIONS: Final = (  # may be given as dotted paths
    "IDENTITY",
    "IDENTIFY",
    "COST",
    "VIEW",
    "EXEMPT_WHEN",
    "DEDUCT_WHEN",
    "ROUTE",
    "ON_REFUSED",
)

T = TypeVar("T")
View = Callable[..., Any]
AnyLimits = Limits[Limiter] | Limits[AsyncLimiter]


class DjangoRequest:
    """A request as identity and cost functions see it, and Django's own `request`."""

    __slots__ = ("request",)

    def __init__(self, request: HttpRequest) -> None:
        self.request = request

    @property
    def method(self) -> str:
        return self.request.method or "GET"

    @property
    def path(self) -> str:
        path: str = self.request.path_info
        return path

    @property
    def peer(self) -> str | None:
        return self.request.META.get("REMOTE_ADDR") or None

    def header(self, name: str) -> str | None:
        value: str | None = self.request.headers.get(name)
        return value


class Setup:
    """The setting `HEADGATE`, checked, and the limiters created from it on first use.

    Raises `ImproperlyConfigured`, which names the key.
    """

    def __init__(self, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise ImproperlyConfigured(f"{SETTING}: must be a dictionary, got {values!r}")
        values = {key: _import_named(key, value) if key in FUNCTIONS else value for key, value in values.items()}
        try:
            self._settings = FrameworkSettings.read(values, others=("VIEW",))
        except KeyError as error:
            raise ImproperlyConfigured(f"{SETTING}: {error.args[0]!r} {error.args[1]}") from None
        self._view: View | None = values.get("VIEW")
        if self._view is not None and not callable(self._view):
            raise ImproperlyConfigured(f"{SETTING}['VIEW']: must be a view, got {self._view!r}")
        self._lock = Lock()
        self._request_limiter: RequestLimiter | None = None
        self._async_request_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncRequestLimiter] = (
            WeakKeyDictionary()
        )
        defaults = self._settings.middleware.get("defaults")
        self.defaults = None if defaults is None else _make_or_explain(lambda: RouteLimit(defaults))
        if self._settings.middleware.get("route") is None:
            self._settings.middleware["route"] = _template
        self._checked: AsyncRequestLimiter | None = None  # created before there was an event loop, and not used yet
        store = self._settings.limiter.get("store", "memory://")
        if isinstance(store, str) and store.startswith("memory:"):  # WSGI and ASGI share one
            opened = _make_or_explain(lambda: open_store(store, self._settings.limiter.get("clock")))
            self._settings.limiter["store"] = opened
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child, where its holder does not exist."""
        self._lock = Lock()

    def check_sync(self) -> None:
        """Create the limiter now, so that an invalid setting fails at startup."""
        self.request_limiter()

    def check_async(self) -> None:
        """Create the async limiter now, so that an invalid setting fails at startup."""
        if self._checked is None:
            self._checked = self._make_async()

    def request_limiter(self) -> RequestLimiter:
        """Return the one limiter for threads."""
        with self._lock:
            if self._request_limiter is None:
                limiter, middleware = self._settings
                self._request_limiter = _make_or_explain(lambda: RequestLimiter(Limiter(**limiter), **middleware))
            return self._request_limiter

    def async_request_limiter(self) -> AsyncRequestLimiter:
        """Return the running event loop's limiter: connections belong to one loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            request_limiter = self._async_request_limiters.get(loop)
            if request_limiter is None:
                request_limiter, self._checked = self._checked or self._make_async(), None
                self._async_request_limiters[loop] = request_limiter
            return request_limiter

    def limits(self, request: HttpRequest) -> Limits[Limiter]:
        """Return the limits of a request that did not pass through the middleware."""
        request_limiter = self.request_limiter()
        return request_limiter.limits(request_limiter.facts(DjangoRequest(request)))

    async def limits_async(self, request: HttpRequest) -> AnyLimits:
        """Return the limits of a request to an async view. Under WSGI, an event loop lasts for one request: use
        threads."""
        if not isinstance(request, ASGIRequest):
            return self.limits(request)
        request_limiter = self.async_request_limiter()
        return request_limiter.limits(await request_limiter.facts(DjangoRequest(request)))

    def refuse(self, request: HttpRequest, limits: AnyLimits) -> Any:
        """Return the response to a refused request, without the limits' fields; an awaitable if `VIEW` is async."""
        if self._view is not None:
            return self._view(request)
        status, content, body = refusal(limits)
        return HttpResponse(body, status=status, headers=dict(content))

    def _make_async(self) -> AsyncRequestLimiter:
        limiter, middleware = self._settings
        return _make_or_explain(lambda: AsyncRequestLimiter(AsyncLimiter(**limiter), **middleware))


class _Project:
    """Holder of the project's setup, created on first use."""

    def __init__(self) -> None:
        self._setup: Setup | None = None
        self.reset_after_fork()
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child, where its holder does not exist."""
        self._lock = Lock()

    def setup(self) -> Setup:
        with self._lock:
            if self._setup is None:
                self._setup = Setup(getattr(settings, SETTING, {}))
            return self._setup

    def forget(self) -> None:
        with self._lock:
            self._setup = None


_project = _Project()


def current() -> Setup:
    """Return the project's setup."""
    return _project.setup()


def _forget_changed(*, setting: str, **_: Any) -> None:
    if setting == SETTING:  # a test's override_settings
        _project.forget()


setting_changed.connect(_forget_changed)


def _template(request: DjangoRequest) -> str | None:
    """Return the route of a request, before Django resolves it; None if no route matches."""
    try:
        return f"/{resolve(request.path, getattr(request.request, 'urlconf', None)).route}"
    except Resolver404:
        return None


def _import_named(key: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return import_string(value)
    except ImportError as error:
        raise ImproperlyConfigured(f"{SETTING}[{key!r}]: {error}") from error


def _make_or_explain(make: Callable[[], T]) -> T:
    try:
        return make()
    except FAULTS as error:
        key, message = describe_fault(error)
        raise ImproperlyConfigured(f"{SETTING}[{key!r}]: {message}") from error
