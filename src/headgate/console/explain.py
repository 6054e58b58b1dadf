"""Explain and try: facts of a request in, what would be decided and why out. Nothing is charged."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from headgate.console.page import Page, Route
from headgate.errors import InvalidCheck
from headgate.operations.subjects import written

FIELDS: Final = (
    ("user", "User", "alice"),
    ("ip", "Address", "192.0.2.7"),
    ("api_key", "API key", "key or its hash"),
    ("tenant", "Tenant", "acme"),
    ("endpoint", "Endpoint", "/api/search"),
    ("method", "Method", "GET"),
    ("tier", "Tier", "by the user, unless said"),
    ("cost", "Cost", "1"),
    ("more", "Other facts", "country=DE region=eu"),
)


async def explain(page: Page) -> Response:
    page.caller.require("rules")
    facts, cost = _facts(page)
    found = await page.services.operations.limiter.explain(cost=cost, **facts) if facts else None
    return page.render("explain.html", fields=FIELDS, found=found)


def _facts(page: Page) -> tuple[dict[str, str], int]:
    """The facts and the cost that the URL names. Raises `InvalidCheck`, `InvalidRule`."""
    facts = {}
    for name, _, _ in FIELDS:
        text = page.query.get(name, "").strip()
        if text and name not in ("cost", "more"):
            facts[name] = written(name, text) if name in ("ip", "api_key") else text  # type: ignore[arg-type]
    for pair in page.query.get("more", "").replace(",", " ").split():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidCheck(f"other facts: must be pairs like country=DE, got {pair!r}")
        facts[name] = value
    cost = page.query.get("cost", "").strip() or "1"
    if not cost.isascii() or not cost.isdigit() or len(cost) > 15:
        raise InvalidCheck(f"cost: must be a whole number, got {cost!r}")
    return facts, int(cost)


ROUTES: Final = (Route("/explain", explain),)
