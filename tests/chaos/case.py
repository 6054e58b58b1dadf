"""What a case is: a fault under load, the figures that were measured, and the bounds that they must keep."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.lateness import Witness

DEADLINE_MS = 200  # of a check, by default
OVERTIME_MS = 20  # that a check may take beyond it
PROBE_S = 1.0  # between two probes of a server that fails
SWITCH_S = 0.0005  # between threads: several callers share an interpreter here, and elsewhere have their own
HEALED_S = 1.05  # a server that fails is probed once a second, and a probe has its deadline


class Figure(NamedTuple):
    """Something measured. Without a bound, it is there to be known."""

    name: str
    measured: str
    bound: str = ""
    held: bool = True


@dataclass
class Figures:
    """What one case has measured. `witness` knows how late the machine was meanwhile.

    `slack` multiplies bounds of time: tests run on machines that are busy.
    """

    witness: Witness
    slack: float = 1.0
    all: list[Figure] = field(default_factory=list)

    def note(self, name: str, measured: object) -> None:
        self.all.append(Figure(name, str(measured)))

    def exactly(self, name: str, measured: int, expected: int = 0) -> None:
        self.all.append(Figure(name, f"{measured:,}", f"{expected:,}", measured == expected))

    def at_most(self, name: str, measured: float, bound: float, unit: str = "") -> None:
        self.all.append(Figure(name, _shown(measured, unit), f"≤ {_shown(bound, unit)}", measured <= bound))

    def at_least(self, name: str, measured: float, bound: float, unit: str = "") -> None:
        self.all.append(Figure(name, _shown(measured, unit), f"≥ {_shown(bound, unit)}", measured >= bound))

    def within(self, name: str, measured: float, bound: float, unit: str) -> None:
        """At most so much time."""
        self.at_most(name, measured, bound * self.slack, unit)

    def healed(self, name: str, since: float, seconds: float, bound: float) -> None:
        """So long it took until all was well again. A probe that the machine has held up costs a second more."""
        witness, probes = self.witness, int(seconds / PROBE_S)
        in_vain = sum(witness.was_busy(since + PROBE_S * n, since + PROBE_S * (n + 1)) for n in range(probes))
        excused = witness.late(since, since + seconds) + PROBE_S * in_vain
        self.note(name, f"{seconds:.2f} s")
        self.within("… but for the machine", max(0.0, seconds - excused), bound, "s")

    def broke_off(self, error: BaseException) -> None:
        self.all.append(Figure("broke off", f"{type(error).__name__}: {error}", "never", held=False))

    @property
    def held(self) -> bool:
        return all(figure.held for figure in self.all)


class Case(NamedTuple):
    """A fault. `run` is told whether it should be quick."""

    name: str
    fault: str
    run: Callable[[Figures, bool], None]
    extended: bool = False  # needs a Debian package
    quick: bool = False  # part of the short form: the tests of tests/integration do not cover it


def measured(case: Case, *, quick: bool, slack: float) -> Figures:
    """Run a case. If it breaks off, that is a bound broken."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    with Witness() as witness:
        figures = Figures(witness, slack)
        try:
            case.run(figures, quick)
        except Exception as error:  # noqa: BLE001 - it is one of the figures
            figures.broke_off(error)
        finally:
            sys.setswitchinterval(usual)
    figures.note("this process was late by", f"{1_000 * witness.worst:.1f} ms at most")
    return figures


def _shown(value: float, unit: str) -> str:
    number = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}" if value < 10 else f"{value:,.1f}"
    return f"{number} {unit}".rstrip()
