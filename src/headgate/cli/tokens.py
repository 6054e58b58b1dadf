"""`headgate token create`, `list` and `revoke`: tokens of the service's callers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import quote

import typer

from headgate.cli.client import Json, ServiceClient
from headgate.cli.options import ADMIN, AsJson, calls_service
from headgate.cli.output import Cell, emit, emit_or_say, local_time, say, show_list
from headgate.cli.times import seconds_of

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API tokens.")


@app.command()
@calls_service(*ADMIN)
def create(
    client: ServiceClient,
    name: Annotated[str, typer.Argument(help="Owner of the token, as shown in the change log.")],
    scope: Annotated[
        list[str],
        typer.Option(help="Scope: check, rules, users, events or tokens; may be repeated.", show_default=False),
    ],
    role: Annotated[str, typer.Option(help="Role: viewer, operator or admin.")] = "viewer",
    expires: Annotated[str, typer.Option(help="Lifetime, such as 12h or 30d.", metavar="DURATION")] = "90d",
    as_json: AsJson = False,
) -> None:
    """Create a token. It is printed once and cannot be shown again."""
    seconds = seconds_of(expires, "--expires")
    body = {"name": name, "role": role, "scopes": scope, "expires_in": seconds}
    made = client.post("/api/v1/tokens", body)
    if as_json:
        emit(made)
        return
    say(made["token"])
    note = f"token {made['id']} of {made['name']}: {made['role']}, for {', '.join(made['scopes'])}"
    typer.echo(f"{note}, until {local_time(made['expires'])}. Save it now: it is not shown again.", err=True)


@app.command("list")
@calls_service(*ADMIN)
def list_tokens(client: ServiceClient, as_json: AsJson = False) -> None:
    """List all tokens, without their secrets."""
    tokens = client.pages("/api/v1/tokens", "tokens")
    columns = ("id", "name", "role", "scopes", "state", "expires", "created", "by")
    show_list(tokens, columns, _row, "no tokens yet: create one with `headgate token create NAME`", as_json=as_json)


@app.command()
@calls_service(*ADMIN)
def revoke(
    client: ServiceClient,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the token, from `headgate token list`.")],
    as_json: AsJson = False,
) -> None:
    """Revoke a token. Every node rejects it within two seconds."""
    answer = client.delete(f"/api/v1/tokens/{quote(token_id, safe='')}")
    emit_or_say(answer or {"id": token_id}, f"revoked: {token_id}", as_json=as_json)


def state_of(token: Json, now: datetime) -> str:
    """Return the state of a token."""
    if token["revoked"] is not None:
        return "revoked"
    return "expired" if datetime.fromisoformat(token["expires"]) <= now else "good"


def _row(token: Json) -> tuple[Cell, ...]:
    return (
        token["id"],
        token["name"],
        token["role"],
        " ".join(token["scopes"]),
        state_of(token, datetime.now(UTC)),
        local_time(token["expires"]),
        local_time(token["created"]),
        token["created_by"],
    )
