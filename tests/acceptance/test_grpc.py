"""The interceptor in real servers of grpcio, of every kind, called by a real client on loopback."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import grpc
import grpc.aio
import jwt
import pytest

from headgate import AsyncLimiter, Limiter, Quota, Rule
from headgate.errors import InvalidCheck, InvalidRule
from headgate.http.grpc import (
    HEALTH,
    AsyncRateLimitInterceptor,
    GrpcRequest,
    RateLimitInterceptor,
    SyncRateLimitInterceptor,
)
from headgate.http.identity import JWT, Identity
from headgate.testing import FakeClock
from tests.acceptance.apps.grpc_echo import KINDS, SERVICE, AsyncEcho, Echo, handlers, serving
from tests.integration.limiters import calm, calm_window
from tests.servers import Server, default_binary, free_port
from tests.webserver import ROOT, running

OK = grpc.StatusCode.OK
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
START = 1_700_000_040.0
STUCK = 30.0  # seconds after which a call will never end
MINUTE = [Rule(id="r", quota="2/minute fixed_window", dimension="ip", message="Two a minute.")]
STREAMS = ("fan", "chat", "limits_stream", "abort_in_stream", "fail_in_stream")


class Answer(NamedTuple):
    """What a client sees of a call."""

    code: grpc.StatusCode
    details: str
    responses: list[bytes]
    initial: dict[str, str | bytes]
    trailing: dict[str, str | bytes]


class Client:
    """Calls methods of whichever kind, and shows how that ended."""

    def __init__(self, address: str, **options: Any) -> None:
        self.channel: Any = grpc.insecure_channel(address, **options)

    def __call__(self, method: str, *requests: bytes, service: str = SERVICE, **options: Any) -> Answer:
        call = self.start(method, *(requests or (b"x",)), service=service, **options)
        responses = []
        try:
            for response in [call.result()] if method not in STREAMS else call:
                responses.append(response)
        except grpc.RpcError:
            pass
        return Answer(
            call.code(), call.details(), responses, _once(call.initial_metadata()), _once(call.trailing_metadata())
        )

    def start(self, method: str, *requests: bytes, service: str = SERVICE, **options: Any) -> Any:
        path, channel = f"/{service}/{method}", self.channel
        options.setdefault("timeout", STUCK)
        if method == "join":
            return channel.stream_unary(path).future(iter(requests), **options)
        if method == "chat":
            return channel.stream_stream(path)(iter(requests), **options)
        if method in STREAMS:
            return channel.unary_stream(path)(requests[0], **options)
        return channel.unary_unary(path).future(requests[0], **options)


def _once(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str | bytes]:
    pairs = [(key, value) for key, value in metadata or ()]
    assert len(dict(pairs)) == len(pairs), f"told twice: {pairs}"
    return dict(pairs)


@contextmanager
def client_of(kind: str, rules: str | Quota | list[Rule], **options: Any) -> Iterator[Client]:
    with serving(kind, rules, **options) as address:
        client = Client(address)
        with client.channel:
            yield client


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def own_server() -> Iterator[Server]:
    with Server(default_binary()) as server:
        yield server


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """grpc logs the exceptions of handlers, of which there are some here."""
    caplog.set_level(logging.CRITICAL, logger="grpc")


CALLS = (
    ("unary", (b"a",), [b"a"]),
    ("fan", (b"a",), [b"a0", b"a1", b"a2"]),
    ("join", (b"a", b"b"), [b"ab"]),
    ("chat", (b"a", b"b"), [b"A", b"B"]),
)


@pytest.mark.parametrize(("method", "requests", "responses"), CALLS)
def test_all_kinds_of_methods_are_limited(
    kind: str, method: str, requests: tuple[bytes, ...], responses: list[bytes]
) -> None:
    with client_of(kind, MINUTE, limiter={"clock": FakeClock(START)}) as client:
        for remaining in ("1", "0"):
            answer = client(method, *requests)
            assert (answer.code, answer.responses) == (OK, responses)
            assert answer.trailing["x-ratelimit-remaining"] == remaining
        assert answer.initial == {}
        refused = client(method, *requests)
        assert (refused.code, refused.responses) == (EXHAUSTED, [])


def test_what_clients_are_told(kind: str) -> None:
    with client_of(kind, MINUTE, limiter={"clock": FakeClock(START)}) as client:
        told = {
            "x-ratelimit-limit": "2",
            "x-ratelimit-remaining": "1",
            "x-ratelimit-reset": str(round(START) + 60),
            "ratelimit-policy": '"r";q=2;w=60',
            "ratelimit": '"r";r=1;t=60',
        }
        assert client("unary") == (OK, "", [b"x"], {}, told)
        client("unary")
        told |= {
            "x-ratelimit-remaining": "0",
            "ratelimit": '"r";r=0;t=60',
            "retry-after": "60",
            "grpc-retry-pushback-ms": "60000",
        }
        assert client("unary") == (EXHAUSTED, "Two a minute.", [], {}, told)


def test_without_a_rule_nothing_is_told(kind: str) -> None:
    rules = [Rule(id="r", quota="1/minute", dimension="ip", endpoints=["/other.Service/*"])]
    with client_of(kind, rules) as client:
        assert [client("unary") for _ in range(2)] == [(OK, "", [b"x"], {}, {})] * 2


def test_endpoints_are_full_methods(kind: str) -> None:
    rules = [
        Rule(id="one", quota="1/minute", dimension="ip", endpoints=[f"/{SERVICE}/fan"]),
        Rule(id="service", quota="9/minute", dimension="ip", endpoints=[f"/{SERVICE}/*"], methods=["POST"]),
    ]
    with client_of(kind, rules, limiter={"clock": FakeClock(START)}) as client:
        assert client("unary").trailing["ratelimit-policy"] == '"service";q=9;w=60'
        assert client("fan").trailing["ratelimit-policy"] == '"one";q=1;w=60, "service";q=9;w=60'
        assert client("fan").code is EXHAUSTED
        assert client("unary").trailing["x-ratelimit-remaining"] == "6"


def test_a_notation_counts_by_client(kind: str) -> None:
    with client_of(kind, calm(1), identify=lambda request: request.header("x-user")) as client:
        codes = [client("unary", metadata=(("x-user", user),)).code for user in ("alice", "bob", "alice")]
        assert codes == [OK, OK, EXHAUSTED]


@pytest.mark.parametrize("method", ["limits", "limits_stream"])
def test_handlers_see_the_limits(kind: str, method: str) -> None:
    with client_of(kind, MINUTE, cost=2, limiter={"clock": FakeClock(START)}) as client:
        answer = client(method)
        facts = {"ip": "127.0.0.1", "endpoint": f"/{SERVICE}/{method}", "method": "POST"}
        assert all(json.loads(one) == {"facts": facts, "charged": [[0, 2]]} for one in answer.responses)
        assert (len(answer.responses), answer.trailing["x-ratelimit-cost"]) == (1 + (method in STREAMS), "2")
        # A thread that has handled one call remembers nothing of it in the next.
        assert [client("Check", service="grpc.health.v1.Health").responses for _ in range(40)] == [[b"null"]] * 40


def test_health_checks_pass_unless_told_otherwise(kind: str) -> None:
    with client_of(kind, calm(1)) as client:
        answers = [client("Check", service="grpc.health.v1.Health") for _ in range(3)]
        assert answers == [(OK, "", [b"null"], {}, {})] * 3
    with client_of(kind, calm(1), skip=()) as client:
        assert [client("Check", service="grpc.health.v1.Health").code for _ in range(2)] == [OK, EXHAUSTED]
    with client_of(kind, calm(1), skip=[HEALTH, f"/{SERVICE}/unary"]) as client:
        assert [client("unary").code for _ in range(2)] == [OK, OK]
        assert [client("fan").code for _ in range(2)] == [OK, EXHAUSTED]


# Identity and cost


def _identify(request: GrpcRequest) -> dict[str, Any]:
    return {"user": request.header("x-user"), "tenant": request.header("x-tenant"), "ip": request.peer}


async def _identify_async(request: GrpcRequest) -> dict[str, Any]:
    await asyncio.sleep(0)
    return _identify(request)


def test_identity_from_metadata(kind: str) -> None:
    rules = [Rule(id="r", quota=calm(1), dimension="user")]
    functions = [_identify] if kind == "threads" else [_identify, _identify_async]
    for identify in functions:
        with client_of(kind, rules, identify=identify) as client:
            codes = [client("unary", metadata=(("x-user", user),)).code for user in ("alice", "bob", "alice")]
            assert codes == [OK, OK, EXHAUSTED]
            metadata = (("x-user", "carol"), ("x-tenant", "a"), ("x-tenant", "b"))
            facts = json.loads(client("limits", metadata=metadata).responses[0])["facts"]
            assert (facts["user"], facts["tenant"], facts["ip"]) == ("carol", "a, b", "127.0.0.1")


def test_who_is_asking_is_read_from_metadata_as_from_headers(kind: str) -> None:
    key = "a secret of at least thirty-two bytes, for HS256"
    token = jwt.encode({"sub": "alice", "exp": time.time() + 600}, key, algorithm="HS256")
    identity = Identity(trusted_proxies=["127.0.0.1"], jwt=JWT(algorithms=["HS256"], key=key))
    with client_of(kind, [Rule(id="r", quota=calm(100), dimension="ip")], identity=identity) as client:
        metadata = (("authorization", f"Bearer {token}"), ("x-forwarded-for", "203.0.113.9, 198.51.100.7"))
        facts = json.loads(client("limits", metadata=metadata).responses[0])["facts"]
        assert (facts["user"], facts["ip"]) == ("alice", "198.51.100.7")
        forged = json.loads(client("limits", metadata=(("authorization", f"Bearer {token}x"),)).responses[0])["facts"]
        assert "user" not in forged


def test_cost_is_a_function_of_the_request(kind: str) -> None:
    def cost(request: GrpcRequest) -> int:
        return 5 if request.message is None else len(request.message)

    with client_of(kind, [Rule(id="r", quota=calm(10), dimension="ip")], cost=cost) as client:
        assert client("unary", b"abc").trailing["x-ratelimit-remaining"] == "7"
        assert client("join", b"abc", b"d").trailing["x-ratelimit-cost"] == "5"
        never = client("unary", b"x" * 11)
        assert (never.code, never.trailing["grpc-retry-pushback-ms"]) == (EXHAUSTED, "-1")
        assert "retry-after" not in never.trailing


def test_clients_that_retry_wait_as_they_are_told(kind: str) -> None:
    policy = {
        "maxAttempts": 2,
        "initialBackoff": "0.001s",
        "maxBackoff": "0.001s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
    }
    config = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": policy}]})
    rules = [Rule(id="r", quota="2/second gcra", dimension="ip")]
    with serving(kind, rules) as address:
        client = Client(address, options=[("grpc.service_config", config)])
        with client.channel:
            # Each one above the burst is refused, tried again when it fits, and then passes.
            assert [client("unary").code for _ in range(4)] == [OK] * 4


# What handlers do stays as it is


def test_metadata_of_handlers_is_kept(kind: str) -> None:
    with client_of(kind, MINUTE) as client:
        answer = client("metadata")
        assert (answer.code, answer.initial) == (OK, {"own-initial": "1"})
        assert answer.trailing.items() >= {"own-trailing": "2", "own-bin": b"\xff"}.items()
        assert answer.trailing["x-ratelimit-limit"] == "2"


FAILURES = [
    ("abort", grpc.StatusCode.FAILED_PRECONDITION, "not now", {"own-trailing": "3"}),
    ("abort_in_stream", grpc.StatusCode.DATA_LOSS, "lost", {"own-trailing": "4"}),
    ("code", grpc.StatusCode.NOT_FOUND, "nowhere", {}),
    ("fail", grpc.StatusCode.UNKNOWN, "no such thing", {}),
    ("fail_in_stream", grpc.StatusCode.UNKNOWN, "no such thing", {}),
]


@pytest.mark.parametrize(
    ("kind", "method", "code", "details", "own"),
    [
        (kind, *failure)
        for kind in KINDS
        for failure in FAILURES
        # Bare grpcio 1.85 does not end such a call: the client runs into its deadline.
        if (kind, failure[0]) != ("asyncio-threads", "abort_in_stream")
    ],
)
def test_errors_of_handlers_pass_unchanged(
    kind: str, method: str, code: grpc.StatusCode, details: str, own: dict[str, str]
) -> None:
    with client_of(kind, MINUTE, skip=[f"/{SERVICE}/*"]) as client:
        bare = client(method)
    with client_of(kind, MINUTE) as client:
        answer = client(method)
    assert answer.trailing.items() >= own.items()
    assert answer.trailing["x-ratelimit-limit"] == "2"
    assert bare.trailing == own
    assert answer._replace(trailing={}) == bare._replace(trailing={})
    assert answer.code is code
    assert details in answer.details
    assert answer.responses == ([b"x"] if method in STREAMS else [])


def test_unknown_methods_stay_unknown(kind: str) -> None:
    with client_of(kind, MINUTE) as client:
        assert client("nothing").code is grpc.StatusCode.UNIMPLEMENTED


# Exactness


def _hammer(clients: list[Client], calls: int) -> Counter[grpc.StatusCode]:
    methods = ("unary", "fan", "join", "chat")

    def call(number: int) -> grpc.StatusCode:
        return clients[number % len(clients)](methods[number % 4]).code

    with ThreadPoolExecutor(16) as threads:
        return Counter(threads.map(call, range(calls)))


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_exactly_the_limit_is_admitted(kind: str, store: str, request: pytest.FixtureRequest) -> None:
    url = "memory://" if store == "memory" else request.getfixturevalue("own_server").url + "?timeout=10"
    with client_of(kind, [Rule(id="r", quota=calm(50), dimension="ip")], limiter={"store": url}) as client:
        assert _hammer([client], 200) == {OK: 50, EXHAUSTED: 150}


def test_two_processes_admit_exactly_the_limit(redis_url: str) -> None:
    window = calm_window()
    clients = []
    with ExitStack() as stack:
        for kind in ("threads", "asyncio"):
            port = free_port()
            job = {"kind": kind, "port": port, "limit": 50, "window": window, "limiter": {"store": redis_url}}
            command = [sys.executable, "-m", "tests.acceptance.apps.grpc_echo", json.dumps(job)]
            stack.enter_context(running(command, port, warm=True))
            clients.append(Client(f"127.0.0.1:{port}"))
            stack.enter_context(clients[-1].channel)
        assert _hammer(clients, 200) == {OK: 50, EXHAUSTED: 150}


# Faults


@pytest.mark.parametrize(("mode", "code"), [("open", OK), ("closed", UNAVAILABLE), ("local", OK)])
def test_a_store_that_is_down_follows_the_failure_policy(
    kind: str, mode: str, code: grpc.StatusCode, own_server: Server
) -> None:
    rules = [Rule(id="r", quota=calm(9), dimension="ip")]
    with client_of(kind, rules, limiter={"store": own_server.url + "?timeout=10", "failure_mode": mode}) as client:
        assert client("unary").code is OK
        own_server.stop()
        for method in ("unary", "fan", "join", "chat"):
            answer = client(method)
            assert answer.code is code, answer
        if code is UNAVAILABLE:
            assert answer.details == "The request could not be checked against its rate limits. Please try again."
            assert int(answer.trailing["grpc-retry-pushback-ms"]) > 0
        own_server.start()


# Throttling


def test_throttled_calls_are_held_back_and_forwarded(kind: str) -> None:
    clock = FakeClock(START)
    rules = [Rule(id="r", quota="1/second gcra", dimension="ip", action="throttle", max_delay="2s")]
    with client_of(kind, rules, limiter={"clock": clock}) as client:
        assert [client(method).code for method in ("unary", "fan", "join", "chat")] == [OK] * 4
        assert clock.now() == pytest.approx(START + 3)
    clock = FakeClock(START)
    quota = Quota(1, 1, burst=3, algorithm="leaky_bucket")
    rules = [Rule(id="r", quota=quota, dimension="ip", action="throttle", max_delay="9s")]
    with client_of(kind, rules, limiter={"clock": clock}, max_waiting=0) as client:
        assert client("unary").code is OK
        refused = client("unary")
        assert (refused.code, refused.trailing["retry-after"]) == (EXHAUSTED, "1")
        assert clock.now() == START


LONG = [Rule(id="r", quota="1/minute gcra", dimension="ip", action="throttle", max_delay="2m")]


@pytest.mark.parametrize("method", ["unary", "chat"])
def test_a_client_that_leaves_frees_its_place(kind: str, method: str) -> None:
    """Only one may wait. While one does, all others are refused; when it has gone, another waits."""
    with client_of(kind, LONG, max_waiting=1) as client:
        assert client("unary").code is OK
        for _ in range(3):
            held = _held(client, method)
            assert client("unary").code is EXHAUSTED
            held.cancel()


def test_a_client_that_leaves_a_leaky_bucket_makes_room_in_it(kind: str) -> None:
    """The bucket holds two. With one being handled and one that waits, the next is refused."""
    rules = [Rule(id="r", quota="1/minute burst 2 leaky_bucket", dimension="ip", action="throttle", max_delay="1m")]
    with client_of(kind, rules) as client:
        assert client("unary").code is OK
        for _ in range(3):
            held = _held(client, "unary")
            assert client("unary").code is EXHAUSTED
            held.cancel()


def _held(client: Client, method: str) -> Any:
    """A call that is being held back, once there is a place for it."""
    deadline = time.monotonic() + STUCK
    while True:
        call = client.start(method, b"x", timeout=None)
        pause = time.monotonic() + 0.3
        while call.is_active() and time.monotonic() < pause:
            time.sleep(0.01)
        if call.is_active():
            return call
        assert time.monotonic() < deadline, "the place was not given back"


def test_a_deadline_that_is_too_near_is_not_waited_for(kind: str) -> None:
    with client_of(kind, LONG) as client:
        assert client("unary").code is OK
        assert client("unary", timeout=20).code is EXHAUSTED


# Several interceptors


def test_two_interceptors_tell_of_both_limits_once() -> None:
    clock = FakeClock(START)
    rules = [[Rule(id=name, quota=quota, dimension="ip")] for name, quota in (("a", "9/minute"), ("b", "1/minute"))]
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(
            threads, interceptors=[RateLimitInterceptor(limiter=Limiter(one, clock=clock)) for one in rules]
        )
        server.add_generic_rpc_handlers(handlers(Echo()))
        client = Client(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        server.start()
        with client.channel:
            for method, code in (("unary", OK), ("fan", EXHAUSTED), ("unary", EXHAUSTED)):
                answer = client(method)
                assert answer.code is code
                assert answer.trailing["ratelimit-policy"] == '"b";q=1;w=60, "a";q=9;w=60'
                assert ("grpc-retry-pushback-ms" in answer.trailing) is (code is EXHAUSTED)
        server.stop(None).wait()


async def _two_async() -> list[tuple[Any, Any]]:
    clock = FakeClock(START)
    rules = [[Rule(id=name, quota=quota, dimension="ip")] for name, quota in (("a", "9/minute"), ("b", "1/minute"))]
    server = grpc.aio.server(
        interceptors=[RateLimitInterceptor(limiter=AsyncLimiter(one, clock=clock)) for one in rules]
    )
    server.add_generic_rpc_handlers(handlers(AsyncEcho()))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    answers = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(2):
            method: Any = channel.unary_unary(f"/{SERVICE}/unary")
            call = method(b"x", timeout=STUCK)
            code = await call.code()
            answers.append((code, _once(await call.trailing_metadata())["ratelimit-policy"]))
    await server.stop(None)
    return answers


def test_two_async_interceptors_tell_of_both_limits_once() -> None:
    policies = '"b";q=1;w=60, "a";q=9;w=60'
    assert asyncio.run(_two_async()) == [(OK, policies), (EXHAUSTED, policies)]


# Mistakes


def test_the_limiter_decides_the_kind() -> None:
    for limiter, kind, bases in (
        (Limiter("1/minute"), SyncRateLimitInterceptor, (True, False)),
        (AsyncLimiter("1/minute"), AsyncRateLimitInterceptor, (False, True)),
    ):
        made: Any = RateLimitInterceptor(limiter=limiter)
        assert type(made) is kind
        assert tuple(isinstance(made, one.ServerInterceptor) for one in (grpc, grpc.aio)) == bases


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RateLimitInterceptor(limiter="1/minute"), "limiter: must be a Limiter .* got '1/minute'"),  # type: ignore[arg-type]
        (lambda: AsyncRateLimitInterceptor(limiter=Limiter("1/minute")), "must be an AsyncLimiter"),  # type: ignore[arg-type]
        (lambda: SyncRateLimitInterceptor(limiter=AsyncLimiter("1/minute")), "must be a Limiter"),  # type: ignore[arg-type]
        (lambda: RateLimitInterceptor(limiter=Limiter("1/minute"), skip="/a/*"), "skip: must be a list"),
        (lambda: RateLimitInterceptor(limiter=Limiter("1/minute"), identify=_identify_async), "identify: .* async"),
        (lambda: RateLimitInterceptor(limiter=Limiter("1/minute"), max_waiting=-1), "max_waiting: .* got -1"),
    ],
)
def test_mistakes_are_told(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidRule, match=message):
        make()


def test_a_cost_that_is_none_is_told() -> None:
    with pytest.raises(InvalidCheck, match=r"cost: .* got -1"):
        RateLimitInterceptor(limiter=Limiter("1/minute"), cost=-1)


def test_an_async_limiter_in_a_server_of_threads_is_told() -> None:
    interceptor = RateLimitInterceptor(limiter=AsyncLimiter("1/minute"))
    with pytest.raises(InvalidRule, match=r"must be a Limiter for grpc\.server"):
        interceptor.intercept_service(lambda _: None, None)  # type: ignore[arg-type]


def test_without_grpcio_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['grpc'] = None; import headgate.http.grpc"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert "ImportError: headgate.http.grpc needs grpcio: pip install 'headgate[grpc]'" in done.stderr
