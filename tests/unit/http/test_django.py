"""Middleware and decorator for Django, and the throttle for REST framework."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import tests.unit.http.django_project  # first: it makes the settings

from django.core.exceptions import ImproperlyConfigured  # isort: skip
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.test.utils import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.settings import api_settings
from rest_framework.views import APIView

from headgate import Limiter, Rule
from headgate.http import django_setup as module
from headgate.http.django import RateLimitMiddleware, limit
from headgate.http.django_setup import Setup
from headgate.http.drf import HeadgateThrottle
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.forking import in_child

project = tests.unit.http.django_project
MIDDLEWARE = "headgate.http.django.RateLimitMiddleware"


class Site:
    """Views under their paths, and a client in one of Django's worlds."""

    def __init__(self, world: str) -> None:
        self.world = world
        self.clock = FakeClock(1_700_000_000)

    def __call__(self, *, middleware: bool = True, **options: Any) -> Any:
        """Settings to use as a context manager."""
        options = {"CLOCK": self.clock, **options}
        return override_settings(MIDDLEWARE=[MIDDLEWARE] if middleware else [], HEADGATE=options)

    def get(self, path: str, *, method: str = "GET", **headers: str) -> Any:
        if self.world == "wsgi":
            return Client(raise_request_exception=False).generic(method, path, headers=headers)
        client = AsyncClient(raise_request_exception=False)
        return asyncio.run(client.generic(method, path, headers=headers))

    def statuses(self, *paths: str, method: str = "GET", **headers: str) -> list[int]:
        return [self.get(path, method=method, **headers).status_code for path in paths]


@pytest.fixture(params=["wsgi", "asgi"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    yield Site(request.param)
    project.urlpatterns.clear()


def route(route: str, view: Any) -> None:
    from django.urls import clear_url_caches

    project.urlpatterns.append(path(route, view))
    clear_url_caches()


def hello(request: HttpRequest, **_: Any) -> HttpResponse:
    limits = getattr(request, "headgate", None)
    return HttpResponse("unseen" if limits is None else f"{limits.decision.remaining} left")


async def hello_async(request: HttpRequest, **_: Any) -> HttpResponse:
    return hello(request)


def boom(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("boom")


def test_all_responses_tell_of_limits(site: Site) -> None:
    route("", hello)
    route("async", hello_async)
    route("health", hello)
    route("boom", boom)
    with site(RULES="4/minute", SKIP=["/health"]):
        assert site.get("/").content == b"3 left"
        assert site.get("/async").headers["X-RateLimit-Remaining"] == "2"
        assert site.get("/missing").headers["X-RateLimit-Remaining"] == "1"
        failed = site.get("/boom")
        assert (failed.status_code, failed.headers["X-RateLimit-Remaining"]) == (500, "0")
        assert site.get("/health").content == b"unseen"
        refused = site.get("/")
        assert (refused.status_code, refused.headers["Content-Type"]) == (429, "application/problem+json")
        assert refused.headers["Retry-After"] == str(refused.json()["retry_after"])
        assert refused.json()["violated-policies"] == ["default"]


def test_rules_by_endpoint_who_asks_and_what_it_costs(site: Site) -> None:
    route("", hello)
    route("search", hello)
    rules = [Rule(id="search", quota="5/minute", endpoints=["/search"])]
    with site(RULES=rules, IDENTIFY=lambda asked: asked.header("x-user"), COST=lambda asked: len(asked.method)):
        assert site.statuses("/search", "/search", **{"X-User": "alice"}) == [200, 429]
        assert site.get("/search", **{"X-User": "bob"}).headers["X-RateLimit-Cost"] == "3"
        assert "X-RateLimit-Limit" not in site.get("/").headers


def test_rules_that_throttle_hold_requests_back(site: Site) -> None:
    route("", hello)
    rule = Rule(id="r", quota="2/second burst 9 leaky_bucket", dimension="global", action="throttle", max_delay=60)
    with site(RULES=[rule]):
        began = site.clock.now_us()
        assert site.statuses(*["/"] * 3) == [200] * 3
        assert site.clock.now_us() - began == 500_000 * 2  # which is what two of them slept
    with site(RULES=[rule], MAX_WAITING=0):
        assert site.statuses(*["/"] * 2) == [200, 429]


@pytest.mark.parametrize("middleware", [True, False])
@pytest.mark.parametrize("view", [hello, hello_async])
def test_a_view_counts_by_its_route(site: Site, middleware: bool, view: Any) -> None:
    route("users/<int:number>/", limit("2/minute")(view))
    with site(middleware=middleware):
        assert site.statuses("/users/1/", "/users/2/", "/users/3/") == [200, 200, 429]
        assert site.statuses("/users/1/", method="POST") == [429]
        refused = site.get("/users/1/")
        assert refused.headers["Content-Type"] == "application/problem+json"
        assert refused.headers["RateLimit-Policy"] == '"/users/<int:number>/";q=2;w=60'
        assert refused.headers["Retry-After"] == str(refused.json()["retry_after"])
        site.clock.advance(refused.json()["retry_after"])
        assert site.get("/users/1/").content == b"0 left"


@pytest.mark.parametrize("view", [hello, hello_async])
def test_key_cost_name_and_methods_of_a_view(site: Site, view: Any) -> None:
    of_team: dict[str, Any] = {
        "key": lambda request: request.headers.get("X-Team"),
        "cost": lambda request: int(request.GET["n"]),
    }
    route("a", limit("5/minute", name="shared", **of_team)(view))
    route("b", limit("5/minute", name="shared", **of_team)(view))
    route("c", limit("1/minute", methods=["POST"])(view))
    with site():
        assert site.statuses("/a?n=3", "/b?n=3", "/b?n=2", **{"X-Team": "red"}) == [200, 429, 200]
        assert site.statuses("/a?n=5", **{"X-Team": "blue"}) == [200]
        assert site.statuses("/a?n=5", "/a?n=1") == [200, 429]  # no team: the client
        assert site.statuses("/c", "/c") == [200, 200]
        assert site.statuses("/c", "/c", method="POST") == [200, 429]


@pytest.mark.parametrize("view", [hello, hello_async])
@pytest.mark.parametrize("middleware", [True, False])
def test_limits_of_one_view_count_apart(site: Site, view: Any, middleware: bool) -> None:
    route("x", limit("4/minute")(limit("2/hour")(view)))
    with site(middleware=middleware):
        assert site.statuses("/x", "/x", "/x") == [200, 200, 429]
        policies = site.get("/x").headers["RateLimit-Policy"].split(", ")
        assert sorted(policies) == ['"/x (2)";q=2;w=3600', '"/x";q=4;w=60']


def test_views_that_are_classes(site: Site) -> None:
    @method_decorator(limit("1/minute"), name="dispatch")
    class Plain(View):  # type: ignore[misc]
        def get(self, _request: HttpRequest) -> HttpResponse:
            return HttpResponse("plain")

    @method_decorator(limit("1/minute"), name="dispatch")
    class Async(View):  # type: ignore[misc]
        async def get(self, _request: HttpRequest) -> HttpResponse:
            return HttpResponse("async")

    class One(View):  # type: ignore[misc]
        @method_decorator(limit("1/minute"))  # type: ignore[untyped-decorator]
        def get(self, _request: HttpRequest) -> HttpResponse:
            return HttpResponse("one")

        def post(self, _request: HttpRequest) -> HttpResponse:
            return HttpResponse("other")

    for name, view in (("plain", Plain), ("async", Async), ("one", One)):
        route(name, view.as_view())
    with site():
        for name in ("plain", "async", "one"):
            assert site.statuses(f"/{name}", f"/{name}") == [200, 429], name
        assert site.statuses("/one", "/one", method="POST") == [200, 200]


def test_a_view_of_ones_own_answers_refusals(site: Site) -> None:
    route("", hello)
    route("own", limit("1/minute")(hello))
    with site(RULES="3/minute", VIEW="tests.unit.http.test_django.too_many"):
        assert site.statuses("/own", "/own", "/", "/", "/") == [200, 418, 200, 200, 418]
        assert site.get("/").content == b"default: wait"
        assert int(site.get("/").headers["Retry-After"]) > 0


def too_many(request: HttpRequest) -> HttpResponse:
    limits = request.headgate
    return HttpResponse(f"{limits.decision.rule}: wait", status=418)


def test_a_view_that_is_called_without_a_url() -> None:
    with override_settings(HEADGATE={"CLOCK": FakeClock(1_700_000_000)}):
        view = limit("1/minute")(hello)
        request = RequestFactory().get("/")
        assert view(request).headers["RateLimit-Policy"] == '"tests.unit.http.test_django.hello";q=1;w=60'
        assert view(RequestFactory().get("/other")).status_code == 429


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("x", "HEADGATE: must be a dictionary, got 'x'"),
        ({"RULEZ": 1}, "HEADGATE: 'RULEZ' is not a setting; expected one of RULES, STORE"),
        ({"RULES": "x"}, "HEADGATE['RULES']: cannot read 'x'"),
        ({"RULES": "nowhere.toml"}, "HEADGATE['RULES']: nowhere.toml: cannot be read"),
        ({"STORE": "foo://"}, "HEADGATE['STORE']: 'foo://' is not a store URL"),
        ({"STORE": "memory://?x=1"}, "HEADGATE['STORE']: "),
        ({"FAILURE_MODE": "x"}, "HEADGATE['FAILURE_MODE']: must be one of"),
        ({"SKIP": "/health"}, "HEADGATE['SKIP']: must be a list of patterns"),
        ({"SKIP": ["health"]}, "HEADGATE['SKIP']: must be patterns"),
        ({"COST": "no.such.function"}, "HEADGATE['COST']: No module named 'no'"),
        ({"MAX_WAITING": -1}, "HEADGATE['MAX_WAITING']: must be a whole number"),
        ({"VIEW": 7}, "HEADGATE['VIEW']: must be a view, got 7"),
    ],
)
def test_a_bad_setting_is_told_by_name_when_the_server_starts(values: Any, message: str) -> None:
    async def get_response_async(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    for get_response in (hello, get_response_async):
        with override_settings(HEADGATE=values), pytest.raises(ImproperlyConfigured) as error:
            RateLimitMiddleware(get_response)
        assert str(error.value).startswith(message)


def test_async_functions_need_an_async_server() -> None:
    async def identify(request: Any) -> str:
        return "alice"

    with pytest.raises(ImproperlyConfigured, match=r"'IDENTIFY'\]: must not be async in a synchronous server"):
        Setup({"IDENTIFY": identify}).check_sync()
    Setup({"IDENTIFY": identify}).check_async()


def test_both_worlds_share_a_store() -> None:
    project.urlpatterns.clear()
    route("x", limit("2/minute")(hello))
    with override_settings(MIDDLEWARE=[], HEADGATE={"STORE": MemoryStore(clock=FakeClock(1_700_000_000))}):
        assert Site("wsgi").statuses("/x") == [200]
        assert Site("asgi").statuses("/x", "/x") == [200, 429]
    project.urlpatterns.clear()


class Burst(HeadgateThrottle):
    quota = "2/minute"


class Search(HeadgateThrottle):
    scope = "search"


class ByTeam(HeadgateThrottle):
    quota = "1/minute"

    def key(self, request: Any, _view: Any) -> str | None:
        team: str | None = request.headers.get("X-Team")
        return team


def api(*throttles: type[HeadgateThrottle], **attributes: Any) -> Any:
    class Api(APIView):  # type: ignore[misc]
        throttle_classes = throttles

        def get(self, _request: Any) -> HttpResponse:
            return HttpResponse("data")

    for name, value in attributes.items():
        setattr(Api, name, value)
    return Api.as_view()


def test_throttles_of_rest_framework(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"search": "1/min", "uploads": "1/m", "off": None, "bad": "often"}
    monkeypatch.setattr(api_settings, "DEFAULT_THROTTLE_RATES", rates)
    route("a", api(Burst))
    route("b", api(Burst, Search))
    route("uploads", api(HeadgateThrottle, throttle_scope="uploads"))
    route("none", api(HeadgateThrottle))
    route("off", api(HeadgateThrottle, throttle_scope="off"))
    route("missing", api(HeadgateThrottle, throttle_scope="missing"))
    route("bad", api(HeadgateThrottle, throttle_scope="bad"))
    route("team", api(ByTeam))
    with site(RULES="100/minute"):
        assert site.statuses("/a", "/b", "/a") == [200, 200, 429]  # one throttle, two views
        told = site.get("/b").headers
        assert int(told["Retry-After"]) > 0
        assert '"throttle:search";q=1;w=60' in told["RateLimit-Policy"]
        assert '"default";q=100;w=60' in told["RateLimit-Policy"]
        assert site.statuses("/uploads", "/uploads", "/none", "/none", "/off", "/off") == [200, 429] + [200] * 4
        assert site.statuses("/team", "/team", **{"X-Team": "red"}) == [200, 429]
        assert site.statuses("/team", **{"X-Team": "blue"}) == [200]
        assert site.statuses("/missing", "/bad") == [500, 500]
        for scope, message in (("missing", "no rate for the scope 'missing'"), ("bad", r"RATES\['bad'\]: cannot read")):
            with pytest.raises(ImproperlyConfigured, match=message):
                Client().get(f"/{scope}")


class Few(HeadgateThrottle):
    quota = "1/minute"


class Many(HeadgateThrottle):
    quota = "5/hour"


@pytest.mark.parametrize("middleware", [True, False])
@pytest.mark.parametrize("throttles", [(Few, Many), (Many, Few)])
def test_what_one_throttle_refuses_costs_nothing_in_the_others(
    site: Site, middleware: bool, throttles: tuple[type[HeadgateThrottle], ...]
) -> None:
    route("both", api(*throttles))
    route("many", api(Many))
    with site(middleware=middleware, RULES="100/minute"):
        assert site.statuses(*["/both"] * 5) == [200] + [429] * 4
        assert site.statuses(*["/many"] * 5) == [200] * 4 + [429]


@pytest.mark.parametrize("throttles", [(Few, Many), (Many, Few)])
def test_of_the_throttles_that_refuse_the_longest_wait_is_told(
    site: Site, throttles: tuple[type[HeadgateThrottle], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headgate.http.drf import exception_handler

    monkeypatch.setattr(APIView, "get_exception_handler", lambda _: exception_handler)
    route("both", api(*throttles))
    route("many", api(Many))
    with site(middleware=False):
        assert site.statuses("/both", *["/many"] * 4) == [200] * 5
        refused = site.get("/both")
        assert int(refused.headers["Retry-After"]) > 60
        assert refused.headers["Retry-After"] == str(refused.json()["retry_after"])
        assert refused.json()["violated-policies"] == ["throttle:tests.unit.http.test_django.Many"]
        site.clock.advance(int(refused.headers["Retry-After"]))
        assert site.get("/both").status_code == 200


def test_a_throttle_knows_its_wait_exactly_and_users_by_their_key() -> None:
    clock = FakeClock(1_700_000_000)
    with override_settings(HEADGATE={"CLOCK": clock}):

        def allowed(user: Any) -> tuple[bool, float | None]:
            throttle = Burst()
            request = SimpleNamespace(_request=RequestFactory().get("/"), user=user)
            return throttle.allow_request(request, None), throttle.wait()

        alice = SimpleNamespace(pk=7, is_authenticated=True)
        bob = SimpleNamespace(pk=8, is_authenticated=True)
        assert [allowed(alice), allowed(alice)] == [(True, 0.0)] * 2
        passed, wait = allowed(alice)
        assert not passed
        assert wait is not None
        assert allowed(bob) == (True, 0.0)
        assert allowed(SimpleNamespace(is_authenticated=False)) == (True, 0.0)
        clock.advance(wait - 0.001)
        assert not allowed(alice)[0]
        clock.advance(0.001)
        assert allowed(alice)[0]


def test_refusals_of_throttles_as_problems(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from headgate.http.drf import exception_handler

    monkeypatch.setattr(APIView, "get_exception_handler", lambda _: exception_handler)
    route("a", api(Burst))
    route("free", api())
    with site():
        site.statuses("/a", "/a")
        refused = site.get("/a")
        assert (refused.status_code, refused.headers["Content-Type"]) == (429, "application/problem+json")
        assert refused.json()["violated-policies"] == ["throttle:tests.unit.http.test_django.Burst"]
        assert refused.headers["Retry-After"] == str(refused.json()["retry_after"])
        assert site.get("/free", method="POST").json() == {"detail": 'Method "POST" not allowed.'}


def test_what_the_app_says_that_it_cost_is_charged(site: Site) -> None:
    def costly(request: HttpRequest) -> HttpResponse:
        return HttpResponse("", headers={"x-charge": "30"})

    route("", costly)
    with site(RULES="100/minute fixed_window", COST=50, CHARGE_HEADER="X-Charge"):
        response = site.get("/")
        assert (response.headers["X-RateLimit-Cost"], "X-Charge" in response.headers) == ("30", False)
        assert site.get("/").headers["X-RateLimit-Remaining"] == "20"  # 100 - 30 - 50


def test_what_deduct_when_refunds_is_not_charged_by_the_charge_header(site: Site, caplog: Any) -> None:
    def costly(request: HttpRequest) -> HttpResponse:
        fails = "fail" in request.GET
        return HttpResponse("", status=500 if fails else 200, headers={"x-charge": "requests=30, tokens=1"})

    route("", costly)
    options: dict[str, Any] = {
        "COST": 50,
        "CHARGE_HEADER": "X-Charge",
        "DEDUCT_WHEN": lambda response: response.status_code < 400,
    }
    with site(RULES="100/minute fixed_window", **options):
        failed = site.get("/?fail=1")
        assert (failed.headers["X-RateLimit-Cost"], failed.headers["X-RateLimit-Remaining"]) == ("50", "100")
        assert site.get("/").headers["X-RateLimit-Cost"] == "requests=30"
        assert site.get("/").headers["X-RateLimit-Remaining"] == "20"  # 100 - 30 - 50
    assert "has the unit 'tokens'" in caplog.text


def test_locks_that_another_thread_held_are_free_in_a_forked_child() -> None:
    with override_settings(HEADGATE={}):
        setup = module.current()
        with module._project._lock, setup._lock:
            assert in_child(lambda: module.current().request_limiter() is not None) == 0


@pytest.mark.parametrize("view", [hello, hello_async])
def test_a_limit_has_a_message_and_exemptions(site: Site, view: Any) -> None:
    route("exempting", limit("1/day", message="Slowly.", exempt_when=lambda request: "internal" in request.GET)(view))
    with site():
        assert site.get("/exempting").status_code == 200
        refused = site.get("/exempting")
        assert (refused.status_code, refused.json()["detail"]) == (429, "Slowly.")
        assert site.get("/exempting?internal=1").status_code == 200


def test_a_function_that_its_limiter_refuses_is_answered_with_429(site: Site) -> None:
    limiter = Limiter([])
    reports = limiter.limit("1/day", name="reports")(lambda: "report")
    route("reports", lambda _: HttpResponse(reports()))
    with site():
        assert site.get("/reports").status_code == 200
        refused = site.get("/reports")
        assert (refused.status_code, refused.headers["Content-Type"]) == (429, "application/problem+json")
        assert '"reports"' in refused.headers["RateLimit-Policy"]
