"""Routes of tokens: create, list, revoke."""

# No `from __future__ import annotations`: FastAPI reads the annotations of routes.

from typing import Final

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from headgate.db.tokens import token_table
from headgate.service.admin import models
from headgate.service.admin.bodies import JsonTable
from headgate.service.admin.context import Here, Who, needs
from headgate.service.admin.openapi_parts import body, problems
from headgate.service.admin.pages import Paged

router: Final = APIRouter(prefix="/tokens", tags=["Tokens"])


@router.get(
    "",
    dependencies=[needs("tokens")],
    summary="List tokens",
    responses={200: {"model": models.Tokens}, **problems(409)},
)
def list_tokens(here: Here, who: Who, page: Paged) -> Response:
    """List all tokens, the oldest first, including expired and revoked ones. Secrets are never shown."""
    found = here.tokens.page(who, after=page.after, max_items=page.max_items)
    return page.response("tokens", found, lambda token: token.id, token_table)


@router.post(
    "",
    status_code=201,
    dependencies=[needs("tokens", "admin")],
    summary="Create a token",
    openapi_extra=body(models.TokenRequest),
    responses={201: {"model": models.NewToken}, **problems(400, 409, 413, 415)},
)
async def create_token(here: Here, who: Who, table: JsonTable) -> Response:
    """Create a token. `token` in the answer is the secret, shown only once. A caller cannot grant scopes it lacks."""
    token, secret = await here.tokens.create(who, table)
    headers = {"Location": f"/api/v1/tokens/{token.id}"}
    return JSONResponse({**token_table(token), "token": secret}, 201, headers)


@router.delete(
    "/{token_id}",
    status_code=204,
    dependencies=[needs("tokens", "admin")],
    summary="Revoke a token",
    responses=problems(404, 409),
)
async def revoke_token(here: Here, who: Who, token_id: str) -> Response:
    """Revoke a token: here at once, on other nodes within two seconds."""
    await here.tokens.revoke(who, token_id)
    return Response(status_code=204)
