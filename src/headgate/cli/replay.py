"""`headgate replay`: shows what rules would have done to the requests of access logs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from headgate.cli import INTERRUPTED
from headgate.cli.options import AsJson
from headgate.cli.output import CommandFault, emit, say, write_file
from headgate.cli.replay_report import show_report
from headgate.core.quota import MICROSECONDS, duration_us
from headgate.errors import InvalidQuota
from headgate.replay.fields import parse_fields
from headgate.replay.formats import FORMATS
from headgate.replay.log import DEFAULT_SORT_WINDOW_US, Log, OnProgress
from headgate.replay.replay import missing_facts, replay, units_by_rule, wanted_facts
from headgate.replay.report import Report
from headgate.replay.suggestion import SuggestionTarget, parse_target, suggest
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources.file import load

_LOG_PANEL: Final = "Log"
_SUGGEST_PANEL: Final = "Suggestion"

Logs = Annotated[
    list[str],
    typer.Argument(help="Access logs, plain, gzip or zstd; - is standard input.", metavar="LOG...", show_default=False),
]
FormatName = Annotated[
    str | None,
    typer.Option(
        "--format",
        help=f"Format of the log, if it cannot be detected: {', '.join(FORMATS)}.",
        metavar="NAME",
        rich_help_panel=_LOG_PANEL,
    ),
]
FieldTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--fields",
        help="Where facts are: ip=$1, user=json:jwt.sub, tenant=header:X-Tenant, tenant=column:Tenant; costs: cost=$9, "
        "cost.tokens=json:usage.total_tokens. Repeatable.",
        metavar="NAME=WHERE,...",
        rich_help_panel=_LOG_PANEL,
    ),
]
SortWindow = Annotated[
    str,
    typer.Option(
        help="Sort lines that are out of order by up to this; skip others.", metavar="TIME", rich_help_panel=_LOG_PANEL
    ),
]


def replay_logs(
    logs: Logs,
    rules: Annotated[Path, typer.Option(help="The rules file to try.", metavar="FILE", show_default=False)],
    against: Annotated[
        Path | None, typer.Option(help="The rules file to compare with, usually the current one.", metavar="FILE")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write the report as one HTML page.", metavar="FILE", show_default=False)
    ] = None,
    suggest_rule: Annotated[
        str | None,
        typer.Option(
            "--suggest",
            help="Find the smallest limit for this rule that refuses at most --refuse-at-most.",
            metavar="RULE",
            rich_help_panel=_SUGGEST_PANEL,
        ),
    ] = None,
    refuse_at_most: Annotated[
        str,
        typer.Option(
            help="A share of the requests that the rule applies to, or of its subjects: 0.1%, '1% of subjects'.",
            metavar="SHARE",
            rich_help_panel=_SUGGEST_PANEL,
        ),
    ] = "0.1%",
    format_name: FormatName = None,
    fields: FieldTexts = None,
    sort_window: SortWindow = "1h",
    as_json: AsJson = False,
) -> None:
    """Show what rules would have done to the requests in access logs, with the real engine and the log's times.

    Sends nothing anywhere. Ctrl-C ends it with a report of what was replayed so far, and exit code 130.
    """
    snapshot = load(rules)
    other = None if against is None else load(against)
    target = _target(snapshot, suggest_rule, refuse_at_most)
    if target is not None and "-" in logs:
        raise CommandFault("--suggest reads a log several times, but standard input can be read only once: name a file")
    report = replay_files(
        logs,
        snapshot,
        against=other,
        format_name=format_name,
        fields=fields,
        sort_window=sort_window,
        target=target,
        quiet=as_json,
    )
    if html is not None:
        from headgate.replay.html import html_report  # noqa: PLC0415 - other commands do not need it

        page = html_report(report, rules=rules.name, against=None if against is None else against.name)
        write_file(html, page)
    if as_json:
        emit(report.as_dict())
    else:
        show_report(report)
        if html is not None:
            say(f"written: {html}")
    if not report.complete or (target is not None and report.suggestion is None):
        raise typer.Exit(INTERRUPTED)


def replay_files(
    logs: list[str],
    snapshot: Snapshot,
    *,
    against: Snapshot | None,
    format_name: str | None = None,
    fields: list[str] | None = None,
    sort_window: str = "1h",
    target: SuggestionTarget | None = None,
    quiet: bool,
) -> Report:
    """Replay logs with a progress bar, and warn about facts that rules need and logs lack.

    Raises `InvalidLog` and `CommandFault`.
    """
    window_us = _window_us(sort_window)
    snapshots = [snapshot] if against is None else [snapshot, against]
    log = Log(
        logs,
        format_name=format_name,
        fields=parse_fields(fields or ()),
        wanted=wanted_facts(*snapshots),
        units=units_by_rule(*snapshots),
        sort_window_us=window_us,
    )
    for one in missing_facts(snapshot, log.facts):
        advice = "it is left out" if one["why"] == "concurrency" else f"use --fields {one['fact']}=…"
        _warn(f"rule {one['rule']} needs {one['fact']}: no field; {advice}")
    with _progress("replaying", quiet=quiet) as report_progress:
        report = replay(log, snapshot, against=against, progress=report_progress)
    if target is not None and report.complete:
        if not any(rule.requests for rule in report.rules if rule.id == target.rule.id):
            raise CommandFault(f"--suggest: rule {target.rule.id!r} applies to no request of the log")
        with _progress("trying limits", quiet=quiet) as report_progress, suppress(KeyboardInterrupt):
            report.suggestion = suggest(log, snapshot, target, progress=report_progress)
        if report.suggestion is None:
            _warn("stopped before a limit was found: the whole log was replayed, but there is no suggestion")
    return report


def _target(snapshot: Snapshot, rule: str | None, share: str) -> SuggestionTarget | None:
    if rule is None:
        return None
    try:
        return parse_target(snapshot, rule, share)
    except ValueError as error:
        raise CommandFault(str(error)) from error


def _window_us(text: str) -> int:
    if text == "0":
        return 0
    try:
        window_us = duration_us(float(text) if text.replace(".", "", 1).isdigit() else text)
    except InvalidQuota as error:
        raise CommandFault(f"--sort-window: {str(error).partition(': ')[2]}") from error
    if not 0 <= window_us <= 24 * DEFAULT_SORT_WINDOW_US:
        raise CommandFault(
            f"--sort-window: must be from 0 to {24 * DEFAULT_SORT_WINDOW_US // MICROSECONDS} seconds, got {text}"
        )
    return window_us


def _warn(text: str) -> None:
    Console(stderr=True, highlight=False).print(text, style="yellow", markup=False)


@contextmanager
def _progress(what: str, *, quiet: bool) -> Iterator[OnProgress | None]:
    """Show a progress bar with the rate and the time left on stderr, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]:,} requests"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, done=0, rate="")

        def report_progress(done: int, part: float | None) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            rate = f"{done / elapsed:,.0f}/s" if elapsed else ""
            bar.update(task, total=None if part is None else 1.0, completed=part or 0.0, done=done, rate=rate)

        yield report_progress
