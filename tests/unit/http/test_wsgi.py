"""The WSGI middleware, without a server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from threading import Event, Thread
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from headgate import AsyncLimiter, InvalidRule, Limiter, Rule
from headgate.http.wsgi import RateLimitMiddleware
from headgate.testing import FakeClock

Headers = list[tuple[str, str]]


class Call:
    """One request to an app, and what came of it."""

    def __init__(self, app: Any, path: str = "/", **environ: str) -> None:
        self.environ: dict[str, Any] = {"PATH_INFO": path, "REMOTE_ADDR": "192.0.2.7", **environ}
        setup_testing_defaults(self.environ)
        self.started: list[tuple[str, Headers, bool]] = []
        self.written: list[bytes] = []
        body: Any = app(self.environ, self._start)
        try:
            self.body = b"".join(body)
        finally:
            if hasattr(body, "close"):
                body.close()

    def _start(self, status: str, headers: Headers, exc_info: Any = None) -> Callable[[bytes], object]:
        self.started.append((status, headers, exc_info is not None))
        return self.written.append

    @property
    def status(self) -> str:
        return self.started[-1][0]

    @property
    def headers(self) -> dict[str, str]:
        names = [name for name, _ in self.started[-1][1]]
        assert len(names) == len(set(names))
        return dict(self.started[-1][1])


def hello(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


def test_it_keeps_to_the_standard() -> None:
    limiter = Limiter("1/minute", clock=FakeClock(1_700_000_000))
    app: Any = validator(RateLimitMiddleware(validator(hello), limiter=limiter))
    assert Call(app, QUERY_STRING="", SCRIPT_NAME="").status == "200 OK"
    refused = Call(app, QUERY_STRING="", SCRIPT_NAME="")
    assert refused.status == "429 Too Many Requests"
    assert refused.headers["Retry-After"] == "41"
    assert refused.headers["Content-Length"] == str(len(refused.body))


def test_exc_info_write_and_close_reach_the_server() -> None:
    closed = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            yield b"body"

        def close(self) -> None:
            closed.append(True)

    def app(environ: dict[str, Any], start_response: Any) -> Body:
        write = start_response("200 OK", [("X-First", "1")])
        write(b"written")
        try:
            raise RuntimeError  # noqa: TRY301
        except RuntimeError:
            start_response("500 Oops", [("X-Second", "2")], sys.exc_info())
        return Body()

    call = Call(RateLimitMiddleware(app, limiter=Limiter("10/minute")))
    assert [(status, exc_info) for status, _, exc_info in call.started] == [("200 OK", False), ("500 Oops", True)]
    assert call.headers["X-Second"] == "2"
    assert call.headers["X-RateLimit-Remaining"] == "9"
    assert call.written == [b"written"]
    assert call.body == b"body"
    assert closed == [True]


@pytest.mark.parametrize("strict", ["outer", "inner"])
def test_one_inside_another_tells_of_both_once(strict: str) -> None:
    quotas = {"outer": "5/minute", "inner": "5/hour"} | {strict: "1/day"}
    inner = RateLimitMiddleware(hello, limiter=Limiter(quotas["inner"], name="inner"))
    app = RateLimitMiddleware(inner, limiter=Limiter(quotas["outer"], name="outer"))
    passed, refused = Call(app), Call(app)
    assert passed.status == "200 OK"
    assert passed.headers["RateLimit-Policy"].startswith(f'"{strict}";q=1;w=86400, ')
    assert refused.status == "429 Too Many Requests"
    assert refused.headers["RateLimit"].startswith(f'"{strict}";r=0')


@pytest.mark.parametrize(
    ("path", "counted"),
    [
        ("/files/a", True),
        ("/files/../health", True),  # an app takes it for a file of that name
        ("/files/%2e%2e/a", True),  # the server has decoded it once: these are percent signs
        ("/files/a?b", True),
        ("/files/#", True),
        ("/health/../files/a", False),
        ("/health", False),
        ("/a?/../files/a", False),
    ],
)
def test_rules_see_a_path_as_apps_do(path: str, counted: bool) -> None:
    rules = [Rule(id="files", quota="5/minute", dimension="ip", endpoints=["/files/{name}", "/files/{name}/{more}"])]
    call = Call(RateLimitMiddleware(hello, limiter=Limiter(rules), skip=["/health"]), path)
    assert ("X-RateLimit-Limit" in call.headers) == counted


def test_only_so_many_requests_are_held_back() -> None:
    class Doors(FakeClock):
        def sleep(self, seconds: float) -> None:  # noqa: ARG002
            asleep.set()
            assert awake.wait(10)

    asleep, awake = Event(), Event()
    rule = Rule(
        id="r", quota="1/second burst 9 leaky_bucket", dimension="global", action="throttle", max_delay=60, status=503
    )
    limiter = Limiter([rule], clock=Doors(1_700_000_000))
    app = RateLimitMiddleware(hello, limiter=limiter, max_waiting=1)
    assert Call(app).status == "200 OK"
    calls: list[Call] = []
    waiting = Thread(target=lambda: calls.append(Call(app)))
    waiting.start()
    assert asleep.wait(10)
    turned_away = Call(app)
    assert turned_away.status == "503 Service Unavailable"
    assert turned_away.headers["Retry-After"] == "2"
    awake.set()
    waiting.join(10)
    assert [call.status for call in calls] == ["200 OK"]


@pytest.mark.parametrize(
    ("max_delay", "status", "waited"), [("1s", "200 OK", 1.0), ("999ms", "429 Too Many Requests", 0.0)]
)
def test_the_wait_for_room_and_that_for_the_turn_are_no_longer_than_max_delay_together(
    max_delay: str, status: str, waited: float
) -> None:
    clock = FakeClock(1_700_000_000)
    quota = "2/s burst 2 leaky_bucket"
    limiter = Limiter([Rule(id="r", quota=quota, action="throttle", dimension="ip", max_delay=max_delay)], clock=clock)
    for _ in range(2):  # which fill it
        limiter.check(ip="192.0.2.7")
    assert Call(RateLimitMiddleware(hello, limiter=limiter)).status == status
    assert clock.now() - 1_700_000_000 == waited


def test_one_that_is_admitted_too_late_for_its_turn_is_refused_and_costs_nothing() -> None:
    class Busy(FakeClock):
        """While somebody sleeps, others come."""

        def sleep(self, seconds: float) -> None:
            self.advance(seconds)
            for host in range(3):
                limiter.check(ip=f"192.0.2.{host + 8}")

    clock = Busy(1_700_000_000)
    rules = [
        Rule(id="one", quota="1/10s gcra", dimension="ip", action="throttle", max_delay="14s"),
        Rule(id="all", quota="1/5s burst 9 leaky_bucket", dimension="global", action="throttle", max_delay="60s"),
    ]
    limiter = Limiter(rules, clock=clock)
    limiter.check(ip="192.0.2.7")
    refused = Call(RateLimitMiddleware(hello, limiter=limiter))
    assert (refused.status, refused.headers["Retry-After"]) == ("429 Too Many Requests", "15")
    assert clock.now() - 1_700_000_000 == 10
    assert {limit.rule: limit.remaining for limit in limiter.peek(ip="192.0.2.7").limits} == {"one": 1, "all": 6}


def test_a_limiter_of_the_wrong_kind_is_told_at_once() -> None:
    for wrong in (AsyncLimiter("1/minute"), "1/minute", None):
        with pytest.raises(InvalidRule, match="limiter: must be a Limiter, got"):
            RateLimitMiddleware(hello, limiter=wrong)  # type: ignore[arg-type]


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="'max_wait'"):
        RateLimitMiddleware(hello, limiter=Limiter("1/minute"), max_wait=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("told", "remaining", "cost"), [("30", 70, "30"), ("0", 100, "0"), ("x", 50, "50")])
def test_what_the_app_says_that_it_cost_is_charged_once(told: str, remaining: int, cost: str) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        headers = [("Content-Type", "text/plain"), ("x-charge", told)]
        start_response("200 OK", headers)
        try:
            int("it begins again")
        except ValueError:
            start_response("500 Oops", headers, sys.exc_info())
        return [b""]

    limiter = Limiter("100/minute fixed_window", clock=FakeClock(1_700_000_000))
    call = Call(RateLimitMiddleware(app, limiter=limiter, cost=50, charge_header="X-Charge"))
    assert (call.headers["X-RateLimit-Cost"], "x-charge" in call.headers) == (cost, False)
    assert limiter.peek("ip:192.0.2.7").remaining == remaining


@pytest.mark.parametrize(
    ("status", "used", "cost"),
    [("200 OK", 32, "requests=2, tokens=30"), ("500 Oops", 0, "requests=50, tokens=0")],
)
def test_the_lines_of_a_charge_header_count_together_unless_deduct_when_refunds(
    status: str, used: int, cost: str
) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response(status, [("x-charge", "requests=2"), ("X-Charge", "tokens=30")])
        return [b""]

    units = ("requests", "tokens")
    rules = [Rule(id=unit, quota="100/minute fixed_window", dimension="ip", unit=unit) for unit in units]
    limiter = Limiter(rules, clock=FakeClock(1_700_000_000))
    call = Call(
        RateLimitMiddleware(
            app,
            limiter=limiter,
            cost={"requests": 50, "tokens": 0},
            charge_header="X-Charge",
            deduct_when=lambda response: response.status_code < 400,
        )
    )
    assert call.headers["X-RateLimit-Cost"] == cost
    peeked = limiter.peek(ip="192.0.2.7", cost=dict.fromkeys(units, 1))
    assert sum(100 - limit.remaining for limit in peeked.limits) == used


def test_an_app_reserves_and_settles_for_its_client() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with environ["headgate.limits"].reserve(50) as reservation:
            reservation.settle(12)
        return hello(environ, start_response)

    limiter = Limiter("100/minute", clock=FakeClock(1_700_000_000))
    Call(RateLimitMiddleware(app, limiter=limiter, cost=0))
    assert limiter.peek("ip:192.0.2.7").remaining == 88
