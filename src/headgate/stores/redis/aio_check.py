"""One check of a plan, for asyncio: it waits in the queue of its server, and its answer is the decision. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.errors import StoreError
from headgate.stores.redis.batcher import Waiting
from headgate.stores.redis.denial_cache import DenialCache
from headgate.stores.redis.program import Costs, PlanProgram, Subjects


class PlanCheck(Waiting):
    """A caller that waits for the decision on a request of `program`. The store asks `denials` before it."""

    __slots__ = ("_asked_us", "_denials", "_epoch", "_program", "_subjects")

    def __init__(
        self, program: PlanProgram, denials: DenialCache, keys: tuple[str, ...], subjects: Subjects, costs: Costs
    ) -> None:
        self.template = program.template
        self.requests = ((keys, costs, ()),)
        self._program = program
        self._denials = denials
        self._subjects = subjects
        self._asked_us, self._epoch = denials.now_us(), denials.epoch

    def resolve(self, now_us: int, figures: Sequence[Any]) -> None:
        if not self.answer.done():
            keys, costs, _ = self.requests[0]
            decision = self._program.decision(now_us, figures, keys, self._subjects, costs, self._asked_us, self._epoch)
            self.answer.set_result(decision)

    def fail(self, error: StoreError) -> None:
        self._denials.clear()
        super().fail(error)
