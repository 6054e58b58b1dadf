"""Routes of single rules."""

# No `from __future__ import annotations`: FastAPI reads the annotations of routes.

from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from headgate.db import RuleRecord
from headgate.rules.description import rule_table
from headgate.rules.rule import Rule
from headgate.service.admin import models
from headgate.service.admin.bodies import JsonTable, Table
from headgate.service.admin.context import Here, Who, needs
from headgate.service.admin.etags import If, etag
from headgate.service.admin.openapi_parts import body, problems
from headgate.service.admin.pages import Paged
from headgate.service.admin.paths import RULE

router: Final = APIRouter(prefix="/rules", tags=["Rules"])


@router.get("", dependencies=[needs("rules")], summary="List rules", responses={200: {"model": models.Rules}})
def list_rules(here: Here, who: Who, page: Paged) -> Response:
    """List all rules by id, in pages."""
    found = here.operations.rules.page(who, after=page.after, max_items=page.max_items)
    return page.response("rules", found, lambda stored: stored.rule.id, table_of)


@router.post(
    "",
    status_code=201,
    dependencies=[needs("rules", "admin")],
    summary="Create a rule",
    openapi_extra=body(models.Rule),
    responses={201: {"model": models.VersionedRule}, **problems(400, 409, 413, 415)},
)
def create_rule(here: Here, who: Who, table: JsonTable) -> Response:
    """Create a rule with a new id. It applies here when this returns, and on other nodes within a second."""
    return _answer(here.operations.rules.create(who, table), 201)


@router.get(
    RULE,
    dependencies=[needs("rules")],
    summary="Get a rule",
    responses={200: {"model": models.VersionedRule}, 304: {"description": "Not modified"}, **problems(404)},
)
def get_rule(here: Here, who: Who, rule_id: str, conditions: If) -> Response:
    """Return one rule. Send its `ETag` as `If-Match` of a change, or as `If-None-Match` of the next read."""
    stored = here.operations.rules.get(who, rule_id)
    if stored.version is not None and conditions.has_known(stored.version):
        return Response(status_code=304, headers={"ETag": etag(stored.version)})
    return _answer(stored)


@router.put(
    RULE,
    dependencies=[needs("rules", "admin")],
    summary="Create or replace a rule",
    openapi_extra=body(models.Rule),
    responses={
        200: {"model": models.VersionedRule},
        201: {"model": models.VersionedRule, "description": "Created"},
        **problems(400, 409, 412, 413, 415),
    },
)
def put_rule(here: Here, who: Who, rule_id: str, table: JsonTable, conditions: If) -> Response:
    """Create or replace the rule with this id. Fields that the body leaves out have their defaults.

    With `If-Match`, only if the rule has that version (412 otherwise); with `If-None-Match: *`, only if it does not
    exist. Without either, an existing rule is replaced. Counts are kept, unless algorithm or dimension change.
    """
    entry, is_new = here.operations.rules.put(who, rule_id, table, expect=conditions.require)
    return _answer(entry, 201 if is_new else 200)


@router.delete(
    RULE,
    status_code=204,
    dependencies=[needs("rules", "admin")],
    summary="Delete a rule",
    responses=problems(404, 409, 412),
)
def delete_rule(
    here: Here,
    who: Who,
    rule_id: str,
    conditions: If,
    with_overrides: Annotated[
        bool,
        Query(description="Whether to delete users' overrides of it too. Otherwise, existing ones are an error (422)."),
    ] = False,
) -> Response:
    """Delete a rule; with `If-Match`, only if it has that version."""
    here.operations.rules.delete(who, rule_id, with_overrides=with_overrides, expect=conditions.require)
    return Response(status_code=204)


def rule_shown(rule: Rule) -> Table:
    """Return a rule as in a rules file, with whole seconds as integers."""
    table = rule_table(rule)
    return {
        name: int(value) if isinstance(value, float) and value == int(value) else value for name, value in table.items()
    }


def table_of(stored: RuleRecord) -> Table:
    """Return the rule with its version, if it has one."""
    return rule_shown(stored.rule) | ({} if stored.version is None else {"version": stored.version})


def _answer(stored: RuleRecord, status: int = 200) -> Response:
    headers: dict[str, Any] = {} if stored.version is None else {"ETag": etag(stored.version)}
    if status == 201:
        headers["Location"] = f"/api/v1/rules/{quote(stored.rule.id, safe='')}"
    return JSONResponse(table_of(stored), status, headers)
