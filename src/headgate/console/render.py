"""Renders templates, and formats figures, times and quotas."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from headgate._version import __version__
from headgate.core.cost import REQUESTS, Cost
from headgate.core.quota import CONCURRENCY, Quota, duration_text
from headgate.rules.description import RuleField
from headgate.rules.rule import Rule

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_STYLES: Final = {"full": "%b %Y, %H:%M:%S", "clock": "%b, %H:%M:%S", "short": "%b, %H:%M"}
_UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
ACTIONS: Final = {"reject": "enforced", "throttle": "throttled", "annotate": "annotates", "log_only": "shadow"}


class Renderer:
    """The console's templates. All values are escaped."""

    def __init__(self, *, has_regions: bool) -> None:
        self._templates = Environment(
            loader=PackageLoader("headgate.console"),
            autoescape=select_autoescape(default=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "time": time_tag,
            "number": number,
            "milliseconds": milliseconds,
            "seconds": seconds,
            "share": share,
            "quota": quota_text,
            "algorithm": algorithm_text,
            "count": count,
            "cost": cost_text,
            "help": help_text,
            "subject": subject_text,
            "state": rule_state,
            "window": duration_text,
            "sparkline": sparkline,
            "barchart": barchart,
        }
        self._templates.globals |= {"headgate_version": __version__, "has_regions": has_regions}

    def render(self, template: str, **values: Any) -> str:
        return self._templates.get_template(template).render(**values)


def time_tag(us: int | None, style: str = "full") -> Markup:
    """Return a time that the browser shows in its zone, with UTC as title. `style` is full, clock, short or ago."""
    if us is None:
        return Markup("—")
    at = _EPOCH + timedelta(microseconds=us)
    utc = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    # About as long as the browser's text, so that the layout does not move.
    text = ago(at - datetime.now(UTC)) if style == "ago" else f"{at.day} {at.strftime(_STYLES[style])}"
    return Markup('<time datetime="{}" data-style="{}" title="{}">{}</time>').format(
        at.isoformat(timespec="milliseconds"), style, utc, text
    )


def ago(ahead: timedelta) -> str:
    """Format the distance of a time: in 2 minutes, 3 days ago."""
    seconds = ahead.total_seconds()
    unit, size = next((one for one in _UNITS if abs(seconds) >= one[1]), _UNITS[-1])
    amount = round(abs(seconds) / size)
    if not amount:
        return "now"
    text = f"{amount} {unit}" if amount == 1 else f"{amount} {unit}s"
    return f"in {text}" if seconds > 0 else f"{text} ago"


def count(value: float) -> str:
    """Return a whole number in full: 12,345."""
    return f"{value:,.0f}"


def number(value: float | None) -> str:
    """Return a figure in about five characters: 1,234 or 12.3k."""
    if value is None:
        return "—"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scaled = value / (1e3 if unit == "k" else limit)
            return f"{scaled:.1f}{unit}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def milliseconds(us: float | None) -> str:
    if us is None:
        return "—"
    ms = us / 1_000
    return f"{ms:.2f} ms" if ms < 10 else f"{ms:,.0f} ms"


def seconds(value: float | None) -> str:
    """Format a time span: 4.2 s, 3 min, 2 h."""
    if value is None:
        return "never"
    if value < 1:
        return f"{value * 1_000:.0f} ms"
    for limit, unit, name in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if value < limit:
            return f"{value / unit:.1f} {name}" if value / unit < 10 and unit == 1 else f"{value / unit:.0f} {name}"
    return f"{value / 86_400:.0f} days"


def share(part: float, whole: float) -> str:
    """Return a share in per cent."""
    if not whole:
        return "0 %"
    percent = 100 * part / whole
    return f"{percent:.2f} %" if 0 < percent < 0.1 else f"{percent:.1f} %" if percent < 10 else f"{percent:.0f} %"


def quota_text(quota: Quota, unit: str = REQUESTS) -> str:
    """Format a quota: 1,000 / 1m, burst 2,000; 40,000 tokens / 1m; 5 at once; 1,000 / calendar month."""
    limit = f"{quota.limit:,}" if unit == REQUESTS else f"{quota.limit:,} {unit}"
    if quota.algorithm == CONCURRENCY:
        return f"{limit} at once"
    if quota.calendar is not None:
        return f"{limit} / calendar {quota.calendar.period}"
    text = f"{limit} / {duration_text(quota.window_us)}"
    return text if quota.burst in (None, quota.limit) else f"{text}, burst {quota.burst:,}"


def algorithm_text(quota: Quota) -> str:
    """Format how a quota is counted: token bucket; slots of at most 10m; Europe/Berlin, from day 15."""
    if quota.algorithm == CONCURRENCY:
        return f"slots of at most {duration_text(quota.window_us)}"
    if quota.calendar is None:
        return quota.algorithm.replace("_", " ")
    anchor, period = quota.calendar.anchor_text, quota.calendar.period
    begins = {"day": f", from {anchor}:00", "week": f", from {anchor}", "month": f", from day {anchor}"}
    return quota.calendar.tz + (begins.get(period, "") if anchor is not None else "")


def cost_text(cost: Cost) -> str:
    """Format the cost of a request: 1, or 1 request, 4,000 tokens."""
    if isinstance(cost, int):
        return count(cost)
    return ", ".join(f"{amount:,} {unit.removesuffix('s') if amount == 1 else unit}" for unit, amount in cost.items())


def help_text(field: RuleField) -> Markup:
    """Return the meaning of a rule's field, with names as code."""
    parts = field.plain_meaning.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else part for index, part in enumerate(parts)
    )


def subject_text(subject: str) -> str:
    """Format a subject. One of several facts is stored as a JSON list."""
    if not subject.startswith('["'):
        return subject
    try:
        return " · ".join(map(str, json.loads(subject)))
    except ValueError:
        return subject


def rule_state(rule: Rule) -> str:
    """Return a rule's state: `disabled`, `shadow`, `annotates`, `throttled` or `enforced`."""
    return ACTIONS.get(rule.action, rule.action) if rule.enabled else "disabled"


def sparkline(values: list[tuple[int, int]], width: int = 120, height: int = 24) -> Markup:
    """Draw two areas in SVG: checks, and those of them that were refused."""
    highest = max((checks for checks, _ in values), default=0)
    if not highest:
        return Markup('<span class="quiet">no traffic</span>')
    last, scale = max(1, len(values) - 1), (height - 3) / highest
    total, refused = (sum(column) for column in zip(*values, strict=True))

    def shape(kind: str, index: int) -> Markup:
        """Return an area whose sides and base are outside the view. Coordinates are integers, to keep it short."""
        points = " ".join(f"{n},{height - 1 - round(scale * one[index])}" for n, one in enumerate(values))
        return Markup('<polygon class="{}" points="-9,{} {} {},{}"/>').format(
            kind, height + 9, points, last + 9, height + 9
        )

    shapes = shape("checks", 0) + (shape("refused", 1) if refused else Markup(""))
    label = f"{total:,} checks, {refused:,} refused in the last hour"
    svg = Markup(
        '<svg class="sparkline" viewBox="0 0 {} {}" width="{}" height="{}" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}</svg>'
    )
    return svg.format(last, height, width, height, label, shapes)


def barchart(bars: list[tuple[int, int, int]], height: int = 64) -> Markup:
    """Draw bars in SVG: refusals at each time and, on top, those of shadow rules."""
    highest = max((refused + shadow for _, refused, shadow in bars), default=0)
    scale = height / highest if highest else 0.0
    drawn = Markup("")
    for index, (_, refused, shadow) in enumerate(bars):
        top = height - scale * (refused + shadow)
        for kind, begin, tall in (("shadow", top, scale * shadow), ("refused", top + scale * shadow, scale * refused)):
            if tall:
                rect = Markup('<rect class="{}" x="{}" y="{:.1f}" width="8" height="{:.1f}"/>')
                drawn += rect.format(kind, index * 10 + 1, begin, tall)
    label = f"Refused in the last day, at most {highest:,} in one step"
    svg = Markup('<svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>')
    return svg.format(len(bars) * 10, height, label, drawn)
