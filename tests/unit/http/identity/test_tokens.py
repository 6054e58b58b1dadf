"""Tokens: which are believed, and all the ways in which one is not."""

from __future__ import annotations

import hmac
import logging
from json import dumps
from typing import Any

import jwt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import InvalidRule
from headgate.http.identity import JWT, Identity
from headgate.testing import FakeClock
from tests.unit.http.identity.requests import (
    NOW,
    SECRET,
    FakeRequest,
    bearer,
    claims,
    ec_key,
    part,
    private_pem,
    public_pem,
    rsa_key,
    signed,
)

ALICE = {"ip": "203.0.113.9", "user": "alice"}
NOBODY = {"ip": "203.0.113.9"}


def identity(**options: Any) -> Identity:
    options = {"algorithms": ["HS256"], "key": SECRET, **options}
    return Identity(jwt=JWT(**options), clock=FakeClock(NOW))


def outcome(one: Identity, token: str) -> dict[str, str] | str:
    """What a token says, or why it is not believed."""
    facts = one.facts(bearer(token))
    if facts == NOBODY:
        ((reason, count),) = one.rejected.items()
        assert count == 1
        return reason
    assert one.rejected == {}
    return facts


@pytest.mark.parametrize(
    ("algorithm", "key", "public"),
    [
        ("HS256", SECRET, SECRET),
        ("HS256", SECRET.encode(), SECRET),
        ("RS256", rsa_key(), public_pem(rsa_key())),
        ("ES256", ec_key(), public_pem(ec_key())),
    ],
    ids=["text", "bytes", "RSA", "EC"],
)
def test_a_good_token(algorithm: str, key: Any, public: str) -> None:
    one = identity(algorithms=[algorithm], key=public)
    assert outcome(one, signed(key, algorithm)) == ALICE


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_in_any_case(scheme: str) -> None:
    assert identity().facts(FakeRequest(authorization=f"{scheme} {signed()}")) == ALICE


@pytest.mark.parametrize("authorization", ["Basic YTpi", "Bearer", "", "Token x", "Bearerx.y.z", "Digest Bearer a.b.c"])
def test_another_scheme_is_none_of_our_business(authorization: str) -> None:
    one = identity()
    assert one.facts(FakeRequest(authorization=authorization)) == NOBODY
    assert one.rejected == {}


@pytest.mark.parametrize(
    ("options", "changes", "expected"),
    [
        (
            {"tenant_claim": "org", "tier_claim": "plan"},
            {"org": "acme", "plan": "gold"},
            {"tenant": "acme", "tier": "gold"},
        ),
        ({"tenant_claim": "org", "tier_claim": "plan"}, {"org": 42}, {"tenant": "42"}),
        ({"user_claim": "uid"}, {"uid": 7}, {"user": "7"}),
        ({"issuer": "https://a"}, {"iss": "https://a"}, {}),
        ({"issuer": ["https://a", "https://b"]}, {"iss": "https://b"}, {}),
        ({}, {"iss": "https://whoever"}, {}),
        ({"audience": "api"}, {"aud": "api"}, {}),
        ({"audience": "api"}, {"aud": ["web", "api"]}, {}),
        ({"audience": ["api", "web"]}, {"aud": "web"}, {}),
        ({}, {"nbf": NOW}, {}),
        ({"leeway": 10}, {"exp": NOW - 9}, {}),
        ({"leeway": 10}, {"nbf": NOW + 10}, {}),
        ({}, {"exp": NOW + 0.5}, {}),
        ({"key": ["f" * 32, SECRET]}, {}, {}),  # a secret that is being replaced
    ],
)
def test_what_a_good_token_may_say(options: dict[str, Any], changes: dict[str, Any], expected: dict[str, str]) -> None:
    assert outcome(identity(**options), signed(**changes)) == {**ALICE, **expected}


def test_a_token_that_names_only_a_tenant() -> None:
    one = identity(user_claim=None, tenant_claim="org")
    assert outcome(one, signed(org="acme")) == {**NOBODY, "tenant": "acme"}


@pytest.mark.parametrize(
    ("options", "changes", "reason"),
    [
        ({}, {"exp": None}, "token_expired"),
        ({}, {"exp": NOW}, "token_expired"),
        ({}, {"exp": NOW - 1_000_000}, "token_expired"),
        ({}, {"exp": -1}, "token_expired"),
        ({}, {"exp": str(NOW + 60)}, "token_expired"),
        ({}, {"exp": True}, "token_expired"),
        ({}, {"exp": [NOW + 60]}, "token_expired"),
        ({}, {"exp": float("nan")}, "token_expired"),
        ({}, {"exp": float("inf")}, "token_expired"),
        ({}, {"exp": 10**400}, "token_expired"),
        ({"leeway": 10}, {"exp": NOW - 10}, "token_expired"),
        ({}, {"nbf": NOW + 1}, "token_early"),
        ({}, {"nbf": "now"}, "token_early"),
        ({"leeway": 10}, {"nbf": NOW + 11}, "token_early"),
        ({"issuer": "https://a"}, {}, "token_issuer"),
        ({"issuer": "https://a"}, {"iss": "https://a/"}, "token_issuer"),
        ({"issuer": "https://a"}, {"iss": "https://"}, "token_issuer"),
        ({"issuer": "https://a"}, {"iss": ["https://a"]}, "token_issuer"),
        ({"issuer": "https://a"}, {"iss": {"https://a": 1}}, "token_issuer"),
        ({}, {"iss": ["https://a"]}, "token_issuer"),
        ({"audience": "api"}, {}, "token_audience"),
        ({"audience": "api"}, {"aud": "web"}, "token_audience"),
        ({"audience": "api"}, {"aud": "ap"}, "token_audience"),
        ({"audience": "api"}, {"aud": ["web"]}, "token_audience"),
        ({"audience": "api"}, {"aud": []}, "token_audience"),
        ({"audience": "api"}, {"aud": [["api"]]}, "token_audience"),
        ({"audience": "api"}, {"aud": {"api": 1}}, "token_audience"),
        ({}, {"aud": "somebody else"}, "token_audience"),
        ({}, {"sub": None}, "token_claim"),
        ({}, {"sub": ""}, "token_claim"),
        ({"tier_claim": "plan"}, {"plan": ["gold"]}, "token_claim"),
        ({"tier_claim": "plan"}, {"plan": True}, "token_claim"),
        ({"user_claim": "uid"}, {}, "token_claim"),
        ({"key": "f" * 32}, {}, "token_signature"),
        ({"key": ["f" * 32, "e" * 32]}, {}, "token_signature"),
    ],
)
def test_a_token_that_is_not_believed(options: dict[str, Any], changes: dict[str, Any], reason: str) -> None:
    one = identity(**options)
    token = jwt.api_jws.encode(dumps(claims(**changes)).encode(), SECRET, "HS256")  # which minds nothing
    assert outcome(one, token) == reason


@pytest.mark.parametrize("subject", [7, True, ["alice"], {"a": 1}, 1.5])
def test_a_subject_that_is_no_text(subject: Any) -> None:
    assert (
        outcome(identity(), jwt.api_jws.encode(dumps(claims(sub=subject)).encode(), SECRET, "HS256")) == "token_claim"
    )


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", ""])
@pytest.mark.parametrize("signature", ["", "c2ln"])
def test_none_is_no_algorithm(name: str, signature: str) -> None:
    token = f"{part({'alg': name, 'typ': 'JWT'})}.{part(claims())}.{signature}"
    assert outcome(identity(), token) == "token_algorithm"


def hs256_by_hand(key: bytes, header: dict[str, Any]) -> str:
    """What an attacker makes, without a library that minds."""
    signing = f"{part(header)}.{part(claims())}"
    return f"{signing}.{part(hmac.digest(key, signing.encode(), 'sha256'))}"


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_public_key_is_no_secret(algorithm: str) -> None:
    """The best known confusion of algorithms: HS256, with the public key, which everybody knows, as the secret."""
    pem = public_pem(rsa_key() if algorithm == "RS256" else ec_key())
    for secret in (pem.encode(), pem.strip().encode(), pem.replace("\n", "\r\n").encode()):
        one = identity(algorithms=[algorithm], key=pem)
        assert outcome(one, hs256_by_hand(secret, {"alg": "HS256"})) == "token_algorithm"
        one = identity(algorithms=[algorithm], key=pem)
        assert outcome(one, hs256_by_hand(secret, {"alg": algorithm})) == "token_signature"


@pytest.mark.parametrize("algorithm", ["HS384", "RS384", "PS256", "EdDSA", "hs256", 256, None, ["HS256"], {"HS256": 1}])
def test_only_pinned_algorithms(algorithm: Any) -> None:
    assert outcome(identity(), hs256_by_hand(SECRET.encode(), {"alg": algorithm})) == "token_algorithm"
    assert outcome(identity(), hs256_by_hand(SECRET.encode(), {})) == "token_algorithm"


@pytest.mark.parametrize(
    "extra",
    [{"crit": ["exp"]}, {"crit": []}, {"crit": None}, {"crit": ["b64"], "b64": False}, {"b64": False}, {"b64": True}],
)
def test_extensions_that_must_be_understood_are_not(extra: dict[str, Any]) -> None:
    assert outcome(identity(), hs256_by_hand(SECRET.encode(), {"alg": "HS256", **extra})) == "token_critical"


@pytest.mark.parametrize("kid", [7, ["a"], {"a": 1}, True])
def test_a_key_id_that_is_no_text(kid: Any) -> None:
    assert outcome(identity(), hs256_by_hand(SECRET.encode(), {"alg": "HS256", "kid": kid})) == "token_malformed"


def test_a_key_that_the_token_brings_along_is_not_used() -> None:
    """Nor is one that it points to: nothing listens at that port, and nothing asks there."""
    mine = rsa_key(666)
    numbers = jwt.get_algorithm_by_name("RS256").to_jwk(mine.public_key(), as_dict=True)
    for header in ({"jwk": numbers}, {"jku": "http://127.0.0.1:1/"}, {"x5u": "http://127.0.0.1:1/"}):
        one = identity(algorithms=["RS256"], key=public_pem(rsa_key()))
        assert outcome(one, signed(mine, "RS256", header)) == "token_signature"


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "a.b",
        "a.b.c.d",
        "..",
        "a..",
        ".b.c",
        "a.b.c",
        f"{part({'alg': 'HS256'})}.{part(claims())}.x",
        f"{part({'alg': 'HS256'})}={part(claims())}.",
        f"{part([])}.{part(claims())}.c2ln",
        f"{part('HS256')}.{part(claims())}.c2ln",
        f"{part(b'[' * 5_000)}.e30.c2ln",
        f"{part(b'not json')}.e30.c2ln",
        f"{part(bytes(range(256)))}.e30.c2ln",
        f"{part(b'1' * 5_900)}.e30.c2ln",
        "\xe9.\xe9.\xe9",
        f"{signed()}, Bearer {signed()}",  # two headers, joined
        f"{signed()} {signed()}",
        f" {signed()}\t",
    ],
)
def test_malformed(token: str) -> None:
    assert outcome(identity(), token) == "token_malformed"


@pytest.mark.parametrize("payload", [b"[" * 5_000, b"[]", b'"alice"', b"not json", b"\xff", b"1" * 5_000])
def test_a_payload_that_is_no_object_though_it_is_signed(payload: bytes) -> None:
    assert outcome(identity(), jwt.api_jws.encode(payload, SECRET, "HS256")) == "token_malformed"


def test_a_changed_payload_or_signature() -> None:
    header, payload, signature = signed().split(".")
    forged = part(claims(sub="root"))
    assert outcome(identity(), f"{header}.{forged}.{signature}") == "token_signature"
    assert outcome(identity(), f"{header}.{payload}.{part(bytes(32))}") == "token_signature"
    assert outcome(identity(), f"{header}.{payload}.") == "token_signature"


def test_a_token_that_is_too_large_is_not_even_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = signed(pad="x" * 5_900)
    too_large = signed(pad="x" * 6_200)
    assert len(fits) <= 8_192 < len(too_large)
    assert outcome(identity(), fits) == ALICE
    one = identity()
    monkeypatch.setattr("headgate.http.identity.tokens.urlsafe_b64decode", None)  # calling it would fail
    monkeypatch.setattr("headgate.http.identity.tokens.sha256", None)
    assert outcome(one, too_large) == "token_too_large"
    one = identity()
    assert outcome(one, signed(pad="x" * 1_000_000)) == "token_too_large"


def test_a_token_that_was_good_expires_all_the_same() -> None:
    clock = FakeClock(NOW)
    one = Identity(jwt=JWT(algorithms=["HS256"], key=SECRET), clock=clock)
    request = bearer(signed(exp=NOW + 60))
    assert one.facts(request) == ALICE
    clock.advance(59.999)
    assert one.facts(request) == ALICE
    clock.advance(0.001)
    assert one.facts(request) == NOBODY
    assert one.rejected == {"token_expired": 1}
    clock.advance(-1_000)
    assert one.facts(request) == ALICE


def test_a_token_that_was_good_is_not_good_before_its_time() -> None:
    clock = FakeClock(NOW)
    one = Identity(jwt=JWT(algorithms=["HS256"], key=SECRET), clock=clock)
    request = bearer(signed(nbf=NOW))
    assert one.facts(request) == ALICE
    clock.advance(-1)
    assert one.facts(request) == NOBODY
    assert one.rejected == {"token_early": 1}


def test_rejections_are_logged_now_and_then_and_without_the_token(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock(NOW)
    one = Identity(jwt=JWT(algorithms=["HS256"], key=SECRET), clock=clock)
    token = signed("f" * 32)
    with caplog.at_level(logging.DEBUG):
        for _ in range(1_000):
            one.facts(bearer(token))
        clock.advance(60)
        one.facts(bearer(token))
    assert one.rejected == {"token_signature": 1_001}
    assert caplog.messages == [
        "identity: token_signature rejected, 1 since this was logged last",
        "identity: token_signature rejected, 1000 since this was logged last",
    ]


@settings(deadline=None)
@given(st.text(st.characters(max_codepoint=255), max_size=200))
def test_whatever_is_in_the_header_nothing_is_raised(junk: str) -> None:
    one = identity()
    assert one.facts(FakeRequest(authorization=junk)) == NOBODY
    assert one.facts(bearer(junk)) == NOBODY


SHORT_RSA = public_pem(rsa_key(bits=1_024))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"algorithms": ["none"]}, "JWT: algorithms: must be one of HS256, RS256, ES256, got 'none'"),
        ({"algorithms": []}, "JWT: algorithms: must name at least one of HS256, RS256, ES256, got []"),
        ({"algorithms": "HS256"}, "JWT: algorithms: must be a list of algorithms, got 'HS256'"),
        ({"algorithms": ["HS256", "RS256"]}, "JWT: algorithms: a key is for one algorithm, got HS256, RS256"),
        ({"key": None}, "JWT: key: give either a key or a jwks_url"),
        ({"jwks_url": "https://a/jwks"}, "JWT: key: give either a key or a jwks_url, not both"),
        ({"key": None, "jwks_url": "https://a/jwks"}, "JWT: algorithms: HS256 needs a secret"),
        ({"key": None, "jwks_url": "file:///etc/passwd"}, "JWT: jwks_url: must be a URL like"),
        ({"key": None, "jwks_url": "https://"}, "JWT: jwks_url: must be a URL like"),
        ({"key": None, "jwks_url": "https://u:p@a/"}, "JWT: jwks_url: must be a URL like"),
        ({"key": "hunter2"}, "JWT: key: must have at least 32 bytes for HS256, has 7"),
        ({"key": [SECRET, "hunter2"]}, "JWT: key: number 2 must have at least 32 bytes"),
        ({"key": 5}, "JWT: key: must be text, bytes, or a list of 1 to 10 of them, got int"),
        ({"key": [5]}, "JWT: key: must be text or bytes, got int"),
        ({"key": []}, "JWT: key: must be text, bytes, or a list"),
        ({"key": public_pem(rsa_key())}, "JWT: key: is an asymmetric key, not a shared secret"),
        ({"algorithms": ["RS256"]}, "JWT: key: must be a public key for RS256 in PEM"),
        ({"algorithms": ["RS256"], "key": public_pem(ec_key())}, "JWT: key: must be a public key"),
        ({"algorithms": ["ES256"], "key": public_pem(rsa_key())}, "JWT: key: must be a public key"),
        (
            {"algorithms": ["RS256"], "key": private_pem(rsa_key())},
            "JWT: key: must be an RSA public key, not a private key",
        ),
        (
            {"algorithms": ["ES256"], "key": private_pem(ec_key())},
            "JWT: key: must be an elliptic curve public key",
        ),
        ({"algorithms": ["RS256"], "key": SHORT_RSA}, "JWT: key: must have 2048 to 8192 bits for RS256, has 1024"),
        ({"issuer": []}, "JWT: issuer: must name at least one"),
        ({"audience": ""}, "JWT: audience: must be a non-empty string"),
        ({"leeway": -1}, "JWT: leeway: must be from 0"),
        ({"leeway": 601}, "JWT: leeway: must be from 0 to 600 seconds, got 601"),
        ({"jwks_lifetime": 1}, "JWT: jwks_lifetime: must be from 30 to 86400 seconds, got 1"),
        ({"user_claim": ""}, "JWT: user_claim: must be a non-empty string"),
        ({"user_claim": None}, "JWT: user_claim: without any claim, a token says nothing"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        JWT(**{"algorithms": ["HS256"], "key": SECRET, **options})
    assert complaint in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_key_is_never_shown() -> None:
    assert SECRET not in repr(identity())
    assert SECRET not in repr(identity().jwt)
