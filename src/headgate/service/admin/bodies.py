"""Request bodies. We read them instead of FastAPI, so that no body is read before its token is checked, and errors
in a rule have the messages of a rules file."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from fastapi import Depends, Request

from headgate.service.http.problems import HttpError

MAX_JSON: Final = 1 << 20  # bytes
MAX_BATCH: Final = 16 << 20
MAX_TOML: Final = 32 << 20

Table = dict[str, Any]


async def json_object(request: Request) -> Table:
    """Return a body that is a JSON object, without members that are null, which TOML cannot express.

    Raises `HttpError`: 400, 413, 415.
    """
    return {name: value for name, value in (await json_with_nulls(request)).items() if value is not None}


JsonTable = Annotated[Table, Depends(json_object)]


async def json_batch(request: Request) -> Table:
    """Return a large body that is a JSON object. Raises `HttpError`: 400, 413, 415."""
    return await _json(request, MAX_BATCH)


async def json_with_nulls(request: Request) -> Table:
    """Return a body that is a JSON object, with its nulls. Raises `HttpError`: 400, 413, 415."""
    return await _json(request, MAX_JSON)


async def toml_document(request: Request) -> bytes:
    """Return a TOML body, unparsed. Raises `HttpError`: 413, 415."""
    return await _content(request, MAX_TOML, "application/toml", "text/plain")


async def _json(request: Request, max_bytes: int) -> Table:
    content = await _content(request, max_bytes, "application/json")
    try:
        body = json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"The body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise HttpError(400, "The body must be a JSON object.")
    return body


async def _content(request: Request, max_bytes: int, *types: str) -> bytes:
    media_type = request.headers.get("content-type", types[0]).partition(";")[0].strip().lower()
    if media_type not in types:
        raise HttpError(415, f"The body must be {types[0]}, got {media_type!r}.")
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > max_bytes:
            raise HttpError(413, f"The body must have at most {max_bytes} bytes.")
    return bytes(content)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
