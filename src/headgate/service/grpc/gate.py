"""The gate that answers pass on their way out, which is closed for a moment when a server stops.

grpcio cancels calls that have reached it, and have not been begun, when it is told to stop. So answers are held back
first: soon every caller who waits for one has no other call under way. Then it is told to stop, which tells clients to
use that connection no more; and then they get their answers.
"""

from __future__ import annotations

import asyncio
from typing import Final

QUIET: Final = 0.02  # seconds without another call, after which all that are under way are here
LONGEST: Final = 0.1  # seconds that answers are held back for that


class Gate:
    """Open until `close`. Belongs to one event loop."""

    def __init__(self) -> None:
        self.closed: asyncio.Event | None = None  # set when it opens again; None: it is open
        self._held = 0

    async def pass_through(self) -> None:
        """For one answer; to be called only while it is closed, as everybody can see."""
        if self.closed is not None:
            self._held += 1
            await self.closed.wait()

    async def close(self) -> None:
        """Hold answers back, and wait until no more calls come."""
        self.closed = asyncio.Event()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LONGEST
        before = -1
        while self._held != before and loop.time() < deadline:
            before = self._held
            await asyncio.sleep(QUIET)

    def open(self) -> None:
        if self.closed is not None:
            self.closed.set()
            self.closed = None
