"""Health and metrics: `/healthz`, `/readyz`, `/metrics`. They need no token."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from headgate.http.asgi import Receive, Scope
from headgate.service.http.exchange import Answer, json_answer

Metrics = Callable[
    [str], Awaitable[tuple[bytes, str]]
]  # takes the header Accept; returns the page and its content type

_NO_STORE = (b"cache-control", b"no-store")


class Health(Protocol):
    """The state of the service. Handlers read it often, on the event loop: no method may block."""

    def rules_version(self) -> str | None:
        """Return the version of the current rules; None while there are none."""
        ...

    def is_draining(self) -> bool:
        """Return whether the service is stopping, and wants no new callers."""
        ...

    def faults(self) -> Mapping[str, str]:
        """Return what fails now, by part (`store`, `database` …), in words without secrets.

        The service still works: it decides by failure modes, and with the last rules that it loaded.
        """
        ...


class HealthHandlers:
    """The handlers of `/healthz`, `/readyz` and `/metrics`."""

    def __init__(self, health: Health, metrics: Metrics) -> None:
        self._health = health
        self._metrics = metrics

    async def alive(self, scope: Scope, receive: Receive) -> Answer:  # noqa: ARG002
        """Answer 200 for as long as the process can answer at all."""
        return json_answer(200, b'{"status":"alive"}', _NO_STORE)

    async def ready(self, scope: Scope, receive: Receive) -> Answer:  # noqa: ARG002
        """Answer 200 when checks can be decided.

        Without a store they still can: that is `degraded`. It is not a reason to send callers to other nodes, which
        share the store.
        """
        version, faults = self._health.rules_version(), dict(self._health.faults())
        if self._health.is_draining():
            status = "draining"
        elif version is None:
            status = "no_rules"
        else:
            status = "degraded" if faults else "ready"
        said: dict[str, Any] = {"status": status, "rules": version, "faults": faults}
        return json_answer(200 if status in ("ready", "degraded") else 503, json.dumps(said).encode(), _NO_STORE)

    async def metrics(self, scope: Scope, receive: Receive) -> Answer:  # noqa: ARG002
        """Answer with the metrics, as Prometheus reads them."""
        accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
        body, kind = await self._metrics(accept.decode("latin-1"))
        return Answer(200, [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))], body)
