"""Discovery for asyncio: passes the results of the thread of `Discovery` to the event loop, and wakes waiting tasks."""

from __future__ import annotations

import asyncio
from typing import Any

from headgate.errors import StoreError
from headgate.stores.redis.discovery import Discovery, Found
from headgate.stores.redis.options import StoreTarget
from headgate.stores.redis.topology import Topology


class AsyncDiscovery:
    """Updates a topology, in one event loop."""

    def __init__(self, target: StoreTarget, topology: Topology[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._topology = topology
        self._loop = loop
        self._discovery = Discovery(target, self._hear, topology.candidates)
        self._listening: dict[asyncio.Future[None], None] = {}  # tasks that wait for the topology, in order
        self._found: Found | None = None  # the last result of the discovery thread
        self._is_telling = False  # whether the event loop was already notified
        self._is_closed = False

    def ask(self) -> bool:
        """Request a discovery. Return whether it starts now or soon, so that waiting for it is worthwhile."""
        return self._discovery.ask()

    async def wait(self, known: int, seconds: float) -> None:
        """Wait for a newer topology than generation `known`, for at most `seconds`."""
        if self._topology.generation > known:
            return
        listener: asyncio.Future[None] = self._loop.create_future()
        self._listening[listener] = None
        await asyncio.wait((listener,), timeout=max(0.0, seconds))
        self._listening.pop(listener, None)

    def close(self) -> None:
        """Stop discovery. Waiting tasks continue at once, unless the event loop has ended."""
        self._is_closed = True
        self._discovery.close()
        if not self._loop.is_closed():
            self._tell_listeners()

    def _hear(self, found: Found) -> bool:
        """Pass a result from the discovery thread to the event loop. Return whether there is one."""
        if self._is_closed:
            return False
        self._found = found
        try:
            if not self._is_telling:  # else the event loop was already notified
                self._is_telling = True
                self._loop.call_soon_threadsafe(self._note_reply)
        except RuntimeError:  # the event loop was closed in the meantime
            assert self._loop.is_closed()
            return False
        return not self._loop.is_closed()

    def _note_reply(self) -> None:
        self._is_telling = False  # first: later results are reported again
        found = self._found
        if found is None or self._is_closed:
            return
        if isinstance(found, StoreError):
            self._topology.note_failure(found)
        else:
            self._topology.set_owners(found)
        self._tell_listeners()

    def _tell_listeners(self) -> None:
        for listener in self._listening:
            if not listener.done():
                listener.set_result(None)
        self._listening.clear()
