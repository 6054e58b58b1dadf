"""A crowd of clients that want nothing, or take for ever to say what: in a process of its own.

    python -m tests.crowd 127.0.0.1:8080 127.0.0.1:8081 --idle 1000 --slow 500 --silent 500

Prints "here" when all are connected, and stays until its standard input ends. For each line of that it prints, as JSON,
how often the service has ended a connection of each kind, and what it has answered. Whoever was cut off comes again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_SETTINGS = b"\0\0\0\4\0\0\0\0\0"  # an empty frame of HTTP/2
KINDS = ("idle", "slow", "silent")  # the last at the port of gRPC
TOGETHER = 100  # connections that are made at a time
PAUSE = 1.0  # seconds between two bytes of a slow request

Speak = Callable[["Crowd", int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Crowd:
    """All of them, and how often they were cut off."""

    def __init__(self) -> None:
        self.cut_off: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self._connecting = asyncio.Semaphore(TOGETHER)

    async def one(self, kind: str, number: int, address: str, here: Callable[[], None]) -> None:
        host, port = address.split(":")
        while True:
            async with self._connecting:
                reader, writer = await asyncio.open_connection(host, int(port))
            with suppress(OSError):
                here()
                await SPEAK[kind](self, number, reader, writer)
            self.cut_off[kind] += 1
            writer.close()


async def idle(crowd: Crowd, _: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ask for something, so that the connection is one to keep, and then for nothing."""
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
    while await reader.read(65_536):
        crowd.answered["idle"] += 1


async def slow(crowd: Crowd, _: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begin to ask, and go on with a byte now and then."""
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: h\r\nX-Long: ")
    answer = asyncio.create_task(reader.read(65_536))
    while not answer.done():
        writer.write(b"x")
        await asyncio.wait([answer], timeout=PAUSE)
    crowd.answered[(await answer)[:12].decode("ascii", "replace")] += 1


async def silent(_: Crowd, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speak HTTP/2 and call nothing; every other one does not even finish saying that it speaks it."""
    writer.write(PREFACE[:5] if number % 2 else PREFACE + NO_SETTINGS)
    while await reader.read(65_536):
        pass


SPEAK: dict[str, Speak] = {"idle": idle, "slow": slow, "silent": silent}


async def gather(http: str, grpc: str, sizes: dict[str, int]) -> None:
    crowd, everybody = Crowd(), asyncio.Event()
    left = sum(sizes.values())

    def here() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            everybody.set()

    tasks = [
        asyncio.create_task(crowd.one(kind, number, grpc if kind == "silent" else http, here))
        for kind, size in sizes.items()
        for number in range(size)
    ]
    await asyncio.wait_for(everybody.wait(), 120)
    print("here", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps({"cut_off": crowd.cut_off, "answered": crowd.answered}), flush=True)
    for task in tasks:
        task.cancel()


class Gathered(NamedTuple):
    """A crowd that is there."""

    asked: IO[str]
    said: IO[str]

    def tell(self) -> dict[str, Counter[str]]:
        """How often they were cut off, by kind, and what they were answered."""
        self.asked.write("\n")
        self.asked.flush()
        return {name: Counter(counts) for name, counts in json.loads(self.said.readline()).items()}


@contextmanager
def crowded(http: str, grpc: str, /, **sizes: int) -> Iterator[Gathered]:
    """With a crowd at these addresses: `idle=1000, slow=500, silent=500`."""
    flags = [flag for kind, size in sizes.items() for flag in (f"--{kind}", str(size))]
    command = [sys.executable, "-m", "tests.crowd", http, grpc, *flags]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "here\n"
            yield Gathered(process.stdin, process.stdout)
        finally:
            process.kill()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    parser = argparse.ArgumentParser()
    parser.add_argument("http")
    parser.add_argument("grpc")
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=0)
    given = parser.parse_args()
    asyncio.run(gather(given.http, given.grpc, {kind: getattr(given, kind) for kind in KINDS}))
