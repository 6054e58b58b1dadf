"""API keys: hashed, and looked up where there is something to look them up in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import pytest

from headgate import InvalidRule
from headgate.http.identity import Identity, hashed_api_key
from headgate.rules import Exemption, Rule, Snapshot
from headgate.testing import FakeClock
from tests.unit.http.identity.requests import FakeRequest

KEY = "sk-live-4f8a"
IP = {"ip": "203.0.113.9"}


def sent(key: str) -> FakeRequest:
    return FakeRequest(x_api_key=key)


def test_a_key_becomes_its_hash() -> None:
    facts = Identity(api_key_header="X-API-Key").facts(sent(KEY))
    assert facts == {**IP, "api_key": hashed_api_key(KEY)}
    assert hashed_api_key(KEY) == "sha256-" + sha256(KEY.encode()).hexdigest()[:40]
    assert KEY not in str(facts)


def test_a_key_chooses_nothing_but_its_own_count() -> None:
    facts = Identity(api_key_header="x-api-key").facts(FakeRequest(x_api_key=KEY, x_user="root", x_tier="gold"))
    assert facts.keys() == {"ip", "api_key"}


def test_a_key_is_the_same_in_any_alphabet() -> None:
    """Servers hand headers over as Latin-1, whatever they were."""
    key = "ключ"
    facts = Identity(api_key_header="x-api-key").facts(sent(key.encode().decode("latin-1")))
    assert facts["api_key"] == hashed_api_key(key)
    assert "api_key" in Identity(api_key_header="x-api-key").facts(sent("\xff\xfe"))


@pytest.mark.parametrize("request_", [FakeRequest(), sent(""), sent("  ")])
def test_no_key(request_: FakeRequest) -> None:
    nothing: dict[str, Any] = {}
    for known in (None, nothing):
        identity = Identity(api_key_header="x-api-key", api_keys=known)
        assert identity.facts(request_) == IP
        assert identity.rejected == {}


def test_a_key_that_is_too_long() -> None:
    identity = Identity(api_key_header="x-api-key")
    assert "api_key" in identity.facts(sent("k" * 1_024))
    assert identity.facts(sent("k" * 1_025)) == IP
    assert identity.rejected == {"api_key_too_long": 1}


def test_known_keys() -> None:
    known = {hashed_api_key(KEY): {"user": 7, "tenant": "acme", "tier": "gold", "region": None}}
    identity = Identity(api_key_header="x-api-key", api_keys=known)
    expected = {**IP, "api_key": hashed_api_key(KEY), "user": "7", "tenant": "acme", "tier": "gold"}
    assert identity.facts(sent(KEY)) == expected
    assert not identity.waits


def test_random_keys_get_no_counts_of_their_own() -> None:
    identity = Identity(api_key_header="x-api-key", api_keys={hashed_api_key(KEY): {}})
    assert all(identity.facts(sent(f"random{n}")) == IP for n in range(100))
    assert identity.rejected == {"api_key_unknown": 100}
    assert identity.facts(sent(KEY)) == {**IP, "api_key": hashed_api_key(KEY)}
    assert identity.facts(sent(hashed_api_key(KEY))) == IP  # whoever has seen a hash does not have the key


def look_up(key: str) -> Mapping[str, Any] | None:
    return {"user": "alice"} if key == KEY else None


async def look_up_later(key: str) -> Mapping[str, Any] | None:
    await asyncio.sleep(0)
    return look_up(key)


@pytest.mark.parametrize("function", [look_up, look_up_later])
def test_a_function_async(function: Any) -> None:
    identity = Identity(api_key_header="x-api-key", api_keys=function)
    assert identity.waits

    async def main() -> None:
        expected = {**IP, "api_key": hashed_api_key(KEY), "user": "alice"}
        assert await identity.facts_async(sent(KEY)) == expected
        assert await identity.facts_async(sent("other")) == IP

    asyncio.run(main())
    assert identity.rejected == {"api_key_unknown": 1}


def test_a_function_sync() -> None:
    identity = Identity(api_key_header="x-api-key", api_keys=look_up)
    assert identity.facts(sent(KEY)) == {**IP, "api_key": hashed_api_key(KEY), "user": "alice"}
    assert identity.facts(sent("other")) == IP
    assert identity.rejected == {"api_key_unknown": 1}


def test_an_async_function_needs_async() -> None:
    identity = Identity(api_key_header="x-api-key", api_keys=look_up_later)
    with pytest.raises(TypeError, match="api_keys: an async function needs facts_async"):
        identity.facts(sent(KEY))


def raises(key: str) -> None:
    raise LookupError(f"no such key: {key}")


@pytest.mark.parametrize(
    "function",
    [
        raises,
        lambda key: key,
        lambda key: {"user": [key]},
        lambda key: {"ip": key},
        lambda key: {"api_key": key},
        lambda key: {5: key},
    ],
)
def test_a_function_that_fails_is_a_key_that_is_not_there(function: Any, caplog: pytest.LogCaptureFixture) -> None:
    identity = Identity(api_key_header="x-api-key", api_keys=function)
    with caplog.at_level(logging.DEBUG):
        assert identity.facts(sent(KEY)) == IP
        assert asyncio.run(identity.facts_async(sent(KEY))) == IP
    assert identity.rejected == {"api_key_failed": 2}
    assert "the function that looks up API keys" in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("known", "complaint"),
    [
        ({KEY: {}}, "number 1: its key must be what hashed_api_key() gives, and not the API key itself"),
        ({5: {}}, "number 1: its key must be what hashed_api_key() gives"),
        ({hashed_api_key("a"): None}, "must give a mapping of facts"),
        ({hashed_api_key("a"): "alice"}, "must give a mapping of facts such as {'user': 'alice'}, got 'alice'"),
        (
            {hashed_api_key("a"): {"tier": 1.5}},
            f"{hashed_api_key('a')}: tier: must be a string, an integer or a UUID, got 1.5",
        ),
        ({hashed_api_key("a"): {"ip": "10.0.0.1"}}, "ip: is not a fact that an API key can have"),
        ([KEY], "must be a mapping or a function, got list"),
    ],
)
def test_mistakes_are_named_and_keys_are_not(known: Any, complaint: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        Identity(api_key_header="x-api-key", api_keys=known)
    (problem,) = caught.value.problems
    assert problem.field == "api_keys"
    assert complaint in problem.message
    assert KEY not in str(caught.value)


def test_exemptions_are_written_by_the_hash() -> None:
    exemption = Exemption(type="api_key", value=hashed_api_key(KEY))
    snapshot = Snapshot([Rule(id="all", quota="1/minute", dimension="ip")], exemptions=[exemption])
    identity = Identity(api_key_header="x-api-key")
    assert snapshot.plan(identity.facts(sent(KEY), snapshot), FakeClock()).reason == "exempt"
    assert snapshot.plan(identity.facts(sent("other"), snapshot), FakeClock()).reason is None
