"""All commands of `headgate`."""

from __future__ import annotations

import platform
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headgate._version import __version__
from headgate.cli import changes, exemptions, overrides, rules, tokens, users
from headgate.cli.check import check, peek, reset
from headgate.cli.events import events
from headgate.cli.explain import explain
from headgate.cli.options import AsJson
from headgate.cli.output import emit_or_say, report_faults
from headgate.cli.replay import replay_logs
from headgate.cli.serve import serve
from headgate.cli.top import top


class _Commands(TyperGroup):
    """Reports every fault as lines on stderr."""

    def invoke(self, ctx: Any) -> Any:
        with report_faults():
            return super().invoke(ctx)


app = typer.Typer(
    name="headgate",
    cls=_Commands,
    help="Headgate, a distributed rate limiter: run the service, make checks, manage rules.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(wanted: bool) -> None:
    """Print the version and exit, for `headgate --version`."""
    if wanted:
        version()
        raise typer.Exit


def version(as_json: AsJson = False) -> None:
    """Print the versions of Headgate and Python."""
    python = platform.python_version()
    emit_or_say(
        {"headgate": __version__, "python": python}, f"headgate {__version__} (Python {python})", as_json=as_json
    )


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Headgate, a distributed rate limiter: run the service, make checks, manage rules."""


for command in (serve, check, peek, reset):
    app.command()(command)
app.command()(explain)
app.command("replay")(replay_logs)
app.add_typer(rules.app, name="rules")
app.add_typer(users.app, name="users")
app.add_typer(overrides.app, name="overrides")
app.add_typer(exemptions.app, name="exemptions")
app.add_typer(changes.app, name="changes")
app.add_typer(tokens.app, name="token")
for command in (events, top, version):
    app.command()(command)
