"""An application that knows nothing of limits, and tells which headers it got."""

from __future__ import annotations

import json
from typing import Any


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    body = json.dumps({name.decode(): value.decode() for name, value in scope["headers"]}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})
