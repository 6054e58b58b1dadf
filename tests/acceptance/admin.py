"""The admin's API under uvicorn, in a thread of the test, so that its app and its limiter are at hand."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from time import monotonic, sleep
from typing import Any

import httpx
import uvicorn
from fastapi import APIRouter, FastAPI

from headgate import AsyncLimiter
from headgate.db import TokenTable, migrate
from headgate.operations import Operations, Role, Scope
from headgate.rules.holder import Source
from headgate.rules.sources.database import DatabaseSource
from headgate.rules.sources.file import FileSource
from headgate.service.access import Access
from headgate.service.admin import admin_app
from headgate.service.data_plane import DataPlane
from headgate.service.http.app import HttpApp
from headgate.testing import FakeClock

ADMIN = "bootstrap-token"
START_SECONDS = 20
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # made once: each client would take its time for one


class Served:
    """A node with an admin's API. `http` is a client with the bootstrap token."""

    def __init__(self, app: FastAPI, url: str, limiter: AsyncLimiter, tokens: TokenTable | None, database: str) -> None:
        self.app = app
        self.url = url
        self.limiter = limiter
        self.tokens = tokens
        self.database = database
        self.http = self.client(ADMIN)

    def client(self, token: str | None) -> httpx.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, verify=NO_TLS)

    def token(self, name: str, role: Role, scopes: Sequence[Scope]) -> str:
        """A new token, made by the API."""
        body = {"name": name, "role": role, "scopes": list(scopes), "expires_in": "1h"}
        answer = self.http.post("/api/v1/tokens", json=body)
        assert answer.status_code == 201, answer.text
        secret: str = answer.json()["token"]
        return secret

    def expired_token(self, name: str, role: Role = "admin", scopes: Sequence[Scope] = ("rules",)) -> str:
        """A token that was good long ago."""
        long_ago = TokenTable(self.database, clock=FakeClock(1_000_000_000.0))
        _, secret = long_ago.create(name, role=role, scopes=scopes, seconds=60, actor="test")
        long_ago.close()
        return secret

    def check(self, **facts: Any) -> bool:
        """Whether this node allows a request."""
        answer = self.http.post("/v1/check", json=facts)
        assert answer.status_code in (200, 429), answer.text
        return answer.status_code == 200


class Well:
    """The health of a node that always is."""

    def rules_version(self) -> str | None:
        return "1"

    def is_draining(self) -> bool:
        return False

    def faults(self) -> dict[str, str]:
        return {}


def no_metrics(*_: Any) -> Any:
    raise AssertionError("nobody asks for metrics here")


@contextmanager
def served(
    database: str,
    *,
    rules: str | None = None,
    routers: Sequence[APIRouter] = (),
    limits: AsyncLimiter | None = None,
) -> Iterator[Served]:
    """A node on a database; its rules are in it, or in the file `rules`."""
    migrate(database)
    source: Source = DatabaseSource(database) if rules is None else FileSource(rules)
    tokens = TokenTable(database)
    limiter = AsyncLimiter(source)
    access = Access(admin_token=ADMIN, tokens=tokens)
    app = admin_app(
        operations=Operations(
            source=source,
            limiter=limiter,
            changes=source.changes() if isinstance(source, DatabaseSource) else None,
        ),
        access=access,
        tokens=tokens,
        routers=routers,
        limits=limits,
    )
    http = HttpApp(DataPlane(limiter), access, health=Well(), metrics=no_metrics, admin=app)
    server = uvicorn.Server(uvicorn.Config(http, port=0, log_level="warning", ws="none", lifespan="off"))
    thread = Thread(target=server.run, name="uvicorn")
    thread.start()
    try:
        deadline = monotonic() + START_SECONDS
        while not server.started:
            assert thread.is_alive(), "uvicorn did not start"
            assert monotonic() < deadline, "uvicorn did not start"
            sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        node = Served(app, f"http://127.0.0.1:{port}", limiter, tokens, database)
        yield node
        node.http.close()
    finally:
        server.should_exit = True
        thread.join()
        tokens.close()
        source.close()
