"""`headgate overrides`: users' own limits for rules."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

from headgate.cli.client import Json, ServiceClient
from headgate.cli.differences import value_text
from headgate.cli.options import ADMIN, AsJson, calls_service
from headgate.cli.output import Cell, emit_or_say, local_time, show_list
from headgate.cli.times import seconds_of, time_of
from headgate.cli.users import UserId

RuleId = Annotated[str, typer.Argument(metavar="RULE", help="The rule's id.")]

app = typer.Typer(no_args_is_help=True, help="List, set and delete users' overrides of rules.")


@app.command("list")
@calls_service(*ADMIN)
def list_overrides(
    client: ServiceClient,
    user: Annotated[str | None, typer.Option(help="Only this user.")] = None,
    rule: Annotated[str | None, typer.Option(help="Only this rule.")] = None,
    expired: Annotated[
        bool | None, typer.Option("--expired/--active", help="Only expired overrides, or only active ones.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List overrides."""
    found = client.pages("/api/v1/overrides", "overrides", {"user": user, "rule": rule, "expired": expired})
    columns = ("user", "rule", "limit", "window", "burst", "expires", "expired")
    show_list(found, columns, _row, "no overrides", as_json=as_json)


@app.command("set")
@calls_service(*ADMIN)
def set_override(
    client: ServiceClient,
    user: UserId,
    rule: RuleId,
    limit: Annotated[int, typer.Option(min=1, help="The user's own limit.", show_default=False)],
    window: Annotated[str | None, typer.Option(help="The user's own window, such as 1h.", metavar="DURATION")] = None,
    burst: Annotated[int | None, typer.Option(min=1, help="The user's own burst.")] = None,
    expires: Annotated[
        str | None,
        typer.Option(help="Expiry: a time such as 2027-01-31T12:00, or a duration such as 30d.", metavar="WHEN"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set a user's override of a rule, replacing any existing one."""
    body: dict[str, Any] = {"rule": rule, "limit": limit}
    if window is not None:
        body["window"] = seconds_of(window, "--window")
    if burst is not None:
        body["burst"] = burst
    if expires is not None:
        body["expires"] = time_of(expires, "--expires", datetime.now(UTC), later=True)
    changed = client.post(f"/api/v1/users/{quote(user, safe='')}/override", body)
    emit_or_say(changed, f"{user}: limit {limit:,} for {rule}", as_json=as_json)


@app.command()
@calls_service(*ADMIN)
def delete(client: ServiceClient, user: UserId, rule: RuleId, as_json: AsJson = False) -> None:
    """Delete a user's override."""
    client.delete(f"/api/v1/users/{quote(user, safe='')}/override", {"rule": rule})
    emit_or_say({"user": user, "rule": rule}, f"deleted: {user}'s override of {rule}", as_json=as_json)


def _row(one: Json) -> tuple[Cell, ...]:
    window = one.get("window")
    figures = (one["limit"], None if window is None else value_text("window", window), one.get("burst"))
    return (one["user"], one["rule"], *figures, local_time(one.get("expires")) or "never", one["expired"])
