"""`headgate changes`: lists and reverts changes."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headgate.cli.client import Json, ServiceClient
from headgate.cli.differences import lines_of
from headgate.cli.options import ADMIN, AsJson, calls_service
from headgate.cli.output import Cell, emit, local_time, on_terminal, say, show_table

CHANGES: Final = "/api/v1/changes"

app = typer.Typer(no_args_is_help=True, help="List and revert changes of rules, users and tokens.")


@app.command("list")
@calls_service(*ADMIN)
def list_changes(
    client: ServiceClient,
    kind: Annotated[
        str | None, typer.Option(help="Only this kind: rule, tier, exemption, settings, user or token.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="Only this id or name.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of entries.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List changes, the latest first."""
    found = list(client.pages(CHANGES, "changes", {"kind": kind, "subject": subject}, most=limit))
    if as_json:
        emit(found)
    elif found:
        show_table(("id", "version", "time", "by", "change"), map(_row, found))
    else:
        say("no changes")


@app.command()
@calls_service(*ADMIN)
def revert(
    client: ServiceClient,
    change_id: Annotated[
        int, typer.Argument(metavar="ID", min=1, help="Id of the change, from `headgate changes list`.")
    ],
    together: Annotated[
        bool, typer.Option("--together", help="Revert everything that the same transaction changed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation. Without a terminal, it never asks.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Revert a change. Shows what will change first."""
    path = f"{CHANGES}/{change_id}/revert"
    planned = client.post(path, params={"together": together, "dry_run": True})
    if not as_json:
        for text, style in lines_of(planned["changes"]):
            say(text, style)
    done = planned
    if planned["changes"] and not dry_run:
        if not yes and on_terminal():
            typer.confirm("Revert?", abort=True, err=True)
        done = client.post(path, params={"together": together})
        if not as_json:
            say(f"reverted: version {done['version']}")
    if as_json:
        emit(done)


def _row(change: Json) -> tuple[Cell, ...]:
    (line, _), *_ = lines_of([change])
    return (str(change["id"]), str(change["version"]), local_time(change["at"]), change["actor"], line)
