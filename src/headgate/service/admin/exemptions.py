"""Routes of exemptions: clients that are never limited."""

# No `from __future__ import annotations`: FastAPI reads the annotations of routes.

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from headgate.db.records import exemption_table
from headgate.rules.exemptions import ExemptionType
from headgate.service.admin import models
from headgate.service.admin.bodies import JsonTable
from headgate.service.admin.context import Here, Who, needs
from headgate.service.admin.openapi_parts import body, problems
from headgate.service.admin.pages import PagedByPair, pair

router: Final = APIRouter(prefix="/exemptions", tags=["Exemptions"])


@router.get("", dependencies=[needs("rules")], summary="List exemptions", responses={200: {"model": models.Exemptions}})
def list_exemptions(here: Here, who: Who, page: PagedByPair) -> Response:
    """List all exemptions by type and value, in pages."""
    found = here.operations.exemptions.page(who, after=page.after_pair, max_items=page.max_items)
    return page.response("exemptions", found, lambda one: pair(one.type, one.value), exemption_table)


@router.post(
    "",
    status_code=201,
    dependencies=[needs("rules", "admin")],
    summary="Add an exemption",
    openapi_extra=body(models.Exemption),
    responses={
        200: {"model": models.Exemption, "description": "The exemption exists already"},
        201: {"model": models.Exemption},
        **problems(400, 409, 413, 415),
    },
)
def create_exemption(here: Here, who: Who, table: JsonTable) -> Response:
    """Exempt an address or network (`ip`), a `user`, a `tenant`, or an `api_key` by its hash."""
    exemption, is_new = here.operations.exemptions.create(who, table)
    return JSONResponse(exemption_table(exemption), 201 if is_new else 200)


@router.delete(
    "",
    status_code=204,
    dependencies=[needs("rules", "admin")],
    summary="End an exemption",
    responses=problems(404, 409),
)
def delete_exemption(
    here: Here,
    who: Who,
    kind: Annotated[ExemptionType, Query(alias="type", description="The exemption's type.")],
    value: Annotated[str, Query(min_length=1, max_length=1024, description="The exemption's value, as listed.")],
) -> Response:
    """End the exemption with this type and value."""
    here.operations.exemptions.delete(who, {"type": kind, "value": value})
    return Response(status_code=204)
