"""The report as one HTML page without scripts or external resources: for screen, phone and paper, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from headgate.replay.charts import change_timeline, curve, rule_timeline, timeline
from headgate.replay.report import ChangedReport, Report, SuggestionReport

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1d2433;--quiet:#667085;--page:#fff;--panel:#f6f7f9;--rule:#d9dde5;--bar:#9db2ce;
--hit:#c8372d;--good:#2b7a4b}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--quiet:#9aa4b5;--page:#14181f;--panel:#1c222c;--rule:#333c4a;
--bar:#4f6787;--hit:#f0685d;--good:#5cc08a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1.5rem 1rem 4rem;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:1.6rem;margin:0 0 .25rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
h3{font-size:1rem;margin:1.4rem 0 .3rem}
p{margin:.3rem 0}.quiet{color:var(--quiet)}.hit{color:var(--hit)}.good{color:var(--good)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.6rem;margin:1.2rem 0}
.figure{background:var(--panel);border-radius:.5rem;padding:.7rem .9rem}
.figure b{display:block;font-size:1.45rem;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .6rem;text-align:left;border-bottom:1px solid var(--rule);white-space:nowrap}
th{color:var(--quiet);font-weight:600}.number{text-align:right}
td:first-child,th:first-child{padding-left:0}
svg{display:block;width:100%;height:auto}
code,pre{font:.88rem ui-monospace,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere;white-space:pre-wrap}
@media screen and (max-width:600px){thead{display:none}
tr{display:block;padding:.45rem 0;border-bottom:1px solid var(--rule)}
td{display:inline-block;padding:0 .9rem 0 0;border:0;white-space:normal;overflow-wrap:anywhere}
td:not([data-name]){font-weight:600}td[data-name]::before{content:attr(data-name) " ";color:var(--quiet)}}
@media print{body{max-width:none;padding:0;font-size:11pt}h2,h3{break-after:avoid}svg,tr{break-inside:avoid}
:root{--ink:#000;--page:#fff;--panel:#f6f7f9;--quiet:#555;--rule:#ccc;--bar:#9db2ce;--hit:#c8372d;--good:#2b7a4b}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def html_report(report: Report, *, rules: str, against: str | None = None) -> str:
    """Return the page. `rules` and `against` name the rules files."""
    parts = [*_head(report, rules, against), *_rules(report), *_top(report)]
    if report.against is not None:
        parts += _comparison(report, against or "the other rules")
    if report.suggestion is not None:
        parts += _suggestion(report.suggestion)
    parts += _remarks(report)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Replay of {escape(rules)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _head(report: Report, rules: str, against: str | None) -> Iterable[str]:
    compared = f", compared with {escape(against)}" if against is not None else ""
    yield f"<h1>What {escape(rules)} would have done</h1>"
    files = ", ".join(escape(str(file["name"])) for file in report.files)
    yield f'<p class="quiet">{files}{compared}</p>'
    if report.first is not None and report.last is not None:
        yield f'<p class="quiet">{_time(report.first)} to {_time(report.last)} UTC</p>'
    if not report.complete:
        yield '<p class="hit">Stopped before the end of the log: this is what was replayed so far.</p>'
    figures = [("requests", report.requests, ""), ("refused", report.refused, "hit" if report.refused else "")]
    figures += [
        (name, count, "")
        for name, count in (
            ("delayed", report.delayed),
            ("would be refused by rules that only log", report.shadow),
            ("of the refused, by penalties", report.penalised),
            ("exempt", report.exempt),
            ("without a rule", report.unmatched),
        )
        if count
    ]
    cells = "".join(
        f'<div class="figure"><b class="{style}">{count:,}</b>{escape(name)}'
        f"{f' · {_part(count, report.requests)}' if name != 'requests' else ''}</div>"
        for name, count, style in figures
    )
    yield f'<div class="figures">{cells}</div>'
    if len(report.timeline) > 1:
        yield f"<h2>Over time</h2>{timeline(report)}"
        yield '<p class="quiet">Each bar: requests, and in red those refused.</p>'


def _rules(report: Report) -> Iterable[str]:
    yield "<h2>Rules</h2>"
    columns = ("rule", "#refused", "#share", "#requests", "#subjects hit", "#of all", "quota")
    rows = [
        (
            f"{rule.id} (only logs)" if rule.action == "log_only" else rule.id,
            f"{rule.refused + rule.shadow:,}",
            _part(rule.refused + rule.shadow, rule.requests),
            f"{rule.requests:,}",
            f"{rule.subjects:,}",
            _part(rule.subjects, rule.all_subjects),
            rule.quota,
        )
        for rule in report.rules
    ]
    yield _table(columns, rows)
    yield "<h3>How close subjects come</h3>"
    yield '<p class="quiet">The largest share of the limit that each subject used at any time.</p>'
    used = [
        (rule.id, *(_percent(rule.used[name]) for name in ("p50", "p95", "p99", "max")), f"{rule.burst_needed:,}")
        for rule in report.rules
        if rule.requests
    ]
    yield _table(("rule", "#p50", "#p95", "#p99", "#max", "#burst needed"), used)
    for rule in report.rules:
        if rule.refused + rule.shadow:
            yield f"<h3>{escape(rule.id)} over time</h3>{rule_timeline(report, rule.id)}"


def _top(report: Report) -> Iterable[str]:
    if not report.top:
        return
    yield "<h2>Refused most</h2>"
    share = _part(report.subjects, report.all_subjects)
    yield f'<p class="quiet">{report.subjects:,} of {report.all_subjects:,} subjects: {share}.</p>'
    rows = [
        (one.rule, one.who, f"{one.requests:,}", f"{one.refused:,}", _part(one.refused, one.requests))
        for one in report.top
    ]
    yield _table(("rule", "subject", "#requests", "#refused", "#share"), rows)


def _comparison(report: Report, other: str) -> Iterable[str]:
    against = report.against
    assert against is not None
    yield "<h2>What changes</h2>"
    share = _part(against.refused, report.requests)
    yield f'<p class="quiet">Refused by {escape(other)}: {against.refused:,} requests, {share}.</p>'
    for name, refused, count, subjects, changed in (
        ("Newly refused", True, against.newly_refused, against.newly_refused_subjects, against.top_refused),
        ("Newly allowed", False, against.newly_allowed, against.newly_allowed_subjects, against.top_allowed),
    ):
        style = "hit" if refused else "good"
        whose = "1 subject" if subjects == 1 else f"{subjects:,} subjects"
        yield f'<h3>{name}: <span class="{style}">{count:,}</span> requests of {whose}</h3>'
        if count:
            yield change_timeline(report, refused=refused)
            yield _changed_table(changed)


def _changed_table(changed: Sequence[ChangedReport]) -> str:
    rows = [(one.rule, one.who, f"{one.requests:,}", _time(one.first), _time(one.last)) for one in changed]
    return _table(("rule", "subject", "#requests", "first", "last"), rows)


def _suggestion(suggestion: SuggestionReport) -> Iterable[str]:
    what = f"at most {_percent(suggestion.at_most)} of {suggestion.of}"
    yield f"<h2>A limit for {escape(suggestion.rule)}</h2>"
    found = suggestion.found
    if found is None:
        yield f"<p>No limit that was tried refuses {what}.</p>"
    else:
        yield f"<p>The smallest that refuses {what}: <b>{escape(suggestion.quota)}</b>.</p>"
        yield (
            f"<p>It refuses {found.refused:,} of {suggestion.requests:,} requests "
            f"({_percent(found.share_of_requests)}), and {found.subjects:,} of {suggestion.all_subjects:,} subjects "
            f"({_percent(found.share_of_subjects)}).</p>"
        )
    yield curve(suggestion)
    yield '<p class="quiet">Refused by limit: of requests, and dashed of subjects.</p>'


def _remarks(report: Report) -> Iterable[str]:
    for title, count, lines in (
        ("Lines that could not be read", report.unreadable, report.unreadable_lines),
        ("Lines that were too late to be sorted, and were skipped", report.late, report.late_lines),
    ):
        if count:
            yield f"<h2>{title}: {count:,}</h2><pre>{escape(chr(10).join(lines))}</pre>"
    if report.missing:
        yield "<h2>Facts that the log does not have</h2>"
        yield _table(("rule", "fact"), [(one["rule"], one["fact"]) for one in report.missing])
    if any(rule.approximate for rule in report.rules):
        yield '<p class="quiet">There were too many subjects to track: some count twice.</p>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table. Columns whose names begin with # are numbers.

    On a phone, a row is a paragraph of cells with their columns' names, except for rule and subject.
    """
    names = [column.lstrip("#") for column in columns]
    shown = ["" if name in ("rule", "subject") else f' data-name="{escape(name)}"' for name in names]
    styles = [' class="number"' if column.startswith("#") else "" for column in columns]
    head = "".join(f"<th{style}>{escape(name)}</th>" for name, style in zip(names, styles, strict=True))
    cells = [f"{style}{name}" for style, name in zip(styles, shown, strict=True)]
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, cells, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _part(some: int, whole: int) -> str:
    return _percent(some / whole) if whole else "-"


def _percent(share: float) -> str:
    return "0 %" if share == 0 else f"{share * 100:.3g} %"


def _time(text: str) -> str:
    return escape(text[:19].replace("T", " "))
