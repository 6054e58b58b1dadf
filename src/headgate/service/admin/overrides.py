"""Routes of overrides: users' own values for rules."""

# No `from __future__ import annotations`: FastAPI reads the annotations of routes.

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from headgate.db import UserOverride
from headgate.db.records import override_table
from headgate.service.admin import models
from headgate.service.admin.bodies import JsonTable, Table
from headgate.service.admin.context import Here, Who, needs
from headgate.service.admin.openapi_parts import body, problems
from headgate.service.admin.pages import PagedByPair, Text, pair, storable
from headgate.service.admin.paths import USER
from headgate.service.admin.users import user_shown

router: Final = APIRouter(tags=["Users"])


@router.get(
    "/overrides", dependencies=[needs("users")], summary="List overrides", responses={200: {"model": models.Overrides}}
)
def list_overrides(
    here: Here,
    who: Who,
    page: PagedByPair,
    user: Annotated[Text, Query(description="Only this user's.")] = None,
    rule: Annotated[Text, Query(description="Only this rule's.")] = None,
    expired: Annotated[
        bool | None, Query(description="Only expired ones (true), or only current ones (false).")
    ] = None,
) -> Response:
    """List all overrides by user and rule, in pages, including expired ones."""
    storable("user", user)
    storable("rule", rule)
    users = here.operations.users
    now_us = users.now_us()
    found = users.overrides(who, user=user, rule=rule, expired=expired, after=page.after_pair, max_items=page.max_items)

    def table_of(one: UserOverride) -> Table:
        return {"user": one.user, **override_table(one.override), "expired": one.override.has_expired(now_us)}

    return page.response("overrides", found, lambda one: pair(one.user, one.override.rule), table_of)


@router.post(
    f"/users{USER}/override",
    dependencies=[needs("users", "operator")],
    summary="Override a rule for a user",
    openapi_extra=body(models.Override),
    responses={200: {"model": models.User}, **problems(400, 409, 413, 415)},
)
def post_user_override(here: Here, who: Who, user_id: str, table: JsonTable) -> Response:
    """Set or replace a user's override of a rule, until `expires` or forever."""
    return JSONResponse(user_shown(here.operations.users.put_override(who, user_id, table)))


@router.delete(
    f"/users{USER}/override",
    status_code=204,
    dependencies=[needs("users", "operator")],
    summary="Delete a user's override",
    responses=problems(404, 409),
)
def delete_user_override(
    here: Here, who: Who, user_id: str, rule: Annotated[str, Query(description="The id of the rule.", max_length=1024)]
) -> Response:
    """Delete a user's override of a rule, which then limits the user like others."""
    storable("rule", rule)
    here.operations.users.delete_override(who, user_id, rule)
    return Response(status_code=204)
