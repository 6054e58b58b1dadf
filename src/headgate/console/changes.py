"""The pages of changes: who changed what, when and why; and reverting a change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, get_args

from starlette.responses import Response

from headgate.console.page import Page, PageRoute
from headgate.console.rule_editor import DifferenceLine, difference
from headgate.errors import InvalidRule, Problem
from headgate.operations.change_log import Change, Kind
from headgate.rules.sources.document import rule_from
from headgate.rules.sources.export import rule_text

PAGE: Final = 25
KINDS: Final = get_args(Kind)
FINAL: Final = ("token", "counts")  # kinds that cannot be reverted


async def list_changes(page: Page) -> Response:
    kind, subject = page.query.get("kind", ""), page.query.get("subject", "").strip()
    before = page.query.get("before", "")
    found = await page.read(
        page.operations.changes.page,
        kind=kind if kind in KINDS else None,  # type: ignore[arg-type]
        subject=subject or None,
        before=int(before) if before.isdigit() and len(before) < 18 else None,
        max_items=PAGE + 1,
    )
    shown = [(change, lines_of(change), _may_revert(page, change)) for change in found[:PAGE]]
    following = found[PAGE - 1].id if len(found) > PAGE else None
    return page.render("changes.html", changes=shown, following=following, kinds=KINDS)


async def confirm(page: Page) -> Response:
    """Show what a revert would change."""
    change_id = _id(page.query.get("id", ""))
    applied = await page.read(page.operations.changes.revert, change_id, dry_run=True)
    differences = [(one, _lines(one["kind"], one["before"], one["after"])) for one in applied.changes]
    return page.render("change_revert.html", change_id=change_id, differences=differences)


async def revert(page: Page) -> Response:
    change_id = _id(page.text("id"))
    await page.change(page.operations.changes.revert, change_id)
    return page.redirect("/changes", f"Change {change_id} is reverted.")


def lines_of(change: Change) -> list[DifferenceLine]:
    """Return the fields that a change changed."""
    return _lines(change.kind, change.before, change.after)


def _lines(kind: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[DifferenceLine]:
    return [line for line in difference(_text(kind, before), _text(kind, after)) if line.kind != "same"]


def _text(kind: str, table: Mapping[str, Any] | None) -> str:
    """Return a table as TOML, without empty values; a rule also without defaults."""
    if table is None:
        return ""
    if kind == "rule":
        with suppress(InvalidRule):  # a rule that is no longer valid is shown as it is
            return rule_text(rule_from(dict(table))).removeprefix("[[rules]]\n")
    return "\n".join(f"{name} = {_value(value)}" for name, value in table.items() if value is not None)


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _may_revert(page: Page, change: Change) -> bool:
    if change.kind in FINAL or page.operations.place is not None:
        return False
    return page.caller.may("users", "operator") if change.kind == "user" else page.caller.may("rules", "admin")


def _id(text: str) -> int:
    if not text.isdigit() or len(text) > 18:
        raise InvalidRule(Problem("query", "id", f"must be the number of a change, got {text!r}"))
    return int(text)


ROUTES: Final = (
    PageRoute("/changes", list_changes),
    PageRoute("/changes/revert", confirm),
    PageRoute("/changes/revert", revert, "POST"),
)
