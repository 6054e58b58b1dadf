"""`headgate top`: a live view of the busiest rules, and of the clients that hit limits most."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from headgate.cli.client import Json, ServiceClient
from headgate.cli.keys import KeyboardReader
from headgate.cli.options import ADMIN, AsJson, calls_service
from headgate.cli.output import (
    Cell,
    CommandFault,
    duration,
    emit,
    emit_lines,
    printable,
    say,
    show_list,
    show_table,
    table,
)
from headgate.cli.rates import Rate, RuleKey, Tally, node_of, rates, tallies_of
from headgate.cli.times import seconds_of, time_of

SUBJECTS_SECONDS: Final = 5.0  # between queries for subjects, which cost the database some work
MAX_SUBJECTS: Final = 20
RULE_COLUMNS: Final = ("rule", "checks/s", "allowed/s", "refused/s", "shadow/s", "checks")
SUBJECT_COLUMNS: Final = ("who", "rule", "refused", "shadow")
NO_RULE: Final = {"no_rule": "(no rule applies)", "exempt": "(exempt)"}  # by reason: checks without a rule


class View(NamedTuple):
    """One update of the screen."""

    server: str
    node: str  # the node with these rates; empty if unknown
    rates: list[Rate]
    subjects: list[Json]  # of all nodes
    period: float  # of the subjects, in seconds
    fault: str = ""  # why there is no new data
    hidden: str = ""  # why subjects cannot be shown


class Watch:
    """Polls a service."""

    def __init__(self, client: ServiceClient, period: float, *, now: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._period = period
        self._now = now
        self._last: tuple[float, str, dict[RuleKey, Tally]] | None = None  # time, node and counts
        self._subjects: tuple[float, list[Json], str] | None = None  # time, subjects, and why they cannot be shown
        self._view = View(client.server, "", [], [], self._period)

    def look(self) -> View:
        """Return the current view, with rates since the last one. Raises `CommandFault` if no service answers."""
        try:
            page = self._client.text("/metrics")
            node, counted = node_of(page), tallies_of(page)
        except ValueError as error:
            raise CommandFault(f"{self._client.server}/metrics is not a page of metrics") from error
        now = self._now()
        then, last, before = self._last or (now - 1, node, counted)
        self._last = now, node, counted
        subjects, hidden = self._top(now)
        server = self._client.server
        if node != last:  # counts of different nodes cannot be subtracted
            fault = f"{server} is several nodes, {last} and {node} among them: name one of them with --server"
            return View(server, node, [], subjects, self._period, fault=fault, hidden=hidden)
        found = rates(before, counted, max(now - then, 1e-3))
        return View(server, node, found, subjects, self._period, hidden=hidden)

    def look_again(self) -> View:
        """Return the current view, or the last one with the error if no service answers."""
        try:
            self._view = self.look()
        except CommandFault as fault:
            self._last = self._subjects = None
            self._view = self._view._replace(fault=str(fault).partition("\n")[0])
        return self._view

    def _top(self, now: float) -> tuple[list[Json], str]:
        if self._subjects is None or now - self._subjects[0] >= SUBJECTS_SECONDS:
            since = time_of(f"{self._period:g}s", "--period", datetime.now(UTC))
            try:
                page = self._client.get("/api/v1/events/top", {"since": since, "limit": MAX_SUBJECTS})
                self._subjects = now, page["top"], ""
            except CommandFault as fault:  # only this part needs a token
                self._subjects = now, [], str(fault).partition("\n")[0]
        return self._subjects[1:]


@calls_service(*ADMIN)
def top(
    client: ServiceClient,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit; the default without a terminal.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between updates.")] = 1.0,
    period: Annotated[
        str, typer.Option(help="Period for the list of clients that hit limits, such as 15m.", metavar="DURATION")
    ] = "1h",
    as_json: AsJson = False,
) -> None:
    """Show the busiest rules and the clients that hit limits most, live. Press q to quit.

    With --json, prints one object on a line for each update.
    """
    watch = Watch(client, seconds_of(period, "--period"))
    console = Console(highlight=False)
    if once or not (as_json or console.is_terminal):
        watch.look()
        time.sleep(interval)
        view = watch.look()
        emit(as_data(view)) if as_json else _print(view)
        return
    try:
        if as_json:
            _stream(watch, interval)
        else:
            _live(watch, interval, console)
    except KeyboardInterrupt:
        pass  # the usual way to quit


def as_data(view: View) -> dict[str, Any]:
    """Return a view as data for JSON."""
    return {
        "server": view.server,
        "node": view.node or None,
        "period": f"{view.period:g}s",
        "rules": [
            {
                "rule": rate.rule or None,
                "reason": rate.reason or None,
                **{f"{name}_per_second": getattr(rate, name) for name in ("checks", "allowed", "refused", "shadow")},
                "checks": rate.total,
            }
            for rate in view.rates
        ],
        "subjects": view.subjects,
        "fault": view.fault or view.hidden or None,
    }


def screen(view: View, height: int) -> RenderableType:
    """Return a view for a terminal with `height` lines."""
    room = max(3, (height - 12) // 2)
    parts: list[RenderableType] = [_head(view), Text()]
    if view.rates:
        parts.append(table(RULE_COLUMNS, map(_rule_row, view.rates[:room])))
    else:
        parts.append(Text("no checks yet", "dim"))
    if view.subjects:
        rows = map(_subject_row, view.subjects[:room])
        parts.append(table(SUBJECT_COLUMNS, rows, title=f"hits limits most, {_whose_subjects(view)}"))
    elif view.hidden:
        parts.append(Text(f"\nclients that hit limits cannot be shown: {printable(view.hidden)}", "yellow"))
    elif view.rates:
        parts.append(Text("\nnobody has hit a limit lately", "dim"))
    parts.append(Text("\nq: quit", "dim"))
    return Group(*parts)


def _head(view: View) -> Text:
    if view.fault:
        return Text(f"trying again: {printable(view.fault)}", "bold red")
    allowed = sum(rate.allowed + rate.shadow for rate in view.rates)
    refused = sum(rate.refused for rate in view.rates)
    return Text.assemble(
        (_whose_rates(view), "bold"),
        f"  {allowed + refused:,.1f} checks/s  ",
        (f"{allowed:,.1f} allowed/s  ", "green"),
        (f"{refused:,.1f} refused/s", "red"),
    )


def _whose_rates(view: View) -> str:
    """Return which processes the rates cover."""
    return f"node {printable(view.node)} alone ({view.server})" if view.node else f"{view.server} alone"


def _whose_subjects(view: View) -> str:
    return f"on all nodes, in the last {duration(view.period)}"


def _print(view: View) -> None:
    if view.fault:
        typer.echo(f"headgate: {printable(view.fault)}", err=True)
    say(f"rates: {_whose_rates(view)}")
    show_list(view.rates, RULE_COLUMNS, _rule_row, "no checks yet")
    if view.subjects:
        say("")
        say(f"who hits limits: {_whose_subjects(view)}")
        show_table(SUBJECT_COLUMNS, map(_subject_row, view.subjects))
    elif view.hidden:
        typer.echo(f"headgate: clients that hit limits cannot be shown: {printable(view.hidden)}", err=True)


def _live(watch: Watch, interval: float, console: Console) -> None:
    view = watch.look_again()
    with (
        KeyboardReader() as keys,
        Live(screen(view, console.height), console=console, screen=True, auto_refresh=False) as live,
    ):
        while not keys.wait(interval, "qQ"):
            live.update(screen(watch.look_again(), console.height), refresh=True)


def _stream(watch: Watch, interval: float) -> None:
    watch.look_again()
    while True:
        time.sleep(interval)
        emit_lines([as_data(watch.look_again())])


def _rule_row(rate: Rate) -> tuple[Cell, ...]:
    name = rate.rule or NO_RULE.get(rate.reason, "(no rule)")
    return (name, rate.checks, rate.allowed, rate.refused, rate.shadow, rate.total)


def _subject_row(one: Json) -> tuple[Cell, ...]:
    who = " ".join(part for part in (one["dimension"], one["subject"]) if part)
    return (who, one["rule"], one["refused"], one["shadow"])
