"""Flask: an extension, and a decorator for views.

    headgate = Headgate(app, limiter=Limiter(rules="rules.toml", store="redis://localhost"))

    @app.get("/reports/<int:number>")
    @headgate.limit("5/minute")
    def report(number: int) -> str: ...

What was decided is at `flask.g.headgate`: a `headgate.http.limits.Limits`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, Unpack

try:
    import flask
    from werkzeug.exceptions import HTTPException, ServiceUnavailable, TooManyRequests
except ImportError as error:
    raise ImportError("headgate.http.flask needs Flask: pip install 'headgate[flask]'") from error

from headgate.core.decision import Decision
from headgate.errors import InvalidCheck, InvalidRule, RateLimited
from headgate.http.limits import NAME, Limits
from headgate.http.middleware_options import MiddlewareArguments
from headgate.http.problem import MEDIA_TYPE, problem
from headgate.http.request_limiter import RequestLimiter, limiter_of
from headgate.http.route import (
    TAKEN,
    Ask,
    LimitOptions,
    QuotaOption,
    RouteLimit,
    charge,
    is_default_replaced,
    limits_on,
    mark_limited,
)
from headgate.http.settings import FAULTS, FrameworkSettings, describe_fault
from headgate.http.wsgi import ENVIRON, RateLimitMiddleware, WsgiRequest, released_at_end
from headgate.limiter.limiter import Limiter

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from werkzeug.routing import Rule

PREFIX: Final = "HEADGATE_"
ABOVE: Final = "_headgate_limited"  # an attribute of views that were limited: themselves, and what they became
EXEMPT: Final = "_headgate_exempt"  # an attribute of views, which decorators around them keep
Target = TypeVar("Target", bound=Callable[..., Any] | flask.Blueprint)
OWN: Final = "headgate.own"  # in the environ of requests that rules skip: the decisions of their views' limits


class _Problem(HTTPException):
    """Problem details. Header fields of limits are the middleware's: it adds them to whatever the app answers."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.code = decision.status  # the rule's; error handlers are found by that of the class
        super().__init__(description=problem(decision)["detail"])

    def get_body(self, *_: Any, **__: Any) -> str:
        return json.dumps(problem(self.decision))

    def get_headers(self, *_: Any, **__: Any) -> list[tuple[str, str]]:
        return [("Content-Type", MEDIA_TYPE), ("Cache-Control", "no-store")]


class Refused(_Problem, TooManyRequests):
    """A request that a limit refused. `errorhandler(429)` may answer it in another way; `decision` tells why."""


class Undecided(_Problem, ServiceUnavailable):
    """A request that was refused because the store could not decide: `errorhandler(503)`."""


class Headgate:
    """Limits an app's requests, and tells clients what is left.

    The options are those of `MiddlewareOptions`. Without a limiter, and for options that are not given, the
    app's configuration is asked: `HEADGATE_RULES`, `HEADGATE_STORE`, `HEADGATE_FAILURE_MODE`, `HEADGATE_SKIP` and so
    on. `HEADGATE_ENABLED = False` turns everything off. For an app factory, leave `app` out and call `init_app`.
    """

    def __init__(
        self, app: flask.Flask | None = None, *, limiter: Limiter | None = None, **options: Unpack[MiddlewareArguments]
    ) -> None:
        self._limiter = None if limiter is None else limiter_of(limiter, Limiter)
        self._options = options
        self.exempting = False  # whether any view is exempt: only then is the URL map asked who is
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Limit an app. Raises `InvalidRule`, naming the setting, if its configuration is invalid."""
        if NAME in app.extensions:
            raise InvalidRule(f"app {app.name!r} has Headgate already")
        values = {key[len(PREFIX) :]: value for key, value in app.config.items() if key.startswith(PREFIX)}
        app.extensions[NAME] = None  # for now, and for good when it is not enabled
        if not values.pop("ENABLED", True):
            return
        try:
            settings = FrameworkSettings.read(values, others=("ENABLED",))
        except KeyError as error:
            raise InvalidRule(f"{PREFIX}{error.args[0]}: {error.args[1]}") from None
        options: MiddlewareArguments = {**settings.middleware, **self._options}
        try:
            limiter = self._limiter or Limiter(**settings.limiter)
            middleware = _Middleware(self, app, limiter, options)
        except FAULTS as error:
            name, message = describe_fault(error)
            raise InvalidRule(f"{PREFIX}{name}: {message}") from error
        checked = middleware.request_limiter.options
        if checked.route is None:
            checked.route = middleware.template
        app.extensions[NAME] = _Extension(limiter, middleware.request_limiter)
        app.wsgi_app = middleware  # type: ignore[method-assign]
        app.before_request_funcs.setdefault(None, []).insert(0, _begin)
        app.register_error_handler(RateLimited, _answer_function)

    def limit(self, quota: QuotaOption, **options: Unpack[LimitOptions]) -> Callable[[Target], Target]:
        """Limit a view, sync or async, or all views of a blueprint, besides what the limiter's rules say.

        Each client is counted by itself, for each rule of the URL map and each method: `GET /users/<int:id>` is one.
        Functions have no arguments, as `flask.request` is at hand, and may be async where views may. `quota` may be
        one, that returns the request's quota, or None to let it pass. `key` returns who is counted instead, and `cost`
        what a request costs. Limits of the same `name` count together. With `methods`, requests of others pass; so do
        those for which `exempt_when` returns True. `deduct_when` gets the response, and returns whether the request is
        charged. A limit replaces the `defaults` of `Headgate`; it adds to them if not `override_defaults`. `message` is
        what a refusal says; `failure_mode` decides when the store cannot. It works above the route's decorator
        (`@app.get`) and below it. Several quotas in one notation (`"5/minute; 100/day"`) are charged all or not at all.

        A refused request raises `Refused`.
        """
        limit = RouteLimit(quota, **options)

        def decorate(target: Target) -> Target:
            if isinstance(target, flask.Blueprint):
                target.before_request(lambda: _enter(limit))
                mark_limited(target, target, limit)
                return target
            limited = _limited(target, limit)
            mark_limited(target, limited, limit)
            setattr(target, ABOVE, (target, limited))  # Flask may have the view as it was: see `_begin`
            return limited  # type: ignore[return-value]

        return decorate

    def exempt(self, target: Target) -> Target:
        """Have the requests of a view, or of all views of a blueprint, pass the limiter's rules unseen.

        Limits that a view has of its own still hold.
        """
        setattr(target, EXEMPT, True)
        self.exempting = True
        return target


class _Extension(NamedTuple):
    limiter: Limiter
    request_limiter: RequestLimiter


class _Middleware(RateLimitMiddleware):
    """The WSGI middleware, for one that knows which view a request is for, and has error handlers."""

    knows_routes = True

    def __init__(self, headgate: Headgate, app: flask.Flask, limiter: Limiter, options: MiddlewareArguments) -> None:
        wsgi_app: WSGIApplication = app.wsgi_app
        super().__init__(wsgi_app, limiter=limiter, **options)
        self._headgate = headgate
        self._flask = app

    @property
    def request_limiter(self) -> RequestLimiter:
        return self._request_limiter

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if self._headgate.exempting and self._exempts(environ):
            return self._released(environ, start_response)
        return super().__call__(environ, start_response)

    def _released(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Let a request pass without rules, and release what its view's own limits hold when it is over."""
        own = environ[OWN] = self._request_limiter.limits({})
        return released_at_end(own, lambda: self._app(environ, start_response))

    def template(self, request: WsgiRequest) -> str | None:
        """The rule of the URL map that a request is for: `/users/<int:id>`."""
        found = self._match(request.environ)
        return None if found is None else found.rule

    def _match(self, environ: WSGIEnvironment) -> Rule | None:
        app = self._flask
        try:
            adapter = app.create_url_adapter(app.request_class(environ))
            return None if adapter is None else adapter.match(return_rule=True)[0]
        except HTTPException:  # there is no such route
            return None

    def _exempts(self, environ: WSGIEnvironment) -> bool:
        app, found = self._flask, self._match(environ)
        if found is None:
            return False
        endpoint: str = found.endpoint
        view = app.view_functions.get(endpoint)
        if hasattr(view, EXEMPT) or hasattr(getattr(view, "view_class", None), EXEMPT):
            return True
        names = endpoint.split(".")[:-1]  # of blueprints, one inside the other
        parents = (app.blueprints.get(".".join(names[:depth])) for depth in range(1, len(names) + 1))
        return any(hasattr(blueprint, EXEMPT) for blueprint in parents)

    def _refuse(self, limits: Limits[Limiter], environ: WSGIEnvironment, tell: StartResponse) -> Iterable[bytes]:
        """Let the app answer if it has something to say: error handlers, or functions that see all responses."""
        app = self._flask
        handlers = any(handlers for codes in app.error_handler_spec.values() for handlers in codes.values())
        if handlers or any(app.after_request_funcs.values()):
            return self._app(environ, tell)
        return super()._refuse(limits, environ, tell)


def _begin() -> None:
    """The first thing that an app does with a request."""
    _limit_registered(flask.current_app, flask.request.endpoint)
    limits: Limits[Limiter] | None = flask.request.environ.get(ENVIRON)
    if limits is not None:
        flask.g.headgate = limits
        _pass(limits.charged[-1].decision)
        _meet_defaults()
    else:
        flask.g.pop(NAME, None)  # that of an earlier request, if the app's context is older than this one


def _limit_registered(app: flask.Flask, endpoint: str | None) -> None:
    """Put a view's limit in force where its decorator is above that of the route, which knows the view without it."""
    while endpoint is not None:
        view = app.view_functions.get(endpoint)
        owner, limited = getattr(view, ABOVE, (None, None))
        if view is None or owner is not view or limited is None:  # others have the attribute by functools.wraps
            return
        app.view_functions[endpoint] = limited


def _answer_function(error: RateLimited) -> Any:
    """Answer a request whose view called a function that `limiter.limit` refused."""
    limits: Limits[Limiter] | None = flask.g.get(NAME)
    if limits is not None:
        limits.add(error.decision, 1, None)
        limits.give_back()
    refused = Undecided(error.decision) if error.decision.reason == "fail_closed" else Refused(error.decision)
    return flask.current_app.handle_http_exception(refused)


def _pass(decision: Decision) -> None:
    """Return if a decision allows the request."""
    if not decision.allowed:
        raise Undecided(decision) if decision.reason == "fail_closed" else Refused(decision)


def _limited(view: Callable[..., Any], limit: RouteLimit) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(view):

        @wraps(view)
        async def limited_async(*args: Any, **kwargs: Any) -> Any:
            _enter(limit)  # may block: the event loop of an async view is there for this request alone
            return await view(*args, **kwargs)

        return limited_async

    @wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        _enter(limit)
        return view(*args, **kwargs)

    return limited


def _enter(limit: RouteLimit) -> None:
    """Check a request against the limit of its view. Raises `Refused`."""
    request = flask.request
    if NAME not in flask.current_app.extensions:
        raise InvalidRule(f"app {flask.current_app.name!r} has views with limits, but no Headgate: call init_app(app)")
    extension: _Extension | None = flask.current_app.extensions[NAME]
    if extension is None or not limit.applies(request.method):
        return
    ask = Ask.of(limit, lambda function: flask.current_app.ensure_sync(function)())
    if ask is None:
        return
    limits = _limits(extension)
    name = limit.named(_route(), request.environ.setdefault(TAKEN, []))
    if not limits.is_exempt(extension.limiter):
        _pass(charge(limit, limits, extension.limiter, name, ask))


def _meet_defaults() -> None:
    """Check a request against the quota of routes that have no limit of their own. Raises `Refused`."""
    app, request = flask.current_app, flask.request
    defaults = app.extensions[NAME].request_limiter.options.defaults
    if defaults is None or request.url_rule is None:
        return
    view = app.view_functions.get(request.endpoint or "")
    method = getattr(getattr(view, "view_class", None), request.method.lower(), None)  # of a class of views
    limited = [view, method, *(app.blueprints[name] for name in request.blueprints)]
    if not is_default_replaced([limit for one in limited for limit in limits_on(one)], request.method):
        _enter(defaults)


def current_limits() -> Limits[Limiter]:
    """What was decided on the current request so far: `flask.g.headgate`, with its type. Raises `InvalidCheck` if
    nothing was."""
    limits = flask.g.get(NAME)
    if isinstance(limits, Limits):
        return limits
    raise InvalidCheck("this request has no limits: its view is exempt or its path skipped, or the app has no Headgate")


def _limits(extension: _Extension) -> Limits[Limiter]:
    """Those of this request, of which the middleware tells the client; or new ones, if it has passed unseen."""
    limits: Limits[Limiter] | None = flask.g.get(NAME)
    if limits is None:
        facts = extension.request_limiter.facts(WsgiRequest(flask.request.environ))
        limits = flask.g.headgate = flask.request.environ.get(OWN) or extension.request_limiter.limits(facts)
        limits.facts = facts

        @flask.after_this_request
        def tell(response: flask.Response) -> flask.Response:
            flask.g.headgate.conclude(response)
            response.headers.extend(flask.g.headgate.fields)
            return response

    return limits


def _route() -> str:
    """`GET /users/<int:id>`. HEAD runs the same view as GET, and counts as GET."""
    request, rule = flask.request, flask.request.url_rule
    if rule is None:  # a limit on something else than a view: then the method may be anything, and cannot be trusted
        return "no route"
    method = "GET" if request.method == "HEAD" else request.method
    return f"{method} {rule.host or rule.subdomain or ''}{rule.rule}"
