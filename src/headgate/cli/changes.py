"""`headgate changes`: lists and reverts changes."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headgate.cli.client import Json, ServiceClient
from headgate.cli.differences import apply_planned, lines_of
from headgate.cli.options import ADMIN, AsJson, DryRun, Yes, calls_service
from headgate.cli.output import Cell, local_time, show_list

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
    found = client.pages(CHANGES, "changes", {"kind": kind, "subject": subject}, max_items=limit)
    show_list(found, ("id", "version", "time", "by", "change"), _row, "no changes", as_json=as_json)


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
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Revert a change. Shows what will change first."""
    path = f"{CHANGES}/{change_id}/revert"
    planned = client.post(path, params={"together": together, "dry_run": True})
    apply_planned(
        planned,
        lambda: client.post(path, params={"together": together}),
        words=("Revert?", "reverted"),
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


def _row(change: Json) -> tuple[Cell, ...]:
    (line, _), *_ = lines_of([change])
    return (str(change["id"]), str(change["version"]), local_time(change["at"]), change["actor"], line)
