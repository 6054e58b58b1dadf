"""The report as one HTML page without scripts or external resources: for screen, phone and paper, light and dark."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from headgate.replay.charts import change_timeline, curve, rule_timeline, timeline
from headgate.replay.report import Report


def html_report(report: Report, *, rules: str, against: str | None = None) -> str:
    """Return the page. `rules` and `against` name the rules files."""
    templates = Environment(
        loader=PackageLoader("headgate.replay"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"number": "{:,}".format, "percent": _percent, "time": _time}
    charts = {"timeline": timeline, "rule_timeline": rule_timeline, "change_timeline": change_timeline, "curve": curve}
    templates.globals |= {"part": _part, **charts}
    return templates.get_template("report.html").render(report=report, rules=rules, against=against)


def _part(some: int, whole: int) -> str:
    return _percent(some / whole) if whole else "-"


def _percent(share: float) -> str:
    return "0 %" if share == 0 else f"{share * 100:.3g} %"


def _time(text: str) -> str:
    return text[:19].replace("T", " ")
