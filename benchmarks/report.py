"""What the benchmarks found: rows, tables for a terminal, and JSON for a file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Series

PACKAGES = (
    "headgate",
    "limits",
    "throttled-py",
    "pyrate-limiter",
    "redis",
    "hiredis",
    "coredis",
    "slowapi",
    "Flask-Limiter",
    "starlette",
    "Flask",
    "granian",
    "gunicorn",
    "grpcio",
    "protobuf",
)

TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Target:
    """What a figure should reach: `at_least` it, or at most."""

    value: float
    unit: str = TIMES
    at_least: bool = True

    def met(self, figure: float) -> bool:
        return figure >= self.value if self.at_least else figure <= self.value

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.value:g}{'' if self.unit == TIMES else ' '}{self.unit}"


@dataclass(frozen=True)
class Row:
    """One figure of one contender. `compared` is the figure that the target is about."""

    work: str
    contender: str
    value: float
    unit: str
    spread: float = 0.0
    compared: float | None = None
    target: Target | None = None

    @property
    def met(self) -> bool | None:
        """None when there is no target."""
        if self.target is None or self.compared is None:
            return None
        return self.target.met(self.compared)


@dataclass
class Section:
    """The rows of one section, and what one has to know to read them."""

    name: str
    title: str
    comparison: str  # what `compared` means here: the heading of its column
    notes: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0  # that it took

    def compare(
        self, work: str, series: Mapping[str, Series], targets: Mapping[str, Target], unit: str = "checks/s"
    ) -> None:
        """Add a row per contender, with Headgate, which comes first, as so many times each of the others."""
        ours, *others = series
        self.rows.append(Row(work, ours, series[ours].median, unit, series[ours].spread))
        for name in others:
            times = series[ours].times(series[name])
            median, spread = series[name].median, series[name].spread
            self.rows.append(Row(work, name, median, unit, spread, times, targets.get(name)))


def show(section: Section, console: Console) -> None:
    table = Table(title=section.title, title_justify="left", title_style="bold")
    for heading in ("work", "contender"):
        table.add_column(heading, no_wrap=True)
    for heading in ("median", "±", section.comparison, "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    work = None
    for row in section.rows:
        if work not in (None, row.work):
            table.add_section()
        table.add_row(
            row.work if row.work != work else "",
            row.contender,
            f"{number(row.value)} {row.unit}",
            f"{row.spread:.0%}" if row.spread else "",
            "" if row.compared is None else compared(row),
            "" if row.target is None else str(row.target),
            {None: "", True: "[green]pass[/]", False: "[red]miss[/]"}[row.met],
        )
        work = row.work
    console.print(table)
    for note in section.notes:
        console.print(f"  {note}", style="dim", highlight=False)
    console.print(f"  {section.seconds} seconds.\n", style="dim", highlight=False)


def compared(row: Row) -> str:
    assert row.compared is not None
    unit = TIMES if row.target is None else row.target.unit
    return f"{row.compared:.2f}{'' if unit == TIMES else ' '}{unit}"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def summary(sections: list[Section], console: Console) -> None:
    rows = [(section, row) for section in sections for row in section.rows if row.met is not None]
    missed = [(section, row) for section, row in rows if not row.met]
    console.print(f"{len(rows) - len(missed)} of {len(rows)} targets reached.", highlight=False)
    for section, row in missed:
        console.print(
            f"  missed: {section.name}, {row.work}, {row.contender}: {compared(row)}, target {row.target}",
            highlight=False,
        )


def environment(redis_server: Path | None) -> dict[str, Any]:
    """Where this ran, and with what."""
    packages: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "redis-server": None if redis_server is None else server_version(redis_server),
        "packages": packages,
    }


def server_version(binary: Path) -> str:
    """What the server says of itself, in short: `Redis server v=7.0.15`."""
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True)
    return " ".join(told.stdout.split()[:3])


def write_json(path: Path, facts: Mapping[str, Any], sections: list[Section]) -> None:
    """Everything, for a machine to read. A row's `met` is null when it has no target."""
    document = dict(facts) | {
        "sections": {
            section.name: {
                "title": section.title,
                "comparison": section.comparison,
                "notes": section.notes,
                "seconds": section.seconds,
                "rows": [
                    asdict(row) | {"target": row.target and str(row.target), "met": row.met} for row in section.rows
                ],
            }
            for section in sections
        }
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
