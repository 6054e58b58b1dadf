"""The report of `headgate replay` in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console

from headgate.cli.output import STYLES, Cell, duration, say, show_table
from headgate.replay.report import ComparisonReport, Report, SuggestionReport

BARS: Final = "▁▂▃▄▅▆▇█"
MAX_SPARKS: Final = 60  # columns of a line of bars
SHOWN: Final = 8  # points of a curve
BAR_COLUMNS: Final = 20
PARTS: Final = "▏▎▍▌▋▊▉"
_NOTES: Final = {"shadow": "  would be refused by rules that only log", "penalised": "  of the refused"}


def show_report(report: Report) -> None:
    """Print a report."""
    _show_summary(report)
    _show_rules(report)
    if report.top:
        say("")
        _show_top(report)
    if report.against is not None:
        say("")
        _show_comparison(report, report.against)
    if report.suggestion is not None:
        say("")
        _show_suggestion(report.suggestion)
    _show_remarks(report)


def bar(part: float) -> str:
    """Return a share of 1 as a bar, to an eighth of a column. A value above 0 is never empty."""
    eighths = max(1, round(part * 8 * BAR_COLUMNS)) if part > 0 else 0
    return "█" * (eighths // 8) + (PARTS[eighths % 8 - 1] if eighths % 8 else "")


def sparkline(values: Sequence[int], columns: int = MAX_SPARKS) -> str:
    """Return numbers as a line of at most `columns` bars. A value above 0 is never empty."""
    if len(values) > columns:
        size = -(-len(values) // columns)
        values = [sum(values[at : at + size]) for at in range(0, len(values), size)]
    highest = max(values, default=0)
    if highest == 0:
        return " " * len(values)
    return "".join(" " if value == 0 else BARS[min(7, value * 8 // (highest + 1))] for value in values)


def percent(share: float) -> str:
    """Return a share as text: `12.3 %`, `0.04 %`, `0 %`."""
    if share == 0:
        return "0 %"
    digits = 0 if share >= 0.9995 else 1 if share >= 0.01 else 2 if share >= 0.0001 else 4
    return f"{share * 100:.{digits}f} %"


def _part(some: int, whole: int) -> str:
    return percent(some / whole) if whole else "-"


def _show_summary(report: Report) -> None:
    names = ", ".join(f"{file['name']} ({file['format']})" for file in report.files)
    if not report.complete:
        say("stopped before the end of the log: this report covers what was replayed so far", STYLES["warning"])
    say(names)
    if report.first is not None and report.last is not None:
        say(f"{_short(report.first)} to {_short(report.last)} UTC")
    rate = f", {report.requests / report.seconds:,.0f} a second" if report.seconds > 0 else ""
    say(f"{report.requests:,} requests replayed in {duration(report.seconds)}{rate}")
    say("")
    counts = [
        ("allowed", report.allowed),
        ("refused", report.refused),
        ("delayed", report.delayed),
        ("shadow", report.shadow),
        ("penalised", report.penalised),
        ("exempt", report.exempt),
        ("no rule", report.unmatched),
    ]
    for name, count in counts:
        if count or name in ("allowed", "refused"):
            say(
                f"  {name:<10}{count:>12,}  {_part(count, report.requests):>8}{_NOTES.get(name, '')}",
                STYLES.get(name, ""),
            )
    columns = max(10, min(MAX_SPARKS, Console().width - 24))
    if len(report.timeline) > 1:
        say("")
        say(f"  {'requests':<12}{sparkline([step.requests for step in report.timeline], columns)}")
        if report.refused:
            say(f"  {'refused':<12}{sparkline([step.refused for step in report.timeline], columns)}", STYLES["refused"])
        say(f"  {'':<12}one bar: {duration(report.step_seconds * -(-len(report.timeline) // columns))}")
    say("")


def _show_rules(report: Report) -> None:
    rows: list[tuple[Cell, ...]] = []
    for rule in report.rules:
        hit = rule.refused + rule.shadow
        steps = sparkline([step.rules.get(rule.id, 0) for step in report.timeline], 16)
        name = f"{rule.id} (log_only)" if rule.action == "log_only" else rule.id
        subjects = (rule.subjects, _part(rule.subjects, rule.all_subjects))
        rows.append((name, rule.requests, hit, _part(hit, rule.requests), *subjects, steps))
    show_table(("rule", "requests", "refused", "share", "subjects", "of all", "over time"), rows)
    say("")
    shares = ("p50", "p95", "p99", "max")
    used: list[tuple[Cell, ...]] = [
        (rule.id, rule.quota, *(percent(rule.used[name]) for name in shares), rule.burst_needed)
        for rule in report.rules
        if rule.requests
    ]
    if used:
        columns = ("rule", "quota", *shares, "burst needed")
        show_table(columns, used, title="How much of the limit subjects used at most")


def _show_top(report: Report) -> None:
    rows: list[tuple[Cell, ...]] = [
        (one.rule, one.who, one.requests, one.refused, _part(one.refused, one.requests)) for one in report.top
    ]
    title = f"Refused most: {report.subjects:,} of {report.all_subjects:,} subjects were"
    show_table(("rule", "subject", "requests", "refused", "share"), rows, title=title)


def _show_comparison(report: Report, against: ComparisonReport) -> None:
    say(f"Compared with the other rules, which refuse {against.refused:,}:", "bold")
    columns = max(10, min(MAX_SPARKS, Console().width - 52))
    for what in ("refused", "allowed"):
        count, subjects = getattr(against, f"newly_{what}"), getattr(against, f"newly_{what}_subjects")
        line = sparkline([getattr(step, f"newly_{what}") for step in report.timeline], columns)
        whose = "1 subject" if subjects == 1 else f"{subjects:,} subjects"
        say(f"  newly {what:<8}{count:>10,}  of {whose}  {line.rstrip()}", STYLES[what] if count else "")
    for title, changed in (("Newly refused", against.top_refused), ("Newly allowed", against.top_allowed)):
        if changed:
            say("")
            rows: list[tuple[Cell, ...]] = [
                (one.rule, one.who, one.requests, _short(one.first), _short(one.last)) for one in changed
            ]
            show_table(("rule", "subject", "requests", "first", "last"), rows, title=title)


def _short(time: str) -> str:
    return time[:19].replace("T", " ")


def _show_suggestion(suggestion: SuggestionReport) -> None:
    what = f"at most {percent(suggestion.at_most)} of {suggestion.of}"
    if suggestion.found is None:
        say(f"No limit tried for {suggestion.rule} refuses {what}", STYLES["refused"])
    else:
        say(f"The smallest limit of {suggestion.rule} that refuses {what}: {suggestion.quota}", "bold")
        found = suggestion.found
        say(
            f"  refuses {found.refused:,} of {suggestion.requests:,} requests, {percent(found.share_of_requests)}, "
            f"and {found.subjects:,} of {suggestion.all_subjects:,} subjects, {percent(found.share_of_subjects)}"
        )
    say("")
    curve = suggestion.curve
    near = [point for point in curve if suggestion.limit is None or point.limit <= 4 * suggestion.limit]
    step = max(1, len(near) // SHOWN)
    shown = {
        point.limit: point
        for point in (*near[::step], suggestion.now, *([suggestion.found] if suggestion.found else []))
    }
    share = f"share_of_{suggestion.of}"
    highest = max(getattr(point, share) for point in shown.values())
    rows: list[tuple[Cell, ...]] = [
        (
            f"{point.limit:,}{' ←' if point.limit == suggestion.limit else ''}"
            f"{' now' if point.limit == suggestion.now.limit else ''}",
            point.refused,
            percent(point.share_of_requests),
            point.subjects,
            percent(point.share_of_subjects),
            bar(getattr(point, share) / highest if highest else 0.0),
        )
        for _, point in sorted(shown.items())
    ]
    show_table(("limit", "refused", "of requests", "subjects", "of subjects", f"refused {suggestion.of}"), rows)


def _show_remarks(report: Report) -> None:
    for name, count, lines, why in (
        ("unreadable", report.unreadable, report.unreadable_lines, "could not be read"),
        ("late", report.late, report.late_lines, "were out of order by more than the sort window, and were skipped"),
    ):
        if count:
            say("")
            say(f"{count:,} line{'' if count == 1 else 's'} {why}:", STYLES["warning"])
            for line in lines:
                say(f"  {line}")
            if count > len(lines):
                say(f"  and {count - len(lines):,} more {name}")
    if any(rule.approximate for rule in report.rules):
        say("")
        say("There were too many subjects to track: some that returned after a long time count twice.")
