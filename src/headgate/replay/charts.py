"""Charts as SVG: bars over time, and the curve of a suggestion. Colours are CSS variables with defaults."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log10
from typing import Final

from headgate.replay.report import Report, SuggestionReport

WIDTH: Final = 720
HEIGHT: Final = 180
LEFT: Final = 76  # for the numbers at the side, even in a phone's larger type
BOTTOM: Final = 32
TEXT: Final = 10  # from the bottom to the baseline of the text
TOP: Final = 10
_UNITS: Final = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
STYLE: Final = (
    "<style>text{font:11px system-ui,sans-serif;fill:var(--quiet,#667085)}"
    ".base{fill:var(--bar,#9db2ce)}.hit{fill:var(--hit,#c8372d)}.good{fill:var(--good,#2b7a4b)}"
    ".line{fill:none;stroke:var(--hit,#c8372d);stroke-width:2}.second{stroke:var(--bar,#5c7fb0);stroke-dasharray:5 3}"
    "@media(max-width:600px){svg text{font-size:20px}}"
    ".axis{stroke:var(--rule,#d0d5dd)}.mark{stroke:var(--good,#2b7a4b);stroke-dasharray:3 3}</style>"
)


def bars(
    values: Sequence[int],
    part: Sequence[int],
    times: Sequence[str],
    *,
    label: str,
    hit: str = "hit",
    height: int = HEIGHT,
) -> str:
    """Draw bars of `values`, with a `part` of each marked. `times` are ISO 8601."""
    highest = max(values, default=0) or 1
    inner, wide = height - TOP - BOTTOM, WIDTH - LEFT
    step = wide / max(1, len(values))
    shapes = []
    for at, (value, marked) in enumerate(zip(values, part, strict=True)):
        x, width = LEFT + at * step, max(0.8, step - 1)
        title = f"<title>{escape(times[at][:16].replace('T', ' '))}: {value:,}, of which {marked:,}</title>"
        for kind, number in (("base", value), (hit, marked)):
            if number:
                tall = max(1.0, inner * number / highest)
                shapes.append(
                    f'<rect class="{kind}" x="{x:.1f}" y="{TOP + inner - tall:.1f}" width="{width:.1f}" '
                    f'height="{tall:.1f}">{title}</rect>'
                )
    ends = ""
    if times:
        y = height - TEXT
        ends = f'<text x="{LEFT}" y="{y}">{_time(times[0])}</text>'
        ends += f'<text x="{WIDTH}" y="{y}" text-anchor="end">{_time(times[-1])}</text>'
    return _svg("".join(shapes) + _side(highest, inner) + ends, height, label)


def timeline(report: Report) -> str:
    """Draw all requests over time, and how many of them were refused."""
    steps = report.timeline
    return bars(
        [step.requests for step in steps],
        [step.refused for step in steps],
        [step.at for step in steps],
        label="Requests over time, and those refused",
    )


def rule_timeline(report: Report, rule: str) -> str:
    """Draw over time how many requests one rule refused, or would have refused."""
    counts = [step.rules.get(rule, 0) for step in report.timeline]
    times = [step.at for step in report.timeline]
    return bars(counts, counts, times, label=f"Refused by {rule} over time", height=110)


def change_timeline(report: Report, *, refused: bool) -> str:
    """Draw over time how many requests are newly refused, or newly allowed."""
    counts = [step.newly_refused if refused else step.newly_allowed for step in report.timeline]
    what = "Newly refused" if refused else "Newly allowed"
    times = [step.at for step in report.timeline]
    return bars(counts, counts, times, label=f"{what} over time", hit="hit" if refused else "good", height=110)


def curve(suggestion: SuggestionReport) -> str:
    """Draw the refused share by limit: of requests, and dashed of subjects. Limits are on a log scale."""
    points = [point for point in suggestion.curve if point.limit > 0]
    if len(points) < 2:
        return ""
    inner, wide = HEIGHT - TOP - BOTTOM, WIDTH - LEFT - 12
    low, high = log10(points[0].limit), log10(points[-1].limit)
    highest = max(max(point.share_of_requests, point.share_of_subjects) for point in points) or 1.0

    def x(limit: int) -> float:
        return LEFT + wide * (log10(limit) - low) / ((high - low) or 1)

    def line(shares: Sequence[float], kind: str) -> str:
        placed = zip(points, shares, strict=True)
        path = " ".join(f"{x(point.limit):.1f},{TOP + inner * (1 - share / highest):.1f}" for point, share in placed)
        return f'<polyline class="line {kind}" points="{path}"/>'

    shapes = line([point.share_of_requests for point in points], "")
    shapes += line([point.share_of_subjects for point in points], "second")
    y = HEIGHT - TEXT
    if suggestion.limit is not None:
        at = x(suggestion.limit)
        anchor = "end" if at > WIDTH / 2 else "start"
        shapes += f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{TOP + inner}"/>'
        shapes += f'<text x="{at + (-5 if anchor == "end" else 5):.1f}" y="{TOP + 12}" text-anchor="{anchor}">'
        shapes += f"limit {suggestion.limit:,}</text>"
    shapes += f'<line class="axis" x1="{LEFT}" x2="{WIDTH}" y1="{TOP + inner}" y2="{TOP + inner}"/>'
    shapes += f'<text x="{LEFT - 6}" y="{TOP + 9}" text-anchor="end">{highest * 100:.3g} %</text>'
    shapes += f'<text x="{LEFT - 6}" y="{TOP + inner}" text-anchor="end">0 %</text>'
    shapes += f'<text x="{LEFT}" y="{y}">limit {points[0].limit:,}</text>'
    shapes += f'<text x="{WIDTH}" y="{y}" text-anchor="end">{points[-1].limit:,}</text>'
    return _svg(shapes, HEIGHT, f"Share refused by the limit of {suggestion.rule}")


def _side(highest: int, inner: int) -> str:
    base = TOP + inner
    return (
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH}" y1="{base}" y2="{base}"/>'
        f'<text x="{LEFT - 6}" y="{TOP + 9}" text-anchor="end">{_short(highest)}</text>'
        f'<text x="{LEFT - 6}" y="{base}" text-anchor="end">0</text>'
    )


def _short(number: int) -> str:
    """Return a number in at most six characters: `99,999`, `125k`, `1.25M`."""
    if number < 100_000:
        return f"{number:,}"
    size, unit = next(one for one in _UNITS if number >= 0.9995 * one[0])  # 999,600 is 1M, not 1000k
    return f"{number / size:.3g}{unit}"


def _svg(shapes: str, height: int, label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(label, quote=True)}">{STYLE}{shapes}</svg>'
    )


def _time(text: str) -> str:
    return escape(text[:16].replace("T", " "))
