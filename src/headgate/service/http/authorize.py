"""`/v1/authorize`: for proxies that call it before they forward a request (nginx `auth_request`, Traefik ForwardAuth,
Caddy `forward_auth`).

It checks the request that the proxy received, as the proxy's headers describe it. A caller that may use the data plane
is the proxy, and is trusted to describe the request. The client is not trusted: a header that a client can send through
a proxy must not count. So if two headers could both be the proxy's and differ, the request is refused. Facts that the
operator states come in the query, which no proxy takes from its clients.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from time import perf_counter
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.errors import InvalidCheck
from headgate.http.asgi import AsgiRequest, Receive, Scope
from headgate.http.headers import raw, render
from headgate.http.identity import Identity, hashed_api_key
from headgate.http.identity.facts import text_of
from headgate.http.problem import MEDIA_TYPE, decision_field, problem
from headgate.rules.facts import FactNames
from headgate.rules.snapshot import Snapshot
from headgate.service.access import Access
from headgate.service.data_plane import DataPlane
from headgate.service.http.exchange import Answer, Headers, address_of, admit, bearer_of
from headgate.service.http.problems import HttpError
from headgate.service.http.request_bodies import ask_of, shorter, shown

API_KEY_HEADER: Final = "x-api-key"
TOKEN_HEADER: Final = b"x-headgate-token"  # the proxy's token: Authorization is the client's
STATUS_HEADER: Final = b"x-ratelimit-status"  # the rule's status, which `deny_status` hides

_URIS: Final = ("x-original-uri", "x-forwarded-uri")
_METHODS: Final = ("x-original-method", "x-forwarded-method")
_MAX_FIELDS: Final = 64  # of a query
_ESCAPED_SLASH: Final = re.compile("%2f", re.IGNORECASE)
_CONTENT: Final = [(b"content-length", b"0"), (b"cache-control", b"no-store")]


class AuthorizeOptions(NamedTuple):
    """The options in the query: a status to refuse with, and facts and cost that the operator states."""

    deny_status: int | None
    facts: dict[str, str]
    cost: Cost


class AuthorizeHandler:
    """The handler of `/v1/authorize`. `identity` identifies clients; by default, API keys come in X-API-Key."""

    def __init__(self, data: DataPlane, access: Access, *, identity: Identity | None = None) -> None:
        self._data = data
        self._access = access
        self._identity = identity or Identity(api_key_header=API_KEY_HEADER)

    async def __call__(self, scope: Scope, receive: Receive) -> Answer:  # noqa: ARG002
        """Answer 200 with the limits' header fields, or the status of the rule that refuses. Bodies are ignored."""
        began = perf_counter()
        if not self._access.open:
            headers: Headers = dict(scope["headers"])
            token = headers.get(TOKEN_HEADER)
            said = bearer_of(headers) if token is None else token.decode("latin-1").strip()
            await self._access.require_data(said, address=address_of(scope))
        admit(scope)
        query: bytes = scope["query_string"]
        options = options_of(query, self._data.limiter.snapshot.fact_names) if query else _DEFAULT
        request = _Original(scope)
        facts = await self._identity.facts_async(request, self._data.limiter.snapshot, vouched=True)
        uri = request.one_of(_URIS, endpoint_of)
        if uri is not None:
            facts["endpoint"] = uri
        method = request.one_of(_METHODS, str)
        if method is not None:
            facts["method"] = method
        facts.update(options.facts)
        decision = await self._data.check(facts, options.cost, ready=True, slots="skip")  # a proxy never releases slots
        answer = _answer_of(decision, options, self._data.limiter.snapshot)
        self._data.meter.record_call("authorize", perf_counter() - began)
        return answer


class _Original(AsgiRequest):
    """The request that the proxy received."""

    __slots__ = ()

    def header(self, name: str) -> str | None:
        found = super().header(name)
        if found is None and name == "x-forwarded-for":
            return super().header("x-real-ip")
        return found

    def one_of(self, names: tuple[str, ...], meaning: Callable[[str], str]) -> str | None:
        """Return the value of headers that proxies use for the same thing. Raises `HttpError` if they differ."""
        said = {name: meaning(text_of(value)) for name in names if (value := self.header(name))}
        if len(set(said.values())) > 1:
            first, second = said
            detail = f"{first} and {second} disagree: one of them is not from the proxy. Let the proxy remove the other"
            raise HttpError(403, detail)
        return next(iter(said.values()), None)


def endpoint_of(uri: str) -> str:
    """Return the path of a URI as it was sent, without its query, which may hold secrets and which no rule reads.

    An escaped slash counts as a slash: nginx and most web frameworks route it so.
    """
    if uri[:1] != "/":
        with suppress(ValueError):  # not a URL either
            uri = urlsplit(uri).path or "/"
    return _ESCAPED_SLASH.sub("/", re.split(r"[?#]", uri, maxsplit=1)[0])


@lru_cache(maxsize=1_024)
def options_of(query: bytes, names: FactNames) -> AuthorizeOptions:
    """Read the options of a query. The result is shared: do not change it. Raises `InvalidCheck`.

    `names` are the known facts. They are checked here because the limiter never sees empty facts.
    """
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError:
        detail = f"the query must be at most {_MAX_FIELDS} fields in UTF-8, such as cost=2&tenant=acme"
        raise InvalidCheck(f"{detail}, got {shown(query.decode('latin-1'))}") from None
    fields: dict[str, str] = {}
    for name, value in pairs:
        if name in fields:
            raise InvalidCheck(f"{shorter(name)}: given twice")
        fields[name] = value
    if "idempotency_key" in fields:
        raise InvalidCheck("idempotency_key: not supported by /v1/authorize, where every call is a new request")
    status = fields.pop("deny_status", None)
    cost = fields.pop("cost", "1")
    names.require(fields)
    said = {name: value for name, value in fields.items() if value}  # an empty fact is unknown
    if "api_key" in said:
        said["api_key"] = hashed_api_key(said["api_key"])
    number = _whole(cost)
    facts, whole, _, _ = ask_of({**said, "cost": cost if number is None else number}, names)
    return AuthorizeOptions(None if status is None else _deny_status(status), facts, whole)


_DEFAULT: Final = AuthorizeOptions(None, {}, 1)


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 16 else None


def _deny_status(text: str) -> int:
    status = _whole(text)
    if status is None or not 400 <= status <= 599:
        raise InvalidCheck(f"deny_status: must be a status from 400 to 599, got {shown(text)}")
    return status


def _answer_of(decision: Decision, options: AuthorizeOptions, snapshot: Snapshot) -> Answer:
    fields = render(decision, options.cost, snapshot.headers)
    if decision.allowed:
        return Answer(200, fields + _CONTENT)
    body = json.dumps(problem(decision)).encode()
    fields += [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body)), _CONTENT[1]]
    fields += raw(decision_field(decision, snapshot))
    if options.deny_status is None:
        return Answer(decision.status, fields, body)
    return Answer(options.deny_status, [*fields, (STATUS_HEADER, b"%d" % decision.status)], body)
