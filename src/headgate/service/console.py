"""The console in the service: how operators sign in, and the objects that its pages use."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headgate.console import Console, Sessions
from headgate.console.page import Services
from headgate.db.events import Events
from headgate.db.tokens import hash_of
from headgate.db.usage import UsageHistory
from headgate.http.asgi import App, Receive, Scope, Send
from headgate.operations import Caller, Operations
from headgate.operations.history import History
from headgate.operations.tokens import Tokens
from headgate.service.auth_failures import TokenGuessLimiter
from headgate.service.directory import LINK_FILE
from headgate.service.http.exchange import admit

if TYPE_CHECKING:
    from headgate.service.access import Access
    from headgate.service.fleet import Fleet
    from headgate.service.node import Node

NAMES: Final = {  # of stores and databases, by URL scheme
    "memory": "in memory",
    "embedded": "bundled Valkey",
    "redis": "Redis",
    "rediss": "Redis, over TLS",
    "redis+sentinel": "Redis, by Sentinel",
    "redis+cluster": "Redis Cluster",
    "sqlite": "SQLite",
    "postgresql": "PostgreSQL",
}
LINK_SECONDS: Final = 3_600.0  # that a link's code is valid


class TokenGatekeeper:
    """Signs in operators with a valid token, or with the code of the link printed at the start."""

    def __init__(self, access: Access, admin_token: str, link_file: Path) -> None:
        self._access = access
        self._guess_limiter = TokenGuessLimiter("console-failures")
        self._admin_digest = hash_of(admin_token)
        self._link_file = link_file

    async def sign_in(self, token: str, address: str | None) -> str:
        await self._guess_limiter.caller(token, address, lambda: self._access.caller(token))
        return hash_of(token)

    async def caller(self, digest: str) -> Caller:
        return await self._access.caller_by_hash(digest)

    def redeem(self, code: str) -> str | None:
        """Redeem a link's code once. Of several processes, only the one that removes the file succeeds."""
        try:
            known = self._link_file.read_text()
            fresh = time.time() - self._link_file.stat().st_mtime < LINK_SECONDS
        except OSError:
            return None
        if not fresh or not secrets.compare_digest(known, hash_of(code)):
            return None
        try:
            self._link_file.unlink()
        except FileNotFoundError:
            return None
        return self._admin_digest


def _describe(url: str) -> str:
    """Describe a URL without its secrets, as `Redis at 10.0.0.5:6379`."""
    scheme, _, rest = url.partition("://")
    hosts = rest.partition("/")[0].partition("?")[0].rpartition("@")[2]
    name = NAMES.get(scheme, scheme)
    return f"{name} at {hosts}" if hosts else name


def console_app(node: Node, operations: Operations, fleet: Fleet, *, secure: bool) -> App:
    """Return the console of a node. `secure` means that it is served over TLS."""
    console = Console(
        Services(
            operations=operations,
            history=History(Events(node.database), UsageHistory(node.database)),
            tokens=Tokens(node.tokens, node.access.forget),
            fleet=fleet,
            store=_describe(node.settings.store_url),
            database=_describe(node.database.name),
        ),
        Sessions(node.admin_token, node.limiter.clock, secure=secure),
        TokenGatekeeper(node.access, node.admin_token, node.directory.path / LINK_FILE),
        has_regions=node.settings.region is not None,
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        def send_admitted(message: Any) -> Awaitable[Any]:
            if "caller" in scope["state"]:  # a signed-in operator is not a stranger
                admit(scope)
            return send(message)

        scope.setdefault("state", {})
        await console(scope, receive, send_admitted)

    return app
