"""The page of one user, address, API key or tenant: its limits, its refusals, and actions on it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from starlette.responses import Response

from headgate.console.page import Page, PageRoute, require_choice
from headgate.console.ranges import named_range
from headgate.core.quota import MICROSECONDS, duration_us
from headgate.errors import DatabaseError, InvalidQuota, InvalidRule, Problem
from headgate.operations.history import EventFilter
from headgate.operations.subjects import FACTS, Fact, normalize_subject

NAMES: Final = {"user": "User", "ip": "Address", "api_key": "API key", "tenant": "Tenant"}
DIALOGS: Final = ("override", "tier", "reset", "exempt", "unexempt", "unoverride")
RECENT: Final = 20
DAY: Final = named_range("24h")


async def subject(page: Page) -> Response:
    """Show one subject; without one, a search."""
    page.caller.require("users")
    fact = _fact(page.query.get("type", "user"))
    text = page.query.get("id", "").strip()
    common = {"facts": NAMES, "fact": fact, "text": text}
    if not text:
        known = await _some_users(page)
        return page.render("subject_search.html", known=known, **common)
    value = normalize_subject(fact, text)
    found = await page.operations.subjects.limits(page.caller, fact, value)
    penalty = await page.operations.subjects.penalty(page.caller, fact, value)
    events = None
    if page.caller.may("events"):
        wanted: EventFilter = replace(EventFilter(), **{str(fact): value})  # type: ignore[arg-type]
        try:
            events = await page.read(page.history.events, wanted, max_items=RECENT)
        except DatabaseError:
            events = None
    can_write = page.operations.place is None
    return page.render(
        "subject.html",
        value=value,
        found=found,
        penalty=penalty,
        events=events,
        exemption=_has_exemption(page, fact, value),
        may_users=page.caller.may("users", "operator") and can_write,
        may_reset=page.caller.may("users", "operator"),
        may_exempt=page.caller.may("rules", "admin") and can_write,
        overrides=[(one, one.has_expired(page.now_us)) for one in (found.user.overrides if found.user else ())],
        **common,
    )


async def refusals(page: Page) -> Response:
    """Show a subject's refusals of the last day as a chart."""
    fact, value = _fact(page.query.get("type", "")), page.query.get("id", "")
    period = DAY.period(page.now_us)
    found = await page.read(page.history.refusals, fact, value, period)
    by_time = {one.at_us: one for one in found}
    step_us = period.step * MICROSECONDS
    first = period.since_us - period.since_us % step_us + step_us
    steps = [(at_us, by_time.get(at_us)) for at_us in range(first, period.until_us, step_us)]
    bars = [(at_us, one.refused if one else 0, one.shadow if one else 0) for at_us, one in steps]
    return page.render("subject_refusals.html", bars=bars, since_us=first, until_us=period.until_us)


async def _some_users(page: Page) -> Any:
    """Return some users with a tier or overrides."""
    try:
        return await page.read(page.operations.users.page, max_items=RECENT)
    except DatabaseError:
        return []


async def dialog(page: Page) -> Response:
    """Show the form of one action."""
    fact, value, what = _fact(page.query.get("type", "")), page.query.get("id", ""), page.query.get("action", "")
    require_choice("query", "action", what, DIALOGS)
    snapshot = page.snapshot
    rules = sorted(rule.id for rule in snapshot.rules if rule.enabled and "user" in rule.facts)
    tiers = [tier.name for tier in snapshot.tiers]
    values = {"fact": fact, "value": value, "what": what, "rules": rules, "tiers": tiers, "names": NAMES}
    chosen = {name: page.query.get(name, "") for name in ("rule", "tier")}
    return page.render("subject_dialog.html", **chosen, **values)


async def act(page: Page) -> Response:
    """Perform a dialog's action."""
    fact, value, what = _fact(page.text("type")), page.text("id"), page.text("action")
    require_choice("form", "action", what, DIALOGS)
    operations, actor = page.operations, page.actor
    match what:
        case "override":
            table = _override(page)
            await page.change(operations.users.put_override, value, table)
            done = f"{value} has an override of {table['rule']}."
        case "unoverride":
            await page.change(operations.users.delete_override, value, page.text("rule"))
            done = f"The override of {page.text('rule')} is deleted."
        case "tier":
            await page.change(operations.users.set_tier, value, {"tier": page.text("tier") or None})
            done = f"{value} is on tier {page.text('tier') or 'none of their own'}."
        case "reset":
            count = await operations.subjects.reset(actor, fact, value)
            done = f"The counts of {value} are reset, for {count} rules."
        case "exempt":
            await page.change(operations.exemptions.create, {"type": fact, "value": value})
            done = f"{value} is exempt from all limits."
        case "unexempt":
            await page.change(operations.exemptions.delete, {"type": fact, "value": value})
            done = f"{value} is no longer exempt."
    return page.redirect("/subject", done, type=fact, id=value)


def _override(page: Page) -> dict[str, Any]:
    """Read an override from a form. Raises `InvalidRule`."""
    limit = page.text("limit").replace(",", "").replace("_", "")
    table: dict[str, Any] = {"rule": page.text("rule"), "limit": int(limit) if limit.isdigit() else page.text("limit")}
    lasting = page.text("for")
    if lasting:
        try:
            seconds = duration_us(lasting) / MICROSECONDS
        except InvalidQuota as error:
            raise InvalidRule(Problem("override", "until", str(error))) from error
        expires = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=page.now_us, seconds=seconds)
        table["expires"] = expires.isoformat()
    return table


def _has_exemption(page: Page, fact: str, value: str) -> bool:
    """Return whether the subject has its own exemption, which can be deleted here."""
    return any(one.type == fact and one.value == value for one in page.snapshot.exemptions)


def _fact(text: str) -> Fact:
    require_choice("query", "type", text, FACTS)
    return cast("Fact", text)


ROUTES: Final = (
    PageRoute("/subject", subject),
    PageRoute("/subject/refusals", refusals),
    PageRoute("/subject/dialog", dialog),
    PageRoute("/subject/act", act, "POST"),
)
