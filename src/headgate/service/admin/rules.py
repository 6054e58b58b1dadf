"""Rules, one by one."""

# No `from __future__ import annotations`: FastAPI reads the annotations of routes.

from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import JSONResponse

from headgate.db import Entry
from headgate.db.records import rule_table
from headgate.errors import InvalidRule, NotFound, Problem
from headgate.rules.rule import Rule
from headgate.rules.sources.document import rule_from
from headgate.service.admin import models
from headgate.service.admin.bodies import Table, json_object
from headgate.service.admin.context import Here, Who, needs
from headgate.service.admin.etags import If, etag
from headgate.service.admin.models import body, problems
from headgate.service.admin.pages import Paged
from headgate.service.admin.paths import RULE

router: Final = APIRouter(prefix="/rules", tags=["Rules"])
Given = Annotated[Table, Depends(json_object)]


@router.get(
    "",
    dependencies=[needs("rules")],
    summary="List rules",
    operation_id="list_rules",
    responses={200: {"model": models.Rules}},
)
def list_rules(here: Here, page: Paged) -> Response:
    """All rules, by id, in pages."""
    if here.changes is not None:
        found = here.changes.rules(after=page.after, most=page.most)
        return page.response("rules", found, lambda entry: entry.rule.id, shown)
    rules = sorted(here.source.holder.current.rules, key=lambda rule: rule.id)
    rest = [rule for rule in rules if page.after is None or rule.id > page.after]
    return page.response("rules", rest[: page.most], lambda rule: rule.id, rule_shown)


@router.post(
    "",
    status_code=201,
    dependencies=[needs("rules", "admin")],
    summary="Create a rule",
    operation_id="create_rule",
    openapi_extra=body(models.Rule),
    responses={201: {"model": models.VersionedRule}, **problems(400, 409, 413, 415)},
)
def create_rule(here: Here, who: Who, given: Given) -> Response:
    """Create a rule under an id that none has yet. It is in force here when this answers, elsewhere within a second."""
    changes = here.writable
    rule = _rule(given)
    with changes.begin(who.name) as change:
        change.create_rule(rule)
    return _answer(Entry(rule, change.version), 201)


@router.get(
    RULE,
    dependencies=[needs("rules")],
    summary="Get a rule",
    operation_id="get_rule",
    responses={200: {"model": models.VersionedRule}, 304: {"description": "Not modified"}, **problems(404)},
)
def get_rule(here: Here, rule_id: str, conditions: If) -> Response:
    """One rule. Its `ETag` is what `If-Match` of a change wants, and `If-None-Match` of the next read."""
    if here.changes is None:
        found = {rule.id: rule for rule in here.source.holder.current.rules}.get(rule_id)
        if found is None:
            raise NotFound(f"there is no rule {rule_id!r}")
        return JSONResponse(rule_shown(found))
    entry = here.changes.rule(rule_id)
    if entry is None:
        raise NotFound(f"there is no rule {rule_id!r}")
    if conditions.known(entry.version):
        return Response(status_code=304, headers={"ETag": etag(entry.version)})
    return _answer(entry)


@router.put(
    RULE,
    dependencies=[needs("rules", "admin")],
    summary="Create or replace a rule",
    operation_id="put_rule",
    openapi_extra=body(models.Rule),
    responses={
        200: {"model": models.VersionedRule},
        201: {"model": models.VersionedRule, "description": "Created"},
        **problems(400, 409, 412, 413, 415),
    },
)
def put_rule(here: Here, who: Who, rule_id: str, given: Given, conditions: If) -> Response:
    """Make the rule of this id what the body says: all of it, what the body leaves out has its default.

    With `If-Match`, only if the rule has that version (412 otherwise); with `If-None-Match: *`, only if there is none.
    Without either, whatever there was is replaced. What was counted goes on counting, unless algorithm or dimension
    are others.
    """
    changes = here.writable
    if given.setdefault("id", rule_id) != rule_id:
        message = f"must be that of the path, or be left out, got {given['id']!r}"
        raise InvalidRule(Problem(f"rule {rule_id!r}", "id", message))
    rule = _rule(given)
    with changes.begin(who.name) as change:
        before = change.entry(rule_id)
        conditions.require(None if before is None else before.version)
        if before is None:
            change.create_rule(rule)
        else:
            change.update_rule(rule)
        after = change.entry(rule_id)
    assert after is not None
    return _answer(after, 201 if before is None else 200)


@router.delete(
    RULE,
    status_code=204,
    dependencies=[needs("rules", "admin")],
    summary="Delete a rule",
    operation_id="delete_rule",
    responses=problems(404, 409, 412),
)
def delete_rule(
    here: Here,
    who: Who,
    rule_id: str,
    conditions: If,
    with_overrides: Annotated[
        bool, Query(description="Whether users' overrides of it go too. Otherwise, those are a reason to refuse (422).")
    ] = False,
) -> Response:
    """Delete a rule; with `If-Match`, only if it has that version."""
    with here.writable.begin(who.name) as change:
        before = change.entry(rule_id)
        if before is not None:
            conditions.require(before.version)
        change.delete_rule(rule_id, with_overrides=with_overrides)
    return Response(status_code=204)


def rule_shown(rule: Rule) -> Table:
    """A rule as a rules file has it, with whole seconds as whole numbers."""
    table = rule_table(rule)
    return {
        name: int(value) if isinstance(value, float) and value == int(value) else value for name, value in table.items()
    }


def shown(entry: Entry) -> Table:
    """The same with its version."""
    return {**rule_shown(entry.rule), "version": entry.version}


def _rule(given: Table) -> Rule:
    given.pop("version", None)  # ours to say: who sends back what they got means no harm
    return rule_from(given)


def _answer(entry: Entry, status: int = 200) -> Response:
    headers: dict[str, Any] = {"ETag": etag(entry.version)}
    if status == 201:
        headers["Location"] = f"/api/v1/rules/{quote(entry.rule.id, safe='')}"
    return JSONResponse(shown(entry), status, headers)
