"""A process that asks more of a Redis than it can do. Run as `python -m tests.chaos.flood <port> <connections>`."""

from __future__ import annotations

import asyncio
import sys

# Some half a millisecond of the server's time.
SLOW = b"local n = 0 for i = 1, 40000 do n = n + i end return n"


async def flood(port: int, connections: int) -> None:
    command = b"*3\r\n$4\r\nEVAL\r\n$%d\r\n%s\r\n$1\r\n0\r\n" % (len(SLOW), SLOW)

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            writer.write(command)
            if not await reader.readline():
                return

    await asyncio.gather(*(ask() for _ in range(connections)))


if __name__ == "__main__":
    asyncio.run(flood(int(sys.argv[1]), int(sys.argv[2])))
