"""Limits on the WebSocket messages that clients send. The ASGI middleware enforces them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Unpack

from headgate.core.quota import CONCURRENCY, Quota
from headgate.errors import InvalidRule
from headgate.http.limits import Limits
from headgate.http.request_limiter import resolve
from headgate.http.route import Ask, LimitOptions, QuotaOption, RouteLimit, charge_async
from headgate.limiter.async_limiter import AsyncLimiter

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Charge = Callable[[], Awaitable[bool]]

MESSAGES: Final = "headgate.messages"  # in a WebSocket's scope: the functions that charge each message
TRY_AGAIN_LATER: Final = 1013  # a WebSocket close code
REASON: Final = "Rate limit exceeded"


def message_limit(quota: QuotaOption, **options: Unpack[LimitOptions]) -> RouteLimit:
    """Return a limit on messages. Raises `InvalidRule` for `deduct_when` and slots: a message has no response."""
    if options.get("deduct_when") is not None:
        raise InvalidRule("deduct_when: a message has no response")
    limit = RouteLimit(quota, **options)
    listed = [quota] if isinstance(quota, Quota) else Quota.parse_all(quota) if isinstance(quota, str) else []
    if any(one.algorithm == CONCURRENCY for one in listed):
        raise InvalidRule(f"messages hold no slots; limit the WebSocket itself to {quota!r}")
    return limit


def checked_messages(charges: list[Charge], scope: Scope, receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Wrap `receive` and `send` of a WebSocket to close it at the first message that one of `charges` refuses.

    The route adds its limits to `charges` later.
    """
    scope[MESSAGES] = charges
    closed = False

    async def receive_allowed() -> Message:
        nonlocal closed
        message = await receive()
        if message["type"] != "websocket.receive" or closed:
            return message
        for charge in charges:
            if not await charge():
                closed = True
                await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": REASON})
                return {"type": "websocket.disconnect", "code": TRY_AGAIN_LATER, "reason": REASON}
        return message

    async def send_open(message: Message) -> None:
        if not closed:  # drop what the app sends after the close, as when a client leaves
            await send(message)

    return receive_allowed, send_open


def check_each_message(scope: Scope, charge: Charge) -> None:
    """Check each message of a WebSocket with `charge`. Raises `InvalidRule` without the middleware."""
    charges: list[Charge] | None = scope.get(MESSAGES)
    if charges is None:
        raise InvalidRule("limit_messages() needs the middleware, which sees messages: call install(app, limiter=…)")
    charges.append(charge)


async def charge_message(
    limit: RouteLimit, limits: Limits[AsyncLimiter], limiter: AsyncLimiter, name: str, connection: Any
) -> bool:
    """Check a WebSocket message. `limits` are the handshake's, whose charge stays."""
    if limits.is_exempt(limiter):
        return True
    ask = await Ask.of_async(limit, lambda function: resolve(function(connection)))
    if ask is None:
        return True
    return (await charge_async(limit, Limits(limits.limiter, limits.facts), limiter, name, ask)).allowed
