"""Programs: the compiled programs of the plans in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headgate.limiter.warning_hysteresis import WarningHysteresis
from headgate.rules.holder import Holder
from headgate.rules.plan import RulePlan
from headgate.stores.program import Program

Compile = Callable[[RulePlan, WarningHysteresis], Program]

MAX_PROGRAMS: Final = 16_384  # to remember: compiling one takes as long as ten checks


class Programs(dict[RulePlan, Program]):
    """Programs by plan: `programs[plan]` compiles a program on first use.

    Plans belong to a snapshot. When the rules have changed, the programs of former plans are dropped.
    """

    def __init__(self, holder: Holder, compile_plan: Callable[[RulePlan], Program]) -> None:
        super().__init__()
        self._holder = holder
        self._compiled_for = holder.current
        self._compile = compile_plan

    def __missing__(self, plan: RulePlan) -> Program:
        snapshot = self._holder.current
        if snapshot is not self._compiled_for or len(self) >= MAX_PROGRAMS:
            self.clear()
            self._compiled_for = snapshot
        program = self[plan] = self._compile(plan)
        return program


def raise_uncompiled(plan: RulePlan, states: WarningHysteresis) -> Program:  # noqa: ARG001
    """Compile a plan before the limiter has set how: an error of ours."""
    raise AssertionError("no store was given")
