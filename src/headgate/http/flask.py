"""Flask: an extension, and a decorator for views.

    headgate = Headgate(app, limiter=Limiter(rules="rules.toml", store="redis://localhost"))

    @app.get("/reports/<int:number>")
    @headgate.limit("5/minute")
    def report(number: int) -> str: ...

The decisions are at `flask.g.headgate`, a `headgate.http.limits.Limits`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

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
ABOVE: Final = "_headgate_limited"  # an attribute of limited views: the original view, and the limited one
EXEMPT: Final = "_headgate_exempt"  # an attribute of views; decorators around them copy it
Target = TypeVar("Target", bound=Callable[..., Any] | flask.Blueprint)
OWN: Final = "headgate.own"  # in the environ of requests without rules: the decisions of their views' limits


class _Problem(HTTPException):
    """Problem details. The middleware adds the limits' header fields to every response of the app."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.code = decision.status  # the rule's status; Flask finds error handlers by the class's
        super().__init__(description=problem(decision)["detail"])

    def get_body(self, *_: Any, **__: Any) -> str:
        return json.dumps(problem(self.decision))

    def get_headers(self, *_: Any, **__: Any) -> list[tuple[str, str]]:
        return [("Content-Type", MEDIA_TYPE), ("Cache-Control", "no-store")]


class Refused(_Problem, TooManyRequests):
    """A limit refused the request. `errorhandler(429)` can replace the response; `decision` has the reason."""


class Undecided(_Problem, ServiceUnavailable):
    """The request was refused because the store failed. `errorhandler(503)` can replace the response."""


class Headgate:
    """Limits an app's requests, and reports limits in response headers.

    The options are those of `MiddlewareOptions`. A missing limiter and missing options come from
    the app's configuration: `HEADGATE_RULES`, `HEADGATE_STORE`, `HEADGATE_FAILURE_MODE`, `HEADGATE_SKIP` and so on.
    `HEADGATE_ENABLED = False` turns everything off. For an app factory, leave `app` out and call `init_app`.
    """

    def __init__(
        self, app: flask.Flask | None = None, *, limiter: Limiter | None = None, **options: Unpack[MiddlewareArguments]
    ) -> None:
        self._limiter = None if limiter is None else limiter_of(limiter, Limiter)
        self._options = options
        self.exempting = False  # whether any view is exempt: only then are requests matched against the URL map
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Limit an app. Raises `InvalidRule`, naming the setting, if its configuration is invalid."""
        if NAME in app.extensions:
            raise InvalidRule(f"app {app.name!r} has Headgate already")
        values = {key[len(PREFIX) :]: value for key, value in app.config.items() if key.startswith(PREFIX)}
        app.extensions[NAME] = None  # stays None if Headgate is not enabled
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
        app.extensions[NAME] = middleware.request_limiter
        app.wsgi_app = middleware  # type: ignore[method-assign]
        app.before_request_funcs.setdefault(None, []).insert(0, _begin)
        app.register_error_handler(RateLimited, _answer_function)

    def limit(self, quota: QuotaOption, **options: Unpack[LimitOptions]) -> Callable[[Target], Target]:
        """Limit a view, sync or async, or all views of a blueprint, in addition to the limiter's rules.

        Each client has its own count for each rule of the URL map and each method, such as `GET /users/<int:id>`.
        Several quotas in one notation (`"5/minute; 100/day"`) are all charged or none. The options are those of
        `headgate.http.route.RouteLimit`. Their functions take no arguments: they read `flask.request`. They may be
        async where views may. Put the decorator above or below the route's (`@app.get`).

        A refused request raises `Refused`.
        """
        limit = RouteLimit(quota, **options)

        def decorate(target: Target) -> Target:
            if isinstance(target, flask.Blueprint):
                target.before_request(lambda: _enter(limit))
                mark_limited(target, target, limit)
                return target
            limited = _limit_view(target, limit)
            mark_limited(target, limited, limit)
            setattr(target, ABOVE, (target, limited))  # Flask may have registered the original view: see `_begin`
            return limited  # type: ignore[return-value]

        return decorate

    def exempt(self, target: Target) -> Target:
        """Exempt a view, or all views of a blueprint, from the limiter's rules.

        A view's own limits still apply.
        """
        setattr(target, EXEMPT, True)
        self.exempting = True
        return target


class _Middleware(RateLimitMiddleware):
    """The WSGI middleware, with Flask's URL map and error handlers."""

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
            return self._call_exempt(environ, start_response)
        return super().__call__(environ, start_response)

    def _call_exempt(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Forward a request without checking rules, and release the slots of its view's own limits when it ends."""
        own = environ[OWN] = self._request_limiter.limits({})
        return released_at_end(own, lambda: self._app(environ, start_response))

    def template(self, request: WsgiRequest) -> str | None:
        """Return the rule of the URL map that matches a request, as `/users/<int:id>`."""
        found = self._match(request.environ)
        return None if found is None else found.rule

    def _match(self, environ: WSGIEnvironment) -> Rule | None:
        app = self._flask
        try:
            adapter = app.create_url_adapter(app.request_class(environ))
            return None if adapter is None else adapter.match(return_rule=True)[0]
        except HTTPException:  # no route matches
            return None

    def _exempts(self, environ: WSGIEnvironment) -> bool:
        app, found = self._flask, self._match(environ)
        if found is None:
            return False
        endpoint: str = found.endpoint
        view = app.view_functions.get(endpoint)
        if hasattr(view, EXEMPT) or hasattr(getattr(view, "view_class", None), EXEMPT):
            return True
        names = endpoint.split(".")[:-1]  # of nested blueprints
        parents = (app.blueprints.get(".".join(names[:depth])) for depth in range(1, len(names) + 1))
        return any(hasattr(blueprint, EXEMPT) for blueprint in parents)

    def _refuse(self, limits: Limits[Limiter], environ: WSGIEnvironment, tell: StartResponse) -> Iterable[bytes]:
        """Let the app answer if it has error handlers or `after_request` functions; else send problem details."""
        app = self._flask
        handlers = any(handlers for codes in app.error_handler_spec.values() for handlers in codes.values())
        if handlers or any(app.after_request_funcs.values()):
            return self._app(environ, tell)
        return super()._refuse(limits, environ, tell)


def _begin() -> None:
    """Run before all other functions of the app: raise if the request is refused, and check the defaults."""
    _limit_registered(flask.current_app, flask.request.endpoint)
    limits: Limits[Limiter] | None = flask.request.environ.get(ENVIRON)
    if limits is not None:
        flask.g.headgate = limits
        _pass(limits.charged[-1].decision)
        _meet_defaults()
    else:
        flask.g.pop(NAME, None)  # an earlier request's, if the app's context outlives requests


def _limit_registered(app: flask.Flask, endpoint: str | None) -> None:
    """Replace a view in Flask's registry by its limited one, if `limit` was above the route's decorator."""
    while endpoint is not None:
        view = app.view_functions.get(endpoint)
        owner, limited = getattr(view, ABOVE, (None, None))
        if limited is None or owner is not view:  # functools.wraps copies the attribute to other functions
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
    """Raise `Refused` or `Undecided` unless the decision allows the request."""
    if not decision.allowed:
        raise Undecided(decision) if decision.reason == "fail_closed" else Refused(decision)


def _limit_view(view: Callable[..., Any], limit: RouteLimit) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(view):

        @wraps(view)
        async def limited_async(*args: Any, **kwargs: Any) -> Any:
            _enter(limit)  # may block: an async view's event loop serves this request only
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
    request_limiter: RequestLimiter | None = flask.current_app.extensions[NAME]
    if request_limiter is None or not limit.applies(request.method):
        return
    ask = Ask.of(limit, lambda function: flask.current_app.ensure_sync(function)())
    if ask is None:
        return
    limits = _limits(request_limiter)
    name = limit.name_for(_route(), request.environ.setdefault(TAKEN, []))
    if not limits.is_exempt(request_limiter.limiter):
        _pass(charge(limit, limits, request_limiter.limiter, name, ask))


def _meet_defaults() -> None:
    """Check a request against the default quota, if its view has no limit of its own. Raises `Refused`."""
    app, request = flask.current_app, flask.request
    defaults = app.extensions[NAME].options.defaults
    if defaults is None or request.url_rule is None:
        return
    view = app.view_functions.get(request.endpoint or "")
    method = getattr(getattr(view, "view_class", None), request.method.lower(), None)  # of a class-based view
    limited = [view, method, *(app.blueprints[name] for name in request.blueprints)]
    if not is_default_replaced([limit for one in limited for limit in limits_on(one)], request.method):
        _enter(defaults)


def current_limits() -> Limits[Limiter]:
    """Return the decisions on the current request so far: `flask.g.headgate`, typed. Raises `InvalidCheck` if there are
    none."""
    limits = flask.g.get(NAME)
    if isinstance(limits, Limits):
        return limits
    raise InvalidCheck("this request has no limits: its view is exempt or its path skipped, or the app has no Headgate")


def _limits(request_limiter: RequestLimiter) -> Limits[Limiter]:
    """Return the current request's limits. Create them if the middleware did not check it, and add the headers."""
    limits: Limits[Limiter] | None = flask.g.get(NAME)
    if limits is None:
        facts = request_limiter.facts(WsgiRequest(flask.request.environ))
        limits = flask.g.headgate = flask.request.environ.get(OWN) or request_limiter.limits(facts)
        limits.facts = facts

        @flask.after_this_request
        def add_fields(response: flask.Response) -> flask.Response:
            flask.g.headgate.conclude(response)
            response.headers.extend(flask.g.headgate.fields)
            return response

    return limits


def _route() -> str:
    """Return the route, as `GET /users/<int:id>`. HEAD counts as GET, whose view it runs."""
    request, rule = flask.request, flask.request.url_rule
    if rule is None:  # no view matched: the method may be anything, and cannot be trusted
        return "no route"
    method = "GET" if request.method == "HEAD" else request.method
    return f"{method} {rule.host or rule.subdomain or ''}{rule.rule}"
