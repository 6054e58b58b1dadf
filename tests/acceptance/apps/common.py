"""What the test apps of all frameworks have in common: the rules, the middleware, and an eye on what is sent.

Each app has the same paths: `PLAIN`; `/exact`, `/one/{name}` and `/files/{name}` (with slashes), whose handler answers
`narrow` and whose rule is `narrow`; `/boom`, `/events`, `/big`, `/upload` and `/ws`. Clients say who they are in
`X-User`: so tests that share a server do not meet.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator
from typing import Any

from headgate import AsyncLimiter, Rule
from headgate.http.asgi import App, AsgiRequest, Message, RateLimitMiddleware, Receive, Scope, Send

BIG = 64 * 1024 * 1024
CHUNK = b"x" * 65_536
PLAIN = ("/ok", "/limited", "/shared", "/throttled", "/slow", "/odd", "/warned", "/skipped")
ODD = ('he said "hi"', "back\\slash", "naïve 日本 ✓", "50%")
RULES = [
    Rule(id="all", quota="1000000/hour"),
    Rule(id="limited", quota="2/hour gcra", endpoints=["/limited", "/ws"], message="Enough."),
    Rule(id="narrow", quota="100000/hour", endpoints=["/exact", "/one/{name}", "/files/*"]),
    Rule(id="throttled", quota="5/second leaky_bucket", endpoints=["/throttled"], action="throttle", max_delay="20s"),
    Rule(id="slow", quota="1/hour burst 3 leaky_bucket", endpoints=["/slow"], action="throttle", max_delay="1d"),
    Rule(id="shared", quota="100/day", endpoints=["/shared"]),
    Rule(id="warned", quota="2/day", endpoints=["/warned"]),
    *(Rule(id=name, quota=f"{number}/hour", endpoints=["/odd"]) for number, name in enumerate(ODD, start=5)),
]

steps: dict[str, asyncio.Event] = {}


def step(name: str) -> asyncio.Event:
    """Something that a client lets happen, or that the app has done: `PUT` sets it, `GET` waits for it."""
    return steps.setdefault(name, asyncio.Event())


async def events(user: str) -> AsyncIterator[str]:
    """Three events, each sent when the client asks for it: a response that is held back never gets to its second."""
    for number in range(3):
        yield f"data: {number}\n\n"
        await step(f"{user}-{number}").wait()


async def big() -> AsyncIterator[bytes]:
    for _ in range(BIG // len(CHUNK)):
        yield CHUNK


async def taken(user: str, chunks: AsyncIterator[bytes]) -> dict[str, int]:
    """An upload, read as it comes: its first chunk is told before the last is there."""
    count = size = 0
    async for chunk in chunks:
        if chunk:
            count, size = count + 1, size + len(chunk)
            step(f"{user}-first").set()
    return {"chunks": count, "size": size}


class Watched:
    """Answers for the test itself, around everything; and notes what no server should be sent."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._wrong: list[str] = []
        self._begun = self._lifespans = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self._lifespans += 1
            await self._app(scope, receive, send)
        elif scope["path"].startswith("/-/"):
            await self._answer(scope, send)
        else:
            self._begun += scope["type"] == "http"
            starts = 0

            async def watching(message: Message) -> None:
                nonlocal starts
                if message["type"] == "http.response.start":
                    starts += 1
                    if starts > 1:
                        self._wrong.append(f"{scope['path']}: started {starts} times")
                elif message["type"] == "http.response.body" and not starts:
                    self._wrong.append(f"{scope['path']}: a body before its start")
                await send(message)

            await self._app(scope, receive, watching)

    async def _answer(self, scope: Scope, send: Send) -> None:
        about = scope["path"].removeprefix("/-/")
        if about == "wrong":
            text = "\n".join(self._wrong)
        elif about == "lifespans":
            text = str(self._lifespans)
        elif about == "memory":  # the most that this process has ever used, in KB
            text = str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        else:
            text = "done"
            if scope["method"] == "PUT":
                step(about).set()
            else:
                await step(about).wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": text.encode()})


def identify(request: AsgiRequest) -> dict[str, Any]:
    return {"user": request.header("x-user") or "nobody", "ip": request.peer}


def guarded(app: App) -> Watched:
    """A framework's app, with the middleware around it."""
    limiter = AsyncLimiter(
        RULES,
        store=os.environ.get("HEADGATE_TEST_STORE", "memory://"),
        failure_mode=os.environ.get("HEADGATE_TEST_FAILURE_MODE", "open"),  # type: ignore[arg-type]
    )
    waiting = int(os.environ.get("HEADGATE_TEST_MAX_WAITING", "1000"))
    return Watched(RateLimitMiddleware(app, limiter=limiter, identify=identify, skip=["/skipped"], max_waiting=waiting))
