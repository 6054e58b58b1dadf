"""grpc.health.v1.Health, whose watchers do not hold up a server that stops."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from grpc_health.v1 import health, health_pb2

SERVING: Final = health_pb2.HealthCheckResponse.SERVING


class Health(health.aio.HealthServicer):  # type: ignore[misc]  # it has no stubs
    """Says how each service is, and sends watchers home at the end: otherwise they are calls under way for ever."""

    def __init__(self) -> None:
        super().__init__()
        self._dismissed = asyncio.Event()

    def dismiss(self) -> None:
        """End the calls of all who watch."""
        self._dismissed.set()

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - its name in the protocol
        """Tell how a service is, now and whenever that changes."""
        watching = asyncio.ensure_future(super().Watch(request, context))
        end = asyncio.ensure_future(self._dismissed.wait())
        try:
            await asyncio.wait({watching, end}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (watching, end):
                task.cancel()
            await asyncio.gather(watching, end, return_exceptions=True)
