"""Two nodes of the service that are restarted in turn, while requests come through a proxy in front of them."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.servers import free_port
from tests.service import Service, warm_service

CLIENTS = 4
PAUSE = 0.01  # seconds between two requests of a client
DECIDED = "x-ratelimit-limit"  # a request without this field was let through without a decision

RULES = """
[[rules]]
id = "much"
dimension = "ip"
limit = 10_000_000
window = "1h"
"""


class Nodes:
    """Two nodes with addresses that stay the same over restarts."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        rules = folder / "rules.toml"
        rules.write_text(RULES)
        self._settings = {"rules": str(rules), **settings}
        self._folders = [folder / name for name in ("a", "b")]
        self.http_ports = [free_port() for _ in self._folders]
        self.grpc_ports = [free_port() for _ in self._folders]
        self._stacks = [ExitStack() for _ in self._folders]
        for each in self._folders:
            each.mkdir()

    def start(self, number: int) -> Service:
        """Start a node. Returns when it serves."""
        return self._stacks[number].enter_context(
            warm_service(
                self._folders[number],
                http_address=f"127.0.0.1:{self.http_ports[number]}",
                grpc_address=f"127.0.0.1:{self.grpc_ports[number]}",
                **self._settings,
            )
        )

    def stop(self, number: int) -> None:
        """Stop a node as an update does, and wait for its end."""
        self._stacks[number].close()

    def restart_each(self) -> None:
        """Restart both, one after the other: the next as soon as the last one serves."""
        for number in range(len(self._folders)):
            self.stop(number)
            self.start(number)

    def __enter__(self) -> Nodes:
        for number in range(len(self._folders)):
            self.start(number)
        return self

    def __exit__(self, *_: object) -> None:
        for stack in self._stacks:
            stack.close()


class Load:
    """Requests that go on until the end, and what became of them."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.stopping = threading.Event()

    @property
    def sent(self) -> int:
        return sum(self.outcomes.values())

    @property
    def lost(self) -> dict[str, int]:
        """Requests that were not decided, by what their clients got instead."""
        return {what: count for what, count in self.outcomes.items() if what != "decided"}

    def run(self, url: str) -> None:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
        while not self.stopping.is_set():
            try:
                connection.request("GET", "/")
                response = connection.getresponse()
                response.read()
                decided = response.status == 200 and response.getheader(DECIDED) is not None
                outcome = "decided" if decided else f"{response.status} without a decision"
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                outcome = type(error).__name__
            with self._lock:
                self.outcomes[outcome] += 1
            time.sleep(PAUSE)
        connection.close()


@contextmanager
def load(url: str) -> Iterator[Load]:
    """Some clients that send requests to a URL, one after the other."""
    running = Load()
    threads = [threading.Thread(target=running.run, args=(url,)) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield running
    finally:
        running.stopping.set()
        for thread in threads:
            thread.join()
