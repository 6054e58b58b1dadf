"""`headgate exemptions`: clients that are never limited."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headgate.cli.client import ServiceClient
from headgate.cli.options import ADMIN, AsJson, calls_service
from headgate.cli.output import emit, say, show_table

EXEMPTIONS: Final = "/api/v1/exemptions"
Type = Annotated[str, typer.Argument(metavar="TYPE", help="ip, user, api_key or tenant.")]
Value = Annotated[str, typer.Argument(metavar="VALUE", help="The value; for ip, an address or a network.")]

app = typer.Typer(no_args_is_help=True, help="List, add and delete exemptions from all limits.")


@app.command("list")
@calls_service(*ADMIN)
def list_exemptions(client: ServiceClient, as_json: AsJson = False) -> None:
    """List exemptions."""
    found = list(client.pages(EXEMPTIONS, "exemptions"))
    if as_json:
        emit(found)
    elif found:
        show_table(("type", "value"), [(one["type"], one["value"]) for one in found])
    else:
        say("no exemptions")


@app.command()
@calls_service(*ADMIN)
def add(client: ServiceClient, kind: Type, value: Value, as_json: AsJson = False) -> None:
    """Add an exemption: its requests are never limited."""
    made = client.post(EXEMPTIONS, {"type": kind, "value": value})
    if as_json:
        emit(made)
    else:
        say(f"exempt: {kind} {value}")


@app.command()
@calls_service(*ADMIN)
def delete(client: ServiceClient, kind: Type, value: Value, as_json: AsJson = False) -> None:
    """Delete an exemption."""
    client.delete(EXEMPTIONS, {"type": kind, "value": value})
    if as_json:
        emit({"type": kind, "value": value})
    else:
        say(f"deleted: exemption of {kind} {value}")
