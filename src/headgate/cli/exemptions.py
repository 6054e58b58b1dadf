"""`headgate exemptions`: clients that are never limited."""

from __future__ import annotations

from operator import itemgetter
from typing import Annotated, Final

import typer

from headgate.cli.client import ServiceClient
from headgate.cli.options import ADMIN, AsJson, calls_service
from headgate.cli.output import emit_or_say, show_list

EXEMPTIONS: Final = "/api/v1/exemptions"
Type = Annotated[str, typer.Argument(metavar="TYPE", help="ip, user, api_key or tenant.")]
Value = Annotated[str, typer.Argument(metavar="VALUE", help="The value; for ip, an address or a network.")]

app = typer.Typer(no_args_is_help=True, help="List, add and delete exemptions from all limits.")


@app.command("list")
@calls_service(*ADMIN)
def list_exemptions(client: ServiceClient, as_json: AsJson = False) -> None:
    """List exemptions."""
    found = client.pages(EXEMPTIONS, "exemptions")
    show_list(found, ("type", "value"), itemgetter("type", "value"), "no exemptions", as_json=as_json)


@app.command()
@calls_service(*ADMIN)
def add(client: ServiceClient, kind: Type, value: Value, as_json: AsJson = False) -> None:
    """Add an exemption: its requests are never limited."""
    made = client.post(EXEMPTIONS, {"type": kind, "value": value})
    emit_or_say(made, f"exempt: {kind} {value}", as_json=as_json)


@app.command()
@calls_service(*ADMIN)
def delete(client: ServiceClient, kind: Type, value: Value, as_json: AsJson = False) -> None:
    """Delete an exemption."""
    exemption = {"type": kind, "value": value}
    client.delete(EXEMPTIONS, exemption)
    emit_or_say(exemption, f"deleted: exemption of {kind} {value}", as_json=as_json)
