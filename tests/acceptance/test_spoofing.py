"""What a client says about its address is not believed."""

from __future__ import annotations

import asyncio
from collections import Counter
from ipaddress import ip_address

import httpx

from headgate import AsyncLimiter, Rule
from headgate.http.asgi import Message, RateLimitMiddleware, Receive, Scope, Send
from headgate.stores.memory import MemoryStore
from tests.webserver import serving


def claims(number: int) -> dict[str, str]:
    """Headers that name another client each time."""
    address = str(ip_address(0x0A000000 + number))
    return {
        "X-Forwarded-For": f"{address}, 192.0.2.{number % 256}",
        "X-Real-IP": address,
        "Forwarded": f"for={address}",
        "True-Client-IP": address,
        "CF-Connecting-IP": address,
    }


def test_ten_thousand_spoofed_requests_land_in_one_bucket() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def scenario() -> Counter[int]:
        limiter = AsyncLimiter([Rule(id="ip", quota="100/hour gcra", dimension="ip")], store=store)
        guarded, seen = RateLimitMiddleware(app, limiter=limiter), Counter[int]()

        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen[message["status"]] += 1

        for number in range(10_000):
            headers = [(name.lower().encode(), value.encode()) for name, value in claims(number).items()]
            scope = {
                "type": "http",
                "method": "GET",
                "path": "/",
                "headers": headers,
                "client": ("198.51.100.1", number),
            }
            await guarded(scope, receive, send)
        return seen

    store = MemoryStore()
    seen = asyncio.run(scenario())
    assert seen[200] + seen[429] == 10_000
    assert 100 <= seen[200] <= 102  # one comes back every 36 seconds
    assert len(store) == 1


def test_over_the_wire() -> None:
    with serving("uvicorn", "examples.starlette_app:app", "--no-proxy-headers") as url, httpx.Client() as http:
        seen = Counter(http.get(f"{url}/", headers=claims(number)).status_code for number in range(300))
    assert seen[200] + seen[429] == 300
    assert 100 <= seen[200] <= 102  # a little comes back if an hour ends meanwhile
