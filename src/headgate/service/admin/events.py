"""Events over HTTP: refusals, and the subjects refused most, as JSON and as CSV."""

# No `from __future__ import annotations`: FastAPI reads the annotations of routes.

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.params import Depends as Dependency
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from headgate.core.quota import MICROSECONDS
from headgate.db.events import Cursor, Event, EventFilter, Events, Top
from headgate.db.records import time_text
from headgate.operations.spreadsheet import csv_text
from headgate.service.admin.models import page_of, with_example
from headgate.service.admin.pages import PageRequest, Text

PAGE: Final = 100
MAX_PAGE: Final = 1_000
CSV: Final = "text/csv"
LAST_SECOND: Final = 253_402_300_799  # of the year 9999, the last that datetime can hold
SUBJECT: Final = "subject"  # by the rules' own dimensions
RULE: Final = "rule"  # all subjects together
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_AFTER: Final = r"^[0-9]{1,16}-[0-9a-f]{1,40}$"

# Examples without null: FastAPI leaves nulls out of OpenAPI documents.
EVENT: Final[dict[str, Any]] = {
    "id": "019a3f0c2b17e4d2000000002a",
    "at": "2026-11-01T09:00:00.123456+00:00",
    "node": "gate-1:4711",
    "rule": "search-free",
    "reason": "over_limit",
    "allowed": False,
    "dimension": "user",
    "subject": "alice",
    "user": "alice",
    "ip": "192.0.2.7",
    "api_key": "sha256-9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
    "tenant": "acme",
    "endpoint": "/api/search",
    "method": "GET",
    "tier": "free",
    "facts": {"country": "DE"},
    "cost": 1,
    "limit": 100,
    "remaining": 0,
    "retry_after": 31.5,
    "weight": 1,
}
NEXT: Final = f"1793523600123456-{EVENT['id']}"
TOP: Final[dict[str, Any]] = {
    "rule": "search-free",
    "dimension": "user",
    "subject": "alice",
    "events": 812,
    "refused": 812,
    "shadow": 0,
    "cost": 812,
    "first": "2026-11-01T09:00:00+00:00",
    "last": "2026-11-01T09:14:00+00:00",
}
COLUMNS: Final = tuple(EVENT)  # of CSV


class EventShown(BaseModel):
    """A request that was refused, or that was allowed although over the limit of a rule that does not enforce."""

    model_config = with_example(EVENT)

    id: str
    at: str = Field(description="The time of the decision, by the store's clock.")
    node: str = Field(description="The process that decided.")
    rule: str
    reason: str = Field(description="`over_limit`, `penalty`, `fail_closed`, `local_fallback`, `shadow` or `annotate`.")
    allowed: bool = Field(description="True: it was allowed, because the rule is a shadow or annotates.")
    dimension: str = Field(description="The rule's dimension.")
    subject: str = Field(
        description="The subject that the rule counted; a JSON list if the dimension has several facts."
    )
    user: str | None
    ip: str | None
    api_key: str | None = Field(description="The key's hash.")
    tenant: str | None
    endpoint: str | None
    method: str | None
    tier: str | None
    facts: dict[str, str] = Field(description="The request's other facts.")
    cost: int
    limit: int
    remaining: int
    retry_after: float | None = Field(description="Seconds; null: never.")
    weight: int = Field(description="The number of events that this one represents: more than 1 in a flood.")


EventPage: Final = page_of("EventPage", "events", EventShown, EVENT, NEXT)


class TopShown(BaseModel):
    """How often a subject hit a rule. Exact even in floods."""

    model_config = with_example(TOP)

    rule: str
    dimension: str = Field(description="The subject's kind; empty for all subjects together.")
    subject: str = Field(description="`(other)`: subjects that were not counted separately in a flood.")
    events: int
    refused: int
    shadow: int = Field(
        description="The number of events that were allowed, because the rule is a shadow or annotates."
    )
    cost: int
    first: str = Field(description="The minute of the first event in the period.")
    last: str = Field(description="The minute of the last one.")


class TopPage(BaseModel):
    model_config = with_example(
        {"by": "subject", "since": TOP["first"], "until": "2026-11-02T00:00:00+00:00", "top": [TOP]}
    )

    by: str
    since: str | None
    until: str | None
    top: list[TopShown]


def moment(value: Any) -> Any:
    """Convert a time to microseconds: ISO 8601, UTC by default, or seconds since the epoch."""
    if not isinstance(value, str):
        return value
    # An unescaped plus of an offset has become a space.
    text = f"{value[:-6]}+{value[-5:]}" if value[-6:-5] == " " and value[-3:-2] == ":" and "T" in value else value
    try:
        seconds = float(text)
    except ValueError:
        try:
            when = datetime.fromisoformat(text)
            when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
            return min(max(_us(when), _us(_EARLIEST)), _us(_LATEST))  # a time zone may exceed the range
        except ValueError:
            seconds = -1
    if not isfinite(seconds) or not 0 <= seconds <= LAST_SECOND:
        raise ValueError(f"must be a time like 2026-11-01T09:00:00Z, or seconds since the epoch, got {value!r}")
    return round(seconds * MICROSECONDS)


def _us(when: datetime) -> int:
    return (when - _EPOCH) // timedelta(microseconds=1)


Moment = Annotated[
    int | None,
    BeforeValidator(moment),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "number", "minimum": 0, "maximum": LAST_SECOND}]}
    ),
]
Since = Annotated[Moment, Query(description="Start of the period: ISO 8601, or seconds since the epoch.")]
Until = Annotated[Moment, Query(description="End of the period, exclusive.")]
Format = Annotated[Literal["json", "csv"] | None, Query(description="Instead of the header `Accept`.")]
Accept = Annotated[str, Header(include_in_schema=False)]


def events_router(events: Events, require: Dependency) -> APIRouter:
    """Return the routes, relative to /api/v1. `require` is the dependency on the scope `events`."""
    router = APIRouter(tags=["Events"], dependencies=[require])

    @router.get(
        "/events",
        summary="List refusals",
        responses={200: {"model": EventPage, "content": {CSV: {"schema": {"type": "string"}}}}},
    )
    def list_events(
        request: Request,
        rule: Annotated[Text, Query(description="Only events of this rule.")] = None,
        user: Text = None,
        ip: Text = None,
        api_key: Annotated[Text, Query(description="The hash, as events show it.")] = None,
        tenant: Text = None,
        endpoint: Annotated[Text, Query(description="The request's endpoint, not a pattern.")] = None,
        reason: Text = None,
        shadow: Annotated[
            bool | None, Query(description="Only events of rules that do not enforce (true), or only refusals (false).")
        ] = None,
        since: Since = None,
        until: Until = None,
        limit: Annotated[
            int | None, Query(ge=1, le=MAX_PAGE, description="Maximum number of events: 100 by default; for CSV, all.")
        ] = None,
        after: Annotated[
            str | None, Query(pattern=_AFTER, description="The cursor: `next` of the previous page.")
        ] = None,
        format: Format = None,  # noqa: A002 - the parameter's public name
        accept: Accept = "",
    ) -> Response:
        """List requests that were refused, or that were allowed although over the limit of a shadow or annotating rule.

        The latest first.

        As CSV (`Accept: text/csv` or `?format=csv`), returns all matching events in one response.
        """
        wanted = EventFilter(
            rule=rule,
            user=user,
            ip=ip,
            api_key=api_key,
            tenant=tenant,
            endpoint=endpoint,
            reason=reason,
            shadow=shadow,
            since_us=since,
            until_us=until,
        )
        begin = _cursor(after)
        if wants_csv(format, accept):
            # Read the first page now, so that an error still becomes a status.
            first = events.page(wanted, after=begin, max_items=limit or MAX_PAGE)
            named = {"Content-Disposition": 'attachment; filename="events.csv"', "Vary": "Accept"}
            lines = _csv_lines(events, wanted, first, whole=limit is None)
            return StreamingResponse(lines, media_type=f"{CSV}; charset=utf-8", headers=named)
        page = PageRequest(request, limit or PAGE, after)
        found = events.page(wanted, after=begin, max_items=page.max_items)
        response = page.response("events", found, lambda one: f"{one.at_us}-{one.id}", event_table)
        response.headers["Vary"] = "Accept"
        return response

    @router.get("/events/top", summary="List the subjects that hit rules most", responses={200: {"model": TopPage}})
    def top_events(
        since: Since = None,
        until: Until = None,
        by: Annotated[
            str,
            Query(
                min_length=1,
                max_length=1024,
                description="What to count by: `user`, `ip`, `api_key`, `tenant`; `subject`: each rule's dimension; "
                "`rule`: all subjects together; or the dimension of a rule.",
            ),
        ] = SUBJECT,
        rule: Annotated[Text, Query(description="Only this rule.")] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Maximum number of entries.")] = 20,
    ) -> Response:
        """List the subjects that hit rules most often, in the minutes that overlap the period. Exact even in floods."""
        who = {SUBJECT: None, RULE: ""}.get(by, by)
        found = events.top(by=who, rule=rule, since_us=since, until_us=until, max_items=limit)
        period = {"since": _time_or_none(since), "until": _time_or_none(until)}
        return JSONResponse({"by": by, **period, "top": [_top_table(one) for one in found]})

    return router


def _cursor(after: str | None) -> Cursor | None:
    if after is None:
        return None
    at_us, _, name = after.partition("-")
    return Cursor(int(at_us), name)


def wants_csv(format: str | None, accept: str) -> bool:  # noqa: A002
    """Return whether to answer with CSV: by the parameter `format`, else if the header `Accept` prefers it to JSON."""
    if format is not None:
        return format == "csv"
    liked = {"text/csv": 0.0, "application/json": 0.0}
    for part in accept.lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        if kind in liked:
            liked[kind] = quality
    return liked["text/csv"] > liked["application/json"]


def _csv_lines(events: Events, wanted: EventFilter, page: list[Event], *, whole: bool) -> Iterator[str]:
    """Yield the header, the events of a page and, if `whole`, the events of all later pages."""
    yield csv_text([COLUMNS])
    while page:
        yield csv_text(event_table(event).values() for event in page)
        last = page[-1]
        page = events.page(wanted, after=Cursor(last.at_us, last.id), max_items=MAX_PAGE) if whole else []


def event_table(event: Event) -> dict[str, Any]:
    table = event.as_table()
    return {name: table[name] for name in COLUMNS}


def _top_table(top: Top) -> dict[str, Any]:
    table = top._asdict() | {"events": top.events, "first": time_text(top.first_us), "last": time_text(top.last_us)}
    return {name: table[name] for name in TOP}


def _time_or_none(at_us: int | None) -> str | None:
    return None if at_us is None else time_text(at_us)
