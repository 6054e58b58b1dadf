"""`headgate users`: users' tiers, singly or in batches."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import typer

from headgate.cli.client import InvalidRules, Json, ServiceClient
from headgate.cli.options import ADMIN, AsJson, calls_service
from headgate.cli.output import (
    Cell,
    CommandFault,
    duration,
    emit,
    emit_or_say,
    local_time,
    read_file,
    say,
    show_list,
)
from headgate.core.cost import REQUESTS

USERS: Final = "/api/v1/users"
STDIN: Final = "-"
UserId = Annotated[str, typer.Argument(metavar="USER", help="The user's id.")]

app = typer.Typer(no_args_is_help=True, help="List and change users that have a tier, an anchor or overrides.")


@app.command("list")
@calls_service(*ADMIN)
def list_users(
    client: ServiceClient,
    tier: Annotated[str | None, typer.Option(help="Only users on this tier.")] = None,
    as_json: AsJson = False,
) -> None:
    """List users that have a tier, an anchor or overrides."""
    users, empty = client.pages(USERS, "users", {"tier": tier}), "no users with a tier, an anchor or overrides"
    show_list(users, ("user", "tier", "anchor", "overrides"), _row, empty, as_json=as_json)


@app.command()
@calls_service(*ADMIN)
def show(client: ServiceClient, user: UserId, as_json: AsJson = False) -> None:
    """Show a user's tier, anchor, overrides, and what is left of each limit. Charges nothing."""
    path = f"{_path(user)}/limits"
    page = client.get(path)
    page["limits"] = list(client.pages(path, "limits"))
    page.pop("next", None)
    if as_json:
        emit(page)
        return
    own = "" if page["own_tier"] else ", the default"
    say(f"tier: {page['tier'] or 'none'}{own}{'; exempt: never limited' if page['exempt'] else ''}")
    if page["anchor"] is not None:
        say(f"anchor: {page['anchor']}")
    for one in page["overrides"]:
        until = f" until {local_time(one['expires'])}" if one.get("expires") else ""
        say(f"override of {one['rule']}: limit {one['limit']:,}{until}{', expired' if one['expired'] else ''}")
    columns = ("rule", "quota", "by", "remaining", "reset", "retry after")
    show_list(page["limits"], columns, _limit_row, "no rule counts by user")


@app.command("set")
@calls_service(*ADMIN)
def set_tier(
    client: ServiceClient,
    user: UserId,
    tier: Annotated[str | None, typer.Option(help="The user's new tier.")] = None,
    default: Annotated[bool, typer.Option("--default", help="Remove the user's own tier.")] = False,
    anchor: Annotated[
        str | None,
        typer.Option(help="Where the user's calendar periods begin: a day of the month (1 to 31), or a weekday."),
    ] = None,
    no_anchor: Annotated[bool, typer.Option("--no-anchor", help="Remove the user's own anchor.")] = False,
    as_json: AsJson = False,
) -> None:
    """Set a user's tier or anchor, or with --default and --no-anchor remove them."""
    if tier is not None and default:
        raise typer.BadParameter("give one of the two", param_hint="--tier and --default")
    if anchor is not None and no_anchor:
        raise typer.BadParameter("give one of the two", param_hint="--anchor and --no-anchor")
    table: Json = {}
    if tier is not None or default:
        table["tier"] = tier
    if anchor is not None or no_anchor:
        table["anchor"] = int(anchor) if anchor is not None and anchor.isdecimal() else anchor
    if not table:
        raise typer.BadParameter("give at least one", param_hint="--tier, --default, --anchor and --no-anchor")
    changed = client.put(f"{_path(user)}/tier", table)
    said = [f"tier {tier}" if tier else "the default tier"] if "tier" in table else []
    said += ["no anchor" if no_anchor else f"anchor {anchor}"] if "anchor" in table else []
    emit_or_say(changed, f"{user}: {', '.join(said)}", as_json=as_json)


@app.command()
@calls_service(*ADMIN)
def delete(client: ServiceClient, user: UserId, as_json: AsJson = False) -> None:
    """Delete a user's tier, anchor and all of their overrides."""
    client.delete(_path(user))
    emit_or_say({"id": user}, f"deleted: {user}", as_json=as_json)


@app.command()
@calls_service(*ADMIN)
def apply(
    client: ServiceClient,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A JSON or .toml file; - reads JSON from stdin.")],
    as_json: AsJson = False,
) -> None:
    """Change at most 10,000 users and overrides in one transaction, all or nothing.

    The file has `users`, as a rules file does: each becomes what it says, and one without tier, anchor and
    overrides is deleted. It may have `overrides`, each with a `user`, which leave the rest of that user as it is.
    """
    try:
        done = client.put(f"{USERS}:batch", _batch(file))
    except InvalidRules as error:
        raise error.of_file(file) from None
    counts = ", ".join(f"{done[name]:,} {name}" for name in ("created", "updated", "deleted", "unchanged"))
    emit_or_say(done, f"applied: {counts}", as_json=as_json)


def _batch(file: str) -> Json:
    """Return the content of a file. Raises `CommandFault`."""
    content = sys.stdin.buffer.read() if file == STDIN else read_file(Path(file))
    kind = "TOML" if file.endswith(".toml") else "JSON"
    try:
        data = tomllib.loads(content.decode()) if kind == "TOML" else json.loads(content)
        data = json.loads(json.dumps(data, default=lambda time: time.isoformat()))  # JSON has no times, TOML does
    except (ValueError, AttributeError) as error:
        raise CommandFault(f"{file}: is not {kind}: {error}", code=1) from error
    if not isinstance(data, dict):
        raise CommandFault(f"{file}: must be an object with users or overrides", code=1)
    return data


def _path(user: str) -> str:
    return f"{USERS}/{quote(user, safe='')}"


def _row(user: Json) -> tuple[Cell, ...]:
    overrides = " ".join(f"{one['rule']}={one['limit']}" for one in user["overrides"])
    return (user["id"], user["tier"], user.get("anchor"), overrides)


def _quota_text(limit: Json) -> str:
    unit = limit.get("unit", REQUESTS)
    return f"{limit['quota']['notation']}{'' if unit == REQUESTS else f' ({unit})'}"


def _limit_row(limit: Json) -> tuple[Cell, ...]:
    figures = limit["figures"] or {}
    remaining = figures.get("remaining")
    return (
        limit["rule"],
        _quota_text(limit) + (" (override)" if limit["overridden"] else ""),
        limit["dimension"],
        "depends on the request" if remaining is None else f"{remaining:,}",
        duration(figures["reset_after"]) if figures else None,
        duration(figures["retry_after"]) if figures and not figures["allowed"] else None,
    )
