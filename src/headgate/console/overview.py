"""The overview page: checks per second, latency, nodes, and the subjects refused most."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NamedTuple

from starlette.responses import JSONResponse, Response

from headgate.console.page import Page, PageRoute
from headgate.console.ranges import LIVE, RANGES, Range, range_of
from headgate.core.quota import MICROSECONDS
from headgate.errors import DatabaseError
from headgate.operations.fleet import NodeStatus
from headgate.operations.history import UsageStep

MAX_ROWS: Final = 8  # rows of a list
SETTLED_SECONDS: Final = 45  # of a step that must have passed before it is drawn
ALL: Final = ""


class Part(NamedTuple):
    """A part of the service, and its state."""

    name: str
    about: str
    fault: tuple[str, int, list[str]] | None  # what fails, since when, and on which nodes; None: nothing


async def overview(page: Page) -> Response:
    chosen = range_of(page.query)
    return page.render("overview.html", ranges=RANGES, chosen=chosen, **await _panels(page, chosen))


async def panels(page: Page) -> Response:
    chosen = range_of(page.query)
    return page.render("overview_panels.html", chosen=chosen, **await _panels(page, chosen))


async def tops(page: Page) -> Response:
    """Show the rules and subjects with most refusals. Loaded separately: a long range takes a moment."""
    chosen = range_of(page.query)
    period = chosen.period(page.now_us)
    rules, subjects = await asyncio.gather(
        page.read(page.history.top_rules, period, max_items=MAX_ROWS),
        page.read(page.history.top_subjects, period, max_items=MAX_ROWS),
    )
    return page.render("overview_tops.html", chosen=chosen, top_rules=rules, top_subjects=subjects)


async def data(page: Page) -> Response:
    """Return the charts' points: time; allowed, refused, shadow, delayed, by failure mode per second; p50, p99."""
    page.caller.require("events")
    chosen = range_of(page.query)
    if chosen.name == LIVE:
        seconds = page.services.fleet.seconds()
        return JSONResponse({"step": 1, "points": [list(second) for second in seconds]})
    period = chosen.period(page.now_us)
    rule = page.query.get("rule", ALL)
    found = await page.read(page.history.usage, [rule], period)
    step = chosen.step
    by_time = {one.at_us: one for one in found}
    step_us = step * MICROSECONDS
    first = -(-period.since_us // step_us) * step_us  # the first whole step
    points: list[list[Any]] = []
    for at_us in range(first, period.until_us, step_us):
        one = by_time.get(at_us)
        elapsed = min(step, (period.until_us - at_us) / MICROSECONDS)
        if elapsed < min(step, SETTLED_SECONDS):
            break  # the counts of a new step are not written yet
        if one is None:
            points.append([at_us // MICROSECONDS, 0, 0, 0, 0, 0, None, None])
        else:
            counts = (one.allowed, one.refused, one.shadow, one.delayed, one.failure_mode)
            rates = [round(count / elapsed, 4) for count in counts]
            points.append([at_us // MICROSECONDS, *rates, one.p50_us, one.p99_us])
    return JSONResponse({"step": step, "points": points})


async def live(page: Page) -> Response:
    """Send the seconds after the browser's last one as server-sent events."""
    page.caller.require("events")
    since = page.request.headers.get("last-event-id") or page.query.get("since", "0")
    return page.stream(_seconds(page, int(since) if since.isdigit() else 0))


async def _seconds(page: Page, since: int) -> AsyncIterator[str]:
    fleet = page.services.fleet
    yield "retry: 1000\n\n"
    while not fleet.is_draining():
        found = fleet.seconds(since)
        if found:
            since = found[-1].at
            points = json.dumps([list(second) for second in found])
            yield f"id: {since}\ndata: {points}\n\n"
        else:
            yield ": nothing new\n\n"
        await asyncio.sleep(1)


async def _panels(page: Page, chosen: Range) -> dict[str, Any]:
    """Return the service's state, and its counts in the range."""
    nodes = page.services.fleet.nodes()
    period = chosen.period(page.now_us)
    totals: Sequence[UsageStep] = ()
    away = ""
    if page.caller.may("events"):
        try:
            totals = await page.read(page.history.usage, [ALL], period)
        except DatabaseError as error:
            away = str(error)
    checks = sum(one.checks for one in totals)
    latest = max((_version(node) for node in nodes if not node.missing), default=0)
    return {
        "nodes": nodes,
        "behind": {node.id for node in nodes if _version(node) < latest},
        "parts": _parts(page, nodes),
        "checks": checks,
        "refused": sum(one.refused for one in totals),
        "failing": sum(one.failure_mode for one in totals),
        "away": away,
        "rules_count": len(page.snapshot.rules),
        "place": page.operations.place,
    }


def _version(node: NodeStatus) -> int:
    """Return the rules' version as a number; 0 if it is not one."""
    return int(node.rules) if node.rules is not None and node.rules.isdigit() else 0


def _parts(page: Page, nodes: Any) -> list[Part]:
    """Return the parts of the service, and all other faults."""
    well = {
        "store": page.services.store,
        "database": page.services.database,
        "rules": f"version {page.snapshot.version} in force",
        "audit": "events and usage are written",
    }
    faults = _faults(nodes)
    return [Part(name, well.get(name, ""), faults.get(name)) for name in dict.fromkeys((*well, *faults))]


def _faults(nodes: Any) -> dict[str, tuple[str, int, list[str]]]:
    """Return the faults by part: what fails, since when, and on which nodes."""
    found: dict[str, tuple[str, int, list[str]]] = {}
    for node in nodes:
        for name, (text, since_us) in node.faults.items():
            before = found.get(name)
            earliest = since_us if before is None else min(before[1], since_us)
            found[name] = (text, earliest, [*(before[2] if before else []), node.id])
    return found


ROUTES: Final = (
    PageRoute("/", overview),
    PageRoute("/overview/panels", panels),
    PageRoute("/overview/tops", tops),
    PageRoute("/overview/data", data),
    PageRoute("/live", live),
)
