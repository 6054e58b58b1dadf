"""Route of usage: what rules allowed and refused in the past, as JSON and as CSV."""

# No `from __future__ import annotations`: FastAPI reads the annotations of routes.

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.params import Depends as Dependency
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from headgate.db.records import time_text
from headgate.db.usage import ALL, UsageHistory
from headgate.operations.history import period, usage_table
from headgate.operations.spreadsheet import csv_text
from headgate.service.admin.events import CSV, Accept, Format, Since, Until, wants_csv
from headgate.service.admin.models import with_example
from headgate.service.admin.pages import Text, storable

POINT: Final[dict[str, Any]] = {
    "at": "2026-11-01T09:00:00+00:00",
    "allowed": 5812,
    "refused": 31,
    "shadow": 0,
    "delayed": 0,
    "failure_mode": 0,
    "cost": 5812,
    "p50": 0.00021,
    "p99": 0.0019,
}


class UsagePoint(BaseModel):
    """A rule's counts in one step of time."""

    model_config = with_example(POINT)

    at: str = Field(description="Start of the step.")
    allowed: int
    refused: int = Field(description="By this rule.")
    shadow: int = Field(description="Allowed, but a shadow rule would have refused.")
    delayed: int = Field(description="How many of the allowed were delayed.")
    failure_mode: int = Field(description="How many of all a failure mode decided, because the store failed.")
    cost: int = Field(description="Total cost of the allowed checks.")
    p50: float | None = Field(description="Median seconds of a check; null if none was timed.")
    p99: float | None


class UsagePage(BaseModel):
    model_config = with_example(
        {
            "rule": "search-free",
            "since": POINT["at"],
            "until": "2026-11-01T10:00:00+00:00",
            "step": 60,
            "usage": [POINT],
        }
    )

    rule: str | None
    since: str
    until: str
    step: int = Field(description="Seconds.")
    usage: list[UsagePoint]


def usage_router(history: UsageHistory, now_us: Callable[[], int], require: Dependency) -> APIRouter:
    """Return the route, relative to /api/v1. `require` is the dependency on the scope `events`."""
    router = APIRouter(tags=["Events"], dependencies=[require])

    @router.get(
        "/usage",
        summary="What was allowed and refused in the past",
        responses={200: {"model": UsagePage, "content": {CSV: {"schema": {"type": "string"}}}}},
    )
    def get_usage(
        rule: Annotated[
            Text,
            Query(
                description="Only checks that this rule applied to. `(other)`: checks of rules that are not counted "
                "separately. `(no rule)`: checks that no rule applied to."
            ),
        ] = None,
        since: Since = None,
        until: Until = None,
        step: Annotated[
            str | None,
            Query(
                max_length=20, description="`1m`, `15m`, `1h`, `1d`, or seconds; by default it depends on the range."
            ),
        ] = None,
        format: Format = None,  # noqa: A002 - the parameter's public name
        accept: Accept = "",
    ) -> Response:
        """Return how many checks were allowed and refused in each step; empty steps are left out. The default period is
        the last hour. Without `rule`, counts all checks, each once. A minute's counts appear about ten seconds after
        it ends. By default, minutes are kept for 30 days and hours for a year.
        """
        storable("rule", rule)
        wanted = period(now_us(), since_us=since, until_us=until, step=step)
        found = [usage_table(one) for one in history.series([rule or ALL], **wanted._asdict())]
        if wants_csv(format, accept):
            rows = [POINT, *(one.values() for one in found)]
            headers = {"Content-Disposition": 'attachment; filename="usage.csv"', "Vary": "Accept"}
            return Response(csv_text(rows), media_type=f"{CSV}; charset=utf-8", headers=headers)
        times = {"since": time_text(wanted.since_us), "until": time_text(wanted.until_us)}
        return JSONResponse({"rule": rule, **times, "step": wanted.step, "usage": found}, headers={"Vary": "Accept"})

    return router
