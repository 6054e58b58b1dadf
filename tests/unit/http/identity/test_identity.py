"""Identity as a whole: whose word counts, what it takes, and what it imports."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from headgate import InvalidCheck, InvalidRule
from headgate.http.identity import JWT, Identity, checked_facts, hashed_api_key
from headgate.rules import Snapshot
from headgate.testing import FakeClock
from tests.unit.http.identity.requests import NOW, SECRET, FakeRequest, bearer, signed

HEADERS = {"user_header": "X-User", "tenant_header": "x-tenant", "tier_header": "x-tier"}
SAID = {"x_user": "alice", "x_tenant": "acme", "x_tier": "gold"}


def test_headers_of_a_trusted_proxy() -> None:
    identity = Identity(trusted_proxies=["10.0.0.0/8"], **HEADERS)  # type: ignore[arg-type]
    facts = identity.facts(FakeRequest("10.0.0.1", x_forwarded_for="203.0.113.9", **SAID))
    assert facts == {"ip": "203.0.113.9", "user": "alice", "tenant": "acme", "tier": "gold"}
    assert identity.facts(FakeRequest("10.0.0.1", x_user=" ", x_tier="")) == {"ip": "10.0.0.1"}
    assert identity.facts(FakeRequest("10.0.0.1", x_user="Jos\xc3\xa9")) == {"ip": "10.0.0.1", "user": "José"}


def test_the_same_headers_of_anybody_else() -> None:
    identity = Identity(trusted_proxies=["10.0.0.0/8"], **HEADERS)  # type: ignore[arg-type]
    assert identity.facts(FakeRequest("203.0.113.9", x_forwarded_for="10.0.0.1", **SAID)) == {"ip": "203.0.113.9"}
    assert identity.facts(FakeRequest(None, **SAID)) == {"ip": "unix"}


def test_a_proxy_that_no_longer_is_trusted_is_not_believed() -> None:
    identity = Identity(**HEADERS)  # type: ignore[arg-type]
    trusting = Snapshot([], trusted_proxies=["10.0.0.1"])  # type: ignore[list-item]
    request = FakeRequest("10.0.0.1", **SAID)
    assert identity.facts(request, trusting)["tier"] == "gold"
    assert identity.facts(request, Snapshot([])) == {"ip": "10.0.0.1"}


def test_a_token_says_more_than_a_key_and_a_key_more_than_a_header() -> None:
    identity = Identity(
        trusted_proxies=["203.0.113.9"],
        jwt=JWT(algorithms=["HS256"], key=SECRET),
        api_key_header="x-api-key",
        api_keys={hashed_api_key("k"): {"user": "of the key", "tenant": "of the key"}},
        clock=FakeClock(NOW),
        **HEADERS,  # type: ignore[arg-type]
    )
    everything = {**SAID, "x_api_key": "k", "x_forwarded_for": "198.51.100.1"}
    ip = {"ip": "198.51.100.1"}
    key = {"api_key": hashed_api_key("k")}
    expected = {**ip, **key, "user": "alice", "tenant": "of the key", "tier": "gold"}
    assert identity.facts(bearer(signed(), **everything)) == expected
    assert identity.facts(FakeRequest(**everything)) == {**expected, "user": "of the key"}
    # What is not accepted takes nothing else along.
    assert identity.facts(bearer("junk", **everything)) == {**expected, "user": "of the key"}
    headers = {**ip, "user": "alice", "tenant": "acme", "tier": "gold"}
    assert identity.facts(bearer("junk", **{**everything, "x_api_key": "?"})) == headers
    assert identity.rejected == {"token_malformed": 2, "api_key_unknown": 1}


def test_sync_and_async_say_the_same() -> None:
    plain = Identity()
    whole = Identity(jwt=JWT(algorithms=["HS256"], key=SECRET), api_key_header="x-api-key", clock=FakeClock(NOW))
    for identity in (plain, whole):
        assert not identity.waits
        for request in (FakeRequest(), bearer(signed(), x_api_key="k"), bearer("junk")):
            assert asyncio.run(identity.facts_async(request)) == identity.facts(request)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"trusted_proxies": "10.0.0.0/8"}, "trusted_proxies: must be a list of networks, got '10.0.0.0/8'"),
        ({"trusted_proxies": ["10.0.0.1/8"]}, "trusted_proxies: '10.0.0.1/8' is an address inside a network"),
        ({"trusted_proxies": ["proxy"]}, "trusted_proxies: must be an address or a network"),
        ({"trusted_proxy_depth": 0}, "trusted_proxy_depth: must be a whole number from 1 to 100, got 0"),
        ({"proxy_header": "x-real-ip"}, "proxy_header: must be one of x-forwarded-for, forwarded, got 'x-real-ip'"),
        ({"ipv6_prefix": 0}, "ipv6_prefix: must be a whole number from 1 to 128, got 0"),
        ({"ipv6_prefix": 129}, "ipv6_prefix: must be a whole number from 1 to 128, got 129"),
        ({"user_header": "x user"}, "user_header: must be the name of a header, got 'x user'"),
        ({"tier_header": ""}, "tier_header: must be the name of a header, got ''"),
        ({"api_key_header": 5}, "api_key_header: must be a string, got 5"),
        ({"jwt": SECRET}, "jwt: must be a JWT(...), got str"),
        ({"api_keys": {}}, "api_key_header: must name the header that carries API keys"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        Identity(**options)
    assert f"Identity: {complaint}" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(InvalidRule) as caught:
        Identity(ipv6_prefix=0, user_header="", trusted_proxy_depth=0)
    assert [problem.field for problem in caught.value.problems] == ["trusted_proxy_depth", "ipv6_prefix", "user_header"]


def test_it_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Identity().ipv6_prefix = 128  # type: ignore[misc]


def test_facts_of_a_users_own_function() -> None:
    assert checked_facts({"user": 7, "tier": "gold", "tenant": None}) == {"user": "7", "tier": "gold"}
    assert checked_facts(None) == {}


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ("alice", "identify: must give a mapping of facts such as {'user': 'alice'}, got 'alice'"),
        ({"user": True}, "identify: user: must be a string, an integer or a UUID, got True"),
        ({"user": b"alice"}, "identify: user: must be a string, an integer or a UUID, got b'alice'"),
        ({5: "x"}, "identify: the name of a fact must be a non-empty string, got 5"),
        ({"": "x"}, "identify: the name of a fact must be a non-empty string, got ''"),
    ],
)
def test_facts_that_are_none(facts: Any, complaint: str) -> None:
    with pytest.raises(InvalidCheck) as caught:
        checked_facts(facts)
    assert str(caught.value) == complaint


def run(code: str) -> str:
    """What a Python of its own prints, which has imported nothing yet."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_but_the_standard_library_is_imported_before_tokens_are_asked_for() -> None:
    assert (
        run("""
import sys
before = set(sys.modules)
from headgate.http.identity import Identity
Identity(trusted_proxies=["10.0.0.0/8"], api_key_header="x-api-key")
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names)))
""")
        == "['headgate']"
    )


@pytest.mark.parametrize("missing", ["jwt", "cryptography"])
def test_tokens_without_their_packages_say_what_to_install(missing: str) -> None:
    message = run(f"""
import sys
sys.modules[{missing!r}] = None  # as if it were not installed
from headgate.http.identity import JWT
try:
    JWT(algorithms=["HS256"], key="k" * 32)
except ImportError as error:
    print(error)
""")
    assert message == "JWT needs PyJWT and cryptography: pip install 'headgate[jwt]'"
