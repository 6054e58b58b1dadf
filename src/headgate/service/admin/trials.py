"""Routes that explain decisions, and that try changed rules without applying them."""

# No `from __future__ import annotations`: FastAPI reads the annotations of routes.

from typing import Annotated, Any, Final

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from headgate.db.events import Events
from headgate.errors import InvalidRule, NotFound, Problem
from headgate.service.admin import models
from headgate.service.admin.bodies import JsonTable
from headgate.service.admin.context import Here, Who, needs
from headgate.service.admin.events import EventShown, event_table, moment
from headgate.service.admin.openapi_parts import body, problems

FACTS: Final[dict[str, Any]] = {"user": "alice", "endpoint": "/api/search", "method": "GET"}


class ExplainRequest(BaseModel):
    """Facts of a request, as for a check; `cost` is 1 by default, or an object of units."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"example": FACTS})

    __pydantic_extra__: dict[str, str | int]  # the facts

    cost: Annotated[int, Field(ge=0)] | dict[str, Annotated[int, Field(ge=0)]] | None = None


class DryRunRequest(BaseModel):
    """Rules to try, and what to try them on: `facts`, or the events from `since` until `until`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "anyOf": [{"required": [name]} for name in ("facts", "since", "until")],
            "example": {"rules": [{"id": "search-free", "limit": 200, "window": "1h"}], "facts": FACTS},
        },
    )

    ruleset: str | dict[str, Any] | None = Field(
        None, description="A whole rules file, as TOML or as its data, in place of all rules."
    )
    rules: list[models.Rule] | None = Field(
        None, description="Rules that replace those with the same ids, or new ones."
    )
    delete: list[str] | None = Field(None, description="Ids of rules to leave out.")
    facts: dict[str, Any] | None = Field(None, description="A request; `cost` may be among them.")
    since: str | float | None = Field(None, description="Events from this time on.")
    until: str | float | None = Field(None, description="Events before this time.")


def trials_router(events: Events) -> APIRouter:
    """Return the routes, relative to /api/v1."""
    router = APIRouter(tags=["Trials"])

    @router.post(
        "/explain",
        dependencies=[needs("users")],
        summary="Explain why a request would be allowed or refused",
        openapi_extra=body(ExplainRequest),
        responses={200: {"description": "The explanation"}, **problems(400, 413, 415)},
    )
    async def explain(here: Here, who: Who, table: JsonTable) -> Response:
        """Explain for each rule whether it applies and, if not, which condition failed or which rule of its group won;
        the state of its limit; the decision, and what would let the request pass. Charges nothing.
        """
        explanation = await here.operations.trials.explain(who, table)
        return JSONResponse(explanation.as_dict())

    @router.post(
        "/rules:dry-run",
        dependencies=[needs("rules")],
        summary="Try changed rules without applying them",
        openapi_extra=body(DryRunRequest),
        responses={200: {"description": "What they would decide"}, **problems(400, 404, 413, 415)},
    )
    async def dry_run_rules(here: Here, who: Who, table: JsonTable) -> Response:
        """Try changed rules. With `facts`: which rules would apply to the request, and what they would decide with the
        current counts. With `since` or `until`: how many recorded decisions of that period would change.
        """
        facts = table.pop("facts", None)
        times = {name: table.pop(name) for name in ("since", "until") if name in table}
        trials = here.operations.trials
        if facts is not None:
            if times:
                raise InvalidRule(Problem("the request", "facts", "cannot be combined with since or until"))
            return JSONResponse(await trials.try_facts(who, table, facts))
        if not times:
            raise InvalidRule(
                Problem("the request", "facts", "is missing: pass facts, or a period of events with since and until")
            )
        since_us, until_us = (_moment(name, times.get(name)) for name in ("since", "until"))
        return JSONResponse(await trials.try_events(who, table, events, since_us=since_us, until_us=until_us))

    @router.get(
        "/events/{event_id}",
        dependencies=[needs("events")],
        summary="Get an event by its decision's id",
        responses={200: {"model": EventShown}, **problems(404)},
    )
    def get_event(event_id: str) -> Response:
        """Return the refusal with this `decision_id`, and its facts. In a flood, not every refusal is kept."""
        found = events.get(event_id)
        if found is None:
            raise NotFound(
                f"there is no event {event_id[:64]!r}: it is too old, or a few seconds too new, or part of a flood, "
                "of which only some events are kept"
            )
        return JSONResponse(event_table(found))

    return router


def _moment(name: str, value: Any) -> int | None:
    """Return a time in microseconds. Raises `InvalidRule`."""
    if value is None:
        return None
    try:
        found = moment(value if isinstance(value, str) else str(value))
    except ValueError as error:
        raise InvalidRule(Problem("the request", name, str(error))) from None
    assert isinstance(found, int)
    return found
