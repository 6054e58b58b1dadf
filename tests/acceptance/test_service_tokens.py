"""Who may call the whole service: every route of HTTP and gRPC, with every kind of token that is not good enough."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from headgate.db import TokenTable
from headgate.operations.caller import SCOPES
from headgate.service.protos import rate_limiter_pb2 as rl
from headgate.service.protos import rls_pb2 as rls
from headgate.testing import FakeClock
from tests.service import Service, warm_service

STUCK = 60.0
DATA_TOKEN = "the-data-plane's-own-token"
OURS = "/headgate.v1.RateLimiter"
CALLS: dict[str, Any] = {
    f"{OURS}/CheckRateLimit": rl.CheckRequest(identifier="u"),
    f"{OURS}/CheckRateLimits": rl.CheckBatchRequest(checks=[rl.CheckRequest(identifier="u")]),
    f"{OURS}/GetRemainingQuota": rl.QuotaRequest(identifier="u"),
    f"{OURS}/ResetLimit": rl.ResetRequest(identifier="u"),
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit": rls.RateLimitRequest(
        domain="d", descriptors=[rls.RateLimitDescriptor()]
    ),
}
REFLECTION = [f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")]
POSTS: dict[str, Any] = {
    "/v1/check": {"user": "u"},
    "/v1/check/batch": {"checks": [{"user": "u"}]},
    "/v1/peek": {"user": "u"},
    "/v1/reset": {"user": "u"},
}
CODE = grpc.StatusCode
CODES = {200: CODE.OK, 401: CODE.UNAUTHENTICATED, 403: CODE.PERMISSION_DENIED}


class Callers:
    """Tokens of every kind, made as operators make them."""

    def __init__(self, service: Service, api: httpx.Client) -> None:
        self._api = api
        long_ago = TokenTable(f"sqlite:///{service.data_dir}/headgate.db", clock=FakeClock(1_000_000_000.0))
        _, expired = long_ago.create("expired", role="admin", scopes=SCOPES, seconds=60, actor="test")
        long_ago.close()
        revoked, number = self._made("revoked", "admin", SCOPES)
        assert self.works(revoked)
        assert self._api.delete(f"/api/v1/tokens/{number}").status_code == 204
        self.bad: dict[str, str | None] = {
            "none": None,
            "empty": "Bearer",
            "of another scheme": f"Basic {DATA_TOKEN}",
            "wrong": "Bearer wrong",
            "made up": "Bearer hg_" + "x" * 43,
            "almost": f"Bearer {DATA_TOKEN[:-1]}",
            "expired": f"Bearer {expired}",
            "revoked": f"Bearer {revoked}",
        }
        self.without_check = self.bearer("without-check", "admin", [scope for scope in SCOPES if scope != "check"])
        self.only_check = self.bearer("only-check", "admin", ["check"])
        self.viewer = self.bearer("viewer", "viewer", SCOPES)
        self.operator = self.bearer("operator", "operator", ["check"])
        self.own = f"Bearer {DATA_TOKEN}"
        self.admin = f"Bearer {service.admin_token}"
        known = [*self.bad.values(), self.without_check, self.only_check, self.viewer, self.operator]
        service.secrets += [one.split()[-1] for one in known if one and "hg_" in one]

    def works(self, token: str) -> bool:
        answer = self._api.post("/v1/check", json={"user": "u"}, headers={"Authorization": f"Bearer {token}"})
        return answer.status_code == 200

    def bearer(self, name: str, role: str, scopes: Any) -> str:
        return f"Bearer {self._made(name, role, scopes)[0]}"

    def _made(self, name: str, role: str, scopes: Any) -> tuple[str, str]:
        body = {"name": name, "role": role, "scopes": list(scopes), "expires_in": "1h"}
        answer = self._api.post("/api/v1/tokens", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["token"], answer.json()["id"]

    def of_data(self, *, reset: bool) -> Iterator[tuple[str, str | None, int]]:
        """Every token, and the status that a call of the data plane should have."""
        yield from ((kind, token, 401) for kind, token in self.bad.items())
        yield "without check", self.without_check, 403
        yield "viewer", self.viewer, 403 if reset else 200
        for kind in ("operator", "only_check", "own", "admin"):
            yield kind, getattr(self, kind), 200


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("tokens")
    with warm_service(directory, data_token=DATA_TOKEN, reflection="true") as service:
        yield service


@pytest.fixture(scope="module")
def callers(service: Service) -> Iterator[Callers]:
    with httpx.Client(base_url=service.url, headers=service.headers, timeout=STUCK) as client:
        yield Callers(service, client)


@pytest.fixture(scope="module")
def channel(service: Service) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(service.grpc_address) as channel:
        yield channel


def code_of(call: Any, sent: Any, token: str | None) -> grpc.StatusCode:
    metadata = [] if token is None else [("authorization", token)]
    try:
        answer = call(sent, timeout=STUCK, metadata=metadata)
        if not isinstance(answer, bytes):
            list(answer)
    except grpc.RpcError as error:
        told: Any = error
        code: grpc.StatusCode = told.code()
        return code
    return CODE.OK


@pytest.mark.parametrize("path", CALLS)
def test_grpc(callers: Callers, channel: grpc.Channel, path: str) -> None:
    body = CALLS[path].SerializeToString()
    for kind, token, status in callers.of_data(reset=path.endswith("ResetLimit")):
        assert (kind, code_of(channel.unary_unary(path), body, token)) == (kind, CODES[status])


@pytest.mark.parametrize("path", REFLECTION)
def test_reflection(callers: Callers, channel: grpc.Channel, path: str) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    for kind, token, status in callers.of_data(reset=False):
        if kind in callers.bad and kind not in ("none", "wrong"):
            continue  # there is a limit on bad tokens from an address
        assert (kind, code_of(channel.stream_stream(path), iter([request]), token)) == (kind, CODES[status])


def test_health_is_open(channel: grpc.Channel, service: Service) -> None:
    body = health_pb2.HealthCheckRequest().SerializeToString()
    assert code_of(channel.unary_unary("/grpc.health.v1.Health/Check"), body, None) == CODE.OK
    for path in ("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"):
        assert httpx.get(f"{service.url}{path}", timeout=STUCK).status_code == 200


def client_at(service: Service, address: str) -> httpx.Client:
    """A client with an address of its own: there is a limit on bad tokens from one."""
    return httpx.Client(base_url=service.url, transport=httpx.HTTPTransport(local_address=address), timeout=STUCK)


def test_guesses_are_slowed_down(callers: Callers, service: Service) -> None:
    """Also one that is right: else whoever guesses would only have to go on. Tokens that were good before pass."""
    fresh = callers.bearer("fresh", "viewer", ["check"])
    with client_at(service, "127.0.4.1") as client, client_at(service, "127.0.4.2") as other:

        def status(of: httpx.Client, token: str) -> int:
            return of.post("/v1/check", json={"user": "u"}, headers={"Authorization": token}).status_code

        assert status(client, callers.own) == 200
        assert [status(client, f"Bearer guess-{number}") for number in range(30)] == [401] * 30
        answer = client.post("/v1/check", json={"user": "u"}, headers={"Authorization": "Bearer guess"})
        assert (answer.status_code, answer.json()["violated-policies"]) == (429, ["data-failures"])
        assert 0 < int(answer.headers["Retry-After"]) <= 60
        assert status(client, fresh) == 429
        assert client.post("/v1/check", json={"user": "u"}).status_code == 401
        assert status(client, callers.own) == 200
        assert status(other, fresh) == 200
        assert status(client, fresh) == 200  # it was good elsewhere


@pytest.mark.parametrize("path", POSTS)
def test_http(callers: Callers, service: Service, path: str) -> None:
    with client_at(service, f"127.0.2.{list(POSTS).index(path) + 1}") as client:
        for kind, token, status in callers.of_data(reset=path.endswith("reset")):
            headers = {} if token is None else {"Authorization": token}
            answer = client.post(path, json=POSTS[path], headers=headers)
            got = 200 if answer.is_success else answer.status_code
            assert (kind, got) == (kind, status)
            assert (answer.headers.get("www-authenticate") == "Bearer") == (status == 401)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PROPFIND"])
def test_authorize(callers: Callers, service: Service, method: str) -> None:
    with client_at(service, f"127.0.3.{len(method)}") as client:
        for kind, token, status in callers.of_data(reset=False):
            headers = {} if token is None else {"Authorization": token}
            assert (kind, client.request(method, "/v1/authorize", headers=headers).status_code) == (kind, status)
        own = {"X-Headgate-Token": DATA_TOKEN, "Authorization": "Bearer of-the-client"}
        assert client.request(method, "/v1/authorize", headers=own).status_code == 200
        wrong = {"X-Headgate-Token": "wrong", "Authorization": callers.own}
        assert client.request(method, "/v1/authorize", headers=wrong).status_code == 401


@pytest.mark.parametrize(
    "path", ["/v1/check/", "//v1/check", "/v1//check", "/V1/check", "/v1/%63heck", "/./v1/check", "/x/../v1/check"]
)
def test_no_way_of_writing_a_path_gets_round_the_token(service: Service, path: str) -> None:
    host, port = service.url.removeprefix("http://").split(":")
    for method in ("POST", "GET", "OPTIONS"):
        with socket.create_connection((host, int(port)), timeout=STUCK) as client:
            client.sendall(f"{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\n\r\n".encode())
            client.sendall(b'{"user":"u"}')
            assert client.recv(4_096)[9:12] in (b"401", b"404", b"405")


def test_every_route_of_the_admin(callers: Callers, service: Service) -> None:
    """From an address of its own for each route: there is a limit on bad tokens from one."""
    document = httpx.get(f"{service.url}/openapi.json", timeout=STUCK).json()
    routes = [
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method in methods
        if path.startswith("/api/v1/")
    ]
    assert len(routes) >= 16
    for number, (method, path) in enumerate(routes):
        url = path.replace("{rule_id}", "x").replace("{user_id}", "x").replace("{token_id}", "x")
        with client_at(service, f"127.0.1.{number + 1}") as client:
            bad = {**callers.bad, "the data plane's": callers.own}
            for kind, token in bad.items():
                status = 403 if token == callers.own else 401
                headers = {} if token is None else {"Authorization": token}
                got = client.request(method, url, headers=headers).status_code
                assert (method, path, kind, got) == (method, path, kind, status)
            reads = method == "GET" or path in ("/api/v1/explain", "/api/v1/rules:dry-run")
            for token in (callers.only_check, *([] if reads else [callers.viewer])):
                assert client.request(method, url, headers={"Authorization": token}).status_code == 403, (method, path)
