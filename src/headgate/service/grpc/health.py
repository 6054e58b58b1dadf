"""grpc.health.v1.Health. Its watchers do not delay the server's stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from typing import Final

from headgate.service.grpc.status import Code, Ended
from headgate.service.protos import health_pb2 as messages
from headgate.service.rpc.method import Answered, Flow, Method, method_of

MAX_WATCHERS: Final = 1_000  # at a time

Response = messages.HealthCheckResponse


class HealthService:
    """Reports the status of each service, and of all under the empty name. Needs no token."""

    name: Final = "grpc.health.v1.Health"
    protocol: Final = None

    def __init__(self, services: Iterable[str]) -> None:
        self._statuses: dict[str, Response.ServingStatus] = dict.fromkeys(("", *services), Response.SERVING)
        self._changed = asyncio.Event()
        self._watchers = 0
        self._dismissed = False
        self.methods: Mapping[str, Method | Flow] = {
            "Check": Method(self.check, None),
            "List": method_of(messages.HealthListRequest, self.list, None),
            "Watch": Flow(messages.HealthCheckRequest, self.watch, None),
        }

    def stop_serving(self) -> None:
        """Report NOT_SERVING from now on."""
        self._statuses = dict.fromkeys(self._statuses, Response.NOT_SERVING)
        self._notify()

    def dismiss(self) -> None:
        """End the calls of all watchers."""
        self._dismissed = True
        self._notify()

    def check(self, received: bytes) -> Answered:
        service = messages.HealthCheckRequest.FromString(received).service
        status = self._statuses.get(service)
        if status is None:
            raise Ended(Code.NOT_FOUND, f"there is no service {service!r} here")
        return Response(status=status).SerializeToString(), 1

    async def list(self, _: messages.HealthListRequest) -> messages.HealthListResponse:
        return messages.HealthListResponse(
            statuses={name: Response(status=status) for name, status in self._statuses.items()}
        )

    async def watch(self, requests: AsyncIterator[messages.HealthCheckRequest]) -> AsyncGenerator[Response]:
        """Yield the status of a service, now and whenever it changes."""
        request = await anext(requests, None)
        if request is None:
            raise Ended(Code.INTERNAL, "the request has no message")
        if self._watchers >= MAX_WATCHERS:
            raise Ended(Code.RESOURCE_EXHAUSTED, f"at most {MAX_WATCHERS:,} may watch at a time")
        self._watchers += 1
        reported = None
        try:
            while not self._dismissed:
                changed = self._changed
                status = self._statuses.get(request.service, Response.SERVICE_UNKNOWN)
                if status != reported:
                    reported = status
                    yield Response(status=status)
                await changed.wait()
        finally:
            self._watchers -= 1

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
