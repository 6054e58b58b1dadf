"""Parts of the API's description that routes share: problems, bodies and rules files."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from headgate.http.problem import MEDIA_TYPE

_MEANINGS: Final = {
    400: "The body is not JSON",
    401: "No token, or one that is unknown, expired or revoked",
    403: "The token's role or scopes do not cover this",
    404: "It does not exist",
    409: "It exists already, or rules cannot be changed here: they are in a file",
    412: "If-Match or If-None-Match failed: another change came first",
    413: "The body is too large",
    415: "The body's type is not supported",
    422: "The request is invalid; `problems` lists everything",
    429: "Too many requests of this token, or too many bad tokens from this address",
    503: "The database could not be reached; try again after `Retry-After` seconds",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the responses for these error statuses, for a route's `responses`."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _MEANINGS[status], "content": content} for status in statuses}


def body(model: type[BaseModel]) -> dict[str, Any]:
    """Return a JSON body, for a route's `openapi_extra`."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


_DOCUMENT: Final = """[[rules]]
id = "search-free"
dimension = "user"
endpoints = ["/api/search"]
limit = 100
window = "1h"
"""
_TOML: Final = {"application/toml": {"schema": {"type": "string"}, "example": _DOCUMENT}}
TOML: Final[dict[str, Any]] = {"description": "A rules file", "content": _TOML}
TOML_BODY: Final[dict[str, Any]] = {"requestBody": {"required": True, "content": _TOML}}  # for `openapi_extra`
