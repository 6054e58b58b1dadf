"""`headgate rules list`, `validate`, `apply`, `diff`, `export` and `import`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import typer

from headgate.cli import INTERRUPTED, REFUSED
from headgate.cli.client import TOML, InvalidRules, Json, ServiceClient
from headgate.cli.differences import apply_planned, quota_of, show_changes
from headgate.cli.options import ADMIN, AsJson, DryRun, Yes, calls_service
from headgate.cli.output import (
    Cell,
    CommandFault,
    emit,
    printable,
    read_file,
    say,
    show_list,
    write_file,
)
from headgate.cli.replay import replay_files
from headgate.cli.replay_report import show_report
from headgate.errors import InvalidRule, Problem
from headgate.replay.report import Report
from headgate.rules.sources.document import parse_toml, snapshot_of
from headgate.rules.sources.file import load

RULESET = "/api/v1/ruleset"

RulesFile = Annotated[Path, typer.Argument(help="A rules file (TOML).", metavar="FILE")]

app = typer.Typer(no_args_is_help=True, help="List, check, change and export rules.")


@app.command("list")
@calls_service(*ADMIN)
def list_rules(client: ServiceClient, as_json: AsJson = False) -> None:
    """List the rules of a service."""
    rules, empty = client.pages("/api/v1/rules", "rules"), "no rules yet: add some with `headgate rules apply FILE`"
    columns = ("id", "quota", "dimension", "endpoints", "methods", "tiers", "action", "priority", "group", "enabled")
    show_list(rules, columns, _row, empty, as_json=as_json)


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(help="Rules files.", metavar="FILE...")], as_json: AsJson = False
) -> None:
    """Check rules files, without a service. Exit code 1: one is invalid; 2: one cannot be read."""
    problems: list[Problem] = []
    for file in files:
        read_file(file)  # first: an unreadable file is neither valid nor invalid
    for file in files:
        try:
            rules = load(file).rules
        except InvalidRule as error:
            problems += error.problems
            lines = list(map(str, error.problems))
        else:
            lines = [f"{file}: good: {len(rules):,} rule{'' if len(rules) == 1 else 's'}"]
        for line in [] if as_json else lines:
            say(line)
    if as_json:
        emit({"good": not problems, "problems": [problem._asdict() for problem in problems]})
    if problems:
        raise typer.Exit(REFUSED)


@app.command()
@calls_service(*ADMIN)
def apply(
    client: ServiceClient, file: RulesFile, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Replace a service's rules with those of a file, all or nothing. Shows what will change first.

    Rules, tiers and exemptions that the file does not have are deleted. Users that it lists are replaced; others stay,
    except for their overrides of deleted rules. To change users, the token needs the scope users, too.
    """
    content = read_file(file)
    planned = _put(client, file, content, dry_run=True)
    apply_planned(
        planned,
        # Only what was shown: if the rules have changed since, the user has to review them again.
        lambda: _put(client, file, content, version=planned["version"]),
        words=("Apply?", "applied"),
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


@app.command()
@calls_service(*ADMIN)
def diff(
    client: ServiceClient,
    file: RulesFile,
    replay: Annotated[
        list[str] | None,
        typer.Option(help="Also replay this access log under both rule sets; may be repeated.", metavar="LOG"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what `apply` would change. Exit code 0: nothing, 1: something, or the file is invalid.

    With --replay, also shows which requests of an access log would be decided differently.
    """
    planned = _put(client, file, read_file(file), dry_run=True)
    report = _replay(client, file, replay, quiet=as_json) if replay else None
    if as_json:
        emit(planned if report is None else {**planned, "replay": report.as_dict()})
    else:
        show_changes(planned["changes"])
        if report is not None:
            say("")
            show_report(report)
    if report is not None and not report.complete:
        raise typer.Exit(INTERRUPTED)
    if planned["changes"]:
        raise typer.Exit(REFUSED)


@app.command()
@calls_service(*ADMIN)
def export(
    client: ServiceClient,
    file: Annotated[Path | None, typer.Argument(help="File to write. [default: stdout]", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Print a service's rules as a rules file, without the users in its database."""
    document = client.text(RULESET, accept=TOML)
    if as_json:
        if file is not None:
            raise typer.BadParameter("prints to stdout: leave out the file", param_hint="--json")
        emit(tomllib.loads(document))
        return
    if file is None:
        typer.echo(document, nl=False)
        return
    write_file(file, document)
    say(f"written: {file}")


@app.command("import")
def import_rules(
    files: Annotated[list[Path], typer.Argument(help="Configuration files.", metavar="FILE...")],
    source: Annotated[
        str, typer.Option("--from", help="Source of the configuration: envoy-ratelimit.", show_default=False)
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Rules file to write. [default: stdout]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert another limiter's configuration to a rules file, without a service.

    Lists on stderr what has no equivalent. --from envoy-ratelimit reads YAML of envoyproxy/ratelimit.
    """
    if source != "envoy-ratelimit":
        raise typer.BadParameter(f"must be envoy-ratelimit, got {source!r}", param_hint="--from")
    from headgate.cli.envoy_ratelimit import import_envoy  # noqa: PLC0415 - other commands do not need it

    contents = {str(file): read_file(file) for file in files}
    text, report = import_envoy(contents)
    if as_json:
        emit({"rules": tomllib.loads(text), "report": report})
    elif output is None:
        typer.echo(text, nl=False)
    if output is not None:
        write_file(output, text)
    for line in [] if as_json else report:
        typer.echo(f"no equivalent: {printable(line)}", err=True)


def _replay(client: ServiceClient, file: Path, logs: list[str], *, quiet: bool) -> Report:
    """Replay logs under a file's rules and under the service's, without the users in its database."""
    try:
        current = snapshot_of(parse_toml(client.text(RULESET, accept=TOML).encode()), version="in force")
    except InvalidRule as error:
        raise CommandFault(f"the rules of {client.server} cannot be read: {error}") from error
    return replay_files(logs, load(file), against=current, quiet=quiet)


def _put(
    client: ServiceClient, file: Path, content: bytes, *, dry_run: bool = False, version: int | None = None
) -> Json:
    try:
        return client.put_toml(RULESET, content, {"dry_run": dry_run or None}, version=version)
    except InvalidRules as error:
        raise error.of_file(str(file)) from None


def _row(rule: Json) -> tuple[Cell, ...]:
    return (
        rule["id"],
        quota_of(rule),
        rule["dimension"],
        " ".join(rule["endpoints"]) or "all",
        " ".join(rule["methods"]) or "all",
        " ".join(rule["tiers"]) or "all",
        rule["action"],
        rule["priority"],
        rule.get("group"),
        rule["enabled"],
    )
