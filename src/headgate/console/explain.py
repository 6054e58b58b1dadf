"""The page that explains what would be decided for a request, and why. It charges nothing."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from headgate.console.page import Page, PageRoute
from headgate.core.cost import REQUESTS, Cost, checked_cost
from headgate.core.quota import Quota
from headgate.errors import InvalidCheck, InvalidRule

FIELDS: Final = (
    ("user", "User", "alice"),
    ("ip", "Address", "192.0.2.7"),
    ("api_key", "API key", "key or its hash"),
    ("tenant", "Tenant", "acme"),
    ("endpoint", "Endpoint", "/api/search"),
    ("method", "Method", "GET"),
    ("tier", "Tier", "the user's by default"),
    ("cost", "Cost", "1, or requests=1 tokens=4000"),
    ("more", "Other facts", "country=DE region=eu"),
)


async def explain(page: Page) -> Response:
    page.caller.require("users")
    found, problem = None, ""
    try:
        table = _table(page)
        if table.keys() - {"cost"}:
            found = await page.operations.trials.explain(page.caller, table)
    except (InvalidCheck, InvalidRule) as error:
        problem = str(error)
    named = set() if found is None else {one.rule for one in found.rules}
    units = {rule.id: rule.unit for rule in page.snapshot.rules if rule.id in named}
    values = {"fields": FIELDS, "found": found, "units": units, "parse": Quota.parse, "problem": problem}
    return page.render("explain.html", 422 if problem else 200, **values)


def _table(page: Page) -> dict[str, Any]:
    """Return the facts and the `cost` in the URL. Raises `InvalidCheck`."""
    table: dict[str, Any] = {}
    for name, _, _ in FIELDS:
        text = page.query.get(name, "").strip()
        if text and name not in ("cost", "more"):
            table[name] = text
    for pair in page.query.get("more", "").replace(",", " ").split():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidCheck(f"other facts: must be pairs like country=DE, got {pair!r}")
        table[name] = value
    return table | {"cost": _cost(page.query.get("cost", ""))}


def _cost(text: str) -> Cost:
    """Return a number of requests, or amounts of units: `tokens=4000`. Raises `InvalidCheck`."""
    costs: dict[str, int] = {}
    for part in text.replace(",", " ").split() or ["1"]:
        unit, equals, amount = part.rpartition("=")
        if not amount.isascii() or not amount.isdigit() or len(amount) > 15:
            raise InvalidCheck(f"cost: must be a whole number, or units like tokens=4000, got {part!r}")
        costs[unit if equals else REQUESTS] = int(amount)
    return costs[REQUESTS] if costs.keys() == {REQUESTS} else checked_cost(costs)


ROUTES: Final = (PageRoute("/explain", explain),)
