"""The editor of a rule: its form or TOML, a review of the difference, and the resolution of conflicts."""

from __future__ import annotations

import json
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from headgate.console.page import Page, PageRoute
from headgate.console.rule_forms import Table, form_table, sections_of, table_of, table_of_toml
from headgate.console.rules import expect_version
from headgate.errors import ChangeConflict, InvalidRule, NotFound, Problem
from headgate.operations.rules import RuleRecord
from headgate.rules.rule import Rule
from headgate.rules.sources.document import rule_from
from headgate.rules.sources.export import rule_text

NEW: Final[Table] = {"id": "", "limit": 100, "window": "1m"}


class DifferenceLine(NamedTuple):
    """A line of a difference: `same`, `old` or `new`."""

    kind: str
    text: str


class Draft(NamedTuple):
    """The draft of a rule in the editor."""

    table: Table  # as typed
    rule: Rule | None  # None: it is invalid
    problems: tuple[Problem, ...]
    base: Table | None  # the rule when the edit began; None: it is new
    version: str  # of the base; empty: it is new

    @property
    def toml(self) -> str:
        return "" if self.rule is None else rule_text(self.rule)


async def edit(page: Page) -> Response:
    """Show the form of a rule; without `id`, of a new one; with `copy`, of a copy."""
    rule_id, copied = page.query.get("id"), page.query.get("copy")
    page.caller.require("rules")
    if rule_id is None:
        table = dict(NEW) if copied is None else form_table((await _get(page, copied)).rule) | {"id": f"{copied}-copy"}
        return _form(page, Draft(table, _valid(table)[0], (), None, ""))
    stored = await _get(page, rule_id)
    table = form_table(stored.rule)
    return _form(page, Draft(table, stored.rule, (), table, str(stored.version)))


async def convert(page: Page) -> Response:
    """Switch between form and TOML, and keep what was typed."""
    draft = _draft(page)
    as_toml = page.query.get("as") == "toml" if draft.rule is not None else page.text("as") == "toml"
    return _form(page, draft, 200 if draft.rule is not None else 422, as_toml=as_toml)


async def preview(page: Page) -> Response:
    """Show the form's rule as TOML, or its problems."""
    draft = _draft(page)
    return page.render("rule_preview.html", draft=draft, diff=_difference(draft))


async def review(page: Page) -> Response:
    """Show the difference that a draft makes, for confirmation."""
    draft = _draft(page)
    if draft.rule is None:
        return _form(page, draft, status=422)
    return page.render("rule_review.html", draft=draft, diff=_difference(draft), payload=_payload(draft))


async def apply(page: Page) -> Response:
    """Apply a draft; if the rule has changed in the meantime, show both versions."""
    draft = _reviewed_draft(page)
    if draft.rule is None:
        return _form(page, draft, status=422)
    rules, rule = page.operations.rules, draft.rule
    try:
        if draft.base is None:
            await page.change(rules.create, dict(draft.table))
        else:
            expect = expect_version(draft.version)
            await page.change(rules.put, rule.id, dict(draft.table), expect=expect)
    except InvalidRule as error:
        return _form(page, draft._replace(problems=error.problems), status=422)
    except ChangeConflict:
        if draft.base is None:
            raise
        return await _conflict(page, draft)
    return page.redirect("/rules", f"{rule.id} is in force.", q=rule.id)


async def merge(page: Page) -> Response:
    """Merge the fields chosen from both versions into the current rule, and show the review."""
    draft = _reviewed_draft(page)
    theirs = form_table((await _get(page, str(draft.table.get("id", "")))).rule)
    version = page.text("their_version")
    merged = dict(theirs)
    for name in _names(draft, theirs):
        mine = page.text(f"choose-{name}") != "theirs"
        if mine and draft.table.get(name) != (draft.base or {}).get(name):
            if name in draft.table:
                merged[name] = draft.table[name]
            else:
                merged.pop(name, None)
    rule, problems = _valid(merged)
    draft = Draft(merged, rule, problems, theirs, version)
    if rule is None:
        return _form(page, draft, status=422)
    return page.render("rule_review.html", draft=draft, diff=_difference(draft), payload=_payload(draft))


async def confirm_delete(page: Page) -> Response:
    stored = await _get(page, page.query.get("id", ""))
    return page.render("rule_delete.html", rule=stored.rule, version=stored.version)


async def delete(page: Page) -> Response:
    rule_id = page.text("id")
    await page.change(
        page.operations.rules.delete,
        rule_id,
        with_overrides=page.text("with_overrides") == "yes",
        expect=expect_version(page.text("version")),
    )
    return page.redirect("/rules", f"{rule_id} is deleted.")


async def _get(page: Page, rule_id: str) -> RuleRecord:
    return await page.read(page.operations.rules.get, rule_id)


async def _conflict(page: Page, draft: Draft) -> Response:
    """Show both changes beside the original rule."""
    try:
        stored = await _get(page, str(draft.table["id"]))
    except NotFound as error:
        raise ChangeConflict("another user has deleted this rule: copy what you need, and create it again") from error
    theirs, base = form_table(stored.rule), draft.base or {}
    fields = [
        {
            "name": name,
            "base": _text(base.get(name)),
            "mine": _text(draft.table.get(name)),
            "theirs": _text(theirs.get(name)),
            "both": draft.table.get(name) != base.get(name) and theirs.get(name) != base.get(name),
            "chosen": "mine" if draft.table.get(name) != base.get(name) else "theirs",
        }
        for name in _names(draft, theirs)
    ]
    values = {"draft": draft, "fields": fields, "version": stored.version, "payload": _payload(draft)}
    return page.render("rule_conflict.html", 409, **values)


def _names(draft: Draft, theirs: Table) -> list[str]:
    """Return the fields that either side has changed."""
    base = draft.base or {}
    names = dict.fromkeys((*base, *draft.table, *theirs))
    return [name for name in names if len({_text(one.get(name)) for one in (base, draft.table, theirs)}) > 1]


def _draft(page: Page) -> Draft:
    """Read the draft from the form or its TOML."""
    base, version = _base(page)
    try:
        table = table_of_toml(page.text("toml")) if page.text("as") == "toml" else table_of(page.form)
    except InvalidRule as error:
        return Draft({}, None, error.problems, base, version)
    rule, problems = _valid(table)
    if rule is not None and base is not None and rule.id != base["id"]:
        message = "cannot be changed: users' overrides and counts go by it; copy the rule instead"
        return Draft(table, None, (Problem(f"rule {base['id']!r}", "id", message),), base, version)
    return Draft(table if rule is None else form_table(rule), rule, problems, base, version)


def _reviewed_draft(page: Page) -> Draft:
    """Read a reviewed draft from the page."""
    try:
        table, base = json.loads(page.text("table")), json.loads(page.text("base"))
    except ValueError as error:
        raise InvalidRule(Problem("form", "table", "is damaged: open the rule again")) from error
    rule, problems = _valid(dict(table))
    return Draft(table, rule, problems, base, page.text("version"))


def _payload(draft: Draft) -> dict[str, str]:
    return {"table": json.dumps(draft.table), "base": json.dumps(draft.base), "version": draft.version}


def _base(page: Page) -> tuple[Table | None, str]:
    try:
        base: Any = json.loads(page.text("base") or "null")
    except ValueError:
        base = None
    return base, page.text("version")


def _valid(table: Table) -> tuple[Rule | None, tuple[Problem, ...]]:
    try:
        return rule_from(dict(table)), ()
    except InvalidRule as error:
        return None, error.problems


def _difference(draft: Draft) -> list[DifferenceLine]:
    """Return the lines of TOML that are removed and added."""
    before = "" if draft.base is None else rule_text(rule_from(dict(draft.base)))
    return difference(before, draft.toml)


def difference(before: str, after: str) -> list[DifferenceLine]:
    old, new = before.splitlines(), after.splitlines()
    lines: list[DifferenceLine] = []
    for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            lines += [DifferenceLine("same", text) for text in old[i:j]]
        else:
            lines += [DifferenceLine("old", text) for text in old[i:j]]
            lines += [DifferenceLine("new", text) for text in new[k:m]]
    return lines


def _form(page: Page, draft: Draft, status: int = 200, *, as_toml: bool | None = None) -> Response:
    if as_toml is None:
        as_toml = (page.text("as") or page.query.get("as", "")) == "toml"
    typed = page.text("toml") if page.text("as") == "toml" else draft.toml
    return page.render(
        "rule_edit.html",
        status,
        draft=draft,
        sections=sections_of(draft.table, draft.problems),
        unplaced=[one for one in draft.problems if not one.field],
        base=json.dumps(draft.base),
        as_toml=as_toml,
        typed=typed,
        diff=_difference(draft),
        can_change=page.can_change_rules,
        place=page.operations.place,
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


ROUTES: Final = (
    PageRoute("/rules/edit", edit),
    PageRoute("/rules/edit", convert, "POST"),
    PageRoute("/rules/preview", preview, "POST"),
    PageRoute("/rules/review", review, "POST"),
    PageRoute("/rules/apply", apply, "POST"),
    PageRoute("/rules/merge", merge, "POST"),
    PageRoute("/rules/delete", confirm_delete),
    PageRoute("/rules/delete", delete, "POST"),
)
