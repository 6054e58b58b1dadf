"""Tokens: made, listed, revoked."""

# No `from __future__ import annotations`: FastAPI reads the annotations of routes.

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from headgate.core.quota import MICROSECONDS, duration_us
from headgate.db.tokens import token_table
from headgate.errors import Forbidden, InvalidQuota, InvalidRule, Problem
from headgate.service.access import OWN_NAMES, ROLES, SCOPES
from headgate.service.admin import models
from headgate.service.admin.bodies import Table, json_object
from headgate.service.admin.context import Here, Who, needs
from headgate.service.admin.models import body, problems
from headgate.service.admin.pages import Paged

router: Final = APIRouter(prefix="/tokens", tags=["Tokens"])
DEFAULT_EXPIRY: Final = "90d"
_FIELDS: Final = ("name", "role", "scopes", "expires_in")


@router.get(
    "",
    dependencies=[needs("tokens")],
    summary="List tokens",
    operation_id="list_tokens",
    responses={200: {"model": models.Tokens}, **problems(409)},
)
def list_tokens(here: Here, page: Paged) -> Response:
    """All tokens, the oldest first, also those that have expired or were revoked. The secrets are not to be had."""
    found = here.kept_tokens.all(after=page.after, most=page.most)
    return page.response("tokens", found, lambda token: token.id, token_table)


@router.post(
    "",
    status_code=201,
    dependencies=[needs("tokens", "admin")],
    summary="Create a token",
    operation_id="create_token",
    openapi_extra=body(models.TokenRequest),
    responses={201: {"model": models.NewToken}, **problems(400, 409, 413, 415)},
)
async def create_token(here: Here, who: Who, given: Annotated[Table, Depends(json_object)]) -> Response:
    """Create a token. `token` in the answer is the secret: it is shown this once. Nobody can give scopes they lack."""
    tokens = here.kept_tokens
    name, role, scopes, seconds = _wanted(given)
    beyond = sorted(set(scopes) - who.scopes)
    if beyond:
        raise Forbidden(f"this token cannot give what it has not: {', '.join(beyond)}")
    token, secret = await run_in_threadpool(
        lambda: tokens.create(name, role=role, scopes=scopes, seconds=seconds, actor=who.name)
    )
    here.access.forget()  # somebody may have tried it already
    headers = {"Location": f"/api/v1/tokens/{token.id}"}
    return JSONResponse({**token_table(token), "token": secret}, 201, headers)


@router.delete(
    "/{token_id}",
    status_code=204,
    dependencies=[needs("tokens", "admin")],
    summary="Revoke a token",
    operation_id="revoke_token",
    responses=problems(404, 409),
)
async def revoke_token(here: Here, who: Who, token_id: str) -> Response:
    """End a token: here at once, elsewhere within two seconds."""
    tokens = here.kept_tokens
    await run_in_threadpool(lambda: tokens.revoke(token_id, actor=who.name))
    here.access.forget(revoked=token_id)
    return Response(status_code=204)


def _wanted(given: Table) -> tuple[str, str, list[str], float]:
    """The fields of a token that is to be. Raises `InvalidRule` with all problems."""
    where = "token"
    problems = [Problem(where, field, "unknown key") for field in given if field not in _FIELDS]
    name, role = given.get("name"), given.get("role", "viewer")
    scopes: Any = given.get("scopes", [])
    if not isinstance(name, str):
        problems.append(Problem(where, "name", "is missing" if name is None else f"must be a text, got {name!r}"))
    elif name in OWN_NAMES:
        problems.append(Problem(where, "name", f"{name!r} is one that the service uses itself"))
    if role not in ROLES:
        problems.append(Problem(where, "role", f"must be one of {', '.join(ROLES)}, got {role!r}"))
    if not isinstance(scopes, list) or not scopes or any(scope not in SCOPES for scope in scopes):
        message = f"must be a list of at least one of {', '.join(SCOPES)}, got {scopes!r}"
        problems.append(Problem(where, "scopes", message))
    try:
        seconds = duration_us(given.get("expires_in", DEFAULT_EXPIRY)) / MICROSECONDS
    except InvalidQuota as error:
        problems.append(Problem(where, "expires_in", str(error).partition(": ")[2]))
    if problems:
        raise InvalidRule(*problems)
    return str(name), role, scopes, seconds
