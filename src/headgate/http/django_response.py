"""Django's responses: adds the limits' fields, reads the charge header, and releases slots at a response's end."""

from __future__ import annotations

import asyncio
from typing import Any

from asgiref.sync import async_to_sync

from headgate.core.cost import Cost
from headgate.http.django_setup import AnyLimits
from headgate.http.headers import Charged
from headgate.http.middleware_options import MiddlewareOptions
from headgate.limiter.async_limiter import AsyncLimiter


def charge_from(options: MiddlewareOptions, charged: Charged, response: Any) -> Cost | None:
    """Remove the charge header from a response, and return the cost that it reports."""
    header = options.charge_header
    if header is None or header not in response.headers:
        return None
    value = response.headers[header]
    del response.headers[header]
    return options.reported_cost(charged, [value])


def with_fields(limits: AnyLimits, response: Any) -> Any:
    """Add the limits' fields to a response, and return it."""
    for name, value in limits.fields:
        response.headers[name] = value
    return response


def with_release(limits: AnyLimits, response: Any) -> Any:
    """Make a response release the request's slots when it is closed: at its end, or when the client leaves."""
    if not limits.slots:
        return response
    close, loop = response.close, running_loop()

    def release() -> None:
        try:
            close()
        finally:
            if not isinstance(limits.limiter, AsyncLimiter):
                limits.release()
            elif loop is not None:  # Django closes responses in a thread
                asyncio.run_coroutine_threadsafe(limits.release_async(), loop)
            else:
                async_to_sync(limits.release_async)()

    response.close = release
    return response


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return this thread's running event loop, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
