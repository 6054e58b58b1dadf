"""The page of one rule: its quota, what it allowed and refused, the subjects it refuses most, and its overrides."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from headgate.console.page import Page, PageRoute
from headgate.console.ranges import RANGES, Range, range_of
from headgate.errors import DatabaseError
from headgate.rules.sources.export import rule_text

MAX_ROWS: Final = 10  # rows of a list


async def show(page: Page) -> Response:
    rule_id, chosen = page.query.get("id", ""), range_of(page.query, "24h")
    operations = page.operations
    stored = await page.read(operations.rules.get, rule_id)
    traffic = await _traffic(page, rule_id, chosen) if page.caller.may("events") else None
    overrides = None
    if page.caller.may("users"):
        found = await page.read(operations.users.overrides, rule=rule_id, max_items=MAX_ROWS + 1)
        overrides = [(one.user, one.override, one.override.has_expired(page.now_us)) for one in found]
    return page.render(
        "rule.html",
        rule=stored.rule,
        toml=rule_text(stored.rule),
        traffic=traffic,
        overrides=overrides,
        max_rows=MAX_ROWS,
        ranges=[one for one in RANGES if one.name != "live"],
        chosen=chosen,
        place=operations.place,
        can_change=page.can_change_rules,
    )


async def _traffic(page: Page, rule_id: str, chosen: Range) -> dict[str, Any]:
    """Return the rule's counts in the range, or the database's error."""
    try:
        usage = await page.read(page.history.usage, [rule_id], chosen.period(page.now_us))
    except DatabaseError as error:
        return {"away": str(error)}
    counts = {name: sum(getattr(one, name) for one in usage) for name in ("checks", "refused", "shadow", "cost")}
    return {"away": "", **counts}


async def subjects(page: Page) -> Response:
    """Show the subjects over the rule's limit most often. Loaded separately: a long range takes a moment."""
    period, rule_id = range_of(page.query, "24h").period(page.now_us), page.query.get("id", "")
    found = await page.read(page.history.top_subjects, period, rule=rule_id, max_items=MAX_ROWS)
    return page.render("rule_subjects.html", subjects=found)


ROUTES: Final = (PageRoute("/rules/show", show), PageRoute("/rules/subjects", subjects))
