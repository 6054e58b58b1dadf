"""All rules at once, as a rules file; and tiers."""

# No `from __future__ import annotations`: FastAPI reads the annotations of routes.

from typing import Annotated, Any, Final

import tomli_w
from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import JSONResponse

from headgate.core.quota import duration_text
from headgate.db.records import exemption_table, penalties_table, rule_table, settings_table, user_table
from headgate.rules.penalties import Penalties
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources.collection import collection_paused
from headgate.rules.sources.document import parsed, snapshot_of
from headgate.rules.users import User
from headgate.service.admin import models
from headgate.service.admin.bodies import Table, toml_document
from headgate.service.admin.context import Here, Who, needs
from headgate.service.admin.etags import If, etag
from headgate.service.admin.models import TOML, problems, toml_body

router: Final = APIRouter(tags=["Rules"])
_ALWAYS: Final = ("id", "dimension", "limit", "window", "algorithm")  # fields that a file had better show
_ORDER: Final = (*("id", "name", "dimension", "endpoints", "methods", "tiers", "match", "limit", "window", "burst"),)


@router.get(
    "/ruleset",
    dependencies=[needs("rules")],
    summary="Get all rules as a rules file",
    operation_id="get_ruleset",
    response_class=Response,
    responses={200: TOML, 304: {"description": "Not modified"}},
)
def get_ruleset(here: Here, conditions: If) -> Response:
    """Rules, tiers, exemptions, penalties and settings as a rules.toml. Users of a database are not in it."""
    if here.changes is None:
        snapshot, version = here.source.holder.current, here.source.holder.current.version
    else:
        content, number = here.changes.versioned()
        version = str(number)
        with collection_paused():
            snapshot = content.snapshot(number)
    headers = {"ETag": etag(version)}
    if conditions.known(version):
        return Response(status_code=304, headers=headers)
    return Response(document_of(snapshot), media_type="application/toml", headers=headers)


@router.put(
    "/ruleset",
    dependencies=[needs("rules", "admin")],
    summary="Make all rules those of a rules file",
    operation_id="put_ruleset",
    openapi_extra=toml_body(),
    responses={200: {"model": models.Applied}, **problems(409, 412, 413, 415)},
)
def put_ruleset(
    here: Here,
    who: Who,
    content: Annotated[bytes, Depends(toml_document)],
    conditions: If,
    dry_run: Annotated[bool, Query(description="Only tell what would change.")] = False,
) -> Response:
    """Apply a whole rules.toml, all or nothing: rules, tiers and exemptions that it does not have are deleted.

    Users that it lists become what it says; others stay, but for overrides of rules that go. With `If-Match`, only if
    the rules are still those of that `ETag`.
    """
    changes = here.writable
    with collection_paused():
        snapshot = snapshot_of(parsed(content), version="")
    with changes.begin(who.name, dry_run=dry_run) as change:
        conditions.require(change.rules_version)
        change.apply(snapshot)
        differences = change.differences
    version = change.version if differences and not dry_run else change.rules_version
    return JSONResponse(
        {"dry_run": dry_run, "version": version, "changes": differences}, headers={"ETag": etag(version)}
    )


@router.get(
    "/tiers",
    dependencies=[needs("rules")],
    summary="List tiers",
    operation_id="list_tiers",
    responses={200: {"model": models.Tiers}},
)
def list_tiers(here: Here) -> Response:
    """The tiers that are in force, in order, and which one users have who have none of their own."""
    snapshot = here.source.holder.current
    return JSONResponse(
        {"tiers": [{"name": tier.name} for tier in snapshot.tiers], "default_tier": snapshot.default_tier}
    )


def document_of(snapshot: Snapshot) -> str:
    """A rules file that means this snapshot."""
    data: Table = {"headgate": settings_table(snapshot)}
    if snapshot.penalties != Penalties():
        data["penalties"] = penalties_table(snapshot.penalties)
    data["tiers"] = [{"name": tier.name} for tier in snapshot.tiers]
    data["rules"] = [_rule_entry(rule) for rule in snapshot.rules]
    data["users"] = [_user_entry(user) for user in snapshot.users]
    data["exemptions"] = [exemption_table(exemption) for exemption in snapshot.exemptions]
    return tomli_w.dumps(
        {name: part for name, part in data.items() if part or name == "headgate"}, multiline_strings=False
    )


def _rule_entry(rule: Rule) -> Table:
    """A rule without what goes without saying."""
    table, default = rule_table(rule), rule_table(Rule(id=rule.id, quota=rule.quota))
    kept: dict[str, Any] = {
        name: value for name, value in table.items() if name in _ALWAYS or value != default.get(name) or name == "burst"
    }
    kept["window"] = duration_text(rule.quota.window_us)
    return {**{name: kept[name] for name in _ORDER if name in kept}, **kept}


def _user_entry(user: User) -> Table:
    table = user_table(user) or {}
    for entry, override in zip(table.get("overrides", ()), user.overrides, strict=True):
        if override.expires is not None:
            entry["expires"] = override.expires
    return table
