"""The change log: who changed what, and when."""

# No `from __future__ import annotations`: FastAPI reads the annotations of routes.

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Query, Response
from fastapi.responses import JSONResponse

from headgate.db import Change
from headgate.db.records import time_text
from headgate.operations.change_log import Kind
from headgate.service.admin import models
from headgate.service.admin.bodies import Table
from headgate.service.admin.context import Here, NeedsOne, Who
from headgate.service.admin.openapi_parts import problems
from headgate.service.admin.pages import PagedByNumber, Text, storable

router: Final = APIRouter(tags=["Changes"])
LARGEST_ID: Final = 2**63 - 1


@router.get(
    "/changes",
    summary="The change log",
    operation_id="list_changes",
    responses={200: {"model": models.Changes}, **problems(409)},
)
def list_changes(
    here: Here,
    who: Who,
    page: PagedByNumber,
    kind: Annotated[Kind | None, Query(description="Only changes of these.")] = None,
    subject: Annotated[Text, Query(description="Only changes of this one: an id or a name.")] = None,
) -> Response:
    """Who changed what, when, from what to what: the latest first.

    Shows what the token's scopes cover: with `rules`, also tiers, exemptions and settings; with `users`; with `tokens`.
    """
    storable("subject", subject)
    found = here.operations.changes.page(who, kind=kind, subject=subject, before=page.after_number, most=page.most)
    return page.response("changes", found, lambda change: change.id, _shown)


@router.post(
    "/changes/{change_id}/revert",
    dependencies=[Depends(NeedsOne(rules="admin", users="operator"))],
    summary="Revert a change",
    operation_id="revert_change",
    responses={200: {"model": models.Applied}, **problems(404, 409)},
)
def revert_change(
    here: Here,
    who: Who,
    change_id: Annotated[int, Path(ge=1, le=LARGEST_ID, description="Of the change log.")],
    together: Annotated[
        bool, Query(description="Whether to revert all that was changed in the same transaction.")
    ] = False,
    dry_run: Annotated[bool, Query(description="Only tell what would change.")] = False,
) -> Response:
    """Make what a change changed what it was before. That is a change of its own, and can be reverted in turn.

    Refused (409) if it was changed again since: revert that first. Needs what the change needed: for users the scope
    `users` and the role `operator`, for all else the scope `rules` and the role `admin`. Overrides that have expired
    meanwhile do not come back. A token that was made or revoked stays so.
    """
    applied = here.operations.changes.revert(who, change_id, together=together, dry_run=dry_run)
    return JSONResponse(applied._asdict())


def _shown(change: Change) -> Table:
    table = change._asdict()
    return {"id": table.pop("id"), "version": table.pop("version"), "at": time_text(table.pop("at_us")), **table}
