"""`python -m tests.chaos`: every fault, under load, on this machine; the figures in one table at the end.

    python -m tests.chaos                      all cases, some five minutes
    python -m tests.chaos --quick              the short form, as `make test` has it
    python -m tests.chaos --only frozen        some cases
    python -m tests.chaos --runs 10            each case ten times; the table has the figures of every run

Ends with 1 if a bound was broken. Those of time are judged less what the machine was late by (`lateness.py`).
docs/explanation/how-exact-is-it.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from rich.console import Console
from rich.table import Table

from tests.chaos.case import Case, Figure, Figures, measured
from tests.chaos.cases import CASES

SLACK_OF_QUICK = 5.0  # the short form runs on machines that are busy


def main() -> int:
    arguments = parse()
    logging.getLogger("headgate").addHandler(logging.NullHandler())  # what is logged is part of the fault
    console = Console(width=None if Console().is_terminal else 132)
    chosen = [case for case in CASES if chosen_by(case, arguments)]
    began = time.monotonic()
    results = []
    for case in chosen:
        console.print(f"{case.name}: {case.fault} …", highlight=False)
        slack = SLACK_OF_QUICK if arguments.quick else 1.0
        runs = [measured(case, quick=arguments.quick, slack=slack) for _ in range(arguments.runs)]
        results.append((case, runs))
    console.print(table(results))
    broken = sum(not figure.held for _, runs in results for figures in runs for figure in figures.all)
    console.print(f"{len(chosen)} cases in {time.monotonic() - began:.0f} s; {broken} bounds broken", highlight=False)
    return 1 if broken else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the short form: what the other tests do not cover")
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="run each case N times (default: 1)")
    return parser.parse_args()


def chosen_by(case: Case, arguments: argparse.Namespace) -> bool:
    if arguments.only:
        return case.name in arguments.only
    return case.quick or not arguments.quick


def table(results: list[tuple[Case, list[Figures]]]) -> Table:
    shown = Table(title="Faults under load")
    for name in ("fault", "figure", "measured", "bound", ""):
        shown.add_column(name, justify="right" if name == "measured" else "left")
    for case, runs in results:
        by_name: dict[str, list[Figure]] = {}
        for figure in [figure for figures in runs for figure in figures.all]:
            by_name.setdefault(figure.name, []).append(figure)
        for place, (name, same) in enumerate(by_name.items()):
            shown.add_row("" if place else case.fault, name, together(same), same[0].bound, verdict(same))
        shown.add_section()
    return shown


def together(same: list[Figure]) -> str:
    """Return what one figure was in every run, in order; once if it never changed."""
    values = [figure.measured for figure in same]
    if len(values) > 1 and len(set(values)) == 1:
        return f"{values[0]} (all {len(values)} runs)"
    return ", ".join(values)


def verdict(same: list[Figure]) -> str:
    """Return whether a figure kept its bound in every run."""
    broken = sum(not figure.held for figure in same)
    if broken:
        return f"[red bold]BROKEN[/] {broken} of {len(same)}" if len(same) > 1 else "[red bold]BROKEN[/]"
    return "held" if same[0].bound else ""


if __name__ == "__main__":
    sys.exit(main())
