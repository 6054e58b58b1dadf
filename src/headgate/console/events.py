"""The page of events: filtered, followed live, and as CSV."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

from starlette.responses import Response, StreamingResponse

from headgate.console.page import Page, PageRoute
from headgate.console.ranges import RANGES, range_of
from headgate.errors import DatabaseError
from headgate.operations.history import Cursor, EventFilter
from headgate.operations.spreadsheet import csv_text

PAGE: Final = 100
CSV_PAGE: Final = 1_000
MAX_LIVE: Final = 50  # events shown of one second
FACTS: Final = ("rule", "user", "ip", "api_key", "tenant", "endpoint")
REASONS: Final = ("over_limit", "penalty", "shadow", "annotate", "fail_closed", "local_fallback")
COLUMNS: Final = (
    *("at", "rule", "reason", "allowed", "dimension", "subject", "user", "ip", "api_key", "tenant", "endpoint"),
    *("method", "tier", "cost", "limit", "remaining", "weight", "node"),
)


async def list_events(page: Page) -> Response:
    wanted, chosen = _event_filter(page)
    after = _cursor(page.query.get("after", ""))
    found = await page.read(page.history.events, wanted, after=after, max_items=PAGE + 1)
    following = f"{found[PAGE - 1].at_us}-{found[PAGE - 1].id}" if len(found) > PAGE else None
    values = {"events": found[:PAGE], "following": following, "ranges": RANGES[1:], "chosen": chosen}
    return page.render("events.html", facts=FACTS, reasons=REASONS, newest=found[0].at_us if found else None, **values)


async def as_csv(page: Page) -> Response:
    wanted, _ = _event_filter(page)
    page.caller.require("events")
    headers = {"Content-Disposition": 'attachment; filename="events.csv"'}
    return StreamingResponse(_csv(page, wanted), media_type="text/csv; charset=utf-8", headers=headers)


async def follow(page: Page) -> Response:
    """Send new rows of the table as server-sent events."""
    page.caller.require("events")
    wanted, _ = _event_filter(page)
    since = page.request.headers.get("last-event-id") or page.query.get("newest", "")
    return page.stream(_rows(page, wanted, int(since) if since.isdigit() else page.now_us))


async def _rows(page: Page, wanted: EventFilter, since_us: int) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    seen: set[str] = set()
    while not page.services.fleet.is_draining():
        # Query the last seconds again: nodes write events with a delay.
        later = replace(wanted, since_us=since_us - 3_000_000, until_us=None)
        try:
            found = await page.read(page.history.events, later, max_items=CSV_PAGE)
        except DatabaseError:
            found = []
        new = [event for event in found if event.id not in seen and event.at_us > since_us - 3_000_000]
        if new:
            seen = {event.id for event in found}
            since_us = max(since_us, new[0].at_us)
            rows = page.render("event_rows.html", events=new[:MAX_LIVE], skipped=len(new) - MAX_LIVE)
            content = bytes(rows.body).decode()
            data = json.dumps({"rows": content, "count": sum(event.weight for event in new)})
            yield f"id: {since_us}\ndata: {data}\n\n"
        else:
            yield ": nothing new\n\n"
        await asyncio.sleep(1)


async def _csv(page: Page, wanted: EventFilter) -> AsyncIterator[str]:
    yield csv_text([COLUMNS])
    after: Cursor | None = None
    while True:
        found = await page.read(page.history.events, wanted, after=after, max_items=CSV_PAGE)
        if not found:
            return
        tables = [event.as_table() for event in found]
        yield csv_text([table[name] for name in COLUMNS] for table in tables)
        after = Cursor(found[-1].at_us, found[-1].id)


def _event_filter(page: Page) -> tuple[EventFilter, Any]:
    chosen = range_of(page.query, "24h")
    period = chosen.period(page.now_us)
    query = {name: page.query[name].strip() for name in FACTS if page.query.get(name, "").strip()}
    reason = page.query.get("reason", "")
    shadow = {"refused": False, "shadow": True}.get(page.query.get("show", ""))
    until_us = None if chosen.until is None else period.until_us
    wanted = EventFilter(
        reason=reason if reason in REASONS else None, shadow=shadow, since_us=period.since_us, until_us=until_us
    )
    return replace(wanted, **query), chosen  # type: ignore[arg-type]


def _cursor(text: str) -> Cursor | None:
    at_us, _, name = text.partition("-")
    return Cursor(int(at_us), name) if at_us.isdigit() and len(at_us) < 18 and name.isalnum() else None


ROUTES: Final = (
    PageRoute("/events", list_events),
    PageRoute("/events.csv", as_csv),
    PageRoute("/events/follow", follow),
)
