"""`python -m tests.chaos`: every fault, under load, on this machine; the figures in one table at the end.

    python -m tests.chaos                      all cases, some four minutes
    python -m tests.chaos --quick              the short form, as `make test` has it
    python -m tests.chaos --only blackhole     some cases

Ends with 1 if a bound was broken; those of time want a machine that has nothing else to do.
docs/explanation/how-exact-is-it.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from rich.console import Console
from rich.table import Table

from tests.chaos.callers import Witness
from tests.chaos.case import Case, Figures
from tests.chaos.cases import CASES

SLACK_OF_QUICK = 5.0  # the short form runs on machines that are busy


def main() -> int:
    arguments = parse()
    logging.getLogger("headgate").addHandler(logging.NullHandler())  # what is logged is part of the fault
    console = Console(width=None if Console().is_terminal else 132)
    chosen = [case for case in CASES if chosen_by(case, arguments)]
    began = time.monotonic()
    measured = []
    for case in chosen:
        console.print(f"{case.name}: {case.fault} …", highlight=False)
        measured.append((case, run(case, quick=arguments.quick)))
    console.print(table(measured))
    broken = sum(not figure.held for _, figures in measured for figure in figures.all)
    console.print(f"{len(chosen)} cases in {time.monotonic() - began:.0f} s; {broken} bounds broken", highlight=False)
    return 1 if broken else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the short form: what the other tests do not cover")
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    return parser.parse_args()


def chosen_by(case: Case, arguments: argparse.Namespace) -> bool:
    if arguments.only:
        return case.name in arguments.only
    return case.quick or not arguments.quick


def run(case: Case, *, quick: bool) -> Figures:
    """One case. If it breaks off, that is a bound broken."""
    figures = Figures(SLACK_OF_QUICK if quick else 1.0)
    try:
        with Witness() as witness:
            case.run(figures, quick)
        figures.note("a thread beside it was late by", f"{witness.late_ms:.1f} ms")
    except Exception as error:  # noqa: BLE001 - the table shows it, and the other cases go on
        figures.broke_off(error)
    return figures


def table(measured: list[tuple[Case, Figures]]) -> Table:
    shown = Table(title="Faults under load")
    for name in ("fault", "figure", "measured", "bound", ""):
        shown.add_column(name, justify="right" if name == "measured" else "left")
    for case, figures in measured:
        for place, figure in enumerate(figures.all):
            held = "" if not figure.bound else "held" if figure.held else "[red bold]BROKEN[/]"
            shown.add_row("" if place else case.fault, figure.name, figure.measured, figure.bound, held)
        shown.add_section()
    return shown


if __name__ == "__main__":
    sys.exit(main())
