"""Identity: which of a request's claims about its client to believe."""

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
    """Identifies a request's client: `facts(request, snapshot)`. Create one; threads and event loops can share it.

    Every request has an `ip`: the address of the socket's peer or, if the peer is one of the `trusted_proxies`, the
    address in `proxy_header`. That header is read from its end, past at most `trusted_proxy_depth` proxies. If these
    two options are None, those of the current rules apply. `"unix"` trusts peers without an address. IPv6 addresses
    count by their network of `ipv6_prefix` bits, and the fact `address` is the exact one; 128 counts each address.

    `jwt`: verifies bearer tokens, and takes `user`, `tenant` and `tier` from them.

    `api_key_header`: the header with the API key; its hash becomes `api_key`. `api_keys`: the facts of keys: a mapping
    from `hashed_api_key(key)` to facts, or a function, sync or async, from the key itself to facts or None. Unknown
    keys are then rejected. Without `api_keys`, every key is accepted.

    `user_header`, `tenant_header`, `tier_header`: read only if the peer is one of the `trusted_proxies`. If sources
    disagree about a fact, a token overrides an API key, and an API key overrides a header.

    Rejected credentials are counted in `rejected`, and the request continues without them.

    Raises `InvalidRule`, which names every wrong field.
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
    _by_address: bool = field(init=False, repr=False)  # no other fact is configured

    def __post_init__(self) -> None:
        fields.set_checked(self, "Identity", {name: getattr(self, name) for name in _CHECKS}, _CHECKS)
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
        """The number of rejected credentials by reason, one of `Reason`."""
        return self._rejections.counts

    def goes_by_peer(self, snapshot: Snapshot | None) -> bool:
        """Return whether the peer's address alone identifies the client: no trusted proxy, and no other fact
        configured."""
        return self._by_address and not self._clients.trusts(snapshot)

    @property
    def waits(self) -> bool:
        """Whether `facts` may block. If not, an event loop can call it."""
        return self._keys.waits or (self.jwt is not None and self.jwt.jwks_url is not None)

    def facts(self, request: Request, snapshot: Snapshot | None = None) -> dict[str, str]:
        """Return the client's facts: `ip`, and others as configured. The caller may change the dictionary.

        `snapshot` holds the current rules, which name the trusted proxies unless this identity does; without either, no
        proxy is trusted. No content of a request makes this raise.
        """
        if self._by_address:
            return self._clients.find(request, snapshot)[0]
        return run(self._steps(request, snapshot))

    async def facts_async(
        self, request: Request, snapshot: Snapshot | None = None, *, vouched: bool = False
    ) -> dict[str, str]:
        """Return the facts of a request without blocking the event loop.

        A peer that the caller has `vouched` for is a trusted proxy, listed or not.
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
                facts.update((yield from self._accept(self._keys.facts(key))))
        if self._tokens is not None:
            authorization = request.header("authorization")
            if authorization is not None:
                facts.update((yield from self._accept(self._tokens.facts(authorization))))
        return facts

    def _accept(self, steps: Steps[dict[str, str]]) -> Steps[dict[str, str]]:
        """Return the facts of a credential; none if it is rejected."""
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
