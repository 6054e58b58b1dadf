"""JWT: which bearer tokens to accept, and which facts to take from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, get_args
from urllib.parse import urlsplit

from headgate.core.clock import Clock
from headgate.errors import InvalidRule, Problem
from headgate.http.identity.keys import Algorithm, FetchedKeys, Key, KeySource, ListedKeys, key_from_settings
from headgate.rules import fields

MAX_KEYS: Final = 10  # from settings: each may be tried on a token


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JWT:
    """How to verify the bearer tokens of requests. Needs PyJWT: `pip install 'headgate[jwt]'`.

    `algorithms`: the accepted ones among HS256, RS256 and ES256. `key`: a secret for HS256 or a public key in PEM, or a
    list of them during a key rotation; with a key, `algorithms` must be a single one. Or `jwks_url`: the URL where the
    issuer publishes its keys, for RS256 and ES256.

    `issuer` and `audience`: the accepted value or values. A token with an audience (`aud`) is rejected if none is
    configured. A token must have an expiry (`exp`). `leeway` is the tolerated clock difference in seconds.

    `user_claim` becomes the fact `user`; a token without it is rejected. `tenant_claim` and `tier_claim` become
    `tenant` and `tier` if the token has them.

    `jwks_lifetime`: seconds until keys must be fetched again; `jwks_stale`: seconds after that for which old keys are
    used if fetching fails; `jwks_timeout`: seconds to wait for a fetch.

    Raises `InvalidRule`, which names every wrong field.
    """

    algorithms: Sequence[Algorithm]
    key: str | bytes | Sequence[str | bytes] | None = field(default=None, repr=False)
    jwks_url: str | None = None
    issuer: str | Sequence[str] | None = None
    audience: str | Sequence[str] | None = None
    user_claim: str | None = "sub"
    tenant_claim: str | None = None
    tier_claim: str | None = None
    leeway: float = 0
    jwks_lifetime: float = 600
    jwks_stale: float = 3_600
    jwks_timeout: float = 3
    _listed_keys: tuple[Key, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _need_pyjwt()
        fields.set_checked(self, "JWT", {name: getattr(self, name) for name in _CHECKS}, _CHECKS)
        problem = self._problem()
        if problem is not None:
            raise InvalidRule(Problem("JWT", *problem))
        keys: list[Key] = []
        if self.key is not None:
            accepted = [self.key] if isinstance(self.key, str | bytes) else list(self.key)
            for number, key in enumerate(accepted, start=1):
                try:
                    keys.append(key_from_settings(self.algorithms[0], key))
                except ValueError as error:
                    which = f"number {number} " if len(accepted) > 1 else ""
                    raise InvalidRule(Problem("JWT", "key", f"{which}{error}")) from error.__cause__
        object.__setattr__(self, "_listed_keys", tuple(keys))

    def _problem(self) -> tuple[str, str] | None:
        """Return a field that conflicts with others, and what is wrong with it; None if all fit together."""
        if (self.key is None) == (self.jwks_url is None):
            return "key", "give either a key or a jwks_url" + ("" if self.key is None else ", not both")
        if self.key is not None and len(self.algorithms) > 1:
            names = ", ".join(self.algorithms)
            return "algorithms", f"a key is for one algorithm, got {names}: give a jwks_url for several"
        if self.jwks_url is not None and "HS256" in self.algorithms:
            return "algorithms", "HS256 needs a secret, and a jwks_url publishes keys: give a key"
        if self.user_claim is None and self.tenant_claim is None and self.tier_claim is None:
            return "user_claim", "without any claim, a token says nothing: name one of user, tenant or tier"
        return None

    def keys(self, clock: Clock) -> KeySource:
        """Return the source of keys that verify tokens."""
        if self.jwks_url is None:
            return ListedKeys(self._listed_keys)
        return FetchedKeys(
            self.jwks_url,
            self.algorithms,
            clock,
            lifetime=self.jwks_lifetime,
            stale=self.jwks_stale,
            timeout=self.jwks_timeout,
        )


def _need_pyjwt() -> None:
    try:
        import_module("jwt")
        import_module("cryptography")
    except ImportError as error:
        raise ImportError("JWT needs PyJWT and cryptography: pip install 'headgate[jwt]'") from error


def _algorithms(value: Any) -> tuple[str, ...]:
    kept: tuple[str, ...] = fields.several(fields.choice(*get_args(Algorithm)), "algorithms")(value)
    if not kept:
        raise ValueError(f"must name at least one of {', '.join(get_args(Algorithm))}, got {value!r}")
    return kept


def _url(value: Any) -> str:
    url: str = fields.name(value)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or " " in url:
        raise ValueError(f"must be a URL like 'https://issuer.example/jwks.json', got {value!r}")
    return url


def _names(value: Any) -> tuple[str, ...]:
    """Check one string or several, and return them as a tuple."""
    kept: tuple[str, ...] = fields.several(fields.name, "texts")([value] if isinstance(value, str) else value)
    if not kept:
        raise ValueError("must name at least one, or be None")
    return kept


def _key(value: Any) -> Any:
    """Check the type only: `key_from_settings` checks the content, and no message shows it."""
    if isinstance(value, str | bytes):
        return value
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_KEYS:
        raise ValueError(f"must be text, bytes, or a list of 1 to {MAX_KEYS} of them, got {type(value).__name__}")
    return tuple(value)


def _between(low: float, high: float) -> fields.Check:
    def check(value: Any) -> float:
        seconds: float = fields.seconds(value)
        if not low <= seconds <= high:
            raise ValueError(f"must be from {low:g} to {high:g} seconds, got {value!r}")
        return seconds

    return check


_CHECKS: Final[dict[str, fields.Check]] = {
    "algorithms": _algorithms,
    "key": fields.optional(_key),
    "jwks_url": fields.optional(_url),
    "issuer": fields.optional(_names),
    "audience": fields.optional(_names),
    "user_claim": fields.optional(fields.name),
    "tenant_claim": fields.optional(fields.name),
    "tier_claim": fields.optional(fields.name),
    "leeway": _between(0, 600),
    "jwks_lifetime": _between(30, 86_400),
    "jwks_stale": _between(0, 86_400),
    "jwks_timeout": _between(0.1, 30),
}
