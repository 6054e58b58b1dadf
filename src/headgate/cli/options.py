"""Options that several commands share, and the client built from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final

import typer

from headgate.cli.client import ServiceClient, find_token
from headgate.cli.output import CommandFault
from headgate.settings import DEFAULT_SERVER, ClientSettings, read_secret, variable

ADMIN: Final = ("admin_token",)  # the settings with the token to use
DATA: Final = ("data_token", "admin_token")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation. Without a terminal, it never asks.")
]
_PANEL: Final = "Service"
_EXISTING: Final[dict[str, Any]] = {"exists": True, "dir_okay": False, "rich_help_panel": _PANEL}

_CONNECTION: Final[dict[str, Any]] = {
    "server": Annotated[
        str | None,
        typer.Option(
            help=f"URL of the service. [default: HEADGATE_SERVER, then {DEFAULT_SERVER}]",
            metavar="URL",
            rich_help_panel=_PANEL,
        ),
    ],
    "token": Annotated[
        str | None,
        typer.Option(
            help="Bearer token; a file is safer. [default: HEADGATE_ADMIN_TOKEN (checks: HEADGATE_DATA_TOKEN first), "
            "then the token in the data directory of a local service]",
            metavar="TOKEN",
            rich_help_panel=_PANEL,
        ),
    ],
    "token_file": Annotated[
        Path | None,
        typer.Option(help="File that holds the token. Safer than --token, which other users can see.", **_EXISTING),
    ],
    "ca": Annotated[Path | None, typer.Option(help="File of CA certificates to trust.", **_EXISTING)],
    "certificate": Annotated[Path | None, typer.Option(help="File of the client certificate.", **_EXISTING)],
    "key": Annotated[Path | None, typer.Option(help="File of the client key, if it is separate.", **_EXISTING)],
}


def optional_parameters(types: Mapping[str, Any]) -> list[inspect.Parameter]:
    """Return keyword parameters of a command by name and type; each is None if its option is absent."""
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in types.items()
    ]


def set_parameters(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> None:
    """Let Typer see these parameters in place of a command's `**options`."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}


def calls_service(*tokens: str) -> Callable[[Callable[Concatenate[ServiceClient, ...], None]], Callable[..., None]]:
    """Decorate a command that takes a client, and add the options that the client needs.

    `tokens` are the settings whose token is sent, in order.
    """

    def decorate(command: Callable[Concatenate[ServiceClient, ...], None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()

        @wraps(command)
        def run(**options: Any) -> None:
            connection = {name: options.pop(name) for name in _CONNECTION}
            with connect(tokens, **connection) as client:
                command(client, **options)

        set_parameters(run, [*own, *optional_parameters(_CONNECTION)])
        return run

    return decorate


def connect(
    tokens: tuple[str, ...], *, server: str | None, token: str | None, token_file: Path | None, **files: Path | None
) -> ServiceClient:
    """Return a client from the options, and from the settings for options that are not given."""
    settings = ClientSettings()
    if token_file is not None:
        if token is not None:
            raise typer.BadParameter("give only one of the two", param_hint="--token and --token-file")
        try:
            token = read_secret(token_file)
        except ValueError as error:
            raise CommandFault(f"--token-file: {token_file}: {error}") from error
    server = server or settings.server
    found = find_token(token, server, tokens, settings)
    return ServiceClient(server, token=found, variables=" or ".join(map(variable, tokens)), **files)
