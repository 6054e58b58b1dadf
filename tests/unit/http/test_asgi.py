"""The ASGI middleware by itself: what passes, what is held back, what reaches the app and the client."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable, Coroutine
from ipaddress import ip_network
from typing import Any

import pytest

from headgate import AsyncLimiter, InvalidCheck, InvalidRule, Limiter, Rule
from headgate.http.asgi import App as App_
from headgate.http.asgi import AsgiRequest, Message, RateLimitMiddleware, Receive, Scope, Send
from headgate.rules import Snapshot
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock

CLIENT = ("192.0.2.7", 4711)
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}
BODY: Message = {"type": "http.request", "body": b"", "more_body": False}


def scope_of(path: str = "/", **others: Any) -> Scope:
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "client": CLIENT, "extensions": {}}
    return {**scope, **others}


class Client:
    """A client of an app: what it sends, and what it got."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages or (BODY,))
        self.gone = asyncio.Event()
        self.got: list[Message] = []

    async def receive(self) -> Message:
        if self.messages:
            return self.messages.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.got.append(message)

    @property
    def status(self) -> int:
        status: int = self.got[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        raw = self.got[0]["headers"]
        assert len(dict(raw)) == len(raw), "a header twice"
        return {name.decode(): value.decode() for name, value in raw}


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    await send({"type": "http.response.body", "body": b"hello"})


class App:
    """Counts its requests, and keeps what it received of their bodies."""

    def __init__(self) -> None:
        self.requests = 0
        self.received: list[Message] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        self.received.append(await receive())
        await answer(scope, receive, send)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


async def get(app: RateLimitMiddleware, path: str = "/", **others: Any) -> Client:
    client = Client()
    await app(scope_of(path, **others), client.receive, client.send)
    return client


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000)


def test_a_limit_per_client_and_nothing_else_said(clock: FakeClock) -> None:
    async def test() -> None:
        app = RateLimitMiddleware(answer, limiter=AsyncLimiter("2/minute", clock=clock))
        statuses = [(await get(app)).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert (await get(app, client=("192.0.2.8", 1))).status == 200

    run(test)


def test_the_id_of_a_refusal_is_a_header_where_the_rules_ask_for_it(clock: FakeClock) -> None:
    async def test() -> None:
        snapshot = Snapshot([Rule(id="r", quota="1/minute", dimension="ip")], decision_header=True)
        app = RateLimitMiddleware(answer, limiter=AsyncLimiter(snapshot, clock=clock))
        assert "x-ratelimit-decision-id" not in (await get(app)).headers
        refused = await get(app)
        assert refused.status == 429
        assert refused.headers["x-ratelimit-decision-id"] == json.loads(refused.got[1]["body"])["decision_id"]

    run(test)


def test_the_apps_own_headers_come_first_and_its_message_is_left_alone(clock: FakeClock) -> None:
    async def test() -> None:
        app = RateLimitMiddleware(answer, limiter=AsyncLimiter("2/minute", clock=clock))
        await get(app)
        client = await get(app)
        assert list(client.headers)[:2] == ["content-type", "x-ratelimit-limit"]
        assert client.headers["x-ratelimit-remaining"] == "0"
        assert START["headers"] == [(b"content-type", b"text/plain")]

    run(test)


def test_a_refusal_is_a_problem_and_the_app_is_not_asked(clock: FakeClock) -> None:
    async def test() -> None:
        app = App()
        gate = RateLimitMiddleware(app, limiter=AsyncLimiter("1/minute", clock=clock))
        await get(gate)
        client = await get(gate)
        assert app.requests == 1
        assert client.headers["content-type"] == "application/problem+json"
        assert json.loads(client.got[1]["body"])["status"] == client.status == 429

    run(test)


def test_skipped_paths_are_not_counted_however_they_are_spelled(clock: FakeClock) -> None:
    async def test() -> None:
        limiter = AsyncLimiter("1/minute", clock=clock)
        app = RateLimitMiddleware(answer, limiter=limiter, skip=["/healthz", "/static/*", "/users/{id}/photo"])
        for path in ("/healthz", "//healthz", "/static/a/b.css", "/users/7/photo") * 2:
            client = await get(app, path)
            assert (client.status, len(client.headers)) == (200, 1)
        assert (await get(app, "/users/7")).status == 200
        assert (await get(app, "/healthz/more")).status == 429

    run(test)


def test_lifespan_passes(clock: FakeClock) -> None:
    async def test() -> None:
        seen: list[str] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            seen.append(scope["type"])

        client = Client()
        await RateLimitMiddleware(app, limiter=AsyncLimiter("1/minute"))(
            {"type": "lifespan"}, client.receive, client.send
        )
        assert seen == ["lifespan"]

    run(test)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_apps_own_identity_and_cost(clock: FakeClock, asynchronous: bool) -> None:
    def who(request: AsgiRequest) -> dict[str, Any]:
        return {"user": request.header("x-user"), "plan": None}

    def much(request: AsgiRequest) -> int:
        return 3 if request.path == "/export" else 1

    async def who_later(request: AsgiRequest) -> dict[str, Any]:
        return who(request)

    async def much_later(request: AsgiRequest) -> int:
        return much(request)

    async def test() -> None:
        limiter = AsyncLimiter([Rule(id="r", quota="4/minute", dimension="user")], clock=clock)
        identify, cost = (who_later, much_later) if asynchronous else (who, much)
        app = RateLimitMiddleware(answer, limiter=limiter, identify=identify, cost=cost)
        alice = [(b"x-user", b"alice")]
        client = await get(app, "/export", headers=alice)
        assert (client.headers["x-ratelimit-remaining"], client.headers["x-ratelimit-cost"]) == ("1", "3")
        assert (await get(app, "/export", headers=alice)).status == 429
        assert (await get(app, "/other", headers=alice)).status == 200
        assert "x-ratelimit-limit" not in (await get(app)).headers  # nobody, so no rule

    run(test)


def test_what_was_decided_is_in_the_state(clock: FakeClock) -> None:
    async def test() -> None:
        found: list[Any] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            found.append(scope["state"]["headgate"])
            await answer(scope, receive, send)

        limiter = AsyncLimiter([Rule(id="r", quota="4/minute", dimension="ip")], clock=clock)
        await get(RateLimitMiddleware(app, limiter=limiter), "/search", method="POST", state={"mine": 1})
        assert found[0].decision.remaining == 3
        assert found[0].facts == {"ip": "192.0.2.7", "endpoint": "/search", "method": "POST"}

    run(test)


def test_the_outer_of_two_tells_of_both(clock: FakeClock) -> None:
    async def test() -> None:
        inner = RateLimitMiddleware(answer, limiter=AsyncLimiter("2/minute", name="inner", clock=clock))
        outer = RateLimitMiddleware(inner, limiter=AsyncLimiter("5/minute", name="outer", clock=clock))
        client = await get(outer)
        assert client.headers["ratelimit-policy"] == '"inner";q=2;w=60, "outer";q=5;w=60'
        await get(outer)
        refused = await get(outer)
        assert (refused.status, refused.headers["x-ratelimit-limit"]) == (429, "2")

    run(test)


def test_a_refusal_further_in_gives_back_what_was_charged_further_out(clock: FakeClock) -> None:
    async def test() -> None:
        limiter = AsyncLimiter("5/minute", name="outer", clock=clock)
        inner = RateLimitMiddleware(answer, limiter=AsyncLimiter("2/minute", name="inner", clock=clock))
        outer = RateLimitMiddleware(inner, limiter=limiter)
        assert [(await get(outer)).status for _ in range(4)] == [200, 200, 429, 429]
        assert (await limiter.peek("ip:192.0.2.7")).remaining == 3

    run(test)


@pytest.mark.parametrize(
    "algorithm",
    ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket", "leaky_bucket", "gcra"],
)
def test_what_was_given_back_is_not_missing_from_what_is_told(clock: FakeClock, algorithm: str) -> None:
    async def test() -> None:
        rules = [
            Rule(id="outer", quota=f"9/minute {algorithm}", dimension="ip", cost=2),
            Rule(id="shadow", quota="1/day", dimension="ip", action="log_only"),
        ]
        inner = RateLimitMiddleware(answer, limiter=AsyncLimiter("1/hour", name="inner", clock=clock))
        outer = RateLimitMiddleware(inner, limiter=AsyncLimiter(rules, clock=clock))
        assert '"outer";r=7;' in (await get(outer)).headers["ratelimit"]
        for _ in range(2):
            refused = await get(outer)
            assert (refused.status, refused.headers["x-ratelimit-remaining"]) == (429, "0")
            assert '"outer";r=7;' in refused.headers["ratelimit"]
        clock.advance(1_800)
        assert '"outer";r=9;t=0' in (await get(outer)).headers["ratelimit"]

    run(test)


@pytest.mark.parametrize(
    ("root", "path", "routed"),
    [
        ("", "/search", "/search"),
        ("/api", "/search", "/search"),
        ("/api", "/api/search", "/search"),
        ("/api", "/api", ""),
        ("/api", "/apis/search", "/apis/search"),
        (None, "/search", "/search"),
    ],
)
def test_a_path_is_that_which_the_app_routes(root: str | None, path: str, routed: str) -> None:
    assert AsgiRequest(scope_of(path, root_path=root)).path == routed


def test_clients_that_are_remembered_are_forgotten_when_proxies_are_trusted_later(clock: FakeClock) -> None:
    async def test() -> None:
        rules = [Rule(id="r", quota="9/minute", dimension="ip")]
        limiter = AsyncLimiter(Snapshot(rules), clock=clock)
        app = RateLimitMiddleware(answer, limiter=limiter)
        forwarded = [(b"x-forwarded-for", b"198.51.100.1")]
        for _ in range(2):
            await get(app, headers=forwarded)
        limiter.holder.swap(Snapshot(rules, trusted_proxies=[ip_network("192.0.2.0/24")]))
        for _ in range(2):
            await get(app, headers=forwarded)
        left = [(await limiter.peek(ip=ip)).remaining for ip in ("192.0.2.7", "198.51.100.1")]
        assert left == [7, 7]

    run(test)


def test_what_an_app_does_to_the_facts_of_a_request_does_not_reach_the_next_one(clock: FakeClock) -> None:
    async def test() -> None:
        found: list[dict[str, str]] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            facts = scope["state"]["headgate"].facts
            found.append(dict(facts))
            facts["user"] = "somebody else"
            await answer(scope, receive, send)

        limiter = AsyncLimiter("9/minute", clock=clock)
        limited = RateLimitMiddleware(app, limiter=limiter)
        for _ in range(3):
            await get(limited)
        assert found == [{"user": "ip:192.0.2.7"}] * 3
        assert (await limiter.peek("ip:192.0.2.7")).remaining == 6

    run(test)


def test_a_full_store_lets_a_remembered_client_pass_or_not_as_the_failure_mode_says(clock: FakeClock) -> None:
    async def test() -> None:
        store = MemoryStore(max_keys=1, clock=clock)
        limiter = AsyncLimiter("1/minute fixed_window", store=store, clock=clock, failure_mode="closed")
        app = RateLimitMiddleware(answer, limiter=limiter)
        statuses = [(await get(app, client=(ip, 1))).status for ip in ("192.0.2.7", "192.0.2.8", "192.0.2.8")]
        assert statuses == [200, 503, 503]
        clock.advance(60)
        assert [(await get(app, client=("192.0.2.8", 1))).status for _ in range(2)] == [200, 429]

    run(test)


def test_a_client_without_an_address_is_limited_all_the_same() -> None:
    async def test() -> None:
        limiter = AsyncLimiter([Rule(id="r", quota="2/minute", dimension="ip")])
        for app in (
            RateLimitMiddleware(answer, limiter=AsyncLimiter("2/minute")),
            RateLimitMiddleware(answer, limiter=limiter),
        ):
            assert [(await get(app, client=None)).status for _ in range(3)] == [200, 200, 429]

    run(test)


@pytest.mark.parametrize("options", [{}, {"cost": 2}, {"charge_header": "X-Cost"}], ids=str)
@pytest.mark.parametrize(
    "rules", ["2/minute", [Rule(id="r", quota="2/minute", dimension="ip")]], ids=["quota", "rules"]
)
def test_a_request_leaves_nothing_to_the_garbage_collector(rules: Any, options: Any) -> None:
    """Servers have the request's scope where they have `send`: what is put into the scope must not lead back there."""

    class Request(Client):
        scope: Scope

    async def main() -> None:
        middleware = RateLimitMiddleware(App(), limiter=AsyncLimiter(rules), **options)
        statuses = []
        for _ in range(4):
            request = Request()
            request.scope = scope_of()
            await middleware(request.scope, request.receive, request.send)
            statuses.append(request.status)
            left = weakref.ref(request)
            del request
            assert left() is None
        assert statuses[0] == 200
        assert statuses[-1] == 429

    gc.disable()
    try:
        run(main)
    finally:
        gc.enable()


def test_odd_options_are_refused() -> None:
    limiter = AsyncLimiter("1/minute")
    for wrong in (Limiter("1/minute"), "1/minute", None):
        with pytest.raises(InvalidRule, match="limiter: must be an AsyncLimiter, got"):
            RateLimitMiddleware(answer, limiter=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRule, match="skip: must be a list"):
        RateLimitMiddleware(answer, limiter=limiter, skip="/healthz")
    with pytest.raises(InvalidRule, match="healthz"):
        RateLimitMiddleware(answer, limiter=limiter, skip=["healthz"])
    with pytest.raises(InvalidRule, match="charge_header"):
        RateLimitMiddleware(answer, limiter=limiter, charge_header="x charge")
    with pytest.raises(InvalidRule, match="max_waiting"):
        RateLimitMiddleware(answer, limiter=limiter, max_waiting=-1)
    with pytest.raises(InvalidCheck, match="cost"):
        RateLimitMiddleware(answer, limiter=limiter, cost=-1)
    with pytest.raises(TypeError, match="'max_wait'"):
        RateLimitMiddleware(answer, limiter=limiter, max_wait=1)  # type: ignore[call-arg]


# Charging after the fact.


def costly(told: str | None) -> App_:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/plain")]
        if told is not None:
            headers.append((b"X-Charge", told.encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"hello"})

    return app


@pytest.mark.parametrize(
    ("estimate", "told", "remaining", "cost"),
    [
        (1, "30", 70, "30"),
        (50, "30", 70, "30"),
        (50, "0", 100, "0"),
        (50, None, 50, "50"),
        (50, "1e3", 50, "50"),
        (50, "-1", 50, "50"),
        (50, "9" * 20, 50, "50"),
        (50, "", 50, "50"),
        (0, "30", 70, "30"),
        (50, "150", 0, "150"),  # it was used: the next ones wait for it
    ],
)
def test_what_the_app_says_that_it_cost_is_charged(
    clock: FakeClock, estimate: int, told: str | None, remaining: int, cost: str
) -> None:
    async def test() -> None:
        limiter = AsyncLimiter([Rule(id="tokens", quota="100/minute fixed_window", dimension="ip")], clock=clock)
        app = RateLimitMiddleware(costly(told), limiter=limiter, cost=estimate, charge_header="X-Charge")
        client = await get(app)
        assert (client.headers["x-ratelimit-cost"], "x-charge" in client.headers) == (cost, False)
        assert (await limiter.peek(ip="192.0.2.7")).remaining == remaining
        if remaining == 0:
            assert (await get(app)).status == 429

    run(test)


def test_a_rules_own_cost_multiplies_what_is_charged_after_the_fact(clock: FakeClock) -> None:
    async def test() -> None:
        rules = [
            Rule(id="double", quota="100/minute", dimension="ip", cost=2),
            Rule(id="single", quota="100/minute", dimension="ip"),
        ]
        limiter = AsyncLimiter(rules, clock=clock)
        await get(RateLimitMiddleware(costly("20"), limiter=limiter, charge_header="x-charge"))
        left = {limit.rule: limit.remaining for limit in (await limiter.peek(ip="192.0.2.7")).limits}
        assert left == {"double": 60, "single": 80}

    run(test)


def test_an_app_reserves_and_settles_for_its_client(clock: FakeClock) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reservation = await scope["state"]["headgate"].reserve(50)
        await reservation.settle(12)
        await answer(scope, receive, send)

    async def test() -> None:
        by_rule = AsyncLimiter([Rule(id="tokens", quota="100/minute", dimension="ip")], clock=clock)
        await get(RateLimitMiddleware(app, limiter=by_rule, cost=0))
        assert (await by_rule.peek(ip="192.0.2.7")).remaining == 88
        by_client = AsyncLimiter("100/minute", clock=clock)
        await get(RateLimitMiddleware(app, limiter=by_client, cost=0))
        assert (await by_client.peek("ip:192.0.2.7")).remaining == 88

    run(test)


# Holding back: action throttle.


def throttled(clock: FakeClock, quota: str = "1/10s gcra", max_delay: str = "30s") -> AsyncLimiter:
    rule = Rule(id="slow", quota=quota, dimension="ip", action="throttle", max_delay=max_delay)
    return AsyncLimiter([rule], clock=clock)


def test_a_request_over_the_limit_waits_for_its_turn(clock: FakeClock) -> None:
    async def test() -> None:
        app = RateLimitMiddleware(answer, limiter=throttled(clock))
        before = clock.now_us()
        statuses = [(await get(app)).status for _ in range(3)]
        assert statuses == [200, 200, 200]
        assert clock.now_us() - before == 20_000_000

    run(test)


def test_one_that_would_have_to_wait_too_long_is_refused_at_once(clock: FakeClock) -> None:
    async def test() -> None:
        app = RateLimitMiddleware(answer, limiter=throttled(clock, max_delay="9s"))
        await get(app)
        before = clock.now_us()
        client = await get(app)
        assert (client.status, client.headers["retry-after"]) == (429, "10")
        assert clock.now_us() == before

    run(test)


def test_a_leaky_bucket_lets_requests_out_at_its_own_pace(clock: FakeClock) -> None:
    async def test() -> None:
        app = RateLimitMiddleware(answer, limiter=throttled(clock, "1/s burst 5 leaky_bucket"))
        begin = clock.now_us()
        turns = []
        for _ in range(4):
            assert (await get(app)).status == 200
            turns.append((clock.now_us() - begin) / 1e6)
        assert turns == [0, 1, 2, 3]

    run(test)


@pytest.mark.parametrize(("max_delay", "status", "waited"), [("1s", 200, 1.0), ("999ms", 429, 0.0)])
def test_the_wait_for_room_and_that_for_the_turn_are_no_longer_than_max_delay_together(
    clock: FakeClock, max_delay: str, status: int, waited: float
) -> None:
    async def test() -> None:
        limiter = throttled(clock, "2/s burst 2 leaky_bucket", max_delay)
        for _ in range(2):  # which fill it
            await limiter.check(ip="192.0.2.7")
        begin = clock.now_us()
        assert (await get(RateLimitMiddleware(answer, limiter=limiter))).status == status
        assert (clock.now_us() - begin) / 1e6 == waited

    run(test)


def test_one_that_is_admitted_too_late_for_its_turn_is_refused_and_costs_nothing() -> None:
    class Busy(FakeClock):
        """While somebody sleeps, others come."""

        async def sleep_async(self, seconds: float) -> None:
            self.advance(seconds)
            for host in range(3):
                await limiter.check(ip=f"192.0.2.{host + 8}")

    async def test() -> None:
        client = await get(RateLimitMiddleware(answer, limiter=limiter))
        assert (client.status, client.headers["retry-after"]) == (429, "15")
        assert clock.now() - 1_700_000_000 == 10
        assert {one.rule: one.remaining for one in (await limiter.peek(ip="192.0.2.7")).limits} == {"one": 1, "all": 6}

    clock = Busy(1_700_000_000)
    rules = [
        Rule(id="one", quota="1/10s gcra", dimension="ip", action="throttle", max_delay="14s"),
        Rule(id="all", quota="1/5s burst 9 leaky_bucket", dimension="global", action="throttle", max_delay="60s"),
    ]
    limiter = AsyncLimiter(rules, clock=clock)
    asyncio.run(limiter.check(ip="192.0.2.7"))
    run(test)


class Standing(FakeClock):
    """A clock on which sleepers wait until they are woken."""

    def __init__(self) -> None:
        super().__init__(1_700_000_000)
        self.woken = asyncio.Event()
        self.asleep = 0

    async def sleep_async(self, seconds: float) -> None:
        self.asleep += 1
        await self.woken.wait()
        self.advance(seconds)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


def test_only_so_many_wait_and_a_client_that_leaves_makes_room() -> None:
    async def test() -> None:
        clock = Standing()
        app = App()
        gate = RateLimitMiddleware(app, limiter=throttled(clock), max_waiting=2)
        await get(gate)
        waiting = [Client() for _ in range(2)]
        tasks = [asyncio.create_task(gate(scope_of(), one.receive, one.send)) for one in waiting]
        await until(lambda: clock.asleep == 2)
        assert (await get(gate)).status == 429  # no room
        waiting[0].gone.set()
        await tasks[0]
        assert (waiting[0].got, app.requests) == ([], 1)  # nobody to answer, nothing for the app to do
        third = Client()
        tasks.append(asyncio.create_task(gate(scope_of(), third.receive, third.send)))
        await until(lambda: clock.asleep == 3)
        clock.woken.set()
        await asyncio.gather(*tasks)
        assert sorted((waiting[1].status, third.status)) == [200, 200]
        assert app.received == [BODY] * 3

    run(test)


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_client_that_leaves_a_leaky_bucket_makes_room_in_it(cancelled: bool) -> None:
    async def test() -> None:
        clock, app = Standing(), App()
        limiter = throttled(clock, "1/s burst 5 leaky_bucket")
        gate = RateLimitMiddleware(app, limiter=limiter)
        await get(gate)
        waiting = [Client() for _ in range(3)]
        tasks = [asyncio.create_task(gate(scope_of(), one.receive, one.send)) for one in waiting]
        await until(lambda: clock.asleep == 3)
        assert (await limiter.peek(ip="192.0.2.7")).remaining == 1
        for client, task in zip(waiting, tasks, strict=True):
            task.cancel() if cancelled else client.gone.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (await limiter.peek(ip="192.0.2.7")).remaining == 4
        assert app.requests == 1

    run(test)


def test_without_room_a_leaky_bucket_refuses_too() -> None:
    async def test() -> None:
        gate = RateLimitMiddleware(answer, limiter=throttled(Standing(), "1/s burst 5 leaky_bucket"), max_waiting=0)
        assert (await get(gate)).status == 200
        client = await get(gate)
        assert (client.status, client.headers["retry-after"]) == (429, "1")

    run(test)


def test_a_body_reaches_the_app_whole_after_the_wait() -> None:
    async def test() -> None:
        clock = Standing()
        chunks: list[Message] = [
            {"type": "http.request", "body": b"a", "more_body": True},
            {"type": "http.request", "body": b"b", "more_body": True},
            {"type": "http.request", "body": b"c", "more_body": False},
        ]
        bodies: list[bytes] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            message: Message = {"more_body": True}
            while message.get("more_body"):
                message = await receive()
                bodies.append(message["body"])
            await answer(scope, receive, send)

        gate = RateLimitMiddleware(app, limiter=throttled(clock))
        await get(gate)
        client = Client(*chunks)
        task = asyncio.create_task(gate(scope_of(), client.receive, client.send))
        await until(lambda: clock.asleep == 1)
        await asyncio.sleep(0.01)
        assert len(client.messages) == 2  # of a body on its way, one part is read and no more
        clock.woken.set()
        await task
        assert bodies == [b"", b"a", b"b", b"c"]

    run(test)


# WebSockets: limited when they are opened.


def socket_of(**extensions: Any) -> Scope:
    return scope_of("/ws", type="websocket", extensions=extensions)


async def accept(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept", "headers": []})
    await send({"type": "websocket.close"})


def test_a_websocket_is_told_when_it_is_accepted(clock: FakeClock) -> None:
    async def test() -> None:
        app = RateLimitMiddleware(accept, limiter=AsyncLimiter("1/minute", clock=clock))
        client = Client({"type": "websocket.connect"})
        await app(socket_of(), client.receive, client.send)
        assert client.headers["x-ratelimit-remaining"] == "0"

    run(test)


@pytest.mark.parametrize("answers", [False, True])
def test_a_refused_websocket_is_answered_if_the_server_can_and_else_closed(clock: FakeClock, answers: bool) -> None:
    async def test() -> None:
        app = RateLimitMiddleware(accept, limiter=AsyncLimiter("1/minute", clock=clock))
        await get(app)
        client = Client({"type": "websocket.connect"})
        await app(socket_of(**({"websocket.http.response": {}} if answers else {})), client.receive, client.send)
        assert client.messages == []
        if answers:
            assert [one["type"] for one in client.got] == [
                "websocket.http.response.start",
                "websocket.http.response.body",
            ]
            assert client.status == 429
        else:
            assert [one["type"] for one in client.got] == ["websocket.close"]

    run(test)
