"""Limits as dependencies of FastAPI, in one process. Over the wire: tests/acceptance and tests/examples.

Windows are long, so that none ends within a test; where it matters, the clock is our own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from headgate import AsyncLimiter, InvalidCheck, InvalidQuota, InvalidRule, Limiter, RateLimited, Rule
from headgate.http.fastapi import RESPONSES, Refused, install, limit
from headgate.http.limits import Limits
from headgate.rules import Snapshot
from headgate.rules.exemptions import Exemption
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock

PROBLEM = "application/problem+json"


def send(app: FastAPI, *requests: str, client: str = "192.0.2.1", headers: dict[str, str] | None = None) -> list[Any]:
    """The responses to requests like `GET /users/1`, made one after the other."""

    async def all_of_them() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as http:
            return [await http.request(*request.split(" ", 1)) for request in requests]

    return asyncio.run(all_of_them())


def statuses(app: FastAPI, *requests: str, **options: Any) -> list[int]:
    return [response.status_code for response in send(app, *requests, **options)]


def policies(response: httpx.Response) -> list[str]:
    """The names of the limits that a response tells of."""
    return sorted(item.split(";")[0].strip('"') for item in response.headers["RateLimit-Policy"].split(", "))


def limiter(rules: Any = (), **options: Any) -> AsyncLimiter:
    return AsyncLimiter(list(rules) if isinstance(rules, tuple) else rules, clock=FakeClock(1_700_000_000), **options)


def test_apps_with_limiters_of_different_names_share_a_store_and_no_count() -> None:
    store = MemoryStore()

    def app(name: str) -> FastAPI:
        shop = FastAPI()
        shop.state.headgate = AsyncLimiter([], store=store, name=name)

        @shop.get("/", dependencies=[Depends(limit("2/day"))])
        def handler() -> None: ...

        return shop

    one, other, same = app("shop-a"), app("shop-b"), app("shop-a")
    assert statuses(one, "GET /", "GET /", "GET /") == [200, 200, 429]
    assert statuses(same, "GET /") == [429]
    assert statuses(other, "GET /", "GET /", "GET /") == [200, 200, 429]
    (response,) = send(other, "GET /")
    assert policies(response) == ["GET /"]  # clients are told of the route alone


def test_a_route_is_limited_per_client() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limit("2/day"))])
    def handler() -> dict[str, str]:
        return {"hello": "world"}

    assert statuses(app, "GET /", "GET /", "GET /") == [200, 200, 429]
    assert statuses(app, "GET /", client="192.0.2.2") == [200]


def test_handlers_need_no_request_argument_and_the_limit_may_be_a_parameter() -> None:
    app = FastAPI()

    @app.get("/")
    async def handler(_: Annotated[None, Depends(limit("1/day"))], q: int = 7) -> int:
        return q

    assert [response.text for response in send(app, "GET /?q=3")] == ["3"]
    assert statuses(app, "GET /") == [429]


def test_a_refusal_is_a_problem_with_headers_also_without_the_middleware() -> None:
    app = FastAPI()
    app.state.headgate = limiter()

    @app.get("/users/{user_id}", dependencies=[Depends(limit("1/day gcra", message="Slow down."))])
    def handler(user_id: int) -> int:
        return user_id

    allowed, refused = send(app, "GET /users/1", "GET /users/2")
    assert allowed.headers["X-RateLimit-Remaining"] == "0"
    assert "Retry-After" not in allowed.headers
    assert refused.status_code == 429
    assert refused.headers["Content-Type"] == PROBLEM
    assert refused.headers["Retry-After"] == "86400"
    assert refused.headers["RateLimit-Policy"] == '"GET /users/{user_id}";q=1;w=86400'
    told = refused.json()
    assert len(told.pop("decision_id")) == 30
    assert told == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "Slow down.",
        "violated-policies": ["GET /users/{user_id}"],
        "retry_after": 86400,
    }


def test_buckets_are_by_template_and_method() -> None:
    app, one = FastAPI(), limit("1/day")

    @app.get("/users/{user_id}", dependencies=[Depends(one)])
    @app.post("/users/{user_id}", dependencies=[Depends(one)])
    @app.get("/groups/{group_id}", dependencies=[Depends(one)])
    def handler() -> None: ...

    assert statuses(app, "GET /users/1", "GET /users/2", "POST /users/3", "POST /users/4") == [200, 429, 200, 429]
    assert statuses(app, "GET /groups/1") == [200]


def test_head_counts_as_get() -> None:
    app = FastAPI()

    @app.api_route("/", methods=["GET", "HEAD"], dependencies=[Depends(limit("1/day"))])
    def handler() -> None: ...

    assert statuses(app, "GET /", "HEAD /") == [200, 429]


def test_shared_limits_count_together() -> None:
    app = FastAPI()

    @app.get("/a", dependencies=[Depends(limit("2/day", name="search"))])
    @app.post("/b", dependencies=[Depends(limit("2/day", name="search"))])
    @app.get("/other", dependencies=[Depends(limit("2/day"))])
    def handler() -> None: ...

    assert statuses(app, "GET /a", "POST /b", "GET /a", "POST /b", "GET /other") == [200, 200, 429, 429, 200]


def test_a_shared_limit_of_router_and_route_counts_a_request_once() -> None:
    app = FastAPI(dependencies=[Depends(limit("2/day", name="all"))])

    @app.get("/", dependencies=[Depends(limit("2/day", name="all"))])
    def handler() -> None: ...

    assert statuses(app, "GET /", "GET /", "GET /") == [200, 200, 429]


def test_limits_of_app_router_and_route_apply_together_and_apart() -> None:
    app = FastAPI(dependencies=[Depends(limit("9/day"))])
    router = APIRouter(prefix="/v1", dependencies=[Depends(limit("3/day"))])

    @router.get("/a/{name}", dependencies=[Depends(limit("1/day"))])
    @router.get("/b")
    def handler() -> None: ...

    app.include_router(router, prefix="/api")
    first, *_ = send(app, "GET /api/v1/a/x")
    assert policies(first) == ["GET /api/v1/a/{name}", "GET /api/v1/a/{name} (2)", "GET /api/v1/a/{name} (3)"]
    assert statuses(app, "GET /api/v1/a/y") == [429]
    assert statuses(app, "GET /api/v1/b", "GET /api/v1/b", "GET /api/v1/b", "GET /api/v1/b") == [200, 200, 200, 429]


def test_a_router_included_twice_has_two_templates() -> None:
    app, router = FastAPI(), APIRouter()

    @router.get("/x", dependencies=[Depends(limit("1/day"))])
    def handler() -> None: ...

    app.include_router(router, prefix="/one")
    app.include_router(router, prefix="/two")
    assert statuses(app, "GET /one/x", "GET /two/x", "GET /one/x", "GET /two/x") == [200, 200, 429, 429]


def test_the_values_of_a_mounts_parameters_make_no_buckets() -> None:
    app, inner = FastAPI(), FastAPI()

    @inner.get("/x", dependencies=[Depends(limit("1/day"))])
    def handler() -> None: ...

    inner.state.headgate = limiter()
    app.mount("/tenants/{tenant:int}", inner)
    app.mount("/plain", inner)
    assert statuses(app, "GET /tenants/1/x", "GET /tenants/2/x", "GET /tenants/01/x") == [200, 429, 429]
    refused, allowed = send(app, "GET /tenants/3/x", "GET /plain/x")
    assert (policies(refused), policies(allowed)) == (["GET /{tenant}/x"], ["GET /plain/x"])


def test_a_limit_refused_later_gives_back_what_the_earlier_had_charged() -> None:
    app, counting = FastAPI(), limiter([Rule(id="all", quota="9/minute", dimension="ip")])
    install(app, limiter=counting)

    @app.get("/", dependencies=[Depends(limit("5/minute")), Depends(limit("1/minute; 2/hour"))])
    def handler() -> None: ...

    assert statuses(app, "GET /", "GET /", "GET /", "GET /") == [200, 429, 429, 429]
    clock = counting.clock
    assert isinstance(clock, FakeClock)
    assert asyncio.run(counting.peek(ip="192.0.2.1")).remaining == 8
    clock.advance(120)
    assert statuses(app, "GET /", "GET /") == [200, 429]
    first = asyncio.run(counting.sibling([Rule(id="GET /", quota="5/minute")]).peek("ip:192.0.2.1"))
    assert first.remaining == 4


def test_a_store_that_is_away_is_a_503_where_the_limit_is_closed() -> None:
    gone = AsyncLimiter([], store="redis://127.0.0.1:1/0?timeout=1", failure_mode="closed")
    app = FastAPI(dependencies=[Depends(limit("5/day")), Depends(limit("1/day", limiter=gone))])

    @app.get("/")
    def handler() -> None: ...

    (refused,) = send(app, "GET /")
    assert refused.status_code == 503
    assert refused.json()["type"].endswith("#temporary-reduced-capacity")
    assert len(refused.headers.get_list("RateLimit")) == 1


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_key_and_cost_are_functions_of_the_request(kind: str) -> None:
    def key(request: Request) -> str:
        return request.headers["X-Org"]

    def cost(request: Request) -> int:
        return int(request.query_params.get("n", "1"))

    async def key_async(request: Request) -> str:
        return key(request)

    async def cost_async(request: Request) -> int:
        return cost(request)

    app = FastAPI()
    functions: Any = (key, cost) if kind == "sync" else (key_async, cost_async)

    @app.get("/", dependencies=[Depends(limit("5/day", key=functions[0], cost=functions[1]))])
    def handler() -> None: ...

    first, *_ = send(app, "GET /?n=3", headers={"X-Org": "a"})
    assert (first.headers["X-RateLimit-Remaining"], first.headers["X-RateLimit-Cost"]) == ("2", "3")
    assert statuses(app, "GET /?n=3", "GET /?n=2", headers={"X-Org": "a"}, client="192.0.2.2") == [429, 200]
    assert statuses(app, "GET /?n=3", headers={"X-Org": "b"}) == [200]


def test_a_key_of_none_counts_by_client_and_no_key_can_pose_as_one() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limit("1/day", key=lambda request: request.headers.get("X-Key")))])
    def handler() -> None: ...

    assert statuses(app, "GET /", headers={"X-Key": "ip:192.0.2.1"}) == [200]
    assert statuses(app, "GET /", "GET /") == [200, 429]


def test_a_key_sees_what_dependencies_before_it_have_found_out() -> None:
    def sign_in(request: Request) -> None:
        request.state.user = request.headers["X-User"]

    app = FastAPI(dependencies=[Depends(limit("9/day"))])

    @app.get("/", dependencies=[Depends(sign_in), Depends(limit("1/day", key=lambda r: r.state.user))])
    def handler() -> None: ...

    assert statuses(app, "GET /", "GET /", headers={"X-User": "alice"}) == [200, 429]
    assert statuses(app, "GET /", headers={"X-User": "bob"}) == [200]


def test_the_store_is_that_of_the_limiter_the_app_or_the_middleware() -> None:
    def remaining(store: MemoryStore, rule: str) -> int:
        looking = AsyncLimiter([], store=store).sibling("5/day", name=rule)
        return asyncio.run(looking.peek("ip:192.0.2.1")).remaining

    stores = [MemoryStore() for _ in range(3)]
    app = FastAPI()
    app.state.headgate = AsyncLimiter([], store=stores[0])

    @app.get("/a", dependencies=[Depends(limit("5/day"))])
    @app.get("/b", dependencies=[Depends(limit("5/day", limiter=AsyncLimiter([], store=stores[1])))])
    def handler() -> None: ...

    outer, inner = FastAPI(), FastAPI()
    install(outer, limiter=AsyncLimiter([], store=stores[2]))
    inner.get("/c", dependencies=[Depends(limit("5/day"))])(handler)
    outer.mount("/in", inner)
    assert statuses(app, "GET /a", "GET /b") == [200, 200]
    assert statuses(outer, "GET /in/c") == [200]
    assert [remaining(stores[0], rule) for rule in ("GET /a", "GET /b")] == [4, 5]
    assert [remaining(stores[1], rule) for rule in ("GET /a", "GET /b")] == [5, 4]
    assert remaining(stores[2], "GET /in/c") == 4


def test_exempt_clients_and_rules_that_are_switched_off_concern_route_limits_too() -> None:
    exempt = limiter(Snapshot([], exemptions=[Exemption(type="ip", value="192.0.2.0/24")]))
    off = limiter(Snapshot([], enabled=False))
    for given, expected in ((exempt, 429), (off, 200)):
        app = FastAPI()
        app.state.headgate = given

        @app.get("/", dependencies=[Depends(limit("1/day", key=lambda _: "x"))])
        def handler() -> None: ...

        assert statuses(app, "GET /", "GET /") == [200, 200]
        assert statuses(app, "GET /", "GET /", client="198.51.100.1") == [200, expected]


def test_exempt_from_one_limit_is_not_counted_in_its_bucket_by_the_next() -> None:
    own = limiter(Snapshot([], exemptions=[Exemption(type="ip", value="192.0.2.1")]))
    app = FastAPI(dependencies=[Depends(limit("1/day", limiter=own)), Depends(limit("5/day"))])
    app.get("/")(lambda: None)
    (response,) = send(app, "GET /")
    assert policies(response) == ["GET / (2)"]


def test_what_was_decided_is_in_the_requests_state() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limit("5/day"))])
    def handler(request: Request) -> int:
        limits: Limits[AsyncLimiter] = request.state.headgate
        return limits.decision.remaining

    assert [response.text for response in send(app, "GET /", "GET /")] == ["4", "3"]


def test_the_apps_own_handlers_of_refusals_are_respected() -> None:
    by_class, by_status, of_others = FastAPI(), FastAPI(), FastAPI()

    @by_class.exception_handler(Refused)
    def one(request: Request, error: Refused) -> JSONResponse:
        return JSONResponse({"wait": error.decision.retry_after}, 418, error.headers)

    @by_status.exception_handler(429)
    def two(request: Request, error: HTTPException) -> PlainTextResponse:
        return PlainTextResponse("later", 429, error.headers)

    @of_others.exception_handler(HTTPException)
    def three(request: Request, error: HTTPException) -> PlainTextResponse:
        return PlainTextResponse("sorry", error.status_code)

    for app in (by_class, by_status, of_others):
        app.state.headgate = limiter()
        app.get("/", dependencies=[Depends(limit("1/day gcra"))])(lambda: None)
    refused = [send(app, "GET /", "GET /")[1] for app in (by_class, by_status, of_others)]
    assert [response.status_code for response in refused] == [418, 429, 429]
    assert (refused[0].json(), refused[1].text) == ({"wait": 86400.0}, "later")
    assert refused[2].headers["Content-Type"] == PROBLEM
    assert [response.headers.get_list("Retry-After") for response in refused] == [["86400"]] * 3


def test_a_limit_can_be_overridden_for_tests_of_the_app() -> None:
    app, strict = FastAPI(), limit("1/day")

    @app.get("/", dependencies=[Depends(strict)])
    def handler() -> None: ...

    app.dependency_overrides[strict] = lambda: None
    assert statuses(app, "GET /", "GET /") == [200, 200]


def installed(**options: Any) -> FastAPI:
    app = FastAPI()
    install(app, limiter=limiter([Rule(id="all", quota="9/day", dimension="ip")]), **options)

    @app.get("/json", dependencies=[Depends(limit("5/day"))])
    def json() -> dict[str, str]:
        return {}

    @app.get("/response", dependencies=[Depends(limit("5/day"))])
    def response() -> PlainTextResponse:
        return PlainTextResponse("hello")

    @app.get("/stream", dependencies=[Depends(limit("5/day"))])
    def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            yield "hello"

        return StreamingResponse(parts())

    @app.get("/broken", dependencies=[Depends(limit("5/day"))])
    def broken() -> None:
        raise ZeroDivisionError

    @app.get("/teapot", dependencies=[Depends(limit("5/day"))])
    def teapot() -> None:
        raise HTTPException(418)

    @app.get("/strict", dependencies=[Depends(limit("1/day"))])
    def strict() -> None: ...

    @app.get("/free")
    def free() -> None: ...

    return app


@pytest.mark.parametrize(
    ("path", "status"), [("json", 200), ("response", 200), ("stream", 200), ("broken", 500), ("teapot", 418)]
)
def test_with_the_middleware_every_response_tells_of_all_limits_once(path: str, status: int) -> None:
    (response,) = send(installed(), f"GET /{path}")
    assert response.status_code == status
    assert policies(response) == [f"GET /{path}", "all"]
    assert response.headers["X-RateLimit-Remaining"] == "4"
    for field in ("RateLimit", "RateLimit-Policy", "X-RateLimit-Limit"):
        assert len(response.headers.get_list(field)) == 1


def test_with_the_middleware_a_refusal_tells_once_too() -> None:
    _, refused = send(installed(), "GET /strict", "GET /strict")
    assert (refused.status_code, refused.headers["Content-Type"]) == (429, PROBLEM)
    assert refused.json()["violated-policies"] == ["GET /strict"]
    for field in ("Retry-After", "RateLimit", "RateLimit-Policy", "Content-Type", "Content-Length"):
        assert len(refused.headers.get_list(field)) == 1


def test_middleware_that_is_added_after_install_is_inside() -> None:
    app = installed()
    seen = []

    @app.middleware("http")
    async def own(request: Request, call_next: Any) -> Any:
        seen.append(request.state.headgate.decision.rule)
        return await call_next(request)

    assert policies(send(app, "GET /free")[0]) == ["all"]
    assert seen == ["all"]


def test_install_says_what_is_wrong() -> None:
    app = installed()
    with pytest.raises(InvalidRule, match="set already"):
        install(app, limiter=limiter())
    started = FastAPI()
    send(started, "GET /")
    with pytest.raises(InvalidRule, match="has started already"):
        install(started, limiter=limiter())
    with pytest.raises(InvalidRule, match="max_waiting"):
        install(FastAPI(), limiter=limiter(), max_waiting=-1)


def refusals(app: FastAPI) -> dict[str, list[str]]:
    """The operations that OpenAPI shows to be refusable, and with which statuses."""
    found = {}
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            known = [status for status in operation["responses"] if status not in ("200", "422")]
            if known:
                found[f"{method} {path}"] = known
    return found


def test_openapi_shows_refusals_of_routes_with_limits() -> None:
    app = FastAPI()
    install(app, limiter=limiter())
    router = APIRouter(prefix="/v1", dependencies=[Depends(limit("3/day"))])

    def checked(_: Annotated[None, Depends(limit("3/day"))]) -> None: ...

    @router.get("/a/{name}")
    @app.get("/nested", dependencies=[Depends(checked)])
    @app.get("/free")
    def handler() -> None: ...

    @app.get("/hidden", include_in_schema=False, dependencies=[Depends(checked)])
    def hidden() -> None: ...

    app.include_router(router)
    assert refusals(app) == {"get /v1/a/{name}": ["429"], "get /nested": ["429"]}
    shown = app.openapi()["paths"]["/nested"]["get"]["responses"]["429"]
    assert shown == {"$ref": "#/components/responses/RateLimited"}
    response = app.openapi()["components"]["responses"]["RateLimited"]
    assert set(response["content"][PROBLEM]["schema"]["properties"]) == {
        *("type", "title", "status", "detail", "violated-policies", "retry_after"),
    }
    assert send(app, "GET /openapi.json")[0].json() == app.openapi()

    @app.get("/late", dependencies=[Depends(checked)])
    def late() -> None: ...

    assert "get /late" in refusals(app)


def test_openapi_shows_refusals_of_the_middlewares_rules() -> None:
    app = FastAPI()
    rules = [
        Rule(id="users", quota="1/day", endpoints=["/users/{id}"], methods=["POST"], status=503),
        Rule(id="files", quota="1/day", endpoints=["/files/a/b"]),
        Rule(id="tried", quota="1/day", action="log_only"),
        Rule(id="off", quota="1/day", enabled=False),
    ]
    install(app, limiter=limiter(rules), skip=["/files/a/b"])

    @app.get("/users/{user_id}")
    @app.post("/users/{user_id}")
    @app.get("/files/{name:path}")
    @app.get("/files/{a}")
    @app.get("/files/a/b")
    def handler() -> None: ...

    assert refusals(app) == {"post /users/{user_id}": ["503"], "get /files/{name}": ["429"]}
    everything = FastAPI()
    install(everything, limiter=limiter("5/day"))
    everything.get("/x")(handler)
    assert refusals(everything) == {"get /x": ["429"]}


def test_openapi_without_install_takes_responses() -> None:
    app = FastAPI(responses=RESPONSES)

    @app.get("/", dependencies=[Depends(limit("1/day"))])
    def handler() -> None: ...

    assert PROBLEM in app.openapi()["paths"]["/"]["get"]["responses"]["429"]["content"]


async def handshake(app: FastAPI, *, denial: bool) -> list[Message]:
    """What an app sends to a client that opens a WebSocket."""
    sent: list[Message] = []
    scope: Scope = {
        "type": "websocket",
        "path": "/ws",
        "headers": [],
        "query_string": b"",
        "client": ("192.0.2.1", 1),
        "extensions": {"websocket.http.response": {}} if denial else {},
        "subprotocols": [],
    }

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def take(message: Message) -> None:
        sent.append(message)

    receiving: Receive = receive
    sending: Send = take
    await app(scope, receiving, sending)
    return sent


@pytest.mark.parametrize("middleware", [True, False])
def test_websockets(middleware: bool) -> None:
    app = FastAPI()
    if middleware:
        install(app, limiter=limiter())
    else:
        app.state.headgate = limiter()

    @app.websocket("/ws", dependencies=[Depends(limit("1/day"))])
    async def handler(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    (accepted, _), denied, closed = [asyncio.run(handshake(app, denial=denial)) for denial in (True, True, False)]
    assert accepted["type"] == "websocket.accept"
    assert (b"x-ratelimit-remaining", b"0") in [*accepted["headers"]] or not middleware
    assert [message["type"] for message in denied] == ["websocket.http.response.start", "websocket.http.response.body"]
    assert denied[0]["status"] == 429
    assert dict(denied[0]["headers"])[b"ratelimit-policy"] == b'"WEBSOCKET /ws";q=1;w=86400'
    assert len(denied[0]["headers"]) == len({name for name, _ in denied[0]["headers"]})
    assert [(message["type"], message["code"]) for message in closed] == [("websocket.close", 1013)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limiter": Limiter("5/day")}, "limiter: must be an AsyncLimiter"),
        ({"key": "ip"}, "key: must be a function"),
        ({"cost": -1}, "cost: must be a whole number"),
        ({"cost": True}, "cost: must be a whole number"),
        ({"failure_mode": "shut"}, "failure_mode"),
        ({"name": ""}, "name: must be a non-empty string"),
        ({"message": 5}, "message"),
    ],
)
def test_mistakes_are_told_when_the_limit_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRule, match=message):
        limit("5/day", **options)


def test_installing_a_limiter_of_the_wrong_kind_is_told_at_once() -> None:
    with pytest.raises(InvalidRule, match="limiter: must be an AsyncLimiter, got"):
        install(FastAPI(), limiter=Limiter("5/day"))  # type: ignore[arg-type]


def test_mistakes_in_quotas() -> None:
    with pytest.raises(InvalidQuota):
        limit("5/fortnight")
    with pytest.raises(InvalidRule, match="quota: must be a notation"):
        limit(5)  # type: ignore[arg-type]


def test_a_key_of_a_wrong_type_and_a_limiter_of_the_wrong_kind_are_faults() -> None:
    def key(_: Request) -> Any:
        return 1.5

    async def ask(app: FastAPI) -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            await http.get("/")

    app = FastAPI(dependencies=[Depends(limit("1/day", key=key))])
    app.get("/")(lambda: None)
    with pytest.raises(InvalidCheck, match="key: must return"):
        asyncio.run(ask(app))
    other = FastAPI(dependencies=[Depends(limit("1/day"))])
    other.state.headgate = Limiter("1/day")
    other.get("/")(lambda: None)
    with pytest.raises(InvalidRule, match=r"app\.state\.headgate"):
        asyncio.run(ask(other))


@pytest.mark.parametrize("installed", [True, False])
def test_a_limit_decorates_a_handler(installed: bool) -> None:
    app = FastAPI()
    if installed:
        install(app, limiter=limiter())

    @app.get("/users/{number}")
    @limit("2/day", message="Slowly.")
    async def user(number: int, short: bool = False) -> dict[str, Any]:
        return {"number": number, "short": short}

    @app.get("/report")
    @limit("1/day")
    def report(request: Request) -> str:
        return request.url.path

    first, second, third = send(app, "GET /users/1?short=1", "GET /users/2", "GET /users/3")
    assert first.json() == {"number": 1, "short": True}
    assert (second.status_code, second.headers["X-RateLimit-Remaining"]) == (200, "0")
    assert (third.status_code, third.json()["detail"]) == (429, "Slowly.")
    assert statuses(app, "GET /report", "GET /report") == [200, 429]
    parameters = app.openapi()["paths"]["/users/{number}"]["get"]["parameters"]
    assert [one["name"] for one in parameters] == ["number", "short"]


def test_a_decorated_handler_that_something_else_calls_fails_loudly() -> None:
    @limit("1/day")
    def handler() -> None: ...

    with pytest.raises(InvalidRule, match=r"Put @limit\(…\) below the route's decorator"):
        handler()
    with pytest.raises(InvalidRule, match="must decorate a handler"):
        limit("1/day")("5/minute")  # type: ignore[call-overload]


def test_a_function_that_its_limiter_refuses_is_answered_with_429() -> None:
    app, counts = FastAPI(), AsyncLimiter([Rule(id="all", quota="9/day", dimension="ip")])
    install(app, limiter=counts, skip=["/skipped"])

    @counts.limit("1/day", name="reports")
    async def reports() -> str:
        return "report"

    app.get("/")(reports)
    app.get("/skipped")(reports)
    allowed, refused, skipped = send(app, "GET /", "GET /", "GET /skipped")
    assert allowed.status_code == 200
    for response in (refused, skipped):
        assert (response.status_code, response.headers["Content-Type"]) == (429, PROBLEM)
        assert response.json()["violated-policies"] == ["reports"]
        assert "reports" in policies(response)
        assert int(response.headers["Retry-After"]) > 0
    assert asyncio.run(counts.peek(ip="192.0.2.1", endpoint="/", method="GET")).remaining == 8  # given back


def test_without_install_the_error_says_what_to_do() -> None:
    app, counts = FastAPI(), AsyncLimiter([])

    @app.get("/")
    @counts.limit("1/day")
    async def home() -> str:
        return "home"

    assert statuses(app, "GET /", "GET /") == [200, 500]
    with pytest.raises(RateLimited) as caught:
        asyncio.run(home())
    assert "headgate.http.fastapi.install(app, limiter=…)" in caught.value.__notes__[0]


@pytest.mark.parametrize("is_async", [True, False])
def test_requests_may_be_exempt_by_a_function(is_async: bool) -> None:
    async def asked(request: Request) -> bool:
        return request.headers.get("x-internal") == "yes"

    app = FastAPI()
    exempt_when: Any = asked if is_async else (lambda request: request.headers.get("x-internal") == "yes")
    app.get("/", dependencies=[Depends(limit("1/day", exempt_when=exempt_when))])(lambda: "home")
    assert statuses(app, "GET /", "GET /") == [200, 429]
    assert statuses(app, "GET /", "GET /", headers={"x-internal": "yes"}) == [200, 200]
    with pytest.raises(InvalidRule, match="exempt_when: must be a function"):
        limit("1/day", exempt_when=True)  # type: ignore[arg-type]
