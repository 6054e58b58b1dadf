"""An application that knows nothing of limits: Envoy asks Headgate about each request before it gets here.

headgate serve --rules examples/behind_envoy/rules.toml
uvicorn --port 9000 examples.behind_envoy.upstream:app
envoy -c deploy/envoy/envoy.yaml
for i in 1 2 3 4; do curl -i -X POST http://127.0.0.1:10000/login; done       # the fourth is refused by Envoy
"""

from typing import Any


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer every request with its path."""
    if scope["type"] != "http":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": f"{scope['method']} {scope['path']}\n".encode()})
