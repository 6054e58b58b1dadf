"""What a limit of a route and the middleware may be told: the same in FastAPI, Starlette, Flask and Django."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Protocol
from uuid import UUID

import pytest

import tests.unit.http.django_project  # first: it makes the settings

import flask  # isort: skip
import httpx
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.test.utils import override_settings
from django.urls import clear_url_caches, path
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from headgate import AsyncLimiter, Decision, InvalidRule, Limiter, Quota, Rule
from headgate.http import asgi as asgi_middleware
from headgate.http import django as for_django
from headgate.http import fastapi as for_fastapi
from headgate.http import starlette as for_starlette
from headgate.http import wsgi as wsgi_middleware
from headgate.http.flask import Headgate, current_limits
from headgate.rules import Snapshot
from headgate.rules.exemptions import Exemption
from headgate.testing import FakeClock

project = tests.unit.http.django_project
Limit = Callable[..., Any]


class Answer:
    def __init__(self, status: int, headers: Any, text: str) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.text = text

    @property
    def remaining(self) -> int:
        return int(self.headers["x-ratelimit-remaining"])

    @property
    def policies(self) -> list[str]:
        policies = self.headers.get("ratelimit-policy", "")
        return sorted(item.split(";")[0].strip('"') for item in policies.split(", ") if item)


class Framework(Protocol):
    """An app with the route `/users/{id}`, whose answers have the status that `?status=` asks for."""

    def build(self, rules: Any = (), *, limited: Any = None, limiter: Any = None, **options: Any) -> None:
        """Make the app. `limited` is what its route's limit is given: a quota, and options."""
        ...

    def get(self, path: str, **headers: str) -> Answer: ...

    def function(self, of_headers: Callable[[Any], Any], *, is_async: bool = False) -> Callable[..., Any]:
        """A function of the request as the framework calls it."""
        ...

    def remaining(self, request: Any) -> int: ...


def asgi(app: Any, path: str, headers: dict[str, str]) -> Answer:
    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=("192.0.2.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            return await http.get(path, headers=headers)

    response = asyncio.run(get())
    return Answer(response.status_code, response.headers, response.text)


class OfStarlette:
    limiter_class: Any = AsyncLimiter

    def build(self, rules: Any = (), *, limited: Any = None, limiter: Any = None, **options: Any) -> None:
        def user(request: Request) -> PlainTextResponse:
            text = str(for_starlette.limits_of(request).decision.remaining)
            return PlainTextResponse(text, int(request.query_params.get("status", 200)))

        endpoint: Any = user
        for quota, its in limited or ():
            endpoint = for_starlette.limit(quota, **its)(endpoint)
        inner = [Route("/{number}", endpoint)]
        self.app = Starlette(routes=[Mount("/users", routes=inner), Route("/plain", lambda _: PlainTextResponse(""))])
        for_starlette.install(self.app, limiter=limiter or AsyncLimiter(list(rules), clock=FakeClock(0)), **options)

    def get(self, path: str, **headers: str) -> Answer:
        return asgi(self.app, path, headers)

    def function(self, of_headers: Callable[[Any], Any], *, is_async: bool = False) -> Callable[..., Any]:
        async def asked(request: Request) -> Any:
            await asyncio.sleep(0)
            return of_headers(request.headers)

        return asked if is_async else lambda request: of_headers(request.headers)


class OfFastApi(OfStarlette):
    def build(self, rules: Any = (), *, limited: Any = None, limiter: Any = None, **options: Any) -> None:
        app = self.app = FastAPI()
        for_fastapi.install(app, limiter=limiter or AsyncLimiter(list(rules), clock=FakeClock(0)), **options)
        limits = [Depends(for_fastapi.limit(quota, **its)) for quota, its in limited or ()]

        @app.get("/users/{number}", dependencies=limits)
        async def user(number: int, request: Request, status: int = 200) -> PlainTextResponse:
            return PlainTextResponse(str(for_fastapi.limits_of(request).decision.remaining), status)

        @app.get("/plain")
        def plain() -> None: ...


class OfFlask:
    limiter_class: Any = Limiter

    def build(self, rules: Any = (), *, limited: Any = None, limiter: Any = None, **options: Any) -> None:
        app = self.app = flask.Flask(__name__)
        headgate = Headgate(app, limiter=limiter or Limiter(list(rules), clock=FakeClock(0)), **options)

        def user(number: int) -> tuple[str, int]:
            return str(current_limits().decision.remaining), int(flask.request.args.get("status", 200))

        view: Any = user
        for quota, its in limited or ():
            view = headgate.limit(quota, **its)(view)
        app.get("/users/<int:number>")(view)
        app.get("/plain")(lambda: "")

    def get(self, path: str, **headers: str) -> Answer:
        response = self.app.test_client().get(path, headers=headers)
        return Answer(response.status_code, dict(response.headers), response.text)

    def function(self, of_headers: Callable[[Any], Any], *, is_async: bool = False) -> Callable[..., Any]:
        async def asked() -> Any:
            return of_headers(flask.request.headers)

        return asked if is_async else lambda *_: of_headers(flask.request.headers)


class OfDjango:
    limiter_class: Any = Limiter

    def __init__(self, world: str) -> None:
        self.world = world
        self.settings: Any = None

    def build(self, rules: Any = (), *, limited: Any = None, **options: Any) -> None:
        def user(request: HttpRequest, number: int) -> HttpResponse:
            text = str(for_django.limits_of(request).decision.remaining)
            return HttpResponse(text, status=int(request.GET.get("status", "200")))

        view: Any = user
        for quota, its in limited or ():
            view = for_django.limit(quota, **its)(view)
        project.urlpatterns[:] = [path("users/<int:number>", view), path("plain", lambda _: HttpResponse())]
        clear_url_caches()
        settings = {name.upper(): value for name, value in options.items()}
        self.settings = override_settings(HEADGATE={"CLOCK": FakeClock(0), "RULES": rules or [], **settings})
        self.settings.enable()

    def get(self, path: str, **headers: str) -> Answer:
        if self.world == "wsgi":
            response: Any = Client(raise_request_exception=True).get(path, headers=headers)
        else:
            response = asyncio.run(AsyncClient(raise_request_exception=True).get(path, headers=headers))
        return Answer(response.status_code, response.headers, response.content.decode())

    def function(self, of_headers: Callable[[Any], Any], *, is_async: bool = False) -> Callable[..., Any]:
        async def asked(request: HttpRequest) -> Any:
            await asyncio.sleep(0)
            return of_headers(request.headers)

        return asked if is_async else lambda request: of_headers(request.headers)


@pytest.fixture(params=["starlette", "fastapi", "flask", "django", "django-async"])
def web(request: pytest.FixtureRequest) -> Iterator[Any]:
    kinds: dict[str, Callable[[], Any]] = {
        "starlette": OfStarlette,
        "fastapi": OfFastApi,
        "flask": OfFlask,
        "django": lambda: OfDjango("wsgi"),
        "django-async": lambda: OfDjango("asgi"),
    }
    made = kinds[request.param]()
    yield made
    if getattr(made, "settings", None) is not None:
        made.settings.disable()
        project.urlpatterns.clear()


def statuses(web: Any, *paths: str, **headers: str) -> list[int]:
    return [web.get(path, **headers).status for path in paths]


USER = ("/users/1", "/users/2", "/users/3")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_quota_may_be_a_function_of_the_request(web: Any, is_async: bool) -> None:
    quotas = {"free": "1/minute", "paid": Quota(2, "1m"), "staff": None}
    quota = web.function(lambda headers: quotas[headers["x-plan"]], is_async=is_async)
    key = web.function(lambda headers: headers["x-plan"], is_async=is_async)
    web.build(limited=[(quota, {"key": key})])
    assert statuses(web, *USER, **{"x-plan": "free"}) == [200, 429, 429]
    assert statuses(web, *USER, **{"x-plan": "paid"}) == [200, 200, 429]
    assert web.get("/users/4", **{"x-plan": "paid"}).headers["x-ratelimit-limit"] == "2"


def test_a_client_whose_quota_grows_keeps_its_count_and_other_windows_count_apart(web: Any) -> None:
    quota = web.function(lambda headers: headers["x-quota"])
    web.build(limited=[(quota, {"key": web.function(lambda _: UUID(int=7))})])
    assert web.get("/users/1", **{"x-quota": "2/minute"}).remaining == 1
    assert web.get("/users/1", **{"x-quota": "10/minute"}).remaining == 8
    assert web.get("/users/1", **{"x-quota": "10/hour"}).remaining == 9
    assert web.get("/users/1", **{"x-quota": "10/minute"}).remaining == 7


@pytest.mark.parametrize("is_async", [False, True])
def test_requests_may_be_exempt_from_a_limit(web: Any, is_async: bool) -> None:
    exempt_when = web.function(lambda headers: "x-internal" in headers, is_async=is_async)
    web.build(limited=[("1/minute", {"exempt_when": exempt_when})])
    assert statuses(web, *USER) == [200, 429, 429]
    assert statuses(web, "/plain", "/plain", **{"x-internal": "1"}) == [200, 200]


def test_requests_may_be_exempt_from_everything(web: Any) -> None:
    rules = [Rule(id="all", quota="1/minute", dimension="global")]
    exempt_when = web_request(web, lambda headers: headers.get("x-internal") == "1")
    web.build(rules, exempt_when=exempt_when, defaults="1/minute", limited=[("1/minute", {})])
    assert statuses(web, "/plain", "/plain") == [200, 429]
    assert statuses(web, "/plain", "/plain", *USER, **{"x-internal": "1"}) == [200] * 5
    assert web.get("/users/1", **{"x-internal": "1"}).text == "0"  # there is a decision, which the view may read


def web_request(web: Any, of_headers: Callable[[dict[str, str]], Any]) -> Callable[..., Any]:
    """A function of the request as middleware calls it, the same in all frameworks."""
    return lambda request: of_headers({"x-internal": request.header("x-internal")})


def test_only_some_responses_are_charged(web: Any) -> None:
    web.build(limited=[("2/minute", {"deduct_when": lambda response: response.status_code == 401})])
    good = [web.get("/users/1") for _ in range(3)]
    assert [(one.status, one.remaining) for one in good] == [(200, 2)] * 3
    assert [web.get("/users/1?status=401").remaining for _ in range(2)] == [1, 0]
    assert statuses(web, "/users/1", "/users/1?status=401") == [429, 429]


def test_the_rules_charge_only_some_responses(web: Any) -> None:
    rules = [Rule(id="failures", quota="2/minute", dimension="ip")]
    web.build(rules, deduct_when=lambda response: response.status_code >= 400)
    assert [web.get("/users/1").remaining for _ in range(3)] == [2, 2, 2]
    assert [web.get("/users/1?status=404").status for _ in range(3)] == [404, 404, 429]


def test_without_a_rule_there_is_nothing_to_give_back(web: Any) -> None:
    web.build([Rule(id="other", quota="1/minute", dimension="tenant")], deduct_when=lambda _: False)
    assert statuses(web, "/users/1", "/users/1") == [200, 200]


def test_routes_have_the_defaults_unless_they_have_limits_of_their_own(web: Any) -> None:
    web.build(defaults="1/minute")
    assert statuses(web, *USER) == [200, 429, 429]  # by the route, and not by the path
    assert statuses(web, "/plain", "/plain", "/missing", "/missing") == [200, 429, 404, 404]


def test_a_limit_replaces_the_defaults(web: Any) -> None:
    web.build(defaults="1/minute", limited=[("2/minute", {})])
    assert statuses(web, *USER) == [200, 200, 429]
    assert statuses(web, "/plain", "/plain") == [200, 429]


def test_a_limit_adds_to_the_defaults(web: Any) -> None:
    web.build(defaults="5/hour", limited=[("2/minute", {"override_defaults": False})])
    first = web.get("/users/1")
    assert len(first.policies) == 2
    assert statuses(web, "/users/2", "/users/3") == [200, 429]


def test_methods_that_a_limit_is_not_for_have_the_defaults(web: Any) -> None:
    web.build(defaults="1/minute", limited=[("9/minute", {"methods": ["POST"]})])
    assert statuses(web, *USER) == [200, 429, 429]


def test_rules_count_by_route_and_never_by_path(web: Any) -> None:
    rules = [Rule(id="each", quota="2/minute", dimension="ip+route")]
    web.build(rules)
    assert statuses(web, *USER) == [200, 200, 429]
    assert statuses(web, "/plain", "/plain", "/plain") == [200, 200, 429]
    assert statuses(web, "/none/1", "/none/2", "/none/3") == [404, 404, 429]  # where no route leads: one bucket


def test_the_hook_receives_refusals_of_rules_and_of_routes(web: Any) -> None:
    refused: list[tuple[Decision, dict[str, str]]] = []

    def on_refused(decision: Decision, facts: Any) -> None:
        refused.append((decision, dict(facts)))
        raise RuntimeError("a hook that fails changes nothing")

    rules = [Rule(id="all", quota="2/minute", dimension="ip")]
    options: dict[str, Any] = {"on_refused": on_refused}
    if not isinstance(web, OfDjango):  # which makes its limiter from settings
        options = {"limiter": web.limiter_class(rules, clock=FakeClock(0), on_refused=on_refused)}
    web.build(rules, limited=[("1/minute", {"name": "own"})], **options)
    assert statuses(web, "/users/1", "/users/1", "/plain", "/plain") == [200, 429, 200, 429]
    assert [decision.rule for decision, _ in refused] == ["own", "all"]
    assert [facts["endpoint"] for _, facts in refused] == ["/users/1", "/plain"]
    assert all(facts["ip"] for _, facts in refused)


@pytest.mark.parametrize(
    ("style", "present", "missing"),
    [
        ("both", ("x-ratelimit-limit", "ratelimit"), ()),
        ("ietf", ("ratelimit", "ratelimit-policy"), ("x-ratelimit-limit", "x-ratelimit-reset")),
        ("x", ("x-ratelimit-limit", "x-ratelimit-reset"), ("ratelimit", "ratelimit-policy")),
        ("off", (), ("x-ratelimit-limit", "x-ratelimit-reset", "ratelimit", "ratelimit-policy")),
    ],
)
def test_header_fields_are_chosen(web: Any, style: str, present: tuple[str, ...], missing: tuple[str, ...]) -> None:
    web.build([Rule(id="all", quota="2/minute", dimension="ip")], limited=[("1/minute", {})], headers=style)
    for answer in (web.get("/users/1"), web.get("/users/1"), web.get("/plain")):
        assert set(present) <= set(answer.headers)
        assert not set(missing) & set(answer.headers)
        assert ("retry-after" in answer.headers) == (answer.status == 429)


def test_middleware_that_cannot_know_routes_says_so() -> None:
    def wsgi(environ: Any, start_response: Any) -> list[bytes]:
        return []

    with pytest.raises(InvalidRule, match=r"defaults: needs a framework.*flask"):
        wsgi_middleware.RateLimitMiddleware(wsgi, limiter=Limiter([]), defaults="1/minute")

    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    middleware = asgi_middleware.RateLimitMiddleware(app, limiter=AsyncLimiter([]), defaults="1/minute")
    with pytest.raises(InvalidRule, match=r"the routes of this app are not known.*route="):
        asgi(middleware, "/", {})


def test_a_function_tells_the_route_where_no_framework_does(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("")(scope, receive, send)

    def limited(**options: Any) -> Any:
        rules = [Rule(id="each", quota="1/minute", dimension="ip+route")]
        return asgi_middleware.RateLimitMiddleware(app, limiter=AsyncLimiter(rules, clock=FakeClock(0)), **options)

    told = limited(route=lambda request: request.path[:2])
    assert [asgi(told, path, {}).status for path in ("/a1", "/b1", "/a2")] == [200, 200, 429]
    untold = limited()
    assert [asgi(untold, path, {}).status for path in ("/a1", "/b1")] == [200, 429]
    assert caplog.text.count("the routes of this app are not known") == 1


def test_what_was_decided_has_a_type(web: Any) -> None:
    web.build(limited=[("5/minute", {})])
    assert web.get("/users/1").text == "4"


def test_exempt_clients_are_exempt_from_limits_of_routes_and_defaults(web: Any) -> None:
    exemptions = [Exemption(type="ip", value=address) for address in ("127.0.0.1", "192.0.2.1")]
    rules = Snapshot([Rule(id="all", quota="1/minute", dimension="ip")], exemptions=exemptions)
    options: dict[str, Any] = {"rules": rules}
    if not isinstance(web, OfDjango):
        options = {"limiter": web.limiter_class(rules, clock=FakeClock(0))}
    web.build(limited=[("1/minute", {})], defaults="1/minute", **options)
    assert statuses(web, *USER, "/plain", "/plain") == [200] * 5


@pytest.mark.parametrize(
    "limit",
    [for_fastapi.limit, for_fastapi.limit_messages, for_starlette.limit, Headgate().limit, for_django.limit],
    ids=["fastapi", "messages", "starlette", "flask", "django"],
)
def test_the_options_of_other_limiters_are_an_error_that_names_ours(limit: Limit) -> None:
    """slowapi and Flask-Limiter have `key_func`, which migrants type here too."""
    for option, hint in (
        ("key_func", "here it is key="),
        ("error_message", "here it is message="),
        ("scope", "here it is name="),
        ("methodes", "did you mean 'methods'"),
    ):
        with pytest.raises(TypeError, match=rf"^limit: {option}: unknown option; {hint}"):
            limit("5/minute", **{option: "x"})


@pytest.mark.parametrize("limit", [for_fastapi.limit, for_fastapi.limit_messages])
def test_fastapi_says_that_a_limit_must_be_called(limit: Any) -> None:
    """FastAPI's own error spoke of the type of a response field."""
    complaint = (
        rf"^{limit.__name__} is not a dependency itself: call it, as in Depends\({limit.__name__}\('5/minute'\)\)"
    )
    with pytest.raises(InvalidRule, match=complaint):
        FastAPI().get("/", dependencies=[Depends(limit)])(lambda: None)
    with pytest.raises(InvalidRule, match=complaint):
        FastAPI(dependencies=[Depends(limit)]).get("/")(lambda: None)
