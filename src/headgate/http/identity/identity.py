"""Identity: what to believe of what requests say about who makes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from headgate.core.clock import Clock, SystemClock
from headgate.errors import InvalidRule, Problem
from headgate.http.identity.address import ClientFinder
from headgate.http.identity.api_key import ApiKeys, KeyFacts, Lookup, checked_api_keys
from headgate.http.identity.facts import text_of
from headgate.http.identity.forwarded import HOPS
from headgate.http.identity.jwt import JWT
from headgate.http.identity.rejections import Rejected, Rejections
from headgate.http.identity.steps import Steps, run, run_async
from headgate.http.identity.tokens import TokenVerifier
from headgate.http.request import Request
from headgate.rules import fields
from headgate.rules.networks import Proxy, proxy
from headgate.rules.snapshot import Snapshot

ProxyHeader = Literal["x-forwarded-for", "forwarded"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Identity:
    """Tells who is making a request: `facts(request, snapshot)`. Made once; safe to share between threads and loops.

    Every request has an `ip`: that of the socket's peer, or, if the peer is one of the `trusted_proxies`, that which
    the `proxy_header` names: it is read from its end, past at most `trusted_proxy_depth` proxies. Where these two are
    None, they are those of the rules in force. `"unix"` among the proxies trusts peers that have no address. IPv6
    addresses count by their network of `ipv6_prefix` bits, and the fact `address` is the exact one; 128: each counts
    by itself.

    `jwt`: verifies bearer tokens, which then give `user`, `tenant` and `tier`.

    `api_key_header`: where a key comes from, which gives `api_key`, hashed. `api_keys`: what is known of the keys: a
    mapping from `hashed_api_key(key)` to facts, or a function, sync or async, from the key itself to facts or None.
    A key of which nothing is known is then not accepted. Without `api_keys`, every key is.

    `user_header`, `tenant_header`, `tier_header`: believed when the peer is one of the `trusted_proxies`, and never
    otherwise. If a fact is said more than once, a token's word counts more than an API key's, and that more than a
    header's.

    What is not accepted is counted in `rejected`, and the request goes on without it.

    Raises `InvalidRule` that names every field that is wrong.
    """

    trusted_proxies: Sequence[Proxy | str] | None = None
    trusted_proxy_depth: int | None = None
    proxy_header: ProxyHeader = "x-forwarded-for"
    ipv6_prefix: int = 64
    jwt: JWT | None = None
    api_key_header: str | None = None
    api_keys: Mapping[str, KeyFacts] | Lookup | None = field(default=None, repr=False)
    user_header: str | None = None
    tenant_header: str | None = None
    tier_header: str | None = None
    clock: Clock = field(default_factory=SystemClock, repr=False)
    _clients: ClientFinder = field(init=False, repr=False)
    _headers: tuple[tuple[str, str], ...] = field(init=False, repr=False)
    _keys: ApiKeys = field(init=False, repr=False)
    _tokens: TokenVerifier | None = field(init=False, repr=False)
    _rejections: Rejections = field(init=False, repr=False)
    _by_address: bool = field(init=False, repr=False)  # nothing else is asked for

    def __post_init__(self) -> None:
        fields.checked(self, "Identity", {name: getattr(self, name) for name in _CHECKS}, _CHECKS)
        if self.api_keys is not None and self.api_key_header is None:
            raise InvalidRule(Problem("Identity", "api_key_header", "must name the header that carries API keys"))
        proxies: Any = self.trusted_proxies
        named = {"user": self.user_header, "tenant": self.tenant_header, "tier": self.tier_header}
        headers = tuple((fact, header) for fact, header in named.items() if header is not None)
        known: Any = self.api_keys
        made = {
            "_clients": ClientFinder(proxies, self.trusted_proxy_depth, self.proxy_header, self.ipv6_prefix),
            "_headers": headers,
            "_keys": ApiKeys(known),
            "_tokens": None if self.jwt is None else TokenVerifier(self.jwt, self.clock),
            "_rejections": Rejections(self.clock),
            "_by_address": self.jwt is None and self.api_key_header is None and not headers,
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @property
    def rejected(self) -> dict[str, int]:
        """How many credentials were not accepted, by reason; there are a dozen reasons or so, and never more."""
        return self._rejections.counts

    def goes_by_peer(self, snapshot: Snapshot | None) -> bool:
        """Whether all requests from one peer are of one client: no proxy is trusted, and nothing else asked for."""
        return self._by_address and not self._clients.trusts(snapshot)

    @property
    def waits(self) -> bool:
        """Whether `facts` may have to wait for something. If not, it is fine to call it on an event loop."""
        return self._keys.waits or (self.jwt is not None and self.jwt.jwks_url is not None)

    def facts(self, request: Request, snapshot: Snapshot | None = None) -> dict[str, str]:
        """Who is making a request: `ip`, and what else is known. The caller may change the dictionary.

        `snapshot` is the one in force, which says what proxies are trusted, unless that was said here; without both,
        none is. Raises nothing because of what is in a request.
        """
        if self._by_address:
            return self._clients.find(request, snapshot)[0]
        return run(self._steps(request, snapshot))

    async def facts_async(
        self, request: Request, snapshot: Snapshot | None = None, *, vouched: bool = False
    ) -> dict[str, str]:
        """Return the facts of a request without blocking the event loop.

        A peer that is `vouched` for is a trusted proxy, listed or not: the caller knows that from elsewhere.
        """
        if self._by_address:
            return self._clients.find(request, snapshot, vouched=vouched)[0]
        return await run_async(self._steps(request, snapshot, vouched=vouched))

    def _steps(self, request: Request, snapshot: Snapshot | None, *, vouched: bool = False) -> Steps[dict[str, str]]:
        facts, trusted = self._clients.find(request, snapshot, vouched=vouched)
        if trusted:
            for fact, header in self._headers:
                said = text_of(request.header(header) or "")
                if said:
                    facts[fact] = said
        if self.api_key_header is not None:
            key = request.header(self.api_key_header)
            if key is not None:
                facts.update((yield from self._accepted(self._keys.facts(key))))
        if self._tokens is not None:
            authorization = request.header("authorization")
            if authorization is not None:
                facts.update((yield from self._accepted(self._tokens.facts(authorization))))
        return facts

    def _accepted(self, steps: Steps[dict[str, str]]) -> Steps[dict[str, str]]:
        """What a credential says; nothing, if it is rejected."""
        try:
            return (yield from steps)
        except Rejected as rejected:
            self._rejections.count(rejected.reason)
            return {}


_TOKEN: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+").fullmatch


def _header(value: Any) -> str:
    name: str = fields.text(value).lower()
    if not _TOKEN(name):
        raise ValueError(f"must be the name of a header, got {value!r}")
    return name


def _jwt(value: Any) -> JWT:
    if not isinstance(value, JWT):
        raise ValueError(f"must be a JWT(...), got {type(value).__name__}")  # noqa: TRY004 - not shown: it may be a key
    return value


_CHECKS: Final[dict[str, fields.Check]] = {
    "trusted_proxies": fields.optional(fields.several(proxy, "networks")),
    "trusted_proxy_depth": fields.optional(fields.whole(1, 100)),
    "proxy_header": fields.choice(*HOPS),
    "ipv6_prefix": fields.whole(1, 128),
    "jwt": fields.optional(_jwt),
    "api_key_header": fields.optional(_header),
    "api_keys": checked_api_keys,
    "user_header": fields.optional(_header),
    "tenant_header": fields.optional(_header),
    "tier_header": fields.optional(_header),
}
