"""Metrics of all workers as one page. Each serves its own on a Unix socket; the one that gets the request merges
all."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from typing import Final

from headgate.service.process import WorkerNumber
from headgate.telemetry.metrics import Metrics
from headgate.telemetry.metrics_merge import merge_pages

SECONDS: Final = 2.0  # for another worker to answer

log = logging.getLogger("headgate")


class WorkerMetrics:
    """Metrics of one worker and of all. `worker` is None for a single process."""

    def __init__(self, metrics: Metrics, worker: WorkerNumber | None = None, workers: int = 1) -> None:
        self._metrics = metrics
        self._worker = 0
        self._sockets: dict[int, str] = {}
        if worker is not None:
            self._worker = worker.number
            self._sockets = {one: str(worker.sockets / f"{one}.sock") for one in range(workers)}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Answer other workers from now on."""
        if self._sockets:
            own = self._sockets[self._worker]
            with suppress(FileNotFoundError):
                os.unlink(own)  # noqa: PTH108 - left by the worker that this one replaces; does not block
            self._server = await asyncio.start_unix_server(self._answer, own)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def page(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page and its content type, without workers that do not answer."""
        own, kind = await asyncio.to_thread(self._metrics.render, accept)
        if not self._sockets:
            return own, kind
        others = [one for one in self._sockets if one != self._worker]
        pages = dict(zip(others, await asyncio.gather(*(self._ask(one, accept) for one in others)), strict=True))
        pages[self._worker] = own
        known = {str(one): page for one, page in sorted(pages.items()) if page is not None}
        return await asyncio.to_thread(merge_pages, known), kind

    async def _ask(self, worker: int, accept: str) -> bytes | None:
        try:
            async with asyncio.timeout(SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._sockets[worker])
                try:
                    writer.write(accept.encode("latin-1", "replace").replace(b"\n", b" ") + b"\n")
                    return await reader.read(-1)
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            log.warning("metrics: cannot read the metrics of worker %d: %r", worker, error)
            return None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            accept = (await reader.readline()).decode("latin-1").strip()
            page, _ = await asyncio.to_thread(self._metrics.render, accept)
            writer.write(page)
            await writer.drain()
        except (OSError, ValueError) as error:
            log.warning("metrics: cannot reach another worker: %r", error)
        finally:
            writer.close()
