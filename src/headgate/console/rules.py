"""The page of rules: searches them, and switches them between disabled, shadow and enforced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from headgate.console.page import Page, PageRoute, require_choice
from headgate.console.ranges import named_range
from headgate.console.render import rule_state
from headgate.errors import ChangeConflict, DatabaseError
from headgate.operations.rules import Expect
from headgate.rules.description import rule_table
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot

PAGE: Final = 50
STATES: Final = ("enforced", "throttled", "annotates", "shadow", "disabled")
SPARK: Final = named_range("1h")
SETTLED_US: Final = 15_000_000  # after which a step's counts are written
SHADOW: Final = "log_only"
CHANGES: Final[dict[str, dict[str, Any]]] = {  # the change that each switch makes to a rule's table
    "enable": {"enabled": True},
    "disable": {"enabled": False},
    "enforce": {},  # the form has the action
    "shadow": {"action": SHADOW},
}
ENFORCED: Final = {  # the actions for a shadow rule, and their effect on requests over the limit
    "reject": "are refused",
    "throttle": "are delayed, and refused beyond the longest delay",
    "annotate": "are allowed, and marked",
}
MAX_CHANGES: Final = 25  # searched for a rule's previous action


class Indexed(NamedTuple):
    """A rule, and its text for the search."""

    rule: Rule
    text: str


class Index:
    """The rules of the latest snapshot, indexed for the search."""

    def __init__(self) -> None:
        self._rules: Sequence[Rule] = ()
        self._indexed: list[Indexed] = []

    def entries(self, snapshot: Snapshot) -> list[Indexed]:
        if snapshot.rules is not self._rules:
            self._indexed = [Indexed(rule, _text(rule)) for rule in sorted(snapshot.rules, key=lambda rule: rule.id)]
            self._rules = snapshot.rules
        return self._indexed


_index: Final = Index()


def _text(rule: Rule) -> str:
    parts = (rule.id, rule.name, rule.dimension, *rule.endpoints, *rule.methods, *rule.tiers, rule.group or "")
    return "\n".join(parts).lower()


async def list_rules(page: Page) -> Response:
    is_table = page.is_fragment and page.request.headers.get("hx-target") == "rules"
    return page.render("rules_table.html" if is_table else "rules.html", **_search(page))


def _search(page: Page) -> dict[str, Any]:
    snapshot = page.operations.rules.snapshot(page.caller)
    words = page.query.get("q", "").lower().split()
    state, dimension = page.query.get("state", ""), page.query.get("dimension", "")
    everything = _index.entries(snapshot)
    rules = [
        one.rule
        for one in everything
        if all(word in one.text for word in words)
        and (not state or rule_state(one.rule) == state)
        and (not dimension or one.rule.dimension == dimension)
    ]
    number = page.query.get("page", "1")
    pages = max(1, -(-len(rules) // PAGE))
    current = min(pages, max(1, int(number) if number.isdigit() else 1))
    return {
        "rules": rules[(current - 1) * PAGE : current * PAGE],
        "count": len(rules),
        "total": len(everything),
        "current": current,
        "pages": pages,
        "states": STATES,
        "dimensions": sorted({one.rule.dimension for one in everything}),
        "place": page.operations.place,
        "can_change": page.can_change_rules,
    }


async def sparklines(page: Page) -> Response:
    """Show the traffic of the rules on a page of the list."""
    rules: list[Rule] = _search(page)["rules"]
    period = SPARK.period(page.now_us)
    try:
        found = await page.read(page.history.traffic, [rule.id for rule in rules], period)
    except DatabaseError:
        found = []
    step_us = SPARK.step * 1_000_000
    first = period.since_us - period.since_us % step_us
    settled_us = period.until_us - SETTLED_US  # an incomplete step would look like a drop
    steps = range(first, settled_us - settled_us % step_us, step_us)
    lines: dict[str, dict[int, tuple[int, int]]] = {}
    for one in found:
        lines.setdefault(one.rule, {})[one.at_us] = (one.checks, one.refused)
    shown = [[lines.get(rule.id, {}).get(at_us, (0, 0)) for at_us in steps] for rule in rules]
    return page.render("sparklines.html", lines=shown)


async def confirm(page: Page) -> Response:
    """Show a dialog that explains a switch, and asks for a reason."""
    rule_id, to = page.query.get("rule", ""), page.query.get("to", "")
    require_choice("query", "to", to, CHANGES)
    operations = page.operations
    stored = await page.read(operations.rules.get, rule_id)
    values: dict[str, Any] = {"rule": stored.rule, "version": stored.version, "to": to, "would": None}
    if to == "enforce":
        values |= {"actions": ENFORCED, "before": await _action_before(page, rule_id)}
        if page.caller.may("events"):
            period = named_range("24h").period(page.now_us)
            usage = await page.read(page.history.usage, [rule_id], period)
            values["would"] = (sum(one.shadow for one in usage), sum(one.checks for one in usage))
    return page.render("rule_confirm.html", **values)


async def _action_before(page: Page, rule_id: str) -> str:
    """Return a rule's action before it became a shadow, from the change log; `reject` if it always was one."""
    changes = page.operations.changes
    found = await page.read(changes.page, kind="rule", subject=rule_id, max_items=MAX_CHANGES)
    actions = (change.before.get("action", "reject") for change in found if change.before is not None)
    return next((action for action in actions if action != SHADOW), "reject")


async def switch(page: Page) -> Response:
    rule_id, to = page.text("rule"), page.text("to")
    require_choice("form", "to", to, CHANGES)
    change = CHANGES[to]
    if to == "enforce":
        change = {"action": page.text("action")}
        require_choice("form", "action", change["action"], ENFORCED)
    rules = page.operations.rules
    stored = await page.read(rules.get, rule_id)
    table = rule_table(stored.rule) | change
    await page.change(rules.put, rule_id, table, expect=expect_version(page.text("version")))
    done = {"enable": "enabled", "disable": "disabled", "shadow": "now a shadow"}
    done |= {"enforce": f"now enforced: requests beyond its limit {ENFORCED.get(table['action'])}"}
    return page.redirect("/rules", f"{rule_id} is {done[to]}.", q=rule_id)


def expect_version(version: str) -> Expect:
    """Return a check that fails if a rule no longer has this version."""

    def expect(found: int | None) -> None:
        if str(found) != version:
            raise ChangeConflict("another user has changed this rule since you opened it: review it again")

    return expect


ROUTES: Final = (
    PageRoute("/rules", list_rules),
    PageRoute("/rules/sparklines", sparklines),
    PageRoute("/rules/confirm", confirm),
    PageRoute("/rules/switch", switch, "POST"),
)
