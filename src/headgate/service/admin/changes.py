"""The change log: who changed what, and when."""

# No `from __future__ import annotations`: FastAPI reads the annotations of routes.

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Response

from headgate.db import Change
from headgate.db.records import time_text
from headgate.errors import Forbidden
from headgate.service.access import Scope
from headgate.service.admin import models
from headgate.service.admin.bodies import Table
from headgate.service.admin.context import Here, Who
from headgate.service.admin.models import problems
from headgate.service.admin.pages import Paged, Text, storable

router: Final = APIRouter(tags=["Changes"])
Kind = Literal["rule", "tier", "exemption", "settings", "user", "token"]
KINDS: Final[Mapping[Scope, tuple[Kind, ...]]] = {  # what each scope may know of
    "rules": ("rule", "tier", "exemption", "settings"),
    "users": ("user",),
    "tokens": ("token",),
}


@router.get(
    "/changes",
    summary="The change log",
    operation_id="list_changes",
    responses={200: {"model": models.Changes}, **problems(409)},
)
def list_changes(
    here: Here,
    who: Who,
    page: Paged,
    kind: Annotated[Kind | None, Query(description="Only changes of these.")] = None,
    subject: Annotated[Text, Query(description="Only changes of this one: an id or a name.")] = None,
) -> Response:
    """Who changed what, when, from what to what: the latest first.

    Shows what the token's scopes cover: with `rules`, also tiers, exemptions and settings; with `users`; with `tokens`.
    """
    covered = [one for scope, kinds in KINDS.items() if scope in who.scopes for one in kinds]
    if not covered or (kind is not None and kind not in covered):
        wanted = "one of the scopes rules, users and tokens" if kind is None else f"the scope for changes of a {kind}"
        raise Forbidden(f"this needs {wanted}: the token's scopes are {', '.join(sorted(who.scopes))}")
    storable("subject", subject)
    kinds = covered if kind is None else [kind]
    found = here.kept_log.log(kind=kinds, subject=subject, before=page.after_number, most=page.most)
    return page.response("changes", found, lambda change: change.id, _shown)


def _shown(change: Change) -> Table:
    table = change._asdict()
    return {"id": table.pop("id"), "version": table.pop("version"), "at": time_text(table.pop("at_us")), **table}
