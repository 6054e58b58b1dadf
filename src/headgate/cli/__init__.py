"""The command line: `headgate --help`."""

from __future__ import annotations

import typer

from headgate.cli import check, events, rules, tokens, top, version

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="Headgate, a distributed rate limiter.")
app.command()(check.check)
app.command()(check.peek)
app.command()(check.reset)
app.add_typer(rules.app, name="rules")
app.add_typer(tokens.app, name="token")
app.command()(events.events)
app.command()(top.top)
app.command()(version.version)


def main() -> None:
    """Run it."""
    app()
