"""Renders templates, and how figures, times and quotas are written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from headgate._version import __version__
from headgate.core.quota import Quota, duration_text
from headgate.rules.rule import Rule

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
ACTIONS: Final = {"reject": "enforced", "throttle": "throttled", "annotate": "annotates", "log_only": "shadow"}


class Renderer:
    """The console's templates. Everything that they show is escaped."""

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
            "state": rule_state,
            "window": duration_text,
            "sparkline": sparkline,
        }
        self._templates.globals |= {"version": __version__, "has_regions": has_regions}

    def render(self, template: str, **values: Any) -> str:
        return self._templates.get_template(template).render(**values)


def time_tag(us: int | None, style: str = "full") -> Markup:
    """A time for the reader's zone, which the browser knows; its title is UTC. `style` is full, clock or ago."""
    if us is None:
        return Markup("—")
    at = _EPOCH + timedelta(microseconds=us)
    utc = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" data-style="{}" title="{}">{}</time>').format(
        at.isoformat(timespec="milliseconds"), style, utc, utc
    )


def time_text(us: int) -> str:
    """A time in UTC, as programs read it."""
    return (_EPOCH + timedelta(microseconds=us)).isoformat()


def number(value: float | None) -> str:
    """A figure of at most some five characters: 1,234 or 12.3k."""
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
    """A time span for people: 4.2 s, 3 min, 2 h."""
    if value is None:
        return "never"
    if value < 1:
        return f"{value * 1_000:.0f} ms"
    for limit, unit, name in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if value < limit:
            return f"{value / unit:.1f} {name}" if value / unit < 10 and unit == 1 else f"{value / unit:.0f} {name}"
    return f"{value / 86_400:.0f} days"


def share(part: float, whole: float) -> str:
    """A share in per cent."""
    if not whole:
        return "0 %"
    percent = 100 * part / whole
    return f"{percent:.2f} %" if 0 < percent < 0.1 else f"{percent:.1f} %" if percent < 10 else f"{percent:.0f} %"


def quota_text(quota: Quota) -> str:
    """A quota as people say it: 1,000 / 1m, burst 2,000."""
    text = f"{quota.limit:,} / {duration_text(quota.window_us)}"
    return text if quota.burst in (None, quota.limit) else f"{text}, burst {quota.burst:,}"


def rule_state(rule: Rule) -> str:
    """`disabled`, `shadow`, `throttled` or `enforced`."""
    return ACTIONS.get(rule.action, rule.action) if rule.enabled else "disabled"


def sparkline(values: list[tuple[int, int]], width: int = 120, height: int = 24) -> Markup:
    """Two lines in SVG: checks, and of them the refused."""
    most = max((checks for checks, _ in values), default=0)
    if not most:
        return Markup('<span class="quiet">no traffic</span>')
    step = width / max(1, len(values) - 1)

    def points(place: int) -> str:
        scale = (height - 3) / most
        return " ".join(f"{n * step:.1f},{height - 1 - scale * one[place]:.1f}" for n, one in enumerate(values))

    area, refusals = (f"0,{height - 1} {points(place)} {width},{height - 1}" for place in (0, 1))
    total, refused = (sum(column) for column in zip(*values, strict=True))
    label = f"{total:,} checks, {refused:,} refused in the last hour"
    svg = (
        '<svg class="sparkline" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">'
        '<polygon points="{}"/><polyline points="{}"/><polygon class="refused" points="{}"/></svg>'
    )
    return Markup(svg).format(width, height, width, height, label, area, points(0), refusals)
