"""Verifies tokens, and turns them into facts. No claim is used before the signature is verified.

PyJWT checks the signature. This module checks the claims, with Headgate's clock.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from typing import Any, Final, NamedTuple

from headgate.core.clock import Clock
from headgate.core.quota import MICROSECONDS
from headgate.http.identity.jwt import JWT
from headgate.http.identity.keys import Key
from headgate.http.identity.rejections import Rejected
from headgate.http.identity.steps import Steps
from headgate.rules.recent import Recent

MAX_TOKEN: Final = 8_192  # characters
MAX_TIME: Final = 10**12  # seconds: later times are invalid
REMEMBERED: Final = 4_096  # verified tokens

_TOKEN: Final = re.compile(r"([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*").fullmatch


class Verified(NamedTuple):
    """A verified token: the key that signed it, its validity and its facts."""

    algorithm: str
    key_id: str | None
    key: Key
    from_us: int
    until_us: int
    facts: dict[str, str]


class TokenVerifier:
    """Verifies tokens, and caches valid ones by their hash. Safe to share between threads."""

    def __init__(self, jwt: JWT, clock: Clock) -> None:
        self._jwt = jwt
        self._clock = clock
        self._keys = jwt.keys(clock)
        self._issuers: Sequence[str] | None = jwt.issuer
        self._audiences = frozenset(jwt.audience or ())
        claims = {"user": jwt.user_claim, "tenant": jwt.tenant_claim, "tier": jwt.tier_claim}
        self._claims = tuple((fact, claim) for fact, claim in claims.items() if claim is not None)
        self._leeway_us = round(jwt.leeway * MICROSECONDS)
        self._recent: Recent[bytes, Verified] = Recent(REMEMBERED)
        pyjwt = import_module("jwt")
        self._jws = pyjwt.PyJWS(algorithms=list(jwt.algorithms))
        self._bad_signature: type[Exception] = pyjwt.InvalidSignatureError
        self._pyjwt_error: type[Exception] = pyjwt.PyJWTError

    def facts(self, authorization: str) -> Steps[dict[str, str]]:
        """Return the facts of a bearer token; none for another `Authorization` scheme. Raises `Rejected`."""
        if authorization[:7].lower() != "bearer ":
            return {}
        if len(authorization) > MAX_TOKEN + 7:
            raise Rejected("token_too_large")
        token = authorization[7:].strip(" ")
        parts = _TOKEN(token)
        if parts is None:
            raise Rejected("token_malformed")
        digest = sha256(token.encode()).digest()
        verified = self._recent.get(digest)
        if verified is not None:
            # Look its keys up again: they may need a refresh, or may have been withdrawn.
            keys = yield from self._keys.find(verified.algorithm, verified.key_id)
            if any(key is verified.key for key in keys):
                self._check_times(verified.from_us, verified.until_us)
                return verified.facts
        algorithm, key_id = self._header(parts[1])
        keys = yield from self._keys.find(algorithm, key_id)
        key, claims = self._find_signer(token, keys)
        verified = self._verify_claims(claims, algorithm, key_id, key)
        self._recent.put(digest, verified)
        return verified.facts

    def _header(self, part: str) -> tuple[str, str | None]:
        """Return algorithm and key id. Ignore the key locations that the header names (jku, x5u, jwk)."""
        header = _object(urlsafe_b64decode(part + "=" * (-len(part) % 4)) if len(part) % 4 != 1 else b"")
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._jwt.algorithms:
            raise Rejected("token_algorithm")
        if "crit" in header or "b64" in header:
            raise Rejected("token_critical")
        if not isinstance(key_id, str | None):
            raise Rejected("token_malformed")
        return algorithm, key_id

    def _find_signer(self, token: str, keys: Sequence[Key]) -> tuple[Key, Mapping[str, Any]]:
        """Return the key that signed a token, and the signed claims."""
        for key in keys:
            try:
                decoded = self._jws.decode_complete(token, key.key, algorithms=[key.algorithm])
            except self._bad_signature:
                continue
            except (self._pyjwt_error, ValueError, RecursionError):
                raise Rejected("token_malformed") from None
            return key, _object(decoded["payload"])
        raise Rejected("token_signature")

    def _verify_claims(self, claims: Mapping[str, Any], algorithm: str, key_id: str | None, key: Key) -> Verified:
        expires_us = _time_us(claims.get("exp"))
        if expires_us is None:
            raise Rejected("token_expired")
        from_us = 0
        if "nbf" in claims:
            not_before_us = _time_us(claims["nbf"])
            if not_before_us is None:
                raise Rejected("token_early")
            from_us = not_before_us - self._leeway_us
        until_us = expires_us + self._leeway_us
        self._check_times(from_us, until_us)
        self._check_issuer(claims)
        self._check_audience(claims)
        return Verified(algorithm, key_id, key, from_us, until_us, self._facts_of(claims))

    def _check_times(self, from_us: int, until_us: int) -> None:
        now_us = self._clock.now_us()
        if now_us >= until_us:
            raise Rejected("token_expired")
        if now_us < from_us:
            raise Rejected("token_early")

    def _check_issuer(self, claims: Mapping[str, Any]) -> None:
        issuer = claims.get("iss")
        if "iss" in claims and not isinstance(issuer, str):
            raise Rejected("token_issuer")
        if self._issuers is not None and issuer not in self._issuers:
            raise Rejected("token_issuer")

    def _check_audience(self, claims: Mapping[str, Any]) -> None:
        """Check the audience: a token must name ours, or none if none is configured."""
        if "aud" not in claims and not self._audiences:
            return
        audience = claims.get("aud")
        named = [audience] if isinstance(audience, str) else audience
        if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
            raise Rejected("token_audience")
        if self._audiences.isdisjoint(named):
            raise Rejected("token_audience")

    def _facts_of(self, claims: Mapping[str, Any]) -> dict[str, str]:
        """Return the facts in the claims. They are strings; integers are accepted too, except for `sub`."""
        facts = {}
        for fact, claim in self._claims:
            value = claims.get(claim)
            if value is None and fact != "user":
                continue
            if isinstance(value, int) and not isinstance(value, bool) and claim != "sub":
                value = str(value)
            if not isinstance(value, str) or not value:
                raise Rejected("token_claim")
            facts[fact] = value
        return facts


def _object(text: bytes) -> Mapping[str, Any]:
    """Return the JSON object in a text. Raises `Rejected`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise Rejected("token_malformed") from None
    if not isinstance(found, dict):
        raise Rejected("token_malformed")
    return found


def _time_us(value: Any) -> int | None:
    """Convert seconds since the epoch to microseconds; None if the value is not a time."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_TIME:  # also excludes NaN
        return None
    return int(value * MICROSECONDS)
