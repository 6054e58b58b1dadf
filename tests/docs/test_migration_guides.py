"""The migration guides hold: the app before and the app after answer the same requests in the same way.

Each guide has the peer's code in a `py` block, and Headgate's in the first `python` block. Both run here, side by side,
on one clock that the test moves. What a guide says is different is tested too. A peer that is not installed is an
error: they are in the dependency group `peers`, which `make test-all` installs.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest

import headgate
import tests.unit.http.django_project  # noqa: F401  first: it makes the settings

from django.test import Client  # isort: skip
from django.test.utils import override_settings

pytestmark = [
    pytest.mark.extended,
    pytest.mark.filterwarnings("ignore:::slowapi"),
    pytest.mark.filterwarnings("ignore:Using the in-memory storage"),
]

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PEERS = (
    *("aiolimiter", "django_ratelimit.decorators", "flask_limiter", "limits.storage", "limits.strategies"),
    *("pyrate_limiter", "slowapi.middleware", "throttled"),
)
ROOTS = {peer.partition(".")[0] for peer in PEERS}
TURN_OF_AN_HOUR = 1_700_006_400  # windows of some peers begin with the first request: here, that is when ours do
Request = tuple[str, str, dict[str, str]]


class SharedTime:
    """The time of both sides, a clock of Headgate's. A side that sleeps moves it: nothing really waits."""

    def __init__(self) -> None:
        self.now = TURN_OF_AN_HOUR * 1_000_000  # microseconds

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * 1_000_000)

    def seconds(self) -> float:
        return self.now / 1_000_000

    def nanoseconds(self) -> int:
        return self.now * 1_000

    def now_us(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SharedTime:
    """Have the peers and the limiters of the guides go by one clock."""
    shared = SharedTime()
    fakes: dict[Any, Any] = {
        time.time: shared.seconds,
        time.monotonic: shared.seconds,
        time.time_ns: shared.nanoseconds,
        time.monotonic_ns: shared.nanoseconds,
        time.sleep: shared.advance,
    }
    fakes[time] = SimpleNamespace(**vars(time) | {real.__name__: fake for real, fake in fakes.items()})
    by_id = {id(real): fake for real, fake in fakes.items()}  # not every value in a module is hashable
    for peer in PEERS:
        importlib.import_module(peer)
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] in ROOTS]:
        for name, value in vars(module).copy().items():
            if id(value) in by_id:
                monkeypatch.setattr(module, name, by_id[id(value)])
    monkeypatch.setattr(headgate, "Limiter", partial(headgate.Limiter, clock=shared))
    monkeypatch.setattr(headgate, "AsyncLimiter", partial(headgate.AsyncLimiter, clock=shared))
    return shared


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop that moves the shared time where it would wait."""

    def __init__(self, clock: SharedTime) -> None:
        super().__init__()
        self._shared = clock
        selector: Any = self._selector  # type: ignore[attr-defined]
        select = selector.select

        def skip(timeout: float | None = None) -> Any:
            ready = select(0)
            if not ready and timeout:
                clock.advance(max(timeout, 0.000_001))
            return ready

        selector.select = skip

    def time(self) -> float:
        return self._shared.seconds() - TURN_OF_AN_HOUR  # a small number: aiolimiter adds tiny amounts to it


def code(guide: str, language: str) -> str:
    text = (HOW_TO / f"migrate-from-{guide}.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]  # type: ignore[no-any-return]


def run(source: str, name: str = "guide") -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), namespace)
    return namespace


def both(guide: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the names that the two blocks of a guide define: the peer's, and Headgate's."""
    return run(code(guide, "py"), "before"), run(code(guide, "python"), "after")


def gets(*paths: str, times: int = 1, headers: dict[str, str] | None = None) -> list[Request]:
    return [("GET", path, headers or {}) for _ in range(times) for path in paths]


def ask_asgi(app: Any, requests: Sequence[Request]) -> list[bool]:
    async def ask() -> list[bool]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            answers = [await client.request(method, path, headers=headers) for method, path, headers in requests]
        assert {answer.status_code for answer in answers} <= {200, 429}
        return [answer.status_code == 200 for answer in answers]

    return asyncio.run(ask())


def ask_wsgi(app: Any, requests: Sequence[Request]) -> list[bool]:
    client = app.test_client()
    statuses = [client.open(path, method=method, headers=headers).status_code for method, path, headers in requests]
    assert set(statuses) <= {200, 429}
    return [status == 200 for status in statuses]


def ask_django(site: dict[str, Any], requests: Sequence[Request], clock: SharedTime) -> list[bool]:
    urls: Any = ModuleType("urls")
    urls.urlpatterns = site["urlpatterns"]
    with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[], HEADGATE={"CLOCK": clock}):
        client = Client(raise_request_exception=False)
        statuses = [client.generic(method, path, headers=headers).status_code for method, path, headers in requests]
    assert set(statuses) <= {200, 403, 429}
    return [status == 200 for status in statuses]


def mixed(answers: list[bool]) -> bool:
    return True in answers and False in answers


def test_slowapi(clock: SharedTime) -> None:
    before, after = both("slowapi")
    requests = [
        *gets("/users/1", times=3),  # the route's own limit, and not the default
        *gets("/news", times=6),  # the default
        *gets("/health", times=9),  # exempt
        *gets("/search?pages=4", "/search?pages=2", "/search"),
        *gets("/export", "/import", times=2, headers={"X-Team": "red"}),  # one limit for both
        *gets("/import", times=1, headers={"X-Team": "blue"}),
        *gets("/reports", times=3, headers={"X-Plan": "gold"}),  # a limit that depends on the request
        *gets("/reports", times=2, headers={"X-Plan": "free"}),
    ]
    for _ in range(2):
        answers = ask_asgi(before["app"], requests)
        assert mixed(answers)
        assert ask_asgi(after["app"], requests) == answers
        clock.advance(60)


def test_slowapi_counts_each_path_and_headgate_each_route(clock: SharedTime) -> None:
    before, after = both("slowapi")
    users = gets(*(f"/users/{number}" for number in range(3)))
    assert ask_asgi(before["app"], users) == [True, True, True]
    assert ask_asgi(after["app"], users) == [True, True, False]


def test_slowapi_charges_limits_before_the_one_that_refuses(clock: SharedTime) -> None:
    before = run(code("slowapi", "py").replace("2/minute;5/hour", "5/hour;2/minute"), "before")
    after = run(code("slowapi", "python").replace("2/minute fixed_window; 5/hour", "5/hour fixed_window; 2/minute"))
    for app in (before["app"], after["app"]):
        assert ask_asgi(app, gets("/users/1", times=6)) == [True, True, False, False, False, False]
    clock.advance(60)
    assert ask_asgi(before["app"], gets("/users/1")) == [False]  # the refused ones used up the hour
    assert ask_asgi(after["app"], gets("/users/1")) == [True]


def test_slowapi_applies_application_limits_to_routes_without_their_own(clock: SharedTime) -> None:
    source = code("slowapi", "py").replace('default_limits=["4/minute"]', 'application_limits=["2/minute"]')
    app = run(source, "before")["app"]
    assert ask_asgi(app, gets("/news", times=3)) == [True, True, False]
    assert ask_asgi(app, gets("/search", times=3)) == [True, True, True]


def test_flask_limiter(clock: SharedTime) -> None:
    before, after = both("flask-limiter")
    requests = [
        *gets("/slow", times=2),
        *(("POST", "/users/1", {}), ("GET", "/users/1", {}), ("GET", "/users/2", {}), ("GET", "/users/3", {})),
        *gets("/export?pages=4", headers={"X-Team": "red"}),
        *gets("/export?pages=4", headers={"X-Team": "blue"}),
        *gets("/ping", times=30),  # exempt
        *gets("/news", times=4),  # the default, of each view
        *gets("/weather", times=4),
        *gets("/news"),
    ]
    answers = ask_wsgi(before["app"], requests)
    assert mixed(answers)
    assert ask_wsgi(after["app"], requests) == answers


def test_flask_limiter_charges_what_the_response_says(clock: SharedTime) -> None:
    requests = gets(
        "/guess?code=7", "/guess?code=7", "/guess?code=1", "/guess?code=7", "/guess?code=2", "/guess?code=7"
    )
    for side in both("flask-limiter"):
        client = side["app"].test_client()
        statuses = [client.get(path).status_code for _, path, _ in requests]
        assert statuses == [200, 200, 403, 200, 403, 429]


def test_flask_limiter_applies_application_limits_to_all_views(clock: SharedTime) -> None:
    before, after = both("flask-limiter")
    requests = [*gets("/users/1", "/news", "/weather", times=2), *[("POST", "/users/1", {})] * 2]
    requests += [request for team in range(20) for request in gets("/export?pages=1", headers={"X-Team": str(team)})]
    answers = ask_wsgi(before["app"], requests)
    assert answers.count(True) == 20
    assert ask_wsgi(after["app"], requests) == answers


def test_flask_limiter_charges_refused_requests(clock: SharedTime) -> None:
    before, after = both("flask-limiter")
    requests = [*gets("/slow", times=20), *gets("/news")]
    assert ask_wsgi(before["app"], requests)[-1] is False  # the application's 20 a minute are used up
    assert ask_wsgi(after["app"], requests)[-1] is True


def test_django_ratelimit(clock: SharedTime) -> None:
    before, after = both("django-ratelimit")
    red, blue = {"X-Api-Key": "red"}, {"X-Api-Key": "blue"}
    requests = [
        *gets("/page/", times=3),
        *[("POST", path, red) for path in ("/comments/", "/answers/", "/comments/", "/answers/")],
        ("POST", "/comments/", blue),
        *gets("/comments/", times=5, headers=red),  # not limited
        *gets("/search/?q=a", times=2),
        *gets("/search/?q=b", "/search/?q=a", "/search/?q=c"),
    ]
    answers = ask_django(before, requests, clock)
    assert mixed(answers)
    assert ask_django(after, requests, clock) == answers


def steps(clock: SharedTime, before: dict[str, Any], after: dict[str, Any], pause: float, costs: Sequence[int]) -> None:
    """Make the same calls of both, for two users, with pauses, and compare what is admitted and what is left."""
    admitted = []
    for round_ in range(40):
        user, cost = ("alice", "bob")[round_ % 2], costs[round_ % len(costs)]
        assert after["left"](user) == before["left"](user), round_
        answer = before["admit"](user, cost)
        assert after["admit"](user, cost) == answer, round_
        admitted.append(answer)
        clock.advance(pause if round_ % 3 == 2 else 0)
    assert mixed(admitted)


@pytest.mark.parametrize(
    ("strategy", "algorithm"),
    [
        ("FixedWindowRateLimiter", "fixed_window"),
        ("MovingWindowRateLimiter", "sliding_window_log"),
        ("SlidingWindowCounterRateLimiter", "sliding_window_counter"),
    ],
)
def test_limits(strategy: str, algorithm: str, clock: SharedTime) -> None:
    before = run(code("limits", "py").replace("FixedWindowRateLimiter", strategy), "before")
    after = run(code("limits", "python").replace("fixed_window", algorithm), "after")
    steps(clock, before, after, 19, [1, 1, 2, 3])


@pytest.mark.parametrize(
    ("using", "notation"),
    [
        ("TOKEN_BUCKET", "2/second burst 5"),
        ("LEAKING_BUCKET", "2/second burst 5 leaky_bucket"),
        ("GCRA", "2/second burst 5 gcra"),
    ],
)
def test_throttled_py_buckets(using: str, notation: str, clock: SharedTime) -> None:
    before = run(code("throttled-py", "py").replace("TOKEN_BUCKET", using), "before")
    after = run(code("throttled-py", "python").replace("2/second burst 5", notation), "after")
    steps(clock, before, after, 1, [1, 1, 2, 3])


@pytest.mark.parametrize(
    ("using", "notation"), [("FIXED_WINDOW", "5/minute fixed_window"), ("SLIDING_WINDOW", "5/minute")]
)
def test_throttled_py_windows(using: str, notation: str, clock: SharedTime) -> None:
    """They charge what they refuse, so that the windows after a refusal differ."""
    source = code("throttled-py", "py").replace("TOKEN_BUCKET", using).replace("per_sec(2, burst=5)", "per_min(5)")
    before = run(source.replace("per_sec", "per_min"), "before")
    after = run(code("throttled-py", "python").replace("2/second burst 5", notation), "after")
    for user in ("alice", "bob"):
        answers = []
        for pause in (0, 0, 30, 30, 0, 0, 0):
            clock.advance(pause)
            assert after["left"](user) == before["left"](user)
            answers.append(before["admit"](user))
            assert after["admit"](user) == answers[-1]
        assert mixed(answers) == (using == "SLIDING_WINDOW")
        assert [side["admit"](user, 5) for side in (before, after)] == [False, False]
        clock.advance(30)


def test_throttled_py_drops_fractions_of_a_refill(clock: SharedTime) -> None:
    before, after = both("throttled-py")
    for side in (before, after):
        assert side["admit"]("alice", 5)
    clock.advance(0.5)
    assert not before["admit"]("alice")
    assert after["admit"]("alice")


def test_pyrate_limiter(clock: SharedTime) -> None:
    before, after = both("pyrate-limiter")
    with before["limiter"]:
        admitted = []
        for number in range(30):
            cost = 2 if number % 5 == 4 else 1
            answer = before["admit"](cost)
            assert after["admit"](cost) == answer, number
            admitted.append(answer)
            clock.advance(3.5 if number % 4 == 3 else 0.1)
        assert mixed(admitted)


def test_pyrate_limiter_waits(clock: SharedTime) -> None:
    before, after = both("pyrate-limiter")
    waited = []
    with before["limiter"]:
        for side in (before, after):
            begun = clock.seconds()
            assert all(side["wait"]() for _ in range(6))
            waited.append(clock.seconds() - begun)
    assert waited[0] == pytest.approx(60, abs=0.2)  # it adds 50 ms to each wait
    assert waited[1] == pytest.approx(60, abs=0.001)


def test_pyrate_limiter_has_one_bucket_for_all_names() -> None:
    from pyrate_limiter import Duration, Limiter, Rate

    from headgate import Limiter as Headgate

    with Limiter(Rate(1, Duration.HOUR)) as limiter:
        assert [limiter.try_acquire(name, blocking=False) for name in ("alice", "bob")] == [True, False]
    ours = Headgate("1/hour sliding_window_log")
    assert [ours.check(name).allowed for name in ("alice", "bob")] == [True, True]


def test_aiolimiter(clock: SharedTime) -> None:
    begun = []
    for side in both("aiolimiter"):
        done: list[int] = []
        times: list[float] = []
        start = clock.seconds()

        async def timed(
            number: int, side: Any = side, done: list[int] = done, times: Any = times, start: Any = start
        ) -> None:
            await side["job"](number, done)
            times.append(clock.seconds() - start)

        async def jobs(timed: Any = timed) -> None:
            await asyncio.gather(*(timed(number) for number in range(12)))

        with asyncio.Runner(loop_factory=lambda: SkippingLoop(clock)) as runner:
            runner.run(jobs())
        assert sorted(done) == list(range(12))
        begun.append(times)
        clock.advance(60)
    before, after = begun
    assert before == pytest.approx([0, 0, 0, 0, *(number / 4 for number in range(1, 9))], abs=0.01)
    assert after == pytest.approx(before, abs=0.01)
