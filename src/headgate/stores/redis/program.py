"""Programs on Redis: a plan as a command template, filled with keys and costs. Pure; no I/O.

`compile` of the stores for threads and for asyncio makes programs from this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from headgate.core.check import Extras, Result
from headgate.core.decision import Decision, decision_with
from headgate.core.key import escape
from headgate.core.plan import Plan
from headgate.core.reading import Reading, WarningStates
from headgate.errors import IdempotencyConflict, StoreError
from headgate.stores.program import decision_of
from headgate.stores.redis.denial_cache import DenialCache
from headgate.stores.redis.encoding import FIGURES, CommandTemplate, Encoded, EncodedRequest, Encoder, RequestParts
from headgate.stores.redis.steps import Figures

Subjects = tuple[str, ...]
Costs = tuple[int, ...]


Requests = Sequence[tuple[Subjects, Costs]]


class PlanBatch(NamedTuple):
    """Requests of one plan that are decided together."""

    decided: list[Decision | StoreError | None]  # by index; None: not decided yet
    indexes: list[int]  # indexes of requests to send
    sent: list[RequestParts]


class PlanProgram:
    """Encodes requests of one plan, and turns Redis's replies into decisions. Decisions show the plan `shown`."""

    def __init__(
        self, plan: Plan, encoder: Encoder, denials: DenialCache, states: WarningStates | None, shown: Plan
    ) -> None:
        limits = tuple([(limit.quota, limit.enforced) for limit in plan.limits])
        self.plan = plan
        self.template = encoder.template(limits)
        self.keys = _keys_of(plan, encoder.prefix)
        self._limits = limits
        self._encoder = encoder
        self._denials = denials
        self._rules = [limit.rule for limit in plan.limits]
        self._remembers = not (plan.slots or any(limit.leased for limit in plan.limits))
        self._enforced = [FIGURES * at for at, limit in enumerate(plan.limits) if limit.enforced]
        self._known = Reading(shown, states)
        self._unread = Reading(shown, states, _figures_of)

    def known_denial(self, keys: tuple[str, ...], subjects: Subjects, costs: Costs) -> Decision | None:
        """Return the decision on a request that is known to be denied."""
        denials = self._denials
        name = keys[0] if len(keys) == 1 else keys
        if name not in denials.known:
            return None
        denial = denials.answer(name, self.template.terms_at(costs))
        if denial is None:
            return None
        return decision_with(self._known, (denial.now_us, subjects, costs, denial.outcomes), False)

    def decision(
        self,
        now_us: int,
        figures: Sequence[int],
        keys: tuple[str, ...],
        subjects: Subjects,
        costs: Costs,
        sent_us: int,
        epoch: int,
    ) -> Decision:
        """Return the decision on a request of `template`. Remembers a denial, as of the time of the request."""
        allowed = True
        for at in self._enforced:
            if figures[at]:
                allowed = False
        decision = Decision()
        decision.allowed = allowed
        decision.reading = self._unread
        decision.verdict = (now_us, subjects, costs, figures)
        decision._figures = decision._order = decision._state = None
        if not allowed and self._remembers:
            name = keys[0] if len(keys) == 1 else keys
            result = Result(now_us, decision.outcomes)
            self._denials.put(name, self.template.terms_at(costs), result, sent_us, epoch)
        return decision

    def batch(self, requests: Requests) -> PlanBatch:
        """Divide requests into those known to be denied and those to be sent."""
        batch = PlanBatch([None] * len(requests), [], [])
        for at, (subjects, costs) in enumerate(requests):
            keys = self.keys(subjects)
            decision = self.known_denial(keys, subjects, costs) if self._denials.known else None
            if decision is None:
                batch.indexes.append(at)
                batch.sent.append((keys, costs, ()))
            else:
                batch.decided[at] = decision
        return batch

    def put_decisions(
        self,
        batch: PlanBatch,
        start: int,
        answer: list[Figures] | StoreError,
        requests: Requests,
        sent_us: int,
        epoch: int,
    ) -> None:
        """Store the answers to requests of a batch, from `start` on, at their indexes."""
        if isinstance(answer, StoreError):  # later requests were not sent
            for at in batch.indexes[start:]:
                batch.decided[at] = answer
            return
        for index, (now_us, figures) in enumerate(answer, start):
            at = batch.indexes[index]
            keys, (subjects, costs) = batch.sent[index][0], requests[at]
            batch.decided[at] = self.decision(now_us, figures, keys, subjects, costs, sent_us, epoch)

    def encode(self, subjects: Subjects, costs: Costs, peek: bool, extras: Extras | None) -> Encoded:
        """Encode a request that is a peek or has extras."""
        names, keys, arguments = self._encoder.fragments(self._rules, peek, extras or _NO_EXTRAS)
        template = self._encoder.template(self._limits, peek=peek, fragments=names)
        return Encoded(template, EncodedRequest((*keys, *self.keys(subjects)), costs, tuple(arguments)))

    def read(
        self, template: CommandTemplate, figures: Figures, subjects: Subjects, costs: Costs, extras: Extras | None
    ) -> Decision:
        """Return the decision on a request that is a peek or has extras. Raises `IdempotencyConflict`."""
        result = template.read(*figures)
        if result is None:
            assert extras is not None
            assert extras.idempotency is not None
            raise IdempotencyConflict.of(extras.idempotency.key)
        return decision_of(result, self._known.plan, self._known.states, subjects, costs)


_NO_EXTRAS = Extras()


def _keys_of(plan: Plan, prefix: str) -> Callable[[Subjects], tuple[str, ...]]:
    """Return the function that maps the subjects of a request to the keys of its limits."""
    halves = [tuple(f"{prefix}:{limit.key_template}".split("*", 1)) for limit in plan.limits]
    if len(halves) == 1:
        ((head, tail),) = halves
        return lambda subjects: (f"{head}{escape(subjects[0])}{tail}",)
    return lambda subjects: tuple(
        [
            f"{head}{escape(subject)}{tail}"
            for (head, tail), subject in zip(halves, subjects)  # noqa: B905 - strict takes as long as the loop
        ]
    )


def _figures_of(verdict: tuple[int, Subjects, Costs, Sequence[int]]) -> tuple[tuple[int, int, int], ...]:
    """Read wait, remaining and reset of each limit from a verdict whose last part is the figures of a reply."""
    figures = iter(verdict[3])
    return tuple(zip(figures, figures, figures))  # noqa: B905 - strict takes as long as all else
