"""The rules of the apps that the suite of tests/acceptance/suite.py runs on, and what their views have in common."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from headgate import Rule

STORE = os.environ.get("TEST_STORE", "memory://")
SKIP = ["/health"]
MAX_WAITING = 1
# No window turns while a test runs: the figures of these go down by what was charged, and by nothing else.
MUCH = "1000000/366d fixed_window"
RULES = [
    Rule(id="all", quota=MUCH, dimension="ip"),
    Rule(id="few", quota="3/hour sliding_window_log", dimension="ip", endpoints=["/few"], message="Only three."),
    Rule(id="shared", quota="25/hour sliding_window_log", dimension="global", endpoints=["/shared"]),
    Rule(id="closed", quota=MUCH, dimension="ip", endpoints=["/closed"], failure_mode="closed"),
    Rule(
        id="slow",
        quota="10/second burst 100 leaky_bucket",
        dimension="global",
        endpoints=["/slow"],
        action="throttle",
        max_delay=5,
    ),
    Rule(
        id="crowd",
        quota="1/4s burst 100 leaky_bucket",
        dimension="global",
        endpoints=["/crowd"],
        action="throttle",
        max_delay=60,
    ),
    Rule(
        id="guarded",
        quota=MUCH,
        dimension="global",
        endpoints=["/exact", "/items/{id}", "/guarded/*", "/café"],
    ),
]
CHUNK = b"x" * 1024
MANY = 4096  # chunks of a large body


def chunks_until(path: str) -> Iterator[bytes]:
    """A body whose second half is there when a file is, and not before."""
    yield b"first\n"
    deadline = time.monotonic() + 20
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    yield b"second\n" if Path(path).exists() else b"late\n"


class Closing:
    """A body that notes in a file that it was closed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._chunks = iter([b"some", b"thing"])

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks

    def __next__(self) -> bytes:
        return next(self._chunks)

    def close(self) -> None:
        with Path(self._path).open("a") as file:
            file.write("closed\n")
