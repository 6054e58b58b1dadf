"""Routes of the change log: who changed what, and when."""

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


@router.get("/changes", summary="The change log", responses={200: {"model": models.Changes}, **problems(409)})
def list_changes(
    here: Here,
    who: Who,
    page: PagedByNumber,
    kind: Annotated[Kind | None, Query(description="Only changes of this kind of thing.")] = None,
    subject: Annotated[Text, Query(description="Only changes of the thing with this id or name.")] = None,
) -> Response:
    """List who changed what, when, with the values before and after: the latest first.

    Shows the changes that the token's scopes cover: `rules` (with tiers, exemptions and settings), `users`, `tokens`.
    """
    storable("subject", subject)
    found = here.operations.changes.page(
        who, kind=kind, subject=subject, before=page.after_number, max_items=page.max_items
    )
    return page.response("changes", found, lambda change: change.id, _table_of)


@router.post(
    "/changes/{change_id}/revert",
    dependencies=[Depends(NeedsOne(rules="admin", users="operator"))],
    summary="Revert a change",
    responses={200: {"model": models.Applied}, **problems(404, 409)},
)
def revert_change(
    here: Here,
    who: Who,
    change_id: Annotated[int, Path(ge=1, le=LARGEST_ID, description="The change's id in the change log.")],
    together: Annotated[
        bool, Query(description="Whether to revert everything that the same transaction changed.")
    ] = False,
    dry_run: Annotated[bool, Query(description="Only report what would change.")] = False,
) -> Response:
    """Restore the value before a change. This is itself a change, and can be reverted.

    Refused (409) if a later change touched the same thing: revert that first. Needs the change's own permissions: for
    users the scope `users` and the role `operator`, otherwise the scope `rules` and the role `admin`. Overrides that
    have expired since are not restored. The creation or revocation of a token cannot be reverted.
    """
    applied = here.operations.changes.revert(who, change_id, together=together, dry_run=dry_run)
    return JSONResponse(applied._asdict())


def _table_of(change: Change) -> Table:
    table = change._asdict()
    return {"id": table.pop("id"), "version": table.pop("version"), "at": time_text(table.pop("at_us")), **table}
