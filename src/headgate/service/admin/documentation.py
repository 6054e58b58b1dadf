"""The documentation page: Swagger UI from the wheel `swagger-ui-bundle`, so that it needs no network."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from typing import Final

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from swagger_ui_bundle import swagger_ui_path

PAGE = "/docs"
ASSETS = "/docs/assets"
DESCRIPTION = "/openapi.json"

_SCRIPT: Final = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


def serve_documentation(app: FastAPI) -> None:
    """Add the page and its files to an app."""
    app.mount(ASSETS, StaticFiles(directory=str(swagger_ui_path)), name="docs-assets")

    @app.get("/", include_in_schema=False)
    async def root() -> RedirectResponse:
        return RedirectResponse(PAGE)

    page = get_swagger_ui_html(
        openapi_url=DESCRIPTION,
        title=app.title,
        swagger_js_url=f"{ASSETS}/swagger-ui-bundle.js",
        swagger_css_url=f"{ASSETS}/swagger-ui.css",
        swagger_favicon_url=f"{ASSETS}/favicon-32x32.png",
    )
    page.headers["Content-Security-Policy"] = _policy(bytes(page.body))

    @app.get(PAGE, include_in_schema=False)
    async def docs() -> HTMLResponse:
        return page

    @cache
    def encode_description() -> bytes:
        return bytes(JSONResponse(app.openapi()).body)

    @app.get(DESCRIPTION, include_in_schema=False)
    def description() -> Response:  # in a thread: the first call takes long
        return Response(encode_description(), media_type="application/json")


def _policy(page: bytes) -> str:
    """Return the page's content security policy: its own scripts, requests to this service, and no framing."""
    scripts = [b64encode(sha256(script).digest()).decode() for script in _SCRIPT.findall(page)]
    return "; ".join(
        [
            "default-src 'none'",
            " ".join(["script-src 'self'", *(f"'sha256-{script}'" for script in scripts)]),
            "style-src 'self' 'unsafe-inline'",  # Swagger UI sets styles of its elements
            "img-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
