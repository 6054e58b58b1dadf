"""Routes of the whole rule set as a rules file, and of tiers."""

# No `from __future__ import annotations`: FastAPI reads the annotations of routes.

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import JSONResponse

from headgate.rules.sources.export import text_of
from headgate.service.admin import models
from headgate.service.admin.bodies import toml_document
from headgate.service.admin.context import Here, Who, needs
from headgate.service.admin.etags import If, etag
from headgate.service.admin.openapi_parts import TOML, TOML_BODY, problems

router: Final = APIRouter(tags=["Rules"])


@router.get(
    "/ruleset",
    dependencies=[needs("rules")],
    summary="Get all rules as a rules file",
    response_class=Response,
    responses={200: TOML, 304: {"description": "Not modified"}},
)
def get_ruleset(here: Here, who: Who, conditions: If) -> Response:
    """Return rules, tiers, exemptions, penalties and settings as a rules.toml, without a database's users."""
    snapshot, version = here.operations.rules.ruleset(who)
    headers = {"ETag": etag(version)}
    if conditions.has_known(version):
        return Response(status_code=304, headers=headers)
    return Response(text_of(snapshot), media_type="application/toml", headers=headers)


@router.put(
    "/ruleset",
    dependencies=[needs("rules", "admin")],
    summary="Replace all rules by a rules file",
    openapi_extra=TOML_BODY,
    responses={200: {"model": models.Applied}, **problems(409, 412, 413, 415)},
)
def put_ruleset(
    here: Here,
    who: Who,
    content: Annotated[bytes, Depends(toml_document)],
    conditions: If,
    dry_run: Annotated[bool, Query(description="Only report what would change.")] = False,
) -> Response:
    """Apply a whole rules.toml, all or nothing: rules, tiers and exemptions that it does not have are deleted.

    Users that it lists are replaced; others stay, except for their overrides of deleted rules. Changing users needs the
    scope `users`, too. With `If-Match`, only if the rules and the affected users still have that `ETag`.
    """
    applied = here.operations.rules.apply(who, content, dry_run=dry_run, expect=conditions.require)
    return JSONResponse(applied._asdict(), headers={"ETag": etag(applied.version)})


@router.get("/tiers", dependencies=[needs("rules")], summary="List tiers", responses={200: {"model": models.Tiers}})
def list_tiers(here: Here, who: Who) -> Response:
    """Return the current tiers in order, and the default tier of users without their own."""
    snapshot = here.operations.rules.snapshot(who)
    return JSONResponse(
        {"tiers": [{"name": tier.name} for tier in snapshot.tiers], "default_tier": snapshot.default_tier}
    )
