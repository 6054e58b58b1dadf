"""What proxies ask: whose request it is, what it is for, and how they are answered."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import AsyncLimiter, Rule
from headgate.errors import InvalidCheck
from headgate.http.identity import Identity, hashed_api_key
from headgate.http.problem import QUOTA_EXCEEDED
from headgate.rules import Exemption, Snapshot
from headgate.rules.facts import FactNames
from headgate.rules.networks import proxy
from headgate.service.access import Access
from headgate.service.data_plane import DataPlane
from headgate.service.http.app import HttpApp
from headgate.service.http.authorize import AuthorizeOptions, endpoint_of, options_of
from headgate.testing import FakeClock
from tests.unit.service.http.call import Got, Lines, call
from tests.unit.service.http.test_app import Counting, State, page

KEY = "open sesame"


class Kept:
    """A recorder that keeps the facts of what was refused."""

    def __init__(self) -> None:
        self.facts: list[dict[str, str]] = []

    def record(self, facts: Any, cost: Any, decision: Any) -> None:  # noqa: ARG002
        self.facts.append(dict(facts))


class World:
    """A service whose only rule refuses every request after the first, so that its facts can be seen."""

    def __init__(
        self,
        *,
        rule: Rule | None = None,
        access: Access | None = None,
        identity: Identity | None = None,
        headers: Any = "both",
    ) -> None:
        rule = rule or Rule(id="none", quota="1/hour fixed_window", dimension="global", message="No more.")
        snapshot = Snapshot(
            [rule],
            headers=headers,
            trusted_proxies=[proxy("10.0.0.0/8")],
            trusted_proxy_depth=2,
            exemptions=[Exemption(type="api_key", value=hashed_api_key(KEY))],
        )
        self.kept, self.meter = Kept(), Counting()
        limiter = AsyncLimiter(snapshot, clock=FakeClock(start=1_000_000))
        data = DataPlane(limiter, meter=self.meter, recorder=self.kept)
        self.app = HttpApp(data, access or Access(), health=State(), metrics=page, identity=identity)

    def ask(self, headers: Lines = (), query: str = "", method: str = "GET", peer: str = "127.0.0.1") -> Got:
        return call(self.app, method, "/v1/authorize" + query, headers=headers, peer=peer)

    def facts(self, headers: Lines = (), query: str = "", peer: str = "127.0.0.1") -> dict[str, str]:
        self.ask()
        assert self.ask(headers, query, peer=peer).status == 429
        return self.kept.facts[-1]


def test_fields_are_chosen_by_the_rules() -> None:
    for style, expected in (("ietf", (False, True)), ("x", (True, False)), ("off", (False, False))):
        world = World(headers=style)
        check = call(world.app, "POST", "/v1/check", {"user": "alice"})
        refused = world.ask()
        for got in (check, refused):
            assert ("x-ratelimit-limit" in got.headers, "ratelimit-policy" in got.headers) == expected
        assert (check.status, refused.status, "retry-after" in refused.headers) == (200, 429, True)


def test_allowed_is_a_200_without_a_body_with_the_fields() -> None:
    world = World()
    got = world.ask()
    assert (got.status, got.body) == (200, b"")
    assert got.headers["x-ratelimit-remaining"] == "0"
    assert got.headers["ratelimit"] == '"none";r=0;t=800'
    assert got.headers["cache-control"] == "no-store"
    assert world.meter.told == [("authorize", 1)]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PROPFIND"])
def test_any_method_will_do(method: str) -> None:
    assert World().ask(method=method).status == 200


def test_a_refusal_is_what_clients_of_middleware_get() -> None:
    world = World()
    world.ask()
    got = world.ask()
    assert got.status == 429
    assert got.headers["content-type"] == "application/problem+json"
    assert got.headers["retry-after"] == "800"
    assert "x-ratelimit-status" not in got.headers
    assert (got.json["type"], got.json["detail"]) == (QUOTA_EXCEEDED, "No more.")


def test_nginx_is_told_a_status_that_it_takes_and_the_rules_own_beside_it() -> None:
    world = World()
    assert world.ask(query="?deny_status=403").status == 200
    got = world.ask(query="?deny_status=403")
    assert got.status == 403
    assert got.headers["x-ratelimit-status"] == "429"


NGINX = {"X-Original-URI": "/search?q=x", "X-Original-Method": "POST", "X-Forwarded-For": "203.0.113.9"}
TRAEFIK = {
    "X-Forwarded-Uri": "/search?q=x",
    "X-Forwarded-Method": "POST",
    "X-Forwarded-For": "203.0.113.9",
    "X-Real-Ip": "203.0.113.9",
}


@pytest.mark.parametrize("headers", [NGINX, TRAEFIK, {**NGINX, **TRAEFIK}], ids=["nginx", "traefik", "both"])
def test_the_request_is_the_one_that_the_proxy_got(headers: dict[str, str]) -> None:
    assert World().facts(headers) == {"ip": "203.0.113.9", "endpoint": "/search", "method": "POST"}


def test_without_headers_it_is_the_proxys_own_address_and_nothing_else() -> None:
    assert World().facts() == {"ip": "127.0.0.1"}


def test_a_single_address_stands_in_for_the_list() -> None:
    assert World().facts({"X-Real-IP": "203.0.113.9"}) == {"ip": "203.0.113.9"}
    assert World().facts({"X-Real-IP": "198.51.100.1", "X-Forwarded-For": "203.0.113.9"}) == {"ip": "203.0.113.9"}


@pytest.mark.parametrize(
    ("hops", "ip"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("198.51.100.66, 203.0.113.9", "203.0.113.9"),  # the first is what the client sent
        ("203.0.113.9, 10.0.0.1", "203.0.113.9"),  # a load balancer that is trusted
        ("203.0.113.9, 10.0.0.1, 10.0.0.2", "10.0.0.1"),  # one proxy more than there are
        ("nonsense", "127.0.0.1"),
        ("2001:db8::7", "2001:db8::/64"),
    ],
)
@pytest.mark.parametrize("peer", ["127.0.0.1", "192.0.2.1"])
def test_the_hops_are_read_as_middleware_reads_them(hops: str, ip: str, peer: str) -> None:
    facts = World().facts({"X-Forwarded-For": hops}, peer=peer)
    assert facts["ip"] == (peer if ip == "127.0.0.1" else ip)


@pytest.mark.parametrize(
    ("one", "other"),
    [("X-Original-URI", "X-Forwarded-Uri"), ("X-Original-Method", "X-Forwarded-Method")],
)
def test_a_client_cannot_speak_for_the_proxy(one: str, other: str) -> None:
    """One of the two is the proxy's, the other came with the request: which is which, nobody knows."""
    for theirs, ours in ((one, other), (other, one)):
        got = World().ask({theirs: "/free", ours: "/search"})
        assert got.status == 403
        assert "disagree" in got.json["detail"]


def test_different_queries_of_one_path_are_no_disagreement() -> None:
    assert World().ask({"X-Original-URI": "/a?x", "X-Forwarded-Uri": "/a?y"}).status == 200


@pytest.mark.parametrize(
    ("uri", "endpoint"),
    [
        ("/search?q=secret", "/search"),
        ("/search#x", "/search"),
        ("/", "/"),
        ("?q", "/"),
        ("/api%2Fsearch", "/api/search"),
        ("/api%2fsearch?x=%2f", "/api/search"),
        ("/api%252Fsearch", "/api%252Fsearch"),
        ("http://example.com/search?q", "/search"),
        ("http://example.com", "/"),
        ("http://[", "http://["),
    ],
)
def test_the_endpoint_is_the_path_alone(uri: str, endpoint: str) -> None:
    assert endpoint_of(uri) == endpoint


@pytest.mark.parametrize("uri", ["/one", "//one", "/x/../one", "/%6Fne", "/one/", "/one?x", "/%2Fone"])
def test_no_spelling_of_a_path_dodges_its_rule(uri: str) -> None:
    world = World(rule=Rule(id="one", quota="1/hour fixed_window", dimension="ip", endpoints=["/one"]))
    assert world.ask({"X-Original-URI": "/one"}).status == 200
    assert world.ask({"X-Original-URI": uri}).status == 429


def test_api_keys_come_in_their_header_and_are_hashed_once() -> None:
    world = World()
    assert world.facts({"X-API-Key": "k"})["api_key"] == hashed_api_key("k")
    assert world.ask({"X-API-Key": KEY}).status == 200  # exempt
    assert world.ask(query="?api_key=open+sesame").status == 200
    assert world.ask({"X-API-Key": hashed_api_key(KEY)}).status == 429  # to know the hash is not to know the key


def test_identity_may_be_the_operators_own() -> None:
    identity = Identity(user_header="x-user")
    assert World(identity=identity).facts({"X-User": "alice"}) == {"ip": "127.0.0.1", "user": "alice"}
    assert "user" not in World().facts({"X-User": "alice"})


def test_what_the_operator_states_counts_more_than_what_headers_say() -> None:
    query = "?tenant=acme&endpoint=/login&ip=2001:db8::7&generic_key=login&user="
    facts = World().facts({**NGINX, "X-Api-Key": "k"}, query)
    assert facts == {
        "tenant": "acme",
        "endpoint": "/login",
        "ip": "2001:db8::/64",
        "address": "2001:db8::7",
        "generic_key": "login",
        "method": "POST",
        "api_key": hashed_api_key("k"),
    }


def test_queries_in_the_original_request_state_nothing() -> None:
    facts = World().facts({"X-Original-URI": "/x?tenant=acme&cost=0&deny_status=200"})
    assert facts == {"ip": "127.0.0.1", "endpoint": "/x"}


def test_the_cost_is_the_operators() -> None:
    world = World(rule=Rule(id="r", quota="5/hour fixed_window", dimension="ip"))
    got = world.ask(query="?cost=3")
    assert (got.headers["x-ratelimit-remaining"], got.headers["x-ratelimit-cost"]) == ("2", "3")


def test_options() -> None:
    assert options_of(b"deny_status=403&cost=2&a=b%20c&d=", FactNames(["a", "d"])) == AuthorizeOptions(
        403, {"a": "b c"}, 2
    )


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (b"deny_status=200", 'deny_status: must be a status from 400 to 599, got "200"'),
        (b"deny_status=600", 'deny_status: must be a status from 400 to 599, got "600"'),
        (b"deny_status=", 'deny_status: must be a status from 400 to 599, got ""'),
        (b"deny_status=4e2", 'deny_status: must be a status from 400 to 599, got "4e2"'),
        (b"cost=-1", 'cost: must be a whole number from 0 to 2^53-1, got "-1"'),
        (b"cost=9999999999999999", "cost: must be a whole number from 0 to 2^53-1, got 9999999999999999"),
        (b"tier=a&tier=b", "tier: given twice"),
        (b"idempotency_key=k", "idempotency_key: not supported by /v1/authorize, where every call is a new request"),
        (b"usr=", "unknown fact 'usr'; did you mean 'user'?"),
        (b"ip=here", 'ip: must be an address of IPv4 or IPv6, got "here"'),
        (b"a=%ff", 'the query must be at most 64 fields in UTF-8, such as cost=2&tenant=acme, got "a=%ff"'),
        (b"&".join(b"f%d=1" % n for n in range(65)), "the query must be at most 64 fields in UTF-8"),
    ],
)
def test_a_query_that_makes_no_sense_is_told(query: bytes, said: str) -> None:
    with pytest.raises(InvalidCheck) as raised:
        options_of(query, FactNames())
    assert str(raised.value).startswith(said)


def test_a_bad_query_is_a_400() -> None:
    assert World().ask(query="?deny_status=1").status == 400


def test_the_proxys_token_has_a_header_of_its_own() -> None:
    """Authorization is the client's, whom we know by it, if at all."""
    world = World(access=Access(data_token="t0ken"))
    assert world.ask().status == 401
    assert world.ask({"X-Headgate-Token": "wrong"}).status == 401
    assert world.ask({"X-Headgate-Token": "wrong", "Authorization": "Bearer t0ken"}).status == 401
    assert world.ask({"X-Headgate-Token": "t0ken", "Authorization": "Bearer theirs"}).status == 200
    assert World(access=Access(data_token="t0ken")).ask({"Authorization": "Bearer t0ken"}).status == 200
