"""A connection of asyncio's: on either event loop, and with servers that say too much or nothing that makes sense."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headgate import AsyncLimiter
from tests.certificates import Authority
from tests.integration.limiters import calm
from tests.servers import Server
from tests.tls import TlsProxy

MANY = 1_000_000
ANSWERS = {
    "more": b"*4\r\n:1\r\n:0\r\n:5\r\n:7\r\n:8\r\n",
    "less": b"*0\r\n",
    "text": b"+OK\r\n",
    "junk": b"?\r\n",
}
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        yield runner


async def left(url: str, checks: int = 3) -> list[int]:
    """What is left after each of some checks, and then after as many at once."""
    async with AsyncLimiter(calm(MANY), store=url, failure_mode="closed") as limiter:
        some = [(await limiter.check("alice")).remaining for _ in range(checks)]
        others = await asyncio.gather(*(limiter.check("alice") for _ in range(checks)))
        return some + [decision.remaining for decision in others]


def test_in_the_clear(runner: asyncio.Runner, own_server: Server) -> None:
    assert runner.run(left(f"{own_server.url}?timeout=10")) == [MANY - number for number in range(1, 7)]


def test_over_tls(runner: asyncio.Runner, own_server: Server, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certified("server"))
    with TlsProxy(own_server.port, context) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={authority.file}&timeout=10"
        assert runner.run(left(url)) == [MANY - number for number in range(1, 7)]


@asynccontextmanager
async def odd_server(answer: bytes) -> AsyncIterator[tuple[str, list[Any]]]:
    """Greets as Redis does, and then answers whatever it is asked with `answer`: its URL, and who has come."""
    came: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(asyncio.current_task())
        reply = b"+OK\r\n"
        while await reader.read(65_536):
            writer.write(reply)
            reply = answer
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0?timeout=10", came
    finally:
        server.close()
        await asyncio.gather(*came)  # the other side has closed all connections


@pytest.mark.parametrize(
    "answer",
    [b"*4\r\n:1\r\n:0\r\n:5\r\n:7\r\n:8\r\n", b"+OK\r\n", b"*0\r\n", b"?\r\n"],
    ids=["more", "text", "less", "junk"],
)
def test_what_makes_no_sense_is_a_fault_and_ends_the_connection(runner: asyncio.Runner, answer: bytes) -> None:
    async def main() -> None:
        async with (
            odd_server(answer) as (url, came),
            AsyncLimiter(calm(MANY), store=url, failure_mode="closed") as limiter,
        ):
            for number in range(1, 3):
                assert (await limiter.check("alice")).reason == "fail_closed"
                assert len(came) == number

    runner.run(main())
