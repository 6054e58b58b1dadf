"""`headgate events`: lists refusals, and what shadow rules would have refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from headgate.cli.client import Json, ServiceClient
from headgate.cli.options import ADMIN, AsJson, calls_service
from headgate.cli.output import (
    Cell,
    duration,
    emit_lines,
    local_time,
    on_terminal,
    plain_table,
    printable_lines,
    show_list,
)
from headgate.cli.times import time_of

EVENTS: Final = "/api/v1/events"
COLUMNS: Final = ("time", "decision", "reason", "rule", "who", "endpoint", "cost", "limit", "retry after", "stands for")
USUALLY: Final = 50
MAX_CSV: Final = 1_000  # of a CSV with a limit
FOLLOW_SECONDS: Final = 1.0  # between polls
LATE_SECONDS: Final = 30.0  # after which a late event is missed: nodes write events some seconds late
MAX_NEW: Final = 1_000  # in one poll
_WHEN: Final = "A time, as in 2027-01-31T12:00, or how long ago, as in 1h."


@calls_service(*ADMIN)
def events(
    client: ServiceClient,
    rule: Annotated[str | None, typer.Option(help="Only this rule.")] = None,
    user: Annotated[str | None, typer.Option(help="Only this user.")] = None,
    ip: Annotated[str | None, typer.Option(help="Only this IP address.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="Only this endpoint.")] = None,
    reason: Annotated[str | None, typer.Option(help="Only this reason: over_limit, penalty, fail_closed …")] = None,
    shadow: Annotated[
        bool | None,
        typer.Option("--shadow/--no-shadow", help="Only events of rules that do not enforce, or only refusals."),
    ] = None,
    since: Annotated[str | None, typer.Option(help=f"Start of the period. {_WHEN}", metavar="WHEN")] = None,
    until: Annotated[str | None, typer.Option(help=f"End of the period, exclusive. {_WHEN}", metavar="WHEN")] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Maximum number of events. [default: {USUALLY}; with --csv, all]", show_default=False
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new events until Ctrl-C.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: AsJson = False,
) -> None:
    """List refused requests, and those over the limit of a shadow or an annotating rule; the latest first.

    With --json, one object on a line for each event.
    """
    now = datetime.now(UTC)
    wanted: dict[str, Any] = {
        **{"rule": rule, "user": user, "ip": ip, "tenant": tenant, "endpoint": endpoint, "reason": reason},
        "shadow": shadow,
        "since": None if since is None else time_of(since, "--since", now),
        "until": None if until is None else time_of(until, "--until", now),
    }
    if as_csv:
        if as_json or follow:
            raise typer.BadParameter("cannot be combined with --json or --follow", param_hint="--csv")
        if limit is not None and limit > MAX_CSV:
            message = f"must be at most {MAX_CSV:,} with --csv, or be left out for all of them"
            raise typer.BadParameter(message, param_hint="--limit")
        for chunk in client.chunks(EVENTS, {**wanted, "limit": limit, "format": "csv"}):
            typer.echo(printable_lines(chunk) if on_terminal() else chunk, nl=False)
    elif follow:
        if until is not None:
            raise typer.BadParameter("cannot be combined with --follow", param_hint="--until")
        _follow(client, wanted, limit or USUALLY, as_json)
    elif as_json:
        emit_lines(client.pages(EVENTS, "events", wanted, max_items=limit or USUALLY))
    else:
        found = client.pages(EVENTS, "events", wanted, max_items=limit or USUALLY)
        show_list(found, COLUMNS, row_of, "no events")


def row_of(event: Json) -> tuple[Cell, ...]:
    """Return an event as a table row."""
    who = " ".join(part for part in (event["dimension"], event["subject"]) if part)
    return (
        local_time(event["at"]),
        event["reason"] if event["allowed"] else "refused",
        event["reason"],
        event["rule"],
        who,
        " ".join(part for part in (event["method"], event["endpoint"]) if part),
        event["cost"],
        event["limit"],
        duration(event["retry_after"]),
        event["weight"],
    )


def _follow(client: ServiceClient, wanted: dict[str, Any], max_items: int, as_json: bool) -> None:
    """Print events as they arrive, oldest first, beginning with the latest existing ones."""
    for event in new_events(client, wanted, max_items):
        if as_json:
            typer.echo(json.dumps(event))
        else:
            _, line = plain_table(COLUMNS, [row_of(event)])
            typer.echo(line)


def new_events(client: ServiceClient, wanted: dict[str, Any], max_items: int) -> Iterator[Json]:
    """Yield events without end, each once: first the latest existing ones, then new ones.

    Events of one poll are in order of time. An event that was written late comes with a later poll.
    """
    since: str | None = wanted["since"]
    shown: int | None = max_items  # how many of those found; later all
    seen: dict[str, float] = {}
    while True:
        now = time.monotonic()
        found = list(client.pages(EVENTS, "events", wanted, max_items=max(max_items, MAX_NEW)))
        for event in reversed(found[:shown]):
            if event["id"] not in seen:
                yield event
        seen.update((event["id"], now) for event in found)
        seen = {name: at for name, at in seen.items() if now - at < LATE_SECONDS}
        lately = time_of(f"{LATE_SECONDS}s", "--since", datetime.now(UTC))
        wanted = {**wanted, "since": lately if since is None else max(since, lately, key=datetime.fromisoformat)}
        shown = None
        time.sleep(FOLLOW_SECONDS)
